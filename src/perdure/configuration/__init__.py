"""The configuration file `perdure.toml`: its tables, how it is found, checked, merged and trusted.

May touch: the files it is asked to read, `PERDURE_CONFIG`, `PERDURE_STORE`, `PERDURE_MODEL`.
May not touch: sessions, providers' wires, the network; nothing is opened or started here.

Only `load_config` reads anything; the rest of perdure takes arguments (CG-09).
"""

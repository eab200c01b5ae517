"""Models behind the `Models` port: hosted ones, the embedded local one, and the scripted one.

May touch: the network, threads, `perdure.ports`, `perdure.records`, `perdure.errors`; in each
adapter module the one vendor library it is named after.
May not touch: the transcript, storage, retry policy, tools; the engine's rooms; another adapter.

Importing this package loads no adapter: an adapter module is loaded by name when a model needs it.
"""

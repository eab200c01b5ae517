"""Where commits are kept and reads are answered, and nothing else.

May touch: the disk, sqlite3, its own threads, `perdure.ports`, `perdure.records`, `perdure.errors`.
May not touch: kinds, scheduling, payload meaning, callbacks, networks, every other room.

One backend is a container (`Sessions`) of sessions (`Storage`). All backends obey one law,
`perdure.testing.storage_suite`.
"""

"""The operating system behind ports: time, chance, threads, processes, files.

May touch: the operating system, `perdure.ports`, `perdure.records`, `perdure.errors`.
May not touch: the engine, storage, models, tools, what a conversation means.

Everything that may block runs on a daemon thread of the `Threads` port, never on the loop.
Linux is tested; the macOS paths are written after its manual pages and say so where they stand.
"""

"""The one writer: build, validate, commit, deliver, one command at a time.

May touch: `perdure.ports`, `perdure.records`, `perdure.errors`; kinds' tables, handed in as data.
May not touch: kinds' code, the meaning of payloads, scheduling, every adapter.
"""

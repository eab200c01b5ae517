"""What a user holds: handles that turn calls by people into commands.

May touch: every engine room, `perdure.ports`, `perdure.records`, `perdure.errors`.
May not touch: adapters, wire formats.
"""

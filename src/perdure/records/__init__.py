"""What is stored, and pure functions over it.

May touch: `perdure.errors`, msgspec, the standard library's pure parts.
May not touch: input and output, asyncio, clocks, random numbers, every other room.

Records are frozen, keyword-only Structs; the name a field has on disk is given by
`records.names` and stands beside its Python name in `docs/internals/FORMAT.md` (K05, K66).
"Absent" is `UNSET`, never null.
"""

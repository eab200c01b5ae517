"""What is stored, and pure functions over it.

May touch: `perdure.errors`, msgspec, the standard library's pure parts.
May not touch: input and output, asyncio, clocks, random numbers, every other room.

Records are frozen, keyword-only Structs; the name a field has on disk is given by
`records.names` and stands beside its Python name in `docs/internals/FORMAT.md` (K05, K66).
"Absent" is `UNSET`, never null. The core addresses that hosts read are re-exported (VL-28).
"""

from perdure.records.addresses import ACTIVE_TOOLS as ACTIVE_TOOLS
from perdure.records.addresses import MODEL as MODEL
from perdure.records.addresses import SESSION_NAME as SESSION_NAME
from perdure.records.addresses import THINKING as THINKING
from perdure.records.addresses import entry_label as entry_label
from perdure.records.addresses import request_input as request_input

"""Everything a release ever wrote by name: `python -m tests.format.released` adds this release's.

Names are only ever added. What stands in `released.json` is understood for ever (FM-13, FM-14).
"""

import json
import sys
from pathlib import Path
from typing import Any, Final, get_args

from perdure.errors import FailureCode
from perdure.kinds.approval import Approval
from perdure.kinds.content import CORE_CONTENT
from perdure.kinds.generation import Generation
from perdure.kinds.post_tools import PostTools
from perdure.kinds.tool import ToolCall
from perdure.records.entries import Outcome
from perdure.records.inputs import InputMode, InputState
from perdure.records.messages import Part, StopReason
from perdure.records.writes import Write
from tests.house.stored_names import pairs

PAGE: Final = Path(__file__).with_name("released.json")
KINDS: Final = (Generation, ToolCall, PostTools, Approval)


def tag(struct: Any) -> str:
    """Answer the word that tells a record of a union."""
    return str(struct.__struct_config__.tag)


def names() -> dict[str, list[str]]:
    """Answer what this release writes, by what it names."""
    found = {
        "statuses": [
            f"{kind.facts.name} {status} {role.value}"
            for kind in KINDS
            for status, role in kind.facts.roles.items()
        ],
        "content kinds": list(CORE_CONTENT),
        "outcomes": list(get_args(Outcome)),
        "failures": list(get_args(FailureCode)),
        "input states": list(get_args(InputState)),
        "input modes": list(get_args(InputMode)),
        "stops": list(get_args(StopReason)),
        "parts": [tag(part) for part in get_args(Part)],
        "writes": [tag(write) for write in get_args(Write)],
        "fields": [f"{pair.noun} {pair.stored} {pair.python}" for pair in pairs()],
    }
    return {what: sorted(words) for what, words in found.items()}


def released() -> dict[str, list[str]]:
    """Answer what every release so far has written."""
    return json.loads(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}


def main() -> None:
    """Add this release's names to the list."""
    before = released()
    grown = {what: sorted({*words, *before.get(what, ())}) for what, words in names().items()}
    PAGE.write_text(json.dumps({**before, **grown}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{sum(map(len, grown.values()))} names in {PAGE.name}\n")


if __name__ == "__main__":
    main()

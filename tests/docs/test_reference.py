"""The reference pages name everything there is, and nothing else."""

import re
from pathlib import Path

import msgspec
import pytest

from perdure.cli.endings import CODES, MEANINGS, Envelope
from perdure.cli.events import Event
from perdure.configuration.template import template
from perdure.drive.kind import TaskKind
from perdure.line.facts import TaskFacts
from tests.docs.pages import blocks
from tests.house.source import ROOT
from tests.house.test_front_door import exported

REFERENCE = ROOT / "docs" / "reference"


def sections(page: Path) -> dict[str, str]:
    """Answer the sections of a page by their headings."""
    pieces = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_the_page_has_every_name_of_the_front_door_and_no_other() -> None:
    assert sorted(sections(REFERENCE / "python.md")) == sorted(exported())


@pytest.mark.parametrize("name", sorted(exported()))
def test_a_name_has_a_sentence_and_an_example_that_uses_it(name: str) -> None:
    words, fence, example = sections(REFERENCE / "python.md")[name].partition("```python\n")
    assert len(words.split()) >= 3
    assert fence
    # An instance may stand for its class: a task is found, not made.
    assert re.search(rf"\bperdure\.{name}\b", example), name
    assert "#> " in example


def test_the_page_has_every_configuration_key_with_its_default() -> None:
    assert [text for _, text in blocks(REFERENCE / "configuration.md", "toml")] == [template()]


def test_the_page_has_every_exit_code() -> None:
    page = (REFERENCE / "json.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| \d", line)]
    assert rows == [f"| {CODES[one]} | `{one}` | {MEANINGS[one]} |" for one in CODES]


def test_the_page_has_every_key_of_the_document_and_every_event() -> None:
    words = set(re.findall(r"`(\w+)`", (REFERENCE / "json.md").read_text(encoding="utf-8")))
    assert {field.name for field in msgspec.structs.fields(Envelope)} <= words
    tags = {one.__struct_config__.tag for one in Event.__args__}
    assert tags <= words


def test_the_kind_contract_has_every_member() -> None:
    page = (ROOT / "docs" / "internals" / "KINDS.md").read_text(encoding="utf-8")
    contract = page.partition("## The contract")[2].partition("## ")[0]
    members = [f"facts.{field.name}" for field in msgspec.structs.fields(TaskFacts)]
    members += [name for name in vars(TaskKind) if not name.startswith("_") and name != "facts"]
    assert [name for name in members if not re.search(rf"`{re.escape(name)}\b", contract)] == []

"""The glossary's words are the code's words."""

import re

import pytest

from tests.house.source import ROOT, modules

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| the design's"))
]
WORD = re.compile(r"`(\w+)`")
BANNED = re.compile(r"(^|_)(manager|helper|helpers|util|utils|misc|common)(_|$)", re.IGNORECASE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_code_word_exists(row: list[str]) -> None:
    _, code, meaning = row
    words = WORD.findall(code)
    assert words, "a row names its code word"
    if not meaning.startswith("planned"):
        used = "\n".join(module.text for module in modules())
        assert [word for word in words if not re.search(rf"\b{word}\b", used)] == []


def test_a_word_has_one_row() -> None:
    meanings = [row[0] for row in ROWS]
    assert len(meanings) == len(set(meanings))


def test_no_class_or_module_carries_a_banned_word() -> None:
    classes = re.compile(r"^class (\w+)", re.MULTILINE)
    for module in modules():
        assert not BANNED.search(module.path.stem)
        spoken = [re.sub(r"(?<!^)(?=[A-Z])", "_", name) for name in classes.findall(module.text)]
        assert not [name for name in spoken if BANNED.search(name)]

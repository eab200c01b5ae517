"""Claims against requirements: nothing is promised twice, nothing is forgotten.

A claim is `@pytest.mark.spec("ST-07")` on a test, class or module. What no test holds yet
stands in `docs/internals/DEFERRED.md`. The list of requirements lies beside the repository
and may be absent; the comparison with it is then skipped.
"""

import ast
import functools
import re

import pytest

from tests.house.source import ROOT

ID = re.compile(r"\b[A-Z][A-Z0-9]-\d{2,3}\b")
REQUIREMENT = re.compile(r"^\s*(?:[-|]\s*\*\*|#{2,4}\s*)([A-Z][A-Z0-9]-\d{2,3})\b")
GROUPS = re.compile(
    r"TK|SC|LN|VD|FT|PT|ST|SQ|MM|WS|VL|CX|RS|ID|ER|US|GN|TL|OP|BR|FM|PV|KT|SN|SX|CN|QU|CM|CG|TM|BG"
    r"|RC|IV|AP|HK|WT|AQ|WB|FK"
)
CASES = frozenset(
    f"BB-{n:02}"
    for n in [*range(1, 12), *range(15, 25), *range(28, 34), *range(35, 42), 45, 47, 48, 52]
)
SPEC = ROOT.parent / "shared"


@functools.cache
def claims() -> dict[str, list[str]]:
    """Find every ID that a test claims, and where."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.spec"):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                for argument in node.args:
                    found.setdefault(ast.unparse(argument).strip("'\""), []).append(where)
    return found


@functools.cache
def sections() -> tuple[list[str], list[str]]:
    """Read DEFERRED.md: the IDs that wait for a later issue, and those still open."""
    text = (ROOT / "docs" / "internals" / "DEFERRED.md").read_text(encoding="utf-8")
    waiting, _, open_ones = text.partition("## Open")
    rows = [
        line.split("|")[1].strip() for line in waiting.splitlines() if re.match(r"\| [A-Z]", line)
    ]
    return [row for row in rows if row != "ID"], ID.findall(open_ones)


def requirements() -> set[str]:
    """List the IDs of the groups this release works on."""
    pages = [path for path in (SPEC / "spec").glob("*.md") if path.name != "unification.md"]
    pages += (SPEC / "cases").glob("*.md")
    lines = (line for page in pages for line in page.read_text(encoding="utf-8").splitlines())
    found = {match[1] for match in map(REQUIREMENT.match, lines) if match}
    return {one for one in found if GROUPS.match(one) or one in CASES}


def test_a_claim_is_a_literal_id() -> None:
    wrong = {claim: where for claim, where in claims().items() if not ID.fullmatch(claim)}
    assert not wrong


def test_nothing_waits_and_is_claimed() -> None:
    waiting, _ = sections()
    both = {one: claims()[one] for one in waiting if one in claims()}
    assert not both, "strike it from DEFERRED.md, or take the claim back"


def test_each_waiting_line_names_its_issue_and_reason() -> None:
    text = (ROOT / "docs" / "internals" / "DEFERRED.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if ID.match(line.removeprefix("| "))]
    assert all(re.fullmatch(r"\| \S+ \| (\d+|later) \| .{4,} \|", row) for row in rows)
    waiting, open_ones = sections()
    listed = waiting + open_ones
    assert len(listed) == len(set(listed)), "an ID stands once"


def test_every_requirement_is_claimed_or_listed() -> None:
    if not (SPEC / "spec").is_dir():
        pytest.skip("the list of requirements does not lie beside this copy")
    waiting, open_ones = sections()
    missing = requirements() - set(claims()) - set(waiting) - set(open_ones)
    assert not sorted(missing)


def test_no_claim_is_unknown() -> None:
    if not (SPEC / "spec").is_dir():
        pytest.skip("the list of requirements does not lie beside this copy")
    text = "".join(path.read_text(encoding="utf-8") for path in SPEC.glob("*/*.md"))
    assert not sorted(set(claims()) - set(ID.findall(text)))

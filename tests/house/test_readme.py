"""The README's first two commands exist, and CI runs the second."""

import re
from pathlib import Path

import pytest

from tests.house.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
PROMISED = {
    "setup", "fmt", "lint", "types", "check", "test", "deep", "sim", "hooks", "bench", "docs", "ci",
    "run",
}  # fmt: skip


def commands() -> list[str]:
    """Read the first fenced block: a command a line, comments apart."""
    block = README.partition("```sh\n")[2].partition("```")[0]
    return [line.partition("#")[0].strip() for line in block.splitlines() if line.strip()]


def test_the_readme_opens_with_two_commands() -> None:
    assert commands() == ["make run", "make test"]
    assert README.index("```sh") < 1_500, "before anything a newcomer has to read"


def test_every_target_the_readme_names_exists() -> None:
    named = set(re.findall(r"`make ([a-z]+)", README)) | {c.split()[1] for c in commands()}
    assert named <= TARGETS
    assert PROMISED <= TARGETS


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"\n{commands()[1]}\n" in script
    assert "set -euo pipefail" in script


def test_each_target_says_what_it_does() -> None:
    shown = set(re.findall(r"^([a-z]+):.*## \S", MAKEFILE, re.MULTILINE))
    assert shown >= PROMISED


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_each_link_between_documents_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []

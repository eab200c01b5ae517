"""Dependencies: bounded, few in the core, locked by hash, from no named address (SX-12)."""

import re
import subprocess
import tomllib

import pytest

from tests.house.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = {"click", "msgspec", "rich", "sse-starlette", "starlette", "uvicorn"}
BELOW_NEXT_MINOR = {"pydantic-ai-slim", "openai", "anthropic"}
LOCKS = ["requirements.lock", "requirements-dev.lock"]
REQUIREMENT = re.compile(r"([a-z0-9-]+)(?:\[[a-z,]+\])?>=([\d.]+),<([\d.]+)")
PINNED = re.compile(r"^([a-z0-9-]+)==([^ ]+) \\$", re.MULTILINE)
ALL = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]


@pytest.mark.spec("SX-12")
@pytest.mark.parametrize("requirement", ALL)
def test_a_dependency_has_an_upper_bound(requirement: str) -> None:
    match = REQUIREMENT.fullmatch(requirement)
    assert match, "name>=low,<high"
    name, low, high = match[1], numbers(match[2]), numbers(match[3])
    assert low < high
    if name in BELOW_NEXT_MINOR:
        assert high == [low[0], low[1] + 1]
    else:
        assert high[0] == low[0] or high[0] - low[0] <= 2, "below the next major version"


@pytest.mark.spec("SX-12")
def test_the_core_is_what_the_design_lists() -> None:
    assert {REQUIREMENT.match(one)[1] for one in PROJECT["dependencies"]} == CORE  # type: ignore[index]


@pytest.mark.spec("SX-12")
@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_is_hashed_and_names_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"https?://|file:|^--|@ ", text, re.MULTILINE)


@pytest.mark.spec("SX-12")
@pytest.mark.parametrize(("name", "extras"), [(LOCKS[0], ["local"]), (LOCKS[1], list(EXTRAS))])
def test_the_lock_holds_what_the_project_asks_for(name: str, extras: list[str]) -> None:
    pinned = dict(PINNED.findall((ROOT / name).read_text(encoding="utf-8")))
    wanted = [*PROJECT["dependencies"], *(one for extra in extras for one in EXTRAS[extra])]
    for match in filter(None, map(REQUIREMENT.match, wanted)):
        assert numbers(match[2]) <= numbers(pinned[match[1]]) < numbers(match[3]), match[1]


def test_the_two_locks_agree() -> None:
    small, large = (dict(PINNED.findall((ROOT / name).read_text("utf-8"))) for name in LOCKS)
    assert small.items() <= large.items()


def test_no_committed_file_names_a_registry_or_a_machine_path() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    stray = re.compile(r"pypi\.org|pythonhosted|registry\.npm|(?<![\w./])/(root|work|tmp/pv)/")
    for path in map(ROOT.joinpath, listing.stdout.splitlines()):
        if path.is_file() and path.name != "test_dependencies.py":
            assert not stray.search(path.read_text(encoding="utf-8", errors="replace")), path


def numbers(version: str) -> list[int]:
    """Read a version's leading numbers, for comparing."""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]

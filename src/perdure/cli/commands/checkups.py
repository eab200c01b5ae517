"""The checks of `perdure doctor`: each answers a row, and none changes anything."""

import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final, Literal, TypeAlias

from msgspec import Struct

import perdure
from perdure.cli.commands.catalogues import key_state
from perdure.cli.commands.reaching import reach_checks
from perdure.cli.forwarding.reach import ANSWER_S, answering
from perdure.cli.places import data_folder, exists, file_of, store_url
from perdure.cli.surface import Flags
from perdure.configuration.config import Config
from perdure.configuration.providers import provider_configs
from perdure.errors import PerdureError
from perdure.opening import open_store, system_ports
from perdure.providers.config import HOSTED, ProviderConfig
from perdure.providers.local_files import find_local
from perdure.records.sessions import Owner, SessionInfo

Result: TypeAlias = Literal["ok", "warn", "fail"]

PYTHON_OLDEST: Final = (3, 11)
WAL_FIXED: Final = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
"""First versions of three lines without the race that damages a write-ahead log."""

FREE_BYTES_MIN: Final = 100 * 1024 * 1024
"""Less free space than this is a warning."""

NOW_MS_OLDEST: Final = 1_735_689_600_000
"""A clock before 2025 is wrong."""

SESSIONS_LOOKED_AT: Final = 1_000

_REQUIREMENT: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9_.-]+)(\[[^\]]*\])?(?P<range>[<>=!~,.\d\s]*)"
    r"(;.*extra == ['\"](?P<extra>[^'\"]+)['\"])?"
)


class Check(Struct, frozen=True, kw_only=True):
    """One row; `is_private` says that what was found names something of the user's."""

    result: Result
    name: str
    found: str
    remedy: str | None = None
    is_private: bool = False


async def all_checks(flags: Flags, *, network: bool) -> Sequence[Check]:
    """Run every check."""
    checks = [*_versions(), *_packages(), _local_model(), _clock()]
    try:
        config = perdure.load_config(flags.config)
    except perdure.Rejected as error:
        checks.append(
            Check(
                result="fail",
                name="configuration",
                found=error.message.splitlines()[0],
                remedy="see: perdure config check",
                is_private=True,
            )
        )
        config = Config()
    else:
        checks.append(_configuration(config))
    checks += await _store(store_url(flags.store, config))
    configs = provider_configs(config.values)
    for name, provider in HOSTED.items():
        state = key_state(provider, configs.get(name, ProviderConfig()))
        checks.append(Check(result="ok", name=f"key of {name}", found=state))
    if network:
        checks += [
            Check(
                result="ok" if fault is None else "fail",
                name=f"reach {name}",
                found="reached" if fault is None else fault,
                remedy=None if fault is None else "see to the network, a proxy, or base_url",
            )
            for name, fault in await reach_checks(configs)
        ]
    return checks


def _versions() -> Iterator[Check]:
    yield Check(result="ok", name="perdure", found=version("perdure"))
    python = platform.python_version()
    old = sys.version_info[:2] < PYTHON_OLDEST
    remedy = "install Python 3.11 or later" if old else None
    yield Check(result="fail" if old else "ok", name="python", found=python, remedy=remedy)
    found = sqlite3.sqlite_version
    if has_wal_fault(sqlite3.sqlite_version_info):
        yield Check(
            result="warn",
            name="sqlite",
            found=f"{found}: two writers of one file can damage its log",
            remedy="use a Python with SQLite 3.51.3 or later; perdure lets one thread write",
        )
    else:
        yield Check(result="ok", name="sqlite", found=found)


def has_wal_fault(found: tuple[int, ...]) -> bool:
    """Say whether a version of SQLite has the race of its write-ahead log."""
    if found >= WAL_FIXED[-1]:
        return False
    return not any(found[:2] == fixed[:2] and found >= fixed for fixed in WAL_FIXED)


def _packages() -> Iterator[Check]:
    """Check each dependency's version against its range (SX-12)."""
    extras: dict[str, list[str]] = {}
    for requirement in requires("perdure") or ():
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] == "dev":
            continue
        extra = found["extra"] or ""
        missing = extras.setdefault(extra, [])
        try:
            installed = version(found["name"])
        except PackageNotFoundError:
            missing.append(found["name"])
            continue
        if not in_range(installed, found["range"]):
            yield Check(
                result="warn",
                name=found["name"],
                found=f"{installed} is outside {found['range'].strip()}",
                remedy=f"pip install '{found['name']}{found['range'].strip()}'",
            )
    if extras.get(""):
        names = ", ".join(extras[""])
        yield Check(
            result="fail", name="packages", found=f"missing: {names}", remedy="pip install perdure"
        )
    for extra, missing in extras.items():
        if extra:
            said = f"not installed (pip install 'perdure[{extra}]')" if missing else "installed"
            yield Check(result="ok", name=f"extra {extra}", found=said)


def in_range(installed: str, bounds: str) -> bool:
    """Say whether a version keeps bounds such as `>=8.2,<9`."""
    have = _numbers(installed)
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        limit = _numbers(bound.lstrip("<>=!~"))
        if bound.startswith(">=") and have < limit:
            return False
        if bound.startswith("<") and not bound.startswith("<=") and have >= limit:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))


def _local_model() -> Check:
    found = find_local(data_folder())
    if found is not None:
        return Check(result="ok", name="local model", found="its file is there")
    return Check(result="ok", name="local model", found="not fetched (perdure models fetch local)")


def _clock() -> Check:
    if system_ports().clock.now_ms() < NOW_MS_OLDEST:
        return Check(result="fail", name="clock", found="it is before 2025", remedy="set the clock")
    return Check(result="ok", name="clock", found="plausible")


def _configuration(config: Config) -> Check:
    files = ", ".join(str(file) for file in config.files) or "no file"
    if config.warnings:
        return Check(
            result="warn",
            name="configuration",
            found="; ".join(config.warnings),
            remedy="read the file, then: perdure config trust",
            is_private=True,
        )
    return Check(result="ok", name="configuration", found=files, is_private=True)


async def _store(url: str) -> Sequence[Check]:
    """Check that the store is there, can be written, is readable, and has room."""
    if not exists(url):
        return [Check(result="ok", name="store", found="not made yet; the first run makes it")]
    file = file_of(url)
    checks = [Check(result="ok", name="store", found=url, is_private=True)]
    if not os.access(file, os.W_OK):
        remedy = "give yourself the right to write it"
        checks.append(Check(result="fail", name="store writable", found="no", remedy=remedy))
    size, free = file.stat().st_size, shutil.disk_usage(file.parent).free
    checks.append(Check(result="ok", name="store size", found=f"{size:,} bytes"))
    scarce = free < FREE_BYTES_MIN
    checks.append(
        Check(
            result="warn" if scarce else "ok",
            name="free space",
            found=f"{free:,} bytes",
            remedy="make room; a full disk stops sessions" if scarce else None,
        )
    )
    return [*checks, *await _sessions(url)]


async def _sessions(url: str) -> Sequence[Check]:
    sessions = open_store(url, system_ports())
    try:
        found = await sessions.page(after=None, limit=SESSIONS_LOOKED_AT)
    except PerdureError as error:
        remedy = "restore a copy, or use the release that wrote it"
        return [
            Check(result="fail", name="sessions", found=str(error), remedy=remedy, is_private=True)
        ]
    finally:
        await sessions.close()
    formats = ", ".join(sorted({str(info.format) for info in found})) or "none yet"
    checks = [
        Check(result="ok", name="store format", found=formats),
        Check(result="ok", name="sessions", found=f"{len(found):,}"),
    ]
    owners = [await _owner(info.name, info.owner) for info in found if info.owner is not None]
    return [*checks, *_odd_sessions(found), *owners]


async def _owner(name: str, owner: Owner) -> Check:
    """Ask whoever has a session open whether they answer (CM-17)."""
    where = f"session {name!r} is open in process {owner.pid} on {owner.host}"
    if await answering(owner, name, ANSWER_S) is not None:
        return Check(result="ok", name="owner", found=f"{where}, which answers", is_private=True)
    return Check(
        result="warn",
        name="owner",
        found=f"{where}, which does not answer",
        remedy=f"see whether process {owner.pid} was stopped, or ask on its own host",
        is_private=True,
    )


def _odd_sessions(found: Sequence[SessionInfo]) -> Iterator[Check]:
    """Name sessions that are damaged, or from the future."""
    now_ms = system_ports().clock.now_ms()
    for info in found:
        name = f"session {info.name!r}"
        if info.damaged is not None:
            yield Check(
                result="fail",
                name="damage",
                found=f"{name}: {info.damaged}",
                remedy="restore a copy of the store",
                is_private=True,
            )
        if info.last_commit_ms > now_ms:
            yield Check(
                result="warn",
                name="clock",
                found=f"{name} was committed in the future",
                remedy="set the clock; times in a journal never go back",
                is_private=True,
            )

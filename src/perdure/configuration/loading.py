"""Find, check, trust and merge the files of the configuration (CG-01, CG-02, CG-08, CG-09)."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from perdure.configuration.checking import Read, read_file
from perdure.configuration.config import Config
from perdure.configuration.tables import NAMED, File
from perdure.configuration.trust import harmless, is_trusted
from perdure.errors import Rejected
from perdure.hosts.folders import user_config_folder

FILE_NAME: Final = "perdure.toml"
CONFIG_VARIABLE: Final = "PERDURE_CONFIG"
VARIABLES: Final = (("PERDURE_STORE", "store", "url"), ("PERDURE_MODEL", "model", "name"))
"""The only variables that set keys (CG-02)."""


def load_config(path: str | Path | None = None) -> Config:
    """Read the configuration: `path`, else PERDURE_CONFIG, else the user's and the project's files.

    Raises:
        Rejected: `invariant`; its message has one line for each fault, with file, line, key, what
            was refused and what would be accepted; `details["faults"]` has the same as a list.
    """
    given = path or os.environ.get(CONFIG_VARIABLE) or None
    if given is not None:
        chosen = Path(given).expanduser().absolute()
        return _merged([(chosen, True)])
    here = Path.cwd()
    user = user_config_folder() / FILE_NAME
    project = find_project(here)
    found = [(user, True)] if user.is_file() else []
    if project is not None and project != user:
        found.append((project, False))
    return _merged(found)


def find_project(here: Path) -> Path | None:
    """Find the nearest file from a folder upwards; ends at `.git`, home, another file system."""
    home = Path.home()
    folder = here
    while True:
        file = folder / FILE_NAME
        if file.is_file():
            return file
        parent = folder.parent
        if (folder / ".git").exists() or folder in (home, parent):
            return None
        if parent.stat().st_dev != folder.stat().st_dev:
            return None
        folder = parent


def _merged(files: list[tuple[Path, bool]]) -> Config:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    reads = [(read_file(file), is_own) for file, is_own in files]
    _refuse_faults([read for read, _ in reads])
    for read, is_own in reads:
        usable = dict(read.values)
        if not is_own and not is_trusted(read.digest, user_config_folder()):
            usable, ignored = harmless(read.values, read.file)
            if ignored:
                warnings.append(
                    f"{read.file} is not trusted, so it does not set {', '.join(ignored)}; "
                    f"to trust it as it is now: perdure config trust"
                )
        _overlay(values, _placed(usable, read.file.parent), origins, str(read.file))
    for variable, table, key in VARIABLES:
        given = os.environ.get(variable)
        if given:
            _overlay(values, {table: {key: given}}, origins, variable)
    return Config(
        values=msgspec.convert(values, File),
        origins=MappingProxyType(origins),
        files=tuple(read.file for read, _ in reads),
        warnings=tuple(warnings),
    )


def _refuse_faults(reads: list[Read]) -> None:
    faults = [fault for read in reads for fault in read.faults]
    if faults:
        raise Rejected(
            "invariant",
            "\n".join(str(fault) for fault in faults),
            {"faults": [msgspec.structs.asdict(fault) for fault in faults]},
        )


def _placed(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Answer the values with their paths made absolute: they start from the file's folder."""
    placed = dict(values)
    store = dict(cast("Mapping[str, Any]", placed.get("store", {})))
    scheme, _, place = str(store.get("url", "")).partition(":")
    if scheme == "sqlite":
        placed["store"] = {**store, "url": f"sqlite:{_from(folder, place)}"}
    tools = dict(cast("Mapping[str, Any]", placed.get("tools", {})))
    if "root" in tools:
        tools["root"] = str(_from(folder, tools["root"]))
    if "extra_roots" in tools:
        tools["extra_roots"] = {
            str(_from(folder, path)): mode for path, mode in tools["extra_roots"].items()
        }
    if tools:
        placed["tools"] = tools
    return placed


def _from(folder: Path, path: str) -> Path:
    return Path(os.path.normpath(folder / Path(path).expanduser()))


def _overlay(
    below: dict[str, Any], above: Mapping[str, Any], origins: dict[str, str], origin: str
) -> None:
    """Put one file's keys over another's: tables merge, lists and whole tables replace (CG-02)."""
    for name, table in above.items():
        target = below.setdefault(name, {})
        for key, value in table.items():
            if name in NAMED and isinstance(value, dict):
                inner = target.setdefault(key, {})
                for field, leaf in cast("dict[str, Any]", value).items():
                    inner[field] = leaf
                    origins[f"{name}.{key}.{field}"] = origin
            else:
                target[key] = value
                origins[f"{name}.{key}"] = origin

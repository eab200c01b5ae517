"""What a project's file may not do until a person trusts it (CG-08, SX-02).

A repository may come from anyone. Its file may choose models and limits; it may not loosen what
asks, name other places, or send keys elsewhere. Trust is the digest of the file's bytes, kept in
the user's folder: any later change of the file ends it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

TRUST_FILE: Final = "trusted"
"""One line a trusted file: digest, two spaces, path."""

LOOSENING: Final[frozenset[tuple[str, ...]]] = frozenset(
    {
        ("store", "url"),
        ("approvals", "allow"),
        ("approvals", "rules"),
        ("tools", "env"),
        ("tools", "extra_roots"),
        ("cli",),
        ("telemetry",),
        ("mcp",),
    }
)
"""Keys that an untrusted project file sets in vain; provider addresses and keys come on top."""

PROVIDER_KEYS: Final = frozenset({"base_url", "key", "allow_plain_http"})


def is_trusted(digest: str, folder: Path) -> bool:
    """Say whether a file with these bytes was trusted."""
    try:
        lines = (folder / TRUST_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.split("  ", 1)[0] == digest for line in lines)


def trust(file: Path, folder: Path) -> str:
    """Record the digest of a file's bytes in the user's folder; answers the digest."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if not is_trusted(digest, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / TRUST_FILE).open("a", encoding="utf-8") as lines:
            lines.write(f"{digest}  {file}\n")
    return digest


def harmless(values: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], list[str]]:
    """Answer the values an untrusted file may set, and the names of those it may not."""
    kept: dict[str, Any] = {}
    ignored: list[str] = []
    for name, table in values.items():
        if (name,) in LOOSENING and table:
            ignored.append(name)
        elif not isinstance(table, dict):
            kept[name] = table
        else:
            inner = cast("dict[str, Any]", table)
            kept[name] = {
                key: value
                for key, value in inner.items()
                if not _is_loosening(name, key, value, file)
            }
            ignored += [f"{name}.{key}" for key in inner if key not in kept[name]]
            if name == "providers":
                ignored += _strip_providers(kept[name])
    return kept, ignored


def _is_loosening(name: str, key: str, value: object, file: Path) -> bool:
    if not value:
        return False  # nothing is loosened by an empty list
    if (name, key) in LOOSENING:
        return True
    if (name, key) == ("tools", "root") and isinstance(value, str):
        place = (file.parent / Path(value).expanduser()).resolve()
        return not place.is_relative_to(file.parent.resolve())
    return False


def _strip_providers(providers: dict[str, Any]) -> list[str]:
    ignored: list[str] = []
    for name, table in providers.items():
        if isinstance(table, dict):
            inner = cast("dict[str, Any]", table)
            providers[name] = {key: inner[key] for key in inner if key not in PROVIDER_KEYS}
            ignored += [f"providers.{name}.{key}" for key in inner if key in PROVIDER_KEYS]
    return ignored

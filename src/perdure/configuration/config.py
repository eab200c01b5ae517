"""A checked configuration, as one frozen object (CG-09)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from perdure.configuration.tables import File

NO_ORIGINS: Final[Mapping[str, str]] = MappingProxyType({})


class Config(Struct, frozen=True, kw_only=True):
    """A checked configuration: what `perdure.open` takes in place of a URL.

    Attributes:
        values: every table, with defaults where nothing was given.
        origins: by dotted key, the file or variable that gave it; absent keys are defaults.
        files: the files read, the weakest first.
        warnings: one sentence for each file that was not obeyed in everything.
    """

    values: File = File()
    origins: Mapping[str, str] = NO_ORIGINS
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

"""What a person names as a file is read only if it is one: nothing waits at a pipe or a device."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.configuration.loading import load_config
from perdure.configuration.providers import key_in_file
from perdure.errors import PerdureError
from perdure.providers.plain_files import read_plain
from perdure.providers.script_files import load_script

READERS = pytest.mark.parametrize(
    "read",
    [load_config, load_script, lambda file: key_in_file(file)()],
    ids=["configuration", "script", "key"],
)


@READERS
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a pipe"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "named"
    if kind == "device":
        file = Path("/dev/full")  # reads zeros without end
    elif kind == "folder":
        file.mkdir(mode=0o700)
    else:
        os.mkfifo(file, 0o600)
    if kind == "link to a pipe":
        file = tmp_path / "link"
        file.symlink_to("named")
    with pytest.raises(PerdureError, match=r"not a regular file|is open to others") as refused:
        read(file)
    assert str(file) in str(refused.value)


def test_a_file_is_read_up_to_one_byte_above_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert [read_plain(file, most) for most in (3, 4, 5, 6)] == [b"1234", *[b"12345"] * 3]


def test_a_configuration_above_the_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    file.write_bytes(b"#" * (1 << 20))
    load_config(file)
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PerdureError, match="more than the 1,048,576 bytes"):
        load_config(file)

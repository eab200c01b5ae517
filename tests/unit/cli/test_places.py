"""Where the command line writes what it was asked to write."""

import os
from pathlib import Path

import pytest

from perdure.cli.endings import UsageProblem
from perdure.cli.places import check_writable, write_whole


def test_a_file_is_replaced_and_a_link_to_it_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "answer.txt", tmp_path / "link"
    file.write_text("an older and longer answer")
    link.symlink_to(file)
    write_whole(link, "new")
    assert (file.read_text(), link.is_symlink()) == ("new", True)


def test_a_pipe_or_device_is_written_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    try:
        write_whole(pipe, "an answer")
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"an answer"
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/proc/answer", "No such file or directory"),
        ("absent/answer", "No such file or directory"),
        ("file/answer", "Not a directory"),
        ("a" * 256, "File name too long"),
        ("loop", "[Ll]oop"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_beforehand(
    tmp_path: Path, place: str, why: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageProblem, match=why) as refused:
        check_writable(tmp_path / place, "--output")
    assert "--output" in refused.value.message


@pytest.mark.parametrize("name", ["answer", "a" * 255, "there", "pipe"])
def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").write_text("before")
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / name, "--output")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "there"]
    assert (tmp_path / "there").read_text() == "before"
    if name != "pipe":
        write_whole(tmp_path / name, "answer")
        assert (tmp_path / name).read_text() == "answer"

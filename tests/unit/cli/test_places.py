"""Where the command line writes what it was asked to write."""

import os
from pathlib import Path

from perdure.cli.places import write_whole


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

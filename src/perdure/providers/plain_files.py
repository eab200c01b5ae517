"""Read a file that a person named, and nothing that only looks like one.

A pipe without a writer would be waited for without end, and a device never ends.
"""

import errno
import os
import stat
from pathlib import Path


def read_plain(file: Path, bytes_max: int) -> bytes:
    """Read a regular file, at most one byte more than `bytes_max`; blocks while it reads.

    Raises:
        OSError: when it cannot be read; `EINVAL` when it is a pipe, a device or a folder.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        with open(handle, "rb", closefd=False) as opened:
            return opened.read(bytes_max + 1)
    finally:
        os.close(handle)

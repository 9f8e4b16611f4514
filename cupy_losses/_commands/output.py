"""Files that are written: one that is there is replaced at the end, a full disk is an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def replacing(file: str) -> Iterator[str]:
    """The name of a new file beside another one, whose place it takes unless there is an error.

    Errors name the file that was asked for. What is no file, such as a pipe, is written to itself.
    """
    given, file = file, os.path.realpath(file)
    root, ending = os.path.splitext(file)
    new = f"{root}.{os.getpid()}.part{ending}"
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            yield file
            return
        if os.path.exists(file):
            # It raises where the other file is not to be written to, which a rename does not ask.
            open(file, "r+b").close()
        yield new
        os.replace(new, file)
    except BaseException as error:
        if os.path.exists(new):
            os.remove(new)
        if isinstance(error, OSError) and error.errno:
            error.filename = given  # not one of those beside it
        raise


def reserve(file: BinaryIO) -> None:
    """Give a file all of its size on the disk, ahead of a mapping.

    A write through a mapping for which the disk has no room would end the process with a signal.
    """
    size = os.fstat(file.fileno()).st_size
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)

"""Who works on rows that lie side by side in memory; cuda/kernels/strided_rows.cu does the work.

Pure arithmetic on the length of a row and the sizes of elements, so that the order of summation
depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A thread holds a batch of at most WORDS words of four bytes. As many threads work on a row as that
# takes, of a block that has enough neighbours to read 64 bytes side by side. One kernel serves all
# rows between two of COUNTS, or of COUNTS_OF_SEVERAL threads. As measured on an H200.
COUNTS = (4, 8, 12, 16, 24, 32, 48, 64)
COUNTS_OF_SEVERAL = (16, 32, 64)
WORDS = 64
THREADS = {1: 128, 4: 128, 16: 256, 32: 512}
LONG_WORDS = 16  # of rows that do not stay

# The threads that a multiprocessor is to hold while each holds at most so many words.
THREADS_OF_MULTIPROCESSOR = {16: 1024, 24: 896, 32: 640, 64: 512}


@dataclass(frozen=True)
class StridedRows:
    """Who works on a row.

    Attributes:
        threads: The threads of a block.
        lanes: The threads of a row.
        count: The elements of a batch.
        sure: How many of them are there, in all rows of this count.
        stays: Whether a thread holds all of its elements of a row.
        resident: The blocks that a multiprocessor is to hold.

    """

    threads: int
    lanes: int
    count: int
    sure: int
    stays: bool
    resident: int


def strided_rows(columns: int, sizes: Sequence[int]) -> StridedRows:
    """Who works on rows so long, given the bytes of an element of each array that is read."""
    words = sum(max(1, size // 4) for size in sizes)
    for lanes, threads in THREADS.items():
        steps = [n for n in (COUNTS if lanes == 1 else COUNTS_OF_SEVERAL) if n * words <= WORDS]
        fitting = [n for n in steps if n * lanes >= columns]
        if fitting:
            sure = max((n for n in steps if n * lanes < columns), default=0)
            return StridedRows(
                threads, lanes, fitting[0], sure, True, _resident(threads, fitting[0] * words)
            )
    lanes, threads = max(THREADS.items())
    count = max((n for n in COUNTS if n * words <= LONG_WORDS), default=COUNTS[0])
    return StridedRows(threads, lanes, count, 0, False, _resident(threads, LONG_WORDS))


def _resident(threads: int, words: int) -> int:
    most = min(most for most in THREADS_OF_MULTIPROCESSOR if most >= words)
    return max(1, THREADS_OF_MULTIPROCESSOR[most] // threads)

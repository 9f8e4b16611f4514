"""Who works on rows that lie side by side in memory; cuda/kernels/strided_rows.cu does the work.

Pure arithmetic on the length of a row and the sizes of elements, so that the order of summation
depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A thread holds a row of at most WORDS words of four bytes; one kernel serves all rows between two
# of COUNTS. A thread has longer rows in batches of BATCH words, up to LONG elements; LONG_THREADS
# threads work on even longer ones, in batches of LONG_WORDS. As measured on an H200.
COUNTS = (4, 8, 12, 16, 24, 32, 48, 64)
WORDS = 64
BATCH = 16
LONG = 1024
LONG_THREADS = 32
LONG_WORDS = {2: 24, 4: 8, 8: 8}

# A block of LONG_THREADS of a row has 16 rows side by side, or 16 pairs of these. It has fewer
# where the states of its threads, which meet in 48 KiB of shared memory with what else there is of
# a row, would take more than STATE_BYTES.
THREADS = {1: 128, LONG_THREADS: 512}
STATE_BYTES = 36 << 10

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


def strided_rows(columns: int, sizes: Sequence[int], state: int) -> StridedRows:
    """Who works on rows so long, given the bytes of an element of each array that is read.

    `state`: the bytes of what a thread accumulates of a row.
    """
    # Elements of half precision may be read in pairs.
    state *= 2 if min(sizes) == 2 else 1
    words = sum(max(1, size // 4) for size in sizes)
    count = min((n for n in COUNTS if n >= columns and n * words <= WORDS), default=0)
    if count:
        sure = max((n for n in COUNTS if n < columns), default=0)
        return _rows(1, count, sure, True, count * words, state)
    lanes, most = (1, BATCH) if columns <= LONG else (LONG_THREADS, LONG_WORDS[min(sizes)])
    count = max((n for n in COUNTS if n * words <= most), default=COUNTS[0])
    # The states and contexts of two rows take as many registers again.
    return _rows(lanes, count, 0, False, 2 * BATCH if min(sizes) == 2 else most, state)


def _rows(lanes: int, count: int, sure: int, stays: bool, words: int, state: int) -> StridedRows:
    most = min(most for most in THREADS_OF_MULTIPROCESSOR if most >= words)
    threads = THREADS[lanes]
    while lanes > 1 and threads * state > STATE_BYTES:
        threads //= 2
    resident = max(1, THREADS_OF_MULTIPROCESSOR[most] // threads)
    return StridedRows(threads, lanes, count, sure, stays, resident)

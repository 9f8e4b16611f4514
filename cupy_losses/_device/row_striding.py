"""The threads of rows that lie side by side in memory, for `strided_rows.cu`.

Pure arithmetic on the length of a row and the sizes of elements, so that the order of summation
depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

# As measured on an H200. One kernel serves all rows between two of COUNTS, though elements that may
# not be there take as long as others.
COUNTS = {1: (4, 8, 12, 16, 24, 32, 48, 64), 2: (40, 56), 4: (40, 56)}  # a thread's, by threads
WORDS = 64  # of four bytes each, of a row that stays with a thread, at most
BATCH = 16  # words of a batch of a thread that has longer rows for itself
SHARED_BATCH = 12  # the same of threads that share a row

# By the bytes of an element: the most elements of such rows, by the threads that share one; those
# of longer rows, and the words of their batches. With more threads they meet more often, with fewer
# there are too few loads at once. Few, as each is a kernel.
MOST_ELEMENTS = {2: {1: 224, 2: 1024, 16: 26_000}, 4: {1: 1024}, 8: {1: 1024}}
LONG_THREADS = {2: 32, 4: 16, 8: 32}
LONG_WORDS = {2: 24, 4: SHARED_BATCH, 8: 8}
LONG_BLOCK = 512  # threads

# Such rows are divided into sections, by their lengths alone. Where there are few tiles of them,
# several blocks work on the sections of one.
LEAST_BATCHES = 4  # of a thread in a section
MOST_SECTIONS = 64
FEW_TILES = 64
BLOCKS = 256  # of a launch over few tiles, about

# The more rows a block has side by side, the fewer parts of a line of memory are written apart.
THREADS = 128  # of a block
WIDE_THREADS = 256  # the same where a thread has at most WIDE_WORDS at a time
WIDE_WORDS = 32
NEIGHBOURS = 32  # at least so many rows side by side, or pairs of them, of threads that share some
STATE_BYTES = (
    36 << 10
)  # of the states of a block, which share 48 KiB; with more it has fewer threads

# The threads that a multiprocessor is to hold, by the most words that each holds.
THREADS_BY_WORDS = {16: 1024, 32: 768, 56: 640, 64: 512}


@dataclass(frozen=True)
class StridedRows:
    """The threads of a row.

    Attributes:
        threads: The threads of a block.
        threads_per_row: The threads of a row.
        count: The elements of a batch.
        sure: How many of them are there, in all rows of this count.
        stays: Whether a thread holds all of its elements of a row.
        resident: The blocks that a multiprocessor is to hold.
        section: The batches of a thread in a section of a row.
        sections: The sections of a row.

    """

    threads: int
    threads_per_row: int
    count: int
    sure: int
    stays: bool
    resident: int
    section: int = 1
    sections: int = 1

    def sections_of_block(self, tiles: int) -> int:
        """How many sections of a tile a block works on; all of them where there are many tiles."""
        if tiles > FEW_TILES:
            return self.sections
        return -(-self.sections // min(self.sections, max(1, BLOCKS // tiles)))


def strided_rows(columns: int, sizes: Sequence[int], state: int) -> StridedRows:
    """The team of rows of `columns` elements, given the bytes of one of each array that is read.

    One array at least is floating. `state`: the bytes of what a thread accumulates of a row.
    """
    narrowest = min(size for size in sizes if size > 1)  # a byte takes a register, as two do
    # Elements of half precision may be read in pairs.
    state *= 2 if narrowest == 2 else 1
    words = sum(max(1, size // 4) for size in sizes)
    longest = 0
    for threads_per_row, counts in COUNTS.items():
        for count in counts:
            if count * words > WORDS:
                break
            if columns <= threads_per_row * count:
                threads = WIDE_THREADS if count * words <= WIDE_WORDS else THREADS
                sure = longest // threads_per_row
                return _team(threads, threads_per_row, count, sure, True, count * words, state)
            longest = threads_per_row * count
    return _in_batches(columns, 2 if narrowest == 2 else max(sizes), words, state)


def _in_batches(columns: int, size: int, words: int, state: int) -> StridedRows:
    """The team of rows that do not stay in registers; `size`: the bytes of an element."""
    shared = MOST_ELEMENTS[size].items()
    threads_per_row = next((k for k, longest in shared if columns <= longest), 0)
    threads = max(WIDE_THREADS, threads_per_row * NEIGHBOURS)
    most = held = SHARED_BATCH
    if threads_per_row == 1:
        # In half precision it has the states and contexts of two rows besides.
        most, held = BATCH, 2 * BATCH if size == 2 else BATCH
    elif threads_per_row == 0:
        threads, threads_per_row = LONG_BLOCK, LONG_THREADS[size]
        most = held = LONG_WORDS[size]
    count = max((n for n in COUNTS[1] if n * words <= most), default=COUNTS[1][0])
    team = _team(threads, threads_per_row, count, 0, False, held, state)
    batches = -(-columns // (threads_per_row * count))
    section = max(LEAST_BATCHES, -(-batches // MOST_SECTIONS))
    return replace(team, section=section, sections=-(-batches // section))


def _team(
    threads: int,
    threads_per_row: int,
    count: int,
    sure: int,
    stays: bool,
    words: int,
    state: int,
) -> StridedRows:
    """Of fewer threads, if their states do not fit; a thread has so many words in registers."""
    while threads_per_row > 1 and threads * state > STATE_BYTES:
        threads //= 2
    most = min(most for most in THREADS_BY_WORDS if most >= words)
    resident = max(1, THREADS_BY_WORDS[most] // threads)
    return StridedRows(threads, threads_per_row, count, sure, stays, resident)

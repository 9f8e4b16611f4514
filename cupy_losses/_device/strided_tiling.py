"""Tiles of rows that lie side by side in memory, for `strided_tiles.cu`.

Pure arithmetic. Rows have the same bits as by `strided_rows.cu`, so that tiles may follow from what
takes less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .hardware import VECTOR_BYTES, WARP
from .row_striding import COUNTS, FEW_WORDS
from .shared_memory import placed

# As measured on an H200: the columns of rows that take less time in tiles, by the bytes of an
# element, with gradients or without. Elements of half precision of two rows, which strided_rows.cu
# reads in pairs, are faster there without gradients.
COLUMNS = {
    (2, False): (3, 24),
    (2, True): (2, 32),
    (4, False): (5, 24),
    (4, True): (2, 24),
}
THREADS = 256  # of a block
COMPUTING = 224  # of these: a warp copies
# The more rows a thread has of a tile, the less it has to do besides. Two tiles of a block, of as
# many as two blocks of a multiprocessor have room for.
MOST_ROWS = 8 * COMPUTING
TILE_BYTES = 55 << 10
LEAST_BYTES = 7 << 10  # of the elements of a tile
# A tile has as many rows as fit if there are MANY_TILES, so that all blocks have about as many of
# them; else it has FEW_ROWS.
MANY_TILES = 4096
FEW_ROWS = 2 * COMPUTING
LEAST_TILES = 512  # one for each block that runs at once
FULL = 0.85  # of a tile, at least, where a line of rows is divided evenly
RESIDENT = 1024  # threads that a multiprocessor is to hold, at most
RESIDENT_OF_WEIGHTS = 512  # of gradients for which a thread has the weights of classes, too
OTHER_BYTES = 2 << 10  # of shared memory
SEGMENTS = 2048  # partial sums of a reduced loss, at most


@dataclass(frozen=True)
class StridedTile:
    """A tile of rows that lie side by side.

    Attributes:
        rows: How many.
        of_line: The tiles of a line of rows.
        segments: The parts that all tiles are divided into.
        threads: Those of a block.
        count: The elements of a row, at most.
        sure: How many of them are there, in all rows of this count.
        few: Whether rows have so few elements that the loss is told how many.
        pitch: The bytes from a column to the next one in shared memory.
        bytes: The shared memory that a tile takes.
        begins: Where each array of it begins there: the elements of rows, then numbers of rows.
        resident: The blocks that a multiprocessor is to hold.

    """

    rows: int
    of_line: int
    segments: int
    threads: int
    count: int
    sure: int
    few: bool
    pitch: int
    bytes: int
    begins: Mapping[int, int]
    resident: int


def strided_tile(
    columns: int,
    line: int,
    rows: int,
    size: int,
    step: int,
    elements: int,
    numbers: Mapping[int, int],
    *,
    gradients: bool,
    weights: bool,
    shared_memory: int,
) -> StridedTile | None:
    """The tile of rows that lie side by side, `line` of them; None for no tiles.

    `elements`: the array of their elements, of `size` bytes each, `step` from a column to the next
    one. `numbers`: the bytes of a number for each row, by array. `rows`: how many there are.
    `weights`: each element is taken with the weight of its class. `shared_memory`: the bytes that a
    block can have.
    """
    shortest, longest = COLUMNS.get((size, gradients), (1, 0))
    if not shortest <= columns <= longest:
        return None
    count = min(n for n in COUNTS[1] if n >= columns)
    room = min(TILE_BYTES, shared_memory // 2 - OTHER_BYTES)
    full = min(MOST_ROWS, room // (count * size + sum(numbers.values())))
    full = full // COMPUTING * COMPUTING
    few = min(full, FEW_ROWS)
    # Few numbers of rows, as each is a kernel.
    for most, tiles in (full, MANY_TILES), (few, LEAST_TILES), (full, LEAST_TILES):
        is_enough = most * columns * size >= LEAST_BYTES and rows >= tiles * most > 0
        of_line = -(-line // most) if is_enough else 0
        if of_line > 1 and line >= FULL * of_line * most:
            break
    else:
        return None
    own = -(-line // (of_line * WARP)) * WARP
    # A column is as far behind a vector as in device memory, and the next one begins behind the
    # vector in which it ends.
    pitch = most * size + 2 * (VECTOR_BYTES - size)
    pitch += (step - pitch) % VECTOR_BYTES
    begins, end = placed({elements: columns * pitch, **{k: own * n for k, n in numbers.items()}})
    resident = (RESIDENT_OF_WEIGHTS if weights and gradients else RESIDENT) // THREADS
    return StridedTile(
        rows=own,
        of_line=of_line,
        segments=min(rows // line * of_line, SEGMENTS),
        threads=THREADS,
        count=count,
        sure=max([n for n in COUNTS[1] if n < columns], default=columns - 1) + 1,
        few=count <= FEW_WORDS,
        pitch=pitch,
        bytes=end,
        begins=begins,
        resident=max(1, min(resident, shared_memory // (2 * end + OTHER_BYTES))),
    )

"""Tiles of rows that lie one after the other in memory; cuda/kernels/row_tiles.cu works on them.

Pure arithmetic on the length of a row and the sizes of elements, so that a tile, and with it the
order of summation, depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VECTOR_BYTES = 16

# A row of at most SHORT_BYTES, or SHORT_PRECISE of a precise loss, which reads a tile twice, waits
# in the registers of a thread, or of half as many where it is no whole number of words; threads
# that read rows of an even number of vectors side by side wait for each other's banks of shared
# memory; and of a row of more than LONG_BYTES a thread has much to do. cuda/kernels/rows.cu is
# faster on an H200 for all these. So it is from LONG_HIDDEN elements on for losses that hide some.
SHORT_BYTES = 16
SHORT_PRECISE = 24
LONG_BYTES = 1000
LONG_HIDDEN = 200
WORD_BYTES = 4

# A block of TILE_THREADS has a tile of about TILE_BYTES, or the rows that it works on at a time if
# they are longer, up to TILE_LIMIT or what BLOCK_BYTES leave: two tiles, what is kept of MOST_ROWS
# and OTHER_BYTES fit into the shared memory of every device, PADDING beside a tile. A row has
# as few threads as that and SHARE allow, the most units of one thread: what is done once for a row
# takes as long as 20 elements. A unit is two elements of half precision, or one. As measured on an
# H200.
TILE_THREADS = 128
TILE_BYTES = 20 << 10
TILE_LIMIT = 28 << 10
BLOCK_BYTES = 64 << 10
OTHER_BYTES = 3 << 10
PADDING = 512
LANES = (1, 2, 4, 8, 16, 32)
SHARE = 75
MOST_ROWS = 64  # in cuda/kernels/row_tiles.cu, where several threads work on a row

# A reduced loss is the sum of at most so many partial sums.
TILE_SEGMENTS = 4096


@dataclass(frozen=True)
class RowTile:
    """A tile of whole rows.

    Attributes:
        rows: How many.
        lanes: The threads that work on a row.
        unit: The neighbouring elements that a thread takes at once.
        bytes: The shared memory that a tile takes.
        begins: Where each array of it begins there.
        elements: The arrays that have an element for each one of a row.
        numbers: Those that have one number for each row.

    """

    rows: int
    lanes: int
    unit: int
    bytes: int
    begins: Mapping[int, int]
    elements: tuple[int, ...]
    numbers: tuple[int, ...]


def row_tile(
    columns: int,
    unit: int,
    elements: Mapping[int, int],
    numbers: Mapping[int, int],
    kept: int,
    hides: bool = False,
    precise: bool = False,
) -> RowTile | None:
    """The tile of rows so long, given the bytes of an element of each array; None for no tiles.

    `kept`: the bytes that a block keeps of a row beside the tile. `hides`: of a loss that hides
    elements. `precise`: of a precise one.
    """
    if not elements or (hides and columns >= LONG_HIDDEN):
        return None
    lengths = [columns * size for size in elements.values()]
    short = SHORT_PRECISE if precise else SHORT_BYTES
    if any(length % WORD_BYTES for length in lengths):
        short //= 2
    if not short < max(lengths) <= LONG_BYTES or not any(
        length % (2 * VECTOR_BYTES) for length in lengths
    ):
        return None
    row_bytes = sum(lengths) + sum(numbers.values())
    room = (BLOCK_BYTES - OTHER_BYTES - MOST_ROWS * kept) // 2 - PADDING
    limit = min(TILE_LIMIT, room)
    for lanes in LANES:
        together = TILE_THREADS // lanes
        if columns <= lanes * unit * SHARE and together * row_bytes <= limit:
            break
    else:
        return None
    rows = max(min(TILE_BYTES, limit) // row_bytes // together, 1) * together
    if lanes > 1:
        rows = min(rows, MOST_ROWS)
    begins, end = {}, 0
    for k, size in {**elements, **numbers}.items():
        begins[k] = end
        # It begins anywhere in a vector.
        length = rows * size * (columns if k in elements else 1)
        end += -(-length // VECTOR_BYTES) * VECTOR_BYTES + VECTOR_BYTES
    return RowTile(rows, lanes, unit, end, begins, tuple(elements), tuple(numbers))

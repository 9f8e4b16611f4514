"""Tiles of rows that lie one after the other in memory; cuda/kernels/row_tiles.cu works on them.

Pure arithmetic on the length of a row and the sizes of elements, so that a tile, and with it the
order of summation, depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

VECTOR_BYTES = 16
WORD_BYTES = 4

# A row of at most SHORT_BYTES, or SHORT_PRECISE of a precise loss, which reads a tile twice, waits
# in the registers of a thread, or of half as many where it is no whole number of words, or of
# SHORT_VECTORS where it is whole vectors and not of half precision; and of a row of more than
# LONG_BYTES a thread has much to do. cuda/kernels/rows.cu is faster on an H200 for both. So it is
# from LONG_HIDDEN elements on for losses that hide some.
SHORT_BYTES = 16
SHORT_PRECISE = 24
SHORT_VECTORS = 32
LONG_BYTES = 1000
LONG_HIDDEN = 200

# Threads that read vectors of rows side by side wait for each other's banks of shared memory where
# the number of vectors of a row has a large power of two for a divisor, up to BANKS, the vectors
# that are read at once. cuda/kernels/rows.cu is faster where that is BANKS, and where it is
# WAITING and one thread works on a row, unless its elements are of half precision.
BANKS = 8
WAITING = 4

# A block of TILE_THREADS has a tile of about TILE_BYTES, or the rows that it works on at a time if
# they are longer, up to TILE_LIMIT or what BLOCK_BYTES leave: two tiles, what is kept of MOST_ROWS
# and OTHER_BYTES fit into the shared memory of every device, PADDING beside a tile. A row has as
# few threads as that allows. A thread takes up to BATCH_BYTES of the first operand at a time, and
# each time takes as long as TURN elements more. As measured on an H200.
TILE_THREADS = 128
TILE_BYTES = 20 << 10
TILE_LIMIT = 28 << 10
BLOCK_BYTES = 64 << 10
OTHER_BYTES = 3 << 10
PADDING = 512
LANES = (1, 2, 4, 8, 16, 32)
BATCH_BYTES = 32
TURN = 1
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
        batch: The units of a thread at a time.
        paired: Whether rows of an odd number of elements, of one thread each, are read in pairs.
        bytes: The shared memory that a tile takes.
        begins: Where each array of it begins there.
        elements: The arrays that have an element for each one of a row.
        numbers: Those that have one number for each row.

    """

    rows: int
    lanes: int
    unit: int
    batch: int
    paired: bool
    bytes: int
    begins: Mapping[int, int]
    elements: tuple[int, ...]
    numbers: tuple[int, ...]


def row_tile(
    columns: int,
    size: int,
    elements: Mapping[int, int],
    numbers: Mapping[int, int],
    kept: int,
    hides: bool = False,
    precise: bool = False,
) -> RowTile | None:
    """The tile of rows so long, given the bytes of an element of each array; None for no tiles.

    `size`: those of an element of the first operand, 8 of one that is not floating. `kept`: the
    bytes that a block keeps of a row beside the tile. `hides`: of a loss that hides elements.
    `precise`: of a precise one.
    """
    if not elements or (hides and columns >= LONG_HIDDEN):
        return None
    lengths = [columns * own for own in elements.values()]
    short = SHORT_PRECISE if precise else SHORT_BYTES
    if any(length % WORD_BYTES for length in lengths):
        short //= 2
    if size >= WORD_BYTES and not any(length % VECTOR_BYTES for length in lengths):
        short = SHORT_VECTORS
    if not short < max(lengths) <= LONG_BYTES:
        return None
    row_bytes = sum(lengths) + sum(numbers.values())
    room = (BLOCK_BYTES - OTHER_BYTES - MOST_ROWS * kept) // 2 - PADDING
    limit = min(TILE_LIMIT, room)
    # The kernel needs the tiles of an array, of each of them, at the same place inside a vector.
    whole = VECTOR_BYTES // min([*elements.values(), *numbers.values()])
    for lanes in LANES:
        together = max(TILE_THREADS // lanes, whole)
        if together * row_bytes <= limit:
            break
    else:
        return None
    if _waits(lengths, lanes, size):
        return None
    rows = max(min(TILE_BYTES, limit) // row_bytes // together, 1) * together
    if lanes > 1:
        rows = min(rows, MOST_ROWS)
    begins, end = {}, 0
    for k, own in {**elements, **numbers}.items():
        begins[k] = end
        # It begins anywhere in a vector.
        length = rows * own * (columns if k in elements else 1)
        end += -(-length // VECTOR_BYTES) * VECTOR_BYTES + VECTOR_BYTES
    unit = max(WORD_BYTES // size, math.gcd(columns, VECTOR_BYTES // size))
    batch = _batch(columns // unit, lanes, unit, size)
    paired = size < WORD_BYTES and lanes == 1 and columns % unit != 0
    return RowTile(rows, lanes, unit, batch, paired, end, begins, tuple(elements), tuple(numbers))


def _waits(lengths: Iterable[int], lanes: int, size: int) -> bool:
    """Whether threads that read rows so long side by side wait long for each other."""
    banks = max(
        1 if length % VECTOR_BYTES else math.gcd(length // VECTOR_BYTES, BANKS)
        for length in lengths
    )
    return banks == BANKS or (banks == WAITING and lanes == 1 and size >= WORD_BYTES)


def _batch(units: int, lanes: int, unit: int, size: int) -> int:
    """How many units of a row a thread takes at a time, so that all are soon done."""
    shares = units // lanes, -(-units // lanes)  # of threads side by side

    def cost(batch: int) -> int:
        batches = max(share // batch for share in shares)
        singles = max(share % batch for share in shares)
        return batches * (batch * unit + TURN) + singles * (unit + TURN)

    most = max(1, BATCH_BYTES // (unit * size))
    return min(range(most, 0, -1), key=cost)

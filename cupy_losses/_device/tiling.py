"""Tiles of operands whose memory orders differ, for cuda/kernels/tiled.cu.

Pure arithmetic on shapes and strides: whether tiles pay, and how large they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import item_size
from .._core.shapes import ArraySpec, IterationSpace, Shape
from .hardware import VECTOR_BYTES

LINE_BYTES = 128  # read at once where they are neighbours, of either order
STAGED_BYTES = 16 << 10  # of a tile of one operand: enough in flight, and several blocks fit
SHARED_BYTES = 36 << 10  # of all of them; with the gaps between rows less than the 48 KiB there are
# Where a dimension is 2, reads along the other one leave half of a sector, which the cache keeps.
SMALLEST_DIMENSION = 3
# Two elements a thread. Where so few lie between neighbours of one order, a block that reads them
# element by element finds their sectors in its cache.
SMALLEST_TILE = 512
GRANULE = 8  # extents are multiples of it, as vectors are at most so long


@dataclass(frozen=True)
class Tiling:
    """Tiles of `rows` x `columns` elements; their dimensions are the last two of the space."""

    space: IterationSpace  # the strides of the operands, then those of the outputs
    rows: int
    columns: int
    staged: tuple[int, ...]  # operands that run along rows
    vectorised: tuple[int, ...]
    width: int  # of a vector along columns
    flat: bool  # whether vectors cross the ends of rows

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        *outer, rows, columns = self.space.shape
        return math.prod(outer) * -(-rows // self.rows) * -(-columns // self.columns)

    @property
    def reach(self) -> int:
        """How far from the beginning of a tile an element of it lies in any array."""
        return max(
            self.rows * abs(step[-2]) + self.columns * abs(step[-1]) for step in self.space.strides
        )


def tiling_of(
    operands: Sequence[ArraySpec], misaligned: Sequence[int], space: IterationSpace, width: int
) -> Tiling | None:
    """The tiles of a coalesced space; None where its own order suits all operands.

    `width` is that of a vector of dense operands.
    """
    sizes = [item_size(operand.dtype) for operand in operands]
    row, staged = _other_order(space, sizes)
    column = len(space.shape) - 1
    if not staged:
        return None
    lengths = space.shape[row], space.shape[column]
    if min(lengths) < SMALLEST_DIMENSION:
        return None
    direct = [k for k in range(len(operands)) if k not in staged]
    row_line = LINE_BYTES // min(sizes[k] for k in staged)
    column_line = LINE_BYTES // min((sizes[k] for k in direct), default=4)
    elements = STAGED_BYTES // max(sizes[k] for k in staged)
    while elements * sum(sizes[k] for k in staged) > SHARED_BYTES:
        elements //= 2
    rows, columns = _extents(lengths, elements, row_line, column_line)
    if min(rows, lengths[0]) * min(columns, lengths[1]) < SMALLEST_TILE:
        return None

    order = [d for d in range(column) if d != row] + [row, column]
    dense = tuple(math.prod(space.shape[d + 1 :]) for d in range(column + 1))
    steps = tuple(tuple(step[d] for d in order) for step in (*space.strides, dense))
    ordered = IterationSpace(tuple(space.shape[d] for d in order), steps)
    flat = False
    if lengths[1] % width:
        flat = (
            columns == lengths[1]
            and not math.prod(lengths) % width
            and not rows * columns % width
            and all(steps[k][-2] == columns * steps[k][-1] for k in (*direct, -1))
        )
        if not flat:
            width = 1
            if columns < lengths[1]:
                columns = _power_of_two(lengths[1], columns, column_line)
    vectorised = [
        k
        for k, (step, size, begin) in enumerate(zip(steps[:-1], sizes, misaligned, strict=True))
        if (
            _reads_rows_in_vectors(step, lengths, (rows, columns), size, begin)
            if k in staged
            else step[-1] == 1
            and _aligned(step[: -2 if flat else -1], size, min(width * size, VECTOR_BYTES), begin)
        )
    ]
    return Tiling(ordered, rows, columns, tuple(staged), tuple(vectorised), width, flat)


def _other_order(space: IterationSpace, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """The dimension along which other operands run than along the last one, and these operands.

    Of several such dimensions it is the one with the most bytes.
    """
    column = len(space.shape) - 1
    running: dict[int, list[int]] = {}
    for k, step in enumerate(space.strides):
        moving = [d for d, length in enumerate(step) if length]
        if moving and step[column]:
            fastest = min(reversed(moving), key=lambda d: abs(step[d]))
            if fastest != column:
                running.setdefault(fastest, []).append(k)
    if not running:
        return -1, []
    return max(running.items(), key=lambda item: sum(sizes[k] for k in item[1]))


def _extents(
    lengths: tuple[int, int], elements: int, row_line: int, column_line: int
) -> tuple[int, int]:
    """The rows and the columns of a tile of some `elements`: short dimensions are not divided."""
    rows = lengths[0] if lengths[0] <= 2 * row_line else row_line
    columns = _part(lengths[1], elements // rows, column_line)
    if rows < lengths[0]:
        rows = _part(lengths[0], elements // columns, row_line)
    return rows, columns


def _part(length: int, most: int, line: int) -> int:
    """A dimension divided equally by as few as possible, with few different results."""
    if length <= min(most, 2 * line):
        return length
    most = 1 << (most.bit_length() - 1)
    granule = max(GRANULE, most // 8)
    parts = -(-length // most)
    return -(-length // (parts * granule)) * granule


def _power_of_two(length: int, most: int, line: int) -> int:
    """A power of two up to `most`, of which a dimension is some parts with little left over.

    The elements of a thread are then in one column, with constant steps between them.
    """
    part = 1 << (most.bit_length() - 1)
    while part > line // 2 and 8 * (-length % part) > length:
        part //= 2
    return part


def _aligned(steps: Shape, size: int, access: int, misaligned: int) -> bool:
    return not any(start % access for start in (misaligned, *(size * step for step in steps)))


def _reads_rows_in_vectors(
    step: Shape, lengths: tuple[int, int], extents: tuple[int, int], size: int, misaligned: int
) -> bool:
    """Whether a staged operand is read in accesses of VECTOR_BYTES.

    They do not cross the end of a column, or columns follow each other without a gap.
    """
    vector = VECTOR_BYTES // size
    *outer, along_row, along_column = step
    if along_row != 1 or not _aligned(tuple(outer), size, VECTOR_BYTES, misaligned):
        return False
    whole = not lengths[0] % vector and not extents[0] % vector and not along_column % vector
    gapless = lengths[0] == extents[0] == along_column
    return whole or (
        gapless and not math.prod(lengths) % vector and not math.prod(extents) % vector
    )

"""The schedule of losses that read one element of each row, of kernels/gathered_rows.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import item_size
from .._core.shapes import dense_strides
from .cpp import tuned
from .hardware import SECTOR_BYTES, THREADS_OF_MULTIPROCESSOR
from .launch import int32, reciprocal
from .row_arrays import RowArray
from .row_operands import RowOperands
from .row_schedule import Schedule, blocks_per_multiprocessor

# As measured on an H100.
THREADS = 256  # of a block, and rows of a tile
# The threads of a multiprocessor that are resident at once, so that none spill: of rows and their
# classes alone, without gradients or with those that are STAGED; of more operands with gradients.
# To count MANY_ROWS takes more registers.
THREADS_OF_FEW = 1536
THREADS_OF_SEVERAL = 1280
MANY_ROWS = 1 << 30
# A block writes at most SLICE_BYTES of gradients. It writes less, but FEW_BYTES, where there would
# be fewer blocks than BLOCKS.
SLICE_BYTES = 512 << 10
FEW_BYTES = 4 << 10
BLOCKS = 512
# As measured on an H200. Gradients are written from shared memory where a row has up to
# STAGED_BYTES, if there are STAGED_ROWS or more.
STAGED_BYTES = 48
STAGED_ROWS = 1 << 16
# Zeros are written ahead where a row has more than LONG_BYTES. Where its elements lie apart, and
# stretches of rows begin within sectors of memory, they are from LONG_AMONG_OTHERS columns on.
LONG_BYTES = 8 << 10
LONG_AMONG_OTHERS = 128
SEGMENTS = 4096  # partial sums of a reduced loss, at most
# Where elements lie apart, rows have slices of LEAST_OF_SLICE elements or more, if fewer threads
# than WRITING_THREADS would write.
WRITING_THREADS = 1 << 21
LEAST_OF_SLICE = 64


@dataclass(frozen=True)
class Gathering:
    """How rows are gathered, and their gradients written.

    Attributes:
        rows: Those of a tile.
        writing: How their gradients are written, as the kernel says.
        slices: The blocks that share the gradients of a tile.

    """

    rows: int
    writing: str
    slices: int


def gathering_of(operands: RowOperands) -> Gathering | None:
    """How the kernel works on these rows; None for losses that read more of them."""
    if not operands.loss.gathers:
        return None
    rows, main = operands.rows, operands.main
    columns, size = rows.columns, item_size(main.dtype)
    strides = dense_strides(rows.space.axes, rows.space.shape)
    gradient = RowArray(main.dtype, strides, 0, main.address, True)
    in_stretch, beside = rows.lies(gradient, rows.dense), rows.step(gradient)
    begins_in_parts = not in_stretch and beside * size % SECTOR_BYTES != 0
    is_long = columns * size > LONG_BYTES or (begins_in_parts and columns >= LONG_AMONG_OTHERS)
    if columns < 2 or is_long:
        return Gathering(THREADS, "IN_ZEROS", 1)
    if in_stretch:
        if columns * size <= STAGED_BYTES and rows.number >= STAGED_ROWS:
            return Gathering(THREADS, "STAGED", 1)
        slices = _slices(rows.number, columns * size)
        return Gathering(min(rows.number, THREADS), "IN_VECTORS", slices)
    slices = min(WRITING_THREADS // rows.number, columns // LEAST_OF_SLICE)
    of_tile = THREADS // beside * beside or THREADS  # whole stretches of rows, or a part of one
    return Gathering(of_tile, "BESIDE", max(slices, 1))


def _slices(rows: int, row_bytes: int) -> int:
    """The slices of a tile, of whole rows."""
    tile = min(rows, THREADS)
    few = -(-tile // max(FEW_BYTES // row_bytes, 1))
    return max(-(-tile * row_bytes // SLICE_BYTES), min(few, BLOCKS // -(-rows // tile)))


def gathered_rows_schedule(
    operands: RowOperands, gathering: Gathering, outputs: Sequence[RowArray]
) -> Schedule:
    """By kernels/gathered_rows.cu."""
    layout, fields = operands.layout([*operands.inputs, *outputs], ())
    segments = min(-(-operands.rows.number // gathering.rows), SEGMENTS)
    slices = gathering.slices if outputs else 1
    writing = gathering.writing if outputs else "IN_VECTORS"  # a loss alone writes nothing so
    row_bytes = operands.rows.columns * item_size(operands.main.dtype)
    of_multiprocessor = THREADS_OF_MULTIPROCESSOR
    if operands.rows.number < MANY_ROWS and (writing == "STAGED" or not outputs):
        has_several = outputs and len(operands.inputs) > 2
        of_multiprocessor = THREADS_OF_SEVERAL if has_several else THREADS_OF_FEW
    resident = blocks_per_multiprocessor(operands.problem, THREADS, of_multiprocessor)
    team = tuned("GatheringTeam", threads=THREADS, resident=resident, writing=writing)
    return Schedule(
        kernel="gathered_rows",
        types=(layout, team),
        arguments=(
            fields,
            int32(gathering.rows),
            int32(slices),
            reciprocal(max(operands.rows.columns, 2)),  # fewer are not divided by
        ),
        threads=THREADS,
        segments=segments,
        workers=segments,
        blocks=slices,
        shared=THREADS * row_bytes if writing == "STAGED" else 0,
    )

"""The schedule of losses that read one element of each row, of kernels/gathered_rows.cu."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.dtypes import item_size
from .._core.shapes import dense_strides
from . import row_team
from .launch import int32, reciprocal
from .row_arrays import RowArray
from .row_operands import RowOperands
from .row_schedule import Schedule, resident_blocks

# As measured on an H100.
THREADS = 256  # of a block, and rows of a tile at most
THREADS_OF_MULTIPROCESSOR = 1536  # resident at once, with 40 registers each; gradients need 64
TILE_BYTES = 512 << 10  # of its gradients, or one row
LONG_BYTES = 8 << 10  # of a row; cuda/kernels/rows.cu writes the gradients of longer ones
SEGMENTS = 4096  # partial sums of a reduced loss, at most


def gathers(operands: RowOperands) -> bool:
    """Whether the kernel is for these rows: their gradients would be one stretch of memory."""
    problem, rows, main = operands.problem, operands.rows, operands.main
    input = problem.operands[problem.leading + problem.call.extra]
    if not operands.loss.gathers or input.size != problem.size:
        return False
    strides = dense_strides(rows.space.axes, rows.space.shape)
    gradient = RowArray(main.dtype, strides, 0, main.address, True)
    row_bytes = rows.columns * item_size(main.dtype)
    return rows.columns > 1 and row_bytes <= LONG_BYTES and rows.lies(gradient, rows.dense)


def gathered_rows_schedule(operands: RowOperands, outputs: Sequence[RowArray]) -> Schedule:
    """By kernels/gathered_rows.cu."""
    layout, fields = operands.layout([*operands.inputs, *outputs], ())
    row_bytes = operands.rows.columns * item_size(operands.main.dtype)
    rows = min(THREADS, max(TILE_BYTES // row_bytes, 1))
    segments = min(-(-operands.rows.number // rows), SEGMENTS)
    of_multiprocessor = row_team.THREADS_OF_MULTIPROCESSOR if outputs else THREADS_OF_MULTIPROCESSOR
    resident = resident_blocks(operands.problem, THREADS, of_multiprocessor)
    return Schedule(
        kernel="gathered_rows",
        types=(layout, str(THREADS), str(resident)),
        arguments=(fields, int32(rows), reciprocal(operands.rows.columns)),
        threads=THREADS,
        segments=segments,
        workers=segments,
    )

"""The schedule of what rows add to the denominator of a mean, of kernels/denominators.cu."""

from __future__ import annotations

from .plan import tuned
from .row_function import RowFunction
from .row_operands import RowOperands
from .row_schedule import Schedule

# As measured on an H200.
THREADS = 256  # of a block
ROWS = 4  # of a thread in a tile
RESIDENT = 8  # blocks of a multiprocessor
SEGMENTS = 1024  # partial sums, at most


def denominators_schedule(operands: RowOperands, function: RowFunction) -> Schedule:
    """By kernels/denominators.cu."""
    layout, fields = operands.layout(function.inputs, ())
    team = tuned("CountingTeam", threads=THREADS, rows=ROWS, resident=RESIDENT)
    segments = min(-(-operands.rows.number // (THREADS * ROWS)), SEGMENTS)
    return Schedule(
        kernel="denominators",
        types=(layout, team),
        arguments=(fields,),
        threads=THREADS,
        segments=segments,
        workers=segments,
    )

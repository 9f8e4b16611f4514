"""The schedule of what rows add to the denominator of a mean, of kernels/denominators.cu."""

from __future__ import annotations

from .cpp import tuned
from .row_function import RowFunction
from .row_operands import RowOperands
from .row_schedule import Schedule

# As measured on an H200.
THREADS = 256  # of a block
ROWS = 4  # of a thread in a tile
RESIDENT = 8  # blocks of a multiprocessor
RESIDENT_OF_WIDE = 4  # of doubles, more than three arrays, or 2^30 rows: none spill
SEGMENTS = 1024  # partial sums, at most


def denominators_schedule(operands: RowOperands, function: RowFunction) -> Schedule:
    """By kernels/denominators.cu."""
    layout, fields = operands.layout(function.inputs, ())
    rows = operands.rows.number
    is_wide = operands.problem.real == "float64" or len(function.inputs) > 3 or rows >= 1 << 30
    resident = RESIDENT_OF_WIDE if is_wide else RESIDENT
    team = tuned("CountingTeam", threads=THREADS, rows=ROWS, resident=resident)
    segments = min(-(-rows // (THREADS * ROWS)), SEGMENTS)
    return Schedule(
        kernel="denominators",
        types=(layout, team),
        arguments=(fields,),
        threads=THREADS,
        segments=segments,
        workers=segments,
    )

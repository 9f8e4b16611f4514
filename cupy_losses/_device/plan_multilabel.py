"""Plans of multilabel_margin_loss; cuda/kernels/multilabel_margin.cu says what the kernel does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import item_size
from .._core.rows import RowFormula
from . import row_launches
from .cpp import tuned
from .hardware import THREADS_OF_MULTIPROCESSOR, VECTOR_BYTES, WARP
from .launch import int64
from .library import DeviceLibrary
from .plan import Plan
from .problem import Problem
from .row_arrays import RowArray
from .row_function import loss_function
from .row_launches import RowLaunches
from .row_schedule import Results, Schedule, blocks_per_multiprocessor
from .shared_memory import WORD_BYTES

# The threads of a row, by the most elements that it may have. Few threads have many elements each
# beside the work done once for a row. Many threads read whole lines of memory together; rows of
# vectors of four elements and more need fewer for that.
_OF_LONG = ((512, 8), (1024, 16), (4096, 32), (1 << 14, 128), (1 << 16, 256))
THREADS_OF_VECTORS = ((8, 1), (64, 2), (256, 4), *_OF_LONG)
THREADS_OF_ELEMENTS = ((8, 1), (16, 2), (128, 4), *_OF_LONG)
MOST_THREADS = 512  # of longer rows
BLOCK = 128  # threads of a block at least
BLOCK_ACROSS = 256  # the same where neighbouring threads are at neighbouring rows
ROWS_ACROSS = 32  # of such a block

ELEMENTS = 8  # of a thread at a time, at most
PIECE = 8  # targets that it compares them with; a row of one thread has no more

WINDOW = 1 << 15  # columns that marks are of: a multiple of those of all threads of a row
WINDOW_ACROSS = 1 << 12  # the same where neighbouring threads are at neighbouring rows
MARKS_OF_WORD = 8 * WORD_BYTES  # a bit for each column

WORKING_THREADS = 1 << 20  # of all blocks: several times those that run at once
THREADS_WITH_GRADIENTS = 768  # resident at once, with 80 registers each, for gradients
LONG_WITH_GRADIENTS = 640  # with 96, for gradients of rows of more than a warp


@dataclass(frozen=True, kw_only=True)
class MarginTeam:
    """The threads of a row, see cuda/kernels/multilabel_margin.cu.

    Attributes:
        threads: Those of a block.
        threads_per_row: Those of a row.
        width: The elements of a vector.
        batch: The vectors of a thread at a time.
        piece: The targets that it compares them with at a time.
        across: Whether neighbouring threads are at neighbouring rows.
        window: The columns that marks are of.

    """

    threads: int
    threads_per_row: int
    width: int
    batch: int
    piece: int
    across: bool
    window: int

    @property
    def rows(self) -> int:
        """The rows of a block."""
        return self.threads // self.threads_per_row

    @property
    def shared(self) -> int:
        """The bytes of the marks of its rows."""
        if self.threads_per_row == 1:
            return 0
        return WORD_BYTES * self.rows * (self.window // MARKS_OF_WORD)

    def c_type(self, resident: int) -> str:
        """The C++ type."""
        return tuned(
            "MarginTeam",
            threads=self.threads,
            threads_per_row=self.threads_per_row,
            width=self.width,
            batch=self.batch,
            piece=self.piece,
            resident=resident,
            across=self.across,
        )


def margin_team(columns: int, size: int, across: bool) -> MarginTeam:
    """The team of a row of `columns` elements of `size` bytes."""
    width = VECTOR_BYTES // size
    while columns % width:
        width //= 2
    table = THREADS_OF_VECTORS if width >= 4 else THREADS_OF_ELEMENTS
    threads_per_row = next(
        (threads_per_row for most, threads_per_row in table if columns <= most), MOST_THREADS
    )
    across = across and threads_per_row > 1
    threads = max(BLOCK, threads_per_row)
    if across:
        threads, threads_per_row = BLOCK_ACROSS, BLOCK_ACROSS // ROWS_ACROSS
    batch = 1
    while 2 * batch * width <= ELEMENTS and batch * width * threads_per_row < columns:
        batch *= 2
    piece = 1
    while piece < PIECE and piece < columns:
        piece *= 2
    words = -(-max(columns, 1) // MARKS_OF_WORD)
    window = min(WINDOW_ACROSS if across else WINDOW, words * MARKS_OF_WORD)
    return MarginTeam(
        threads=threads,
        threads_per_row=threads_per_row,
        width=width,
        batch=batch,
        piece=piece,
        across=across,
        window=window,
    )


def make_plan(library: DeviceLibrary, problem: Problem, loss: RowFormula) -> Plan:
    """Decide how to evaluate a request of multilabel_margin_loss."""
    return row_launches.make_plan(library, problem, loss, _Planner)


class _Planner(RowLaunches):
    """The launch of one problem."""

    def plan(self) -> Plan:
        gradients, extra = self._gradients(), self._problem.call.extra
        results = Results(
            self._values_mode(),
            self._value(),
            self._denominator(bool(gradients)),
            [k - extra for k, _ in gradients],
            [self._gradient(k, address) for k, address in gradients],
        )
        self._add(loss_function(self._operands), self._in_marks(results.outputs), results)
        return self._finish()

    def _in_marks(self, outputs: Sequence[RowArray]) -> Schedule:
        """By kernels/multilabel_margin.cu."""
        rows, main = self._operands.rows, self._operands.main
        arrays = [*self._operands.inputs, *outputs]
        team = margin_team(rows.columns, item_size(main.dtype), rows.lie_apart(main))
        vectors = [k for k, array in enumerate(arrays) if self._has_vectors(team, array)]
        layout, layout_bytes = self._operands.layout(arrays, vectors)
        threads = THREADS_OF_MULTIPROCESSOR
        if outputs:
            is_long = team.threads_per_row > WARP
            threads = LONG_WITH_GRADIENTS if is_long else THREADS_WITH_GRADIENTS
        types = layout, team.c_type(blocks_per_multiprocessor(self._problem, team.threads, threads))
        segments = min(-(-rows.number // team.rows), WORKING_THREADS // team.threads)
        return Schedule(
            kernel="multilabel_margin",
            types=types,
            arguments=(layout_bytes, int64(team.window)),
            threads=team.threads,
            segments=segments,
            workers=segments,
            in_groups=True,
            shared=team.shared,
        )

    def _has_vectors(self, team: MarginTeam, array: RowArray) -> bool:
        """Whether the vectors of an array are one access each, or its elements neighbours."""
        if not array.streamed:
            return self._operands.rows.step(array) == 1
        return self._operands.rows.has_vectors(array, team.width)

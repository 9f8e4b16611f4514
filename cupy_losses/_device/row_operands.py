"""The operands of a problem of rows, in the order of the kernels, as they lie over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .._core.dtypes import FLOATING, item_size
from .._core.rows import ELEMENTS, RowFormula, row_space
from .addresses import Address
from .problem import Problem
from .row_arrays import RowArray, RowGeometry
from .row_memory import RowMemory


@dataclass(frozen=True)
class RowOperands:
    """What kernels read of rows.

    Attributes:
        problem: The request whose operands they are.
        loss: The loss, which says what each of them holds.
        rows: The rows, over whose elements they lie.
        inputs: The operands as arrays: grad_output and tangents, those of the loss, the weights of
            the classes, then what says how much each row counts.

    """

    problem: Problem
    loss: RowFormula
    rows: RowGeometry
    inputs: Sequence[RowArray]

    @property
    def own(self) -> Sequence[RowArray]:
        """Those of the call, without grad_output and tangents."""
        return self.inputs[self.problem.leading :]

    @property
    def main(self) -> RowArray:
        """The first operand of the loss."""
        return self.inputs[self.problem.leading]

    def is_class_weights(self, k: int) -> bool:
        """Whether an input is the weights of the classes."""
        behind = self.problem.leading + len(self.loss.operands)
        return self.problem.call.weighted and k == behind

    def class_weights(self, width: int) -> list[int]:
        """The weights of the classes, if there are any and vectors of `width` are aligned."""
        weights = filter(self.is_class_weights, range(len(self.inputs)))
        return [k for k in weights if self.rows.has_vectors(self.inputs[k], width)]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The bytes of a number, by input: of those with one for each row, as the rows lie."""
        return {
            k: item_size(array.dtype)
            for k, array in enumerate(self.inputs)
            if not (array.streamed or self.is_class_weights(k))
            and self.rows.lies(array, self.rows.one_each)
        }

    @cached_property
    def memory(self) -> RowMemory:
        """How the rows of the first operand lie, and what is read of each element."""
        rows, main = self.rows, self.main
        size = item_size(main.dtype)
        begin = main.misaligned // size
        if main.dtype not in FLOATING:
            size = min(item_size(a.dtype) for a in self.own if a.streamed and a.dtype in FLOATING)
        streamed = tuple(item_size(a.dtype) for a in self.inputs if a.streamed)
        return RowMemory(
            rows.number,
            rows.columns,
            size,
            streamed,
            rows.step(main),
            tuple(rows.steps(main)),
            begin,
            precise=self.loss.precise,
            hides=self.loss.hides,
        )

    def layout(self, arrays: Sequence[RowArray], vectors: Sequence[int]) -> tuple[str, bytes]:
        """The C++ type of the layout of arrays, `vectors` of which are vectorised; its fields."""
        rows = self.rows
        extents = [0 if self._is_overwritten(k) else rows.extent(a) for k, a in enumerate(arrays)]
        return rows.layout(arrays, vectors, extents)

    def _is_overwritten(self, k: int) -> bool:
        return self.loss.overwrites and k == self.problem.leading


def row_operands(problem: Problem, loss: RowFormula, addresses: Sequence[Address]) -> RowOperands:
    """The operands of a problem, which are at these addresses."""
    call, leading = problem.call, problem.leading
    rows = RowGeometry(row_space(call, loss, problem.request, problem.given))
    first = leading + call.extra
    order = [*range(leading), *range(first, len(problem.operands))]
    order += [leading + call.masked] * call.weighted + [leading] * call.masked
    order += [first - 1] * call.row_weighted
    names = problem.request.names(call)[problem.request.denominator :]
    inputs = [
        RowArray(
            problem.operands[k].dtype,
            rows.space.strides[k],
            problem.misaligned[k],
            addresses[k],
            not loss.gathers and loss.role(names[k]) == ELEMENTS,
        )
        for k in order
    ]
    return RowOperands(problem, loss, rows, inputs)

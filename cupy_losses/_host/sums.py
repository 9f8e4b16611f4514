"""A recorded formula of rows, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._core.row_program import RowProgram
from .dual import Dual, Number, plus, slope_of, times
from .replay import Replay
from .rows import Evaluated, Rows, sum_of


@dataclass(frozen=True)
class ReplayOfRows:
    """The steps of a formula of rows, in float64."""

    function: RowProgram

    def __call__(self, rows: Rows) -> Evaluated:
        """The value of each row, and its gradients."""
        program = self.function
        x = [rows.operands[name] for name in program.operands]
        given: Any = rows.parameters
        sums: list[Number] = [sum_of(Replay(term)(*x, **given)) for term in program.terms]

        def loss(sums: list[Number]) -> Number:
            return program.loss(float(rows.columns), *sums, **given)

        @functools.cache
        def slope_by(n: int) -> Number:
            return slope_of(loss(_varied(sums, n)))

        def by(k: int) -> Callable[[], Number]:
            def gradient() -> Number:
                varied = _varied(x, k)
                gradient: Number = 0.0
                for n, term in enumerate(program.terms):
                    slope = slope_of(term(*varied, **given))
                    gradient = plus(gradient, times(slope_by(n), slope))
                return gradient

            return gradient

        return loss(sums), {name: by(k) for k, name in enumerate(program.operands)}


def _varied(numbers: list[Number], k: int) -> list[Number]:
    """The same numbers, of which one varies."""
    return [Dual(x, float(n == k)) for n, x in enumerate(numbers)]

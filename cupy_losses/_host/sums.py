"""A recorded formula of rows, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core.row_program import RowProgram
from .dual import Dual, Number, plain, plus, slope_of, times
from .rows import Evaluated, Rows, sum_of

_LOWEST = np.finfo(np.float64).min


@dataclass(frozen=True)
class ReplayOfRows:
    """The steps of a formula of rows, in float64."""

    function: RowProgram

    def __call__(self, rows: Rows) -> Evaluated:
        """The value of each row, and its gradients."""
        program = self.function
        x = [rows.operands[name] for name in program.operands]
        given: Any = rows.parameters
        terms = [term(*x, **given) for term in program.terms]
        sums: list[Number] = [
            log_sum_of(term) if is_log else sum_of(term)
            for term, is_log in zip(terms, program.logs, strict=True)
        ]

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
                    if program.logs[n]:
                        slope = times(np.exp(terms[n] - sums[n]), slope)
                    gradient = plus(gradient, times(slope_by(n), slope))
                return gradient

            return gradient

        return loss(sums), {name: by(k) for k, name in enumerate(program.operands)}


def log_sum_of(x: Number) -> Number:
    """The log of the sum of the exponentials of each row."""
    # Of distances from what is finite: exp(inf) is infinite, and no NaN.
    largest = np.maximum.reduce(plain(x), axis=-1, keepdims=True, initial=_LOWEST)
    top = np.minimum(largest, -_LOWEST)
    return np.log(sum_of(np.exp(x - top))) + top


def _varied(numbers: list[Number], k: int) -> list[Number]:
    """The same numbers, of which one varies."""
    return [Dual(x, float(n == k)) for n, x in enumerate(numbers)]

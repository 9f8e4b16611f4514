"""A recorded formula of rows, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._core.row_program import RowProgram
from .arrays import HostArray
from .dual import Dual, Number, plain, plus, slope_of, times
from .row_formulas import Evaluated, Rows, sum_of

_LOWEST = np.finfo(np.float64).min


@dataclass(frozen=True)
class ReplayOfRows:
    """The steps of a formula of rows, in float64."""

    program: RowProgram

    def __call__(self, rows: Rows) -> Evaluated:
        """The value of each row, and its gradients."""
        program = self.program.compared_in_float32 if rows.narrow else self.program
        x = [rows.operands[name] for name in program.operands]
        given: Any = rows.parameters
        terms = [term(*x, **given) for term in program.terms]
        exponentials = {
            n: exponentials_of(terms[n]) for n, is_log in enumerate(program.logs) if is_log
        }
        sums: list[Number] = [
            exponentials[n].log if n in exponentials else sum_of(term)
            for n, term in enumerate(terms)
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
                    if n in exponentials:
                        slope = times(exponentials[n].parts(), slope)
                    gradient = plus(gradient, times(slope_by(n), slope))
                # Times a slope of 1 it may be an operand, or what other gradients are made of.
                kept = [*x, *map(slope_by, range(len(sums)))]
                if isinstance(gradient, np.ndarray) and any(gradient is own for own in kept):
                    gradient = np.array(gradient)
                return gradient

            return gradient

        return loss(sums), {name: by(k) for k, name in enumerate(program.operands)}


class Exponentials(NamedTuple):
    """The exponentials of numbers less the largest of a row, which is finite here, and their sum.

    Parts come from the sum and not from its log, which is rounded beside the largest number.
    """

    each: Number
    largest: HostArray
    total: Number

    @property
    def log(self) -> Number:
        """The log of the sum of the exponentials of each row."""
        return np.log(self.total) + self.largest

    def parts(self) -> Number:
        """The part that each has of the sum of its row."""
        return self.each / self.total


def exponentials_of(x: Number) -> Exponentials:
    """The exponentials of each row."""
    # Of distances from what is finite: exp(inf) is infinite, and no NaN.
    largest = np.maximum.reduce(plain(x), axis=-1, keepdims=True, initial=_LOWEST)
    top = np.minimum(largest, -_LOWEST)
    each = np.exp(x - top)
    return Exponentials(each, top, sum_of(each))


def _varied(numbers: list[Number], k: int) -> list[Number]:
    """The same numbers, of which one varies."""
    return [Dual(x, float(n == k)) for n, x in enumerate(numbers)]

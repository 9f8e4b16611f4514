"""The reduction of a call on the host: what its sums are divided by, and multiplied.

`_core/reduction.py` says what a denominator is, and what it is where nothing is left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.loss import Call, Request
from .._core.reduction import Denominator
from .arrays import HostArray

_SMALLEST = sys.float_info.min


class Finish(NamedTuple):
    """How gradients come from those of the sum: which numbers they are multiplied or divided by.

    Where they are rounded to fewer bits anyway, one factor takes a third of the time of a division.
    """

    scales: bool
    divides: bool
    has_factor: bool  # unless the factor is too large or too small

    def steps(self, dtype: np.dtype[Any]) -> list[tuple[np.ufunc, int]]:
        """What is done to the gradients in a dtype, and which of the numbers of `Divisors` with."""
        if (self.scales or self.divides) and self.has_factor and dtype != np.float64:
            return [(np.multiply, 2)]
        return [(np.multiply, 0)] * self.scales + [(np.true_divide, 1)] * self.divides


class Divisors:
    """What the value and the derivatives of a request are divided by, and multiplied.

    Attributes:
        denominator: The denominator of the call.
        finish: How gradients come from those of the sum.
        numbers: The numbers that this takes: the scale, the divisor, and their quotient.

    """

    def __init__(
        self, call: Call, request: Request, of_call: Denominator, denominator: np.longdouble
    ) -> None:
        self.denominator = denominator
        self._scale, divisor = call.scale, of_call.of_derivatives(float(denominator))
        factor = self._scale / divisor if divisor else math.nan
        has_factor = _SMALLEST <= abs(factor) < math.inf
        self.finish = Finish(self._scale != 1.0, divisor != 1.0, has_factor)
        self.numbers = self._scale, divisor, factor
        # Derivatives along tangents are the value of a request.
        self._of_value = np.longdouble(divisor) if request.tangents else denominator

    def value(self, sums: Any) -> Any:
        """The value, from the sum."""
        return sums * self._scale / self._of_value

    def derivatives(self, slopes: Any, dtype: np.dtype[Any], is_new: bool) -> Any:
        """The gradients in a dtype, from those of the sum, which are overwritten if `is_new`."""
        for function, k in self.finish.steps(dtype):
            own = is_new and isinstance(slopes, np.ndarray)
            slopes = function(slopes, self.numbers[k], out=slopes if own else None)
            is_new = True
        return slopes


def divisors_of(
    call: Call,
    request: Request,
    of_call: Denominator,
    operands: Sequence[HostArray],
    of_data: Callable[[], np.longdouble],
) -> Divisors:
    """The divisors of a request on operands, given what adds a denominator of data up."""
    if request.denominator:
        denominator = np.longdouble(operands[0])
    else:
        denominator = of_data() if of_call.of_data else np.longdouble(of_call.size)
    return Divisors(call, request, of_call, denominator)

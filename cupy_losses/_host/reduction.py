"""The reduction of a call on the host: a sum and its denominator, and what is made of the pair.

`_core/reduction.py` says what they are, and what they are where nothing is left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.loss import Call, Request
from .._core.outputs import Output
from .._core.reduction import Denominator
from .._core.shapes import Shape
from .chunks import Array, ChunkIndex, NewArray, NewGradient, Sum

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
    operands: Sequence[Array],
    of_data: Callable[[], np.longdouble],
) -> Divisors:
    """The divisors of a request on operands, given what adds a denominator of data up."""
    if request.denominator:
        denominator = np.longdouble(operands[0])
    else:
        denominator = of_data() if of_call.of_data else np.longdouble(of_call.size)
    return Divisors(call, request, of_call, denominator)


class NewValue(NamedTuple):
    """The value of a call, before it is computed.

    Attributes:
        array: The value.
        pair: Whether it is the pair of a sum and its denominator.
        counted: Whether the denominator comes behind it.
        summed: The shape of the value as a sum: 1 along the axes that are summed; None for no sum.

    """

    array: NewArray
    pair: bool
    counted: bool
    summed: Shape | None


class Value:
    """The value of a call, filled chunk by chunk: of each element, of each row or of all."""

    def __init__(self, new: NewValue) -> None:
        self._new = new
        if new.summed is None:
            self._array = new.array.make()
        else:
            self._sum = Sum(new.summed, new.array.dtype)

    def add(self, index: ChunkIndex, values: Array) -> None:
        """Take the values of the chunk at `index`."""
        if self._new.summed is None:
            self._array[index] = values
        else:
            self._sum.add(index, values)

    def finish(self, divisors: Divisors) -> list[Array | None]:
        """The values in the dtype of the result, or the pair, and the denominator if asked for."""
        counted = [np.array(divisors.denominator, np.float64)] if self._new.counted else []
        return [self._finished(divisors), *counted]

    def _finished(self, divisors: Divisors) -> Array:
        new = self._new
        if new.summed is None:
            return self._array
        sums = self._sum.finish()
        if new.pair:
            whole = np.sum(sums)
            high = np.float64(whole)
            low = np.float64(whole - high) if np.isfinite(high) else 0.0
            return np.array([high, low, divisors.denominator], np.float64)
        value = new.array.make()
        value[...] = np.asarray(divisors.value(sums)).reshape(value.shape)
        return value


def new_results(
    request: Request, outputs: Sequence[Output | None], shape: Shape, summed: Shape | None
) -> tuple[NewValue | None, dict[int, NewGradient]]:
    """The value of a request, if it is asked for, and its gradients by the numbers of operands.

    `outputs` are those of the request, and `summed` is the shape of the sum that the value is.
    """
    value = None
    if request.value:
        first, *outputs = outputs[0], *outputs[1 + request.counted :]
        assert first is not None
        value = NewValue(NewArray.of(first), request.pair, request.counted, summed)
    gradients = {
        k: NewGradient.of(output, shape)
        for k, output in zip(request.wanted, outputs, strict=True)
        if output is not None
    }
    return value, gradients

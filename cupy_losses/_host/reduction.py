"""The reduction of a call on the host: a sum and its denominator, and what is made of the pair.

`_core/reduction.py` says what they are, and what they are where nothing is left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.loss import Call, Request
from .._core.outputs import Output
from .._core.reduction import Denominator
from .._core.shapes import Shape
from .chunks import Array, ChunkIndex, Sum, dtype, empty
from .dual import Number


class Divisors:
    """What the value and the derivatives of a request are divided by, and multiplied."""

    def __init__(
        self, call: Call, request: Request, of_call: Denominator, denominator: np.longdouble
    ) -> None:
        self.denominator = denominator
        self._scale = np.float64(call.scale)
        self._of_derivatives = np.float64(of_call.of_derivatives(float(denominator)))
        # Derivatives along tangents are the value of a request.
        self._of_value = np.longdouble(self._of_derivatives) if request.tangents else denominator

    def value(self, sums: Array) -> Array:
        """What the value is, from the sum."""
        return sums * self._scale / self._of_value

    def derivatives(self, slopes: Number, place: Array | None = None) -> Any:
        """What the gradients are, from those of the sum, written to a place if there is one."""
        if self._scale != 1.0:
            slopes = slopes * self._scale
        if place is None and self._of_derivatives == 1.0:
            return slopes
        return np.divide(slopes, self._of_derivatives, out=place)


class Value:
    """The value of a call, filled chunk by chunk: of each element, of each row or of all."""

    def __init__(
        self, call: Call, request: Request, shape: Shape, output: Output, summed: Shape | None
    ) -> None:
        self._output, self._pair, self._counted = output, request.pair, request.counted
        self._shape = call.loss.value_shape(call, shape)
        if summed is None:
            self._array = empty(output)
        self._sum = None if summed is None else Sum(summed)

    def add(self, index: ChunkIndex, values: Array) -> None:
        """Take the values of the chunk at `index`."""
        if self._sum is None:
            self._array[index] = values
        else:
            self._sum.add(index, values)

    def finish(self, divisors: Divisors) -> list[Array | None]:
        """The values in the dtype of the result, or the pair, and the denominator if asked for."""
        counted = [np.array(divisors.denominator, np.float64)] if self._counted else []
        return [self._finished(divisors), *counted]

    def _finished(self, divisors: Divisors) -> Array:
        if self._sum is None:
            return self._array
        sums = self._sum.finish()
        if self._pair:
            high = np.float64(sums.sum())
            return np.array([high, np.float64(sums.sum() - high), divisors.denominator], np.float64)
        quotient: Any = divisors.value(sums.reshape(self._shape))
        return np.asarray(quotient).astype(dtype(self._output.dtype))

"""The results of a request on the host: its value and its gradients, filled chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.chunks import ChunkIndex
from .._core.dtypes import numpy_dtype
from .._core.loss import Request
from .._core.outputs import Output
from .._core.shapes import Shape, dense_strides
from .arrays import HostArray
from .reduction import Divisors
from .sums import Sum


class NewArray(NamedTuple):
    """An array that a request makes."""

    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape | None  # in bytes; None in the order of C

    @classmethod
    def of(cls, output: Output) -> NewArray:
        """The array of an output."""
        own = numpy_dtype(output.dtype)
        dense = dense_strides(range(len(output.shape)), output.shape)
        strides = tuple(step * own.itemsize for step in output.strides)
        return cls(output.shape, own, None if output.strides == dense else strides)

    def make(self) -> HostArray:
        """The array, without its elements."""
        if self.strides is None:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, strides=self.strides)

    def zeros(self) -> HostArray:
        """The array of zeros."""
        if self.strides is None:
            return np.zeros(self.shape, self.dtype)
        array = self.make()
        array.fill(0)
        return array


class NewGradient(NamedTuple):
    """The gradient of one operand, before it is computed.

    Attributes:
        array: The gradient.
        in_place: Whether it takes the memory of the operand.
        shape: Its shape, with as many axes as the elements have.
        is_direct: Whether it has the shape of the elements; else it is a sum over some of them.

    """

    array: NewArray
    in_place: bool
    shape: Shape
    is_direct: bool

    @classmethod
    def of(cls, output: Output, shape: Shape) -> NewGradient:
        """The gradient that is an output of a request on elements of a shape."""
        missing = len(shape) - len(output.shape)
        own = (1,) * missing + output.shape[max(-missing, 0) :]
        return cls(NewArray.of(output), output.in_place, own, own == shape)

    @property
    def has_places(self) -> bool:
        """Whether chunks of it may be written to in float64."""
        return self.is_direct and self.array.dtype == np.float64


class Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast."""

    def __init__(self, new: NewGradient, operand: HostArray, begins_as_zeros: bool = False) -> None:
        self._new = new
        self.dtype = new.array.dtype
        if new.is_direct:
            made = new.array.zeros if begins_as_zeros else new.array.make
            self._array = operand if new.in_place else made()
            same = self._array.shape == new.shape
            self._view = self._array if same else self._array.reshape(new.shape)
        else:
            self._sum = Sum(new.shape, self.dtype)

    def add(self, index: ChunkIndex, slopes: HostArray) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._new.is_direct:
            self._view[index] = slopes
        else:
            self._sum.add(index, slopes)

    def place(self, index: ChunkIndex) -> HostArray:
        """Where the gradient of a chunk is written, if it has places."""
        place: HostArray = self._view[(*index, ...)]  # an array, also of no axes
        return place

    def of_rows(self, axis: int, index: ChunkIndex) -> HostArray:
        """Where the gradient of the rows along an axis is written, which is the last one here."""
        place: HostArray = np.moveaxis(self._view, axis, -1)[(*index, ...)]
        return place

    def finish(self) -> HostArray:
        """The gradient in the dtype and shape of the operand."""
        new = self._new
        if new.is_direct:
            return self._array
        array = new.array.make()
        array[...] = np.asarray(self._sum.finish()).reshape(new.array.shape)
        return array


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

    def add(self, index: ChunkIndex, values: HostArray) -> None:
        """Take the values of the chunk at `index`."""
        if self._new.summed is None:
            self._array[index] = values
        else:
            self._sum.add(index, values)

    def finish(self, divisors: Divisors) -> list[HostArray | None]:
        """The values in the dtype of the result, or the pair, and the denominator if asked for."""
        counted = [np.array(divisors.denominator, np.float64)] if self._new.counted else []
        return [self._finished(divisors), *counted]

    def _finished(self, divisors: Divisors) -> HostArray:
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

"""What passes on NumPy arrays share: bounded chunks, sums over them, gradients filled by them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.shapes import Operand, Shape, dense_strides

Array = npt.NDArray[Any]
Index = tuple[slice | int, ...]

CHUNK = 1 << 16  # elements in float64 at a time


def chunks(shape: Shape, size: int = CHUNK) -> Iterator[Index]:
    """Index tuples that cover an array in blocks of at most `size` elements (or one row)."""
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= size:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner > size:
        for first in range(shape[0]):
            for rest in chunks(shape[1:], size):
                yield (first, *rest)
        return
    rows = max(size // inner, 1)
    for first in range(0, shape[0], rows):
        yield (slice(first, first + rows),)


def describe(array: Array) -> Operand:
    """A NumPy array without its data."""
    size = max(array.dtype.itemsize, 1)
    return Operand(array.dtype.name, array.shape, tuple(step // size for step in array.strides))


def total(x: Array) -> np.longdouble:
    """The sum of all elements."""
    return np.sum(x, dtype=np.longdouble)


def dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, bfloat16 included."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class Sum:
    """A sum over chunks, in the axes where `shape` is 1."""

    def __init__(self, shape: Shape) -> None:
        self.array = np.zeros(shape, np.longdouble)

    def add(self, index: Index, values: Array) -> None:
        """Add the values of the chunk at `index`."""
        own_index = tuple(
            slice(0, 1) if length == 1 else at if isinstance(at, slice) else slice(at, at + 1)
            for at, length in zip(index, self.array.shape, strict=False)
        )
        target = self.array[(*own_index, ...)]  # a view, also of a 0-d array
        shape = (1,) * (target.ndim - np.ndim(values)) + np.shape(values)
        summed = tuple(d for d, n in enumerate(target.shape) if n == 1)
        target += np.reshape(values, shape).sum(axis=summed, keepdims=True, dtype=np.longdouble)


class Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast.

    With `overwrites` it takes the operand's memory.
    """

    def __init__(
        self, operand: Array, shape: Shape, axes: Sequence[int], overwrites: bool = False
    ) -> None:
        self._operand = operand
        own = (1,) * (len(shape) - operand.ndim) + operand.shape
        self._direct = own == shape
        if overwrites:
            self._array = operand
        elif self._direct:
            self._array = empty(shape, axes, operand.dtype)
        else:
            self._sum = Sum(own)

    def add(self, index: Index, slope: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._direct:
            self._array[index] = slope
        else:
            self._sum.add(index, slope)

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        if self._direct:
            return self._array.reshape(self._operand.shape)
        array = self._sum.array.astype(self._operand.dtype)
        return array.reshape(self._operand.shape)


def empty(shape: Shape, axes: Sequence[int], of: np.dtype[Any]) -> Array:
    """A new array whose memory runs along `axes`, slowest first."""
    strides = tuple(step * of.itemsize for step in dense_strides(axes, shape))
    return np.ndarray(shape, of, strides=strides)

"""Bounded chunks of NumPy arrays, sums over them, and gradients that are filled by them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.outputs import Output
from .._core.shapes import ArraySpec, Shape

Array = npt.NDArray[Any]
ChunkIndex = tuple[slice | int, ...]

CHUNK = 1 << 16  # elements in float64 at a time


def chunks(shape: Shape, size: int = CHUNK) -> Iterator[ChunkIndex]:
    """ChunkIndex tuples that cover an array in blocks of at most `size` elements (or one row)."""
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


def spec(array: Array) -> ArraySpec:
    """A NumPy array without its data."""
    size = max(array.dtype.itemsize, 1)
    return ArraySpec(array.dtype.name, array.shape, tuple(step // size for step in array.strides))


def total(x: Array) -> np.longdouble:
    """The sum of all elements."""
    return np.sum(x, dtype=np.longdouble)


def dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, bfloat16 included.

    Raises:
        ModuleNotFoundError: If that needs a package which is not there.

    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("bfloat16 needs ml_dtypes: pip install ml_dtypes") from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class Sum:
    """A sum over chunks, in the axes where `shape` is 1."""

    def __init__(self, shape: Shape) -> None:
        self.array = np.zeros(shape, np.longdouble)

    def add(self, index: ChunkIndex, values: Array) -> None:
        """Add the values of the chunk at `index`."""
        own_index = tuple(
            slice(0, 1) if length == 1 else at if isinstance(at, slice) else slice(at, at + 1)
            for at, length in zip(index, self.array.shape, strict=False)
        )
        target = self.array[(*own_index, ...)]  # a view, also of a 0-d array
        # An integer in the index takes its axis away from the values.
        taken = [d for d, at in enumerate(index) if not isinstance(at, slice)]
        missing = target.ndim - len(taken) - np.ndim(values)
        whole = np.reshape(values, (1,) * missing + np.shape(values))
        summed = tuple(d for d, n in enumerate(target.shape) if n == 1)
        target += np.expand_dims(whole, taken).sum(axis=summed, keepdims=True, dtype=np.longdouble)


class Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast."""

    def __init__(self, output: Output, operand: Array, shape: Shape) -> None:
        self._output = output
        missing = len(shape) - len(output.shape)
        own = (1,) * missing + output.shape[max(-missing, 0) :]
        self._direct = own == shape
        if self._direct:
            self._array = operand if output.in_place else empty(output)
            self._view = self._array.reshape(own)  # with the axes of the elements
        else:
            self._sum = Sum(own)

    def add(self, index: ChunkIndex, slope: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._direct:
            self._view[index] = slope
        else:
            self._sum.add(index, slope)

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        if self._direct:
            return self._array
        return self._sum.array.astype(dtype(self._output.dtype)).reshape(self._output.shape)


def empty(output: Output) -> Array:
    """A new array."""
    of = dtype(output.dtype)
    strides = tuple(step * of.itemsize for step in output.strides)
    return np.ndarray(output.shape, of, strides=strides)

"""Bounded chunks of NumPy arrays, sums over them, and gradients that are filled by them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.dtypes import dtype_name
from .._core.outputs import Output
from .._core.shapes import ArraySpec, Shape

Array = npt.NDArray[Any]
ChunkIndex = tuple[slice | int, ...]
Layout = tuple[np.dtype[Any], Shape, Shape]

CHUNK = 1 << 15  # elements in float64 at a time: four such arrays fill a cache of 1 MB
_FEW = 128  # elements that are added in extended precision, which is slow
_KEPT = 2048  # elements of a sum of chunks


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
    parts = -(-shape[0] // max(size // inner, 1))
    rows = -(-shape[0] // parts)
    for first in range(0, shape[0], rows):
        yield (slice(first, first + rows),)


def spec(array: Array) -> ArraySpec:
    """A NumPy array without its data."""
    return spec_of(layout(array))


def layout(array: Array) -> Layout:
    """The dtype, shape and strides in bytes of an array, which are quicker to get than its spec."""
    return array.dtype, array.shape, array.strides


def spec_of(layout: Layout) -> ArraySpec:
    """The array of a layout without its data."""
    of, shape, strides = layout
    size = max(of.itemsize, 1)
    return ArraySpec(dtype_name(of), shape, tuple(step // size for step in strides))


def broadcast(x: Array | float, shape: Shape) -> Array:
    """An array or a number in the shape that it broadcasts to."""
    array = np.asarray(x)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def wide(array: Array) -> Array:
    """Numbers in float64: the array itself if it has that, so that nothing may be written there."""
    return array if array.dtype == np.float64 else array.astype(np.float64)


def total(x: Array) -> np.longdouble:
    """The sum of all elements.

    The halves of the array are added to each other until few elements are left. That rounds many
    small sums, up or down; those of equal elements are exact.
    """
    rest = np.longdouble(0.0)
    x = x.ravel("K")
    while x.size > _FEW:
        half = x.size // 2
        if x.size % 2:
            rest += x[-1]
        x = x[:half] + x[half : 2 * half]
    last: np.longdouble = np.add.reduce(x, dtype=np.longdouble)
    return rest + last


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


class Total:
    """The sum of all elements of arrays that come one after the other.

    The halves of each array are added to each other a few times. What is left of arrays of one size
    is added in pairs, such sums in pairs again, and so on, so that a sum of 2^k elements has been
    rounded k times. What is left in the end is added up by `total`.
    """

    def __init__(self) -> None:
        self._levels: list[Array | None] = []  # the sum of 2^k arrays, unless it has been taken
        self._others = np.longdouble(0.0)
        self._size = -1

    def add(self, x: Array) -> None:
        """Add the elements of an array."""
        x = x.ravel("K")
        if self._size < 0:
            self._size = x.size
        if x.size != self._size:
            self._others += total(x)
            return
        x = self._halved(x)
        for level, other in enumerate(self._levels):
            if other is None:
                self._levels[level] = x
                return
            np.add(other, x, out=x)
            self._levels[level] = None
        self._levels.append(x)

    def _halved(self, x: Array) -> Array:
        """A new array of few elements with the sum of many."""
        if x.size <= _KEPT:
            return x.copy()
        half, rest = divmod(x.size, 2)
        if rest:
            self._others += x[-1]
        own = x[:half] + x[half : 2 * half]
        while half > _KEPT:
            half, rest = divmod(half, 2)
            if rest:
                self._others += own[2 * half]
            np.add(own[:half], own[half : 2 * half], out=own[:half])
        return own[:half]

    def finish(self) -> np.longdouble:
        """The sum."""
        return self._others + sum(total(x) for x in self._levels if x is not None)


class Sum:
    """A sum over chunks, in the axes where `shape` is 1."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._all = Total() if math.prod(shape) == 1 else None
        if self._all is None:
            self._array = np.zeros(shape, np.longdouble)

    def add(self, index: ChunkIndex, values: Array) -> None:
        """Add the values of the chunk at `index`."""
        if self._all is not None:
            self._all.add(values)
            return
        own_index = tuple(
            slice(0, 1) if length == 1 else at if isinstance(at, slice) else slice(at, at + 1)
            for at, length in zip(index, self._shape, strict=False)
        )
        target = self._array[(*own_index, ...)]  # a view, also of a 0-d array
        # An integer in the index takes its axis away from the values.
        taken = [d for d, at in enumerate(index) if not isinstance(at, slice)]
        missing = target.ndim - len(taken) - values.ndim
        whole = values.reshape((1,) * missing + values.shape)
        summed = tuple(d for d, n in enumerate(target.shape) if n == 1)
        target += np.expand_dims(whole, taken).sum(axis=summed, keepdims=True, dtype=np.longdouble)

    def finish(self) -> Array:
        """The sum, in extended precision."""
        if self._all is None:
            return self._array
        return np.asarray(self._all.finish()).reshape(self._shape)


class Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast."""

    def __init__(self, output: Output, operand: Array, shape: Shape) -> None:
        self._output = output
        missing = len(shape) - len(output.shape)
        own = (1,) * missing + output.shape[max(-missing, 0) :]
        self.dtype = dtype(output.dtype)
        self._direct = own == shape
        self.is_direct = self._direct and self.dtype == np.float64
        if self._direct:
            self._array = operand if output.in_place else empty(output)
            self._view = self._array.reshape(own)  # with the axes of the elements
        else:
            self._sum = Sum(own)

    def add(self, index: ChunkIndex, slopes: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._direct:
            self._view[index] = slopes
        else:
            self._sum.add(index, slopes)

    def place(self, index: ChunkIndex) -> Array:
        """Where the gradient of a chunk may be written in float64, if it `is_direct`."""
        place: Array = self._view[(*index, ...)]  # an array, also of no axes
        return place

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        if self._direct:
            return self._array
        return self._sum.finish().astype(dtype(self._output.dtype)).reshape(self._output.shape)


def empty(output: Output) -> Array:
    """A new array."""
    of = dtype(output.dtype)
    strides = tuple(step * of.itemsize for step in output.strides)
    return np.ndarray(output.shape, of, strides=strides)

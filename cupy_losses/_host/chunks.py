"""Bounded chunks of NumPy arrays, sums over them, and gradients that are filled by them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._core.dtypes import dtype_name, numpy_dtype
from .._core.loss import Request
from .._core.outputs import Output
from .._core.shapes import ArraySpec, Shape, dense_strides

Array = npt.NDArray[Any]
ChunkIndex = tuple[slice | int, ...]
Place = tuple[slice, ...]  # of a part of an array, which has all of its axes; () is all of it
Layout = tuple[np.dtype[Any], Shape, Shape]

CHUNK = 1 << 16  # elements in float64 at a time: fewer calls of NumPy outweigh a larger cache
_FEW = 128  # elements that are added in extended precision, which is slow
_KEPT = 4096  # elements of a sum of several arrays
_ZERO = np.longdouble(0.0)


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


def places(shape: Shape, size: int) -> Iterator[Place]:
    """The same blocks as parts that keep all axes."""
    for index in chunks(shape, size):
        whole = (slice(at, at + 1) if isinstance(at, int) else at for at in index)
        yield tuple(slice(*at.indices(n)[:2]) for at, n in zip(whole, shape, strict=False))


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


def is_narrow(request: Request, operands: Sequence[ArraySpec]) -> bool:
    """Whether a device computes a request in float32, which rounds parameters and constants."""
    return all(operand.dtype != "float64" for operand in operands[request.denominator :])


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
    rest = _ZERO
    x = x.ravel("K")
    size = x.size
    while size > _FEW:
        half, odd = divmod(size, 2)
        if odd:
            rest = rest + x[-1]
        x = x[:half] + x[half : 2 * half]
        size = half
    last: np.longdouble = np.add.reduce(x, dtype=np.longdouble)
    return rest + last


def rounded_total(x: Array) -> np.float64:
    """The same, for a sum that is rounded to float32 or fewer bits, in a third of the time.

    NumPy's sum of products adds up in 16 places. The sum of a chunk of equal elements is off by
    less than 2^-41 of it.
    """
    found: np.float64 = np.einsum("i->", x.ravel("K"))
    return found


class Total:
    """The sum of all elements of arrays that come one after the other.

    The halves of each array are added to each other a few times. What is left of arrays of one size
    is added in pairs, such sums in pairs again, and so on, so that a sum of 2^k elements has been
    rounded k times. What is left in the end is added up by `total`.
    """

    def __init__(self) -> None:
        self._levels: list[Array | None] = []  # the sum of 2^k arrays, unless it has been taken
        self._others = _ZERO
        self._size = -1

    def add(self, x: Array) -> None:
        """Add the elements of an array."""
        x = x.ravel("K")
        if self._size < 0:
            self._size = x.size
            self._memory = np.empty(x.size // 2)
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
        size = x.size
        if size <= _KEPT:
            return x.copy()
        while size > _KEPT:
            half, odd = divmod(size, 2)
            if odd:
                self._others += x[size - 1]
            out = self._memory[:half] if half > _KEPT else None
            x = np.add(x[:half], x[half : 2 * half], out=out)
            size = half
        return x

    def finish(self) -> np.longdouble:
        """The sum."""
        return self._others + sum(total(x) for x in self._levels if x is not None)


class Sum:
    """A sum over chunks, in the axes where `shape` is 1, that is rounded to a dtype in the end."""

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._is_one = math.prod(shape) == 1
        self._one = _ZERO
        self._total = Total() if self._is_one and dtype == np.float64 else None
        if not self._is_one:
            self._array = np.zeros(shape, np.longdouble)

    def add(self, index: ChunkIndex, values: Array) -> None:
        """Add the values of the chunk at `index`."""
        if self._is_one:
            if self._total is None:
                self._one = self._one + rounded_total(values)
            elif index == ():
                self._one = total(values)
            else:
                self._total.add(values)
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

    def finish(self) -> Any:
        """The sum, in extended precision: an array, or one number."""
        if not self._is_one:
            return self._array
        return self._one if self._total is None else self._one + self._total.finish()


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

    def make(self) -> Array:
        """The array, without its elements."""
        if self.strides is None:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, strides=self.strides)

    def zeros(self) -> Array:
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

    def __init__(self, new: NewGradient, operand: Array, begins_as_zeros: bool = False) -> None:
        self._new = new
        self.dtype = new.array.dtype
        if new.is_direct:
            made = new.array.zeros if begins_as_zeros else new.array.make
            self._array = operand if new.in_place else made()
            same = self._array.shape == new.shape
            self._view = self._array if same else self._array.reshape(new.shape)
        else:
            self._sum = Sum(new.shape, self.dtype)

    def add(self, index: ChunkIndex, slopes: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._new.is_direct:
            self._view[index] = slopes
        else:
            self._sum.add(index, slopes)

    def place(self, index: ChunkIndex) -> Array:
        """Where the gradient of a chunk is written, if it has places."""
        place: Array = self._view[(*index, ...)]  # an array, also of no axes
        return place

    def of_rows(self, axis: int, index: ChunkIndex) -> Array:
        """Where the gradient of the rows along an axis is written, which is the last one here."""
        place: Array = np.moveaxis(self._view, axis, -1)[(*index, ...)]
        return place

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        new = self._new
        if new.is_direct:
            return self._array
        array = new.array.make()
        array[...] = np.asarray(self._sum.finish()).reshape(new.array.shape)
        return array

"""Sums of the elements of NumPy arrays, in extended precision or nearly so."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._core.chunks import ChunkIndex
from .._core.shapes import Shape
from .arrays import HostArray

_FEW = 128  # elements that are added in extended precision, which is slow
_KEPT = 4096  # elements of a sum of several arrays
_ZERO = np.longdouble(0.0)


def total(x: HostArray) -> np.longdouble:
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


def rounded_total(x: HostArray) -> np.float64:
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
        self._levels: list[HostArray | None] = []  # the sum of 2^k arrays, unless it has been taken
        self._others = _ZERO
        self._size = -1

    def add(self, x: HostArray) -> None:
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

    def _halved(self, x: HostArray) -> HostArray:
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

    def add(self, index: ChunkIndex, values: HostArray) -> None:
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

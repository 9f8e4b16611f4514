"""What formulas of rows on the host are written with.

The formula of a loss takes `Rows` and returns the value of each row and, by the name of an operand,
a function that gives the gradient by its elements, a new array. It is written on numbers that are
arrays or `Dual`s, so that what it does to first derivatives gives the second ones. All arrays in it
have two axes, the elements of a row along the second one, which may have length 1. Nothing may be
written to the operands, but to those that are copied.

A loss that gathers reads one element of each row, that of the target. Its formula takes these
elements alone, an axis of length 1, and gives the gradient by them: that by all others is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

import numpy as np

from .arrays import HostArray, broadcast
from .dual import Dual, Number, plain, slope_of, value_of

Evaluated = tuple[Number, Mapping[str, Callable[[], Number]]]

_LONG = 512  # elements of a row; parts of fewer would take longer
_PARTS = 16  # of lines that are added; twice as many lines have parts


def sum_of(x: Number) -> Number:
    """The sum of each row."""
    if not isinstance(x, Dual):
        beside, along = map(abs, x.strides)
        if x.shape[-1] < _LONG or along <= beside or x.dtype != np.float64:
            return np.add.reduce(x, axis=-1, keepdims=True)
        return _sum_of_lines(x.T)[:, None]
    return Dual(sum_of(x.value), sum_of(_slopes(x)))


def _sum_of_lines(lines: HostArray) -> HostArray:
    """The sum of lines, which NumPy adds one after the other.

    That loses digits, and time where lines are short. So those of each of some parts are added to
    each other first.
    """
    count = len(lines)
    if count < 2 * _PARTS:
        found: HostArray = np.add.reduce(lines, axis=0)
        return found
    parts = min(_PARTS, math.isqrt(count))
    size = count // parts
    whole = lines[: parts * size].reshape(parts, size, -1)
    found = _sum_of_lines(np.add.reduce(whole, axis=0))
    if parts * size < count:
        found += np.add.reduce(lines[parts * size :], axis=0)
    return found


def _slopes(x: Number) -> Number:
    """The slopes of a number, one for each of its elements."""
    slope = slope_of(x)
    return slope if isinstance(slope, Dual) else broadcast(slope, np.shape(plain(x)))


class At:
    """The element of each row that an index says; none of a row whose index is negative."""

    def __init__(self, index: HostArray) -> None:
        columns = index[:, 0]
        self._shape = index.shape
        (self._rows,) = (columns >= 0).nonzero()
        self._in_all = len(self._rows) == len(columns)
        self._columns = columns if self._in_all else columns[self._rows]

    def of(self, x: Number) -> Number:
        """These elements, or 0."""
        if isinstance(x, Dual):
            return Dual(self.of(x.value), self.of(_slopes(x)))
        picked = x[self._rows, self._columns]
        if self._in_all:
            return picked.reshape(self._shape)
        found = np.zeros(self._shape)
        found[self._rows, 0] = picked
        return found

    def put(self, x: Number, value: Number) -> Number:
        """A copy that has another value there: a number, or one for each row."""
        if isinstance(x, Dual) or isinstance(value, Dual):
            slopes = self.put(_slopes(x), slope_of(value))
            return Dual(self.put(value_of(x), value_of(value)), slopes)
        return self.put_into(np.array(x), value)

    def put_into(self, x: Number, value: Number) -> Number:
        """The same in place, for an array that nothing else uses."""
        if isinstance(x, Dual) or isinstance(value, Dual):
            return self.put(x, value)
        if isinstance(value, np.ndarray):
            value = value[:, 0] if self._in_all else value[self._rows, 0]
        x[self._rows, self._columns] = value
        return x


class Rows(NamedTuple):
    """Some rows of the operands of a call; indices and labels in it are in range or -1."""

    operands: Mapping[str, Number]
    parameters: Mapping[str, float]
    columns: int
    weight: HostArray | float  # of each class
    copied: Container[str] = ()  # operands that may be written to, once nothing else reads them
    narrow: bool = False  # whether float32 is the widest dtype of the operands

    def __getattr__(self, name: str) -> Any:
        """The operand or parameter of a name."""
        return self.operands[name] if name in self.operands else self.parameters[name]

    def at(self, index: HostArray) -> At:
        """The element of each row that an index says."""
        return At(index)

    def weight_of(self, index: HostArray) -> HostArray | float:
        """The weight of the class of an index."""
        if isinstance(self.weight, float):
            return self.weight
        # Without classes all are ignored or out of range.
        own: HostArray = self.weight[index] if self.columns else np.ones(index.shape)
        return own

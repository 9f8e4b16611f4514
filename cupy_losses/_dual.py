"""Dual numbers over NumPy arrays: a NumPy formula of a loss gives its derivatives too.

The host's counterpart of cuda/dual.cuh. A `Dual` takes part in arithmetic, in the NumPy functions
listed at the end and in `np.where`; its value and slope are arrays or `Dual`s themselves, which
gives second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Number = Any  # an array or a Dual


class Dual:
    """A value and its derivative along one direction."""

    def __init__(self, value: Number, slope: Number) -> None:
        self.value = value
        self.slope = slope

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        rule = _RULES.get(ufunc)
        if rule is None or method != "__call__" or options:
            return NotImplemented
        return rule(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is not np.where or kwargs or len(args) != 3:
            return NotImplemented
        condition, a, b = args
        return Dual(
            np.where(condition, value_of(a), value_of(b)),
            np.where(condition, slope_of(a), slope_of(b)),
        )

    def __add__(self, other: Number) -> Dual:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Dual:
        return _add(self, -other)

    def __rsub__(self, other: Number) -> Dual:
        return _add(-self, other)

    def __mul__(self, other: Number) -> Dual:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Dual:
        return _divide(self, other)

    def __rtruediv__(self, other: Number) -> Dual:
        return _divide(other, self)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __abs__(self) -> Dual:
        return Dual(abs(self.value), _sign(self.value) * self.slope)

    def __lt__(self, other: Number) -> Any:
        return plain(self) < plain(other)

    def __gt__(self, other: Number) -> Any:
        return plain(self) > plain(other)

    def __le__(self, other: Number) -> Any:
        return plain(self) <= plain(other)

    def __ge__(self, other: Number) -> Any:
        return plain(self) >= plain(other)


def value_of(x: Number) -> Number:
    """The value of a number; a constant is its own."""
    return x.value if isinstance(x, Dual) else x


def slope_of(x: Number) -> Number:
    """The derivative of a number; a constant has none."""
    return x.slope if isinstance(x, Dual) else 0.0


def plain(x: Number) -> Any:
    """The array inside, whatever the order."""
    while isinstance(x, Dual):
        x = x.value
    return x


def _add(a: Number, b: Number) -> Dual:
    if not isinstance(b, Dual):
        return Dual(a.value + b, a.slope)
    return Dual(a.value + b.value, a.slope + b.slope)


def _multiply(a: Dual, b: Number) -> Dual:
    if not isinstance(b, Dual):
        return Dual(a.value * b, a.slope * b)
    return Dual(a.value * b.value, a.slope * b.value + a.value * b.slope)


def _divide(a: Number, b: Number) -> Dual:
    if not isinstance(b, Dual):
        return Dual(a.value / b, a.slope / b)
    quotient = value_of(a) / b.value
    return Dual(quotient, (slope_of(a) - quotient * b.slope) / b.value)


def _sign(x: Number) -> Number:
    """-1, 0 or 1; 0 for NaN, as torch differentiates |x|."""
    x = plain(x)
    return np.subtract(x > 0, x < 0, dtype=np.float64)


_RULES: dict[np.ufunc, Callable[..., Any]] = {
    np.add: lambda a, b: a + b if isinstance(a, Dual) else b + a,
    np.subtract: lambda a, b: a - b if isinstance(a, Dual) else -b + a,
    np.multiply: lambda a, b: a * b if isinstance(a, Dual) else b * a,
    np.true_divide: _divide,
    np.negative: lambda a: -a,
    np.absolute: abs,
    np.less: lambda a, b: plain(a) < plain(b),
    np.greater: lambda a, b: plain(a) > plain(b),
    np.less_equal: lambda a, b: plain(a) <= plain(b),
    np.greater_equal: lambda a, b: plain(a) >= plain(b),
}

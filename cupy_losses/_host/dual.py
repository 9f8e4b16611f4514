"""Dual numbers over NumPy arrays: a NumPy formula of a loss gives its derivatives too.

The counterpart of cuda/numbers/dual.cuh. A `Dual` takes part in arithmetic, in the NumPy functions
listed at the end, in `np.where` and in `np.clip`; its value and slope are arrays or `Dual`s
themselves, which gives second derivatives. A slope may also be a float, which all elements have:
1.0 of what is differentiated by, 0.0 of what does not vary. These two cost no arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._core.formula_errors import shown_name, without_derivative
from .._core.program import CONDITIONS
from .._core.tracing import bounded, clip_bounds
from .._core.types import AnyArray
from .recording import Recorded, signs

Number = Any  # an array or a Dual


class Dual:
    """A value and its derivative along one direction."""

    def __init__(self, value: Number, slope: Number) -> None:
        self.value = value
        self.slope = slope

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        rule = _RULES.get(ufunc)
        shown = shown_name(ufunc)
        if method != "__call__":
            raise TypeError(without_derivative(f"{shown}.{method}", method))
        if rule is None:
            raise TypeError(without_derivative(shown, ufunc.__name__))
        _without(options, shown)
        return rule(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.clip:
            return _clipped(*args, **kwargs)
        if function is not np.where:
            raise TypeError(without_derivative(shown_name(function), function.__name__))
        if kwargs or len(args) != 3:
            raise TypeError("np.where takes three arguments here: condition, a, b")
        condition, a, b = args
        condition = plain(condition)
        return Dual(
            np.where(condition, value_of(a), value_of(b)),
            _chosen(condition, slope_of(a), slope_of(b)),
        )

    def __add__(self, other: Number) -> Dual:
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Dual:
        return _subtract(self, other)

    def __rsub__(self, other: Number) -> Dual:
        return _subtract(other, self)

    def __mul__(self, other: Number) -> Dual:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Dual:
        return _divide(self, other)

    def __rtruediv__(self, other: Number) -> Dual:
        return _divide(other, self)

    def __pos__(self) -> Dual:
        return self

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __abs__(self) -> Dual:
        return Dual(abs(self.value), times(sign_of(self.value), self.slope))

    def __pow__(self, exponent: float) -> Number:
        return _power(_raised, self, exponent)

    def __lt__(self, other: Number) -> Any:
        return plain(self) < plain(other)

    def __gt__(self, other: Number) -> Any:
        return plain(self) > plain(other)

    def __le__(self, other: Number) -> Any:
        return plain(self) <= plain(other)

    def __ge__(self, other: Number) -> Any:
        return plain(self) >= plain(other)

    def __eq__(self, other: object) -> Any:
        return plain(self) == plain(other)

    def __ne__(self, other: object) -> Any:
        return plain(self) != plain(other)

    __hash__ = None  # type: ignore[assignment]


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


def with_derivatives(
    function: Callable[..., Any],
    derivatives: Sequence[Callable[..., Any]],
    arguments: Sequence[Number],
) -> Number:
    """A function of numbers whose derivative by each argument is given, not derived."""
    if not any(isinstance(x, Dual) for x in arguments):
        return function(*arguments)
    below = [value_of(x) for x in arguments]
    slope: Any = 0.0
    for derivative, x in zip(derivatives, arguments, strict=True):
        if isinstance(x, Dual) and not _is(x.slope, 0.0):
            slope = plus(slope, times(derivative(*below), x.slope))
    return Dual(with_derivatives(function, derivatives, below), slope)


def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x)), precise at both ends."""

    def value(x: Any) -> Any:
        power = np.exp(-abs(x))
        return np.maximum(power, sign_of(x)) / (1.0 + power)

    return with_derivatives(value, (lambda x: sigmoid(x) * sigmoid(-x),), (x,))


def softplus(x: Number) -> Number:
    """log(1 + exp(x)), precise at both ends."""

    def value(x: Any) -> Any:
        return positive(x) + np.log1p(np.exp(-abs(x)))

    return with_derivatives(value, (sigmoid,), (x,))


def limited(x: Number, bound: float) -> Number:
    """The number, but from -bound to bound: the derivative is 0 there and beyond."""

    def inside(x: Any) -> Any:
        return 1.0 - np.greater_equal(abs(plain(x)), bound)

    return with_derivatives(lambda x: np.clip(x, -bound, bound), (inside,), (x,))


def positive(x: Number) -> Number:
    """max(x, 0), faster than NumPy's maximum of an array and a number."""
    return np.clip(x, 0.0, np.inf)


def clamped(x: Number) -> Number:
    """max(x, 0) with torch's derivatives: at 0 that of x, at NaN 0 times that."""
    if not isinstance(x, Dual):
        return np.maximum(x, 0.0)

    def active(x: Any) -> Any:
        return 1.0 * np.greater_equal(plain(x), 0.0)

    return np.where(plain(x) < 0, 0.0, with_derivatives(lambda x: x, (active,), (x,)))


def plus(a: Number, b: Number) -> Number:
    """The sum of slopes, of which 0.0 costs nothing."""
    return b if _is(a, 0.0) else a if _is(b, 0.0) else a + b


def times(a: Number, b: Number) -> Number:
    """The product of a slope and a factor; 0.0 makes it 0.0, whatever the other one is."""
    if _is(a, 0.0) or _is(b, 0.0):
        return 0.0
    return b if _is(a, 1.0) else a if _is(b, 1.0) else a * b


def _is(x: Number, number: float) -> bool:
    """Whether a slope is a number that all elements have."""
    return type(x) is float and x == number


def _chosen(condition: Any, a: Number, b: Number) -> Number:
    """The slopes `a` where a condition holds, else `b`."""
    return a if type(a) is float and _is(b, a) else np.where(condition, a, b)


def _add(a: Dual, b: Number) -> Dual:
    return Dual(a.value + value_of(b), plus(a.slope, slope_of(b)))


def _subtract(a: Number, b: Number) -> Dual:
    below, other = slope_of(a), slope_of(b)
    slope = below if _is(other, 0.0) else -other if _is(below, 0.0) else below - other
    return Dual(value_of(a) - value_of(b), slope)


def _multiply(a: Dual, b: Number) -> Dual:
    if b is a:
        half = times(a.slope, a.value)
        return Dual(a.value * a.value, plus(half, half))
    slope = plus(times(a.slope, value_of(b)), times(a.value, slope_of(b)))
    return Dual(a.value * value_of(b), slope)


def _divide(a: Number, b: Number) -> Dual:
    if not isinstance(b, Dual):
        return Dual(_quotient(a.value, b), 0.0 if _is(a.slope, 0.0) else _quotient(a.slope, b))
    quotient = _quotient(value_of(a), b.value)
    slope = plus(slope_of(a), -times(quotient, b.slope))
    return Dual(quotient, 0.0 if _is(slope, 0.0) else _quotient(slope, b.value))


def _quotient(a: Number, b: Number) -> Number:
    """The quotient; that of two numbers is what arrays have, where Python's would raise."""
    if isinstance(a, float | int) and isinstance(b, float | int) and b == 0:
        with np.errstate(all="ignore"):
            return float(np.true_divide(a, b))
    return a / b


def _raised(a: Number, exponent: Number) -> Number:
    """The power; that of two numbers is what arrays have, where Python's raises or is complex."""
    if isinstance(a, float | int) and isinstance(exponent, float | int):
        with np.errstate(all="ignore"):
            return float(np.power(float(a), exponent))
    return a**exponent


def sign_of(x: Number) -> Number:
    """-1, 0 or 1; 0 for NaN, as torch differentiates |x|."""
    x = plain(x)
    if isinstance(x, Recorded):
        return x.recording.apply(signs, x)
    found = np.empty(np.shape(x))
    signs(x, found)
    return found


def _without(options: dict[str, Any], shown: str) -> None:
    if options:
        option = next(iter(options))
        raise TypeError(f"{shown} takes no {option}= where it is differentiated: leave it out")


def _power(function: Callable[..., Any], a: Number, exponent: Number) -> Number:
    if isinstance(exponent, Dual):
        raise TypeError("the exponent of a power must be a constant: write exp(b * log(a))")
    # At an exponent of 0 the other factor may be infinite.
    slope = np.where(exponent == 0, 0.0, exponent * _raised(value_of(a), exponent - 1.0))
    return Dual(function(value_of(a), exponent), times(slope, slope_of(a)))


def _extreme(function: np.ufunc, is_beyond: np.ufunc, a: Number, b: Number) -> Number:
    """The larger or the smaller number. Where they are equal, each has half of the derivative."""
    x, y = plain(a), plain(b)
    parts = np.where(is_beyond(x, y), 1.0, np.where(is_beyond(y, x), 0.0, 0.5))
    slope = plus(_part(parts, slope_of(a)), _part(1.0 - parts, slope_of(b)))
    return Dual(function(value_of(a), value_of(b)), slope)


def _part(part: AnyArray, slope: Number) -> Number:
    """Part of a slope, which may be infinite where that is 0."""
    return 0.0 if _is(slope, 0.0) else np.where(part == 0, 0.0, times(part, slope))


def _clipped(x: Number, low: Any = None, high: Any = None, **options: Any) -> Number:
    """The bounds are constants."""
    low, high = clip_bounds(low, high, options)
    _without(options, "np.clip")
    return bounded(x, low, high)


def _log_of_sum(a: Number, b: Number) -> Dual:
    x, y = value_of(a), value_of(b)
    slope = plus(times(sigmoid(x - y), slope_of(a)), times(sigmoid(y - x), slope_of(b)))
    return Dual(np.logaddexp(x, y), slope)


def _hypotenuse(a: Number, b: Number) -> Dual:
    x, y = value_of(a), value_of(b)
    value = np.hypot(x, y)
    by_a, by_b = _over_hypotenuse(x, y, value), _over_hypotenuse(y, x, value)
    return Dual(value, plus(times(by_a, slope_of(a)), times(by_b, slope_of(b))))


def _over_hypotenuse(a: Number, b: Number, hypotenuse: Number) -> Number:
    """The quotient of `a` and hypot(a, b).

    With c = a / h and s = b / h, the derivative of c is s (s da - c db) / h. That of the quotient
    would be made from 1 - c^2, which cancels.
    """
    if not isinstance(hypotenuse, Dual):
        return a / hypotenuse
    x, y, below = value_of(a), value_of(b), hypotenuse.value
    c, s = _over_hypotenuse(x, y, below), _over_hypotenuse(y, x, below)
    across = s / below
    by_b = times(-(c * across), slope_of(b))
    return Dual(c, plus(times(s * across, slope_of(a)), by_b))


def _inverse_square_of_cosh(x: Number) -> Number:
    """1 / cosh(x)^2, the derivative of tanh(x), of which 1 - tanh(x)^2 cancels far out."""
    tail = np.exp(-2.0 * np.abs(x))
    below = 1.0 + tail
    return 4.0 * tail / (below * below)


def _of_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a function that has the derivative 0, or that says what is true."""
    return lambda *numbers: function(*map(plain, numbers))


def _of_one(
    function: np.ufunc, derivative: Callable[[Number, Number], Number]
) -> Callable[..., Any]:
    """The rule of a function of one number, its derivative given x and the value."""

    def rule(x: Dual) -> Dual:
        value = function(x.value)
        return Dual(value, times(derivative(x.value, value), x.slope))

    return rule


_RULES: dict[Any, Callable[..., Any]] = {
    **{f: _of_plain(f) for f in CONDITIONS | {np.sign, np.isnan, np.isinf, np.isfinite}},
    np.add: lambda a, b: a + b if isinstance(a, Dual) else b + a,
    np.subtract: _subtract,
    np.multiply: lambda a, b: a * b if isinstance(a, Dual) else b * a,
    np.true_divide: _divide,
    np.reciprocal: lambda a: 1.0 / a,
    np.negative: lambda a: -a,
    np.positive: lambda a: a,
    np.absolute: abs,
    np.fabs: abs,
    np.power: functools.partial(_power, np.power),
    np.float_power: functools.partial(_power, np.float_power),
    np.square: lambda a: a * a,
    np.maximum: functools.partial(_extreme, np.maximum, np.greater),
    np.minimum: functools.partial(_extreme, np.minimum, np.less),
    np.logaddexp: _log_of_sum,
    np.hypot: _hypotenuse,
    np.exp: _of_one(np.exp, lambda x, y: y),
    np.expm1: _of_one(np.expm1, lambda x, y: np.exp(x)),
    np.log: _of_one(np.log, lambda x, y: 1.0 / x),
    np.log1p: _of_one(np.log1p, lambda x, y: 1.0 / (1.0 + x)),
    np.sqrt: _of_one(np.sqrt, lambda x, y: 0.5 / y),
    np.tanh: _of_one(np.tanh, lambda x, y: _inverse_square_of_cosh(x)),
    np.sinh: _of_one(np.sinh, lambda x, y: np.cosh(x)),
    np.cosh: _of_one(np.cosh, lambda x, y: np.sinh(x)),
    np.sin: _of_one(np.sin, lambda x, y: np.cos(x)),
    np.cos: _of_one(np.cos, lambda x, y: -np.sin(x)),
    np.arctan: _of_one(np.arctan, lambda x, y: 1.0 / (1.0 + x * x)),
}

"""Tracing: a formula in Python is called once, with values that record what is done to them.

What comes of it is a `Program`, or a `RowProgram`, which serves the host and the device. What
cannot be traced is an error that shows the line of the function and says what to write instead.
"""

from __future__ import annotations

import functools
import linecache
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np

from . import formula_errors
from .arguments import digits
from .program import CONDITIONS, FUNCTIONS, LOGICAL, Program, Step
from .row_program import LENGTH, LOG_SUM_EXP, MOST_SUMS, RowProgram

_Made = TypeVar("_Made", Program, RowProgram)

_OPERATORS = {"floor_divide": "//", "remainder": "%", "divmod": "divmod", "matmul": "@"}
# The largest whole exponent that becomes multiplications.
_MOST = 16
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def trace(
    name: str,
    function: Callable[..., Any],
    operands: Sequence[str],
    parameters: Sequence[str],
    by_keyword: Sequence[str],
) -> Program:
    """Record what a function does to its arguments, which are the operands, then the parameters.

    Args:
        name: The name of the loss, for messages.
        function: The formula.
        operands: The names of the arrays.
        parameters: The names of the hyper-parameters.
        by_keyword: Those of them that the function takes by keyword alone.

    Raises:
        TypeError: If it does what no formula can.

    """
    recorder = _Recorder(operands, parameters)
    return _traced(recorder, recorder.program, name, function, by_keyword)


def trace_rows(
    name: str,
    function: Callable[..., Any],
    operands: Sequence[str],
    parameters: Sequence[str],
    by_keyword: Sequence[str],
) -> RowProgram:
    """The same of a function of whole rows, which makes one number of sums over their elements."""
    recorder = _RowRecorder(operands, parameters)
    return _traced(recorder, recorder.row_program, name, function, by_keyword)


def _traced(
    recorder: _Recorder,
    program: Callable[[Any], _Made],
    name: str,
    function: Callable[..., Any],
    by_keyword: Sequence[str],
) -> _Made:
    """The program of the result of a function, which a recorder makes of it."""
    values = recorder.arguments()
    keywords = {argument: values.pop(argument) for argument in by_keyword}
    failures: list[_TraceError] = []
    token = _failures.set(failures)
    try:
        result = function(*values.values(), **keywords)
        if failures:  # the function has caught it, and may have gone on with anything
            raise failures[0]
        return program(result)
    except TypeError as error:
        message, cause = str(error), None  # which says where it is
        if not isinstance(error, _TraceError):
            message += f"; a formula is made of {formula_errors.WORDS}"
            cause = error
        raise TypeError(_located(name, message, error.__traceback__)) from cause
    except AttributeError as error:
        if not isinstance(error.obj, Value):
            raise
        raise TypeError(_located(name, str(error), error.__traceback__)) from error
    finally:
        _failures.reset(token)


class _TraceError(TypeError):
    """What a formula cannot do; the trace that it fails remembers it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        failures = _failures.get()
        if failures is not None:
            failures.append(self)


_failures: ContextVar[list[_TraceError] | None] = ContextVar("_failures", default=None)


def _located(name: str, message: str, traceback: TracebackType | None) -> str:
    """A message with the last line that is the user's."""
    places: list[tuple[str, int]] = []
    while traceback is not None:
        places.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    outside = [place for place in places if not place[0].startswith(_PACKAGE)]
    if not outside:
        return f"the formula of {name} cannot be traced: {message}"
    # A formula may be of an installed library itself.
    own = [place for place in outside if not any(part in place[0] for part in _LIBRARIES)]
    file, line = [*outside[:1], *own][-1]
    shown = linecache.getline(file, line).strip()
    place = f"line {line} of {os.path.basename(file)}"
    text = f"the formula of {name} cannot be traced, {place}: {message}"
    return f"{text}\n    {shown}" if shown else text


class _Recorder:
    """The values of a formula that is being traced; equal ones are one.

    Attributes:
        reductions: The functions over several elements that a formula may use, by name.
        parts: Why a value has no parts.

    """

    reductions: Mapping[str, Callable[[Any], Value]]
    parts = formula_errors.ELEMENT

    def __init__(self, operands: Sequence[str], parameters: Sequence[str]) -> None:
        self._operands = tuple(operands)
        self._parameters = tuple(parameters)
        self.reductions = {}
        self._values: list[str | float | Step] = []
        self._places: dict[Any, int] = {}

    def arguments(self) -> dict[str, Value]:
        """The operands and the parameters."""
        names = (*self._operands, *self._parameters)
        return {name: self._value(name, of_element=name in self._operands) for name in names}

    def refusal(self, shown: str, name: str) -> str:
        """Why a function is none of a formula, and what to write instead."""
        return formula_errors.of_function(shown, name)

    def _value(self, value: str | float | Step, **what: bool) -> Value:
        key = repr(value) if isinstance(value, float) else value  # 0.0 and -0.0 differ
        place = self._places.setdefault((type(value), key), len(self._values))
        if place == len(self._values):
            self._values.append(value)
        return Value(self, place, **what)

    def number(self, x: Any) -> Value:
        """A value of the formula, or a constant, as a number."""
        if isinstance(x, Value):
            if x.recorder is not self:
                raise _TraceError("this value is one of another formula")
            return self.step(np.where, x, 1.0, 0.0) if x.is_condition else x
        return self._value(_constant(x))

    def condition(self, x: Any) -> Value:
        """A value of the formula, or a constant, as a condition: whether it is other than 0."""
        if isinstance(x, Value) and x.is_condition and x.recorder is self:
            return x
        return self.step(np.not_equal, x, 0.0)

    def step(self, function: Callable[..., Any], *arguments: Any) -> Value:
        """A function of values of the formula and of constants."""
        if function in LOGICAL:
            values = [self.condition(x) for x in arguments]
        elif function is np.where:
            values = [self.condition(arguments[0]), *map(self.number, arguments[1:])]
        else:
            if function not in CONDITIONS and all(map(_is_condition, arguments)):
                raise _TraceError(
                    "a comparison is no number where no number meets it: write & or |, or "
                    "np.where(condition, 1.0, 0.0)"
                )
            values = [self.number(x) for x in arguments]
        step = Step(function, tuple(value.place for value in values))
        return self._value(
            step,
            of_element=any(value.of_element for value in values),
            of_row=any(value.of_row for value in values),
            is_condition=function in CONDITIONS,
        )

    def program(self, result: Any) -> Program:
        """The program of a result, without the steps that it does not need."""
        if not (isinstance(result, Value) or _is_real(result)):
            raise _TraceError(f"it must return one number, got {_described(result)}")
        last = self.number(result).place
        return Program(self._operands, self._parameters, tuple(self._values)).part(last, {})


class _RowRecorder(_Recorder):
    """The values of a formula of rows: of each element, or of what is added up over a row."""

    parts = formula_errors.ROW

    def __init__(self, operands: Sequence[str], parameters: Sequence[str]) -> None:
        super().__init__(operands, parameters)
        self.reductions = {
            "sum": functools.partial(self._sum, "sum", np.sum),
            "mean": self._mean,
            "logaddexp.reduce": functools.partial(self._sum, "logaddexp.reduce", LOG_SUM_EXP),
            "size": self._size,
        }

    def refusal(self, shown: str, name: str) -> str:
        """Only sums are accumulated."""
        return formula_errors.of_function_of_rows(shown, name, self.reductions)

    def step(self, function: Callable[..., Any], *arguments: Any) -> Value:
        """A function of values of elements alone, or of sums alone."""
        value = super().step(function, *arguments)
        if value.of_element and value.of_row:
            raise _TraceError(formula_errors.SECOND_PASS)
        return value

    def row_program(self, result: Any) -> RowProgram:
        """The program of a result, which is one number of a row."""
        rows = RowProgram.split(self.program(result))
        if not rows.terms or result.of_element:
            raise _TraceError(formula_errors.NO_SUM)
        if rows.sums > MOST_SUMS:
            raise _TraceError(
                f"a formula has at most {MOST_SUMS} different sums, not {rows.sums}, of which each "
                "np.logaddexp.reduce is two"
            )
        return rows

    def _sum(self, name: str, function: Callable[..., Any], x: Any) -> Value:
        return self._value(Step(function, (self._elements(name, x).place,)), of_row=True)

    def _mean(self, x: Any) -> Value:
        sum_of_row = self._sum("mean", np.sum, x)
        return self.step(np.true_divide, sum_of_row, self._value(LENGTH, of_row=True))

    def _size(self, x: Any) -> Value:
        self._elements("size", x)
        return self._value(LENGTH, of_row=True)

    def _elements(self, name: str, x: Any) -> Value:
        """A value of the elements of a row, of which a function is to be."""
        elements = self.number(x)
        if elements.of_row:
            raise _TraceError(formula_errors.SECOND_PASS)
        if not elements.of_element:
            raise _TraceError(formula_errors.NO_ELEMENTS.format(name))
        return elements


def _constant(x: Any) -> float:
    """A number of Python or NumPy."""
    if isinstance(x, np.ndarray) and x.ndim:
        raise _TraceError(formula_errors.CONSTANT.format(f"an array of shape {x.shape}"))
    if not _is_real(x):
        raise _TraceError(formula_errors.CONSTANT.format(_described(x)))
    try:
        return float(x)
    except OverflowError:
        raise _TraceError(f"a constant must be in the range of float64, got {digits(x)}") from None


def _is_real(x: Any) -> bool:
    """Whether it is a number of Python or NumPy."""
    if isinstance(x, np.ndarray | np.generic):
        return x.ndim == 0 and x.dtype.kind in "biuf"
    return isinstance(x, bool | int | float)


def _is_condition(x: Any) -> bool:
    return x.is_condition if isinstance(x, Value) else isinstance(x, bool | np.bool_)


def _described(x: Any) -> str:
    return "None" if x is None else type(x).__name__


def _unary(function: Callable[..., Any]) -> Callable[[Value], Any]:
    def method(self: Value) -> Any:
        return _apply(self.recorder, function, self)

    return method


def _binary(function: Callable[..., Any]) -> Callable[[Value, Any], Any]:
    def method(self: Value, other: Any) -> Any:
        return _apply(self.recorder, function, self, other)

    return method


def _reflected(function: Callable[..., Any]) -> Callable[[Value, Any], Any]:
    def method(self: Value, other: Any) -> Any:
        return _apply(self.recorder, function, other, self)

    return method


def _without_modulus(power: Callable[[Value, Any], Any]) -> Callable[..., Any]:
    """A power as the function pow() calls it."""

    def method(self: Value, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            raise _TraceError(formula_errors.MODULUS)
        return power(self, other)

    return method


def _refused(message: str) -> Callable[..., NoReturn]:
    def method(self: Value, *arguments: Any, **options: Any) -> NoReturn:
        raise _TraceError(message.format(parts=self.recorder.parts))

    return method


class Value:
    """A value of a formula that is being traced.

    Attributes:
        recorder: What records it.
        place: Its place there.
        of_element: Whether it depends on an operand element by element.
        of_row: Whether it depends on all elements of a row.
        varies: Whether it depends on an operand at all.
        is_condition: Whether it is the result of a comparison.

    """

    def __init__(
        self,
        recorder: _Recorder,
        place: int,
        of_element: bool = False,
        of_row: bool = False,
        is_condition: bool = False,
    ) -> None:
        self.recorder = recorder
        self.place = place
        self.of_element = of_element
        self.of_row = of_row
        self.varies = of_element or of_row
        self.is_condition = is_condition

    def __repr__(self) -> str:
        return "<a value of a formula that is being traced>"

    def __copy__(self) -> Value:
        return self  # nothing changes it

    def __deepcopy__(self, memo: Any) -> Value:
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return self._reduced(f"{ufunc.__name__}.{method}", method, inputs, options)
        _without(options, ufunc.__name__)
        return _apply(self.recorder, ufunc, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        name = function.__name__
        shown = formula_errors.shown_name(function)
        if function is np.where:
            if len(args) != 3:
                raise _TraceError("np.where takes three arguments here: condition, a, b")
            return self.recorder.step(np.where, *args)
        if function is np.clip:
            return _clipped(*args, **options)
        if name in self.recorder.reductions:
            return self._reduced(name, name, args, options)
        raise _TraceError(self.recorder.refusal(shown, name))

    def _reduced(self, name: str, kind: str, inputs: Any, options: Any) -> Value:
        """A function over several elements, if the formula may use it."""
        if name not in self.recorder.reductions:
            raise _TraceError(self.recorder.refusal(f"np.{name}", kind))
        if len(inputs) > 1 or options:
            raise _TraceError(formula_errors.ALONE.format(name))
        return self.recorder.reductions[name](*inputs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> NoReturn:
        name = getattr(function, "__name__", "function")
        raise _TraceError(formula_errors.of_function_of_torch(name))

    def __getattr__(self, name: str) -> NoReturn:
        message = f"{self.recorder.parts}: it has no .{name}"
        if name in self.recorder.reductions:
            message = f"a value of a formula has no methods: write np.{name}(x)"
        elif name in formula_errors.REDUCTIONS:
            message = self.recorder.refusal(f".{name}()", name)
        elif name == "clip" or isinstance(getattr(np, name, None), np.ufunc):
            message = f"a value of a formula has no methods: write np.{name}"
        raise AttributeError(message, name=name, obj=self)

    __add__, __radd__ = _binary(np.add), _reflected(np.add)
    __sub__, __rsub__ = _binary(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply), _reflected(np.multiply)
    __truediv__, __rtruediv__ = _binary(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __matmul__, __rmatmul__ = _binary(np.matmul), _reflected(np.matmul)
    __pow__ = _without_modulus(_binary(np.power))
    __rpow__ = _without_modulus(_reflected(np.power))
    __and__, __rand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __eq__ = _binary(np.equal)
    __ne__ = _binary(np.not_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)
    __hash__ = None  # type: ignore[assignment]

    __bool__ = _refused(formula_errors.BRANCH)
    __float__ = __int__ = __complex__ = __index__ = _refused(formula_errors.NUMBER)
    __round__ = __floor__ = __ceil__ = __trunc__ = _refused(formula_errors.NUMBER)
    __len__ = __iter__ = __getitem__ = __setitem__ = __contains__ = _refused("{parts}")
    __array__ = _refused("{parts}: leave out np.asarray(x), np.array(x) and np.float32(x)")


def _without(options: dict[str, Any], name: str) -> None:
    if options:
        raise _TraceError(f"np.{name} takes no {next(iter(options))}= in a formula: leave it out")


def _apply(recorder: _Recorder, ufunc: Any, *inputs: Any) -> Any:
    """The value of a ufunc or of an operator."""
    made = _MADE_OF_OTHERS.get(ufunc)
    if made is not None:
        return made(recorder, *inputs)
    if ufunc not in FUNCTIONS:
        name = ufunc.__name__
        shown = _OPERATORS.get(name) or formula_errors.shown_name(ufunc)
        raise _TraceError(recorder.refusal(shown, name))
    return recorder.step(ufunc, *inputs)


def _bitwise(function: Callable[..., Any], sign: str) -> Callable[..., Value]:
    def apply(recorder: _Recorder, *inputs: Any) -> Value:
        if not all(map(_is_condition, inputs)):
            example = "~(a > 0)" if sign == "~" else f"(a > 0) {sign} (b > 0)"
            raise _TraceError(f"{sign} is for comparisons, in parentheses: write {example}")
        return recorder.step(function, *inputs)

    return apply


def _power(recorder: _Recorder, base: Any, exponent: Any) -> Any:
    """Multiplications and a square root where these are the power, else one of a constant."""
    if isinstance(exponent, Value):
        if exponent.varies:
            raise _TraceError(
                "the exponent of a power must be a constant or a parameter: write "
                "np.exp(b * np.log(a)) for a ** b"
            )
        return recorder.step(np.power, base, exponent)
    number = _constant(exponent)
    if number == 0.5:
        return recorder.step(np.sqrt, base)
    if not (number.is_integer() and 1 <= abs(number) <= _MOST):
        return recorder.step(np.power, base, number)
    bits = f"{abs(int(number)):b}"
    # Of 1 / x, as the derivative of 1 / (x * x) is 0 / 0 at infinity, and NaN at 0.
    x = result = recorder.number(base) if number > 0 else recorder.step(np.true_divide, 1.0, base)
    for bit in bits[1:]:
        result = result * result
        if bit == "1":
            result = result * x
    return result


def clip_bounds(low: Any, high: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """The bounds of np.clip, of which options that are taken out may have each, by two names."""
    for of_low, of_high in (("a_min", "a_max"), ("min", "max")):
        low, high = _once(low, of_low, options), _once(high, of_high, options)
    return low, high


def _once(bound: Any, name: str, options: dict[str, Any]) -> Any:
    """A bound, which an option may have instead."""
    if bound is not None and name in options:
        raise _TraceError(f"np.clip got a bound twice: leave out {name}=")
    return options.pop(name, bound)


def bounded(x: Any, low: Any, high: Any) -> Any:
    """A number between two bounds, at which its derivative is that of the number, as in torch."""
    if low is not None:
        x = np.where(x < low, low, x)
    if high is not None:
        x = np.where(x > high, high, x)
    return x


def _clipped(x: Any, low: Any = None, high: Any = None, *out: Any, **options: Any) -> Any:
    low, high = clip_bounds(low, high, options)
    _without({"out": out} if out else options, "clip")
    if any(isinstance(bound, Value) and bound.varies for bound in (low, high)):
        raise _TraceError(
            "the bounds of np.clip must be constants or parameters: write "
            "np.minimum(np.maximum(x, low), high)"
        )
    return bounded(x, low, high)


# Functions that need no C++ of their own, as others say what they are.
_MADE_OF_OTHERS: dict[Any, Callable[..., Any]] = {
    np.bitwise_and: _bitwise(np.logical_and, "&"),
    np.bitwise_or: _bitwise(np.logical_or, "|"),
    np.bitwise_xor: _bitwise(np.logical_xor, "^"),
    np.invert: _bitwise(np.logical_not, "~"),
    np.power: _power,
    np.float_power: _power,
    np.square: lambda recorder, x: _power(recorder, x, 2),
    np.reciprocal: lambda recorder, x: recorder.step(np.true_divide, 1.0, x),
    np.positive: lambda recorder, x: recorder.number(x),
    np.fabs: lambda recorder, x: recorder.step(np.absolute, x),
    np.isnan: lambda recorder, x: recorder.step(np.not_equal, x, x),
    np.isinf: lambda recorder, x: recorder.step(np.equal, abs(x), np.inf),
    np.isfinite: lambda recorder, x: recorder.step(np.less, abs(x), np.inf),
}

"""A formula as steps: NumPy's functions, which the host calls, and the C++ that they become."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .dtypes import in_float32

Function = Callable[..., Any]

# C++ has an operator for these. The number says how tightly it binds.
_OPERATORS: Mapping[Function, tuple[str, int]] = {
    np.logical_or: ("||", 2),
    np.logical_and: ("&&", 3),
    np.equal: ("==", 4),
    np.not_equal: ("!=", 4),
    np.logical_xor: ("!=", 4),
    np.less: ("<", 5),
    np.greater: (">", 5),
    np.less_equal: ("<=", 5),
    np.greater_equal: (">=", 5),
    np.add: ("+", 6),
    np.subtract: ("-", 6),
    np.multiply: ("*", 7),
    np.true_divide: ("/", 7),
}
_PREFIXES: Mapping[Function, str] = {np.negative: "-", np.logical_not: "!"}
# Functions of cuda/numbers/math.cuh.
_CALLS: Mapping[Function, str] = {
    np.absolute: "abs",
    np.sign: "signum",
    np.exp: "exp",
    np.expm1: "expm1",
    np.log: "log",
    np.log1p: "log1p",
    np.sqrt: "sqrt",
    np.tanh: "tanh",
    np.sinh: "sinh",
    np.cosh: "cosh",
    np.sin: "sin",
    np.cos: "cos",
    np.arctan: "atan",
    np.power: "pow",
    np.hypot: "hypot",
    np.logaddexp: "logaddexp",
    np.maximum: "max",
    np.minimum: "min",
}
_CHOICE, _PREFIX, _ATOM = 1, 8, 9  # how tightly they bind

LOGICAL = frozenset({np.logical_or, np.logical_and, np.logical_xor, np.logical_not})
CONDITIONS = LOGICAL | {function for function, (_, bound) in _OPERATORS.items() if bound < 6}
CALLED = frozenset(_CALLS)
_COMPARING = (CONDITIONS - LOGICAL) | {np.maximum, np.minimum}
_SWITCHING = _COMPARING | {np.absolute, np.sign}
_BESIDE_DATA = _COMPARING | {np.where}  # what compares constants with data, or puts them in place
FUNCTIONS = CALLED | {*_OPERATORS, *_PREFIXES, np.where}

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
# What nothing in a formula in C++ can be called, as it means something else there.
RESERVED = {
    *_KEYWORDS.split(),
    *("NULL", "NAN", "INFINITY", "ARCHITECTURE", "CLUSTERS", "DEVICE"),  # macros
    *("FUNCTION", "OF_PARAMETER"),
    *("T", "Real", "Parameter", "Common", "formula"),
}
_TAKEN = {
    *(*RESERVED, *_CALLS.values()),
    *("Constant", "OPERANDS", "SUMS", "LOGS", "term", "loss"),
}
_LONGEST = 60  # characters of an expression that has no name


def cpp_name(name: str) -> str:
    """The name of an operand or a parameter in C++: another one where that means something else."""
    taken = name in _TAKEN or re.fullmatch(r"v\d+", name) is not None
    return f"_given_{name}" if taken else name


@dataclass(frozen=True)
class Step:
    """A function of values before it, which are given by their places in the program."""

    function: Function
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """The steps of a formula; the last one is its value.

    Attributes:
        operands: The names of the arrays.
        parameters: The names of the hyper-parameters.
        values: Each a name, a number or a step.

    """

    operands: tuple[str, ...]
    parameters: tuple[str, ...]
    values: tuple[str | float | Step, ...]

    def __call__(self, *operands: Any, **parameters: float) -> Any:
        """The value, of arrays or of numbers that carry derivatives."""
        return self._results(*operands, **parameters)[-1]

    def part(
        self, place: int, names: Mapping[int, str], operands: Sequence[str] | None = None
    ) -> Program:
        """The program of one of the values, with only the steps that it needs.

        Args:
            place: The place of the value.
            names: Names of operands that stand for values, by their places.
            operands: The names of all operands of the part, or None for those of the whole.

        """
        needed, values = {place}, self.values[: place + 1]
        for k, value in reversed(list(enumerate(values))):
            if k in needed and k not in names and isinstance(value, Step):
                needed.update(value.arguments)
        places: dict[int, int] = {}
        kept: list[str | float | Step] = []
        for k in sorted(needed):
            places[k] = len(kept)
            value = names.get(k, values[k])
            if isinstance(value, Step):
                value = Step(value.function, tuple(places[j] for j in value.arguments))
            kept.append(value)
        operands = self.operands if operands is None else tuple(operands)
        return Program(operands, self.parameters, tuple(kept))

    @functools.cached_property
    def compared_in_float32(self) -> Program:
        """The same, but that constants which are compared, or chosen, are those in float32.

        Data of float32 would never be equal to 0.1 in float64, nor would that be to 0.1 in float32
        where it stands for data.
        """
        kept: list[str | float | Step] = []
        places: list[int] = []
        for value in self.values:
            if isinstance(value, Step):
                arguments = [places[k] for k in value.arguments]
                if value.function in _BESIDE_DATA:
                    for n, k in enumerate(value.arguments):
                        constant = self.values[k]
                        if isinstance(constant, float):
                            arguments[n] = len(kept)
                            kept.append(in_float32(constant))
                value = Step(value.function, tuple(arguments))
            places.append(len(kept))
            kept.append(value)
        return Program(self.operands, self.parameters, tuple(kept))

    def switches(self, *operands: Any, **parameters: float) -> list[Any]:
        """The numbers whose signs decide between the sides of the formula: there are its kinks."""
        results = self._results(*operands, **parameters)
        found = []
        for value in self.values:
            if isinstance(value, Step) and value.function in _SWITCHING:
                first, *rest = (results[k] for k in value.arguments)
                found.append(first - rest[0] if rest else first)
        return found

    def _results(self, *operands: Any, **parameters: float) -> list[Any]:
        """The values of all steps."""
        given = dict(zip(self.operands, operands, strict=True)) | parameters
        results: list[Any] = []
        for value in self.values:
            if isinstance(value, str):
                results.append(given[value])
            elif isinstance(value, float):
                results.append(value)
            else:
                results.append(value.function(*(results[k] for k in value.arguments)))
        return results

    def cpp(self) -> str:
        """The formula in C++: an expression, or statements that end with `return`.

        What is used more than once has a name, and so has what is long.
        """
        uses: Counter[int] = Counter()
        for value in self.values:
            if isinstance(value, Step):
                uses.update(value.arguments)
        lines: list[str] = []
        texts: list[_Text] = []
        for k, value in enumerate(self.values):
            text = self._text(value, texts)
            last = k == len(self.values) - 1
            if isinstance(value, Step) and not last and (uses[k] > 1 or len(text.text) > _LONGEST):
                name = f"v{len(lines) + 1}"
                lines.append(f"auto {name} = {text.text};")
                text = _Text(name, _ATOM, text.is_number)
            texts.append(text)
        if not lines:
            return texts[-1].text
        return "\n".join([*lines, f"return {texts[-1].text};"])

    def _text(self, value: str | float | Step, texts: Sequence[_Text]) -> _Text:
        if isinstance(value, str):
            return _Text(cpp_name(value), _ATOM, value in self.operands)
        if isinstance(value, float):
            return _literal(value)
        function, parts = value.function, [texts[k] for k in value.arguments]
        if function is np.where:
            condition, a, b = parts
            if not (a.is_number or b.is_number):
                a = _number(a)
            texts_of = [part.within(_CHOICE + 1) for part in (condition, a, b)]
            return _Text("{} ? {} : {}".format(*texts_of), _CHOICE)
        if function in _PREFIXES:
            return _Text(_PREFIXES[function] + parts[0].within(_PREFIX + 1), _PREFIX)
        if function in _OPERATORS:
            sign, bound = _OPERATORS[function]
            # Numbers are added and multiplied in the order of the program. A mixture of && and ||,
            # or of comparisons, is easier to read with parentheses.
            left = bound if bound >= 6 else 6
            right = left if bound < 6 else bound + 1
            return _Text(f"{parts[0].within(left)} {sign} {parts[1].within(right)}", bound)
        if len(parts) == 1 or function is np.power:
            parts[0] = _number(parts[0])
        return _Text(f"{_CALLS[function]}({', '.join(part.text for part in parts)})", _ATOM)


class _Text(NamedTuple):
    """C++, how tightly it binds, and whether its type is that of a number of the formula."""

    text: str
    bound: int
    is_number: bool = True

    def within(self, bound: int) -> str:
        return self.text if self.bound >= bound else f"({self.text})"


def _number(text: _Text) -> _Text:
    """A literal or a parameter as a number, where C++ would else compute in another type."""
    return text if text.is_number else _Text(f"Real<T>({text.text})", _ATOM)


def _literal(value: float) -> _Text:
    """A number to the last digit; it takes the type of the number that it meets."""
    if math.isfinite(value):
        return _Text(repr(value), _PREFIX if math.copysign(1, value) < 0 else _ATOM, False)
    bits = "0x7fffffff" if math.isnan(value) else "0xff800000" if value < 0 else "0x7f800000"
    return _Text(f"Real<T>(__int_as_float({bits}))", _ATOM)

"""The kinds of arguments that are no arrays, and the check of a value of each.

A public function declares the kind of each of its arguments; `_api/signature.py` checks every value
that a caller passes before anything else happens.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .dtypes import FLOATING, dtype_name

# The reciprocal of the largest hyper-parameter is still a normal float32, see
# cuda/numbers/dual.cuh.
LARGEST = 2.0**120

# Integers of more bits, some 80 digits, are not written out in messages.
_MOST_BITS = 256


class Argument(Protocol):
    """The kind of an argument."""

    def checked(self, name: str, value: Any) -> Any:
        """The value as the package uses it; raises an error that names the argument."""


@dataclass(frozen=True)
class Real:
    """A real number in an interval, which includes its ends unless `open` excludes the minimum.

    `infinite` allows infinity beyond the maximum.
    """

    minimum: float = -LARGEST
    maximum: float = LARGEST
    open: bool = False
    infinite: bool = False

    def checked(self, name: str, value: Any) -> float:
        """The value as a float."""
        if (
            type(value) is float
            and self.minimum <= value <= self.maximum
            and not (self.open and value == self.minimum)
        ):
            return value + 0.0  # -0.0 becomes 0.0: both are the same argument
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            # Of the type first: what stands for an array in a trace may record what it is asked.
            is_array = hasattr(type(value), "shape") and getattr(value, "shape", None) == ()
            advice = f": pass float({name})" if is_array else ""
            raise TypeError(f"{name} must be a real number, got {described(value)}{advice}")
        try:
            number = float(value) + 0.0
        except OverflowError:
            number = math.nan  # an integer that is no float, and not infinite
        above = number > self.minimum if self.open else number >= self.minimum
        if above and (number <= self.maximum or (self.infinite and number == math.inf)):
            return number
        bound = ">" if self.open else ">="
        low = f"{self.minimum:.2g}" if self.minimum == -LARGEST else f"{self.minimum:g}"
        high = f"{self.maximum:.2g}{', or infinite' if self.infinite else ''}"
        raise ValueError(f"{name} must be {bound} {low} and at most {high}, got {digits(value)}")


_FACTOR = Real()


@dataclass(frozen=True)
class Scale:
    """A real number, or an array of shape () and a floating dtype, which stays where it is."""

    def checked(self, name: str, value: Any) -> Any:
        """The number as a float, or the array."""
        if type(value) is float:
            return _FACTOR.checked(name, value)
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None or isinstance(value, numbers.Real):
            return _FACTOR.checked(name, value)
        if tuple(shape) != ():
            raise ValueError(f"{name} must be a number or have shape (), got {tuple(shape)}")
        if dtype_name(dtype) not in FLOATING:
            raise TypeError(f"{name} must have a floating dtype, got {dtype_name(dtype)}")
        return value


@dataclass(frozen=True)
class Integer:
    """An integer of 64 bits."""

    def checked(self, name: str, value: Any) -> int:
        """The value as an int."""
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be an integer, got {described(value)}")
        number = int(value)
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"{name} must be an integer of 64 bits, got {digits(number)}")
        return number


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def checked(self, name: str, value: Any) -> bool:
        """The value as a bool."""
        if value is True or value is False:
            return value
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise TypeError(f"{name} must be True or False, got {described(value)}")


@dataclass(frozen=True)
class Choice:
    """One of a few strings or numbers."""

    values: tuple[Any, ...]

    def checked(self, name: str, value: Any) -> Any:
        """The one that the value equals."""
        if type(value) is str and value in self.values:
            return value
        if isinstance(value, str | numbers.Real) and not isinstance(value, bool):
            for choice in self.values:
                if choice == value:
                    return choice
        raise ValueError(f"{name} must be {one_of(self.values)}, got {described(value)}")


def one_of(values: Iterable[Any]) -> str:
    """What is allowed, in a message."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}"


def described(value: Any) -> str:
    """A value in a message: strings and numbers, anything else by its type."""
    if isinstance(value, numbers.Real):
        return digits(value, repr)
    return repr(value) if isinstance(value, str) else type(value).__name__


def digits(number: Any, shown: Callable[[Any], str] = str) -> str:
    """A real number in a message: its digits, or how many bits it has if these are many."""
    if isinstance(number, numbers.Rational):
        bits = max(int(part).bit_length() for part in (number.numerator, number.denominator))
        if bits > _MOST_BITS:
            kind = "an integer" if isinstance(number, numbers.Integral) else "a fraction"
            return f"{kind} of {bits} bits"
    return shown(number)

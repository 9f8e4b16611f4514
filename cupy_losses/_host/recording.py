"""Formulas recorded: what one does to numbers, as operations on arrays, equal ones once.

A formula in NumPy is called once with `Recorded` numbers. They may carry derivatives: a `Dual` of
them records the operations of its rules. So a value and its derivatives share what they have in
common. `schedule.py` computes what was recorded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .arrays import HostArray

Function = Callable[..., Any]


class Given(NamedTuple):
    """One of the arrays and numbers that are there when a recording is computed."""

    number: int
    is_array: bool


class Operation(NamedTuple):
    """A function of values before it, which are given by their places in the recording."""

    function: Function
    arguments: tuple[int, ...]


Entry = Given | Operation | float | bool

FLOAT, BOOL = np.dtype(np.float64), np.dtype(np.bool_)


def widened(x: HostArray, out: HostArray) -> None:
    """Numbers in float64."""
    np.copyto(out, x, casting="unsafe")


def clipped(x: HostArray, low: float, high: float, out: HostArray) -> None:
    """Numbers between two bounds, faster than by the function of NumPy."""
    x.clip(low, high, out)


def signs(x: HostArray, out: HostArray) -> None:
    """-1, 0 or 1; 0 for NaN."""
    above, below = np.greater(x, 0.0), np.less(x, 0.0)
    np.copyto(out, np.subtract(above.view(np.int8), below.view(np.int8)))


# Functions of arrays whose last argument is where the result goes, in float64.
OWN: tuple[Function, ...] = (widened, clipped, signs)


class Recording:
    """What is done to what is given.

    Attributes:
        entries: What is given, constants and operations, each behind what it is made of.
        dtypes: Of each operation the dtype of the array that it can write its result into; None
            where NumPy allocates it.

    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.dtypes: list[np.dtype[Any] | None] = []
        self._are_arrays: list[bool] = []  # whether an entry has a value for each element
        self._places: dict[Any, int] = {}

    def operand(self, number: int, dtype: np.dtype[Any]) -> Recorded:
        """An array that is given under a number, in float64."""
        array = Recorded(self, self._place(Given(number, is_array=True)))
        return array if dtype == FLOAT else self.apply(widened, array)

    def number(self, number: int) -> Recorded:
        """A number that is given under a number."""
        return Recorded(self, self._place(Given(number, is_array=False)))

    def apply(self, function: Function, *arguments: Any) -> Recorded:
        """A function of recorded numbers and constants.

        A division by a power of 2 becomes a multiplication, which has the same result.
        """
        if function is np.true_divide and (exact := reciprocal(arguments[1])) is not None:
            function, arguments = np.multiply, (arguments[0], exact)
        places = [self.recorded(x).place for x in arguments]
        if function is np.add and places[0] == places[1]:
            function, places[1] = np.multiply, self.recorded(2.0).place
        if function is np.multiply:
            for one, other in (places, places[::-1]):
                if self.entries[one] == 1.0 and self._dtype(other) == FLOAT:
                    return Recorded(self, other)
        if function in (np.add, np.multiply):
            places.sort()
        return Recorded(self, self._place(Operation(function, tuple(places))))

    def scaled(self, x: Recorded, factor: Recorded) -> Recorded:
        """An array times a given number.

        If it is an array times a power of 2, that moves to the number, which saves a multiplication
        of arrays.
        """
        entry = self.entries[x.place]
        if isinstance(entry, Operation) and entry.function is np.multiply:
            for constant, other in (entry.arguments, entry.arguments[::-1]):
                power = self.entries[constant]
                if isinstance(power, float) and reciprocal(power) is not None:
                    return self.apply(np.multiply, Recorded(self, other), factor * power)
        return self.apply(np.multiply, x, factor)

    def recorded(self, x: Any) -> Recorded:
        """A number of this recording: a recorded one, or a constant."""
        if isinstance(x, Recorded):
            return x
        return Recorded(self, self._place(bool(x) if isinstance(x, bool | np.bool_) else float(x)))

    def _place(self, entry: Entry) -> int:
        # 0.0 and -0.0 are equal, and so are 1.0 and True.
        key = entry if isinstance(entry, tuple) else repr(entry)
        place = self._places.setdefault((type(entry), key), len(self.entries))
        if place == len(self.entries):
            self.entries.append(entry)
            if isinstance(entry, Operation):
                self._are_arrays.append(any(self._are_arrays[k] for k in entry.arguments))
                self.dtypes.append(self._written(entry))
            else:
                self._are_arrays.append(isinstance(entry, Given) and entry.is_array)
                self.dtypes.append(None)
        return place

    def _written(self, operation: Operation) -> np.dtype[Any] | None:
        """The dtype of the array that an operation can write its result into."""
        function = operation.function
        if function in OWN:
            return FLOAT
        if not (isinstance(function, np.ufunc) and self._are_arrays[-1]):
            return None
        kinds = [self._dtype(place) for place in operation.arguments]
        found = function.resolve_dtypes((*kinds, None))[-1]
        return FLOAT if found == FLOAT else BOOL if found == BOOL else None

    def _dtype(self, place: int) -> Any:
        """The type of an entry, for NumPy's rules of promotion."""
        entry = self.entries[place]
        if isinstance(entry, bool):
            return BOOL
        return float if isinstance(entry, float) else self.dtypes[place] or FLOAT


def reciprocal(x: Any) -> float | None:
    """The reciprocal of a constant; None unless it is exact."""
    if isinstance(x, Recorded) or abs(math.frexp(x)[0]) != 0.5:
        return None
    found = 1.0 / float(x)
    return found if math.isfinite(found) else None


class Recorded(NDArrayOperatorsMixin):
    """A number of a recording: operators and NumPy's functions are recorded."""

    def __init__(self, recording: Recording, place: int) -> None:
        self.recording = recording
        self.place = place

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or not all(map(_is_plain, inputs)):
            return NotImplemented
        return self.recording.apply(ufunc, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if options or not all(map(_is_plain, args)):
            return NotImplemented
        if function is np.where and not isinstance(args[0], Recorded):
            return args[1] if args[0] else args[2]
        if function is np.where:
            return self.recording.apply(np.where, *args)
        if function is np.clip:
            return self.recording.apply(clipped, *args)
        return NotImplemented

    def __pow__(self, exponent: Any) -> Any:
        return self.recording.apply(operator.pow, self, exponent)

    def __bool__(self) -> bool:
        raise TypeError("a formula is of all elements at once: write np.where for a branch")


def _is_plain(x: Any) -> bool:
    """Whether it is a number without derivatives."""
    return isinstance(x, Recorded | bool | int | float | np.generic) or (
        isinstance(x, np.ndarray) and x.ndim == 0
    )

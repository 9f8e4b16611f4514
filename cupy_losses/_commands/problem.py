"""A loss of drawn operands of one shape: the bytes that it must move, and what is right.

A part of the operands is drawn and repeats along their first axis, so that the loss of all of them
in float64 follows from that of the part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core.dtypes import item_size
from .._core.rows import ELEMENTS, LABELS, RowFormula
from .._core.shapes import Shape
from .._core.types import AnyArray
from . import synthetic
from .evaluation import PART, EvaluatedLoss
from .losses import NamedLoss
from .measurement import relative

FEW = 8  # labels of a row: what it costs grows with their number
# What the arrays of all peers take, in units of the operands and the gradient.
SPACE = 3
# How far a result may be from the one in float64, relative to it: sums have errors of their own.
TOLERANCE = {"float16": 5e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-9}
SMALLEST_HALF = 2.0**-24


class WrongError(Exception):
    """A result that is not that of the loss."""


@dataclass(frozen=True)
class Problem:
    """A mean of a loss of operands of a shape and a dtype, and its gradient by the first one."""

    function: NamedLoss
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.function.name} {' × '.join(map(str, self.shape))}"

    @property
    def row(self) -> int | None:
        """The number of elements of a row, of a loss over rows."""
        loss = self.function.loss
        return self.shape[loss.axis(self.shape, None)] if isinstance(loss, RowFormula) else None

    def described(self) -> dict[str, synthetic.Operand]:
        """The operands without their numbers."""
        return synthetic.described(self.function.loss, self.shape, self.dtype)

    def bytes_moved(self, gradient: bool) -> int:
        """What has to be read of the operands, and with the gradient written."""
        return sum(self._read(*item) for item in self.described().items()) + gradient * self._first

    def _read(self, name: str, operand: synthetic.Operand) -> int:
        loss, size = self.function.loss, math.prod(operand.shape)
        if isinstance(loss, RowFormula):
            rows = math.prod(loss.rows_of(self.shape, None))
            if loss.gathers and loss.role(name) == ELEMENTS:
                size = rows
            elif loss.role(name) == LABELS:
                size = rows * min(size // rows, FEW + 1)  # the labels and the -1 after them
        return size * item_size(operand.dtype)

    @property
    def _first(self) -> int:
        return math.prod(self.shape) * item_size(self.dtype)

    @property
    def memory(self) -> int:
        """The bytes that it takes to measure it."""
        sizes = [math.prod(x.shape) * item_size(x.dtype) for x in self.described().values()]
        return SPACE * (sum(sizes) + self._first)

    def part(self) -> Problem:
        """The one whose operands repeat."""
        loss = self.function.loss
        if isinstance(loss, RowFormula) and loss.axis(self.shape, None) == 0:
            return self
        length = max(1, PART // math.prod(self.shape[1:]))
        return Problem(self.function, (min(length, self.shape[0]), *self.shape[1:]), self.dtype)


class Drawn:
    """The operands of a problem, arrays of the module `xp`, and what is right of them.

    Attributes:
        problem: The problem.
        operands: The arrays, in the order of the arguments.

    """

    def __init__(self, problem: Problem, xp: Any) -> None:
        self.problem = problem
        part = problem.part()
        described = part.described()
        arrays = dict(zip(described, synthetic.drawn([*described.values()], np), strict=True))
        _shorten_labels(problem.function, arrays)
        length, of_part = problem.shape[0], part.shape[0]
        self.operands = [_repeated(array, length, of_part, xp) for array in arrays.values()]
        evaluated = EvaluatedLoss(problem.function, arrays, {"reduction": "mean"})
        times, rest = divmod(length, of_part)
        means = [(times, *evaluated.reference)]
        if rest:
            others = {name: array[:rest] for name, array in arrays.items()}
            of_rest = EvaluatedLoss(problem.function, others, {"reduction": "mean"})
            means.append((1, *of_rest.reference))
        denominator = sum(count * own for count, _, own in means)
        self._value = sum(count * mean * own for count, mean, own in means) / denominator
        self._gradient = evaluated.reference_gradient((), denominator)
        self._last = rest or of_part

    def error(self, value: Any) -> float:
        """The relative error of a loss."""
        found, expected = float(value), self._value
        error = relative(abs(found - expected), abs(expected))
        if not error <= TOLERANCE[self.problem.dtype]:
            raise WrongError(f"the loss is {found:.7g}, not {expected:.7g}")
        return error

    def error_of_both(self, both: tuple[Any, Any]) -> float:
        """That of the gradient, where the loss beside it is right too."""
        value, gradient = both
        self.error(value)
        return self.error_of_gradient(gradient)

    def error_of_gradient(self, gradient: Any) -> float:
        """The mean error of the gradient at both ends, relative to its mean size.

        Of a few elements at a kink, rounding decides.
        """
        if tuple(gradient.shape) != self.problem.shape:
            raise WrongError(f"the gradient has shape {tuple(gradient.shape)}")
        last = self._gradient[: self._last]
        ends = (gradient[: len(self._gradient)], self._gradient), (gradient[-len(last) :], last)
        error = float(np.max([self._distance(*end) for end in ends]))  # of NaN, NaN
        if not error <= TOLERANCE[self.problem.dtype]:
            raise WrongError(f"the gradient has a relative error of {error:.2g}")
        return error

    def _distance(self, found: Any, expected: AnyArray) -> float:
        error = float(abs(_wide(found) - expected).mean())
        if self.problem.dtype == "float16":
            # It has no numbers for the gradient of a mean of very many elements.
            error = float(np.maximum(error - SMALLEST_HALF, 0.0))
        return relative(error, float(abs(expected).mean()))


def _shorten_labels(function: NamedLoss, arrays: dict[str, AnyArray]) -> None:
    loss = function.loss
    for name, array in arrays.items():
        if isinstance(loss, RowFormula) and loss.role(name) == LABELS:
            array[..., FEW:] = -1


def _repeated(part: AnyArray, length: int, of_part: int, xp: Any) -> AnyArray:
    """An array of the module `xp` that repeats a part along its first axis."""
    own = xp.asarray(part)
    if length == of_part:
        return own
    whole = xp.empty((length, *part.shape[1:]), dtype=part.dtype)
    for first in range(0, length, of_part):
        whole[first : first + of_part] = own[: length - first]
    return whole


def _wide(array: Any) -> AnyArray:
    """An array of NumPy or CuPy, or a tensor, as one of NumPy in float64."""
    if hasattr(array, "detach"):
        return array.detach().cpu().double().numpy()
    return (array.get() if hasattr(array, "get") else array).astype(np.float64)

"""What a loss is, what a call of one is, and what can be computed of it."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ._layout import Operand, Shape

REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter: a real number in an interval.

    The reciprocal of the largest is still a normal float32, see cuda/dual.cuh.
    """

    name: str
    minimum: float
    open: bool = False
    maximum: float = 2.0**120

    def checked(self, value: object) -> float:
        """The value as a float; raises unless it is a real number inside the interval."""
        if type(value) is float and self.minimum < value < self.maximum:
            return value
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
            raise TypeError(f"{self.name} must be a real number, got {_name(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        above = number > self.minimum if self.open else number >= self.minimum
        if not (above and number <= self.maximum):
            bound = ">" if self.open else ">="
            raise ValueError(
                f"{self.name} must be {bound} {self.minimum:g} and at most {self.maximum:.2g}, "
                f"got {value}"
            )
        return number


@dataclass(frozen=True, eq=False)
class Loss:
    """One pointwise loss: its formula for the device and for the host.

    `struct` names a class template of cuda/pointwise_losses.cuh whose fields are `parameters`;
    `formula` is the same in NumPy, called with the operands and the parameters. Where
    `weighted_mean` is set, a weighted mean divides by the sum of the weights, else by the number
    of elements. `warns_of_broadcasting` is torch's warning that input and target differ in shape.
    """

    struct: str
    formula: Callable[..., Any]
    operands: tuple[str, ...] = ("input", "target")
    parameters: tuple[Parameter, ...] = ()
    weighted_mean: bool = True
    warns_of_broadcasting: bool = True


class Call(NamedTuple):
    """A loss with all its arguments but the arrays.

    The arrays go beside it as `operands`, the weight first where there is one.
    """

    loss: Loss
    reduction: str
    parameters: tuple[float, ...]
    weighted: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The argument names of the operands."""
        return ("weight", *self.loss.operands) if self.weighted else self.loss.operands

    def check(self) -> None:
        """Raise unless the reduction is valid."""
        if self.reduction not in REDUCTIONS:
            allowed = ", ".join(map(repr, REDUCTIONS))
            raise ValueError(f"reduction must be one of {allowed}, got {self.reduction!r}")


class Pass(NamedTuple):
    """What one pass over the operands of a call computes.

    The operands of a pass are, in this order: grad_output if `chained`, one tangent for each of
    `directions`, the operands of the call. The function that is evaluated is

        (grad_output *) (sum over k in directions of tangent_k * d/dx_k) (weight *) loss

    and the results are its values, reduced as the call says, if `values`, and its derivatives by
    the operands of the call in `wanted`. With reduction "mean" both are divided by the number of
    elements, or by the sum of the weights. An `early` pass leaves out (None) the gradients that
    are better computed when grad_output is known.
    """

    values: bool = True
    wanted: tuple[int, ...] = ()
    chained: bool = False
    directions: tuple[int, ...] = ()
    early: bool = False

    @property
    def extra(self) -> int:
        """The number of operands in front of those of the call."""
        return self.chained + len(self.directions)


FORWARD = Pass()


def divides_by_weights(call: Call) -> bool:
    """Whether the mean of this call divides by the sum of its weights."""
    return call.weighted and call.loss.weighted_mean and call.reduction == "mean"


def computed_now(call: Call, todo: Pass, operands: Sequence[Operand], shape: Shape) -> list[bool]:
    """Which of the wanted gradients a pass computes; `operands` are those of the call.

    An early pass leaves out those of reduction "none", which need grad_output at every element; of
    operands that are broadcast, which need a sum of their own; and of float16, where a gradient of
    1/N may underflow before grad_output, the scale of mixed-precision training, brings it back.
    """
    if not todo.early:
        return [True] * len(todo.wanted)
    if call.reduction == "none":
        return [False] * len(todo.wanted)
    return [
        operands[k].dtype != "float16" and math.prod(operands[k].shape) == math.prod(shape)
        for k in todo.wanted
    ]


def warn_of_broadcasting(call: Call, operands: Sequence[Operand]) -> None:
    """Torch's warning: an (N,) against an (N, 1) is more often a mistake than not."""
    input, target = operands[-2:]
    names = call.loss.operands
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(
        f"{names[1]} of shape {target.shape} is broadcast with {names[0]} of shape {input.shape}; "
        "make sure that this is meant",
        UserWarning,
        stacklevel=level,
    )


def broadcasts_unasked(call: Call, todo: Pass, operands: Sequence[Operand]) -> bool:
    """Whether a call is to be warned of."""
    first = not todo.chained and not todo.directions
    return first and call.loss.warns_of_broadcasting and operands[-2].shape != operands[-1].shape


def _name(value: object) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, str) else type(value).__name__

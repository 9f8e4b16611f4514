"""What a loss is, what a call of one is, and what can be computed of it."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ._layout import Operand, Shape, broadcast_shape, check_dtypes

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


@dataclass(frozen=True)
class Domain:
    """The values that an operand may have: one of `values`, or all from `minimum` to `maximum`."""

    minimum: float = -math.inf
    maximum: float = math.inf
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.values:
            return " or ".join(f"{value:g}" for value in self.values)
        if self.maximum == math.inf:
            return f"at least {self.minimum:g}"
        return f"in [{self.minimum:g}, {self.maximum:g}]"

    def contains(self, array: Any) -> Any:
        """Where the elements of an array, of any library, are inside."""
        if self.values:
            return functools.reduce(operator.or_, (array == value for value in self.values))
        return (array >= self.minimum) & (array <= self.maximum)


@dataclass(frozen=True, eq=False)
class Loss:
    """One pointwise loss: its formula for the device and for the host.

    `struct` names a class template, of the arithmetic type and then `options`, whose fields are
    `parameters`: one of cuda/pointwise_losses.cuh, or one that `source` defines. `formula` is the
    same in NumPy, called with the operands and the parameters.

    Where `weighted_mean` is set, a weighted mean divides by the sum of the weights, else by the
    number of elements. Where `rows` is set, the loss of a row is the mean of its elements, and the
    reductions are over rows. `same_shape` is torch's demand that input and target do not broadcast,
    `warns_of_broadcasting` its warning where they do. `domains` are the ranges of operands, which
    are checked on demand.
    """

    struct: str
    formula: Callable[..., Any] | None
    operands: tuple[str, ...] = ("input", "target")
    parameters: tuple[Parameter, ...] = ()
    options: tuple[bool, ...] = ()
    reductions: tuple[str, ...] = REDUCTIONS
    weighted_mean: bool = True
    rows: bool = False
    same_shape: bool = False
    warns_of_broadcasting: bool = False
    domains: Mapping[str, Domain] = field(default_factory=dict)
    source: str = ""


class Call(NamedTuple):
    """A loss with all its arguments but the arrays.

    The arrays go beside it as `operands`: the mask where there is one, then the weight where there
    is one, then those of the loss.
    """

    loss: Loss
    reduction: str
    parameters: tuple[float, ...]
    weighted: bool
    masked: bool

    @property
    def extra(self) -> int:
        """The number of operands in front of those of the loss."""
        return self.masked + self.weighted

    @property
    def names(self) -> tuple[str, ...]:
        """The argument names of the operands."""
        extra = ("where",) * self.masked + ("weight",) * self.weighted
        return extra + self.loss.operands

    @property
    def sums_rows(self) -> bool:
        """Whether the result has one element a row."""
        return self.loss.rows and self.reduction == "none"

    def check(self) -> None:
        """Raise unless the reduction is valid."""
        if self.reduction not in self.loss.reductions:
            allowed = ", ".join(map(repr, self.loss.reductions))
            raise ValueError(f"reduction must be one of {allowed}, got {self.reduction!r}")

    def divisor(self, shape: Shape, operands: Sequence[Operand]) -> float:
        """What the sum is divided by, unless `divides_by_shares`; `operands` are the call's own."""
        if self.reduction == "mean":
            return float(math.prod(shape))
        if self.loss.rows:
            return float(shape[-1])
        if self.reduction == "batchmean":
            return float(operands[self.extra].shape[0]) if operands[self.extra].shape else 1.0
        return 1.0


class Pass(NamedTuple):
    """What one pass over the operands of a call computes.

    The operands of a pass are, in this order: grad_output if `chained`, one tangent for each of
    `directions`, the operands of the call. The function that is evaluated is

        (grad_output *) (sum over k in directions of tangent_k * d/dx_k) (weight *) loss

    and the results are its values, reduced as the call says, if `values`, and its derivatives by
    the operands of the call in `wanted`. With reduction "mean" both are divided by the number of
    elements, or by the sum of the weights, of what the mask leaves. An `early` pass leaves out
    (None) the gradients that are better computed when grad_output is known.
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


def divides_by_shares(call: Call) -> bool:
    """Whether the mean of this call divides by a sum over its weights or its mask."""
    return call.reduction == "mean" and (call.masked or divides_by_weights(call))


def divides_by_weights(call: Call) -> bool:
    """Whether the mean of this call divides by the sum of its weights."""
    return call.weighted and call.loss.weighted_mean and call.reduction == "mean"


def shape_of(call: Call, operands: Sequence[Operand]) -> Shape:
    """The shape that the operands of a call broadcast to; raises unless they fit."""
    names = call.names
    check_dtypes(operands, names)
    shape = broadcast_shape(operands, names)
    if call.loss.same_shape:
        for operand, name in zip(
            operands[call.extra : call.extra + 2], names[call.extra :], strict=False
        ):
            if operand.shape != shape:
                raise ValueError(
                    f"{name} must have the shape of the loss, {shape}, got {operand.shape}"
                )
    if call.loss.rows and not shape:
        raise ValueError(f"{names[-2]} must have at least one dimension")
    return shape


def value_shape(call: Call, shape: Shape) -> Shape:
    """The shape of the value of a call."""
    if call.reduction != "none":
        return ()
    return shape[:-1] if call.loss.rows else shape


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
    warnings.warn(
        f"{names[1]} of shape {target.shape} is broadcast with {names[0]} of shape {input.shape}; "
        "make sure that this is meant",
        UserWarning,
        stacklevel=caller_level(),
    )


def caller_level() -> int:
    """The stack level, for a warning, of the caller of this package."""
    level, frame = 0, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(__package__):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level


def broadcasts_unasked(call: Call, todo: Pass, operands: Sequence[Operand]) -> bool:
    """Whether a call is to be warned of."""
    first = not todo.chained and not todo.directions
    return first and call.loss.warns_of_broadcasting and operands[-2].shape != operands[-1].shape


def _name(value: object) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, str) else type(value).__name__

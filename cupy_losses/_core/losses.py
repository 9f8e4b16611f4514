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
from typing import Any, NamedTuple, Protocol

import numpy as np

from .shapes import Operand, Shape, broadcast_shape, check_dtypes

REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter: a real number in an interval.

    The reciprocal of the largest is still a normal float32, see cuda/numbers/dual.cuh.
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
    """The values that an operand may have: `values`, and a range where `minimum` is set."""

    minimum: float | None = None
    maximum: float = math.inf
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        parts = [digits(value) for value in self.values]
        if self.minimum is not None:
            low, high = digits(self.minimum), digits(self.maximum)
            parts.insert(0, f"at least {low}" if high == "inf" else f"in [{low}, {high}]")
        return " or ".join(parts)

    def contains(self, array: Any) -> Any:
        """Where the elements of an array, of any library, are inside."""
        parts = [array == value for value in self.values]
        if self.minimum is not None:
            parts.append((array >= self.minimum) & (array <= self.maximum))
        return functools.reduce(operator.or_, parts)


class AnyLoss(Protocol):
    """What a backend asks of a loss, pointwise or of rows."""

    @property
    def struct(self) -> str:
        """The class template of the formula, in cuda/."""

    @property
    def options(self) -> tuple[Any, ...]:
        """The arguments of the template behind the arithmetic type."""

    @property
    def formula(self) -> Callable[..., Any] | None:
        """The same in NumPy."""

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The hyper-parameters, each with a name and a check."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The argument names of the operands."""

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions that it has."""

    @property
    def warns_of_broadcasting(self) -> bool:
        """Whether torch warns where input and target broadcast."""

    @property
    def overwrites(self) -> bool:
        """Whether the gradient of the first operand takes its memory."""

    def domain(self, call: Call, name: str, operands: Sequence[Any]) -> Domain | None:
        """The range of an operand, which is checked on demand, given the arrays of the call."""

    def shape_of(self, call: Call, operands: Sequence[Operand]) -> Shape:
        """The shape of all elements; raises unless the operands fit together."""

    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""

    def promoted(self, call: Call, operands: Sequence[Operand]) -> Sequence[Operand]:
        """The operands whose dtypes decide on that of the value."""

    def divisor(self, call: Call, shape: Shape, operands: Sequence[Operand]) -> float:
        """What the sum is divided by, unless `divides_by_shares`."""

    def divides_by_shares(self, call: Call) -> bool:
        """Whether the mean divides by a sum over weights or over what a mask leaves."""

    def sums_last_axis(self, call: Call) -> bool:
        """Whether the value lacks the last axis of the elements, as a sum over it."""

    def refusal(self, call: Call, operand: int) -> str:
        """Why the loss cannot be differentiated by an operand; "" where it can."""


@dataclass(frozen=True, eq=False)
class Loss:
    """One pointwise loss: its formula for the device and for the host.

    `struct` names a class template, of the arithmetic type and then `options`, whose fields are
    `parameters`: one of cuda/losses/pointwise.cuh, or one that `source` defines. `formula` is the
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

    overwrites = False

    def domain(self, call: Call, name: str, operands: Sequence[Any]) -> Domain | None:
        """The range of an operand, which depends on nothing."""
        return self.domains.get(name)

    def shape_of(self, call: Call, operands: Sequence[Operand]) -> Shape:
        """The shape that the operands of a call broadcast to; raises unless they fit."""
        names = call.names
        check_dtypes(operands, names)
        shape = broadcast_shape(operands, names)
        if self.same_shape:
            for operand, name in zip(
                operands[call.extra : call.extra + 2], names[call.extra :], strict=False
            ):
                if operand.shape != shape:
                    raise ValueError(
                        f"{name} must have the shape of the loss, {shape}, got {operand.shape}"
                    )
        if self.rows and not shape:
            raise ValueError(f"{names[-2]} must have at least one dimension")
        return shape

    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""
        if call.reduction != "none":
            return ()
        return shape[:-1] if self.rows else shape

    def promoted(self, call: Call, operands: Sequence[Operand]) -> Sequence[Operand]:
        """All operands decide on the dtype of the value."""
        return operands

    def divisor(self, call: Call, shape: Shape, operands: Sequence[Operand]) -> float:
        """What the sum is divided by, unless `divides_by_shares`."""
        if call.reduction == "mean":
            return float(math.prod(shape))
        if self.rows:
            return float(shape[-1])
        if call.reduction == "batchmean":
            return float(operands[call.extra].shape[0]) if operands[call.extra].shape else 1.0
        return 1.0

    def divides_by_shares(self, call: Call) -> bool:
        """Whether the mean divides by a sum over its weights or its mask."""
        return call.reduction == "mean" and (call.masked or divides_by_weights(call, self))

    def sums_last_axis(self, call: Call) -> bool:
        """Whether the value is one of rows."""
        return self.rows and call.reduction == "none"

    def refusal(self, call: Call, operand: int) -> str:
        """Why the loss cannot be differentiated by an operand; "" where it can."""
        if call.weighted and operand == call.masked and divides_by_weights(call, self):
            return (
                "weight requires grad, which a mean that divides by the sum of the weights does "
                "not support: pass weight.detach(), or reduction 'sum' or 'none'"
            )
        return ""


class Call(NamedTuple):
    """A loss with all its arguments but the arrays.

    The arrays go beside it as `operands`: the mask where there is one, then the weight where there
    is one, then those of the loss.
    """

    loss: AnyLoss
    reduction: str
    parameters: tuple[float | int, ...]
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

    def check(self) -> None:
        """Raise unless the reduction is valid."""
        if self.reduction not in self.loss.reductions:
            allowed = ", ".join(map(repr, self.loss.reductions))
            raise ValueError(f"reduction must be one of {allowed}, got {self.reduction!r}")


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


def divides_by_weights(call: Call, loss: Loss) -> bool:
    """Whether the mean of this call of a pointwise loss divides by the sum of its weights."""
    return call.weighted and loss.weighted_mean and call.reduction == "mean"


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
    while frame is not None and frame.f_globals.get("__name__", "").startswith("cupy_losses."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level


def broadcasts_unasked(call: Call, todo: Pass, operands: Sequence[Operand]) -> bool:
    """Whether a call is to be warned of."""
    first = not todo.chained and not todo.directions
    return first and call.loss.warns_of_broadcasting and operands[-2].shape != operands[-1].shape


def digits(value: float) -> str:
    """A number in a message: an integer in full."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _name(value: object) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, str) else type(value).__name__

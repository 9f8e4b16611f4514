"""What a loss of rows is: one number from all elements along one axis of its operands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .dtypes import FLOATING, INTEGER
from .losses import REDUCTIONS, Call, Domain, Parameter
from .shapes import Operand, Shape, broadcast_shape, broadcast_strides, overlaps

# What an operand holds: a number for each element, to differentiate by; the index of an element, or
# a number, for each row; a list of indices for each row, as long as the row, that a negative one
# ends.
ELEMENTS, INDEX, NUMBER, LABELS = "elements", "index", "number", "labels"


@dataclass(frozen=True)
class Integer:
    """A hyper-parameter that is an integer."""

    name: str

    def checked(self, value: object) -> int:
        """The value as an int; raises unless it is an integer."""
        if isinstance(value, bool):
            raise TypeError(f"{self.name} must be an integer, got {value}")
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{self.name} must be an integer, got {type(value).__name__}") from None


@dataclass(frozen=True, eq=False)
class RowLoss:
    """One loss of rows: what it is made of on the device and on the host.

    `struct` names a class template of cuda/losses/rows.cuh, of the arithmetic type, `options`,
    where the loss takes weights, whether there are any, and, where it is `precise`, whether the
    elements have half precision and how many of a row a thread holds; its fields are `parameters`,
    the integers first. `formula` is the same in NumPy, see `_host/rows.py`. `roles` say what the
    operands hold.

    The elements of a row lie along axis 1 (0 of an array of one dimension) where `classes` is set,
    else along the last one. A weight, where the loss takes one, has one number a class: that of its
    target counts for a row and, where `weighs_elements` is set, that of each element. Where
    `weighted_mean` is set, a mean divides by the sum over the rows of the weight of their class, 0
    for a row that is ignored, else by the number of rows. With `broadcasts`, operands of elements
    broadcast; with `overwrites`, the gradient of the first one takes its memory; with `gathers`,
    the element of the target is all that is read of a row.
    """

    struct: str
    formula: Callable[..., Any]
    operands: tuple[str, ...]
    roles: Mapping[str, str]
    parameters: tuple[Parameter | Integer, ...] = ()
    options: tuple[bool | int, ...] = ()
    reductions: tuple[str, ...] = REDUCTIONS
    classes: bool = False
    weights: bool = False
    weighs_elements: bool = False
    weighted_mean: bool = False
    broadcasts: bool = False
    overwrites: bool = False
    gathers: bool = False
    precise: bool = False
    domains: Mapping[str, Domain] = field(default_factory=dict)

    warns_of_broadcasting = False
    source = ""

    def domain(self, call: Call, name: str, operands: Sequence[Any]) -> Domain | None:
        """The range of an operand: of indices, those of the elements of a row."""
        role = self.role(name)
        if role not in (INDEX, LABELS):
            return self.domains.get(name)
        shape = tuple(operands[call.extra].shape)
        if not shape:
            return None  # `shape_of` refuses it
        last = shape[self.axis(shape)] - 1
        if role == LABELS:
            return Domain(-1, last)
        named = zip(self.parameters, call.parameters, strict=True)
        return Domain(0, last, tuple(value for p, value in named if p.name == "ignore_index"))

    def axis(self, shape: Shape) -> int:
        """The axis of `shape` that the elements of a row lie along."""
        return min(1, len(shape) - 1) if self.classes else len(shape) - 1

    def rows_of(self, shape: Shape) -> Shape:
        """The shape of the rows: that of one number for each."""
        axis = self.axis(shape)
        return shape[:axis] + shape[axis + 1 :]

    def role(self, name: str) -> str:
        """What an operand holds; "weight" for the weights of the classes."""
        return self.roles.get(name, name)

    # ---- what a backend asks of any loss ---------------------------------------------------------

    def divides_by_shares(self, call: Call) -> bool:
        """Whether the mean of this call divides by a sum over its rows."""
        return self.weighted_mean and call.reduction == "mean"

    def divisor(self, call: Call, shape: Shape, operands: Sequence[Operand]) -> float:
        """What the sum is divided by, unless `divides_by_shares`."""
        rows = 1
        for length in self.rows_of(shape):
            rows *= length
        return float(rows) if call.reduction == "mean" else 1.0

    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""
        return self.rows_of(shape) if call.reduction == "none" else ()

    def sums_last_axis(self, call: Call) -> bool:
        """Not as pointwise losses do: the value has the shape of the rows."""
        return False

    def refusal(self, call: Call, operand: int) -> str:
        """Why the loss cannot be differentiated by an operand; "" where it can."""
        name = call.names[operand]
        if self.role(name) == ELEMENTS:
            return ""
        return f"{name} requires grad, but the loss is not differentiated by it: detach it"

    def promoted(self, call: Call, operands: Sequence[Operand]) -> list[Operand]:
        """The operands whose dtypes decide on that of the loss."""
        pairs = zip(call.names, operands, strict=True)
        return [operand for name, operand in pairs if self.role(name) == ELEMENTS]

    def shape_of(self, call: Call, operands: Sequence[Operand]) -> Shape:
        """The shape of the elements; raises unless the operands fit together."""
        named = dict(zip(call.names, operands, strict=True))
        for name, operand in named.items():
            self._check_dtype(name, operand)
        elements = [name for name in self.operands if self.role(name) == ELEMENTS]
        first = named[elements[0]]
        if self.overwrites and overlaps(first):
            raise ValueError(
                f"{elements[0]} must not overlap itself to be overwritten, got shape "
                f"{first.shape} with strides {first.strides}"
            )
        if not first.shape:
            raise ValueError(f"{elements[0]} must have at least one dimension")
        for name in elements[1:]:
            if len(named[name].shape) != len(first.shape) or not (
                self.broadcasts or named[name].shape == first.shape
            ):
                wanted = "as many dimensions as" if self.broadcasts else "the shape of"
                raise ValueError(
                    f"{name} must have {wanted} {elements[0]}, {first.shape}, "
                    f"got {named[name].shape}"
                )
        shape = broadcast_shape([named[name] for name in elements], elements)
        columns = shape[self.axis(shape)]
        for name, operand in named.items():
            expected = {
                INDEX: self.rows_of(shape),
                NUMBER: self.rows_of(shape),
                LABELS: shape,
                "weight": (columns,),
            }.get(self.role(name))
            if expected is not None and operand.shape != expected:
                raise ValueError(
                    f"{name} must have shape {expected} beside {elements[0]} of shape "
                    f"{first.shape}, got {operand.shape}"
                )
        return shape

    def _check_dtype(self, name: str, operand: Operand) -> None:
        role = self.role(name)
        allowed: tuple[str, ...]
        if role in (INDEX, LABELS):
            allowed, what = INTEGER[1:], "an integer dtype"
        elif role == NUMBER:
            allowed, what = (*FLOATING, *INTEGER), "a real dtype"
        else:
            allowed, what = tuple(FLOATING), f"a floating dtype ({', '.join(FLOATING)})"
        if operand.dtype not in allowed:
            raise TypeError(f"{name} must have {what}, got {operand.dtype}")


class Rows(NamedTuple):
    """How the operands of a pass lie over the shape of the elements."""

    shape: Shape
    axis: int
    strides: list[Shape]  # of each operand of the pass, 0 along what it does not move along


def walk_rows(
    call: Call, loss: RowLoss, leading: Sequence[Operand], operands: Sequence[Operand]
) -> Rows:
    """How the operands lie, after `leading` ones that are numbers of rows or of elements."""
    shape = loss.shape_of(call, operands)
    axis = loss.axis(shape)
    rows = loss.rows_of(shape)

    def of_rows(operand: Operand) -> Shape:
        steps = broadcast_strides(operand, rows)
        return (*steps[:axis], 0, *steps[axis:])

    strides = []
    for operand in leading:
        elementwise = len(operand.shape) == len(shape)
        strides.append(broadcast_strides(operand, shape) if elementwise else of_rows(operand))
    for name, operand in zip(call.names, operands, strict=True):
        role = loss.role(name)
        if role == "weight":
            steps = [0] * len(shape)
            steps[axis] = operand.strides[0] if operand.shape[0] > 1 else 0
            strides.append(tuple(steps))
        elif role in (INDEX, NUMBER):
            strides.append(of_rows(operand))
        else:
            strides.append(broadcast_strides(operand, shape))
    return Rows(shape, axis, strides)

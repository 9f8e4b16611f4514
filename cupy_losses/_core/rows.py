"""What a loss of rows is: one number from all elements along one axis of its operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .dtypes import DTYPES, FLOATING, INTEGER, check_dtypes
from .loss import Call, Domain, Formula, Loss, Refusal, Request, weight_refusal
from .outputs import Output, gradient_output, value_output
from .reduction import Denominator
from .shapes import (
    ArraySpec,
    Shape,
    broadcast_shape,
    broadcast_strides,
    memory_order,
    overlaps,
    result_dtype,
    with_axes_behind,
)


class Role(NamedTuple):
    """What an operand holds.

    Attributes:
        name: Names the role.
        of_elements: Whether the operand has the shape of the elements.
        is_index: Whether the operand holds indices of elements.

    """

    name: str
    of_elements: bool = False
    is_index: bool = False


ELEMENTS = Role("elements", of_elements=True)  # numbers, by which the loss is differentiated
INDEX = Role("index", is_index=True)  # an index for each row
LABELS = Role("labels", of_elements=True, is_index=True)  # indices that a negative one ends
NUMBER = Role("number")  # a number for each row, which chooses a formula
CLASS_WEIGHTS = Role("class weights")  # a number for each class
OTHER = Role("other")  # the mask and the weights of rows, grad_output

# A part of a loss: a call, its second operand, and whether the weight of the class multiplies it.
Part = tuple[Call, Any, bool]

# The operands that say how much each row counts; they broadcast to the rows.
OF_COUNT = ("where", "sample_weight")


@dataclass(frozen=True, eq=False, kw_only=True)
class RowFormula(Loss):
    """A loss of rows without its kernels: what it is made of on the device and on the host.

    The elements of a row lie along the axis that a call names. The default is the last axis. Where
    `classes` is set it is axis 1, or the only axis.

    With `weights`, a weight of a call has one number for each class. The weight of a row is that of
    its target; a loss may read that of each element, too.

    Any call may have a mask and a weight of rows. What the mask leaves out is ignored. The weight
    multiplies the loss of a row and its term of the denominator of a mean.

    The first arguments of the struct's template are the arithmetic type and `options`. With
    `weights`, the next one is whether the call has a weight. Where the loss is `precise`, the next
    one is whether the elements have half precision and, with an index, the last one how many
    elements of a row a thread holds. The fields of the struct are `parameters`, the integers first.
    `_host/row_formulas.py` says what the formula in NumPy is.

    Attributes:
        roles: What each operand holds.
        options: See above.
        classes: See above.
        weights: Whether the loss takes weights of classes.
        weighted_mean: Whether a mean divides by the sum of the weights of the rows' classes, not by
            the number of rows. An ignored row adds 0.
        weighted_parts: The parts of the loss that the element weights multiply, as unweighted
            calls. Takes the call, the row length, the element weights and the target: a probability
            of each element, or 1 at its index. Returns each call, its second operand, and whether
            the weight of the class multiplies it besides.
        broadcasts: Whether operands of elements broadcast.
        takes_integers: Whether all operands of elements but one may be boolean or integer. The loss
            is not differentiated by those.
        gathers: Whether the element of the target is all that is read of a row.
        precise: Whether a row accumulates so exactly that parts of it cost much to merge.
        hides: Whether the kernels hide elements that a row is not to accumulate: the struct HIDES.
        sums: How many sums a row accumulates at most, for which the kernels make room.
        other_form: For losses whose target may be indices or numbers of elements, what the other
            one looks like. Errors of a target say it where that is what was meant.

    """

    formula: Formula
    roles: Mapping[str, Role]
    options: tuple[bool | int, ...] = ()
    classes: bool = False
    weights: bool = False
    weighted_mean: bool = False
    weighted_parts: Callable[[Call, int, Any, Any], Sequence[Part]] | None = None
    broadcasts: bool = False
    takes_integers: bool = False
    gathers: bool = False
    precise: bool = False
    hides: bool = False
    sums: int = 3
    other_form: str = ""

    def domain(self, call: Call, name: str, operands: Sequence[Any]) -> Domain | None:
        """The range of an operand: of indices, those of the elements of a row."""
        role = self.role(name)
        if not role.is_index:
            return self.domains.get(name)
        shape = tuple(operands[call.extra].shape)
        if self.classes and not shape:
            return None  # `shape_of` refuses it
        shape = shape or (1,)
        last = shape[self.axis(shape, call.axis)] - 1
        if role.of_elements:
            return Domain(-1, last)  # torch's range of labels, also behind the one that ends them
        ignored = call.named_parameters.get("ignore_index")
        return Domain(0, last, () if ignored is None else (ignored,))

    def axis(self, shape: Shape, given: int | None) -> int:
        """The axis of `shape` that the elements of a row lie along, given that of a call."""
        given = self._or_default(given)
        if self.classes and given == 1 and len(shape) == 1:
            return 0
        if not -len(shape) <= given < len(shape):
            raise ValueError(
                f"axis must be in {-len(shape)} … {len(shape) - 1} for rows in shape {shape}, "
                f"got {given}"
            )
        return given % len(shape)

    def is_from_front(self, shape: Shape, given: int | None) -> bool:
        """Whether the axis of a row is counted from the front: axes added behind do not move it."""
        return self._or_default(given) == self.axis(shape, given)

    def _or_default(self, given: int | None) -> int:
        if given is None:
            return 1 if self.classes else -1
        return given

    def rows_of(self, shape: Shape, given: int | None) -> Shape:
        """The shape of the rows: that of one number for each."""
        axis = self.axis(shape, given)
        return shape[:axis] + shape[axis + 1 :]

    @cached_property
    def index(self) -> str | None:
        """The operand that has an index for each row, if there is one."""
        return next((name for name in self.operands if self.role(name) == INDEX), None)

    def role(self, name: str) -> Role:
        """What an operand holds."""
        return self.roles.get(name, CLASS_WEIGHTS if name == "weight" else OTHER)

    def denominator(self, call: Call, shape: Shape, operands: Sequence[ArraySpec]) -> Denominator:
        """The number of rows that count, or the sum of their weights, their own and the class's."""
        if call.reduction != "mean":
            return Denominator(1.0, leaves_out=True)
        rows = 1.0 * math.prod(self.rows_of(shape, call.axis))  # which may be symbolic
        weighs = call.row_weighted or (self.weighted_mean and call.weighted)
        count = not weighs and (self.weighted_mean or call.masked)
        return Denominator(rows, weighs or count, leaves_out=True, is_count=count)

    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""
        return self.rows_of(shape, call.axis) if call.reduction == "none" else ()

    def result_dtype(self, call: Call, operands: Sequence[ArraySpec], autocast: bool) -> str:
        """The dtype that the operands of elements promote to."""
        pairs = zip(call.names, operands, strict=True)
        deciding = [operand for name, operand in pairs if self.role(name) == ELEMENTS]
        return result_dtype(deciding, autocast)

    def outputs(
        self, call: Call, request: Request, operands: Sequence[ArraySpec], autocast: bool = False
    ) -> list[Output | None]:
        """The value lies in the memory order of the rows."""
        own = operands[request.extra :]
        space = row_space(call, self, request, operands)
        dtype = self.result_dtype(call, own, autocast)
        rows = [axis - (axis > space.axis) for axis in space.axes if axis != space.axis]
        value = value_output(dtype, self.value_shape(call, space.shape), rows)

        def gradient(k: int) -> Output:
            index = request.extra + k
            if self.overwrites and k == call.extra:
                input = operands[index]
                return Output(input.dtype, input.shape, input.strides, index, in_place=True)
            return gradient_output(operands, index, space.shape, space.axes)

        return request.outputs(value, request.computed(call, own, space.shape), gradient)

    def refusal(self, call: Call, operand: int) -> Refusal | None:
        """All operands but those of elements are refused."""
        name = call.names[operand]
        if self.role(name) == ELEMENTS:
            return None
        if name in ("weight", "sample_weight"):
            return weight_refusal(name)
        return Refusal(f"{name} requires grad, but the loss is not differentiated by it: detach it")

    def is_constant(self, call: Call, operand: int) -> bool:
        """A number of each row chooses a formula."""
        return self.role(call.names[operand]) == NUMBER

    def shape_of(self, call: Call, operands: Sequence[ArraySpec]) -> Shape:
        """The shape of the elements; raises unless the operands fit together."""
        named = dict(zip(call.names, operands, strict=True))
        self._check_dtypes(call, named)
        shape = self._shape_of_elements(named)
        for name in self.operands:
            shape = self._of_targets(call, shape, self.role(name), named[name].shape)
        self._check_shapes(call, shape, named)
        return shape

    @property
    def _elements(self) -> list[str]:
        """The names of the operands of elements."""
        return [name for name in self.operands if self.role(name) == ELEMENTS]

    def _check_dtypes(self, call: Call, named: Mapping[str, ArraySpec]) -> None:
        first = named[self._elements[0]]
        for name, operand in named.items():
            self._check_dtype(call, name, operand, first)
        if self.takes_integers:
            check_dtypes([named[name].dtype for name in self._elements], self._elements)

    def _shape_of_elements(self, named: Mapping[str, ArraySpec]) -> Shape:
        """The shape of the operands of elements; raises unless these fit together."""
        names = self._elements
        first = named[names[0]]
        if self.overwrites and overlaps(first):
            raise ValueError(
                f"{names[0]} must not overlap itself to be overwritten, got shape "
                f"{first.shape} with strides {first.strides}"
            )
        for name in names[1:]:
            shape = named[name].shape
            if len(shape) != len(first.shape) or not (self.broadcasts or shape == first.shape):
                wanted = "as many dimensions as" if self.broadcasts else "the shape of"
                meant = self.other_form if len(shape) == len(first.shape) - 1 else ""
                raise ValueError(
                    f"{name} must have {wanted} {names[0]}, {first.shape}, got {shape}{meant}"
                )
        shape = broadcast_shape([named[name] for name in names], names)
        if not shape and (self.classes or NUMBER in self.roles.values()):
            raise ValueError(f"{names[0]} must have at least one dimension")
        return shape or (1,)  # a row of one element

    def _check_shapes(self, call: Call, shape: Shape, named: Mapping[str, ArraySpec]) -> None:
        """Raise unless the operands fit elements of a shape."""
        axis = self.axis(shape, call.axis)
        rows, columns = self.rows_of(shape, call.axis), shape[axis]
        # The expected shape, and whether another shape may stand for it.
        fitting: dict[Role, tuple[Shape, Callable[[Shape, Shape], bool]]] = {
            INDEX: (rows, _is_index_of),
            LABELS: (shape, _is_same),
            NUMBER: (rows, _broadcasts if self.broadcasts else operator.eq),
            CLASS_WEIGHTS: ((columns,), operator.eq),
        }
        for name, operand in named.items():
            role = self.role(name)
            if name in OF_COUNT and not _broadcasts_to(operand.shape, rows):
                raise ValueError(
                    f"{name} of shape {operand.shape} does not broadcast to the shape of the rows, "
                    f"{rows}{with_axes_behind(name, operand.shape, rows)}"
                )
            if role not in fitting:
                continue
            expected, fits = fitting[role]
            if not fits(operand.shape, expected):
                first = self._elements[0]
                last = {INDEX: shape[:-1], CLASS_WEIGHTS: shape[-1:]}.get(role)
                meant = ""
                if self.classes and axis < len(shape) - 1 and operand.shape == last:
                    meant = f"; classes lie along axis {axis}: pass axis=-1 if they are the last"
                elif role == INDEX and operand.shape == named[first].shape:
                    meant = self._of_one_hot(call, name)
                elif role == CLASS_WEIGHTS and not operand.shape:
                    meant = "; scale multiplies the whole loss by a number"
                elif role == INDEX and operand.shape == (*expected[:axis], 1, *expected[axis:]):
                    meant = f"; pass {name}.squeeze({axis})"
                raise ValueError(
                    f"{name} must have shape {expected} beside {first} of shape "
                    f"{named[first].shape}, got {operand.shape}{meant}"
                )

    def _of_targets(self, call: Call, shape: Shape, role: Role, targets: Shape) -> Shape:
        """The shape of the elements, once an operand of the rows has changed it as in torch.

        The loss of a single row has the shape of its index. Elements that broadcast do so with
        numbers of the rows too.
        """
        rows, axis = self.rows_of(shape, call.axis), self.axis(shape, call.axis)
        if role == NUMBER and self.broadcasts and _broadcasts(rows, targets):
            return (*targets[:axis], shape[axis], *targets[axis:])
        is_last = not self.classes and self._or_default(call.axis) == -1
        if role == INDEX and is_last and _is_one(rows) and _is_one(targets):
            return (*targets, shape[-1])
        return shape

    def _check_dtype(self, call: Call, name: str, operand: ArraySpec, first: ArraySpec) -> None:
        role = self.role(name)
        allowed: tuple[str, ...]
        if role.is_index:
            allowed, what = INTEGER, "an integer dtype"
        elif role == NUMBER or name == "sample_weight":
            allowed, what = tuple(DTYPES), "a real dtype"
        elif name == "where":
            allowed, what = ("bool",), "dtype bool"
        elif role == ELEMENTS and self.takes_integers:
            return  # `_check_dtypes` checks them together
        else:
            allowed, what = FLOATING, f"a floating dtype ({', '.join(FLOATING)})"
        if operand.dtype not in allowed:
            meant = ""
            is_text = operand.dtype.startswith(("str", "bytes", "object"))
            if name == "where":
                meant = ": pass where != 0"
            elif role == LABELS and is_text:
                meant = ": pass indices of classes, and -1 behind the last one of a row"
            elif role == INDEX and is_text:
                meant = f": pass np.unique({name}, return_inverse=True)[1], which numbers them"
            elif role == INDEX and operand.shape == first.shape != ():
                # torch has no argmax of bool.
                is_bool = operand.dtype == "bool"
                meant = self.other_form if is_bool else self._of_one_hot(call, name)
            elif role == INDEX and operand.dtype in FLOATING:
                meant = of_integers(name)
            raise TypeError(f"{name} must have {what}, got {operand.dtype}{meant}")

    def _of_one_hot(self, call: Call, name: str) -> str:
        """What to pass for an index that has a number for each element."""
        along = self._or_default(call.axis)
        return f"{self.other_form}; pass {name}.argmax({along}) if it is one-hot"


def of_integers(name: str) -> str:
    """What to pass for an index of a floating dtype."""
    return f": pass {name}.astype(int), or {name}.long() of torch"


def _is_one(shape: Shape) -> bool:
    """Whether a shape is of one number: torch takes () and (1,) for each other."""
    return shape in ((), (1,))


def _is_same(shape: Shape, other: Shape) -> bool:
    """Whether two shapes are the same, or both are of one number."""
    return shape == other or (_is_one(shape) and _is_one(other))


def _is_index_of(shape: Shape, rows: Shape) -> bool:
    """Whether an index of a shape is one of rows; that of a single row may have an axis."""
    return shape == rows or (rows, shape) == ((), (1,))


def _broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether an array broadcasts along its axes of length 1."""
    pairs = zip(shape, to, strict=False)
    return len(shape) == len(to) and all(n in (1, length) for n, length in pairs)


def _broadcasts_to(shape: Shape, rows: Shape) -> bool:
    """Whether an array broadcasts to the shape of the rows, from the last axis on."""
    return len(shape) <= len(rows) and _broadcasts(shape, rows[len(rows) - len(shape) :])


class RowSpace(NamedTuple):
    """The shape of the elements, the axis of a row, and the strides of each operand over them.

    `axes` are the axes of the shape in memory order, slowest first. The masks and the weights of
    rows decide on it last.
    """

    shape: Shape
    axis: int
    strides: list[Shape]  # 0 along what an operand does not move along
    axes: list[int]


def row_space(
    call: Call, loss: RowFormula, request: Request, operands: Sequence[ArraySpec]
) -> RowSpace:
    """How the operands of a request, but for a denominator, lie over the elements.

    A tangent lies as the operand that it varies, and a grad_output as a number for each row.
    """
    own = operands[request.extra :]
    shape = loss.shape_of(call, own)
    axis = loss.axis(shape, call.axis)
    rows = loss.rows_of(shape, call.axis)

    def of_rows(operand: ArraySpec) -> Shape:
        steps = broadcast_strides(operand, rows)
        return (*steps[:axis], 0, *steps[axis:])

    strides = []
    names = request.names(call)[request.denominator :]
    for name, operand in zip(names, operands[request.denominator :], strict=True):
        role = loss.role(name)
        if role == CLASS_WEIGHTS:
            steps = [0] * len(shape)
            steps[axis] = operand.strides[0] if operand.shape[0] > 1 else 0
            strides.append(tuple(steps))
        elif role.of_elements:
            strides.append(broadcast_strides(operand, shape))
        else:
            strides.append(of_rows(operand))
    # As the operands of the loss lie, then as grad_output, tangents, masks and weights do.
    leading = request.extra - request.denominator
    order = sorted(range(len(names)), key=lambda k: k < leading or names[k] in OF_COUNT)
    axes = memory_order(shape, [strides[k] for k in order])
    return RowSpace(shape, axis, strides, axes)

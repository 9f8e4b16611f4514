"""Losses of rows on the host: the same passes on NumPy arrays, in float64, some rows at a time.

The formula of a loss takes `Rows` and returns the value of each row and, by the name of an operand,
a function that gives the gradient by its elements. It is written on numbers that are arrays or
`Dual`s, so that what it does to first derivatives gives the second ones. All arrays in it have the
elements of a row along the last axis, or length 1 there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.losses import Call, Pass, computed_now
from .._core.rows import INDEX, LABELS, NUMBER, RowLoss
from .._core.shapes import Shape, broadcast_strides, memory_order, result_dtype
from .chunks import CHUNK, Array, Gradient, Index, chunks, describe, dtype, total
from .dual import Dual, Number, slope_of

Evaluated = tuple[Number, Mapping[str, Callable[[], Number]]]


def sum_of(x: Number) -> Number:
    """The sum of each row."""
    if not isinstance(x, Dual):
        return np.sum(x, axis=-1, keepdims=True)
    slope = x.slope
    if not isinstance(slope, Dual):
        slope = np.broadcast_to(slope, np.shape(x.value))
    return Dual(sum_of(x.value), sum_of(slope))


class Rows(NamedTuple):
    """Some rows of the operands of a call; indices and labels in it are in range or -1."""

    operands: Mapping[str, Number]
    parameters: Mapping[str, float]
    columns: int
    weight: Array | float  # of each class

    def __getattr__(self, name: str) -> Any:
        """The operand or parameter of a name."""
        return self.operands[name] if name in self.operands else self.parameters[name]

    def at(self, index: Array) -> Array:
        """Which element is that of an index."""
        found: Array = np.arange(self.columns) == index
        return found

    def weight_of(self, index: Array) -> Array | float:
        """The weight of the class of an index."""
        if isinstance(self.weight, float):
            return self.weight
        own: Array = self.weight[index]
        return own


class _Chunk(NamedTuple):
    """Some rows of a pass, and which of them are ignored and which have no valid target."""

    rows: Rows
    chain: Array | None
    ignored: Array
    invalid: Array

    def settle(self, x: Number, along: bool) -> Array:
        """The numbers of a formula, or their slopes along the directions of the pass."""
        if along:
            x = slope_of(x)
        return self.mask(x if self.chain is None else self.chain * x)

    def mask(self, x: Array) -> Array:
        """0 for rows that are ignored, NaN for those whose target is out of range."""
        return np.where(self.ignored, 0.0, np.where(self.invalid, np.nan, x))


class _Walk:
    """The operands of a pass as views whose last axis runs along the rows."""

    def __init__(
        self, call: Call, loss: RowLoss, todo: Pass, operands: Sequence[Array], shape: Shape
    ) -> None:
        self.loss = loss
        self.axis = loss.axis(shape)
        self.rows = loss.rows_of(shape)
        self.columns = shape[self.axis]
        self.shape = (*self.rows, self.columns)
        leading, own = operands[: todo.extra], operands[todo.extra :]
        self._chain = self._of_rows(leading[0]) if todo.chained else None
        self._tangents = {
            call.names[k]: self._of_elements(tangent, shape)
            for k, tangent in zip(todo.directions, leading[int(todo.chained) :], strict=True)
        }
        named = dict(zip(call.names, own, strict=True))
        self._weight = named["weight"].astype(np.float64) if call.weighted else 1.0
        self._views = {
            name: self._of_rows(named[name])
            if loss.role(name) in (INDEX, NUMBER)
            else self._of_elements(named[name], shape)
            for name in loss.operands
        }
        names = (parameter.name for parameter in loss.parameters)
        self._parameters = dict(zip(names, call.parameters, strict=True))

    def _of_rows(self, operand: Array) -> Array:
        return np.broadcast_to(operand, self.rows)[..., None]

    def _of_elements(self, operand: Array, shape: Shape) -> Array:
        return np.moveaxis(np.broadcast_to(operand, shape), self.axis, -1)

    def at(self, index: Index) -> _Chunk:
        """The rows at an index."""
        operands: dict[str, Number] = {}
        ignored: Array = np.zeros((), bool)
        invalid = ignored
        for name, view in self._views.items():
            role, part = self.loss.role(name), view[index]
            if role == INDEX:
                target = part.astype(np.int64)
                if "ignore_index" in self._parameters:
                    ignored = target == self._parameters["ignore_index"]
                inside = ~ignored & (target >= 0) & (target < self.columns)
                invalid = ~ignored & ~inside
                operands[name] = np.where(inside, target, -1)
            elif role == LABELS:
                labels = part.astype(np.int64)
                listed = np.logical_and.accumulate(labels >= 0, axis=-1)
                beyond = listed & (labels >= self.columns)
                invalid = np.asarray(beyond.any(axis=-1, keepdims=True))
                operands[name] = np.where(listed & ~beyond, labels, -1)
            else:
                operands[name] = part.astype(np.float64)
                if name in self._tangents:
                    tangent = self._tangents[name][index].astype(np.float64)
                    operands[name] = Dual(operands[name], tangent)
        chain = None if self._chain is None else self._chain[index].astype(np.float64)
        shape = (*part.shape[:-1], 1)
        return _Chunk(
            Rows(operands, self._parameters, self.columns, self._weight),
            chain,
            np.broadcast_to(ignored, shape),
            np.broadcast_to(invalid, shape),
        )


def run(
    call: Call, loss: RowLoss, todo: Pass, operands: Sequence[Array], autocast: bool
) -> list[Array | None]:
    """Compute one pass: the value, if asked for, then the wanted gradients."""
    own = [describe(operand) for operand in operands[todo.extra :]]
    shape = loss.shape_of(call, own)
    walk = _Walk(call, loss, todo, operands, shape)
    blocks = list(chunks(walk.rows, max(CHUNK // max(walk.columns, 1), 1)))
    along = bool(todo.directions)
    result = dtype(result_dtype(loss.promoted(call, own), autocast))
    each = np.empty(walk.rows, result) if call.reduction == "none" else None
    summed = np.longdouble(0)
    gradients: dict[int, Gradient] = {}
    for k, computed in zip(todo.wanted, computed_now(call, todo, own, shape), strict=True):
        if computed:
            operand = np.moveaxis(operands[todo.extra + k], walk.axis, -1)
            overwrites = loss.overwrites and k == call.extra
            if overwrites and not operand.flags.writeable:
                raise ValueError(f"{call.names[k]} must be writeable to be overwritten")
            axes = memory_order(walk.shape, [broadcast_strides(describe(operand), walk.shape)])
            gradients[k] = Gradient(operand, walk.shape, axes, overwrites)

    with np.errstate(all="ignore"):
        divisor = np.longdouble(loss.divisor(call, shape, own))
        if loss.divides_by_shares(call):
            divisor, counted = _shares(walk, blocks)
            if along and not counted:
                divisor = np.longdouble(np.inf)  # nothing has a slope
        for index in blocks:
            chunk = walk.at(index)
            value, derivatives = loss.formula(chunk.rows)
            if todo.values:
                values = chunk.settle(value, along)
                if each is None:
                    summed += total(values)
                else:
                    each[index] = values[..., 0]
            for k, gradient in gradients.items():
                slope = chunk.settle(derivatives[call.names[k]](), along)
                gradient.add(index, chunk.mask(slope / np.float64(divisor)))
        outputs: list[Array | None] = []
        if todo.values:
            outputs.append(np.asarray(summed / divisor).astype(result) if each is None else each)
        for k in todo.wanted:
            if k not in gradients:
                outputs.append(None)
            elif loss.overwrites and k == call.extra:
                outputs.append(operands[todo.extra + k])
            else:
                outputs.append(np.moveaxis(gradients[k].finish(), -1, walk.axis))
    return outputs


def _shares(walk: _Walk, blocks: Sequence[Index]) -> tuple[np.longdouble, bool]:
    """What a weighted mean divides by, and whether any row counts."""
    divisor, counted = np.longdouble(0), False
    target = next(name for name in walk.loss.operands if walk.loss.role(name) == INDEX)
    for index in blocks:
        chunk = walk.at(index)
        # A row whose target is out of range has no weight: NaN would reach the gradients of others.
        weight = np.where(chunk.invalid, 1.0, chunk.rows.weight_of(chunk.rows.operands[target]))
        divisor += total(np.where(chunk.ignored, 0.0, weight))
        counted = counted or not chunk.ignored.all()
    return divisor, counted

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

from .._core.loss import Call, Request
from .._core.memory import Memory, check_overwritten
from .._core.rows import INDEX, LABELS, NUMBER, RowFormula
from .._core.shapes import Shape
from .chunks import CHUNK, Array, ChunkIndex, Gradient, chunks, spec, total
from .dual import Dual, Number, slope_of
from .reduction import Divisors, Value

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
    """Some rows of a request, their weights, which are ignored and which have no valid target."""

    rows: Rows
    grad_output: Array | None
    sample_weight: Array | float
    ignored: Array
    invalid: Array

    def settle(self, x: Number, along: bool) -> Array:
        """The numbers of a formula, or their slopes along the tangents of the request, weighted."""
        if along:
            x = slope_of(x)
        x = self.sample_weight * x
        return self.mask(x if self.grad_output is None else self.grad_output * x)

    def counts(self, weight: Array | float) -> Array:
        """What the rows add to a denominator that sums weights of theirs."""
        return np.where(self.ignored, 0.0, self.sample_weight * weight)

    def mask(self, x: Array) -> Array:
        """0 for rows that are ignored, NaN for those whose target is out of range."""
        return np.where(self.ignored, 0.0, np.where(self.invalid, np.nan, x))


def _signed(index: Array) -> Array:
    """Indices as int64. A uint64 beyond that becomes the largest one, which no row has."""
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index.astype(np.int64)


def _broadcast(array: Array, shape: Shape) -> Array:
    """An array in a shape, without its leading axes of length 1 that this does not have."""
    return np.broadcast_to(array[(0,) * (array.ndim - len(shape))], shape)


def _memory(array: Array) -> Memory:
    return Memory(array.ctypes.data, array.shape, array.strides, array.itemsize)


class _Operands:
    """The operands of a request as views whose last axis runs along the rows."""

    def __init__(
        self,
        call: Call,
        loss: RowFormula,
        request: Request,
        operands: Sequence[Array],
        shape: Shape,
    ) -> None:
        self.loss = loss
        self.axis = loss.axis(shape, call.axis)
        self.rows = loss.rows_of(shape, call.axis)
        self.columns = shape[self.axis]
        self.shape = (*self.rows, self.columns)
        leading, own = operands[request.denominator : request.extra], operands[request.extra :]
        self._grad_output = self._of_rows(leading[0]) if request.vjp else None
        self._tangents = {
            call.names[k]: self._of_elements(tangent, shape)
            for k, tangent in zip(request.tangents, leading[int(request.vjp) :], strict=True)
        }
        named = dict(zip(call.names, own, strict=True))
        self._where = self._of_rows(named["where"]) if call.masked else None
        self._sample_weight = self._of_rows(named["sample_weight"]) if call.sampled else None
        self._weight = named["weight"].astype(np.float64) if call.weighted else 1.0
        self._views = {
            name: self._of_rows(named[name])
            if loss.role(name) in (INDEX, NUMBER)
            else self._of_elements(named[name], shape)
            for name in loss.operands
        }
        self._parameters = call.named_parameters

    def _of_rows(self, operand: Array) -> Array:
        return _broadcast(operand, self.rows)[..., None]

    def _of_elements(self, operand: Array, shape: Shape) -> Array:
        return np.moveaxis(_broadcast(operand, shape), self.axis, -1)

    def among_elements(self, index: ChunkIndex, along_rows: Array) -> tuple[ChunkIndex, Array]:
        """The index among all elements of the rows at an index, and their array moved alike."""
        everything = slice(None)
        whole = (*index, *(everything,) * (len(self.rows) - len(index)))
        at = (*whole[: self.axis], everything, *whole[self.axis :])
        # An integer in the index takes its axis away, so that the rows' own axis moves less.
        axis = self.axis - sum(isinstance(i, int) for i in whole[: self.axis])
        return at, np.moveaxis(along_rows, -1, axis)

    def weight_in_mean(self, chunk: _Chunk) -> Array | float:
        """The weight of the class of each row, where a mean divides by it."""
        if not self.loss.weighted_mean:
            return 1.0
        target = next(name for name in self.loss.operands if self.loss.role(name) == INDEX)
        # A row whose target is out of range has no class: NaN would reach the gradients of others.
        return np.where(chunk.invalid, 1.0, chunk.rows.weight_of(chunk.rows.operands[target]))

    def at(self, index: ChunkIndex) -> _Chunk:
        """The rows at an index."""
        operands: dict[str, Number] = {}
        left_out: Array = np.zeros((), bool) if self._where is None else ~self._where[index]
        ignored, invalid = left_out, np.zeros((), bool)
        for name, view in self._views.items():
            role, part = self.loss.role(name), view[index]
            if role == INDEX:
                target = _signed(part)
                if "ignore_index" in self._parameters:
                    ignored = left_out | np.asarray(part == self._parameters["ignore_index"])
                inside = ~ignored & (target >= 0) & (target < self.columns)
                invalid = ~ignored & ~inside
                operands[name] = np.where(inside, target, -1)
            elif role == LABELS:
                labels = _signed(part)
                listed = np.logical_and.accumulate(labels >= 0, axis=-1)
                beyond = listed & (labels >= self.columns)
                invalid = np.asarray(beyond.any(axis=-1, keepdims=True))
                operands[name] = np.where(listed & ~beyond, labels, -1)
            else:
                operands[name] = part.astype(np.float64)
                if name in self._tangents:
                    tangent = self._tangents[name][index].astype(np.float64)
                    operands[name] = Dual(operands[name], tangent)
        grad_output = None
        if self._grad_output is not None:
            grad_output = self._grad_output[index].astype(np.float64)
        sample_weight: Array | float = 1.0
        if self._sample_weight is not None:
            sample_weight = self._sample_weight[index].astype(np.float64)
        shape = (*part.shape[:-1], 1)
        return _Chunk(
            Rows(operands, self._parameters, self.columns, self._weight),
            grad_output,
            sample_weight,
            np.broadcast_to(ignored, shape),
            np.broadcast_to(invalid, shape),
        )


def evaluate(
    loss: RowFormula, call: Call, request: Request, operands: Sequence[Array], autocast: bool
) -> list[Array | None]:
    """Evaluate a request: the value, if asked for, then the wanted gradients."""
    specs = [spec(operand) for operand in operands]
    own = specs[request.extra :]
    shape = loss.shape_of(call, own)
    if loss.overwrites:
        check_overwritten(call, request, [_memory(operand) for operand in operands])
    outputs = loss.outputs(call, request, specs, autocast)
    views = _Operands(call, loss, request, operands, shape)
    blocks = list(chunks(views.rows, max(CHUNK // max(views.columns, 1), 1)))

    value = None
    if request.value:
        output = outputs.pop(0)
        assert output is not None
        summed = None if call.reduction == "none" else (1,) * len(views.rows)
        value = Value(call, request, shape, output, summed)
    gradients: dict[int, Gradient] = {}
    for k, output in zip(request.wanted, outputs, strict=True):
        if output is not None:
            operand = operands[request.extra + k]
            if output.in_place and not operand.flags.writeable:
                raise ValueError(f"{call.names[k]} must be writeable to be overwritten")
            gradients[k] = Gradient(output, operand, shape)

    along = bool(request.tangents)
    with np.errstate(all="ignore"):
        denominator = loss.denominator(call, shape, own)
        if request.denominator:
            number = np.longdouble(operands[0])
        elif denominator.of_data:
            number = _sum_of_data(views, blocks)
        else:
            number = np.longdouble(denominator.size)
        divisors = Divisors(call, request, denominator, number)
        for index in blocks:
            chunk = views.at(index)
            each, derivatives = loss.formula(chunk.rows)
            if value is not None:
                value.add(index, chunk.settle(each, along)[..., 0])
            for k, gradient in gradients.items():
                slope = chunk.settle(derivatives[call.names[k]](), along)
                quotient = chunk.mask(divisors.derivatives(slope))
                gradient.add(*views.among_elements(index, quotient))
        results: list[Array | None] = [] if value is None else [value.finish(divisors)]
        for k in request.wanted:
            results.append(gradients[k].finish() if k in gradients else None)
    return results


def _sum_of_data(views: _Operands, blocks: Sequence[ChunkIndex]) -> np.longdouble:
    """The sum of the weights of the rows that are not ignored."""
    denominator = np.longdouble(0)
    for index in blocks:
        chunk = views.at(index)
        denominator += total(chunk.counts(views.weight_in_mean(chunk)))
    return denominator

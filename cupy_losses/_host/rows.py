"""Losses of rows on the host: the same passes on NumPy arrays, in float64, some rows at a time.

`row_formulas.py` says what a formula gets of the rows, and what it returns.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.cache import keep
from .._core.chunks import CHUNK, ChunkIndex, Place, chunks, places
from .._core.loss import Call, Request
from .._core.memory import Memory, check_overwritten
from .._core.reduction import Denominator
from .._core.rows import ELEMENTS, INDEX, LABELS, NUMBER, Role, RowFormula
from .._core.shapes import Shape
from .arrays import HostArray, Layout, broadcast, is_narrow, layout, spec_of
from .dual import Dual, Number, slope_of
from .reduction import Divisors, divisors_of
from .results import Gradient, NewGradient, NewValue, Value, new_results
from .row_formulas import Rows
from .sums import total

_SHORT = 64  # elements of a row
_MOST = 64  # scales, or parameters, of a plan


class _Chunk(NamedTuple):
    """Some rows of a request.

    Attributes:
        shape: Their shape, without the elements of a row.
        rows: What the formula gets of them: indices and labels alone where no elements are read.
        sample_weight: The weight of each row, if there are any.
        grad_output: That of each row, in a VJP.
        ignored: Which rows do not count, if any.
        invalid: Which of the others have a target that is out of range, if any.

    """

    shape: Shape
    rows: Rows
    sample_weight: HostArray | None = None
    grad_output: HostArray | None = None
    ignored: HostArray | None = None
    invalid: HostArray | None = None

    def settle(self, x: Number, along: bool) -> Number:
        """The numbers of a formula, or their slopes along the tangents of the request, weighted."""
        if along:
            x = slope_of(x)
        if self.sample_weight is not None:
            x = self.sample_weight * x
        return x if self.grad_output is None else self.grad_output * x

    def mask(self, x: HostArray | float) -> HostArray | float:
        """0 for rows that are ignored, NaN for those whose target is out of range."""
        if self.invalid is not None:
            x = np.where(self.invalid, np.nan, x)
        return x if self.ignored is None else np.where(self.ignored, 0.0, x)

    def total_weight(self, target: str | None) -> np.longdouble | float:
        """The sum of the weights of the rows that count, with those of the class of a target."""
        weight: HostArray | float = 1.0
        if target is not None:
            weight = self.rows.weight_of(self.rows.operands[target])
            # A row whose target is out of range has no class: NaN would reach others' gradients.
            if self.invalid is not None:
                weight = np.where(self.invalid, 1.0, weight)
        if self.sample_weight is not None:
            weight = self.sample_weight * weight
        if self.ignored is not None:
            weight = np.where(self.ignored, 0.0, weight)
        return total(weight) if isinstance(weight, np.ndarray) else weight * math.prod(self.shape)


def _signed(index: HostArray) -> HostArray:
    """Indices as int64. A uint64 beyond that becomes the largest one, which no row has."""
    if index.dtype.kind == "u" and index.dtype.itemsize == 8:  # in any order of bytes
        index = np.minimum(index, np.uint64(np.iinfo(np.int64).max))
    return index.astype(np.int64, copy=False)


def in_shape(array: HostArray, shape: Shape) -> HostArray:
    """An array in a shape, without its leading axes of length 1 that this does not have."""
    more = array.ndim - len(shape)
    return broadcast(array[(0,) * more] if more > 0 else array, shape)


@functools.lru_cache(maxsize=1024)
def _lie_beside(shape: Shape, strides: Shape) -> bool:
    """Whether a copy of rows is to have the first elements of all rows, then the second ones.

    So it is where rows are short, or where neighbouring rows are nearer in memory than the elements
    of a row.
    """
    *beside, along = map(abs, strides)
    return shape[-1] < _SHORT or any(0 < step < along for step in beside)


class _Elements:
    """An operand whose rows are taken some at a time, in float64 and in two axes.

    NumPy adds or compares along the innermost axis. Where rows lie beside each other, that is the
    axis of many rows, and not the one of the few elements of each.
    """

    def __init__(self, view: HostArray) -> None:
        self._view = view
        self._turned = _lie_beside(view.shape, view.strides)
        self.is_copied = view.dtype != np.float64

    def at(self, index: ChunkIndex) -> HostArray:
        """The rows at an index."""
        part = self._view[index] if index else self._view
        *rows, columns = part.shape
        if not self._turned:
            return _dense(part).reshape(math.prod(rows), columns)
        turned = part.T if part.ndim == 2 else part.transpose(-1, *range(part.ndim - 1))
        return _dense(turned).reshape(columns, math.prod(rows)).T

    def gathered(self, index: ChunkIndex, target: HostArray) -> HostArray:
        """The element of each of these rows that a target says; any number where that is -1."""
        part = self._view[index] if index else self._view
        if not part.shape[-1]:
            return np.zeros(target.shape)
        found: HostArray = part[_along(target, part.shape[:-1])]
        return found.reshape(target.shape).astype(np.float64, copy=False)


def _dense(part: HostArray) -> HostArray:
    return np.ascontiguousarray(part, np.float64)


def _along(target: HostArray, rows: Shape) -> tuple[HostArray, ...]:
    """The index of one element of each row, that of its target, or the first one for -1."""
    beside = (np.arange(n).reshape(-1, *(1,) * (len(rows) - 1 - d)) for d, n in enumerate(rows))
    return *beside, np.maximum(target, 0).reshape(rows)


def _memory(array: HostArray) -> Memory:
    return Memory(array.ctypes.data, array.shape, array.strides, array.itemsize)


class _Places(NamedTuple):
    """Where each operand of a call is among them, by what they hold and by their names.

    Attributes:
        elements: Those that have a number for each element.
        numbers: Those that have a number for each row.
        indices: Those that have the index of an element for each row.
        labels: Those that have several indices for each row.
        where: The mask of rows; None if there is none.
        weight: The weights of classes; None if there are none.
        sample_weight: The weights of rows; None if there are none.

    """

    elements: dict[str, int]
    numbers: dict[str, int]
    indices: dict[str, int]
    labels: dict[str, int]
    where: int | None
    weight: int | None
    sample_weight: int | None

    @classmethod
    def of(cls, call: Call, loss: RowFormula) -> _Places:
        """Those of the operands of a call."""
        names = call.names
        own = [(name, k, loss.role(name)) for k, name in enumerate(names[call.extra :], call.extra)]

        def with_role(wanted: Role) -> dict[str, int]:
            return {name: k for name, k, role in own if role == wanted}

        extra = {name: k for k, name in enumerate(names[: call.extra])}
        return cls(
            with_role(ELEMENTS),
            with_role(NUMBER),
            with_role(INDEX),
            with_role(LABELS),
            *(extra.get(name) for name in ("where", "weight", "sample_weight")),
        )


class _Plan(NamedTuple):
    """What follows from the layouts of the operands of a request alone."""

    shape: Shape
    axis: int
    rows: Shape
    places: _Places
    value: NewValue | None
    gradients: dict[int, NewGradient]
    denominator: Denominator
    narrow: bool
    divisors: dict[float, Divisors]  # by the scale, unless the denominator is of data or given
    parameters: dict[tuple[float | int, ...], dict[str, float | int]]  # by those of the call


class _Operands:
    """The operands of a request as views whose last axis runs along the rows."""

    def __init__(
        self, call: Call, request: Request, operands: Sequence[HostArray], plan: _Plan
    ) -> None:
        assert isinstance(call.loss, RowFormula)
        shape = plan.shape
        self.axis, self.rows, self.columns = plan.axis, plan.rows, shape[plan.axis]
        leading, own = operands[request.denominator : request.extra], operands[request.extra :]
        self._grad_output = _Elements(self._of_rows(leading[0])) if request.vjp else None
        self._tangents = {
            call.names[k]: _Elements(self._of_elements(tangent, shape))
            for k, tangent in zip(request.tangents, leading[int(request.vjp) :], strict=True)
        }
        places = plan.places
        self._weight: HostArray | float = 1.0
        if places.weight is not None:
            self._weight = own[places.weight].astype(np.float64)
        self._where = None if places.where is None else self._of_rows(own[places.where])
        self._sample_weight: _Elements | None = None
        if places.sample_weight is not None:
            self._sample_weight = _Elements(self._of_rows(own[places.sample_weight]))
        self._elements = {
            **{n: _Elements(self._of_elements(own[k], shape)) for n, k in places.elements.items()},
            **{n: _Elements(self._of_rows(own[k])) for n, k in places.numbers.items()},
        }
        self._indices = {n: self._of_rows(own[k]) for n, k in places.indices.items()}
        self._labels = {n: self._of_elements(own[k], shape) for n, k in places.labels.items()}
        self._gathers_at = call.loss.index if call.loss.gathers else None
        self._copied = {name for name, own in self._elements.items() if own.is_copied}
        self._parameters = _parameters(call, plan)
        self._narrow = plan.narrow
        self._first = self._of_elements(own[call.extra], shape)
        self._whole: _Chunk | None = None

    def _of_rows(self, operand: HostArray) -> HostArray:
        return in_shape(operand, self.rows)[..., None]

    def _of_elements(self, operand: HostArray, shape: Shape) -> HostArray:
        whole = in_shape(operand, shape)
        return whole if self.axis == len(shape) - 1 else np.moveaxis(whole, self.axis, -1)

    def _among_elements(
        self, index: ChunkIndex, along_rows: HostArray
    ) -> tuple[ChunkIndex, HostArray]:
        """The index among all elements of the rows at an index, and their array moved alike."""
        if self.axis == len(self.rows):
            return index, along_rows
        everything = slice(None)
        whole = (*index, *(everything,) * (len(self.rows) - len(index)))
        at = (*whole[: self.axis], everything, *whole[self.axis :])
        # Each integer in the index removes an axis in front of that of the elements.
        axis = self.axis - sum(isinstance(i, int) for i in whole[: self.axis])
        return at, np.moveaxis(along_rows, -1, axis)

    def chunks(self) -> Iterator[ChunkIndex]:
        """The rows, as many at a time as have a chunk of elements that are read."""
        return chunks(self.rows, _rows_at_a_time(1 if self._gathers_at else self.columns))

    def give(self, gradient: Gradient, index: ChunkIndex, chunk: _Chunk, slopes: Any) -> None:
        """Let a gradient take its slopes of the rows at an index."""
        rows = math.prod(chunk.shape)
        if self._gathers_at is None:
            of_elements = broadcast(slopes, (rows, self.columns))
            quotient = of_elements.reshape(*chunk.shape, self.columns)
            gradient.add(*self._among_elements(index, quotient))
            return
        target = chunk.rows.operands[self._gathers_at]
        part = gradient.of_rows(self.axis, index)
        if self.columns:
            own = broadcast(slopes, (rows, 1)).reshape(chunk.shape)
            part[_along(target, chunk.shape)] = own
        if chunk.invalid is not None:
            part[chunk.invalid.reshape(chunk.shape)] = np.nan

    def at(self, index: ChunkIndex) -> _Chunk:
        """The rows at an index."""
        chunk = self.indices_at(index)
        operands = dict(chunk.rows.operands)

        def read(elements: _Elements) -> HostArray:
            if self._gathers_at is None:
                return elements.at(index)
            return elements.gathered(index, chunk.rows.operands[self._gathers_at])

        for name, elements in self._elements.items():
            operands[name] = read(elements)
        for name, tangent in self._tangents.items():
            operands[name] = Dual(operands[name], read(tangent))
        grad_output = None if self._grad_output is None else self._grad_output.at(index)
        rows = Rows(
            operands, self._parameters, self.columns, self._weight, self._copied, self._narrow
        )
        shape, _, sample_weight, _, ignored, invalid = chunk
        return _Chunk(shape, rows, sample_weight, grad_output, ignored, invalid)

    def indices_at(self, index: ChunkIndex) -> _Chunk:
        """The rows at an index without their elements. If they are all rows, they are read once."""
        if index == ():
            self._whole = self._whole or self._read(index)
            return self._whole
        return self._read(index)

    def _read(self, index: ChunkIndex) -> _Chunk:
        shape = self._first[index].shape[:-1] if index else self.rows
        operands: dict[str, Number] = {}
        left_out = None if self._where is None else ~self._where[index].reshape(-1, 1)
        ignored: HostArray | None = left_out
        invalid: HostArray | None = None
        for name, view in self._indices.items():
            part = view[index].reshape(-1, 1)
            target = _signed(part)
            inside = target.view(np.uint64) < self.columns  # a negative one is a large number
            of_index = self._parameters.get("ignore_index")
            is_class = of_index is not None and 0 <= of_index < self.columns
            if left_out is None and not is_class and np.logical_and.reduce(inside, axis=None):
                operands[name] = target
                continue
            if of_index is not None:
                of_part = part == of_index
                ignored = of_part if left_out is None else left_out | of_part
            if ignored is not None:
                inside &= ~ignored
            if inside.all():
                ignored = None
            else:
                invalid = ~inside if ignored is None else ~(inside | ignored)
                target = np.where(inside, target, -1)
            operands[name] = target
        for name, view in self._labels.items():
            labels = _signed(view[index]).reshape(math.prod(shape), self.columns)
            listed = np.logical_and.accumulate(labels >= 0, axis=-1)
            beyond = listed & (labels >= self.columns)
            invalid = np.asarray(beyond.any(axis=-1, keepdims=True))
            operands[name] = np.where(listed & ~beyond, labels, -1)
        rows = Rows(operands, self._parameters, self.columns, self._weight)
        sample_weight = None if self._sample_weight is None else self._sample_weight.at(index)
        return _Chunk(shape, rows, sample_weight, None, ignored, invalid)


@functools.lru_cache(maxsize=1024)
def _plan(call: Call, request: Request, layouts: tuple[Layout, ...], autocast: bool) -> _Plan:
    """The plan of a call without its parameters; raises unless the operands fit together."""
    loss = call.loss
    assert isinstance(loss, RowFormula)
    specs = [spec_of(each) for each in layouts]
    own = specs[request.extra :]
    shape = loss.shape_of(call, own)
    rows = loss.rows_of(shape, call.axis)
    summed = None if call.reduction == "none" else (1,) * len(rows)
    outputs = loss.outputs(call, request, specs, autocast)
    return _Plan(
        shape,
        loss.axis(shape, call.axis),
        rows,
        _Places.of(call, loss),
        *new_results(request, outputs, shape, summed),
        loss.denominator(call, shape, own),
        is_narrow(request, specs),
        {},
        {},
    )


def evaluate(
    loss: RowFormula, call: Call, request: Request, operands: Sequence[HostArray], autocast: bool
) -> list[HostArray | None]:
    """Evaluate a request: the value, if asked for, then the wanted gradients."""
    plan = _plan(call.of_layout, request, tuple([layout(x) for x in operands]), autocast)
    if loss.overwrites:
        check_overwritten(call, request, [_memory(operand) for operand in operands])
    views = _Operands(call, request, operands, plan)

    value = None if plan.value is None else Value(plan.value)
    gradients: dict[int, Gradient] = {}
    for k, new in plan.gradients.items():
        operand = operands[request.extra + k]
        if new.in_place and not operand.flags.writeable:
            raise ValueError(f"{call.names[k]} must be writeable to be overwritten")
        gradients[k] = Gradient(new, operand, begins_as_zeros=loss.gathers)

    along = bool(request.tangents)
    with np.errstate(all="ignore"):
        divisors = _divisors(loss, call, request, plan, operands, views)
        for index in views.chunks():
            chunk = views.at(index)
            rows = math.prod(chunk.shape)
            each, derivatives = loss.formula(chunk.rows)
            # All of them first: a gradient may overwrite an operand.
            slopes = {k: derivatives[call.names[k]]() for k in gradients}
            if value is not None:
                values = broadcast(chunk.mask(chunk.settle(each, along)), (rows, 1))
                value.add(index, values.reshape(chunk.shape))
            for k, gradient in gradients.items():
                slope = chunk.settle(slopes[k], along)
                slope = chunk.mask(divisors.derivatives(slope, gradient.dtype, not along))
                views.give(gradient, index, chunk, slope)
        results: list[HostArray | None] = [] if value is None else value.finish(divisors)
        for k in request.wanted:
            results.append(gradients[k].finish() if k in gradients else None)
    return results


def _parameters(call: Call, plan: _Plan) -> dict[str, float | int]:
    """The hyper-parameters by name, as they are in the arithmetic of a device."""
    named = plan.parameters.get(call.parameters)
    if named is not None:
        return named
    loss = call.loss
    numbers = loss.in_float32(call.parameters) if plan.narrow else call.parameters
    named = dict(zip(loss.parameters, numbers, strict=True))
    return keep(plan.parameters, call.parameters, named, _MOST)


def _rows_at_a_time(columns: int) -> int:
    return max(CHUNK // max(columns, 1), 1)


def parts(rows: Shape, columns: int, size: int) -> Iterator[Place]:
    """Parts of about `size` elements, each of which has the results that it has in one piece.

    Bits depend on the chunks that a part is divided into. A part is some neighbouring chunks of one
    length, so that it is divided into the same ones as in one piece. Where a loss gathers, chunks
    are longer. Its gradients do not depend on them.
    """

    def kind(place: Place) -> tuple[Place, list[int]]:
        return place[:-1], [own.stop - own.start for own in place[-1:]]

    most = max(1, size // max(CHUNK, columns))
    for _, alike in itertools.groupby(places(rows, _rows_at_a_time(columns)), kind):
        while group := list(itertools.islice(alike, most)):
            ends = zip(group[0][-1:], group[-1][-1:], strict=True)
            yield (*group[0][:-1], *(slice(first.start, last.stop) for first, last in ends))


def _divisors(
    loss: RowFormula,
    call: Call,
    request: Request,
    plan: _Plan,
    operands: Sequence[HostArray],
    views: _Operands,
) -> Divisors:
    """What the value and the gradients are divided by."""
    divisors = plan.divisors.get(call.scale)
    if divisors is not None:
        return divisors
    denominator = plan.denominator
    of_data = functools.partial(_sum_of_data, loss, views)
    divisors = divisors_of(call, request, denominator, operands, of_data)
    if not (request.denominator or denominator.of_data):
        keep(plan.divisors, call.scale, divisors, _MOST)
    return divisors


def _sum_of_data(loss: RowFormula, views: _Operands) -> np.longdouble:
    """The sum of the weights of the rows that are not ignored."""
    denominator = np.longdouble(0)
    target = loss.index if loss.weighted_mean else None
    for index in chunks(views.rows):
        denominator += views.indices_at(index).total_weight(target)
    return denominator

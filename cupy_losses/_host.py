"""The host backend: the same passes on NumPy arrays, in float64, a bounded chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._dual import Dual, plain, slope_of
from ._layout import (
    Operand,
    Shape,
    broadcast_strides,
    dense_strides,
    memory_order,
    result_dtype,
)
from ._losses import (
    FORWARD,
    Call,
    Pass,
    broadcasts_unasked,
    computed_now,
    divides_by_shares,
    divides_by_weights,
    shape_of,
    value_shape,
    warn_of_broadcasting,
)

Array = npt.NDArray[Any]

CHUNK = 1 << 16  # elements in float64 at a time


class HostBackend:
    """Losses of NumPy arrays."""

    def evaluate(self, call: Call, operands: Sequence[Array]) -> Array:
        """The loss."""
        value = run(call, FORWARD, operands)[0]
        assert value is not None
        return value

    def run(self, call: Call, todo: Pass, operands: Sequence[Array]) -> list[Array | None]:
        """One pass over the operands of a call."""
        return run(call, todo, operands)


def describe(array: Array) -> Operand:
    """A NumPy array without its data."""
    size = max(array.dtype.itemsize, 1)
    return Operand(array.dtype.name, array.shape, tuple(step // size for step in array.strides))


def run(
    call: Call, todo: Pass, operands: Sequence[Array], autocast: bool = False
) -> list[Array | None]:
    """Compute one pass: the value, if asked for, then the wanted gradients."""
    call.check()
    if call.loss.formula is None:
        name = call.loss.struct.removeprefix("Formula_")
        raise TypeError(
            f"{name} has no NumPy formula: pass numpy= to pointwise_loss, or call it on CUDA arrays"
        )
    described = [describe(operand) for operand in operands]
    own = described[todo.extra :]
    shape = shape_of(call, own)
    axes = memory_order(shape, [broadcast_strides(operand, shape) for operand in described])
    views = [np.broadcast_to(operand, shape) for operand in operands]
    chunks = list(_chunks(shape))
    result = dtype(result_dtype(own, autocast))

    divisor = np.longdouble(call.divisor(shape, own))
    if divides_by_shares(call):
        divisor = _sum_of_shares(call, views[todo.extra :], chunks)
    # With all elements masked the gradient is 0, not 0 / 0.
    slope_divisor = np.float64(np.inf if call.masked and divisor == 0 else divisor)
    value_divisor = np.longdouble(slope_divisor) if todo.directions else divisor

    values = _Values(call, shape, axes, result) if todo.values else None
    now = computed_now(call, todo, own, shape)
    gradients = [
        _Gradient(operands[todo.extra + k], shape, axes) if computed else None
        for k, computed in zip(todo.wanted, now, strict=True)
    ]
    if broadcasts_unasked(call, todo, own):
        warn_of_broadcasting(call, own)

    with np.errstate(all="ignore"):
        for index in chunks:
            x = [view[index].astype(np.float64) for view in views]
            if values is not None:
                values.add(index, plain(_evaluate(call, todo, x, None)))
            for k, gradient in zip(todo.wanted, gradients, strict=True):
                if gradient is not None:
                    slope = slope_of(_evaluate(call, todo, x, k))
                    gradient.add(index, np.asarray(slope / slope_divisor))
        outputs: list[Array | None] = []
        if values is not None:
            outputs.append(values.finish(value_divisor))
        outputs += [None if gradient is None else gradient.finish() for gradient in gradients]
    return outputs


def _sum_of_shares(
    call: Call, views: Sequence[Array], chunks: Sequence[tuple[slice | int, ...]]
) -> np.longdouble:
    """What a mean divides by: the sum of the weights that the mask leaves."""
    total = _ZERO
    with np.errstate(all="ignore"):
        for index in chunks:
            weight = views[call.masked][index] if divides_by_weights(call) else np.ones(())
            if call.masked:
                weight = np.where(views[0][index], weight, 0.0)
            total += _sum(weight.astype(np.float64))
    return total


_ZERO = np.longdouble(0)


def _sum(x: Array) -> np.longdouble:
    return np.sum(x, dtype=np.longdouble)


def dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, bfloat16 included."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


class _Values:
    """The value of a call, filled chunk by chunk: of each element, of each row or of all."""

    def __init__(self, call: Call, shape: Shape, axes: Sequence[int], of: np.dtype[Any]) -> None:
        self._shape, self._dtype = value_shape(call, shape), of
        self._reduced = self._shape != shape or call.reduction != "none"
        if not self._reduced:
            self._array = _empty(shape, axes, of)
        else:
            own = (*self._shape, 1) if call.sums_rows else (1,) * len(shape)
            self._sum = _Sum(own)

    def add(self, index: tuple[slice | int, ...], values: Array) -> None:
        """Take the values of the chunk at `index`."""
        if self._reduced:
            self._sum.add(index, values)
        else:
            self._array[index] = values

    def finish(self, divisor: np.longdouble) -> Array:
        """The values in the dtype of the result."""
        if not self._reduced:
            return self._array
        return np.asarray(self._sum.array.reshape(self._shape) / divisor).astype(self._dtype)


class _Sum:
    """A sum over chunks, in the axes where `shape` is 1."""

    def __init__(self, shape: Shape) -> None:
        self.array = np.zeros(shape, np.longdouble)

    def add(self, index: tuple[slice | int, ...], values: Array) -> None:
        """Add the values of the chunk at `index`."""
        own_index = tuple(
            slice(0, 1) if length == 1 else at if isinstance(at, slice) else slice(at, at + 1)
            for at, length in zip(index, self.array.shape, strict=False)
        )
        target = self.array[(*own_index, ...)]  # a view, also of a 0-d array
        shape = (1,) * (target.ndim - np.ndim(values)) + np.shape(values)
        summed = tuple(d for d, n in enumerate(target.shape) if n == 1)
        target += np.reshape(values, shape).sum(axis=summed, keepdims=True, dtype=np.longdouble)


class _Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast."""

    def __init__(self, operand: Array, shape: Shape, axes: Sequence[int]) -> None:
        self._operand = operand
        own = (1,) * (len(shape) - operand.ndim) + operand.shape
        self._direct = own == shape
        if self._direct:
            self._array = _empty(shape, axes, operand.dtype)
        else:
            self._sum = _Sum(own)

    def add(self, index: tuple[slice | int, ...], slope: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._direct:
            self._array[index] = slope
        else:
            self._sum.add(index, slope)

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        if self._direct:
            return self._array.reshape(self._operand.shape)
        array = self._sum.array.astype(self._operand.dtype)
        return array.reshape(self._operand.shape)


def _empty(shape: Shape, axes: Sequence[int], of: np.dtype[Any]) -> Array:
    """A new array whose memory runs along `axes`, slowest first."""
    strides = tuple(step * of.itemsize for step in dense_strides(axes, shape))
    return np.ndarray(shape, of, strides=strides)


def _evaluate(call: Call, todo: Pass, x: Sequence[Array], wanted: int | None) -> Any:
    """The function of a pass (see `Pass`), with its slope by operand `wanted`."""
    own: list[Any] = list(x[todo.extra :])
    if wanted is not None:
        own[wanted] = Dual(own[wanted], np.ones_like(own[wanted]))
    if todo.directions:
        tangents = dict(zip(todo.directions, x[int(todo.chained) :], strict=False))
        own = [Dual(number, tangents.get(k, 0.0)) for k, number in enumerate(own)]
    mask = plain(own.pop(0)) if call.masked else None
    weight = own.pop(0) if call.weighted else None
    names = (parameter.name for parameter in call.loss.parameters)
    assert call.loss.formula is not None
    result = call.loss.formula(*own, **dict(zip(names, call.parameters, strict=True)))
    if weight is not None:
        result = weight * result
    if todo.directions:
        result = slope_of(result)
    if todo.chained:
        result = x[0] * result
    return result if mask is None else np.where(mask != 0, result, 0.0)


def _chunks(shape: tuple[int, ...]) -> Iterator[tuple[slice | int, ...]]:
    """Index tuples that cover an array in blocks of at most CHUNK elements (or one row)."""
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= CHUNK:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner > CHUNK:
        for first in range(shape[0]):
            for rest in _chunks(shape[1:]):
                yield (first, *rest)
        return
    rows = max(CHUNK // inner, 1)
    for first in range(0, shape[0], rows):
        yield (slice(first, first + rows),)

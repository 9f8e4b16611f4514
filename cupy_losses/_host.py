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
    broadcast_shape,
    broadcast_strides,
    check_dtypes,
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
    divides_by_weights,
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
    described = [describe(operand) for operand in operands]
    own = described[todo.extra :]
    check_dtypes(own, call.names)
    shape = broadcast_shape(own, call.names)
    axes = memory_order(shape, [broadcast_strides(operand, shape) for operand in described])
    views = [np.broadcast_to(operand, shape) for operand in operands]
    chunks = list(_chunks(shape))
    result = dtype(result_dtype(own, autocast))

    divisor = np.longdouble(math.prod(shape) if call.reduction == "mean" else 1)
    if divides_by_weights(call):
        weight = views[todo.extra]
        with np.errstate(all="ignore"):
            divisor = sum((_sum(weight[index].astype(np.float64)) for index in chunks), _ZERO)
    values = _empty(shape, axes, result) if todo.values and call.reduction == "none" else None
    total = _ZERO
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
            if todo.values:
                value = plain(_evaluate(call, todo, x, None))
                if values is None:
                    total += _sum(value)
                else:
                    values[index] = value
            for k, gradient in zip(todo.wanted, gradients, strict=True):
                if gradient is None:
                    continue
                slope = slope_of(_evaluate(call, todo, x, k)) / np.float64(divisor)
                gradient.add(index, slope)
        outputs: list[Array | None] = [] if values is None else [values]
        if todo.values and values is None:
            outputs = [np.asarray(total / divisor).astype(result)]
    return outputs + [None if gradient is None else gradient.finish() for gradient in gradients]


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


class _Gradient:
    """The gradient of one operand, filled chunk by chunk; summed where the operand is broadcast."""

    def __init__(self, operand: Array, shape: Shape, axes: Sequence[int]) -> None:
        self._operand = operand
        self._own = (1,) * (len(shape) - operand.ndim) + operand.shape
        self._direct = self._own == shape
        self._array = (
            _empty(shape, axes, operand.dtype)
            if self._direct
            else np.zeros(self._own, np.longdouble)
        )

    def add(self, index: tuple[slice | int, ...], slope: Array) -> None:
        """Take the slopes of the chunk at `index`."""
        if self._direct:
            self._array[index] = slope
            return
        own_index = tuple(
            slice(0, 1) if length == 1 else at if isinstance(at, slice) else slice(at, at + 1)
            for at, length in zip(index, self._own, strict=False)
        )
        target = self._array[own_index]
        chunk_shape = (1,) * (len(self._own) - np.ndim(slope)) + np.shape(slope)
        summed = tuple(d for d, n in enumerate(target.shape) if n == 1)
        chunk = np.broadcast_to(np.reshape(slope, chunk_shape), chunk_shape)
        target += chunk.sum(axis=summed, keepdims=True, dtype=np.longdouble)

    def finish(self) -> Array:
        """The gradient in the dtype and shape of the operand."""
        array = self._array.astype(self._operand.dtype, copy=False)
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
    weight = own.pop(0) if call.weighted else None
    names = (parameter.name for parameter in call.loss.parameters)
    result = call.loss.formula(*own, **dict(zip(names, call.parameters, strict=True)))
    if weight is not None:
        result = weight * result
    if todo.directions:
        result = slope_of(result)
    return x[0] * result if todo.chained else result


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

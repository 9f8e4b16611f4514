"""The host backend: the same passes on NumPy arrays, in float64, a bounded chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.losses import (
    FORWARD,
    Call,
    Loss,
    Pass,
    broadcasts_unasked,
    computed_now,
    divides_by_weights,
    warn_of_broadcasting,
)
from .._core.rows import RowLoss
from .._core.shapes import Shape, broadcast_strides, memory_order, result_dtype
from . import rows
from .chunks import Gradient, Index, Sum, chunks, describe, dtype, empty, total
from .dual import Dual, plain, slope_of

Array = npt.NDArray[Any]


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


def run(
    call: Call, todo: Pass, operands: Sequence[Array], autocast: bool = False
) -> list[Array | None]:
    """Compute one pass: the value, if asked for, then the wanted gradients."""
    call.check()
    loss = call.loss
    if isinstance(loss, RowLoss):
        return rows.run(call, loss, todo, operands, autocast)
    assert isinstance(loss, Loss)
    if loss.formula is None:
        name = loss.struct.removeprefix("Formula_")
        raise TypeError(
            f"{name} has no NumPy formula: pass numpy= to pointwise_loss, or call it on CUDA arrays"
        )
    described = [describe(operand) for operand in operands]
    own = described[todo.extra :]
    shape = call.loss.shape_of(call, own)
    axes = memory_order(shape, [broadcast_strides(operand, shape) for operand in described])
    views = [np.broadcast_to(operand, shape) for operand in operands]
    blocks = list(chunks(shape))
    result = dtype(result_dtype(call.loss.promoted(call, own), autocast))

    divisor = np.longdouble(call.loss.divisor(call, shape, own))
    if loss.divides_by_shares(call):
        weighs = divides_by_weights(call, loss)
        divisor = _sum_of_shares(call, views[todo.extra :], blocks, weighs)
    # With all elements masked the gradient is 0, not 0 / 0.
    slope_divisor = np.float64(np.inf if call.masked and divisor == 0 else divisor)
    value_divisor = np.longdouble(slope_divisor) if todo.directions else divisor

    values = _Values(call, shape, axes, result) if todo.values else None
    now = computed_now(call, todo, own, shape)
    gradients = [
        Gradient(operands[todo.extra + k], shape, axes) if computed else None
        for k, computed in zip(todo.wanted, now, strict=True)
    ]
    if broadcasts_unasked(call, todo, own):
        warn_of_broadcasting(call, own)

    with np.errstate(all="ignore"):
        for index in blocks:
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
    call: Call,
    views: Sequence[Array],
    blocks: Sequence[Index],
    weighs: bool,
) -> np.longdouble:
    """What a mean divides by: the sum of the weights that the mask leaves."""
    divisor = np.longdouble(0)
    with np.errstate(all="ignore"):
        for index in blocks:
            weight = views[call.masked][index] if weighs else np.ones(())
            if call.masked:
                weight = np.where(views[0][index], weight, 0.0)
            divisor += total(weight.astype(np.float64))
    return divisor


class _Values:
    """The value of a call, filled chunk by chunk: of each element, of each row or of all."""

    def __init__(self, call: Call, shape: Shape, axes: Sequence[int], of: np.dtype[Any]) -> None:
        self._shape, self._dtype = call.loss.value_shape(call, shape), of
        self._reduced = self._shape != shape or call.reduction != "none"
        if not self._reduced:
            self._array = empty(shape, axes, of)
        else:
            own = (*self._shape, 1) if call.loss.sums_last_axis(call) else (1,) * len(shape)
            self._sum = Sum(own)

    def add(self, index: Index, values: Array) -> None:
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

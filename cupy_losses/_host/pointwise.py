"""Pointwise losses on the host: NumPy arrays, in float64, a bounded chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core.loss import Call, Request
from .._core.notices import warn
from .._core.pointwise import PointwiseFormula
from .chunks import Array, ChunkIndex, Gradient, chunks, spec, total
from .dual import Dual, plain, slope_of
from .reduction import Divisors, Value


def evaluate(
    loss: PointwiseFormula,
    call: Call,
    request: Request,
    operands: Sequence[Array],
    autocast: bool = False,
) -> list[Array | None]:
    """Evaluate a request: the value, if asked for, then the wanted gradients."""
    if loss.formula is None:
        raise TypeError(
            f"{loss.name} has no NumPy formula: write the formula in Python, pass numpy= to "
            "pointwise_loss, or call it on CUDA arrays"
        )
    specs = [spec(operand) for operand in operands]
    own = specs[request.extra :]
    shape = loss.shape_of(call, own)
    if notice := loss.notice(call, request, own):
        warn(notice)
    outputs = loss.outputs(call, request, specs, autocast)
    read = operands[request.denominator :]
    leading = request.extra - request.denominator
    views = [np.broadcast_to(operand, shape) for operand in read]
    blocks = list(chunks(shape))

    denominator = loss.denominator(call, shape, own)
    if request.denominator:
        number = np.longdouble(operands[0])
    elif denominator.of_data:
        number = _sum_of_data(call, views[leading:], blocks, loss.divides_by_weights(call))
    else:
        number = np.longdouble(denominator.size)
    divisors = Divisors(call, request, denominator, number)

    value = None
    if request.value:
        output = outputs.pop(0)
        assert output is not None
        value = Value(call, request, shape, output, _summed(loss, call, shape))
    gradients = [
        None if output is None else Gradient(output, operands[request.extra + k], shape)
        for k, output in zip(request.wanted, outputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        for index in blocks:
            x = [view[index].astype(np.float64) for view in views]
            if value is not None:
                value.add(index, plain(_at(loss, call, request, x, None)))
            for k, gradient in zip(request.wanted, gradients, strict=True):
                if gradient is not None:
                    slope = slope_of(_at(loss, call, request, x, k))
                    quotient = divisors.derivatives(np.asarray(slope))
                    # An infinite or NaN scale does not reach what the mask leaves out.
                    if call.masked:
                        quotient = np.where(x[leading] != 0, quotient, 0.0)
                    gradient.add(index, quotient)
        results: list[Array | None] = [] if value is None else [value.finish(divisors)]
        results += [None if gradient is None else gradient.finish() for gradient in gradients]
    return results


def _summed(loss: PointwiseFormula, call: Call, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of the sum that a value is, over the axes where it is 1; None for no sum."""
    if call.reduction != "none":
        return (1,) * len(shape)
    return (*shape[:-1], 1) if loss.row_means else None


def _sum_of_data(
    call: Call, views: Sequence[Array], blocks: Sequence[ChunkIndex], weighs: bool
) -> np.longdouble:
    """The sum of the weights that the mask leaves, or their number."""
    denominator = np.longdouble(0)
    with np.errstate(all="ignore"):
        for index in blocks:
            weight = views[call.masked][index] if weighs else np.ones(())
            if call.masked:
                weight = np.where(views[0][index], weight, 0.0)
            denominator += total(weight.astype(np.float64))
    return denominator


def _at(
    loss: PointwiseFormula, call: Call, request: Request, x: Sequence[Array], wanted: int | None
) -> Any:
    """The function of a request (see `Request`) of a chunk, with its slope by operand `wanted`."""
    leading = request.extra - request.denominator
    own: list[Any] = list(x[leading:])
    if wanted is not None:
        own[wanted] = Dual(own[wanted], np.ones_like(own[wanted]))
    if request.tangents:
        tangents = dict(zip(request.tangents, x[int(request.vjp) :], strict=False))
        own = [Dual(number, tangents.get(k, 0.0)) for k, number in enumerate(own)]
    mask = plain(own.pop(0)) if call.masked else None
    weight = own.pop(0) if call.weighted else None
    assert loss.formula is not None
    result = loss.formula(*own, **call.named_parameters)
    if weight is not None:
        result = weight * result
    if request.tangents:
        result = slope_of(result)
    if request.vjp:
        result = x[0] * result
    return result if mask is None else np.where(mask != 0, result, 0.0)

"""Pointwise losses on the host: NumPy arrays, in float64, a bounded chunk at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.loss import Call, Request
from .._core.notices import warn
from .._core.outputs import Output
from .._core.pointwise import PointwiseFormula
from .._core.reduction import Denominator
from .._core.shapes import Shape
from .chunks import Array, Gradient, Layout, broadcast, chunks, layout, spec_of, total, wide
from .dual import Dual, plain, slope_of
from .reduction import Divisors, Value


class _Plan(NamedTuple):
    """What follows from the layouts of the operands of a request alone."""

    shape: Shape
    notice: str
    outputs: list[Output | None]
    denominator: Denominator


@functools.lru_cache(maxsize=1024)
def _plan(call: Call, request: Request, layouts: tuple[Layout, ...], autocast: bool) -> _Plan:
    """The plan of a call without its parameters; raises unless the operands fit together."""
    loss = call.loss
    specs = [spec_of(each) for each in layouts]
    own = specs[request.extra :]
    shape = loss.shape_of(call, own)
    return _Plan(
        shape,
        loss.notice(call, request, own),
        loss.outputs(call, request, specs, autocast),
        loss.denominator(call, shape, own),
    )


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
    of_layout = call._replace(parameters=(), scale=1.0)
    plan = _plan(of_layout, request, tuple([layout(x) for x in operands]), autocast)
    shape, outputs, denominator = plan.shape, list(plan.outputs), plan.denominator
    if plan.notice:
        warn(plan.notice)
    read = operands[request.denominator :]
    leading = request.extra - request.denominator
    views = [broadcast(operand, shape) for operand in read]

    if request.denominator:
        number = np.longdouble(operands[0])
    elif denominator.of_data:
        number = _sum_of_data(call, views[leading:], shape, loss.divides_by_weights(call))
    else:
        number = np.longdouble(denominator.size)
    divisors = Divisors(call, request, denominator, number)

    value = None
    if request.value:
        output, *outputs = outputs[0], *outputs[1 + request.counted :]
        assert output is not None
        value = Value(call, request, shape, output, _summed(loss, call, shape))
    gradients = {
        k: Gradient(output, operands[request.extra + k], shape)
        for k, output in zip(request.wanted, outputs, strict=True)
        if output is not None
    }
    function = _Function(loss, call, request)
    mask = views.pop(leading) if call.masked else None
    with np.errstate(all="ignore"):
        for index in chunks(shape):
            x = [wide(view[index]) for view in views]
            bits = None if mask is None else -mask[index].astype(np.int64)
            size = x[0].shape
            result = None
            for k, gradient in gradients.items():
                result = function(x, k)
                place = gradient.place(index) if bits is None else None
                quotient = divisors.derivatives(slope_of(result), place)
                if place is None:
                    # An infinite or NaN scale does not reach what the mask leaves out.
                    gradient.add(index, _kept(broadcast(quotient, size), bits))
            if value is not None:
                # The derivative by an operand comes with the value, in one evaluation.
                result = function(x) if result is None else plain(result)
                value.add(index, _kept(broadcast(result, size), bits))
        results: list[Array | None] = [] if value is None else value.finish(divisors)
        results += [gradients[k].finish() if k in gradients else None for k in request.wanted]
    return results


def _kept(x: Array, bits: Array | None) -> Array:
    """Numbers where all bits are set, 0 where none is.

    A choice by a mask, where that is random, takes the CPU several times as long.
    """
    if bits is None:
        return x
    kept: Array = (x.view(np.int64) & bits).view(np.float64)
    return kept


def _summed(loss: PointwiseFormula, call: Call, shape: Shape) -> Shape | None:
    """The shape of the sum that a value is, over the axes where it is 1; None for no sum."""
    if call.reduction != "none":
        return (1,) * len(shape)
    return (*shape[:-1], 1) if loss.row_means else None


def _sum_of_data(call: Call, views: Sequence[Array], shape: Shape, weighs: bool) -> np.longdouble:
    """The sum of the weights that the mask leaves, or their number."""
    denominator = np.longdouble(0)
    with np.errstate(all="ignore"):
        for index in chunks(shape):
            if not weighs:
                denominator += np.count_nonzero(views[0][index])
                continue
            weight = wide(views[call.masked][index])
            if call.masked:
                weight = np.where(views[0][index], weight, 0.0)
            denominator += total(weight)
    return denominator


class _Function:
    """The function of a request (see `Request`), without the mask."""

    def __init__(self, loss: PointwiseFormula, call: Call, request: Request) -> None:
        assert loss.formula is not None
        self._formula = loss.formula
        self._parameters = call.named_parameters
        self._masked, self._weighted = call.masked, call.weighted
        self._vjp, self._tangents = request.vjp, request.tangents
        self._leading = request.extra - request.denominator

    def __call__(self, x: Sequence[Array], wanted: int | None = None) -> Any:
        """Its values of a chunk, with the slopes by operand `wanted`."""
        own: list[Any] = list(x[self._leading :])
        if wanted is not None:
            wanted -= self._masked
            own[wanted] = Dual(own[wanted], 1.0)
        if self._tangents:
            of = dict(zip(self._tangents, x[int(self._vjp) :], strict=False))
            own = [Dual(number, of.get(k, 0.0)) for k, number in enumerate(own, self._masked)]
        weight = own.pop(0) if self._weighted else None
        result = self._formula(*own, **self._parameters)
        if weight is not None:
            result = weight * result
        if self._tangents:
            result = slope_of(result)
        return x[0] * result if self._vjp else result

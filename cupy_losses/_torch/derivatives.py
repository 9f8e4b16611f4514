"""The derivatives of a request, which are other requests of the same loss.

A VJP request gives the gradients of a value. Its own gradients, and those of a JVP request, are
gradients of second derivatives. These are differentiable by their grad_output and their tangents,
in which they are linear. Third derivatives are not available.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .._core.loss import Request
from . import jvp_of_jvp
from .evaluation import Evaluation, is_autocast, outputs_of
from .scaling import multiplied

Tensor = torch.Tensor

THIRD = "third derivatives of a loss are not available"


def vjp(
    evaluation: Evaluation, grad_outputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the operands that need one, given those by the results."""
    request = evaluation.request
    if request.value:
        grad_outputs = grad_outputs[:1]  # A denominator behind the value is constant.
    by_scale = None
    if evaluation.call.scaled and needed[-1]:
        by_scale = _by_scale(evaluation, grad_outputs)
        needed = (*needed[:-1], False)
    if request.value:
        of_value = _of_tangents if request.tangents else _of_value
        gradients = of_value(evaluation, grad_outputs[0], needed)
    else:
        of_slopes = _of_second if request.tangents else of_gradients
        gradients = of_slopes(evaluation, grad_outputs, needed)
    if by_scale is not None:
        gradients[-1] = by_scale
    return gradients


def _of_value(
    evaluation: Evaluation, grad_output: Tensor | None, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a loss by its operands."""
    call, _, operands, run = evaluation
    wanted = call.loss.differentiated(call, needed)
    if grad_output is None or not wanted:
        return [None] * len(operands)
    given = call.loss.grad_output_operand(call, grad_output), *operands
    vjp_request = Request(value=False, wanted=wanted, vjp=True)
    return _placed(len(operands), wanted, run(call, vjp_request, given))


def _by_scale(evaluation: Evaluation, grad_outputs: Sequence[Tensor | None]) -> Tensor | None:
    """The gradient by the array of the scale, which all results are proportional to."""
    call, request, (*own, scale), run = evaluation
    wide = torch.promote_types(scale.dtype, torch.float32)
    total: Tensor | None = None
    for grad_output, result in zip(grad_outputs, run(call.unscaled, request, own), strict=True):
        if grad_output is not None:
            part = (grad_output.to(wide) * result.to(wide)).sum()
            total = part if total is None else total + part
    return None if total is None else total.to(scale.dtype)


def _autocast_of(grad_output: Tensor) -> AbstractContextManager[Any]:
    """The loss has the dtype of grad_output, to which autocast may have widened it."""
    device = grad_output.device.type
    if device == "meta":
        return nullcontext()  # where torch has no autocast
    return torch.autocast(device, enabled=grad_output.dtype == torch.float32)


def of_gradients(
    evaluation: Evaluation, grad_outputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a VJP request: by its grad_output, then by the operands of the call."""
    call, request, (grad_output, *own), run = evaluation
    given = {k: t for k, t in zip(request.wanted, grad_outputs, strict=True) if t is not None}
    varied, tangents = tuple(given), given.values()
    wanted = call.loss.differentiated(call, needed[1:])
    gradients: list[Tensor | None] = [None] * len(own)
    by_grad_output = None
    if given and needed[0]:
        with _autocast_of(grad_output):
            value = run(call, Request(tangents=varied), (*tangents, *own))[0]
        by_grad_output = value.reshape(grad_output.shape).to(grad_output.dtype)
    if given and wanted:
        second = Request(value=False, wanted=wanted, vjp=True, tangents=varied)
        gradients = _placed(len(own), wanted, run(call, second, (grad_output, *tangents, *own)))
    return [by_grad_output, *gradients]


def _of_tangents(
    evaluation: Evaluation, grad_output: Tensor | None, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a JVP request: by its tangents, then by the operands of the call."""
    call, request, operands, run = evaluation
    count = len(request.tangents)
    given, own = operands[:count], operands[count:]
    if grad_output is None:
        return [None] * len(operands)
    grad_output = call.loss.grad_output_operand(call, grad_output)
    along = [k for k, needs in zip(request.tangents, needed, strict=False) if needs]
    by_tangents: dict[int, Tensor] = {}
    if along:
        vjp_request = Request(value=False, wanted=tuple(along), vjp=True)
        by_tangents = dict(zip(along, run(call, vjp_request, (grad_output, *own)), strict=True))
    wanted = call.loss.differentiated(call, needed[count:])
    gradients: list[Tensor | None] = [None] * len(own)
    if wanted:
        second = Request(value=False, wanted=wanted, vjp=True, tangents=request.tangents)
        gradients = _placed(len(own), wanted, run(call, second, (grad_output, *given, *own)))
    return [*[by_tangents.get(k) for k in request.tangents], *gradients]


def _of_second(
    evaluation: Evaluation, grad_outputs: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of second derivatives: by grad_output and the tangents, which are factors."""
    call, request, (grad_output, *rest), run = evaluation
    given = {k: t for k, t in zip(request.wanted, grad_outputs, strict=True) if t is not None}
    own = rest[len(request.tangents) :]
    gradients: list[Tensor | None] = [None] * len(evaluation.operands)
    if given and needed[0]:
        of_tangents = Evaluation(call, Request(tangents=request.tangents), rest, run)
        along = jvp_of_jvp.along(of_tangents, given, grad_output.dtype)
        gradients[0] = along.reshape(grad_output.shape)
    places = {place: k for place, k in enumerate(request.tangents, 1) if needed[place]}
    if given and places:
        second = request._replace(wanted=(*places.values(),), tangents=(*given,))
        results = run(call, second, (grad_output, *given.values(), *own))
        for place, result in zip(places, results, strict=True):
            gradients[place] = result
    return gradients


def jvp(evaluation: Evaluation, tangents: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """The derivatives of the results along tangents of the operands."""
    call, request, operands, run = evaluation
    parts: list[Sequence[Tensor]] = []
    along_scale = tangents[-1] if call.scaled else None
    if along_scale is not None:
        tangents = tangents[:-1]
        unscaled = run(call.unscaled, request, operands[:-1])
        parts.append([multiplied(along_scale, result) for result in unscaled])
    own, of_own = operands[request.extra :], tangents[request.extra :]
    along = call.loss.differentiated(call, [tangent is not None for tangent in of_own])
    varied = {k: tangent for k in along if (tangent := of_own[k]) is not None}
    if varied and request.tangents and request.wanted:
        raise NotImplementedError(THIRD)
    leading = operands[: request.extra]
    factor, of_request = leading[: request.vjp], leading[request.vjp :]
    if varied and request.tangents:
        output, *_ = outputs_of(call, request, operands, is_autocast(operands))
        parts.append([jvp_of_jvp.along(evaluation, varied, getattr(torch, output.dtype))])
    elif varied:
        jvp_request = request._replace(tangents=tuple(varied))
        parts.append(run(call, jvp_request, (*leading, *varied.values(), *own)))
    # The results are linear in the tangents of a request, and in its grad_output.
    pairs = zip(request.tangents, tangents[request.vjp :], strict=False)
    given = {k: t for k, t in pairs if t is not None}
    if given:
        along_given = request._replace(tangents=tuple(given))
        parts.append(run(call, along_given, (*factor, *given.values(), *own)))
    if request.vjp and tangents[0] is not None:
        parts.append(run(call, request, (tangents[0], *of_request, *own)))
    if not parts:
        return [torch.zeros_like(t) for t in run(call, request, operands)]
    return [sum(of_one[1:], of_one[0]) for of_one in zip(*parts, strict=True)]


def _placed(
    count: int, wanted: Sequence[int], results: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients that are wanted, at the places of their operands."""
    placed: list[Tensor | None] = [None] * count
    for k, result in zip(wanted, results, strict=True):
        placed[k] = result
    return placed

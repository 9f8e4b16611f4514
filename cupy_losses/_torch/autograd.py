"""The bridge to torch's autograd, for all losses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .._core.cache import keep
from .._core.loss import FORWARD, Call, Request
from . import derivatives, operators, weights
from .dynamo import disable_compile
from .evaluation import Evaluation, in_memory

Tensor = torch.Tensor


class Waiting(Protocol):
    """Gradients that a forward pass has written, for the grad_output that it anticipated."""

    def finish(self, operands: Sequence[Tensor], grad_output: Tensor) -> bool:
        """Make them those for this grad_output; False where they are to be computed anew."""


class Tensors(Protocol):
    """What the bridge asks of a library of tensors."""

    def run_resolved(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Any]:
        """The results of a request on tensors whose elements are in memory.

        Those of an early request end with a `Waiting`, or None where no gradient was written.
        """

    def run(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """The results of a request."""

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        """Gradient *= grad_output, in place and without asking the device for the value."""


def resolved(call: Call, operands: Sequence[Tensor], leading: int = 0) -> Sequence[Tensor]:
    """The operands with their elements in memory."""
    for tensor in operands:
        if tensor.is_neg() or tensor._is_zerotensor():
            break
    else:
        return operands
    found = [in_memory(tensor) for tensor in operands]
    overwritten = leading + call.extra
    if call.loss.overwrites and found[overwritten] is not operands[overwritten]:
        raise ValueError(
            f"{call.names[call.extra]} must not be a view of negated numbers, nor zeros without "
            "memory, to be overwritten: pass its clone()"
        )
    return found


def evaluate(library: Tensors, call: Call, operands: Sequence[Tensor]) -> Tensor:
    """The loss, with a gradient function where an operand requires grad."""
    if operators.is_watched():
        return operators.evaluate(call, operands)
    differentiate = False
    for operand in operands:
        if operand.is_neg() or operand._is_zerotensor():
            operands = resolved(call, operands)
        if operand.requires_grad:
            differentiate = True
    differentiate = differentiate and torch.is_grad_enabled()
    if differentiate:
        if call.scaled and operands[-1].requires_grad:
            return operators.times_scale(functools.partial(evaluate, library), call, operands)
        if call.loss.overwrites and operands[call.extra].requires_grad:
            return _overwrite(library, call, operands)
        weighs = call.weighted or call.row_weighted
        if weighs and any(operands[k].requires_grad for k in weights.composed_by(call)):
            return operators.evaluate(call, operands)
        return _apply_loss(library, call, *operands)
    return library.run_resolved(call, FORWARD, operands)[0]  # type: ignore[no-any-return]


_NOTHING_READY: tuple[list[Tensor | None], None] = [], None


class _Loss(torch.autograd.Function):
    """A loss. Its forward pass writes the gradients too, where that saves a pass."""

    @staticmethod
    @disable_compile
    def forward(ctx: Any, library: Tensors, call: Call, *operands: Tensor) -> Any:
        request = _request(call, ctx.needs_input_grad, early=True)
        value, *gradients, waiting = library.run_resolved(call, request, operands)
        if not request.wanted:
            ctx.mark_non_differentiable(value)
        ctx.set_materialize_grads(False)
        ctx.state = library, call, request.wanted
        ctx.ready = gradients, waiting
        ctx.save_for_backward(*operands)
        return value

    @staticmethod
    @disable_compile
    def backward(ctx: Any, grad_output: Tensor | None) -> Any:
        library, call, wanted = ctx.state
        operands = ctx.saved_tensors  # raises if one was modified since
        if grad_output is None:
            return (None,) * len(ctx.needs_input_grad)
        gradients: list[Tensor | None]
        if operators.is_watched() or operators.is_dispatched(grad_output):
            given = call.loss.grad_output_operand(call, grad_output), *operands
            backward = Request(value=False, wanted=wanted, vjp=True)
            gradients = list(operators.run(call, backward, given))
        elif torch.is_grad_enabled():  # create_graph=True
            given = call.loss.grad_output_operand(call, grad_output), *operands
            gradients = _Gradient.apply(library, call, wanted, *given)  # type: ignore[no-untyped-call]
        else:
            if grad_output.is_neg() or grad_output._is_zerotensor():
                grad_output = in_memory(grad_output)
            # Handed out once: a second backward pass computes the gradients anew.
            (gradients, waiting), ctx.ready = ctx.ready, _NOTHING_READY
            if waiting is None or not waiting.finish(operands, grad_output):
                gradients = [None] * len(wanted)
            for gradient in gradients:
                if gradient is None:
                    given = call.loss.grad_output_operand(call, grad_output), *operands
                    _complete(gradients, library, call, wanted, given)
                    break
        results: list[Tensor | None] = [None] * (2 + len(operands))
        for i, k in enumerate(wanted):
            results[2 + k] = gradients[i]
        return tuple(results)


def _complete(
    gradients: list[Tensor | None],
    library: Tensors,
    call: Call,
    wanted: Sequence[int],
    operands: Sequence[Tensor],
) -> None:
    """Compute the gradients that are missing."""
    missing = [i for i, gradient in enumerate(gradients) if gradient is None]
    request = Request(value=False, wanted=tuple(wanted[i] for i in missing), vjp=True)
    for i, gradient in zip(missing, library.run(call, request, operands), strict=True):
        gradients[i] = gradient


# Function.apply takes 2 µs to look for functorch's wrappers, which have no address anyway.
_apply_loss: Callable[..., Tensor] = super(torch.autograd.Function, _Loss).apply


_requests: dict[Any, Request] = {}


def _request(call: Call, needs_input_grad: tuple[bool, ...], early: bool) -> Request:
    """The request of a forward pass for the operands that need a gradient."""
    key = call.layout_key, needs_input_grad, early
    request = _requests.get(key)
    if request is None:
        wanted = call.loss.differentiated(call, needs_input_grad[-len(call.names) :])
        request = keep(_requests, key, Request(wanted=wanted, early=early))
    return request


def _overwrite(library: Tensors, call: Call, operands: Sequence[Tensor]) -> Tensor:
    """The loss, with the gradient by its first operand in the memory of that operand."""
    name, input = call.names[call.extra], operands[call.extra]
    if call.reduction == "none":
        raise ValueError(f"reduction must be 'mean' or 'sum' to overwrite {name}, got 'none'")
    if any(t.requires_grad and t.dtype == torch.float16 for t in operands):
        raise ValueError(
            f"{name} can not be overwritten by a gradient of float16, which may underflow before "
            "that of the loss is known"
        )
    check_overwritable(name, input)
    return _apply_overwriting_loss(library, call, *operands)


def check_overwritable(name: str, tensor: Tensor) -> None:
    """Raise for a leaf that requires grad: torch does not write to one in place either."""
    if any(t is not None and t.is_leaf and t.requires_grad for t in (tensor, tensor._base)):
        raise ValueError(
            f"{name} must not be a leaf that requires grad, nor a view of one, to be overwritten"
        )


class _OverwritingLoss(torch.autograd.Function):
    """A loss whose forward pass writes the gradient by its first operand over that operand.

    Nothing can be computed anew of what is overwritten. So the gradients are those for grad_output
    1, which the backward pass multiplies by any other.
    """

    @staticmethod
    @disable_compile
    def forward(ctx: Any, library: Tensors, call: Call, *operands: Tensor) -> Any:
        request = _request(call, ctx.needs_input_grad, early=False)
        value, *gradients = library.run_resolved(call, request, operands)
        input = operands[call.extra]
        torch.autograd.graph.increment_version(input)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input)  # as it is now: autograd notices any later change
        pairs = zip(request.wanted, gradients, strict=True)
        gradients = [None if k == call.extra else g for k, g in pairs]
        ctx.state = library, call, request.wanted, gradients
        return value

    @staticmethod
    @disable_compile
    def backward(ctx: Any, grad_output: Tensor | None) -> Any:
        if grad_output is None:
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the loss overwrote its input, so that it has no second derivatives: call it "
                "without overwrite_input for create_graph=True"
            )
        if ctx.state is None:
            raise RuntimeError(
                "the loss overwrote its input, so that its graph has one backward pass only: call "
                "it without overwrite_input for retain_graph=True"
            )
        if operators.is_dispatched(grad_output):
            raise RuntimeError(
                "the loss overwrote its input, so that its gradient takes no grad_output that is "
                "batched or of a class of its own: call it without overwrite_input"
            )
        (input,) = ctx.saved_tensors  # raises if it was modified since
        (library, call, wanted, gradients), ctx.state = ctx.state, None
        results: list[Tensor | None] = [None] * (2 + len(call.names))
        for k, gradient in zip(wanted, gradients, strict=True):
            found = input.detach() if gradient is None else gradient
            library.scale(found, grad_output)
            results[2 + k] = found
        return tuple(results)


_apply_overwriting_loss: Callable[..., Tensor] = super(
    torch.autograd.Function, _OverwritingLoss
).apply


class _Gradient(torch.autograd.Function):
    """The gradients of a loss, differentiable once more."""

    @staticmethod
    @disable_compile
    def forward(
        ctx: Any,
        library: Tensors,
        call: Call,
        wanted: tuple[int, ...],
        grad_output: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor | None, ...]:
        ctx.library, ctx.call, ctx.wanted = library, call, wanted
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_output, *operands)
        request = Request(value=False, wanted=wanted, vjp=True)
        return tuple(library.run(call, request, (grad_output, *operands)))

    @staticmethod
    @disable_compile
    def backward(ctx: Any, *tangents: Tensor | None) -> Any:
        request = Request(value=False, wanted=ctx.wanted, vjp=True)
        is_recorded = (
            torch.is_grad_enabled()  # create_graph=True
            or operators.is_watched()
            or any(t is not None and operators.is_dispatched(t) for t in tangents)
        )
        run = operators.run if is_recorded else ctx.library.run
        evaluation = Evaluation(ctx.call, request, ctx.saved_tensors, run)
        gradients = derivatives.of_gradients(evaluation, tangents, ctx.needs_input_grad[3:])
        return None, None, None, *gradients

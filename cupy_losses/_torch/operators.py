"""The losses as an operator of torch, for what is traced, transformed or watched.

torch.compile, torch.export, make_fx and torch.jit.trace record operators; FakeTensors and meta
tensors have no memory; torch.func calls operators once for each of its transforms. There a loss is
`torch.ops.cupy_losses.evaluate`, one operator for all losses and all their derivatives. Its
arguments are a text and the operands. The text is what is asked for (`operator_text.py`): a call
and a request of it. The derivatives of the operator are other requests of it (`derivatives.py`). A
batch is one more axis (`batching.py`). The shapes of its results are those that the plans of a
request use.

A traced forward pass computes the loss alone and its backward pass the gradients, each in one pass
over the operands. In eager mode the forward pass writes gradients, which the backward pass changes
in place. torch's compiler would copy what an operator changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .._core.loss import FORWARD, Call, Request
from . import derivatives, weights
from .batching import batched
from .dynamo import disable_compile
from .evaluation import (
    Evaluation,
    Run,
    arithmetic_dtype,
    is_autocast,
    outputs_of,
    spec_of,
    specs_of,
)
from .operator_text import Asked, asked_of, text_of

Tensor = torch.Tensor

# A process reads a text once. One more argument costs each call of the operator half a µs.
_SCHEMA = "evaluate(str asked, Tensor[] operands) -> Tensor[]"


# Whether a tensor comes from torch.autograd.grad(is_grads_batched=True), which has its own vmap.
is_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def dispatches(kind: type[Tensor]) -> bool:
    """Whether the tensors of a class are handed the operators that are called with them."""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def is_dispatched(tensor: Tensor) -> bool:
    """Whether the operator must be called for what is computed with a tensor.

    It is batched, or of a class that is handed operators: what it stands for, only that knows.
    """
    kind = type(tensor)
    return is_batched(tensor) or (kind is not Tensor and dispatches(kind))


_count_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_traced: Callable[[], bool] = torch._C._is_tracing
_are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
_has_modes_ahead: Callable[[], bool] = functools.partial(
    torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
)


def is_watched() -> bool:
    """Whether what runs is recorded, transformed or watched, so that the operator must be called.

    Every call asks.
    """
    return bool(
        _count_modes()
        or _is_traced()
        or _are_transforms_active()
        or forward_ad._current_level >= 0
        or _has_modes_ahead()
    )


def evaluate(call: Call, operands: Sequence[Tensor]) -> Tensor:
    """The loss, by the operator."""
    if call.scaled and torch.is_grad_enabled() and getattr(operands[-1], "requires_grad", False):
        return times_scale(evaluate, call, operands)
    return run(call, FORWARD, operands)[0]


def times_scale(
    of_unscaled: Callable[[Call, Sequence[Tensor]], Tensor], call: Call, operands: Sequence[Tensor]
) -> Tensor:
    """The loss times a scale that is differentiated: the derivative by it is the loss as it is."""
    *own, scale = operands
    value = of_unscaled(call.unscaled, own)
    return (value * scale).to(value.dtype)


def run(call: Call, request: Request, operands: Sequence[Any]) -> Sequence[Tensor]:
    """The results of a request, by the operator."""
    names = request.names_in_messages(call)
    for name, operand in zip(names, operands, strict=True):
        if not isinstance(operand, Tensor):
            raise TypeError(
                f"{name} must be a tensor as the others are, got {type(operand).__name__}"
            )
        if operand.device != operands[-1].device:
            raise ValueError(
                f"all arrays must be on the same device, got {name} on {operand.device} and "
                f"{names[-1]} on {operands[-1].device}"
            )
    if call.loss.overwrites:
        raise NotImplementedError(
            f"{call.names[call.extra]} is not overwritten inside what is traced or transformed: "
            "leave out overwrite_input"
        )
    autocast = is_autocast(operands)
    if not request.wanted or request.vjp:
        return _dispatched(call, request, operands, autocast)
    # Gradients without a grad_output are those for 1. So their own derivatives are VJP requests.
    dtype = arithmetic_dtype(operands[: len(operands) - call.scaled])
    one = operands[-1].new_ones((), dtype=dtype)
    vjp_request = request._replace(value=False, vjp=True)
    given = (*operands[: request.denominator], one, *operands[request.denominator :])
    if not request.value:
        return _dispatched(call, vjp_request, given, autocast)
    of_value = _counting(call, request._replace(wanted=()), operands)
    value, *count = _dispatched(call, of_value, operands, autocast)
    vjp_request = vjp_request._replace(denominator=request.denominator or of_value.counted)
    return [value, *_dispatched(call, vjp_request, (*count, *given), autocast)]


def _counting(call: Call, request: Request, operands: Sequence[Tensor]) -> Request:
    """The request; one of the value returns a count that its derivatives would take anew."""
    if request != FORWARD:
        return request
    specs, call = specs_of(call, operands), call.unscaled
    denominator = call.loss.denominator(call, call.loss.shape_of(call, specs), specs)
    return request._replace(counted=denominator.is_count)


@disable_compile
def _dispatched(
    call: Call, request: Request, operands: Sequence[Tensor], autocast: bool
) -> Sequence[Tensor]:
    """The results of a request, by the operator itself."""
    if any(map(is_batched, operands)):
        return _of_batched_grads(call, request, operands, autocast)
    text = text_of(Asked(call, request, autocast))
    try:
        return _operator()(text, list(operands))  # type: ignore[no-any-return]
    except RuntimeError as error:
        for name, operand in zip(request.names_in_messages(call), operands, strict=True):
            if type(operand).__name__ == "DTensor":  # torch may say to make all operands such
                raise NotImplementedError(
                    f"{name} is a DTensor: pass its full_tensor(), or its to_local() for the loss "
                    f"of one part. torch says: {error}"
                ) from error
        raise


def _of_batched_grads(
    call: Call, request: Request, operands: Sequence[Tensor], autocast: bool
) -> Sequence[Tensor]:
    """The results of a request on tensors of which some are batched by autograd."""
    torch._C._vmapmode_increment_nesting()
    level = torch._C._vmapmode_decrement_nesting()
    dims = [0 if is_batched(t) else None for t in operands]
    plain = [
        t if dim is None else torch._remove_batch_dim(t, level, 0, 0)
        for t, dim in zip(operands, dims, strict=True)
    ]
    size = next(t.shape[0] for t, dim in zip(plain, dims, strict=True) if dim == 0)
    results = batched(_dispatched, call, request, autocast, size, dims, plain)
    return [torch._add_batch_dim(result, 0, level) for result in results]


def _operator() -> Any:
    return torch.ops.cupy_losses.evaluate.default


def implement(device: str, library: Callable[[], Any], ordered: bool) -> None:
    """Let a library compute the operator on the tensors of a kind of device.

    Its results are `ordered` if they lie in memory as the plan of a request says.
    """

    @disable_compile
    def compute(text: str, operands: Sequence[Tensor]) -> list[Tensor]:
        asked = asked_of(text)
        call, request, autocast = asked.call, asked.request, asked.autocast
        if torch.is_autocast_enabled(kind) == autocast:
            results = library().run_here(call, request, operands)
        else:
            with torch.autocast(kind, enabled=autocast):
                results = library().run_here(call, request, operands)
        if ordered:
            return list(results)
        outputs = outputs_of(call, request, operands, autocast)
        pairs = zip(results, outputs, strict=True)
        return [_in_order(result, output.strides) for result, output in pairs]

    kind = device.lower()
    _libraries[kind] = library
    _computes[getattr(torch._C.DispatchKey, device)] = compute
    _operators.impl("evaluate", compute, device)


_libraries: dict[str, Callable[[], Any]] = {}
# By the dispatch key of a kind of device.
_computes: dict[Any, Callable[[str, Sequence[Tensor]], list[Tensor]]] = {}


def direct(text: str, device: str, of_one_layout: bool) -> Callable[[Sequence[Tensor]], Any]:
    """A function that computes the operator on a kind of device, without the dispatcher.

    With `of_one_layout`, all its calls have operands of the same dtypes, shapes and strides.
    """
    compute = functools.partial(_computes[getattr(torch._C.DispatchKey, device.upper())], text)
    if not of_one_layout:
        return compute
    asked, library = asked_of(text), _libraries[device]()
    return library.of_one_layout(asked.call, asked.request, asked.autocast, compute)  # type: ignore[no-any-return]


def _in_order(result: Any, strides: Sequence[int]) -> Tensor:
    tensor: Tensor = result
    if tensor.stride() == tuple(strides):
        return tensor
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


@disable_compile
def _allocate(text: str, operands: Sequence[Tensor]) -> list[Tensor]:
    """The operator on tensors without memory: results of the right shapes, strides and dtypes."""
    asked, like = asked_of(text), operands[-1]
    return [
        like.new_empty_strided(output.shape, output.strides, dtype=getattr(torch, output.dtype))
        for output in outputs_of(asked.call, asked.request, operands, asked.autocast)
    ]


class _Evaluate(_SingleLevelFunction):
    """The operator, whose derivatives are other requests of it.

    The denominator of the request, or None, comes before the operands. Nothing is differentiated by
    it. That denominator, or one that the request returns, divides the derivatives too. This class
    does not look for transforms, as a torch.autograd.Function would: they have called the operator,
    each at its level.
    """

    @staticmethod
    @disable_compile
    def forward(modes: _Modes, asked: Asked, denominator: Tensor | None, *operands: Tensor) -> Any:
        given = operands if denominator is None else (denominator, *operands)
        with modes.restored():
            return tuple(_below_autograd(modes.keys, text_of(asked), given))

    @staticmethod
    @disable_compile
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.modes, ctx.asked, denominator, *operands = inputs
        request = ctx.asked.request
        constant = output[1:] if request.counted else ()
        if constant:
            (denominator,) = constant
        needed = ctx.needs_input_grad[3:]
        if forward_ad._current_level < 0 and _is_constant(ctx.asked.call, _own(request), needed):
            constant = output
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(denominator, *operands)
        ctx.save_for_forward(denominator, *operands)

    @staticmethod
    @disable_compile
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Any:
        call, request = ctx.asked.call, _own(ctx.asked.request)
        denominator, *operands = ctx.saved_tensors
        if request.tangents and not request.value:
            edges = ctx.next_functions[-len(operands) :]
            if _is_asked(edges[request.extra : len(operands) - call.scaled]):
                raise NotImplementedError(derivatives.THIRD)
        evaluation = Evaluation(call, request, operands, _divided_by(denominator))
        gradients = derivatives.vjp(evaluation, grad_outputs, ctx.needs_input_grad[3:])
        return None, None, None, *gradients

    @staticmethod
    @disable_compile
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        call, request = ctx.asked.call, ctx.asked.request
        with ctx.modes.restored():
            # Without the tangents of this transform; those of an outer one stay.
            denominator, *operands = ctx.saved_tensors
            primals = [torch._VF._unpack_dual(t, level=0)[0] for t in operands]
            evaluation = Evaluation(call, _own(request), primals, _divided_by(denominator))
            return *derivatives.jvp(evaluation, tangents[3:]), *(None,) * request.counted

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> Any:  # a torch.autograd.Function has it
        return (ctx._autograd_function_id,)


def _own(request: Request) -> Request:
    """The request without a denominator, given or returned."""
    return request._replace(denominator=False, counted=False)


def _divided_by(denominator: Tensor | None) -> Run:
    """A function that evaluates requests, and gives those of derivatives a known denominator."""
    if denominator is None:
        return run

    def divided(call: Call, request: Request, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        if not (request.wanted or request.tangents):
            return run(call, request, operands)
        return run(call, request._replace(denominator=True), (denominator, *operands))

    return divided


def _is_constant(call: Call, request: Request, needed: Sequence[bool]) -> bool:
    """Whether the loss is constant in all operands that need a gradient."""
    leading, own = needed[: request.extra], needed[request.extra :]
    varied = [k for k, needs in enumerate(own) if needs]
    return not any(leading) and all(call.loss.is_constant(call, k) for k in varied) and any(own)


def _is_asked(edges: Sequence[tuple[Any, int]]) -> bool:
    """Whether the backward pass that runs goes on to one of these nodes of its graph."""
    nodes = [node for node, _ in edges if node is not None]
    try:
        return any(map(torch._C._will_engine_execute_node, nodes))
    except RuntimeError:  # the gradient by a leaf is what torch.autograd.grad is asked for
        return True


_apply: Callable[..., Sequence[Tensor]] = _Evaluate.apply  # type: ignore[attr-defined]


@disable_compile
def _batched(
    info: Any, dims: Any, text: str, operands: Sequence[Tensor]
) -> tuple[list[Tensor], list[int]]:
    """The operator for a batch."""
    asked, size = asked_of(text), info.batch_size
    call, request, autocast = asked.call, asked.request, asked.autocast
    results = batched(_dispatched, call, request, autocast, size, dims[-1], operands)
    return results, [0] * len(results)


class _Modes(NamedTuple):
    """The modes of the operator's caller, which `apply` switches off."""

    keys: Any
    grad: bool
    forward_grad: bool

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Let an outer transform differentiate what this one does."""
        with (
            torch.set_grad_enabled(self.grad),
            forward_ad._set_fwd_grad_enabled(self.forward_grad),
        ):
            yield


def _below_autograd(keys: Any, text: str, operands: Sequence[Tensor]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return _operator().redispatch(keys & torch._C._after_autograd_keyset, text, list(operands))


@disable_compile
def _with_derivatives(keys: Any, text: str, operands: Sequence[Tensor]) -> Any:
    """The operator for autograd: differentiable where an operand may vary."""
    grad = torch.is_grad_enabled()
    if (
        (grad and any(t.requires_grad for t in operands))
        or _are_transforms_active()
        or forward_ad._current_level >= 0
    ):
        asked = asked_of(text)
        if asked.call.extra and _is_weight_varied(asked, operands):
            return _composed(asked, operands)
        modes = _Modes(keys, grad, torch._C._is_fwd_grad_enabled())
        request = _counting(asked.call, asked.request, operands)
        counting = dataclasses.replace(asked, request=request)
        given = operands if request.denominator else (None, *operands)
        with enable_single_level_autograd_function():  # that of the present transform
            results = _apply(modes, counting, *given)
        return [*results[:1]] if request != asked.request else [*results]
    # Compiled code comes here. What the dispatcher would call next is called at once.
    compute = _computes.get((keys & _AFTER_AUTOGRAD).highestPriorityTypeId())
    return _below_autograd(keys, text, operands) if compute is None else compute(text, operands)


def _is_weight_varied(asked: Asked, operands: Sequence[Tensor]) -> bool:
    """Whether autograd or the present transform varies a weight of `weights.composed_by`."""
    varied = [operands[asked.request.extra + k] for k in weights.composed_by(asked.call)]
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in varied):
        return True
    return any(torch._VF._unpack_dual(weight, level=0)[1] is not None for weight in varied)


def _composed(asked: Asked, operands: Sequence[Tensor]) -> list[Tensor]:
    """The results from other calls of the operator: no kernel has derivatives by the weight."""
    call, request = asked.call, asked.request
    own = operands[: len(operands) - call.scaled]
    scale = operands[-1] if call.scaled else call.scale
    specs = [spec_of(t) for t in own[request.extra :]]
    results = weights.composed(_dispatched, call.unscaled, request, own, specs, scale)
    if request.value:
        output, *_ = outputs_of(call, request, operands, asked.autocast)
        results[0] = results[0].to(getattr(torch, output.dtype))
    return results


_AFTER_AUTOGRAD = torch._C._after_ADInplaceOrView_keyset


_TAGS = torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order
_operators: Any = torch.library.Library("cupy_losses", "DEF")  # type: ignore[no-untyped-call]
_operators.define(_SCHEMA, tags=_TAGS)
_operators.impl("evaluate", _with_derivatives, "Autograd", with_keyset=True)
torch.library.register_fake("cupy_losses::evaluate", _allocate, lib=_operators)
torch.library.register_vmap("cupy_losses::evaluate", _batched, lib=_operators)

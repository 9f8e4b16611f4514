"""torch tensors: passes over them without copies, and the bridge to autograd, for all losses.

DLPack is the protocol for sharing, see `Exporter`; but a round trip costs 4 to 16 µs a tensor, more
than torch takes for a whole small loss, so that the hot path reads `data_ptr()` and the strides
itself. benchmarks/ shows both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from .._core.losses import FORWARD, Call, Pass
from .._core.shapes import Operand
from .._device import driver, engine
from .._device.launch import Launch
from .._device.plan import Allocator, Output
from .._device.plan_pointwise import scale_launch
from .._host import chunks, pointwise

Tensor = torch.Tensor


class Exporter:
    """A tensor for `from_dlpack`, without the checks and synchronisation of Tensor.__dlpack__.

    The caller works on the tensor's own stream or in order after it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.resolve_neg()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream is not None:
            mine = torch.cuda.current_stream(self._tensor.device)
            if mine.cuda_stream != (0 if stream == 1 else stream):
                event = mine.record_event()
                consumer = torch.cuda.ExternalStream(stream, self._tensor.device)  # type: ignore[no-untyped-call]
                consumer.wait_event(event)
        return torch.to_dlpack(self._tensor)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._tensor.get_device())


# ---- CUDA tensors --------------------------------------------------------------------------------


# The public ways cost 1 µs and 0.2 µs, these 0.1 µs.
_current_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda device: torch.cuda.current_stream(device).cuda_stream,
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class TorchLibrary:
    """CUDA tensors, on torch's current stream."""

    stream = staticmethod(_current_stream)
    current_device = staticmethod(_current_device)

    def inspect(self, operands: Sequence[Tensor]) -> tuple[Any, list[int]]:
        key: list[Any] = [torch.is_autocast_enabled("cuda")]
        pointers = []
        for t in operands:
            strides = None if t.is_contiguous() else t.stride()
            key += t.dtype, t.shape, strides, t.get_device()
            pointers.append(t.data_ptr())
        return tuple(key), pointers

    def autocast(self) -> bool:
        return torch.is_autocast_enabled("cuda")

    def describe(self, array: Tensor) -> Operand:
        name = str(array.dtype).removeprefix("torch.")
        return Operand(name, tuple(array.shape), array.stride())

    def device(self, array: Tensor) -> int:
        return array.get_device()

    def use_device(self, device: int) -> Any:
        return torch.cuda.device(device)

    def pointers(self, arrays: Sequence[Tensor]) -> list[int]:
        return [array.data_ptr() for array in arrays]

    def allocator(self, output: Output) -> Allocator:
        like, dtype = output.like, getattr(torch, output.dtype)
        if like >= 0:
            return lambda operands: torch.empty_like(operands[like])
        if output.shape == ():
            return lambda operands: operands[-1].new_empty((), dtype=dtype)
        return lambda operands: operands[-1].new_empty_strided(
            output.shape, output.strides, dtype=dtype
        )

    def filled(self, output: Output, value: float) -> Allocator:
        dtype = getattr(torch, output.dtype)
        return lambda operands: operands[-1].new_full(output.shape, value, dtype=dtype)

    def scratch(self, operands: Sequence[Tensor], size: int, stream: int) -> tuple[Any, int]:
        # While a graph is captured this comes from the graph's own pool.
        memory = operands[-1].new_empty(size, dtype=torch.uint8)
        return memory, memory.data_ptr()


class _TorchBackend:
    """What CUDA and CPU tensors have in common: autograd."""

    # One pass over operands without negation bits.
    run_resolved: Callable[[Call, Pass, Sequence[Tensor]], list[Tensor | None]]

    def run(self, call: Call, todo: Pass, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """One pass over the operands."""
        if call.loss.overwrites and call.extra in todo.wanted:
            torch.autograd.graph.increment_version(operands[todo.extra + call.extra])
        return self.run_resolved(call, todo, [operand.resolve_neg() for operand in operands])

    def evaluate(self, call: Call, operands: Sequence[Tensor]) -> Tensor:
        """The loss, with a gradient function where an operand requires grad."""
        differentiate = False
        for operand in operands:
            if operand.is_neg():
                operands = [tensor.resolve_neg() for tensor in operands]
            if operand.requires_grad:
                differentiate = True
        differentiate = differentiate and torch.is_grad_enabled()
        # An autograd.Function refuses tangents itself; without one they would be lost.
        tangents = forward_ad._current_level >= 0 and not differentiate
        if tangents or torch._C._are_functorch_transforms_active():
            raise NotImplementedError(
                "forward-mode differentiation and torch.func transforms are not available: use "
                "backward(), or cupy_losses.value_and_grad"
            )
        if differentiate:
            if call.loss.overwrites and operands[call.extra].requires_grad:
                return _overwrite(self, call, operands)
            return _apply_loss(self, call, *operands)
        return self.run_resolved(call, FORWARD, operands)[0]  # type: ignore[return-value]

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        """Gradient *= grad_output, in place and without asking the device for the value."""
        raise NotImplementedError


class CudaBackend(_TorchBackend):
    """Losses of CUDA tensors."""

    def __init__(self) -> None:
        driver.require_gpu()
        self.run_resolved = functools.partial(engine.run, TorchLibrary())

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        if gradient.numel() == 0:
            return
        grad_output = grad_output.resolve_neg()
        device = gradient.get_device()
        launch = _scale_launch(gradient.dtype, grad_output.dtype, gradient.numel(), device)
        launch(_current_stream(device), gradient.data_ptr(), grad_output.data_ptr())


@functools.lru_cache(maxsize=1024)
def _scale_launch(
    gradient: torch.dtype, grad_output: torch.dtype, size: int, device: int
) -> Launch:
    names = [str(dtype).removeprefix("torch.") for dtype in (gradient, grad_output)]
    return scale_launch(names[0], names[1], size, device)


# ---- CPU tensors ---------------------------------------------------------------------------------


class CpuBackend(_TorchBackend):
    """Losses of CPU tensors, on the host backend."""

    def __init__(self) -> None:
        self.run_resolved = _run_on_host

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        gradient.mul_(grad_output)


def _run_on_host(call: Call, todo: Pass, operands: Sequence[Tensor]) -> list[Tensor | None]:
    names = ("",) * todo.extra + call.names
    arrays = [_to_numpy(*named) for named in zip(operands, names, strict=True)]
    results = pointwise.run(call, todo, arrays, torch.is_autocast_enabled("cpu"))
    outputs: list[Tensor | None] = []
    for result in results:
        # A gradient that overwrites an operand is that operand.
        same = [t for t, array in zip(operands, arrays, strict=True) if array is result]
        outputs.append(same[0] if same else None if result is None else _from_numpy(result))
    return outputs


def _to_numpy(tensor: Tensor, name: str) -> Any:
    if tensor.is_cuda:
        raise ValueError(
            f"all arrays must be on the same device, got {name} on {tensor.device} and another "
            "array on the host"
        )
    tensor = tensor.detach()
    try:
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(chunks.dtype("bfloat16"))
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be a dense torch array on the host or a CUDA device: {error}"
        ) from error


def _from_numpy(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# ---- autograd ------------------------------------------------------------------------------------


class _Loss(torch.autograd.Function):
    """A loss. Its forward pass writes the gradients too, where that saves a pass."""

    @staticmethod
    def forward(ctx: Any, backend: _TorchBackend, call: Call, *operands: Tensor) -> Any:
        todo = _early_pass(call, ctx.needs_input_grad)
        gradients = backend.run_resolved(call, todo, operands)
        value = gradients.pop(0)
        ctx.state = backend, call, todo.wanted, gradients
        ctx.save_for_backward(*operands)
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        backend, call, wanted, ready = ctx.state
        operands = ctx.saved_tensors  # raises if one was modified since
        if call.loss.sums_last_axis(call):
            grad_output = grad_output.unsqueeze(-1)
        gradients: list[Tensor | None]
        if torch.is_grad_enabled():  # create_graph=True
            gradients = _Gradient.apply(  # type: ignore[no-untyped-call]
                backend, call, wanted, grad_output, *operands
            )
        else:
            # Handed out once: a second backward pass computes the gradients anew.
            gradients, ready[:] = ready[:], [None] * len(ready)
            complete = True
            for gradient in gradients:
                if gradient is None:
                    complete = False
                else:
                    backend.scale(gradient, grad_output)
            if not complete:
                _complete(gradients, backend, call, wanted, (grad_output, *operands))
        results: list[Tensor | None] = [None] * (2 + len(operands))
        for k, gradient in zip(wanted, gradients, strict=True):
            results[2 + k] = gradient
        return tuple(results)


def _complete(
    gradients: list[Tensor | None],
    backend: _TorchBackend,
    call: Call,
    wanted: Sequence[int],
    operands: Sequence[Tensor],
) -> None:
    """Compute the gradients that are missing."""
    missing = [i for i, gradient in enumerate(gradients) if gradient is None]
    todo = Pass(values=False, wanted=tuple(wanted[i] for i in missing), chained=True)
    for i, gradient in zip(missing, backend.run(call, todo, operands), strict=True):
        gradients[i] = gradient


# Function.apply takes 2 µs to look for functorch's wrappers, which have no address anyway.
_apply_loss: Callable[..., Tensor] = super(torch.autograd.Function, _Loss).apply


@functools.lru_cache(maxsize=1024)
def _early_pass(call: Call, needs_input_grad: tuple[bool, ...]) -> Pass:
    """The forward pass for the operands that need a gradient."""
    needed = needs_input_grad[-len(call.names) :]
    wanted = tuple(k for k, needs in enumerate(needed) if needs)
    for k in wanted:
        if refusal := call.loss.refusal(call, k):
            raise ValueError(refusal)
    return Pass(wanted=wanted, early=True)


def _overwrite(backend: _TorchBackend, call: Call, operands: Sequence[Tensor]) -> Tensor:
    """The loss, with the gradient by its first operand in the memory of that operand."""
    name, input = call.names[call.extra], operands[call.extra]
    if call.reduction == "none":
        raise ValueError(f"reduction must be 'mean' or 'sum' to overwrite {name}, got 'none'")
    if any(t.requires_grad and t.dtype == torch.float16 for t in operands):
        raise ValueError(
            f"{name} can not be overwritten by a gradient of float16, which may underflow before "
            "that of the loss is known"
        )
    if any(t is not None and t.is_leaf and t.requires_grad for t in (input, input._base)):
        raise ValueError(
            f"{name} must not be a leaf that requires grad, nor a view of one, to be overwritten"
        )
    return _apply_overwriting_loss(backend, call, *operands)


class _OverwritingLoss(torch.autograd.Function):
    """A loss whose forward pass writes the gradient by its first operand over that operand."""

    @staticmethod
    def forward(ctx: Any, backend: _TorchBackend, call: Call, *operands: Tensor) -> Any:
        todo = _early_pass(call, ctx.needs_input_grad)
        value, *gradients = backend.run_resolved(call, todo, operands)
        input = operands[call.extra]
        torch.autograd.graph.increment_version(input)
        ctx.save_for_backward(input)  # as it is now: autograd notices any later change
        pairs = zip(todo.wanted, gradients, strict=True)
        gradients = [None if k == call.extra else g for k, g in pairs]
        ctx.state = backend, call, todo.wanted, gradients
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
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
        (input,) = ctx.saved_tensors  # raises if it was modified since
        (backend, call, wanted, gradients), ctx.state = ctx.state, None
        results: list[Tensor | None] = [None] * (2 + len(call.names))
        for k, gradient in zip(wanted, gradients, strict=True):
            found = input.detach() if gradient is None else gradient
            backend.scale(found, grad_output)
            results[2 + k] = found
        return tuple(results)


_apply_overwriting_loss: Callable[..., Tensor] = super(
    torch.autograd.Function, _OverwritingLoss
).apply


class _Gradient(torch.autograd.Function):
    """The gradients of a loss, differentiable once more."""

    @staticmethod
    def forward(
        ctx: Any,
        backend: _TorchBackend,
        call: Call,
        wanted: tuple[int, ...],
        grad_output: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor | None, ...]:
        ctx.backend, ctx.call, ctx.wanted = backend, call, wanted
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_output, *operands)
        todo = Pass(values=False, wanted=wanted, chained=True)
        return tuple(backend.run(call, todo, (grad_output, *operands)))

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> Any:
        directions = tuple(
            k for k, tangent in zip(ctx.wanted, tangents, strict=True) if tangent is not None
        )
        given = [tangent for tangent in tangents if tangent is not None]
        needed = ctx.needs_input_grad[3:]
        if not given:
            return None, None, None, *(None for _ in needed)
        results = _SecondGradient.apply(  # type: ignore[no-untyped-call]
            ctx.backend, ctx.call, directions, needed, *given, *ctx.saved_tensors
        )
        return None, None, None, *results


class _SecondGradient(torch.autograd.Function):
    """The gradients of the gradients: by grad_output, then by each operand, where needed."""

    @staticmethod
    def forward(
        ctx: Any,
        backend: _TorchBackend,
        call: Call,
        directions: tuple[int, ...],
        needed: tuple[bool, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:
        tangents = tensors[: len(directions)]
        grad_output, *operands = tensors[len(directions) :]
        results: list[Tensor | None] = [None] * (1 + len(operands))
        if needed[0]:
            todo = Pass(directions=directions)
            # The dtype of the loss, which autocast may have widened, is that of grad_output.
            wide = grad_output.dtype == torch.float32
            with torch.autocast(grad_output.device.type, enabled=wide):
                value = backend.run(call, todo, (*tangents, *operands))[0]
            assert value is not None
            results[0] = value.reshape(grad_output.shape).to(grad_output.dtype)
        wanted = tuple(k for k, wants in enumerate(needed[1:]) if wants)
        if wanted:
            todo = Pass(values=False, wanted=wanted, chained=True, directions=directions)
            gradients = backend.run(call, todo, (grad_output, *tangents, *operands))
            for k, gradient in zip(wanted, gradients, strict=True):
                results[1 + k] = gradient
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("third derivatives of a loss are not available")

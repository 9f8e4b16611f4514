"""torch tensors: requests on them without copies, on CUDA devices and on the host.

DLPack is the protocol for sharing, see `Exporter`; but a round trip costs 4 to 16 µs a tensor, more
than torch takes for a whole small loss, so that the hot path reads `data_ptr()` and the strides
itself. benchmarks/ shows both.
"""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .._core.dtypes import DTYPES, check_dtypes, dtype_name, numpy_dtype
from .._core.loss import Call, Request
from .._core.memory import without_memory
from .._core.outputs import Output
from .._device import driver, engine
from .._device.hardware import VECTOR_BYTES
from .._device.launch import Launch
from .._device.library import Allocator
from .._device.plan import Plan
from .._device.scale import scale_launch
from .._torch import autograd, inductor, operators, values
from .._torch.evaluation import in_memory, spec_of
from .numpy import on_host
from .registry import ArrayLibrary, Locatable, Located, Sample, instance, register

Tensor = torch.Tensor
Computed = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Exporter(Locatable):
    """A CUDA tensor for another library, without the checks and copies of Tensor.__dlpack__.

    The caller works on the tensor's own stream or in order after it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = in_memory(tensor)
        self._is_copy = self._tensor is not tensor  # which nobody else keeps

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream is not None:
            self._order(stream)
        return torch.to_dlpack(self._tensor)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._tensor.get_device())

    def located(self, device: int, stream: int) -> Located | None:
        """Where the tensor lies."""
        tensor = self._tensor
        if tensor.get_device() != device:
            return None
        self._order(stream)
        strides = None
        if not tensor.is_contiguous():
            size = tensor.element_size()
            strides = tuple([step * size for step in tensor.stride()])
        dtype = dtype_name(tensor.dtype)
        address = tensor.data_ptr()
        return Located(dtype, tensor.shape, strides, tensor.nbytes, device, address, tensor)

    def _order(self, stream: int) -> None:
        """Let a stream wait for what the current one of the tensor's device has to do."""
        device = self._tensor.get_device()
        if _current_stream(device) != (0 if stream == 1 else stream):
            event = torch.cuda.current_stream(device).record_event()
            # Of 0, ExternalStream would make a stream of torch's pool.
            consumer = (
                torch.cuda.default_stream(device)
                if stream in (0, 1)
                else torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
            )
            consumer.wait_event(event)
            if self._is_copy:
                self._tensor.record_stream(consumer)


_disabled: Any = torch._C._disabled_torch_function_impl


def _is_overriding(kind: type) -> bool:
    """Whether tensors of a class see to operators themselves, as FakeTensors do and wrappers."""
    if kind is Tensor or not issubclass(kind, Tensor):
        return False
    return operators.dispatches(kind) or kind.__torch_function__ is not _disabled


class TensorLibrary(ArrayLibrary):
    """What all tensors have in common."""

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """Tensors of any class."""
        return (Tensor,)

    def one(self, like: Tensor) -> Tensor:
        """The number 1."""
        return like.new_ones(())

    def plain(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands, unless there are no values to check."""
        if any(_is_overriding(type(t)) or getattr(t, "is_meta", False) for t in operands):
            raise NotImplementedError(
                "check_values reads the operands, which is not possible inside what is traced"
            )
        return operands

    @contextlib.contextmanager
    def samples(self, operands: Sequence[Any]) -> Iterator[Iterable[Sample]]:
        """What transforms have wrapped."""
        with values.unwatched():
            yield values.samples(operands)


class TorchLibrary(TensorLibrary):
    """What tensors on all devices have in common: autograd."""

    device_type: str

    @classmethod
    def owns(cls, array: Any) -> bool:
        """Dense tensors on the devices of the class, but for those that `TorchTraced` has."""
        return (
            isinstance(array, Tensor)
            and not _is_overriding(type(array))
            and array.layout is torch.strided
            and array.device.type == cls.device_type
        )

    @classmethod
    def by_type(cls, kind: type) -> Callable[[Any], ArrayLibrary] | None:
        """Tensors and parameters tell by themselves where they are; subclasses are to be asked."""
        return _by_device if kind in (Tensor, torch.nn.Parameter) else None

    def adopt(self, array: Any) -> Tensor:
        """A view of another library's array."""
        if isinstance(array, Tensor):
            return array
        if any(step < 0 for step in getattr(array, "strides", None) or ()):
            raise ValueError("torch has no negative strides")  # its from_dlpack ends the process
        return torch.utils.dlpack.from_dlpack(array)

    def exported(self, array: Tensor) -> Any:
        """A tensor without the checks and synchronisation of its own export."""
        if operators.is_watched():
            raise TypeError("it is traced or transformed: let the first argument be a tensor too")
        return Exporter(array) if array.is_cuda else in_memory(array)

    evaluate = autograd.evaluate

    def run(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Tensor | None]:
        """The results of a request."""
        if operators.is_watched():
            return list(operators.run(call, request, operands))
        return self.run_here(call, request, operands)

    def run_here(
        self, call: Call, request: Request, operands: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The results of a request, whatever watches."""
        resolved = autograd.resolved(call, operands, request.extra)
        if not (call.loss.overwrites and call.extra in request.wanted):
            return self.run_resolved(call, request, resolved)
        overwritten = operands[request.extra + call.extra]
        autograd.check_overwritable(call.names[call.extra], overwritten)
        results = self.run_resolved(call, request, resolved)
        torch.autograd.graph.increment_version(overwritten)
        return results

    @abstractmethod
    def run_resolved(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Any]:
        """The results of a request on tensors with their elements in memory, see `autograd`."""

    def of_one_layout(
        self, call: Call, request: Request, autocast: bool, compute: Computed
    ) -> Computed:
        """What computes a request on tensors of one layout as `compute` does, if faster."""
        return compute

    @abstractmethod
    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        """Gradient *= grad_output, in place and without asking the device for the value."""


def _by_device(tensor: Tensor) -> ArrayLibrary:
    if tensor.is_cuda:
        return _cuda()
    return instance(TorchTraced if tensor.is_meta else TorchCpu)


@functools.cache
def _cuda() -> ArrayLibrary:
    return instance(TorchCuda)


# The public ways cost 1 µs and 0.2 µs, these 0.1 µs.
_current_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda device: torch.cuda.current_stream(device).cuda_stream,
)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@register
class TorchCuda(TorchLibrary):
    """CUDA tensors, on torch's current stream; for the CUDA backend see `_device/library.py`."""

    name = "torch cuda"
    on_host = False
    device_type = "cuda"
    run_resolved = engine.run
    address = staticmethod(Tensor.data_ptr)
    stream = staticmethod(_current_stream)
    current_device = staticmethod(_current_device)
    spec = staticmethod(spec_of)

    def __init__(self) -> None:
        driver.require_gpu()

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

    def device(self, array: Tensor) -> int:
        return array.get_device()

    def use_device(self, device: int) -> Any:
        return torch.cuda.device(device)

    def allocator(self, output: Output) -> Allocator:
        like, dtype = output.like, getattr(torch, output.dtype)
        if like >= 0:
            return lambda operands: torch.empty_like(operands[like])
        if output.shape == ():
            scalar = _scalar(dtype, torch.cuda.current_device())
            return lambda operands: torch.empty_like(scalar)
        return lambda operands: operands[-1].new_empty_strided(
            output.shape, output.strides, dtype=dtype
        )

    def filled(self, output: Output, value: float) -> Allocator:
        dtype = getattr(torch, output.dtype)
        return lambda operands: operands[-1].new_full(output.shape, value, dtype=dtype)

    def scratch(self, operands: Sequence[Tensor], size: int, is_captured: bool) -> tuple[Any, int]:
        # While a graph is captured this comes from the graph's own pool.
        memory = operands[-1].new_empty(size, dtype=torch.uint8)
        return memory, memory.data_ptr()

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        """Gradient *= grad_output, by a kernel that returns at once where that is 1.

        It takes dense memory that begins at a vector: other views are left to torch.
        """
        if gradient.numel() == 0:
            return
        if gradient.data_ptr() % VECTOR_BYTES or not _is_dense(gradient):
            _multiply(gradient, grad_output)
            return
        grad_output = in_memory(grad_output)
        device = self.device(gradient)
        launch = _scale_launch(gradient.dtype, grad_output.dtype, gradient.numel(), device)
        addresses = gradient.data_ptr(), grad_output.data_ptr()
        launch.start(self.stream(device), (), 1.0, addresses)

    def of_one_layout(
        self, call: Call, request: Request, autocast: bool, compute: Computed
    ) -> Computed:
        return _OfOneLayout(self, call, request, autocast, compute)


class _OfOneLayout:
    """A request on tensors of one layout: its plan is looked up once, for an aligned start."""

    def __init__(
        self, library: TorchCuda, call: Call, request: Request, autocast: bool, compute: Computed
    ) -> None:
        self._asked = library, call, request
        self._autocast = autocast
        self._compute = compute
        self._parameters, self._scale = call.parameters, call.scale
        self._plan: Plan | None = None
        self._is_special = False

    def __call__(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._is_special:
            return self._compute(operands)
        pointers = []
        for tensor in operands:
            pointer = tensor.data_ptr()
            if pointer & 15:
                return self._compute(operands)
            pointers.append(pointer)
        plan = self._plan
        if plan is None or not plan.device == _current_device() == operands[-1].get_device():
            return self._first(operands)
        return plan.run(operands, pointers, self._parameters, self._scale)

    def _first(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results, and the plan for the calls that follow on this device."""
        results = self._compute(operands)
        with torch.autocast("cuda", enabled=self._autocast):
            plan, _ = engine.planned(*self._asked, operands)
        if plan.is_special:
            self._is_special = True
        else:
            self._plan = plan
        return results


@functools.cache
def _scalar(dtype: torch.dtype, device: int) -> Tensor:
    """A tensor of shape () to make others like: half the time of `new_empty` with a dtype.

    It has no memory: that could be of the pool of a CUDA graph, which would have to stay.
    """
    scalar = torch.empty((), dtype=dtype, device=f"cuda:{device}")
    if type(scalar) is not Tensor:  # FakeTensorMode: it must not stay when the mode ends
        raise TypeError(
            f"losses need tensors with memory, and a mode makes {type(scalar).__name__}"
        )
    scalar.untyped_storage().resize_(0)
    return scalar


@functools.lru_cache(maxsize=1024)
def _scale_launch(
    gradient: torch.dtype, grad_output: torch.dtype, size: int, device: int
) -> Launch:
    return scale_launch(dtype_name(gradient), dtype_name(grad_output), size, device)


@register
class TorchCpu(TorchLibrary):
    """CPU tensors, on the host backend."""

    name = "torch"
    on_host = True
    device_type = "cpu"

    def run_resolved(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Any]:
        """The results of a request, by way of NumPy views."""
        names = request.names_in_messages(call) if request.extra else call.names
        arrays = [_to_numpy(*named) for named in zip(operands, names, strict=True)]
        results = on_host(call, request, arrays, torch.is_autocast_enabled("cpu"))
        outputs: list[Any] = [None if result is None else _from_numpy(result) for result in results]
        if call.loss.overwrites:
            # A gradient that overwrites an operand is that operand.
            for k, result in enumerate(results):
                same = (t for t, array in zip(operands, arrays, strict=True) if array is result)
                outputs[k] = next(same, outputs[k])
        if request.early:
            written = any(gradient is not None for gradient in outputs[1:])
            outputs.append(_WrittenForOne() if written else None)
        return outputs

    def scale(self, gradient: Tensor, grad_output: Tensor) -> None:
        """Gradient *= grad_output."""
        _multiply(gradient, grad_output)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor that does not overlap itself has all elements between its ends."""
    steps = [(n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return sum(steps) + 1 == tensor.numel()


def _multiply(gradient: Tensor, grad_output: Tensor) -> None:
    """Gradient *= grad_output, rounded once.

    As a tensor of axes, grad_output keeps its dtype in the product.
    """
    torch.mul(gradient, grad_output.reshape((1,) * gradient.ndim), out=gradient)


class _WrittenForOne:
    """Gradients on the host, which always anticipates a grad_output of 1."""

    def finish(self, operands: Sequence[Tensor], grad_output: Tensor) -> bool:
        return bool(grad_output.item() == 1)  # a comparison of tensors takes 15 times as long


def _to_numpy(tensor: Tensor, name: str) -> Any:
    if tensor.is_cuda or tensor.is_meta:
        raise ValueError(
            f"all arrays must be on the same device, got {name} on {tensor.device} and another "
            "array on the host"
        )
    tensor = tensor.detach()
    try:
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        dtype = dtype_name(tensor.dtype)
        if dtype not in DTYPES:  # NumPy does not have those of torch alone
            check_dtypes([dtype], [name])
        raise without_memory(name, tensor, error) from error


def _from_numpy(array: Any) -> Tensor:
    if dtype_name(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@register
class TorchTraced(TensorLibrary):
    """Tensors that decide themselves what they do with an operator, and may have no memory.

    They stand for others while something is traced, or wrap others.
    """

    name = "torch traced"
    on_host = False
    takes_over = True

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """Tensors, and what torch.fx has in place of them."""
        return (Tensor, torch.fx.Proxy)

    @classmethod
    def owns(cls, array: Any) -> bool:
        """Those of subclasses, dense and on any device, and meta tensors."""
        if isinstance(array, torch.fx.Proxy):
            raise TypeError(
                "torch.fx.symbolic_trace records calls of losses, and of nothing else of this "
                "package: make_fx records derivatives, by torch.func"
            )
        return (
            isinstance(array, Tensor)
            and array.layout is torch.strided
            and (_is_overriding(type(array)) or array.is_meta)
        )

    @classmethod
    def by_type(cls, kind: type) -> Callable[[Any], ArrayLibrary] | None:
        """Meta tensors have the class of those with memory."""
        return super().by_type(kind) if _is_overriding(kind) else None

    def adopt(self, array: Any) -> Any:
        """Every tensor as it is; what else there is, the operator refuses."""
        return array

    def evaluate(self, call: Call, operands: Sequence[Any]) -> Tensor:
        """The loss, by the operator."""
        inductor.extend()
        return operators.evaluate(call, operands)

    def run(self, call: Call, request: Request, operands: Sequence[Any]) -> list[Tensor | None]:
        """The results of a request, by the operator."""
        return operators.run(call, request, operands)  # type: ignore[return-value]


operators.implement("CPU", lambda: instance(TorchCpu), ordered=False)
operators.implement("CUDA", lambda: instance(TorchCuda), ordered=True)

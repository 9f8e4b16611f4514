"""The CUDA backend: passes over CuPy arrays, or over torch tensors by way of `_torch`.

The hot path is `run`: read the addresses, look the plan up, let it launch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from .._core.losses import FORWARD, Call, Loss, Pass
from .._core.rows import RowLoss
from .._core.shapes import Operand, result_dtype
from . import driver, plan_pointwise, plan_rows
from .plan import Allocator, Array, Library, Output, Plan, Problem


class DeviceLibrary(Library, Protocol):
    """What the CUDA backend asks of an array library, besides what a plan asks."""

    def inspect(self, operands: Sequence[Array]) -> tuple[Any, list[int]]:
        """All that a plan depends on (dtypes, shapes, strides, devices, modes), and addresses."""

    def autocast(self) -> bool:
        """Whether losses of half precision are to be float32."""

    def describe(self, array: Array) -> Operand:
        """An array without its data."""

    def device(self, array: Array) -> int:
        """The device of an array; negative on the host."""

    def current_device(self) -> int:
        """The device that work goes to now."""

    def use_device(self, device: int) -> Any:
        """A context in which work goes to another device."""


_plans: dict[Any, Plan] = {}
_MAX_PLANS = 4096


def run(
    library: DeviceLibrary, call: Call, todo: Pass, operands: Sequence[Array]
) -> list[Array | None]:
    """Compute one pass: the value, if asked for, then the wanted gradients."""
    try:
        described, pointers = library.inspect(operands)
    except RuntimeError as error:
        raise _without_memory(library, call, operands) from error
    misaligned: Any = None
    for pointer in pointers:
        if pointer & 15:
            misaligned = tuple([pointer & 15 for pointer in pointers])
            break
    key = call, todo, misaligned, described
    try:
        plan = _plans[key]
    except TypeError:  # a reduction that has no hash
        call.check()
        raise
    except KeyError:
        plan = _new_plan(library, call, todo, operands, misaligned or (0,) * len(pointers))
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    if plan.warning is not None:
        plan.warning()
    if plan.device == library.current_device():
        return plan(operands, pointers)
    with library.use_device(plan.device):
        return plan(operands, pointers)


def _without_memory(library: DeviceLibrary, call: Call, operands: Sequence[Array]) -> TypeError:
    """The error for an operand that has no address or no strides."""
    for name, operand in zip(reversed(call.names), reversed(operands), strict=False):
        try:
            library.inspect([operand])
        except RuntimeError as error:
            return TypeError(
                f"{name} must be a dense torch array on the host or a CUDA device: {error}"
            )
    return TypeError("an array has no memory")


def _new_plan(
    library: DeviceLibrary,
    call: Call,
    todo: Pass,
    operands: Sequence[Array],
    misaligned: tuple[int, ...],
) -> Plan:
    """Check the arguments of a call and decide how to compute it."""
    call.check()
    described = tuple(library.describe(operand) for operand in operands)
    own = described[todo.extra :]
    shape = call.loss.shape_of(call, own)
    device = _common_device(library, call, operands[todo.extra :])
    problem = Problem(
        call,
        todo,
        described,
        misaligned,
        shape,
        result_dtype(call.loss.promoted(call, own), library.autocast()),
        device,
    )
    with library.use_device(device):
        return make_plan(library, problem)


def make_plan(library: Library, problem: Problem) -> Plan:
    """Decide how to compute a problem."""
    loss = problem.call.loss
    if isinstance(loss, RowLoss):
        return plan_rows.make_plan(library, problem, loss)
    assert isinstance(loss, Loss)
    return plan_pointwise.make_plan(library, problem, loss)


def _common_device(library: DeviceLibrary, call: Call, operands: Sequence[Array]) -> int:
    devices = [library.device(operand) for operand in operands]
    if len(set(devices)) > 1:
        given = ", ".join(
            f"{name} on {f'cuda:{device}' if device >= 0 else 'the host'}"
            for name, device in zip(call.names, devices, strict=True)
        )
        raise ValueError(f"all arrays must be on the same device, got {given}")
    return devices[0]


class CupyLibrary:
    """CuPy arrays, on CuPy's current stream."""

    def __init__(self) -> None:
        self._cupy = driver.require_gpu()
        self._runtime = self._cupy.cuda.runtime
        self._captured: list[Any] = []
        self.current_device = self._runtime.getDevice

    def inspect(self, operands: Sequence[Array]) -> tuple[Any, list[int]]:
        key: list[Any] = []
        pointers: list[int] = []
        for array in operands:
            data = array.data
            key += array.dtype, array.shape, array.strides, data.device_id
            pointers.append(data.ptr)
        return tuple(key), pointers

    def autocast(self) -> bool:
        return False

    def describe(self, array: Array) -> Operand:
        size = array.dtype.itemsize
        if not array.dtype.isnative or any(step % size for step in array.strides):
            raise TypeError(
                "a CuPy array must have the machine's byte order and strides of whole elements, "
                f"got {array.dtype.str} with strides {array.strides}"
            )
        if array.data.ptr % size:
            raise TypeError("a CuPy array must start at a multiple of its element size")
        return Operand(array.dtype.name, array.shape, tuple(step // size for step in array.strides))

    def device(self, array: Array) -> int:
        return array.data.device_id  # type: ignore[no-any-return]

    def use_device(self, device: int) -> Any:
        return self._cupy.cuda.Device(device)

    def pointers(self, arrays: Sequence[Array]) -> list[int]:
        return [array.data.ptr for array in arrays]

    def stream(self, device: int) -> int:
        return self._cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    def allocator(self, output: Output) -> Allocator:
        cupy, dtype = self._cupy, self._dtype(output.dtype)
        if output.shape == ():
            return lambda operands: cupy.empty((), dtype)
        shape, strides = output.shape, tuple(step * dtype.itemsize for step in output.strides)
        size = dtype.itemsize * Operand("", shape, ()).size
        return lambda operands: cupy.ndarray(shape, dtype, cupy.cuda.alloc(size), strides)

    def filled(self, output: Output, value: float) -> Allocator:
        cupy, dtype = self._cupy, self._dtype(output.dtype)
        return lambda operands: cupy.full(output.shape, value, dtype)

    def scratch(self, operands: Sequence[Array], size: int, stream: int) -> tuple[Any, int]:
        memory = self._cupy.cuda.alloc(size)
        if self._runtime.streamIsCapturing(stream):
            # A replay of the graph will use it again, and CuPy's pool knows nothing of that.
            self._captured.append(memory)
        return memory, int(memory.ptr)

    def _dtype(self, name: str) -> Any:
        if name == "bfloat16":
            import ml_dtypes

            name = ml_dtypes.bfloat16
        return self._cupy.dtype(name)


class CupyBackend:
    """Losses of CuPy arrays."""

    def __init__(self) -> None:
        self.run = functools.partial(run, CupyLibrary())

    def evaluate(self, call: Call, operands: Sequence[Array]) -> Array:
        """The loss."""
        return self.run(call, FORWARD, operands)[0]

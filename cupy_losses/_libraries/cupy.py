"""CuPy arrays, on CuPy's current stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .._core.dtypes import item_size
from .._core.loss import FORWARD, Call
from .._core.outputs import Output
from .._core.shapes import ArraySpec
from .._device import driver, engine
from .._device.library import Allocator
from .registry import Array, ArrayLibrary, register


@register
class CupyLibrary(ArrayLibrary):
    """CuPy arrays, and what the CUDA backend asks of them, see `_device/library.py`."""

    name = "cupy"
    on_host = False

    def __init__(self) -> None:
        self._cupy = driver.require_gpu()
        self._runtime = self._cupy.cuda.runtime
        self._captured: list[Any] = []
        self.current_device = self._runtime.getDevice

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """The one class of arrays, of a CuPy that is imported."""
        cupy = sys.modules.get("cupy")
        return () if cupy is None else (cupy.ndarray,)

    @classmethod
    def owns(cls, array: Array) -> bool:
        """All CuPy arrays."""
        return isinstance(array, cls.types())

    def adopt(self, array: Array) -> Array:
        """A view of another library's array."""
        return array if self.owns(array) else self._cupy.from_dlpack(array)

    def evaluate(self, call: Call, operands: Sequence[Array]) -> Array:
        """The loss."""
        return engine.run(self, call, FORWARD, operands)[0]

    run = engine.run

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

    def spec(self, array: Array) -> ArraySpec:
        size = array.dtype.itemsize
        if not array.dtype.isnative or any(step % size for step in array.strides):
            raise TypeError(
                "a CuPy array must have the machine's byte order and strides of whole elements, "
                f"got {array.dtype.str} with strides {array.strides}"
            )
        if array.data.ptr % size:
            raise TypeError("a CuPy array must start at a multiple of its element size")
        strides = tuple(step // size for step in array.strides)
        return ArraySpec(array.dtype.name, array.shape, strides)

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
            return lambda operands: cupy.ndarray((), dtype)
        shape, size = output.shape, item_size(output.dtype)
        strides = tuple(step * size for step in output.strides)
        total = size * output.size
        return lambda operands: cupy.ndarray(shape, dtype, cupy.cuda.alloc(total), strides)

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

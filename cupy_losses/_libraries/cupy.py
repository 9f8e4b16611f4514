"""CuPy arrays, on CuPy's current stream."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._core.dtypes import DTYPES, item_size, numpy_dtype
from .._core.extras import imported
from .._core.loss import FORWARD, Call
from .._core.outputs import Output
from .._core.shapes import ArraySpec
from .._core.types import AnyArray
from .._device import driver, engine
from .._device.library import Allocator
from .registry import ArrayLibrary, Locatable, Sample, register

_VIEWED = DTYPES.keys() - {"bfloat16"}


@register
class CupyLibrary(ArrayLibrary):
    """CuPy arrays, and what the CUDA backend asks of them, see `_device/library.py`."""

    name = "cupy"
    on_host = False

    def __init__(self) -> None:
        self._cupy = driver.require_gpu()
        self._cuda = self._cupy.cuda
        self._is_capturing = driver.capture_query()
        # What replays of graphs use, of which CuPy's pool knows nothing. Nor is it known when a
        # graph is gone: it stays until the process ends.
        self._captured: list[Any] = []
        self.current_device = self._cuda.runtime.getDevice

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """The one class of arrays, of a CuPy that is imported."""
        cupy = imported("cupy")
        return () if cupy is None else (cupy.ndarray,)

    @classmethod
    def owns(cls, array: AnyArray) -> bool:
        """All CuPy arrays."""
        return isinstance(array, cls.types())

    def adopt(self, array: AnyArray) -> AnyArray:
        """A view of another library's array."""
        if isinstance(array, self._cupy.ndarray):
            return array
        if isinstance(array, Locatable):
            view = self._view(array)
            if view is not None:
                return view
        if not hasattr(array, "__dlpack__"):
            return self._cupy.asarray(array)  # of __cuda_array_interface__
        return self._cupy.from_dlpack(array)

    def _view(self, array: Locatable) -> AnyArray | None:
        """An array where another one lies; None if CuPy has no such dtype without DLPack."""
        device = self.current_device()
        found = array.located(device, self.stream(device))
        if found is None or found.dtype not in _VIEWED:
            return None
        memory = self._cuda.UnownedMemory(found.address, found.size, found.owner, found.device)
        pointer = self._cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(found.shape, numpy_dtype(found.dtype), pointer, found.strides)

    def one(self, like: AnyArray) -> AnyArray:
        """The number 1."""
        with self.on_device_of(like):
            return self.kept(self._cupy.full((), 1, like.dtype))

    @contextlib.contextmanager
    def samples(self, operands: Sequence[AnyArray]) -> Iterator[Iterable[Sample]]:
        """The operands, in a context in which they are read on their device."""
        with self.on_device_of(operands[0]):
            yield [((), operands)]

    def on_device_of(self, array: AnyArray) -> Any:
        """CuPy's operators work on the current device, whatever the arrays are on."""
        return self.use_device(self.device(array))

    def kept(self, array: AnyArray) -> AnyArray:
        """An array, kept where replays of a graph that is captured now will use it."""
        if self._is_capturing(self.stream(self.device(array))):
            self._captured.append(array)
        return array

    def evaluate(self, call: Call, operands: Sequence[AnyArray]) -> AnyArray:
        """The loss."""
        return engine.run(self, call, FORWARD, operands)[0]

    run = engine.run
    address = staticmethod(operator.attrgetter("data.ptr"))

    def inspect(self, operands: Sequence[AnyArray]) -> tuple[Any, list[int]]:
        key: list[Any] = []
        pointers: list[int] = []
        for array in operands:
            data = array.data
            key += array.dtype, array.shape, array.strides, data.device_id
            pointers.append(data.ptr)
        return tuple(key), pointers

    def autocast(self) -> bool:
        return False

    def spec(self, array: AnyArray) -> ArraySpec:
        size = array.dtype.itemsize
        if not array.dtype.isnative or any(step % size for step in array.strides):
            raise TypeError(
                "must have the machine's byte order and strides of whole elements, "
                f"got {array.dtype.str} with strides {array.strides}"
            )
        if array.data.ptr % size:
            raise TypeError("must start at a multiple of its element size")
        strides = tuple(step // size for step in array.strides)
        return ArraySpec(array.dtype.name, array.shape, strides)

    def device(self, array: AnyArray) -> int:
        return array.data.device_id  # type: ignore[no-any-return]

    def use_device(self, device: int) -> Any:
        return self._cuda.Device(device)

    def stream(self, device: int) -> int:
        return self._cuda.get_current_stream().ptr  # type: ignore[no-any-return]

    def allocator(self, output: Output) -> Allocator:
        cupy, dtype = self._cupy, numpy_dtype(output.dtype)
        if output.shape == ():
            return lambda operands: cupy.ndarray((), dtype)
        shape, size = output.shape, item_size(output.dtype)
        strides = tuple(step * size for step in output.strides)
        total = size * output.size
        return lambda operands: cupy.ndarray(shape, dtype, cupy.cuda.alloc(total), strides)

    def filled(self, output: Output, value: float) -> Allocator:
        cupy, dtype = self._cupy, numpy_dtype(output.dtype)
        return lambda operands: cupy.full(output.shape, value, dtype)

    def scratch(
        self, operands: Sequence[AnyArray], size: int, is_captured: bool
    ) -> tuple[Any, int]:
        memory = self._cuda.alloc(size)
        if is_captured:
            self._captured.append(memory)
        return memory, int(memory.ptr)

"""Device memory of the emulator: host memory with exact bounds, and arrays in it."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .launcher import Region

HostArray = npt.NDArray[Any]

_ALIGNMENT = 512
_MARGIN = 256
_MARGIN_BYTE = 0xA5
_POISON_BYTE = 0xFF  # NaN in every floating dtype
_SPARSE_FROM = 1 << 28  # bytes


class _Current(threading.local):
    """What CUDA keeps for each thread: the device in use, and whether its context is current."""

    def __init__(self) -> None:
        self.device = 0
        self.has_context = threading.current_thread() is threading.main_thread()


current = _Current()


class Allocation:
    """A piece of device memory between margins that nobody may write to.

    Fresh memory is poisoned; where it is sparse, it is zero.
    """

    def __init__(
        self, size: int, device: int, misalignment: int = 0, sparse: bool | None = None
    ) -> None:
        sparse = size >= _SPARSE_FROM if sparse is None else sparse
        self._margin_byte = 0 if sparse else _MARGIN_BYTE
        reserved = size + misalignment + _ALIGNMENT + 2 * _MARGIN
        whole = _zeros(reserved) if sparse else np.full(reserved, _MARGIN_BYTE, np.uint8)
        begin = _MARGIN + -(int(whole.ctypes.data) + _MARGIN) % _ALIGNMENT + misalignment
        end = begin + size
        self._margins = whole[begin - _MARGIN : begin], whole[end : end + _MARGIN]
        self.bytes = whole[begin:end]
        if not sparse:
            self.bytes[:] = _POISON_BYTE
        self.address = int(self.bytes.ctypes.data)
        self.device = device
        self.writable = True
        _allocations.add(self)

    @property
    def region(self) -> Region:
        """What kernels may use of it."""
        return Region(self.address, len(self.bytes), self.writable)

    @property
    def intact(self) -> bool:
        """Whether the margins are as they were."""
        return all(bool((margin == self._margin_byte).all()) for margin in self._margins)


_allocations: weakref.WeakSet[Allocation] = weakref.WeakSet()


def live(device: int) -> list[Allocation]:
    """The memory of a device that has not been freed."""
    return [a for a in _allocations if a.device == device and len(a.bytes)]


def sparse(shape: Sequence[int], dtype: npt.DTypeLike, device: int) -> Allocation:
    """Memory for an array, of which only the touched pages exist."""
    return Allocation(math.prod(shape) * np.dtype(dtype).itemsize, device, sparse=True)


def _zeros(size: int) -> HostArray:
    no_reserve = 0x4000  # mmap.MAP_NORESERVE, from Python 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


class MemoryPointer:
    """A place in device memory, like cupy.cuda.MemoryPointer; keeps the memory alive."""

    def __init__(self, memory: Allocation, offset: int = 0) -> None:
        self.mem = memory
        self.offset = offset
        self.ptr = memory.address + offset if len(memory.bytes) else 0  # as CuPy has it

    @property
    def device_id(self) -> int:
        """The device that the memory belongs to."""
        return self.mem.device

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.offset + offset)


class ndarray:
    """An array in device memory, like cupy.ndarray as far as tests need it.

    `host_view` is the same memory as a NumPy array.
    """

    def __init__(
        self,
        shape: Sequence[int] | int,
        dtype: npt.DTypeLike = float,
        memptr: MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
    ) -> None:
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        if memptr is None:
            size = math.prod(lengths) * np.dtype(dtype).itemsize
            memptr = MemoryPointer(Allocation(size, current.device))
        # NumPy raises where the array would leave its memory.
        self.host_view: HostArray = np.ndarray(
            lengths,
            dtype,
            memptr.mem.bytes.data,
            memptr.offset,
            None if strides is None else tuple(strides),
        )
        self.data = memptr

    def viewed(self, host_view: HostArray) -> ndarray:
        """Another view of the same memory."""
        array = ndarray.__new__(ndarray)
        array.host_view = host_view
        array.data = self.data + (int(host_view.ctypes.data) - self.data.ptr)
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host_view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.host_view.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        return self.host_view.strides

    @property
    def size(self) -> int:
        return self.host_view.size

    @property
    def ndim(self) -> int:
        return self.host_view.ndim

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host_view[index] = value.host_view if isinstance(value, ndarray) else value

    def __getitem__(self, index: Any) -> ndarray:
        key = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in key):
            key = (*key, ...)  # a view even where it is one element
        return self._view_only(self.host_view[key])

    def reshape(self, *shape: Any) -> ndarray:
        return self._view_only(self.host_view.reshape(*shape))

    def ravel(self) -> ndarray:
        return self._view_only(self.host_view.ravel())

    def transpose(self, *axes: Any) -> ndarray:
        return self.viewed(self.host_view.transpose(*axes))

    @property
    def T(self) -> ndarray:
        return self.transpose()

    def _view_only(self, host_view: HostArray) -> ndarray:
        if host_view.size and not np.may_share_memory(host_view, self.host_view):
            raise NotImplementedError("copies are not: ask for a view, or copy on the host")
        return self.viewed(host_view)

    def get(self) -> HostArray:
        """A copy on the host."""
        return self.host_view.copy()

    def item(self) -> Any:
        return self.host_view.item()

    def __float__(self) -> float:
        return float(self.item())

    def __array__(self, *_: Any, **__: Any) -> HostArray:
        raise TypeError("a device array does not become a NumPy array by itself: use get()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.data.device_id

    def __dlpack__(self, **_: Any) -> ndarray:
        return self

"""A stand-in for CuPy over host memory, so that the package runs unchanged on the emulator.

with installed(multiprocessors=4, seed=1) as device:
    x = device.asarray(np.ones(100, np.float32))
    loss = cupy_losses.mse_loss(x, x)
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from . import memory
from .arguments import check_arguments
from .compiler import (
    DYNAMIC_SHARED_BYTES,
    CompileError,
    Job,
    compiled,
    cuda_headers,
    gxx,
    precompile,
)
from .launcher import EmulatorError, Schedule, Triple, failure
from .memory import Allocation, MemoryPointer, current, ndarray

# Codes of the driver's and the runtime's errors.
_INVALID_VALUE = 1
_INVALID_DEVICE = 101
_INVALID_CONTEXT = 201
_INVALID_HANDLE = 400
_NOT_FOUND = 500

_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14  # an attribute of a function


class CUDADriverError(RuntimeError):
    """An error of the driver."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"CUDA error {status}: {text}")
        self.status = status


class Launch(NamedTuple):
    """A launch that was asked for."""

    name: str
    grid: Triple
    block: Triple
    shared_bytes: int
    stream: int


class _Loaded(NamedTuple):
    """A kernel on one device."""

    job: Job
    device: int


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Device:
    """The emulated devices, all alike, and how kernels run on them.

    Attributes:
        count: How many devices there are.
        multiprocessors: Of each device. The package keeps it: set it before the first launch.
        blocks_per_multiprocessor: The answer to the occupancy query. The same holds.
        shared_memory: The bytes that a block can have. The same holds.
        cache_bytes: The size of the L2 cache. The same holds.
        compute_capability: What kernels are compiled for: "80" has asynchronous copies, "90" a
            bulk copies and clusters. The same holds.
        seed: Of the scheduler; 0 runs threads and blocks in order.
        concurrent: How many blocks run at once.
        check: Whether to watch every access.
        run_kernels: Whether launches do anything; if not, kernels are not even compiled.
        choose: From a kernel's name and the number of its blocks, those to run; None: all.
        capturing: Whether the streams say that they are capturing a graph.
        stream: The address of the current stream.
        kept: The memory that was allocated in stream order, which nothing frees.
        launches: All launches so far.
        loaded: The kernels that have been loaded, by function pointer.
        in_large_clusters: The names of those that may be launched in clusters of more than 8
            blocks. The emulator knows of no clusters: nothing is refused to the others.
    """

    def __init__(
        self,
        *,
        count: int = 1,
        multiprocessors: int = 2,
        blocks_per_multiprocessor: int = 2,
        shared_memory: int = DYNAMIC_SHARED_BYTES,
        cache_bytes: int = 1 << 20,
        compute_capability: str = "90",
        seed: int = 0,
        concurrent: int = 4,
        check: bool = True,
        run_kernels: bool = True,
        choose: Callable[[str, int], Sequence[int] | None] | None = None,
    ) -> None:
        self.count = count
        self.multiprocessors = multiprocessors
        self.blocks_per_multiprocessor = blocks_per_multiprocessor
        self.shared_memory = shared_memory
        self.cache_bytes = cache_bytes
        self.compute_capability = compute_capability
        self.seed = seed
        self.concurrent = concurrent
        self.check = check
        self.run_kernels = run_kernels
        self.choose = choose
        self.capturing = False
        self.stream = 0
        self.kept: list[Allocation] = []
        self.launches: list[Launch] = []
        self.loaded: dict[int, _Loaded] = {}
        self.in_large_clusters: set[str] = set()
        self._functions = itertools.count(0x1000, 0x10)

    def asarray(
        self, array: npt.ArrayLike, *, misalignment: int = 0, writable: bool = False
    ) -> ndarray:
        """A copy in device memory with the same strides, `misalignment` bytes off alignment.

        Memory between the elements is poisoned. Kernels must not write to it unless `writable`.
        """
        host = np.asarray(array)
        if host.dtype.hasobject:
            raise TypeError(f"device memory holds no objects, got {array!r}")
        begin, end = np.lib.array_utils.byte_bounds(host) if host.size else (0, 0)
        allocation = Allocation(end - begin, current.device, misalignment)
        start = host.ctypes.data - begin if host.size else 0
        pointer = MemoryPointer(allocation, start)
        copy = ndarray(host.shape, host.dtype, pointer, host.strides)
        copy.host_view[...] = host
        allocation.writable = writable
        return copy

    def sparse(
        self, shape: Sequence[int], dtype: npt.DTypeLike, *, writable: bool = False
    ) -> ndarray:
        """Zeros that take memory only where they are touched, for arrays of 2^31 elements."""
        array = ndarray(shape, dtype, MemoryPointer(memory.sparse(shape, dtype, current.device)))
        array.data.mem.writable = writable
        return array

    def jobs(self) -> list[Job]:
        """The kernels that have been loaded, for `precompile`."""
        return [loaded.job for loaded in self.loaded.values()]

    def together(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """What a function returns, its kernels compiled together, which takes half the time.

        It is called twice, the first time without running kernels: results mean nothing then.
        """
        self.prepare(function, *args, **kwargs)
        return function(*args, **kwargs)

    def prepare(
        self,
        function: Callable[Arguments, object],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Compile the kernels of a function together: it is called, but no kernels run."""
        if self.run_kernels:
            launches = len(self.launches)
            self.run_kernels = False
            try:
                function(*args, **kwargs)
            finally:
                self.run_kernels = True
                del self.launches[launches:]
            precompile(self.jobs(), workers=1)

    def load(self, job: Job) -> int:
        """The function pointer of a kernel on the current device."""
        if self.run_kernels:
            compiled(job)
        pointer = next(self._functions)  # threads load kernels side by side
        self.loaded[pointer] = _Loaded(job, current.device)
        return pointer

    def launch(
        self,
        function: int,
        grid: Triple,
        block: Triple,
        shared_bytes: int,
        stream: int,
        parameters: int,
    ) -> None:
        """Do what the driver's cuLaunchKernel does, with more checks than it makes."""
        _check_context()
        loaded = self.loaded.get(function)
        if loaded is None or loaded.device != current.device:
            raise CUDADriverError(_INVALID_HANDLE, f"no function {function:#x} on this device")
        name = loaded.job.name
        self.launches.append(Launch(name, grid, block, shared_bytes, stream))
        if min(*grid, *block) < 1:
            raise CUDADriverError(_INVALID_VALUE, f"grid {grid}, block {block}")
        if shared_bytes > self.shared_memory:
            raise CUDADriverError(_INVALID_VALUE, f"{shared_bytes} bytes of shared memory")
        if not self.run_kernels:
            return
        kernel = compiled(loaded.job._replace(check=self.check))
        allocations = memory.live(loaded.device)
        regions = [allocation.region for allocation in allocations]
        schedule = self._schedule(name, grid)
        messages = check_arguments(kernel.parameters, parameters, regions)
        if not messages:
            messages = kernel.run(grid, block, parameters, regions, shared_bytes, schedule)
        if not self.check and not all(allocation.intact for allocation in allocations):
            messages.append("memory beside an array was written to")
        if messages:
            raise failure(name, schedule, messages)

    def _schedule(self, name: str, grid: Triple) -> Schedule:
        blocks = self.choose(name, grid[0] * grid[1] * grid[2]) if self.choose else None
        return Schedule(self.seed, self.concurrent, blocks)


class _RawModule:
    """cupy.RawModule."""

    def __init__(
        self, device: Device, code: str, options: Sequence[str], name_expressions: Sequence[str]
    ) -> None:
        self._device = device
        self._code = code
        self._options = (*options, f"-DARCHITECTURE={10 * int(device.compute_capability)}")
        self._names = name_expressions

    def get_function(self, name: str) -> _RawKernel:
        if name not in self._names:
            raise CUDADriverError(_NOT_FOUND, f"named symbol {name} not found")
        return _RawKernel(self._device, Job(self._code, name, self._options, self._device.check))


class _Pointer(NamedTuple):
    ptr: int


class _RawKernel:
    """cupy.RawKernel: reading `kernel` loads it on the current device."""

    def __init__(self, device: Device, job: Job) -> None:
        self._device = device
        self._job = job
        self._pointers: dict[int, _Pointer] = {}
        self.shared_size_bytes = 0
        self.max_dynamic_shared_size_bytes = 0
        self.preferred_shared_memory_carveout = -1

    @property
    def kernel(self) -> _Pointer:
        number = current.device
        if number not in self._pointers:
            self._pointers[number] = _Pointer(self._device.load(self._job))
        return self._pointers[number]


def _modules(device: Device) -> dict[str, ModuleType]:
    """The modules that stand for CuPy, by name."""
    cuda = _module(
        "cupy.cuda",
        alloc=lambda size: MemoryPointer(Allocation(size, current.device)),
        get_current_stream=lambda: _Pointer(device.stream),
        runtime=_runtime(device),
        Device=_device_class(device),
        compiler=_module("cupy.cuda.compiler", CompileException=CompileError),
    )
    cupy = _module(
        "cupy",
        cuda=cuda,
        ndarray=ndarray,
        dtype=np.dtype,
        empty=ndarray,
        zeros=lambda shape, dtype=float: _full(shape, 0, dtype),
        full=_full,
        asarray=lambda array, dtype=None: device.asarray(np.asarray(array, dtype)),
        float32=np.float32,
        broadcast_to=_broadcast_to,
        from_dlpack=_from_dlpack,
        RawModule=lambda *, code, options=(), name_expressions=(): _RawModule(
            device, code, options, name_expressions
        ),
    )
    driver = _driver(device)
    nvrtc = _module("cupy_backends.cuda.libs.nvrtc", getVersion=lambda: (12, 9))
    api = _module("cupy_backends.cuda.api", driver=driver)
    libs = _module("cupy_backends.cuda.libs", nvrtc=nvrtc)
    backends_cuda = _module("cupy_backends.cuda", api=api, libs=libs)
    backends = _module("cupy_backends", cuda=backends_cuda)
    modules = (cupy, cuda, cuda.runtime, driver, nvrtc, api, libs, backends_cuda, backends)
    return {module.__name__: module for module in modules}


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _full(shape: Sequence[int] | int, value: Any, dtype: npt.DTypeLike) -> ndarray:
    array = ndarray(shape, dtype)
    array.host_view[...] = value
    return array


def _broadcast_to(array: ndarray, shape: Sequence[int]) -> ndarray:
    return array.viewed(np.broadcast_to(array.host_view, tuple(shape)))


def _from_dlpack(array: Any) -> ndarray:
    exported: ndarray = array.__dlpack__(stream=1)
    return exported[...]


def _driver(device: Device) -> ModuleType:
    def launch_kernel(
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> None:
        assert extra == 0
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        device.launch(function, grid, block, shared_bytes, stream, parameters)

    def occupancy(function: int, threads: int, shared_bytes: int) -> int:
        _check_context()
        return device.blocks_per_multiprocessor

    def set_attribute(function: int, attribute: int, value: int) -> None:
        assert (attribute, value) == (_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        device.in_large_clusters.add(device.loaded[function].job.name)

    return _module(
        "cupy_backends.cuda.api.driver",
        CUDADriverError=CUDADriverError,
        funcSetAttribute=set_attribute,
        launchKernel=launch_kernel,
        occupancyMaxActiveBlocksPerMultiprocessor=occupancy,
    )


def _check_context() -> None:
    if not current.has_context:
        raise CUDADriverError(_INVALID_CONTEXT, "invalid context")


def _runtime(device: Device) -> ModuleType:
    def set_device(number: int) -> None:
        if not 0 <= number < device.count:
            raise CUDADriverError(_INVALID_DEVICE, f"no device {number}")
        current.device = number
        current.has_context = True

    def malloc(size: int, stream: int) -> int:
        device.kept.append(Allocation(size, current.device))
        device.kept[-1].writable = True
        return MemoryPointer(device.kept[-1]).ptr

    return _module(
        "cupy.cuda.runtime",
        getDevice=lambda: current.device,
        getDeviceCount=lambda: device.count,
        setDevice=set_device,
        mallocAsync=malloc,
        memsetAsync=_memset,
        memcpyAsync=_memcpy,
        memcpyDeviceToDevice=3,
        streamIsCapturing=lambda stream: device.capturing,
        runtimeGetVersion=lambda: 12090,
    )


def _memset(address: int, value: int, size: int, stream: int) -> None:
    _check_region(address, size, writable=True)
    ctypes.memset(address, value, size)


def _memcpy(target: int, source: int, size: int, kind: int, stream: int) -> None:
    _check_region(target, size, writable=True)
    _check_region(source, size, writable=False)
    ctypes.memmove(target, source, size)


def _check_region(address: int, size: int, *, writable: bool) -> None:
    for region in (allocation.region for allocation in memory.live(current.device)):
        inside = region.begin <= address and address + size <= region.end
        if inside and (region.writable or not writable):
            return
    raise EmulatorError(f"{size} bytes at {address:#x} that belong to no array")


def _device_class(device: Device) -> type:
    class CudaDevice:
        """cupy.cuda.Device."""

        def __init__(self, number: int | None = None) -> None:
            self.id = current.device if number is None else number
            self.attributes = {
                "MultiProcessorCount": device.multiprocessors,
                "MaxSharedMemoryPerBlockOptin": device.shared_memory,
                "MaxSharedMemoryPerMultiprocessor": device.shared_memory,
                "L2CacheSize": device.cache_bytes,
            }
            self.compute_capability = device.compute_capability
            self._previous: list[int] = []

        def __enter__(self) -> CudaDevice:
            self._previous.append(current.device)
            if self.id != current.device:  # as CuPy does: a new thread has no context then
                _runtime(device).setDevice(self.id)
            return self

        def __exit__(self, *_: object) -> None:
            current.device = self._previous.pop()

    return CudaDevice


@contextlib.contextmanager
def installed(device: Device | None = None, **fields: Any) -> Iterator[Device]:
    """Let `import cupy` give the stand-in; `fields` are those of a new Device.

    The package's caches are emptied on entry and exit.

    Raises:
        CompilerMissingError: If the machine lacks what the emulator needs.
    """
    gxx(), cuda_headers()
    device = device or Device(**fields)
    hidden = {name: module for name, module in sys.modules.items() if _is_cupy(name)}
    _replace_modules(_modules(device))
    try:
        yield device
    finally:
        current.device = 0
        _replace_modules(hidden)


def _is_cupy(name: str) -> bool:
    return name.partition(".")[0] in ("cupy", "cupy_backends", "cupyx")


def _replace_modules(modules: dict[str, ModuleType]) -> None:
    for name in filter(_is_cupy, list(sys.modules)):
        del sys.modules[name]
    sys.modules.update(modules)
    forget()


_COLLECTIONS = (
    "_plans",
    "_kernels",
    "_library_of",
    "_instances",
    "_of_streams",
)


def forget() -> None:
    """Empty the package's caches: plans, loaded kernels, backends, what it asked of CuPy."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cupy_losses":
            for collection in _COLLECTIONS:
                getattr(module, collection, {}).clear()
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()

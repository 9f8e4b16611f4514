"""What the device backend asks of CuPy, which is imported when a device is first used.

Failures of CuPy and of CUDA are explained.

Importing cupy_losses must import neither CuPy nor torch and touch no GPU.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

# The shared memory that a block can have, in KiB, by architecture. The number of a device that is
# not there is minus its architecture: -90 is any device of sm_90.
SHARED_MEMORY = {
    70: 96,
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    89: 99,
    90: 227,
    100: 227,
    103: 227,
    110: 227,
    120: 99,
    121: 99,
}

PORTABLE_CLUSTER = 8  # blocks, of every architecture that has clusters
LARGE_CLUSTERS = (90, 100, 103)  # the architectures that have clusters of 16 blocks


class MissingGPUError(RuntimeError):
    """A CUDA array came, but CuPy or a working GPU is not there. The message says what to do."""

    __module__ = "cupy_losses"  # a traceback names it as programs import it


def wheel(part: str, major: int) -> str:
    """The wheel that holds a part of CUDA."""
    return f"nvidia-cuda-{part}-cu{major}" if major < 13 else f"nvidia-cuda-{part}"


class CompileError(RuntimeError):
    """A kernel does not compile; the compiler's log."""


@functools.cache
def cupy() -> Any:
    """The cupy module."""
    try:
        import cupy
    except ImportError as error:
        raise MissingGPUError(
            "CUDA arrays need CuPy: install cupy-losses[cuda12] or cupy-losses[cuda13], whichever "
            f"your driver supports ({error})"
        ) from error
    except OSError as error:  # the kernel cache folder cannot be created
        raise MissingGPUError(
            f"CuPy cannot be imported: {error}. If this is its kernel cache, point the environment "
            "variable CUPY_CACHE_DIR to a folder that can be written"
        ) from error
    return cupy


def why(error: Exception) -> str:
    """Why there is no GPU, from an error of CuPy.

    CUDA says that the driver is insufficient where there is none.
    """
    if "cudaErrorInsufficientDriver" in str(error):
        return "there is no NVIDIA driver, or it is too old for the CUDA of CuPy"
    return str(error)


def require_gpu() -> Any:
    """The cupy module, where it finds a GPU."""
    module = cupy()
    try:
        count = module.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        message = f"CUDA arrays need a GPU, and CuPy finds none: {why(error)}"
        raise MissingGPUError(message) from error
    if not count:
        raise MissingGPUError("CUDA arrays need a GPU, and CuPy finds none")
    return module


@functools.cache
def _driver() -> Any:
    cupy()
    from cupy_backends.cuda.api import driver

    return driver


def nvrtc_version() -> tuple[int, int]:
    """The version of the NVRTC that CuPy uses."""
    try:
        cupy()
    except MissingGPUError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise RuntimeError(
            "kernels are compiled by NVRTC, through CuPy, which needs no GPU: install "
            "cupy-losses[cuda12] or cupy-losses[cuda13]"
        ) from error
    from cupy_backends.cuda.libs import nvrtc

    try:
        major, minor = nvrtc.getVersion()
    except Exception as error:
        built_for = int(cupy().cuda.runtime.runtimeGetVersion()) // 1000
        raise RuntimeError(
            f"NVRTC, the CUDA run-time compiler, cannot be loaded ({error}): install it with "
            f"`pip install {wheel('nvrtc', built_for)}`"
        ) from error
    return int(major), int(minor)


def architectures() -> list[int]:
    """Those that NVRTC and this package know."""
    nvrtc_version()
    from cupy_backends.cuda.libs import nvrtc

    known = nvrtc.getSupportedArchs()
    return [architecture for architecture in SHARED_MEMORY if architecture in known]


@contextlib.contextmanager
def use_device(device: int) -> Iterator[None]:
    """A context in which a thread works on a device, even if it has not used CUDA."""
    with cupy().cuda.Device(device):
        cupy().cuda.runtime.setDevice(device)  # CuPy leaves it out for device 0 of a new thread
        yield


def compile(code: str, name: str, options: tuple[str, ...]) -> Any:
    """Compile one kernel for the current device, through CuPy's cache on disk."""
    module = cupy().RawModule(code=code, options=options, name_expressions=(name,))
    with _explained():
        kernel = module.get_function(name)
        kernel.kernel  # noqa: B018  # loads it on this device
    return kernel


def compile_ahead(code: str, name: str, options: tuple[str, ...], architecture: int) -> None:
    """Compile the same kernel into CuPy's cache on disk for an architecture, without a device.

    It goes the way of `RawModule`, whose options are part of the key in the cache. CuPy would ask
    there for the current device, and load what it has compiled.
    """
    compiler = cupy().cuda.compiler
    question, function = compiler._get_arch_for_options_for_nvrtc, compiler.function

    thread = threading.get_ident()

    def load(module: Any, code: bytes) -> None:
        if threading.get_ident() != thread:  # that has called CuPy for a kernel of its own
            function.Module.load(module, code)

    never_loaded = type("NeverLoaded", (function.Module,), {"load": load})
    compiler._get_arch_for_options_for_nvrtc = question.__wrapped__
    compiler.function = SimpleNamespace(**{**vars(function), "Module": never_loaded})
    try:
        with _explained():
            cupy()._core.core.compile_with_cache(
                code,
                options,
                arch=str(architecture),
                prepend_cupy_headers=False,
                name_expressions=(name,),
            )
    finally:
        compiler._get_arch_for_options_for_nvrtc, compiler.function = question, function


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Explain why a kernel was not compiled."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"CuPy's kernel cache cannot be written: {error}. Point the environment variable "
            "CUPY_CACHE_DIR to a folder that can be"
        ) from error
    except cupy().cuda.compiler.CompileException as error:
        raise CompileError(str(error)) from error


def occupancy(function: int, threads: int, shared: int) -> int:
    """How many blocks of the kernel, with so much shared memory, a multiprocessor holds at once."""
    return int(_driver().occupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared))


@functools.cache
def multiprocessors(device: int) -> int:
    """The number of multiprocessors of a device."""
    return int(cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@functools.cache
def shared_memory(device: int) -> int:
    """The shared memory that a block can have, in bytes."""
    if device < 0:
        if -device not in SHARED_MEMORY:
            known = ", ".join(map(str, SHARED_MEMORY))
            raise ValueError(
                f"kernels are not compiled ahead for architecture {-device}, only for {known}: "
                "they are when they are first called"
            )
        return SHARED_MEMORY[-device] << 10
    return int(cupy().cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])


@functools.cache
def shared_memory_of_multiprocessor(device: int) -> int:
    """The shared memory that a multiprocessor can have, in bytes."""
    return int(cupy().cuda.Device(device).attributes["MaxSharedMemoryPerMultiprocessor"])


@functools.cache
def cache_bytes(device: int) -> int:
    """The memory that the device's cache holds, in bytes; no kernel depends on it."""
    if device < 0:
        return 0
    return int(cupy().cuda.Device(device).attributes["L2CacheSize"])


@functools.cache
def largest_cluster(device: int) -> int:
    """The blocks that share what they compute, at most; 1 where there are no clusters."""
    architecture = -device if device < 0 else int(cupy().cuda.Device(device).compute_capability)
    if architecture < 90:
        return 1
    return 16 if architecture in LARGE_CLUSTERS else PORTABLE_CLUSTER


def allow_large_clusters(function: int) -> None:
    """Let a kernel be launched in clusters that only some architectures have."""
    non_portable_cluster_size_allowed = 14
    _driver().funcSetAttribute(function, non_portable_cluster_size_allowed, 1)


def launcher() -> Any:
    """The driver's launch function: pointer, grid, block, shared memory, stream, arguments."""
    return _driver().launchKernel


def enter_context(error: Exception) -> None:
    """Make the device's context current in a thread that has not used CUDA, or raise `error`."""
    invalid_context = 201
    if getattr(error, "status", None) != invalid_context:
        raise error
    runtime = cupy().cuda.runtime
    runtime.setDevice(runtime.getDevice())


def capture_query() -> Any:
    """The function that says whether what is launched on a stream goes to a CUDA graph."""
    return cupy().cuda.runtime.streamIsCapturing


def memory_to_keep(size: int, stream: int) -> int:
    """The address of memory of the current device, allocated on a stream and never freed.

    It is of no pool of CuPy or torch: torch demands that a pool is as it was, once the warm-up of a
    CUDA graph ends.

    Raises:
        RuntimeError: If there is none, or the device allocates none in stream order.

    """
    return int(cupy().cuda.runtime.mallocAsync(size, stream))


def copy(target: int, source: int, size: int, stream: int) -> None:
    """Copy memory of the current device in stream order."""
    runtime = cupy().cuda.runtime
    runtime.memcpyAsync(target, source, size, runtime.memcpyDeviceToDevice, stream)


def memset() -> Any:
    """The function that sets memory in stream order: address, value, size in bytes, stream."""
    return cupy().cuda.runtime.memsetAsync

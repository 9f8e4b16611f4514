"""All that is asked of CuPy, imported when a device is first used, with its failures explained.

Importing cupy_losses must import neither CuPy nor torch and touch no GPU.
"""

from __future__ import annotations

import functools
from typing import Any


class MissingGPUError(RuntimeError):
    """A CUDA array came, but CuPy or a working GPU is not there."""


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


def require_gpu() -> Any:
    """The cupy module, where it finds a GPU."""
    module = cupy()
    try:
        count = module.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        raise MissingGPUError(f"CUDA arrays need a GPU, and CuPy finds none: {error}") from error
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
    cupy()
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


def compile(code: str, name: str, options: tuple[str, ...]) -> Any:
    """Compile one kernel for the current device, through CuPy's cache on disk."""
    module = cupy().RawModule(code=code, options=options, name_expressions=(name,))
    try:
        kernel = module.get_function(name)
        kernel.kernel  # noqa: B018  # loads it on this device
    except OSError as error:
        raise RuntimeError(
            f"CuPy's kernel cache cannot be written: {error}. Point the environment variable "
            "CUPY_CACHE_DIR to a folder that can be"
        ) from error
    except cupy().cuda.compiler.CompileException as error:
        raise CompileError(str(error)) from error
    return kernel


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
    return int(cupy().cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])


@functools.cache
def cache_bytes(device: int) -> int:
    """The memory that the device's cache holds, in bytes."""
    return int(cupy().cuda.Device(device).attributes["L2CacheSize"])


@functools.cache
def has_clusters(device: int) -> bool:
    """Whether the blocks of a cluster can share what they compute."""
    return int(cupy().cuda.Device(device).compute_capability) >= 90


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


def memset() -> Any:
    """The function that sets memory in stream order: address, value, size in bytes, stream."""
    return cupy().cuda.runtime.memsetAsync

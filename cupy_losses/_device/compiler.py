"""Kernels specialised by name and compiled by NVRTC through CuPy."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from .._core.formula import explained
from . import driver
from .sources import source


def include_folders() -> list[str]:
    """Where cuda_fp16.h may lie: CuPy ships none, the CUDA runtime wheels and toolkits do."""
    candidates: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        candidates += [Path(root) / "cu13" / "include", Path(root) / "cuda_runtime" / "include"]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable]) / "include")
    candidates.append(Path("/usr/local/cuda/include"))
    return [str(folder) for folder in candidates if (folder / "cuda_fp16.h").is_file()]


@functools.cache
def compile_options() -> tuple[str, ...]:
    """One set of options for the whole package: each further one costs a compile a process."""
    folders = include_folders()
    major = driver.nvrtc_version()[0]
    # With the wheels of two CUDA majors installed, take the headers that belong to NVRTC.
    folders.sort(key=lambda folder: ("cu13" in folder) != (major >= 13))
    if not folders:
        raise RuntimeError(
            "cuda_fp16.h was not found: install the CUDA runtime headers with "
            f"`pip install {driver.wheel('runtime', major)}`"
        )
    # No contraction of a * b + c behind our back: the compiler would choose differently from kernel
    # to kernel, and a loss would have other bits with a gradient than without.
    # -default-device: generic lambdas are not taken for device code by themselves.
    return ("-std=c++17", "-default-device", "-fmad=false", f"-I{folders[0]}")


class Kernel(NamedTuple):
    """A compiled kernel on one device."""

    module: Any  # keeps the code loaded
    pointer: int
    resident_blocks: int  # on the whole device, for the block size asked for


_compile_lock = threading.Lock()


@functools.cache
def kernel(
    file: str, name: str, threads: int, device: int, formula: str = "", shared: int = 0
) -> Kernel:
    """The kernel `name`, a template with all its arguments, compiled for the current device.

    `formula` is the source of a loss that is not in cuda/; `shared` the bytes of dynamic shared
    memory that its launches may ask for. For a device that is not there the kernel is compiled
    ahead, for its architecture.
    """
    code = source(file) + formula
    with _compile_lock:
        try:
            if device < 0:
                driver.compile_ahead(code, name, compile_options(), -device)
                return Kernel(None, 0, 0)
            compiled = driver.compile(code, name, compile_options())
        except driver.CompileError as error:
            if not formula:
                raise
            raise ValueError(explained(formula, str(error))) from None
    if shared:
        most = max(shared, compiled.max_dynamic_shared_size_bytes)  # of all plans
        compiled.max_dynamic_shared_size_bytes = most
        compiled.preferred_shared_memory_carveout = (
            100  # percent: as many blocks as there is room for
        )
    per_multiprocessor = driver.occupancy(compiled.kernel.ptr, threads, shared)
    return Kernel(
        compiled, compiled.kernel.ptr, per_multiprocessor * driver.multiprocessors(device)
    )

"""Kernels specialised by name and compiled by NVRTC through CuPy."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .._core.formula import explained, in_ascii
from . import driver
from .sources import source

BLOCK_RESERVE = 1 << 10  # bytes of shared memory that the driver takes for each block


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
    # CuPy adds -ftz=true: subnormal floats are 0. It adds --device-as-default-execution-space, too,
    # which makes generic lambdas code of the device.
    # NVRTC before 12.9 refuses an option that is given twice.
    return ("-std=c++20", "-fmad=false", f"-I{folders[0]}")


class Specialisation(NamedTuple):
    """A kernel to compile.

    Attributes:
        file: That it is in.
        name: A template with all its arguments.
        threads: Those of a block.
        device: Where it runs; negative: none that is there, but one of that architecture.
        formula: The source of a loss that is not in cuda/.
        shared: The bytes of dynamic shared memory that its launches may ask for.
        cluster: The blocks of a cluster.

    """

    file: str
    name: str
    threads: int
    device: int
    formula: str = ""
    shared: int = 0
    cluster: int = 1


class Kernel(NamedTuple):
    """A compiled kernel on one device."""

    module: Any  # keeps the code loaded
    pointer: int
    resident_blocks: int  # on the whole device, for the block size asked for


_kernels: dict[Specialisation, Kernel] = {}
_one_at_a_time = threading.Lock()


def kernels(wanted: Sequence[Specialisation]) -> list[Kernel]:
    """Kernels of one device, compiled side by side where several are missing."""
    with _one_at_a_time:
        missing = [one for one in dict.fromkeys(wanted) if one not in _kernels]
        if len(missing) > 1 and missing[0].device >= 0:
            _kernels.update(zip(missing, _compiled_side_by_side(missing), strict=True))
        else:
            _kernels.update((one, _compiled(one)) for one in missing)
        return [_kernels[one] for one in wanted]


def _compiled_side_by_side(wanted: Sequence[Specialisation]) -> list[Kernel]:
    """Compile several kernels at once: NVRTC lets go of Python's lock while it compiles."""
    with ThreadPoolExecutor(len(wanted)) as threads:
        try:
            kernels: Iterable[Kernel] = threads.map(_compiled, wanted)
        except RuntimeError:  # no thread can be started, as when the interpreter ends
            kernels = map(_compiled, wanted)
        return list(kernels)


def _compiled(wanted: Specialisation) -> Kernel:
    """Compile a kernel; for a device that is not there into the cache alone."""
    code = source(wanted.file) + in_ascii(wanted.formula)
    try:
        if wanted.device < 0:
            driver.compile_ahead(code, wanted.name, compile_options(), -wanted.device)
            return Kernel(None, 0, 0)
        with driver.use_device(wanted.device):
            return _loaded(driver.compile(code, wanted.name, compile_options()), wanted)
    except driver.CompileError as error:
        if not wanted.formula:
            raise
        raise ValueError(explained(wanted.formula, str(error))) from None


def _loaded(compiled: Any, wanted: Specialisation) -> Kernel:
    pointer = compiled.kernel.ptr
    if wanted.cluster > driver.PORTABLE_CLUSTER:
        driver.allow_large_clusters(pointer)
    if wanted.shared:
        per_multiprocessor = _give_shared_memory(compiled, pointer, wanted)
    else:
        per_multiprocessor = driver.occupancy(pointer, wanted.threads, 0)
    return Kernel(compiled, pointer, per_multiprocessor * driver.multiprocessors(wanted.device))


def _give_shared_memory(compiled: Any, pointer: int, wanted: Specialisation) -> int:
    """Let blocks have dynamic shared memory; how many of them a multiprocessor then holds.

    A multiprocessor sets aside what these take. The rest caches what is on its way to registers.
    """
    # Other plans may have loaded the same kernel.
    most = max(wanted.shared, compiled.max_dynamic_shared_size_bytes)
    percent = compiled.preferred_shared_memory_carveout
    compiled.max_dynamic_shared_size_bytes = most
    compiled.preferred_shared_memory_carveout = 100
    blocks = driver.occupancy(pointer, wanted.threads, wanted.shared)
    taken = blocks * (wanted.shared + compiled.shared_size_bytes + BLOCK_RESERVE)
    available = driver.shared_memory_of_multiprocessor(wanted.device)
    percent = max(percent, min(100, -(-100 * taken // available)))
    compiled.preferred_shared_memory_carveout = percent
    return blocks

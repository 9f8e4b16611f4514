"""The CUDA sources: specialised by name, compiled by NVRTC through CuPy, launched."""

from __future__ import annotations

import functools
import os
import re
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _cupy
from ._formula import explained
from ._layout import FLOATING, INTEGER

# The one dtype table: C++ type and size of an element.
_SIZED_INTEGERS = {
    "bool": ("bool", 1),
    "int8": ("signed char", 1),
    "int16": ("short", 2),
    "int32": ("int", 4),
    "int64": ("long long", 8),
    "uint8": ("unsigned char", 1),
    "uint16": ("unsigned short", 2),
    "uint32": ("unsigned", 4),
    "uint64": ("unsigned long long", 8),
}
_SIZED_FLOATS = {
    "float16": ("__half", 2),
    "bfloat16": ("__nv_bfloat16", 2),
    "float32": ("float", 4),
    "float64": ("double", 8),
}
DTYPES = _SIZED_FLOATS | _SIZED_INTEGERS
assert set(DTYPES) == {*FLOATING, *INTEGER}


def c_type(dtype: str) -> str:
    """The C++ type of an element."""
    return DTYPES[dtype][0]


def item_size(dtype: str) -> int:
    """The bytes of an element."""
    return DTYPES[dtype][1]


# ---- sources -----------------------------------------------------------------------------------

_HERE = Path(__file__).resolve().parent


@functools.cache
def source_folder() -> Path:
    """The folder of the .cu and .cuh files: in an installed package, beside it in a checkout."""
    for folder in (_HERE / "cuda", _HERE.parent / "cuda"):
        if (folder / "pointwise.cu").is_file():
            return folder
    raise FileNotFoundError(f"the CUDA sources are missing: no cuda/pointwise.cu near {_HERE}")


@functools.cache
def source(name: str) -> str:
    """The text of a kernel file with our own includes inlined.

    CuPy caches compiled kernels by source text and does not see what an #include names. The
    #line directives make compiler errors name the right file and line.
    """
    included: set[str] = set()

    def inline(file: str) -> list[str]:
        included.add(file)
        lines = [f'#line 1 "{file}"']
        text = (source_folder() / file).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            include = re.match(r'#include "(.+)"', line)
            if include is None:
                lines.append("" if line.startswith("#pragma once") else line)
            elif include[1] not in included:
                lines += [*inline(include[1]), f'#line {number + 1} "{file}"']
            else:
                lines.append("")
        return lines

    return "\n".join(inline(name)) + "\n"


def include_folders() -> list[str]:
    """Where cuda_fp16.h may lie: CuPy ships none, the CUDA runtime wheels and toolkits do."""
    import importlib.util

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
    major = _cupy.nvrtc_version()[0]
    # With the wheels of two CUDA majors installed, take the headers that belong to NVRTC.
    folders.sort(key=lambda folder: ("cu13" in folder) != (major >= 13))
    if not folders:
        raise RuntimeError(
            "cuda_fp16.h was not found: install the CUDA runtime headers with "
            f"`pip install {_cupy.wheel('runtime', major)}`"
        )
    # No contraction of a * b + c behind our back: the compiler would choose differently from kernel
    # to kernel, and a loss would have other bits with a gradient than without.
    # -default-device: generic lambdas are not taken for device code by themselves.
    return ("-std=c++17", "-default-device", "-fmad=false", f"-I{folders[0]}")


# ---- compiling ---------------------------------------------------------------------------------


class Function(NamedTuple):
    """A compiled kernel on one device."""

    module: Any  # keeps the code loaded
    pointer: int
    resident_blocks: int  # on the whole device, for the block size asked for


_compile_lock = threading.Lock()


@functools.cache
def function(
    file: str, name: str, threads: int, device: int, formula: str = "", shared: int = 0
) -> Function:
    """The kernel `name`, a template with all its arguments, compiled for the current device.

    `formula` is the source of a loss that is not in cuda/; `shared` the bytes of dynamic shared
    memory that its launches may ask for.
    """
    with _compile_lock:
        try:
            kernel = _cupy.compile(source(file) + formula, name, compile_options())
        except _cupy.CompileError as error:
            if not formula:
                raise
            raise ValueError(explained(formula, str(error))) from None
    if shared:
        kernel.max_dynamic_shared_size_bytes = shared
        kernel.preferred_shared_memory_carveout = (
            100  # percent: as many blocks as there is room for
        )
    per_multiprocessor = _cupy.occupancy(kernel.kernel.ptr, threads)
    return Function(kernel, kernel.kernel.ptr, per_multiprocessor * _cupy.multiprocessors(device))


# ---- launching ---------------------------------------------------------------------------------


class Launch:
    """A kernel with its grid and all its arguments but the pointers, which come last.

    `arguments` are the bytes of each argument by value, `shared` those of dynamic shared memory.
    One launch costs 3 µs of host time this
    way and 10 µs through RawKernel.__call__, which boxes every argument anew.
    """

    def __init__(
        self,
        kernel: Function,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[bytes],
        pointers: int,
        shared: int = 0,
    ) -> None:
        offsets, end = [], 0
        for argument in arguments:
            offsets.append(end)
            end += -(-len(argument) // 8) * 8
        self._pointers_at = end
        self._pack = struct.Struct(f"={pointers}Q").pack_into
        self._buffer: Any = np.zeros(end + 8 * pointers, np.uint8)
        for offset, argument in zip(offsets, arguments, strict=True):
            self._buffer[offset : offset + len(argument)] = np.frombuffer(argument, np.uint8)
        offsets += [end + 8 * k for k in range(pointers)]
        self._addresses = self._buffer.ctypes.data + np.array(offsets, np.uint64)
        self._parameters = int(self._addresses.ctypes.data)
        self._kernel = kernel
        self._shape = (kernel.pointer, grid[0], grid[1], 1, threads, 1, 1, shared)
        self._lock = threading.Lock()
        self._launch = _cupy.launcher()

    def __call__(self, stream: int, *pointers: int) -> None:
        with self._lock:  # until the driver has copied the arguments
            self._pack(self._buffer, self._pointers_at, *pointers)
            try:
                self._launch(*self._shape, stream, self._parameters, 0)
            except RuntimeError as error:
                _cupy.enter_context(error)
                self._launch(*self._shape, stream, self._parameters, 0)


def int64(*values: int) -> bytes:
    """Arguments of type long long, or a struct of them."""
    return struct.pack(f"={len(values)}q", *values)


def float64(value: float) -> bytes:
    """An argument of type double."""
    return struct.pack("=d", value)


def parameters(values: Sequence[float], dtype: str) -> bytes:
    """The fields of a loss: each parameter with its reciprocal in two parts, in `dtype`.

    A loss without parameters is an empty struct, which takes one byte.
    """
    fields: list[Any] = []
    number = np.dtype(dtype).type
    for value in values:
        exact = 1.0 / value if value else np.inf
        reciprocal = number(exact)
        remainder = exact - float(reciprocal) if np.isfinite(reciprocal) else 0.0
        fields += [number(value), reciprocal, number(remainder)]
    return b"".join(field.tobytes() for field in fields) or b"\0"

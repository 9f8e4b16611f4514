"""A launch: a kernel with its grid and its arguments, packed once."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import driver
from .compiler import Kernel


class Launch:
    """A kernel with its grid and all its arguments but the pointers, which come last.

    `arguments` are the bytes of each argument by value, `shared` those of dynamic shared memory.
    One launch costs 3 µs of host time this
    way and 10 µs through RawKernel.__call__, which boxes every argument anew.
    """

    def __init__(
        self,
        kernel: Kernel,
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
        self._launch = driver.launcher()

    def __call__(self, stream: int, *pointers: int) -> None:
        with self._lock:  # until the driver has copied the arguments
            self._pack(self._buffer, self._pointers_at, *pointers)
            try:
                self._launch(*self._shape, stream, self._parameters, 0)
            except RuntimeError as error:
                driver.enter_context(error)
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

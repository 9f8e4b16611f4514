"""A launch: a kernel with its grid and its arguments, packed once."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._core.loss import Loss
from .._core.shapes import IterationSpace
from . import driver
from .compiler import Kernel

Parameters = tuple[float | int, ...]
Chooser = Callable[[list[int]], Sequence[int]]  # addresses of a launch, from those of a call
EMPTY_STRUCT = b"\0"  # one byte, in C++
POINTERS_OF_RESULTS = 6


class Fields:
    """The fields of a loss in C++: what the hyper-parameters of its calls are packed to.

    The integers come first, then each number with its reciprocal in two parts, in the arithmetic
    type. A loss without hyper-parameters is an empty struct.
    """

    def __init__(self, loss: Loss, real: str) -> None:
        names = list(enumerate(loss.parameters))
        self._integers = [k for k, name in names if name in loss.integers]
        self._numbers = [k for k, name in names if name not in loss.integers]
        self._real = struct.Struct("=d" if real == "float64" else "=f")
        self._pack = struct.Struct(f"={'ddd' if real == 'float64' else 'fff'}").pack

    def __call__(self, parameters: Parameters) -> bytes:
        """The bytes of the struct."""
        fields = int64(*[int(parameters[k]) for k in self._integers])
        for k in self._numbers:
            fields += self._with_reciprocal(parameters[k])
        return fields or EMPTY_STRUCT

    def _with_reciprocal(self, value: float) -> bytes:
        exact = 1.0 / value if value else math.inf
        try:
            (reciprocal,) = self._real.unpack(self._real.pack(exact))
        except OverflowError:
            reciprocal = math.copysign(math.inf, value)
        remainder = exact - reciprocal if math.isfinite(reciprocal) else 0.0
        return self._pack(value, reciprocal, remainder)


class _Block:
    """The arguments of a kernel in memory, for one launch at a time: the driver copies them."""

    def __init__(
        self,
        arguments: bytes,
        offsets: Sequence[int],
        pointers: int,
        fields: int,
        parameters: Parameters,
    ) -> None:
        end = len(arguments)
        self._buffer = np.zeros(end + 8 * pointers, np.uint8)
        self.bytes: Any = self._buffer.data
        self.bytes[:end] = arguments
        starts = [*offsets, *range(end + 8 * fields, len(self._buffer), 8)]
        self._addresses = self._buffer.ctypes.data + np.array(starts, np.uint64)
        self.address = int(self._addresses.ctypes.data)
        self.parameters, self.scale = parameters, 1.0
        pack = struct.Struct(f"={pointers}Q").pack_into
        self.pack_pointers = functools.partial(pack, self.bytes, end)


class Launch:
    """A kernel with its grid and all its arguments but the pointers, which come last.

    `fields` packs the hyper-parameters of a call to the first argument, `parameters` are those of
    the first call. The next argument is then the scale of a call, or 1 if the launch is not
    `scaled`. `arguments` are the bytes of the others by value, `shared` those of dynamic shared
    memory. The first `fields_of_last` pointers are fields of the last of the others. One launch
    costs 3 µs of host time this way and 10 µs through RawKernel.__call__, which boxes every
    argument anew.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[bytes],
        pointers: int,
        fields_of_last: int = 0,
        shared: int = 0,
        fields: Callable[[Parameters], bytes] | None = None,
        parameters: Parameters = (),
        scaled: bool = False,
    ) -> None:
        self._fields, self._scaled = fields, scaled
        if fields is not None:
            arguments = [fields(parameters), float64(1.0), *arguments]
        packed, offsets = b"", []
        for argument in arguments:
            offsets.append(len(packed))
            packed += argument + bytes(-len(argument) % 8)
        self._offsets = offsets
        self._new_block = functools.partial(
            _Block, packed, offsets, pointers, fields_of_last, parameters
        )
        # Each thread that launches takes one; pop and append are one step each.
        self._free = [self._new_block()]
        self._kernel = kernel  # keeps the code loaded
        self._launch = functools.partial(
            driver.launcher(), kernel.pointer, grid[0], grid[1], 1, threads, 1, 1, shared
        )

    # A method by name: a call of the object itself would take a third longer.
    def start(
        self, stream: int, parameters: Parameters, scale: float, pointers: Sequence[int]
    ) -> None:
        """Launch on a stream."""
        try:
            block = self._free.pop()
        except IndexError:
            block = self._new_block()
        if parameters != block.parameters or scale != block.scale:
            self._pack_numbers(block, parameters, scale)
        block.pack_pointers(*pointers)
        try:
            self._launch(stream, block.address, 0)
        except RuntimeError as error:
            driver.enter_context(error)
            self._launch(stream, block.address, 0)
        self._free.append(block)

    def _pack_numbers(self, block: _Block, parameters: Parameters, scale: float) -> None:
        """Take the numbers of a call, as far as they are not those of the last one."""
        if self._fields is not None and parameters != block.parameters:
            fields = self._fields(parameters)
            block.bytes[: len(fields)] = fields
        if self._scaled:
            begin = self._offsets[1]
            block.bytes[begin : begin + 8] = float64(scale)
        block.parameters, block.scale = parameters, scale


def head_of_results(segments: int, divisor: float) -> bytes:
    """The first fields of the struct Results of cuda/reduction/reduction.cuh, ahead of pointers."""
    return int64(segments) + float64(divisor)


def iteration_space(space: IterationSpace) -> bytes:
    """The fields of the struct Layout of cuda/memory/layout.cuh."""
    reciprocals = b"".join(reciprocal(size) for size in space.shape)
    strides = (length for steps in space.strides for length in steps)
    return int64(*space.shape) + reciprocals + int64(*strides)


def reciprocal(divisor: int) -> bytes:
    """What divides numbers below 2^31: a high product and a shift."""
    bits = max(divisor - 1, 1).bit_length()  # of divisors from 2 on
    multiplier = (1 << 31 + bits) // divisor + 1
    return struct.pack("=2I", multiplier & 0xFFFFFFFF, bits - 1)


def int64(*values: int) -> bytes:
    """Arguments of type long long, or a struct of them."""
    return struct.pack(f"={len(values)}q", *values)


def int32(*values: int) -> bytes:
    """Arguments of type int, or a struct of them."""
    return struct.pack(f"={len(values)}i", *values)


def float64(value: float) -> bytes:
    """An argument of type double."""
    return struct.pack("=d", value)

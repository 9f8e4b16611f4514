"""Launches a compiled kernel on host memory and reports what it did wrong."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Triple = tuple[int, int, int]

_OF_THE_EMULATOR = ("cuda_emu.h", "instructions.h", "?")  # lines that are not of a kernel


class EmulatorError(RuntimeError):
    """A kernel, or its launch, did what it must not do."""


class Region(NamedTuple):
    """Memory that a kernel may use."""

    begin: int
    size: int
    writable: bool

    @property
    def end(self) -> int:
        """The address behind it."""
        return self.begin + self.size


class Parameter(NamedTuple):
    """A parameter of a kernel.

    `kind` is "p" for a pointer, "c" for a pointer to const, "f", "i", "u" or "b" for a number, "s"
    for a struct; `alignment` is that of what a pointer points to.
    """

    kind: str
    size: int
    alignment: int

    @property
    def is_pointer(self) -> bool:
        """Whether it is a pointer."""
        return self.kind in "pc"


class Schedule(NamedTuple):
    """In which order threads run, and which do.

    With seed 0, threads and blocks run in order. Any other seed switches at random between the
    threads of `concurrent` blocks, in the same way each time. A launch that takes more than
    `most_steps` basic blocks and switches between threads is stopped as endless.
    """

    seed: int = 0
    concurrent: int = 1
    blocks: Sequence[int] | None = None  # by linear number; None: all
    most_steps: int = 1 << 28


IN_ORDER = Schedule()


class _Parameter(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_char),
        ("size", ctypes.c_int),
        ("alignment", ctypes.c_int),
    ]


class _Region(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("writable", ctypes.c_uint64),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("check", ctypes.c_uint64),
        ("concurrent", ctypes.c_uint64),
        ("most_steps", ctypes.c_uint64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint64),
        ("chosen", ctypes.POINTER(ctypes.c_uint32)),
        ("chosen_count", ctypes.c_uint64),
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_uint64),
    ]


_one_at_a_time = threading.Lock()


class Kernel:
    """One kernel of a compiled library."""

    def __init__(
        self,
        name: str,
        symbol: str,
        library: Path,
        runtime: Path,
        check: bool,
        dynamic_room: int,
    ) -> None:
        self.name = name
        self._check = check
        self._path = library
        self._library = ctypes.CDLL(str(library))
        self._function = getattr(self._library, symbol)
        self._dynamic_room = dynamic_room
        self._runtime = ctypes.CDLL(str(runtime))
        self._runtime.emu_message.restype = ctypes.c_char_p
        describe = getattr(self._library, f"{symbol}_parameters")
        described = (_Parameter * describe(None))()
        describe(described)
        self.parameters = tuple(Parameter(p.kind.decode(), p.size, p.alignment) for p in described)

    def run(
        self,
        grid: Triple,
        block: Triple,
        arguments: int,
        regions: Iterable[Region],
        shared_bytes: int = 0,
        schedule: Schedule = IN_ORDER,
    ) -> list[str]:
        """Run the grid; `arguments` is the address of an array of pointers to the arguments.

        Returns:
            What went wrong, in words.
        """
        known = [_Region(*region) for region in sorted(regions)]
        blocks = schedule.blocks
        config = _Config(
            schedule.seed,
            self._check,
            schedule.concurrent,
            schedule.most_steps,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            shared_bytes,
            None if blocks is None else (ctypes.c_uint32 * len(blocks))(*blocks),
            0 if blocks is None else len(blocks),
            (_Region * len(known))(*known),
            len(known),
        )
        with _one_at_a_time:
            count = self._runtime.emu_launch(
                self._function,
                ctypes.c_void_p(arguments),
                ctypes.byref(config),
                self._library.emu_touch_shared,
                self._library.emu_dynamic_shared if self._dynamic_room else None,
                ctypes.c_size_t(self._dynamic_room),
            )
            messages = [self._runtime.emu_message(k).decode() for k in range(count)]
        return [self._located(message) for message in messages]

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        *,
        shared_bytes: int = 0,
        schedule: Schedule = IN_ORDER,
    ) -> None:
        """Run the grid on NumPy arrays and numbers.

        A kernel may use the memory of these arrays alone, and write to those that are writeable
        and that it does not take as pointers to const. A Python int is a long long, a float a
        double, bytes are a struct, a tuple one of such fields, None is a null pointer.

        Raises:
            EmulatorError: If an argument does not fit, or the kernel does something wrong.
        """
        if len(arguments) != len(self.parameters):
            raise EmulatorError(
                f"{self.name} takes {len(self.parameters)} arguments, {len(arguments)} given"
            )
        packed = [self._packed(number, argument) for number, argument in enumerate(arguments)]
        buffers = [ctypes.create_string_buffer(raw, len(raw)) for raw in packed]
        addresses = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        regions = self._regions(arguments)
        table = ctypes.addressof(addresses)
        messages = self.run(_triple(grid), _triple(block), table, regions, shared_bytes, schedule)
        if messages:
            raise failure(self.name, schedule, messages)

    def _packed(self, number: int, argument: Any) -> bytes:
        """The bytes of an argument, as CuPy packs it."""
        parameter = self.parameters[number]
        if isinstance(argument, np.ndarray) or argument is None:
            kind, raw = "a pointer", np.uint64(_address(argument)).tobytes()
            fits = parameter.is_pointer
        elif isinstance(argument, bytes | tuple):
            raw = b"".join(map(_field, argument)) if isinstance(argument, tuple) else argument
            kind = f"{len(raw)} bytes"
            fits = parameter.kind == "s" and parameter.size == len(raw)
        else:
            scalar = np.asarray(argument)
            kind, raw = str(scalar.dtype), scalar.tobytes()
            fits = (scalar.dtype.kind, len(raw)) == (parameter.kind, parameter.size)
        if not fits:
            raise EmulatorError(
                f"argument {number} of {self.name}: {kind} given, "
                f"the kernel takes {parameter.kind}{parameter.size}"
            )
        return raw

    def _regions(self, arguments: Sequence[Any]) -> list[Region]:
        """The memory of the arrays."""
        regions = []
        for argument, parameter in zip(arguments, self.parameters, strict=True):
            for array in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(array, np.ndarray):
                    begin, end = np.lib.array_utils.byte_bounds(array)
                    writable = parameter.kind in "ps" and array.flags.writeable
                    regions.append(Region(begin, end - begin, writable))
        return _merged(regions)

    def _located(self, message: str) -> str:
        """The message with `file:line` for each @offset@ in the library's code."""
        return re.sub(r"@([0-9a-f]+)@", lambda match: self._line(match[1]), message)

    def _line(self, offset: str) -> str:
        command = ["addr2line", "-i", "-e", str(self._path), f"0x{offset}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        lines = [Path(line.split(" ")[0]).name for line in found.splitlines()]
        of_kernel = [line for line in lines if not line.startswith(_OF_THE_EMULATOR)]
        return of_kernel[0] if of_kernel else f"0x{offset}"


def failure(name: str, schedule: Schedule, messages: Sequence[str]) -> EmulatorError:
    """The error for what a launch reported."""
    return EmulatorError(f"{name}, seed {schedule.seed}:\n  " + "\n  ".join(messages))


def _field(value: Any) -> bytes:
    """The bytes of a number or a pointer, of 8 bytes."""
    if isinstance(value, np.ndarray) or value is None:
        return np.uint64(_address(value)).tobytes()
    return np.asarray(value).tobytes()


def _address(array: Any) -> int:
    return 0 if array is None else int(array.ctypes.data)


def _triple(size: Sequence[int]) -> Triple:
    x, y, z = (*size, 1, 1)[:3]
    return x, y, z


def _merged(regions: Iterable[Region]) -> list[Region]:
    """The same memory as regions that do not overlap."""
    merged: list[Region] = []
    for region in sorted(regions):
        if merged and region.begin < merged[-1].end:
            last = merged.pop()
            end = max(last.end, region.end)
            region = Region(last.begin, end - last.begin, last.writable or region.writable)
        merged.append(region)
    return merged

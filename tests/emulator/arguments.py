"""Checks the arguments of a launch against the parameters of the kernel."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np

from .launcher import Parameter, Region


def check_arguments(
    parameters: Sequence[Parameter], table: int, regions: Sequence[Region]
) -> list[str]:
    """What is wrong with the arguments of a launch.

    `table` is the address of an array of pointers to the arguments. Their number and sizes can be
    checked where the caller holds that array, or the buffer of the arguments, as a NumPy array.
    """
    count = len(parameters)
    known = _array_around(table)
    if known is not None and known.stop - table != 8 * count:
        return [f"the kernel takes {count} arguments, {(known.stop - table) // 8} given"]
    addresses = list((ctypes.c_uint64 * count).from_address(table))
    return _check_sizes(parameters, addresses) or _check_pointers(parameters, addresses, regions)


def _check_sizes(parameters: Sequence[Parameter], addresses: Sequence[int]) -> list[str]:
    """Each argument must have as much room in the buffer as the kernel takes, in units of 8."""
    buffer = _array_around(addresses[0]) if addresses else None
    if buffer is None:
        return []
    messages = []
    ends = [*addresses[1:], buffer.stop]
    for number, (parameter, begin, end) in enumerate(zip(parameters, addresses, ends, strict=True)):
        if begin not in buffer:
            messages.append(f"argument {number} lies outside the buffer of the arguments")
        elif not 0 <= end - begin - parameter.size < 8:
            messages.append(f"argument {number} has {end - begin} bytes, not {parameter.size}")
    return messages


def _check_pointers(
    parameters: Sequence[Parameter], addresses: Sequence[int], regions: Sequence[Region]
) -> list[str]:
    messages = []
    for number, (parameter, address) in enumerate(zip(parameters, addresses, strict=True)):
        if parameter.is_pointer:
            pointer = ctypes.c_uint64.from_address(address).value
            problem = _pointer_problem(pointer, parameter, regions)
            if problem:
                messages.append(f"argument {number}, pointer {pointer:#x}: {problem}")
    return messages


def _pointer_problem(pointer: int, parameter: Parameter, regions: Sequence[Region]) -> str:
    if pointer == 0:
        return ""
    if pointer % parameter.alignment:
        return f"not aligned to {parameter.alignment} bytes"
    region = next((r for r in regions if r.begin <= pointer < r.end), None)
    if region is None:
        return "points to no array"
    if parameter.kind == "p" and not region.writable:
        return "read-only memory, and the parameter is no pointer to const"
    return ""


def _array_around(address: int) -> range | None:
    """The memory of the NumPy array that holds an address, if one of the callers has it.

    They may have it as a variable, or as an attribute of one, such as self.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        for value in list(frame.f_locals.values()):
            for array in (value, *getattr(value, "__dict__", {}).values()):
                if isinstance(array, np.ndarray) and array.size:
                    begin, end = np.lib.array_utils.byte_bounds(array)
                    if begin <= address < end:
                        return range(begin, end)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None

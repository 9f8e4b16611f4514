"""Where arrays lie in memory: whether two share any of it, and what may not be overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .loss import Call, Request
from .shapes import Shape


class Memory(NamedTuple):
    """Where the elements of an array lie: address, strides and the size of one in bytes."""

    address: int
    shape: Shape
    strides: Shape
    item_size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and the last one."""
        reach = [step * (n - 1) for step, n in zip(self.strides, self.shape, strict=True)]
        first = self.address + sum(step for step in reach if step < 0)
        last = self.address + sum(step for step in reach if step > 0) + self.item_size - 1
        return first, last


def share_memory(a: Memory, b: Memory, steps: int = 10_000) -> bool:
    """Whether an element of `a` and one of `b` have a byte in common.

    The answer is exact unless it takes more than `steps` steps to find, which views of one array do
    not in practice. It is True then.
    """
    if 0 in a.shape or 0 in b.shape:
        return False
    (a_first, a_last), (b_first, b_last) = a.bounds, b.bounds
    if a_last < b_first or b_last < a_first:
        return False
    # With b counted from its last byte backwards, both move upwards: a byte is common where
    # steps along the axes, and inside of the two elements, add up to the distance.
    limits: dict[int, int] = {}
    for memory in (a, b):
        for stride, length in zip(memory.strides, memory.shape, strict=True):
            if stride and length > 1:
                limits[abs(stride)] = limits.get(abs(stride), 0) + length - 1
    strides = sorted(limits, reverse=True)
    inside = a.item_size + b.item_size - 2
    reach = [inside]  # of the strides from each place on
    divisor = [0]
    for stride in reversed(strides):
        reach.insert(0, reach[0] + stride * limits[stride])
        divisor.insert(0, math.gcd(divisor[0], stride))
    pending = [(0, b_last - a_first)]
    while pending:
        place, distance = pending.pop()
        if place == len(strides):
            return True
        if distance % divisor[place] > inside:
            continue
        stride = strides[place]
        lowest = max(-(-(distance - reach[place + 1]) // stride), 0)
        highest = min(distance // stride, limits[stride])
        steps -= highest - lowest + 1
        if steps < 0:
            return True
        pending += [(place + 1, distance - k * stride) for k in range(lowest, highest + 1)]
    return False


def check_overwritten(call: Call, request: Request, operands: Sequence[Memory]) -> None:
    """Raise if a request would overwrite an operand that shares memory with another one."""
    if not call.loss.overwrites or call.extra not in request.wanted:
        return
    names = request.names_in_messages(call)
    overwritten = request.extra + call.extra
    for k, name in enumerate(names):
        if k != overwritten and share_memory(operands[overwritten], operands[k]):
            raise ValueError(
                f"{names[overwritten]} must not share memory with {name} to be overwritten "
                "(strides for which this is hard to tell count as shared memory)"
            )


def without_memory(name: str, array: Any, error: Exception) -> TypeError:
    """The error for an array that has no elements at one address with strides."""
    why: Any = error
    if getattr(array, "is_nested", False):
        why = "it is nested. Pad it, and pass where= for what counts"
    return TypeError(f"{name} must be a dense torch array on the host or a CUDA device: {why}")

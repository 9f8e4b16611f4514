"""Shapes and strides: broadcasting, memory order, iteration spaces.

Pure arithmetic on tuples, shared by all backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .dtypes import promoted

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ArraySpec:
    """An array without its data: dtype, shape, and strides in elements."""

    dtype: str
    shape: Shape
    strides: Shape

    @classmethod
    def contiguous(cls, dtype: str, shape: Shape) -> ArraySpec:
        """An array whose last axis is the fastest in memory, without gaps."""
        return cls(dtype, shape, dense_strides(range(len(shape)), shape))

    @property
    def is_contiguous(self) -> bool:
        """Whether the last axis is the fastest in memory, without gaps."""
        return self.strides == dense_strides(range(len(self.shape)), self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size


def result_dtype(operands: Sequence[ArraySpec], autocast: bool = False) -> str:
    """The dtype of the loss, as torch's losses promote: the widest, 0-d arrays included.

    Integers never decide, as at least one operand is floating. Under torch's autocast, losses of
    half precision are float32.
    """
    dtype = promoted({operand.dtype for operand in operands})
    return "float32" if autocast and dtype in ("float16", "bfloat16") else dtype


def broadcast_shape(operands: Sequence[ArraySpec], names: Sequence[str], leading: int = 0) -> Shape:
    """The common shape of the operands, to which the first `leading` ones must broadcast.

    Raises a ValueError that names the operand that does not fit.
    """
    deciding = list(zip(operands, names, strict=True))[leading:]
    shape = [1] * max(len(operand.shape) for operand, _ in deciding)
    for operand, name in deciding:
        offset = len(shape) - len(operand.shape)
        for d, length in enumerate(operand.shape, start=offset):
            if shape[d] == 1:
                shape[d] = length
            elif length not in (1, shape[d]):
                others = ", ".join(f"{n} {o.shape}" for o, n in deciding if n != name)
                raise ValueError(
                    f"{name} of shape {operand.shape} does not broadcast with {others}"
                )
    for operand, name in zip(operands, names, strict=True):
        offset = len(shape) - len(operand.shape)
        if offset < 0 or any(
            length not in (1, shape[d]) for d, length in enumerate(operand.shape, start=offset)
        ):
            raise ValueError(
                f"{name} of shape {operand.shape} does not broadcast to {tuple(shape)}"
                f"{with_axes_behind(name, operand.shape, shape)}"
            )
    return tuple(shape)


def with_axes_behind(name: str, shape: Shape, to: Sequence[int]) -> str:
    """What to pass for an array whose axes are the first ones of a shape, not the last, or ""."""
    missing = len(to) - len(shape)
    if not shape or missing <= 0 or shape != tuple(to[: len(shape)]):
        return ""
    index = ", ".join([":"] * len(shape) + ["None"] * missing)
    along = "axis 0" if len(shape) == 1 else f"the first {len(shape)} axes"
    return f": pass {name}[{index}] if it lies along {along}"


def broadcast_strides(operand: ArraySpec, shape: Shape) -> Shape:
    """The strides of `operand` over `shape`: 0 along the axes it is broadcast to.

    Leading axes of length 1 that `shape` does not have are left out.
    """
    offset = len(shape) - len(operand.shape)
    own = [0 if n == 1 else step for n, step in zip(operand.shape, operand.strides, strict=True)]
    return (0,) * offset + tuple(own[max(-offset, 0) :])


def overlaps(operand: ArraySpec) -> bool:
    """Whether elements may share memory: unless each axis steps over all of the faster ones."""
    if 0 in operand.shape:
        return False
    reach = 0
    for step, length in sorted(zip(map(abs, operand.strides), operand.shape, strict=True)):
        if length > 1:
            if step <= reach:
                return True
            reach += step * (length - 1)
    return False


def broadcast_axes(operand: ArraySpec, shape: Shape) -> tuple[int, ...]:
    """The axes of `shape` along which `operand` is repeated."""
    offset = len(shape) - len(operand.shape)
    return tuple(
        d
        for d, length in enumerate(shape)
        if length > 1 and (d < offset or operand.shape[d - offset] == 1)
    )


def memory_order(shape: Shape, strides: Sequence[Shape], first: int = 0) -> list[int]:
    """The axes of length > 1, slowest first, as the first operand that moves along them lies.

    Operands before `first` come last.
    """
    strides = (*strides[first:], *strides[:first])
    # An operand's zero stride says nothing of its order: such axes are placed by the next operand.
    axes = [axis for axis in range(len(shape)) if shape[axis] > 1]
    order: list[int] = []
    for axis in axes:
        place = len(order)
        while place and _before(axis, order[place - 1], strides):
            place -= 1
        order.insert(place, axis)
    return order


def _before(a: int, b: int, strides: Sequence[Shape]) -> bool:
    """Whether axis `a` is slower than axis `b` in the first operand that moves along both."""
    for step in strides:
        if step[a] and step[b]:
            return abs(step[a]) > abs(step[b])
    return False


@dataclass(frozen=True)
class IterationSpace:
    """Coalesced dimensions, slowest first, and the strides of each operand along them."""

    shape: Shape
    strides: tuple[Shape, ...]


def coalesce(axes: Sequence[int], shape: Shape, strides: Sequence[Shape]) -> IterationSpace:
    """Merge neighbouring axes along which every operand runs on without a gap."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for axis in axes:
        length, steps = shape[axis], tuple(step[axis] for step in strides)
        if merged:
            outer_length, outer_steps = merged[-1]
            if all(o == s * length for o, s in zip(outer_steps, steps, strict=True)):
                merged[-1] = (outer_length * length, steps)
                continue
        merged.append((length, steps))
    return IterationSpace(
        tuple(length for length, _ in merged),
        tuple(tuple(steps[k] for _, steps in merged) for k in range(len(strides))),
    )


def dense_strides(axes: Sequence[int], shape: Shape) -> Shape:
    """The strides of a new array of `shape` whose memory runs along `axes`, slowest first."""
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= shape[axis]
    for axis in reversed(range(len(shape))):  # an axis of length 1 or 0: as in a C-ordered array
        if axis not in axes:
            inner = axis + 1
            strides[axis] = strides[inner] * max(shape[inner], 1) if inner < len(shape) else 1
    return tuple(strides)

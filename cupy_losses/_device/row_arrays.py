"""How arrays lie over the elements of all rows, and what kernels may read of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .._core.dtypes import item_size
from .._core.rows import RowSpace
from .._core.shapes import IterationSpace, Shape, coalesce, dense_strides
from .addresses import Address
from .cpp import bits, template
from .hardware import SECTOR_BYTES, VECTOR_BYTES
from .launch import int64, iteration_space

LONG_STRETCH = 32  # rows, so that many tiles do not reach from one into the next


@dataclass(frozen=True)
class RowArray:
    """An array that the kernels read or write, as it lies over the elements."""

    dtype: str
    strides: Shape
    misaligned: int
    address: Address
    streamed: bool  # element by element, of each row its own


@dataclass(frozen=True)
class RowGeometry:
    """The rows, over whose elements arrays lie."""

    space: RowSpace

    @cached_property
    def axes(self) -> list[int]:
        """Those along which a row leads to the next one."""
        return [axis for axis in self.space.axes if axis != self.space.axis]

    @cached_property
    def number(self) -> int:
        """How many there are."""
        return math.prod(self.space.shape[axis] for axis in self.axes)

    @property
    def columns(self) -> int:
        """The elements of a row."""
        return self.space.shape[self.space.axis]

    @cached_property
    def dense(self) -> Shape:
        """The strides of an array whose rows are one stretch of memory, in memory order."""
        return dense_strides([*self.axes, self.space.axis], self.space.shape)

    @cached_property
    def one_each(self) -> Shape:
        """The strides of such an array with a number for each row."""
        axis = self.space.axis
        return tuple(0 if a == axis else step // self.columns for a, step in enumerate(self.dense))

    def step(self, array: RowArray) -> int:
        """From an element of a row to the next one."""
        return array.strides[self.space.axis]

    def steps(self, array: RowArray) -> list[int]:
        """From a row to the next one, along each axis."""
        return [array.strides[axis] for axis in self.axes]

    def lies(self, array: RowArray, strides: Shape) -> bool:
        """Whether an array lies so over the rows."""
        pairs = zip(self.space.shape, array.strides, strides, strict=True)
        return all(n == 1 or step == wanted for n, step, wanted in pairs)

    def lie_apart(self, array: RowArray) -> bool:
        """Whether neighbouring rows are nearer to one another than the elements of a row."""
        if self.columns <= 1 or not self.axes:
            return False
        return abs(array.strides[self.axes[-1]]) < abs(self.step(array))

    def has_vectors(self, array: RowArray, width: int, shifted_as: RowArray | None = None) -> bool:
        """Whether vectors of `width` elements of each row are aligned.

        They are as long as an access may be. `shifted_as`: they begin where those of this array do,
        which is known of its address modulo an access.
        """
        if self.step(array) != 1:
            return False
        size = item_size(array.dtype)
        unit = min(width, VECTOR_BYTES // size)
        start, steps = array.misaligned // size, self.steps(array)
        if shifted_as is not None:
            if unit * item_size(shifted_as.dtype) > VECTOR_BYTES:
                return False
            start -= shifted_as.misaligned // item_size(shifted_as.dtype)
            pairs = zip(steps, self.steps(shifted_as), strict=True)
            steps = [own - other for own, other in pairs]
        return not any(n % unit for n in (start, *steps))

    def has_pairs(self, array: RowArray, others: Sequence[RowArray]) -> bool:
        """Whether elements of two neighbouring rows are one access; `others` lie beside."""
        return self.are_at_once(array, 2, others)

    def are_at_once(self, array: RowArray, number: int, others: Sequence[RowArray] = ()) -> bool:
        """The same of so many rows."""
        aligned = not array.misaligned % (number * item_size(array.dtype))
        return aligned and self._lie_at_once(array, number, others)

    def lie_in_pairs(self, array: RowArray, others: Sequence[RowArray]) -> bool:
        """Whether they would be one access at some address of the array."""
        return self._lie_at_once(array, 2, others)

    def _lie_at_once(self, array: RowArray, number: int, others: Sequence[RowArray]) -> bool:
        length, steps = self._stretches(array, others)
        return length > 0 and not (length % number or any(step % number for step in steps))

    def lies_in_parts(self, array: RowArray, others: Sequence[RowArray]) -> bool:
        """Whether long stretches of neighbouring rows begin within sectors of memory.

        `others` lie beside the array.
        """
        length, steps = self._stretches(array, others)
        size = item_size(array.dtype)
        begins_in_parts = array.misaligned or any(size * step % SECTOR_BYTES for step in steps)
        return length >= LONG_STRETCH and bool(begins_in_parts)

    def line(self, array: RowArray, others: Sequence[RowArray] = ()) -> int:
        """How many neighbouring rows lie side by side in an array, `others` beside it."""
        return self._stretches(array, others)[0]

    def _stretches(self, array: RowArray, others: Sequence[RowArray]) -> tuple[int, Shape]:
        """How many neighbouring rows lie side by side, and the steps from a stretch to others.

        `others` lie beside the array. There are 0 where it has no such rows.
        """
        space = coalesce(self.axes, self.space.shape, [array.strides, *(a.strides for a in others)])
        if not space.shape or space.strides[0][-1] != 1:
            return 0, ()
        return space.shape[-1], (*space.strides[0][:-1], self.step(array))

    def extent(self, array: RowArray) -> int:
        """The elements between the first and the last one of an array; 0 if it runs backwards."""
        if min(array.strides) < 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.space.shape, array.strides, strict=True))

    def layout(
        self, arrays: Sequence[RowArray], vectors: Sequence[int], extents: Sequence[int]
    ) -> tuple[str, bytes]:
        """The C++ type of the layout of arrays, `vectors` of which are vectorised; its fields."""
        space = coalesce(self.axes, self.space.shape, [a.strides for a in arrays])
        if not space.shape:
            space = IterationSpace((1,), ((0,),) * len(arrays))
        index = "unsigned" if self.number < 2**30 else "unsigned long long"
        column = "int" if self.columns < 2**30 else "long long"
        steps = [self.step(array) for array in arrays]
        spans = [
            sum(n * step for n, step in zip(space.shape, s, strict=True)) + self.columns * own
            for s, own in zip(space.strides, steps, strict=True)
        ]
        backwards = any(step < 0 for s in (*space.strides, steps) for step in s)
        offset = "long long" if backwards or max(spans) >= 2**32 else "unsigned"
        numbers = len(space.shape), len(arrays), bits(vectors)
        name = template("RowLayout", *numbers, index, column, offset)
        return name, iteration_space(space) + int64(*steps, *extents)

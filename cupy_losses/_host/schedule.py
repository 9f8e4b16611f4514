"""Recorded formulas computed: one operation after the other, in buffers that are used again.

A buffer is free as soon as what is in it was used for the last time. So a formula takes few of
them, and these stay in the cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.shapes import Shape
from .arrays import HostArray
from .recording import (
    BOOL,
    FLOAT,
    Function,
    Given,
    Operation,
    Recorded,
    Recording,
    widened,
)


class Instruction(NamedTuple):
    """An operation on the contents of slots.

    With `into`, the result is written into the array in a slot; else it becomes the content.
    """

    function: Function
    arguments: tuple[int, ...]
    slot: int
    into: bool


class Schedule:
    """The order of operations, and the slot of each value.

    A slot is for something given, a constant, a buffer, or a place for an output. A result that
    NumPy allocates is put into a slot of its own.

    Attributes:
        arrays: The number of arrays that are given, in the first slots; numbers follow.
        first: What the slots have at first: the constants.
        buffers: The slots that have a buffer, and its dtype.
        instructions: The operations.
        outputs: The slot of each output.
        placed: Whether an output is written to a place that is given.

    """

    def __init__(
        self,
        recording: Recording,
        arrays: int,
        numbers: int,
        outputs: Sequence[Recorded],
        placed: Sequence[bool],
    ) -> None:
        """Find the slots.

        Args:
            recording: What was recorded.
            arrays: How many arrays are given.
            numbers: How many numbers are given behind them.
            outputs: The numbers to compute.
            placed: Which of the first ones are to be written to a place.

        """
        self._entries, self._dtypes = recording.entries, recording.dtypes
        self._ends = [output.place for output in outputs]
        self.placed = [
            wanted and self._ends.count(end) == 1 and recording.dtypes[end] is FLOAT
            for end, wanted in zip(self._ends, placed, strict=False)
        ]
        self.arrays = arrays
        self.first: list[Any] = [None] * (arrays + numbers)
        self.buffers: list[tuple[int, np.dtype[Any]]] = []
        self._slots: dict[int, int] = {}
        self.instructions: list[Instruction] = []
        self._allocate(self._order())
        self.outputs = [self._slots[end] for end in self._ends]

    def _order(self) -> list[int]:
        """The values that are needed, in order; an operand is widened when it is needed first."""
        needed = set(self._ends)
        for place in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[place]
            if place in needed and isinstance(entry, Operation):
                needed.update(entry.arguments)
        order: dict[int, None] = {}
        late = {place for place in needed if self._is_load(place)}
        for place in sorted(needed - late):
            entry = self._entries[place]
            if isinstance(entry, Operation):
                order.update(dict.fromkeys(k for k in entry.arguments if k in late))
            order[place] = None
        order.update(dict.fromkeys(sorted(late)))
        return list(order)

    def _is_load(self, place: int) -> bool:
        entry = self._entries[place]
        return isinstance(entry, Operation) and entry.function is widened

    def _allocate(self, order: Sequence[int]) -> None:
        """Give each value a slot."""
        uses = Counter(self._ends)
        for place in order:
            entry = self._entries[place]
            if isinstance(entry, Operation):
                uses.update(entry.arguments)
        targets = [end for end, own in zip(self._ends, self.placed, strict=False) if own]
        free: dict[np.dtype[Any], list[int]] = {FLOAT: [], BOOL: []}
        kinds: dict[int, np.dtype[Any]] = {}  # of the values that are in buffers
        for place in order:
            entry = self._entries[place]
            if isinstance(entry, Given):
                self._slots[place] = entry.number
                continue
            if not isinstance(entry, Operation):
                self._slots[place] = self._new_slot(entry)
                continue
            uses.subtract(entry.arguments)
            for k in set(entry.arguments):
                if not uses[k] and k in kinds:
                    free[kinds[k]].append(self._slots[k])
            buffer = self._dtypes[place]
            if buffer is None or place in targets:
                slot = self._new_slot()
            else:
                kinds[place] = buffer
                slot = free[buffer].pop() if free[buffer] else self._new_buffer(buffer)
            arguments = tuple(self._slots[k] for k in entry.arguments)
            self._slots[place] = slot
            self.instructions.append(
                Instruction(entry.function, arguments, slot, buffer is not None)
            )

    def _new_slot(self, content: Any = None) -> int:
        self.first.append(content)
        return len(self.first) - 1

    def _new_buffer(self, dtype: np.dtype[Any]) -> int:
        slot = self._new_slot()
        self.buffers.append((slot, dtype))
        return slot


class Evaluation:
    """A schedule with the buffers of one call, for one chunk after the other."""

    def __init__(self, schedule: Schedule, numbers: Sequence[float]) -> None:
        self._schedule = schedule
        self._numbers = numbers
        self._slots: dict[Shape, list[Any]] = {}  # of each shape
        self._memory: list[HostArray] = []

    def __call__(
        self, shape: Shape, arrays: Sequence[HostArray], places: Sequence[tuple[int, HostArray]]
    ) -> list[Any]:
        """What the slots have in the end, given the arrays of a chunk and the slots of places.

        Buffers are there until the next chunk. Constants are numbers.
        """
        slots = self._slots.get(shape)
        if slots is None:
            slots = self._slots[shape] = self._with_buffers(shape)
        slots[: len(arrays)] = arrays
        for slot, place in places:
            slots[slot] = place
        for function, arguments, slot, into in self._schedule.instructions:
            if into:
                function(*[slots[k] for k in arguments], out=slots[slot])
            else:
                slots[slot] = function(*[slots[k] for k in arguments])
        return slots

    def _with_buffers(self, shape: Shape) -> list[Any]:
        """The slots of a shape. The first one is the largest: others take parts of its buffers."""
        schedule = self._schedule
        slots = list(schedule.first)
        slots[schedule.arrays : schedule.arrays + len(self._numbers)] = self._numbers
        if not self._slots:
            self._memory = [np.empty(shape, dtype) for _, dtype in schedule.buffers]
        size = math.prod(shape)
        for (slot, _), memory in zip(schedule.buffers, self._memory, strict=True):
            same = memory.shape == shape
            slots[slot] = memory if same else memory.reshape(-1)[:size].reshape(shape)
        return slots

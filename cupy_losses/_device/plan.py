"""What to launch for one pass over operands of given dtypes, shapes and strides: decided once.

A plan holds everything but the addresses: the specialised kernels with their grids and arguments,
how to allocate the outputs, how much scratch memory. `_plan_pointwise` and `_plan_rows` make plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from .._core.losses import Call, Pass, broadcasts_unasked, computed_now, warn_of_broadcasting
from .._core.shapes import Operand, Shape, dense_strides
from . import driver
from .launch import Launch

Array = Any


@dataclass(frozen=True)
class Output:
    """A new array; `like` is the operand it shares dtype and layout with, or -1."""

    dtype: str
    shape: Shape
    strides: Shape
    like: int = -1


Allocator = Callable[[Sequence[Array]], Array]


class Library(Protocol):
    """What a plan asks of the library of the arrays it works on."""

    def allocator(self, output: Output) -> Allocator:
        """A function from the operands to a new array on their device."""

    def filled(self, output: Output, value: float) -> Allocator:
        """The same, with every element set to `value`."""

    def pointers(self, arrays: Sequence[Array]) -> list[int]:
        """The address of the first element of each array."""

    def stream(self, device: int) -> int:
        """The current stream of the current device."""

    def scratch(self, operands: Sequence[Array], size: int, stream: int) -> tuple[Any, int]:
        """Memory of this call alone, 16-byte aligned: what keeps it alive, and its address.

        It is free again, in stream order, once nothing keeps it alive; while a CUDA graph is
        captured, never.
        """


@dataclass(frozen=True)
class Problem:
    """One pass over operands without their data."""

    call: Call
    todo: Pass
    operands: tuple[Operand, ...]
    misaligned: tuple[int, ...]  # address modulo 16 of each operand
    shape: Shape
    result: str  # the dtype of the loss
    device: int

    @property
    def real(self) -> str:
        """The dtype of the arithmetic."""
        return "float64" if any(o.dtype == "float64" for o in self.operands) else "float32"

    @property
    def size(self) -> int:
        """The number of elements of the broadcast shape."""
        return math.prod(self.shape)

    @property
    def own(self) -> tuple[Operand, ...]:
        """The operands of the call."""
        return self.operands[self.todo.extra :]

    @property
    def computed_now(self) -> list[bool]:
        """Which of the wanted gradients the pass computes."""
        return computed_now(self.call, self.todo, self.own, self.shape)

    @property
    def divisor(self) -> float:
        """What the sum is divided by, where that follows from the shapes."""
        return self.call.loss.divisor(self.call, self.shape, self.own)


def template(name: str, *arguments: str | bool) -> str:
    """The C++ type `name<arguments>`."""
    written = (str(x).lower() if isinstance(x, bool) else x for x in arguments)
    return f"{name}<{', '.join(written)}>"


class Plan:
    """Launches that share outputs and scratch memory.

    A step picks its addresses from slots: 0 a null pointer, then the operands, the outputs, the
    parts of the scratch memory. Gradients that an early pass leaves out are None.
    """

    def __init__(
        self,
        library: Library,
        problem: Problem,
        outputs: list[Allocator | None],
        scratch: list[int],
        steps: list[tuple[Launch, Callable[[list[int]], Sequence[int]]]],
        counters: int,
    ) -> None:
        call, operands = problem.call, problem.operands
        self.device = problem.device
        self.warning: Callable[[], None] | None = None
        if broadcasts_unasked(call, problem.todo, operands):
            self.warning = lambda: warn_of_broadcasting(call, operands)
        self._library = library
        self._outputs = [allocate for allocate in outputs if allocate is not None]
        self._left_out = [allocate is not None for allocate in outputs] if None in outputs else None
        self._scratch = scratch  # where each part begins, and the end
        self._counters = counters  # bytes of it that start at zero
        self._steps = steps

    def __call__(self, operands: Sequence[Array], pointers: list[int]) -> list[Array | None]:
        """Allocate the outputs and launch: the value, if asked for, then the gradients."""
        library = self._library
        outputs = [allocate(operands) for allocate in self._outputs]
        if self._steps:
            stream = library.stream(self.device)
            slots = [0, *pointers, *library.pointers(outputs)]
            if self._scratch:
                _keep, base = library.scratch(operands, self._scratch[-1], stream)
                if self._counters:
                    driver.zero(base, self._counters, stream)
                slots += [base + start for start in self._scratch]
            for launch, choose in self._steps:
                launch(stream, *choose(slots))
        return outputs if self._left_out is None else self._with_gaps(outputs)

    def _with_gaps(self, outputs: list[Array]) -> list[Array | None]:
        made = iter(outputs)
        return [next(made) if computed else None for computed in self._left_out or ()]


def value_output(problem: Problem, axes: Sequence[int]) -> Output:
    """The value of a problem whose memory is to run along `axes` of its shape."""
    shape = problem.call.loss.value_shape(problem.call, problem.shape)
    axes = [axis for axis in axes if axis < len(shape)]
    return Output(problem.result, shape, dense_strides(axes, shape))


def empty_plan(library: Library, problem: Problem) -> Plan:
    """No elements, no launch: a mean is NaN, a sum and all gradients are 0."""
    divisor = problem.divisor
    value = 0.0 if divisor and problem.call.reduction != "mean" else math.nan
    outputs: list[Allocator | None] = []
    if problem.todo.values:
        outputs.append(library.filled(value_output(problem, range(len(problem.shape))), value))
    todo = problem.todo
    for k, computed in zip(todo.wanted, problem.computed_now, strict=True):
        operand = problem.operands[todo.extra + k]
        if not computed:
            outputs.append(None)
            continue
        own = Output(operand.dtype, operand.shape, dense_strides((), operand.shape))
        outputs.append(library.filled(own, 0.0))
    return Plan(library, problem, outputs, [], [], 0)


@dataclass(frozen=True)
class Scratch:
    """A slot of scratch memory, numbered when all slots are known."""

    index: int


@dataclass(frozen=True)
class Counter:
    """The slot of a counter that starts at 0."""

    index: int


Slot = int | Scratch | Counter


class Builder:
    """Collects the launches of one problem.

    Slots of operands and outputs are numbered at once, those of scratch memory when all are known.
    """

    def __init__(self, library: Library, problem: Problem) -> None:
        self._library = library
        self._problem = problem
        self._operand_slots = tuple(range(1, 1 + len(problem.operands)))
        self._outputs: list[Allocator | None] = []
        self._scratch_sizes: list[int] = []
        self._counters = 0
        self._steps: list[tuple[Launch, tuple[Slot, ...]]] = []

    def _add_output(self, output: Output) -> int:
        self._outputs.append(self._library.allocator(output))
        return len(self._operand_slots) + self._made()

    def _made(self) -> int:
        return sum(output is not None for output in self._outputs)

    def _add_gradient(self, k: int, axes: Sequence[int]) -> int:
        index = self._problem.todo.extra + k
        operand = self._problem.operands[index]
        skipped = len(self._problem.shape) - len(operand.shape)
        own = [axis - skipped for axis in axes if axis >= skipped]
        own = [axis for axis in own if operand.shape[axis] > 1]
        strides = dense_strides(own, operand.shape)
        like = index if strides == operand.strides else -1
        return self._add_output(Output(operand.dtype, operand.shape, strides, like))

    def _add_counter(self, numbers: int = 1) -> Counter:
        """Room for so many neighbouring counters."""
        first = self._counters
        self._counters += -(-numbers // 4)
        return Counter(first)

    def _add_scratch(self, size: int) -> Scratch:
        self._scratch_sizes.append(-(-size // 16) * 16)
        return Scratch(len(self._scratch_sizes) - 1)

    def _finish(self) -> Plan:
        first = 1 + len(self._operand_slots) + self._made()
        starts = [16 * self._counters]
        for size in self._scratch_sizes:
            starts.append(starts[-1] + size)
        counters = [16 * k for k in range(self._counters)]

        def number(name: Slot) -> int:
            if isinstance(name, Scratch):
                return first + self._counters + name.index
            return first + name.index if isinstance(name, Counter) else name

        steps: list[tuple[Launch, Callable[[list[int]], Sequence[int]]]] = [
            (launch, itemgetter(*map(number, chosen))) for launch, chosen in self._steps
        ]
        scratch = counters + starts if starts[-1] else []
        return Plan(
            self._library, self._problem, self._outputs, scratch, steps, 16 * self._counters
        )


def bits(indices: Sequence[int]) -> str:
    """A set of numbers, as a mask of the C++ type unsigned."""
    return f"{sum(1 << index for index in indices)}u"

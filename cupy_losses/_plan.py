"""What to launch for one pass over operands of given dtypes, shapes and strides: decided once.

A plan holds everything but the addresses: the specialised kernels with their grids and arguments,
how to allocate the outputs, how much scratch memory. cuda/pointwise.cu says what the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from . import _cupy
from . import _kernels as kernels
from ._layout import (
    FLOATING,
    Operand,
    Shape,
    Walk,
    broadcast_axes,
    broadcast_shape,
    broadcast_strides,
    collapse,
    dense_strides,
    memory_order,
)
from ._losses import (
    Call,
    Pass,
    broadcasts_unasked,
    computed_now,
    divides_by_shares,
    divides_by_weights,
    value_shape,
    warn_of_broadcasting,
)

Array = Any

# A tile is THREADS threads with PACKS packs each; a reduced loss is the sum of at most MAX_SEGMENTS
# partial sums. With the width of a pack, these fix the order of summation.
THREADS = 512
PACKS = 4
MAX_SEGMENTS = 4096
PACK_BYTES = 16
BATCH_ELEMENTS = 32  # of all operands, in the arithmetic type

# A block of gradient_sum, and how many blocks keep a device busy (again part of the order).
SUM_THREADS = 256
SUM_BLOCKS = 1024


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
    def divisor(self) -> float:
        """What the sum is divided by, where that follows from the shapes."""
        return self.call.divisor(self.shape, self.operands[self.todo.extra :])

    @property
    def expression(self) -> str:
        """The C++ type of the function that the kernels evaluate."""
        call, todo = self.call, self.todo
        expression = template(call.loss.struct, kernels.c_type(self.real), *call.loss.options)
        if call.weighted:
            expression = template("Weighted", expression, call.loss.weighted_mean)
        if todo.directions:
            # Below the mask, the operands of the call begin with the next one.
            directions = tuple(k - call.masked for k in todo.directions)
            expression = template("Directional", expression, _bits(directions))
        if todo.chained:
            expression = template("Chained", expression)
        if call.masked:
            expression = template("Masked", expression, str(todo.extra))
        return expression


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
        steps: list[tuple[kernels.Launch, Callable[[list[int]], Sequence[int]]]],
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
                    _cupy.zero(base, self._counters, stream)
                slots += [base + start for start in self._scratch]
            for launch, choose in self._steps:
                launch(stream, *choose(slots))
        return outputs if self._left_out is None else self._with_gaps(outputs)

    def _with_gaps(self, outputs: list[Array]) -> list[Array | None]:
        made = iter(outputs)
        return [next(made) if computed else None for computed in self._left_out or ()]


def make_plan(library: Library, problem: Problem) -> Plan:
    """Decide how to compute `problem`."""
    return _empty(library, problem) if problem.size == 0 else _Planner(library, problem).plan()


def _value_output(problem: Problem, axes: Sequence[int]) -> Output:
    shape = value_shape(problem.call, problem.shape)
    axes = [axis for axis in axes if axis < len(shape)]
    return Output(problem.result, shape, dense_strides(axes, shape))


def _empty(library: Library, problem: Problem) -> Plan:
    """No elements, no launch: a mean is NaN, a sum and all gradients are 0."""
    divisor = problem.divisor
    value = 0.0 if divisor and problem.call.reduction != "mean" else math.nan
    outputs: list[Allocator | None] = []
    if problem.todo.values:
        outputs.append(library.filled(_value_output(problem, range(len(problem.shape))), value))
    todo = problem.todo
    now = computed_now(problem.call, todo, problem.operands[todo.extra :], problem.shape)
    for k, computed in zip(todo.wanted, now, strict=True):
        operand = problem.operands[todo.extra + k]
        if not computed:
            outputs.append(None)
            continue
        own = Output(operand.dtype, operand.shape, dense_strides((), operand.shape))
        outputs.append(library.filled(own, 0.0))
    return Plan(library, problem, outputs, [], [], 0)


class _Planner:
    """Collects the launches of one problem."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self._library = library
        self._problem = problem
        self._strides = [broadcast_strides(o, problem.shape) for o in problem.operands]
        self._axes = memory_order(problem.shape, self._strides)
        self._operand_slots = tuple(range(1, 1 + len(problem.operands)))
        self._outputs: list[Allocator | None] = []
        self._scratch_sizes: list[int] = []
        self._counters = 0
        self._steps: list[tuple[kernels.Launch, tuple[_Slot, ...]]] = []

    def plan(self) -> Plan:
        problem, todo = self._problem, self._problem.todo
        value = 0
        if todo.values:
            value = self._add_output(_value_output(problem, self._axes))
        now = computed_now(problem.call, todo, problem.operands[todo.extra :], problem.shape)
        repeated: dict[int, tuple[int, tuple[int, ...]]] = {}
        direct: dict[int, tuple[int, tuple[int, ...]]] = {}
        for k, computed in zip(todo.wanted, now, strict=True):
            if not computed:
                self._outputs.append(None)
                continue
            axes = broadcast_axes(problem.operands[todo.extra + k], problem.shape)
            (repeated if axes else direct)[k] = (self._add_gradient(k), axes)

        total: _Slot = 0
        if divides_by_shares(problem.call) and (direct or repeated or todo.directions):
            total = self._sum_shares()
        pointwise = todo.values and not problem.call.sums_rows
        if pointwise or direct:
            gradients = {todo.extra + k: slot for k, (slot, _) in direct.items()}
            self._pointwise(pointwise, value, total, gradients)
        if todo.values and not pointwise:
            last = [axis for axis in self._axes if axis == len(problem.shape) - 1]
            self._sum(-1, problem.result, value, last, total)
        for k, (slot, axes) in repeated.items():
            index = todo.extra + k
            self._sum(index, problem.operands[index].dtype, slot, axes, total)
        return self._finish()

    # ---- slots: operands and outputs are numbered at once, scratch parts when all are known ------

    def _add_output(self, output: Output) -> int:
        self._outputs.append(self._library.allocator(output))
        return len(self._operand_slots) + self._made()

    def _made(self) -> int:
        return sum(output is not None for output in self._outputs)

    def _add_gradient(self, k: int) -> int:
        index = self._problem.todo.extra + k
        operand = self._problem.operands[index]
        skipped = len(self._problem.shape) - len(operand.shape)
        axes = [axis - skipped for axis in self._axes if axis >= skipped]
        axes = [axis for axis in axes if operand.shape[axis] > 1]
        strides = dense_strides(axes, operand.shape)
        like = index if strides == operand.strides else -1
        return self._add_output(Output(operand.dtype, operand.shape, strides, like))

    def _add_counter(self) -> _Counter:
        self._counters += 1
        return _Counter(self._counters - 1)

    def _add_scratch(self, size: int) -> _Scratch:
        self._scratch_sizes.append(-(-size // 16) * 16)
        return _Scratch(len(self._scratch_sizes) - 1)

    def _finish(self) -> Plan:
        first = 1 + len(self._operand_slots) + self._made()
        starts = [16 * self._counters]
        for size in self._scratch_sizes:
            starts.append(starts[-1] + size)
        counters = [16 * k for k in range(self._counters)]

        def number(name: _Slot) -> int:
            if isinstance(name, _Scratch):
                return first + self._counters + name.index
            return first + name.index if isinstance(name, _Counter) else name

        steps: list[tuple[kernels.Launch, Callable[[list[int]], Sequence[int]]]] = [
            (launch, itemgetter(*map(number, chosen))) for launch, chosen in self._steps
        ]
        scratch = counters + starts if starts[-1] else []
        return Plan(
            self._library, self._problem, self._outputs, scratch, steps, 16 * self._counters
        )

    # ---- launches --------------------------------------------------------------------------------

    def _pointwise(self, valued: bool, value: int, total: _Slot, gradients: dict[int, int]) -> None:
        problem = self._problem
        if not valued:
            values = "NO_VALUES"
        elif problem.call.reduction == "none":
            values = "EACH_VALUE"
        elif divides_by_shares(problem.call) and not problem.todo.directions:
            values = "WEIGHTED_MEAN_OF_VALUES"
        else:
            values = "SUM_OF_VALUES"
        result = Operand(problem.result, (), ())
        self._add_pointwise(
            self._function(), problem.shape, values, result, value, total, gradients
        )

    def _sum_shares(self) -> _Slot:
        """What a mean divides its gradients by: the sum of the weights that the mask leaves."""
        problem, call = self._problem, self._problem.call
        expression = template(
            "Identity" if divides_by_weights(call) else "One", kernels.c_type(problem.real)
        )
        if call.masked:
            expression = template("Masked", expression, "0")
        first = problem.todo.extra
        indices = range(first, first + call.masked + divides_by_weights(call))
        operands = tuple(problem.operands[k] for k in indices)
        shape = broadcast_shape(operands, [""] * len(operands))
        function = _Function(
            expression,
            problem.real,
            (),
            "",
            operands,
            tuple(1 + k for k in indices),
            [broadcast_strides(operand, shape) for operand in operands],
            tuple(problem.misaligned[k] for k in indices),
        )
        total = self._add_scratch(8)
        divisor = math.prod(shape) / problem.size
        result = Operand("float64", (), ())
        self._add_pointwise(
            function, shape, "GRADIENT_DIVISOR", result, total, 0, {}, divisor=divisor
        )
        return total

    def _function(self) -> _Function:
        problem = self._problem
        return _Function(
            problem.expression,
            problem.real,
            problem.call.parameters,
            problem.call.loss.source,
            problem.operands,
            self._operand_slots,
            self._strides,
            problem.misaligned,
        )

    def _add_pointwise(
        self,
        function: _Function,
        shape: Shape,
        values: str,
        result: Operand,
        value: _Slot,
        total: _Slot,
        gradients: dict[int, int],
        divisor: float | None = None,
    ) -> None:
        size = math.prod(shape)
        walk = collapse(memory_order(shape, function.strides), shape, function.strides)
        width = _width(function.operands, walk)
        # Enough loads in flight, in few enough registers; as measured on an H200.
        batch = 1
        if len(function.operands) <= 3 and not gradients:
            batch = min(PACKS, BATCH_ELEMENTS // (width * len(function.operands)))
        elif len(function.operands) + len(gradients) <= 3 and len(walk.shape) == 2:
            batch = 2  # rows or columns: the short operand is in the cache
        segments = min(-(-size // (THREADS * PACKS * width)), MAX_SEGMENTS)
        layout, layout_bytes = _layout(
            walk,
            [kernels.item_size(o.dtype) for o in function.operands],
            function.misaligned,
            width,
        )
        c_types = [kernels.c_type(o.dtype) for o in function.operands]
        pointers = [f"const {c}*" for c in c_types] + [f"{c_types[k]}*" for k in gradients]
        kernel = kernels.function(
            "pointwise.cu",
            f"pointwise<{kernels.c_type(function.real)}, {function.expression}, {layout}, "
            f"Tile<{THREADS}, {PACKS}, {width}, {batch}>, {values}, {_bits(tuple(gradients))}, "
            f"{kernels.c_type(result.dtype)}, {', '.join(pointers)}>",
            THREADS,
            self._problem.device,
            function.source,
        )
        counter: _Slot = 0
        partials: _Slot = 0
        if segments > 1 and values not in ("NO_VALUES", "EACH_VALUE"):
            counter = self._add_counter()
            sums = 2 if values == "WEIGHTED_MEAN_OF_VALUES" else 1
            partials = self._add_scratch(16 * sums * segments)
        launch = kernels.Launch(
            kernel,
            (min(segments, kernel.resident_blocks), 1),
            THREADS,
            [
                function.arguments,
                layout_bytes,
                kernels.int64(size),
                kernels.int64(segments),
                kernels.float64(self._problem.divisor if divisor is None else divisor),
            ],
            pointers=4 + len(pointers),
        )
        chosen = (total, value, counter, partials, *function.slots, *gradients.values())
        self._steps.append((launch, chosen))

    def _sum(
        self, which: int, dtype: str, slot: int, repeated: Sequence[int], total: _Slot
    ) -> None:
        """Sum over the axes `repeated`: the gradient of an operand that is broadcast along them.

        Or of the values, for -1.
        """
        problem = self._problem
        function = self._function()
        kept = [axis for axis in self._axes if axis not in repeated]
        outputs = math.prod(problem.shape[axis] for axis in kept)
        repeats = math.prod(problem.shape[axis] for axis in repeated)
        # Neighbouring threads on neighbouring outputs where those are neighbours in memory.
        lanes = 32 if repeats <= SUM_THREADS or self._axes[-1] in kept else 1
        blocks = -(-outputs // lanes)
        chunks = min(-(-SUM_BLOCKS // blocks), -(-repeats // (8 * SUM_THREADS)))
        walks = [
            collapse(axes, problem.shape, self._strides)
            for axes in (kept, [axis for axis in self._axes if axis in repeated])
        ]
        walk = Walk(
            walks[0].shape + walks[1].shape,
            tuple(a + b for a, b in zip(walks[0].strides, walks[1].strides, strict=True)),
        )
        divisor = problem.divisor
        if chunks == 1:
            grid = (outputs, repeats, repeats, blocks, 1)
            self._add_sum(function, walk, grid, lanes, which, dtype, divisor, (total, slot))
            return
        partials = self._add_scratch(8 * outputs * chunks)
        grid = (outputs, repeats, -(-repeats // chunks), blocks, chunks)
        self._add_sum(function, walk, grid, lanes, which, "float64", 1.0, (0, partials))
        partial = Operand("float64", (outputs, chunks), (chunks, 1))
        function = _Function(
            "Identity<double>", "float64", (), "", (partial,), (partials,), (), (0,)
        )
        walk = Walk(partial.shape, (partial.strides,))
        grid = (outputs, chunks, chunks, -(-outputs // 32), 1)
        self._add_sum(function, walk, grid, 32, -1, dtype, divisor, (total, slot))

    def _add_sum(
        self,
        function: _Function,
        walk: Walk,
        grid: tuple[int, int, int, int, int],  # outputs, repeats, chunk, blocks, chunks
        lanes: int,
        which: int,  # the operand, or -1 for the values
        result: str,
        divisor: float,
        slots: tuple[_Slot, _Slot],
    ) -> None:
        outputs, repeats, chunk, blocks, chunks = grid
        sizes = [kernels.item_size(o.dtype) for o in function.operands]
        layout, layout_bytes = _layout(walk, sizes, [1] * len(sizes), 1)
        pointers = [f"const {kernels.c_type(o.dtype)}*" for o in function.operands]
        kernel = kernels.function(
            "pointwise.cu",
            f"gradient_sum<{kernels.c_type(function.real)}, {function.expression}, {layout}, "
            f"{SUM_THREADS}, {lanes}, {which}, {kernels.c_type(result)}, {', '.join(pointers)}>",
            SUM_THREADS,
            self._problem.device,
            function.source,
        )
        launch = kernels.Launch(
            kernel,
            (blocks, chunks),
            SUM_THREADS,
            [
                function.arguments,
                layout_bytes,
                kernels.int64(outputs),
                kernels.int64(repeats),
                kernels.int64(chunk),
                kernels.float64(divisor),
            ],
            pointers=2 + len(pointers),
        )
        self._steps.append((launch, (*slots, *function.slots)))


@dataclass(frozen=True)
class _Scratch:
    """A slot of scratch memory, numbered when all slots are known."""

    index: int


@dataclass(frozen=True)
class _Counter:
    """The slot of a counter that starts at 0."""

    index: int


_Slot = int | _Scratch | _Counter


@dataclass(frozen=True)
class _Function:
    """What a kernel evaluates, and on which slots."""

    expression: str  # the C++ type
    real: str
    parameters: tuple[float, ...]
    source: str  # that defines the type, where cuda/ does not
    operands: tuple[Operand, ...]
    slots: tuple[_Slot, ...]
    strides: Sequence[Shape]
    misaligned: Sequence[int]

    @property
    def arguments(self) -> bytes:
        """The fields of the C++ object."""
        return kernels.parameters(self.parameters, self.real)


def _bits(indices: Sequence[int]) -> str:
    return f"{sum(1 << index for index in indices)}u"


def _width(operands: Sequence[Operand], walk: Walk) -> int:
    """The elements of a pack: 16 bytes of the narrowest floating operand.

    One element where a row would end inside a pack, and for the second derivatives of strided
    operands, five and more, which would not fit in registers.
    """
    sizes = [kernels.item_size(o.dtype) for o in operands if o.dtype in FLOATING]
    width = PACK_BYTES // min(sizes, default=4)
    if len(walk.shape) <= 1:
        return width
    return 1 if walk.shape[-1] % width or len(operands) > 4 else width


def _layout(
    walk: Walk, sizes: Sequence[int], misaligned: Sequence[int], width: int
) -> tuple[str, bytes]:
    """The C++ type of a layout, and its fields."""
    shape = walk.shape or (1,)
    strides = walk.strides if walk.shape else ((1,),) * len(sizes)
    vectors = []
    for k, (step, size) in enumerate(zip(strides, sizes, strict=True)):
        access = min(PACK_BYTES, width * size)
        starts = [misaligned[k], *(size * outer for outer in step[:-1])]
        if step[-1] == 1 and not any(start % access for start in starts):
            vectors.append(k)
    index = "unsigned" if math.prod(shape) < 2**31 else "unsigned long long"
    name = f"Layout<{len(shape)}, {len(sizes)}, {_bits(vectors)}, {index}>"
    return name, kernels.int64(*shape, *(length for step in strides for length in step))


def scale_launch(gradient: str, grad_output: str, size: int, device: int) -> kernels.Launch:
    """The launch that multiplies a dense gradient by a 0-d grad_output, in place."""
    real = "double" if "float64" in (gradient, grad_output) else "float"
    width = PACK_BYTES // kernels.item_size(gradient)
    name = (
        f"scale<{real}, {kernels.c_type(gradient)}, {kernels.c_type(grad_output)}, "
        f"{THREADS}, {width}>"
    )
    kernel = kernels.function("pointwise.cu", name, THREADS, device)
    blocks = min(-(-size // (THREADS * width)), kernel.resident_blocks)
    return kernels.Launch(kernel, (blocks, 1), THREADS, [kernels.int64(size)], pointers=2)

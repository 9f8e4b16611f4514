"""Plans of pointwise losses; cuda/kernels/pointwise.cu says what the kernels do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import FLOATING, c_type, item_size
from .._core.losses import Loss, divides_by_weights
from .._core.shapes import (
    Operand,
    Shape,
    Walk,
    broadcast_axes,
    broadcast_shape,
    broadcast_strides,
    collapse,
    memory_order,
)
from . import compiler
from . import launch as arguments
from .launch import Launch
from .plan import Builder, Library, Plan, Problem, Slot, bits, empty_plan, template, value_output

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


def make_plan(library: Library, problem: Problem, loss: Loss) -> Plan:
    """Decide how to compute a pass of a pointwise loss."""
    if problem.size == 0:
        return empty_plan(library, problem)
    return _Planner(library, problem, loss).plan()


@dataclass(frozen=True)
class Function:
    """What a kernel evaluates, and on which slots."""

    expression: str  # the C++ type
    real: str
    parameters: tuple[float, ...]
    source: str  # that defines the type, where cuda/ does not
    operands: tuple[Operand, ...]
    slots: tuple[Slot, ...]
    strides: Sequence[Shape]
    misaligned: Sequence[int]

    @property
    def arguments(self) -> bytes:
        """The fields of the C++ object."""
        return arguments.parameters(self.parameters, self.real)


def identity(operand: Operand, slot: Slot) -> Function:
    """The function that is its operand, of float32 or float64."""
    expression = template("Identity", c_type(operand.dtype))
    strides = [operand.strides]
    return Function(expression, operand.dtype, (), "", (operand,), (slot,), strides, (0,))


class Launches(Builder):
    """The kernels of cuda/kernels/pointwise.cu, as steps of a plan."""

    def _add_pointwise(
        self,
        function: Function,
        shape: Shape,
        values: str,
        result: Operand,
        value: Slot,
        total: Slot,
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
            [item_size(o.dtype) for o in function.operands],
            function.misaligned,
            width,
        )
        c_types = [c_type(o.dtype) for o in function.operands]
        pointers = [f"const {c}*" for c in c_types] + [f"{c_types[k]}*" for k in gradients]
        kernel = compiler.kernel(
            "kernels/pointwise.cu",
            f"pointwise<{c_type(function.real)}, {function.expression}, {layout}, "
            f"Tile<{THREADS}, {PACKS}, {width}, {batch}>, {values}, {bits(tuple(gradients))}, "
            f"{c_type(result.dtype)}, {', '.join(pointers)}>",
            THREADS,
            self._problem.device,
            function.source,
        )
        counter: Slot = 0
        partials: Slot = 0
        if segments > 1 and values not in ("NO_VALUES", "EACH_VALUE"):
            counter = self._add_counter()
            sums = 2 if values == "WEIGHTED_MEAN_OF_VALUES" else 1
            partials = self._add_scratch(16 * sums * segments)
        launch = Launch(
            kernel,
            (min(segments, kernel.resident_blocks), 1),
            THREADS,
            [
                function.arguments,
                layout_bytes,
                arguments.int64(size),
                arguments.int64(segments),
                arguments.float64(self._problem.divisor if divisor is None else divisor),
            ],
            pointers=4 + len(pointers),
        )
        chosen = (total, value, counter, partials, *function.slots, *gradients.values())
        self._steps.append((launch, chosen))

    def _add_sums(
        self,
        function: Function,
        shape: Shape,
        axes: Sequence[int],  # slowest first
        repeated: Sequence[int],
        which: int,  # the operand whose gradient it is, or -1 for the values
        dtype: str,
        divisor: float,
        slots: tuple[Slot, Slot],  # what divides, where not `divisor`, and the result
    ) -> None:
        """Sum a function over the axes `repeated` of `shape`."""
        kept = [axis for axis in axes if axis not in repeated]
        outputs = math.prod(shape[axis] for axis in kept)
        repeats = math.prod(shape[axis] for axis in repeated)
        # Neighbouring threads on neighbouring outputs where those are neighbours in memory.
        lanes = 32 if repeats <= SUM_THREADS or axes[-1] in kept else 1
        blocks = -(-outputs // lanes)
        chunks = min(-(-SUM_BLOCKS // blocks), -(-repeats // (8 * SUM_THREADS)))
        walks = [
            collapse(part, shape, function.strides)
            for part in (kept, [axis for axis in axes if axis in repeated])
        ]
        walk = Walk(
            walks[0].shape + walks[1].shape,
            tuple(a + b for a, b in zip(walks[0].strides, walks[1].strides, strict=True)),
        )
        if chunks == 1:
            grid = (outputs, repeats, repeats, blocks, 1)
            self._add_sum(function, walk, grid, lanes, which, dtype, divisor, slots)
            return
        partials = self._add_scratch(8 * outputs * chunks)
        grid = (outputs, repeats, -(-repeats // chunks), blocks, chunks)
        self._add_sum(function, walk, grid, lanes, which, "float64", 1.0, (0, partials))
        partial = Operand("float64", (outputs, chunks), (chunks, 1))
        walk = Walk(partial.shape, (partial.strides,))
        grid = (outputs, chunks, chunks, -(-outputs // 32), 1)
        function = identity(partial, partials)
        self._add_sum(function, walk, grid, 32, -1, dtype, divisor, slots)

    def _add_sum(
        self,
        function: Function,
        walk: Walk,
        grid: tuple[int, int, int, int, int],  # outputs, repeats, chunk, blocks, chunks
        lanes: int,
        which: int,  # the operand, or -1 for the values
        result: str,
        divisor: float,
        slots: tuple[Slot, Slot],
    ) -> None:
        outputs, repeats, chunk, blocks, chunks = grid
        sizes = [item_size(o.dtype) for o in function.operands]
        layout, layout_bytes = _layout(walk, sizes, [1] * len(sizes), 1)
        pointers = [f"const {c_type(o.dtype)}*" for o in function.operands]
        kernel = compiler.kernel(
            "kernels/pointwise.cu",
            f"gradient_sum<{c_type(function.real)}, {function.expression}, {layout}, "
            f"{SUM_THREADS}, {lanes}, {which}, {c_type(result)}, {', '.join(pointers)}>",
            SUM_THREADS,
            self._problem.device,
            function.source,
        )
        launch = Launch(
            kernel,
            (blocks, chunks),
            SUM_THREADS,
            [
                function.arguments,
                layout_bytes,
                arguments.int64(outputs),
                arguments.int64(repeats),
                arguments.int64(chunk),
                arguments.float64(divisor),
            ],
            pointers=2 + len(pointers),
        )
        self._steps.append((launch, (*slots, *function.slots)))


class _Planner(Launches):
    """The launches of one problem."""

    def __init__(self, library: Library, problem: Problem, loss: Loss) -> None:
        super().__init__(library, problem)
        self._loss = loss
        self._strides = [broadcast_strides(o, problem.shape) for o in problem.operands]
        self._axes = memory_order(problem.shape, self._strides)

    def plan(self) -> Plan:
        problem, todo = self._problem, self._problem.todo
        value = 0
        if todo.values:
            value = self._add_output(value_output(problem, self._axes))
        repeated: dict[int, tuple[int, tuple[int, ...]]] = {}
        direct: dict[int, tuple[int, tuple[int, ...]]] = {}
        for k, computed in zip(todo.wanted, problem.computed_now, strict=True):
            if not computed:
                self._outputs.append(None)
                continue
            axes = broadcast_axes(problem.operands[todo.extra + k], problem.shape)
            (repeated if axes else direct)[k] = (self._add_gradient(k, self._axes), axes)

        total: Slot = 0
        if self._loss.divides_by_shares(problem.call) and (direct or repeated or todo.directions):
            total = self._sum_shares()
        pointwise = todo.values and not self._loss.sums_last_axis(problem.call)
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

    def _pointwise(self, valued: bool, value: int, total: Slot, gradients: dict[int, int]) -> None:
        problem = self._problem
        if not valued:
            values = "NO_VALUES"
        elif problem.call.reduction == "none":
            values = "EACH_VALUE"
        elif self._loss.divides_by_shares(problem.call) and not problem.todo.directions:
            values = "WEIGHTED_MEAN_OF_VALUES"
        else:
            values = "SUM_OF_VALUES"
        result = Operand(problem.result, (), ())
        self._add_pointwise(
            self._function(), problem.shape, values, result, value, total, gradients
        )

    def _sum_shares(self) -> Slot:
        """What a mean divides its gradients by: the sum of the weights that the mask leaves."""
        problem, call = self._problem, self._problem.call
        weighs = divides_by_weights(call, self._loss)
        expression = template("Identity" if weighs else "One", c_type(problem.real))
        if call.masked:
            expression = template("Masked", expression, "0")
        first = problem.todo.extra
        indices = range(first, first + call.masked + weighs)
        operands = tuple(problem.operands[k] for k in indices)
        shape = broadcast_shape(operands, [""] * len(operands))
        function = Function(
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

    def _function(self) -> Function:
        problem = self._problem
        return Function(
            self._expression(),
            problem.real,
            problem.call.parameters,
            self._loss.source,
            problem.operands,
            self._operand_slots,
            self._strides,
            problem.misaligned,
        )

    def _sum(self, which: int, dtype: str, slot: int, repeated: Sequence[int], total: Slot) -> None:
        """Sum over the axes `repeated`: the gradient of an operand that is broadcast along them.

        Or of the values, for -1.
        """
        problem = self._problem
        self._add_sums(
            self._function(),
            problem.shape,
            self._axes,
            repeated,
            which,
            dtype,
            problem.divisor,
            (total, slot),
        )

    def _expression(self) -> str:
        """The C++ type of the function that the kernels evaluate."""
        problem, loss = self._problem, self._loss
        call, todo = problem.call, problem.todo
        expression = template(loss.struct, c_type(problem.real), *loss.options)
        if call.weighted:
            expression = template("Weighted", expression, loss.weighted_mean)
        if todo.directions:
            # Below the mask, the operands of the call begin with the next one.
            directions = tuple(k - call.masked for k in todo.directions)
            expression = template("Directional", expression, bits(directions))
        if todo.chained:
            expression = template("Chained", expression)
        if call.masked:
            expression = template("Masked", expression, str(todo.extra))
        return expression


def _width(operands: Sequence[Operand], walk: Walk) -> int:
    """The elements of a pack: 16 bytes of the narrowest floating operand.

    One element where a row would end inside a pack, and for the second derivatives of strided
    operands, five and more, which would not fit in registers.
    """
    sizes = [item_size(o.dtype) for o in operands if o.dtype in FLOATING]
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
    name = f"Layout<{len(shape)}, {len(sizes)}, {bits(vectors)}, {index}>"
    return name, arguments.int64(*shape, *(length for step in strides for length in step))


def scale_launch(gradient: str, grad_output: str, size: int, device: int) -> Launch:
    """The launch that multiplies a dense gradient by a 0-d grad_output, in place."""
    real = "double" if "float64" in (gradient, grad_output) else "float"
    width = PACK_BYTES // item_size(gradient)
    name = f"scale<{real}, {c_type(gradient)}, {c_type(grad_output)}, {THREADS}, {width}>"
    kernel = compiler.kernel("kernels/pointwise.cu", name, THREADS, device)
    blocks = min(-(-size // (THREADS * width)), kernel.resident_blocks)
    return Launch(kernel, (blocks, 1), THREADS, [arguments.int64(size)], pointers=2)

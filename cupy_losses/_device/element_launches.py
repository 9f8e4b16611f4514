"""Launches over elements and sums of them; the files of cuda/kernels/ say what the kernels do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._core.dtypes import c_type, item_size
from .._core.shapes import (
    ArraySpec,
    IterationSpace,
    Shape,
    broadcast_shape,
    broadcast_strides,
    coalesce,
    memory_order,
)
from .addresses import NO_ADDRESS, NO_FACTOR, SLOT, Address
from .builder import UNSUMMED, Builder, Step
from .compiler import Kernel, Specialisation
from .cpp import bits, template, tuned
from .element_schedule import (
    BATCH_ELEMENTS,
    BATCH_TERMS,
    MAX_SEGMENTS,
    PLAIN_TERMS,
    STREAMED_BYTES,
    SUM_THREADS,
    SumGrid,
    are_halves,
    element_schedule,
    joined,
    layout_of,
    sum_grid,
)
from .launch import (
    EMPTY_STRUCT,
    POINTERS_OF_RESULTS,
    Launch,
    Parameters,
    float64,
    head_of_results,
    int32,
    int64,
)


@dataclass(frozen=True)
class ElementFunction:
    """What a kernel evaluates at each element, and the addresses of its operands."""

    expression: str  # the C++ type
    real: str
    source: str  # that defines the type, where cuda/ does not
    operands: tuple[ArraySpec, ...]
    addresses: tuple[Address, ...]
    strides: Sequence[Shape]
    axes: Sequence[int]  # along which it is evaluated, slowest first
    misaligned: Sequence[int]
    fields: Callable[[Parameters], bytes] = lambda _: EMPTY_STRUCT  # of the C++ object
    parameters: Parameters = ()


@dataclass(frozen=True)
class Quotient:
    """What becomes of sums: each is divided by what is at an address, or by `divisor`."""

    dtype: str
    divisor: float
    denominator: Address
    result: Address
    empty_is_zero: bool = False  # see cuda/reduction/reduction.cuh
    scaled: bool = False  # as the call is


def identity(operand: ArraySpec, address: Address) -> ElementFunction:
    """The function that is its operand, of float32 or float64."""
    return ElementFunction(
        template("Identity", c_type(operand.dtype)),
        operand.dtype,
        "",
        (operand,),
        (address,),
        [operand.strides],
        memory_order(operand.shape, [operand.strides]),
        (0,),
    )


class Launches(Builder):
    """The kernels `pointwise`, `tiled` and `broadcast_sum`, as steps of a plan."""

    def _add_pointwise(
        self,
        function: ElementFunction,
        shape: Shape,
        *,
        values: str,
        result: str,  # the C++ type
        value: Address,
        denominator: Address,
        factor: tuple[Address, Address],
        gradients: dict[int, Address],
        divisor: float,
        scaled: bool = True,
    ) -> None:
        space = coalesce(function.axes, shape, function.strides)
        # A launch that may return at once, as its gradients were anticipated, has few blocks too.
        summed = values not in UNSUMMED or SLOT in factor
        schedule = element_schedule(
            function.operands, function.misaligned, space, len(gradients), summed
        )
        size = sum(o.size * item_size(o.dtype) for o in function.operands)
        streams = not summed and size >= STREAMED_BYTES
        segments = schedule.tiles if streams else min(schedule.tiles, MAX_SEGMENTS)
        c_types = [c_type(o.dtype) for o in function.operands]
        scale_type, scale = self._scale(scaled)
        pointers = [f"const {c}*" for c in c_types] + [f"{c_types[k]}*" for k in gradients]
        pointers += scale_type
        kernel = Specialisation(
            f"kernels/{schedule.kernel}.cu",
            template(
                schedule.kernel,
                c_type(function.real),
                function.expression,
                schedule.layout,
                schedule.tile,
                values,
                bits(tuple(gradients)),
                result,
                *pointers,
            ),
            schedule.threads,
            self._problem.device,
            function.source,
        )
        workspace = self._workspace(function.real, segments, values)
        arguments = [schedule.fields, int64(schedule.items), head_of_results(segments, divisor)]

        def launch(kernel: Kernel) -> Launch:
            return Launch(
                kernel,
                (segments if streams else min(segments, kernel.resident_blocks), 1),
                schedule.threads,
                arguments,
                pointers=POINTERS_OF_RESULTS + len(pointers),
                fields_of_last=POINTERS_OF_RESULTS,
                fields=function.fields,
                parameters=function.parameters,
                scaled=scaled,
            )

        arrays = *function.addresses, *gradients.values(), *scale
        step = Step(kernel, launch, (denominator, *factor, value, *workspace, *arrays))
        self._steps.append(step)
        if SLOT in factor:
            self._again = step

    def _workspace(
        self, real: str, segments: int, values: str, groups: int = 0
    ) -> tuple[Address, Address]:
        """The counters and the partial sums of segments, and of groups of these."""
        if segments == 1 or values in UNSUMMED:
            return NO_ADDRESS, NO_ADDRESS
        if values == "COUNT_OF_VALUES":
            return self._use_workspace(8, 0)
        sums = 2 if values == "MEAN_OF_VALUES" else 1
        bytes_of_part = 2 * item_size(real)  # a PartOf of cuda/reduction/sum.cuh
        return self._use_workspace(4 * (1 + groups), bytes_of_part * sums * (segments + groups))

    def _add_sums(
        self,
        function: ElementFunction,
        shape: Shape,
        repeated: Sequence[int],
        operand: int,  # the one whose gradient it is, or -1 for the values
        quotient: Quotient,
    ) -> None:
        """Sum a function over the axes `repeated` of `shape`."""
        kept, terms = (
            coalesce(part, shape, function.strides)
            for part in (
                [axis for axis in function.axes if axis not in repeated],
                [axis for axis in function.axes if axis in repeated],
            )
        )
        # Neighbouring threads on neighbouring sums where those are neighbours in memory.
        beside = bool(kept.shape) and function.axes[-1] not in repeated
        grid = sum_grid(function.operands, kept, terms, beside)
        if grid.chunks == 1:
            self._add_sum(function, kept, terms, grid, operand, quotient)
            return
        outputs, chunks = grid.outputs, grid.chunks
        partials = self._add_scratch(8 * outputs * chunks)
        partial_sums = Quotient("float64", 1.0, NO_ADDRESS, partials)
        self._add_sum(function, kept, terms, grid, operand, partial_sums)
        partial = ArraySpec("float64", (outputs, chunks), (chunks, 1))
        kept = IterationSpace((outputs,), ((chunks,),))
        terms = IterationSpace((chunks,), ((1,),))
        grid = sum_grid((partial,), kept, terms, beside=False)._replace(chunks=1)
        self._add_sum(identity(partial, partials), kept, terms, grid, -1, quotient)

    def _add_sum(
        self,
        function: ElementFunction,
        kept: IterationSpace,
        terms: IterationSpace,
        grid: SumGrid,
        operand: int,
        quotient: Quotient,
    ) -> None:
        sizes = [item_size(o.dtype) for o in function.operands]
        space = joined(terms, kept) if grid.beside else joined(kept, terms)
        batch = min(BATCH_TERMS, max(1, BATCH_ELEMENTS // (grid.width * len(sizes))))
        halves = are_halves(function.operands)
        # With short offsets single elements of half precision took up to half as long again for
        # neighbouring sums, on an H200; all others took less time.
        is_short = not (grid.beside and halves and grid.width == 1)
        layout, layout_bytes = layout_of(
            space, sizes, function.misaligned, grid.width, is_short=is_short
        )
        along = -1
        if len(terms.shape) == 1:
            along = 0 if grid.beside else len(kept.shape)
        team = tuned(
            "SumTeam",
            threads=SUM_THREADS,
            width=grid.width,
            batch=batch,
            beside=grid.beside,
            along=along,
            plain=PLAIN_TERMS if halves else 1,
        )
        scale_type, scale = self._scale(quotient.scaled)
        pointers = [f"const {c_type(o.dtype)}*" for o in function.operands] + scale_type
        kernel = Specialisation(
            "kernels/broadcast_sum.cu",
            template(
                "broadcast_sum",
                c_type(function.real),
                function.expression,
                layout,
                team,
                operand,
                quotient.empty_is_zero,
                c_type(quotient.dtype),
                *pointers,
            ),
            SUM_THREADS,
            self._problem.device,
            function.source,
        )
        counts = int64(grid.outputs), int64(grid.repeats), int64(grid.chunk)
        arguments = [layout_bytes, int32(grid.of_block), *counts, float64(quotient.divisor)]

        def launch(kernel: Kernel) -> Launch:
            return Launch(
                kernel,
                (grid.blocks, grid.chunks),
                SUM_THREADS,
                arguments,
                pointers=2 + len(pointers),
                fields=function.fields,
                parameters=function.parameters,
                scaled=quotient.scaled,
            )

        chosen = (quotient.denominator, quotient.result, *function.addresses, *scale)
        self._steps.append(Step(kernel, launch, chosen))

    def _sum_of_counts(self, where: int | None, weight: int | None, size: int) -> Address:
        """The sum of the weights that a mask leaves, or their number, of so many in all.

        Each is given as an operand of the problem, or None.
        """
        problem = self._problem
        expression = template("One" if weight is None else "Identity", c_type(problem.real))
        if where is not None:
            expression = template("Masked", expression, 0)
        indices = [k for k in (where, weight) if k is not None]
        operands = tuple(problem.operands[k] for k in indices)
        shape = broadcast_shape(operands, [""] * len(operands))
        strides = [broadcast_strides(operand, shape) for operand in operands]
        function = ElementFunction(
            expression,
            problem.real,
            "",
            operands,
            tuple(self._operand_addresses[k] for k in indices),
            strides,
            memory_order(shape, strides),
            tuple(problem.misaligned[k] for k in indices),
        )
        denominator = self._add_scratch(8)
        # Each element of a mask or weight that is broadcast counts for several.
        divisor = math.prod(shape) / size
        self._add_pointwise(
            function,
            shape,
            values="SUM_OF_VALUES",
            result="double",
            value=denominator,
            denominator=NO_ADDRESS,
            factor=NO_FACTOR,
            gradients={},
            divisor=divisor,
            scaled=False,
        )
        return denominator

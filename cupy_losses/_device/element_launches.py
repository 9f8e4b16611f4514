"""Launches over elements and sums of them; the files of cuda/kernels/ say what the kernels do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._core.dtypes import FLOATING, c_type, item_size
from .._core.shapes import (
    ArraySpec,
    IterationSpace,
    Shape,
    broadcast_shape,
    broadcast_strides,
    coalesce,
    dense_strides,
    memory_order,
)
from .compiler import Kernel, Specialisation
from .launch import (
    EMPTY_STRUCT,
    POINTERS_OF_RESULTS,
    Launch,
    Parameters,
    float64,
    head_of_results,
    int32,
    int64,
    iteration_space,
)
from .plan import (
    NO_ADDRESS,
    NO_FACTOR,
    SLOT,
    UNSUMMED,
    VECTOR_BYTES,
    WARP,
    Address,
    Builder,
    Step,
    bits,
    template,
    tuned,
)
from .tiling import Tiling, tiling_of

# A tile is THREADS threads with VECTORS_PER_THREAD vectors each. A reduced loss is the sum of at
# most MAX_SEGMENTS partial sums. With the width of a vector, these fix the order of summation.
# Where nothing is added up, a thread has one vector. Of STREAMED_BYTES of operands or more a block
# has one tile, so that those that run at once lie together: on an H200 that took 6% less time for
# 512 MiB, and 30% more for 32 MiB, which are in the cache.
THREADS = 512
VECTORS_PER_THREAD = 4
MAX_SEGMENTS = 4096
STREAMED_BYTES = 1 << 27
BATCH_ELEMENTS = 32  # of all operands, that a thread has at once, at most
BATCH_HALVES = 48  # the same where all are of half precision

# A block of the kernel `tiled`: several of them fill a multiprocessor, as each waits for its tile.
# TILED_REGISTERS of a thread wait for the direct operands, while others do for the staged ones.
TILED_THREADS = 256
TILED_REGISTERS = 16

# The kernel `broadcast_sum`: the threads of a block, and how many blocks keep a device busy; these
# are part of the order of summation, and so is all that follows from them.
SUM_THREADS = 256
SUM_BLOCKS = 1024
BATCH_TERMS = 8  # the vectors of a thread that are loaded at once, at most
PLAIN_TERMS = 8  # of half precision, that are added before a rounding error is kept
ENOUGH_THREADS = 1 << 16  # with so many, a sum need not be the work of a whole block
VECTORS_OF_THREAD = 4  # of a sum that is the work of a few neighbouring threads, or more
VECTORS_OF_CHUNK = 16  # of a thread, or more


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


class SumGrid(NamedTuple):
    """How a launch of the kernel `broadcast_sum` divides its sums among threads and blocks.

    Attributes:
        outputs: How many sums there are.
        repeats: The terms of each.
        beside: Whether neighbouring elements are terms of neighbouring sums.
        width: The elements of a vector.
        of_block: The sums that a block adds up, or vectors of them.
        chunks: The parts of each, one a block.

    """

    outputs: int
    repeats: int
    beside: bool
    width: int
    of_block: int
    chunks: int = 1

    @property
    def blocks(self) -> int:
        """The blocks that add up the same part of all sums."""
        sums = self.of_block * self.width if self.beside else self.of_block
        return -(-self.outputs // sums)

    @property
    def chunk(self) -> int:
        """The terms of a part, at most: whole vectors of them."""
        terms = 1 if self.beside else self.width
        return -(-self.repeats // (self.chunks * terms)) * terms


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
        schedule = _schedule(function.operands, function.misaligned, space, len(gradients), summed)
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
        grid = _sum_grid(function.operands, kept, terms, beside)
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
        grid = _sum_grid((partial,), kept, terms, beside=False)._replace(chunks=1)
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
        space = _joined(terms, kept) if grid.beside else _joined(kept, terms)
        batch = min(BATCH_TERMS, max(1, BATCH_ELEMENTS // (grid.width * len(sizes))))
        halves = _are_halves(function.operands)
        # With short offsets single elements of half precision took up to half as long again for
        # neighbouring sums, on an H200; all others took less time.
        is_short = not (grid.beside and halves and grid.width == 1)
        layout, layout_bytes = _layout(
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


@dataclass(frozen=True)
class _Schedule:
    """One of the kernels for elements, and how it divides them."""

    kernel: str
    threads: int
    layout: str  # the C++ types of layout and tile
    tile: str
    fields: bytes  # of the layout
    items: int  # the elements or tiles that it is told of
    tiles: int


def _schedule(
    operands: Sequence[ArraySpec],
    misaligned: Sequence[int],
    space: IterationSpace,
    gradients: int,
    summed: bool,
) -> _Schedule:
    width = _width(operands, space)
    tiling = tiling_of(operands, misaligned, space, width)
    if tiling is not None:
        return _tiled_schedule(tiling, operands, gradients)
    crosses = len(space.shape) > 1 and space.shape[-1] % width != 0
    if crosses and dense_strides(range(len(space.shape)), space.shape) not in space.strides:
        crosses, width = False, 1  # no vector of any operand goes on in the next row
    # Enough loads in flight, in few enough registers; as measured on an H200.
    vectors = VECTORS_PER_THREAD if summed else 1
    batch = 1
    if len(operands) <= 3 and not gradients:
        at_once = BATCH_HALVES if _are_halves(operands) else BATCH_ELEMENTS
        most = max(1, at_once // (width * len(operands)))
        batch = min(vectors, 1 << (most.bit_length() - 1))
    elif len(operands) + gradients <= 3 and len(space.shape) == 2:
        batch = min(vectors, 2)  # rows or columns: the short operand is in the cache
    sizes = [item_size(o.dtype) for o in operands]
    layout, fields = _layout(space, sizes, misaligned, width, crosses=crosses)
    tile = tuned("Tile", threads=THREADS, vectors_per_thread=vectors, width=width, batch=batch)
    size = math.prod(space.shape)
    tiles = -(-size // (THREADS * vectors * width))
    return _Schedule("pointwise", THREADS, layout, tile, fields, size, tiles)


def _tiled_schedule(tiling: Tiling, operands: Sequence[ArraySpec], gradients: int) -> _Schedule:
    shape, strides = tiling.space.shape, tiling.space.strides
    turns = -(-tiling.rows * tiling.columns // (tiling.width * TILED_THREADS))
    direct = [o for k, o in enumerate(operands) if k not in tiling.staged]
    registers = sum(max(2, tiling.width * item_size(o.dtype) // 4) for o in direct)
    batches = -(-turns // max(1, TILED_REGISTERS // max(1, registers)))
    # Three blocks, of 80 registers a thread, unless many operands, doubles, or staged operands of
    # different sizes, such as a mask, take more.
    doubles = any(o.dtype == "float64" for o in operands)
    differ = len({item_size(operands[k].dtype) for k in tiling.staged}) > 1
    resident = 2 if doubles or len(operands) + gradients + differ > 4 else 3
    layout = template(
        "TileLayout",
        len(shape),
        len(operands),
        *map(bits, (tiling.staged, tiling.vectorised)),
        _index(shape),
        "int" if tiling.reach < 2**31 else "long long",
    )
    tile = tuned(
        "Rectangle",
        threads=TILED_THREADS,
        rows=tiling.rows,
        columns=tiling.columns,
        width=tiling.width,
        batch=-(-turns // batches),
        flat=tiling.flat,
        resident=resident,
    )
    fields = int64(*shape, *(length for step in strides for length in step))
    return _Schedule("tiled", TILED_THREADS, layout, tile, fields, tiling.tiles, tiling.tiles)


def _are_halves(operands: Sequence[ArraySpec]) -> bool:
    """Whether all that are floating are of half precision."""
    return all(item_size(o.dtype) == 2 for o in operands if o.dtype in FLOATING)


def _width(operands: Sequence[ArraySpec], space: IterationSpace) -> int:
    """The elements of a vector: 16 bytes of the narrowest floating operand.

    One element for the second derivatives of strided operands: five and more operands would not fit
    in registers.
    """
    if len(space.shape) > 1 and len(operands) > 4:
        return 1
    sizes = [item_size(o.dtype) for o in operands if o.dtype in FLOATING]
    return VECTOR_BYTES // min(sizes, default=4)


def _layout(
    space: IterationSpace,
    sizes: Sequence[int],
    misaligned: Sequence[int],
    width: int,
    *,
    crosses: bool = False,
    is_short: bool = True,
) -> tuple[str, bytes]:
    """The C++ type of a layout, and its fields.

    `crosses`: vectors cross the ends of rows, between granules that divide both. `is_short`:
    offsets have 32 bits if they fit.
    """
    shape = space.shape or (1,)
    strides = space.strides if space.shape else ((1,),) * len(sizes)
    dense = dense_strides(range(len(shape)), shape)
    granule = math.gcd(width, shape[-1]) if crosses else 1
    crossing = [k for k, step in enumerate(strides) if crosses and step != dense]
    vectors, repeated = [], []
    for k, (step, size) in enumerate(zip(strides, sizes, strict=True)):
        at_once = granule if k in crossing else width
        outer = step[:-1] if k in crossing or not crosses else ()
        starts = misaligned[k], *(size * length for length in outer)
        is_aligned = not any(start % min(VECTOR_BYTES, at_once * size) for start in starts)
        if step[-1] == 1 and is_aligned and (at_once > 1 or k not in crossing):
            vectors.append(k)
        if step[-1] == 0 and at_once > 1:
            repeated.append(k)
    arguments: list[str | int] = [len(shape), len(sizes), bits(vectors), _index(shape)]
    if repeated or (len(shape) > 1 and is_short):
        arguments += [_offset(space), bits(crossing), bits(repeated)]
    if granule > 1:  # there are several dimensions then
        arguments.append(granule)
    return template("Layout", *arguments), iteration_space(IterationSpace(shape, strides))


def _offset(space: IterationSpace) -> str:
    """The C++ type that holds every offset of a space, and what it takes to find it."""
    reach = max(
        sum(abs(step) * length for step, length in zip(steps, space.shape, strict=True))
        for steps in space.strides
    )
    return "int" if reach < 2**31 else "long long"


def _sum_grid(
    operands: Sequence[ArraySpec], kept: IterationSpace, terms: IterationSpace, beside: bool
) -> SumGrid:
    """How threads and blocks add: `kept` are the dimensions of the sums."""
    outputs, repeats = math.prod(kept.shape), math.prod(terms.shape)
    width = _width(operands, _joined(kept, terms))
    inner = (kept if beside else terms).shape[-1:]
    while math.prod(inner) % width:
        width //= 2
    if beside:
        of_block = _side_by_side(outputs // width)
        threads, vectors = SUM_THREADS // of_block, repeats
    else:
        vectors = repeats // width
        threads = SUM_THREADS
        if vectors <= WARP * VECTORS_OF_THREAD or WARP * outputs >= ENOUGH_THREADS:
            threads = 1
            while threads < WARP and 2 * threads * VECTORS_OF_THREAD <= vectors:
                threads *= 2
        of_block = SUM_THREADS // threads
    grid = SumGrid(outputs, repeats, beside, width, of_block)
    if threads == SUM_THREADS or beside:
        most = -(-vectors // (threads * VECTORS_OF_CHUNK))
        grid = grid._replace(chunks=min(-(-SUM_BLOCKS // grid.blocks), most))
    return grid


def _side_by_side(vectors: int) -> int:
    """The vectors of neighbouring sums that a block has at a time: few threads have none."""
    if vectors <= WARP:
        return vectors

    def busy(of_block: int) -> float:
        threads = SUM_THREADS // of_block * of_block
        return threads * vectors / (-(-vectors // of_block) * of_block)

    return max(range(WARP, min(vectors, SUM_THREADS) + 1), key=busy)


def _joined(outer: IterationSpace, inner: IterationSpace) -> IterationSpace:
    """The dimensions of both."""
    strides = zip(outer.strides, inner.strides, strict=True)
    return IterationSpace(outer.shape + inner.shape, tuple(a + b for a, b in strides))


def _index(shape: Shape) -> str:
    """The C++ type that counts the elements of a shape."""
    return "unsigned" if math.prod(shape) < 2**31 else "unsigned long long"

"""How launches over elements, and sums of them, are divided among blocks and threads.

Arithmetic on shapes, strides and dtypes; the files of cuda/kernels/ say what the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._core.dtypes import FLOATING, item_size
from .._core.shapes import ArraySpec, IterationSpace, Shape, dense_strides
from .cpp import bits, template, tuned
from .hardware import VECTOR_BYTES, WARP
from .launch import int64, iteration_space
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


@dataclass(frozen=True)
class ElementSchedule:
    """One of the kernels for elements, and how it divides them."""

    kernel: str
    threads: int
    layout: str  # the C++ types of layout and tile
    tile: str
    fields: bytes  # of the layout
    items: int  # the elements or tiles that it is told of
    tiles: int


def element_schedule(
    operands: Sequence[ArraySpec],
    misaligned: Sequence[int],
    space: IterationSpace,
    gradients: int,
    summed: bool,
) -> ElementSchedule:
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
        at_once = BATCH_HALVES if are_halves(operands) else BATCH_ELEMENTS
        most = max(1, at_once // (width * len(operands)))
        batch = min(vectors, 1 << (most.bit_length() - 1))
    elif len(operands) + gradients <= 3 and len(space.shape) == 2:
        batch = min(vectors, 2)  # rows or columns: the short operand is in the cache
    sizes = [item_size(o.dtype) for o in operands]
    layout, fields = layout_of(space, sizes, misaligned, width, crosses=crosses)
    tile = tuned("Tile", threads=THREADS, vectors_per_thread=vectors, width=width, batch=batch)
    size = math.prod(space.shape)
    tiles = -(-size // (THREADS * vectors * width))
    return ElementSchedule("pointwise", THREADS, layout, tile, fields, size, tiles)


def _tiled_schedule(
    tiling: Tiling, operands: Sequence[ArraySpec], gradients: int
) -> ElementSchedule:
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
    return ElementSchedule("tiled", TILED_THREADS, layout, tile, fields, tiling.tiles, tiling.tiles)


def are_halves(operands: Sequence[ArraySpec]) -> bool:
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


def layout_of(
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


def sum_grid(
    operands: Sequence[ArraySpec], kept: IterationSpace, terms: IterationSpace, beside: bool
) -> SumGrid:
    """How threads and blocks add: `kept` are the dimensions of the sums."""
    outputs, repeats = math.prod(kept.shape), math.prod(terms.shape)
    width = _width(operands, joined(kept, terms))
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


def joined(outer: IterationSpace, inner: IterationSpace) -> IterationSpace:
    """The dimensions of both."""
    strides = zip(outer.strides, inner.strides, strict=True)
    return IterationSpace(outer.shape + inner.shape, tuple(a + b for a, b in strides))


def _index(shape: Shape) -> str:
    """The C++ type that counts the elements of a shape."""
    return "unsigned" if math.prod(shape) < 2**31 else "unsigned long long"

"""The schedule of tiles of rows that lie side by side in memory, of kernels/strided_tiles.cu."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.dtypes import FLOATING, item_size
from . import driver
from .cpp import bits, tuned
from .launch import int32, reciprocal
from .row_arrays import RowArray
from .row_operands import RowOperands
from .row_schedule import Schedule
from .strided_tiling import StridedTile, strided_tile


def strided_tile_of(operands: RowOperands, outputs: Sequence[RowArray]) -> StridedTile | None:
    """The tiles of rows that lie side by side; None where kernels/strided_rows.cu is faster."""
    problem, rows, main = operands.problem, operands.rows, operands.main
    elements, size = problem.leading, item_size(main.dtype)
    if [k for k, array in enumerate(operands.inputs) if array.streamed] != [elements]:
        return None
    # Bulk copies came with clusters. They read around a tile what must not be overwritten.
    if driver.largest_cluster(problem.device) == 1 or operands.loss.overwrites:
        return None
    if main.dtype not in FLOATING or not rows.extent(main) or not rows.lie_apart(main):
        return None
    # Gradients take the place of elements, and go back as those have come.
    for array in outputs:
        if array.misaligned != main.misaligned or not rows.lies(array, main.strides):
            return None
    if not outputs and size == 2 and rows.has_pairs(main, operands.inputs):
        return None
    return strided_tile(
        rows.columns,
        rows.line(main, [*operands.inputs, *outputs]),
        rows.number,
        size,
        rows.step(main) * size,
        elements,
        operands.numbers,
        gradients=bool(outputs),
        weights=problem.call.weighted and operands.memory.is_heavy,
        shared_memory=driver.shared_memory(problem.device),
    )


def strided_tiles_schedule(
    operands: RowOperands, tile: StridedTile, outputs: Sequence[RowArray]
) -> Schedule:
    """By kernels/strided_tiles.cu."""
    arrays = [*operands.inputs, *outputs]
    layout, fields = operands.layout(arrays, operands.class_weights(1))
    team = tuned(
        "StridedTileTeam",
        threads=tile.threads,
        count=tile.count,
        sure=tile.sure,
        pitch=tile.pitch,
        resident=tile.resident,
        numbers=bits(list(operands.numbers)),
    )
    begins = (tile.begins.get(k, 0) for k in range(len(arrays)))
    places = int32(tile.rows, tile.bytes, *begins, tile.of_line) + reciprocal(tile.of_line)
    return Schedule(
        kernel="strided_tiles",
        types=(layout, team),
        arguments=(fields, places),
        threads=tile.threads,
        segments=tile.segments,
        workers=tile.segments,
        limited=True,
        shared=2 * tile.bytes,
    )

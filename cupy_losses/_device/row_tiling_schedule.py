"""The schedule of tiles of rows that are one stretch of memory, of kernels/row_tiles.cu."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._core.dtypes import FLOATING, item_size
from .cpp import bits, tuned
from .launch import int32
from .row_arrays import RowArray
from .row_function import number_bytes, state_bytes
from .row_operands import RowOperands
from .row_schedule import Schedule, blocks_per_multiprocessor
from .row_tiling import MANY_TILES, TILE_SEGMENTS, RowTile, row_tile

ACCESSES = (16, 8, 4, 2)  # bytes that one copy may move, if the elements of neighbouring rows do


def tile_of(operands: RowOperands, outputs: Sequence[RowArray]) -> RowTile | None:
    """The tiles of rows that are one stretch of memory; None for other rows."""
    rows, main, loss = operands.rows, operands.main, operands.loss
    if rows.columns == 0 or not all(rows.lies(array, rows.dense) for array in outputs):
        return None
    elements, apart = {}, {}
    for k, array in enumerate(operands.inputs):
        if array.streamed:
            if rows.lies(array, rows.dense):
                elements[k] = item_size(array.dtype)
            elif k != operands.problem.leading and rows.lie_apart(array) and rows.line(array):
                apart[k] = item_size(array.dtype)
            else:
                return None
    # Of integers vectors of two, and no pairs of half precision.
    size = item_size(main.dtype if main.dtype in FLOATING else "float64")
    return row_tile(
        rows.columns,
        size,
        elements,
        operands.numbers,
        state_bytes(operands) + _finished_bytes(operands),
        apart=apart,
        hides=loss.hides,
        precise=loss.precise,
    )


def row_tiles_schedule(
    operands: RowOperands, tile: RowTile, outputs: Sequence[RowArray]
) -> Schedule:
    """By kernels/row_tiles.cu."""
    arrays = [*operands.inputs, *outputs]
    vectors = [*tile.elements, *operands.class_weights(tile.unit)]
    layout, fields = operands.layout(arrays, vectors)
    team = tuned(
        "TileTeam",
        threads=tile.threads,
        threads_per_row=tile.threads_per_row,
        unit=tile.unit,
        batch=tile.batch,
        paired=tile.paired,
        parts=tile.parts,
        resident=blocks_per_multiprocessor(operands.problem, tile.threads),
        elements=bits(tile.elements),
        numbers=bits(tile.numbers),
        apart=bits(tile.apart),
        pitch=tile.pitch,
        access=_access(operands, tile.apart) if tile.apart else 0,
        stages=tile.stages,
    )
    begins = (tile.begins.get(k, 0) for k in range(len(arrays)))
    tiles = -(-operands.rows.number // tile.rows)
    segments = min(tiles, TILE_SEGMENTS)
    is_light = operands.main.dtype == "float32" and tile.threads_per_row == 1
    return Schedule(
        kernel="row_tiles",
        types=(layout, team),
        arguments=(fields, int32(tile.rows, tile.bytes, *begins)),
        threads=tile.threads,
        segments=segments,
        workers=segments,
        limited=not (is_light and tiles >= MANY_TILES * segments),
        shared=tile.stages * tile.bytes,
    )


def _access(operands: RowOperands, apart: Iterable[int]) -> int:
    """The bytes of neighbouring rows that one access copies in all of these inputs."""
    arrays = [operands.inputs[k] for k in apart]
    for access in ACCESSES:
        numbers = [access // item_size(array.dtype) or 1 for array in arrays]
        if all(map(operands.rows.are_at_once, arrays, numbers)):
            return access
    return 1


def _finished_bytes(operands: RowOperands) -> int:
    """About those of what gradients need of a row, a number for each sum, and of its context.

    What is more fits into OTHER_BYTES of row_tiling.py.
    """
    return (operands.loss.sums + 2) * number_bytes(operands) + 16

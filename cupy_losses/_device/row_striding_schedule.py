"""Schedules of rows that lie side by side in memory, of kernels/strided_rows.cu."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.dtypes import item_size
from .addresses import NO_ADDRESS, Address
from .cpp import bits, tuned
from .hardware import SECTOR_BYTES
from .launch import int32, int64
from .row_arrays import RowArray
from .row_function import row_bytes, state_bytes
from .row_operands import RowOperands
from .row_schedule import RECORD_BYTES, Results, Schedule
from .row_striding import StridedTeam, strided_team

ACCESSES = (16, 8, 4)  # bytes that one access may read


def strided_team_of(operands: RowOperands, outputs: Sequence[RowArray]) -> StridedTeam | None:
    """The threads of rows that lie side by side; None for other rows."""
    rows, main, inputs = operands.rows, operands.main, operands.inputs
    read = [array for array in inputs if array.streamed]
    if not read or not rows.lie_apart(main):
        return None
    in_parts = any(rows.lies_in_parts(array, inputs) for array in outputs)
    return strided_team(
        rows.columns,
        [item_size(array.dtype) for array in read],
        state_bytes(operands),
        row_bytes(operands, bool(outputs)),
        rows.number,
        bool(outputs),
        in_parts=in_parts,
        overlap=_overlap(operands, outputs) if in_parts else 0,
        in_pairs=item_size(main.dtype) == 2 and rows.has_pairs(main, inputs),
        lie_in_pairs=rows.lie_in_pairs(main, inputs),
        heavy=operands.memory.is_heavy,
    )


def strided_rows_schedule(
    operands: RowOperands,
    team: StridedTeam,
    results: Results,
    phase: str = "WHOLE",
    records: Address = NO_ADDRESS,
) -> Schedule:
    """All of kernels/strided_rows.cu, or one of two launches; `records`: of the first."""
    arrays = [*operands.inputs, *results.outputs]
    access, along = _accesses(operands)
    layout, fields = operands.layout(arrays, [*along, *operands.class_weights(1)])
    is_divided = phase == "SPLIT" or (phase == "MERGE" and bool(results.wanted))
    of_block = team.of_block if is_divided else team.sections
    sections = int64(team.section), *map(int32, (team.share, team.shares, of_block))
    log_neighbours = int32(team.neighbours.bit_length() - 1)
    states = team.shares if phase != "SPLIT" else 0
    kept = row_bytes(operands, bool(results.wanted))
    of_row = kept + states * state_bytes(operands)
    tiles = -(-operands.rows.number // (team.tile_rows - team.overlap))
    segments = min(tiles, team.segments)
    return Schedule(
        kernel="strided_rows",
        types=(layout, _team_type(operands, team, arrays, kept, access), phase),
        arguments=(fields, *sections, log_neighbours),
        threads=team.threads,
        segments=segments,
        workers=segments,
        blocks=-(-team.sections // of_block),
        shared=of_row * team.tile_rows if team.threads_per_row > 1 else 0,
        records=(records,),
    )


def bytes_between_sections(operands: RowOperands, team: StridedTeam) -> int:
    """The bytes that the first of two launches records for the second one."""
    tiles = -(-operands.rows.number // (team.tile_rows - team.overlap))
    of_row = RECORD_BYTES + state_bytes(operands) * team.sections
    return of_row * team.tile_rows * tiles


def _team_type(
    operands: RowOperands, team: StridedTeam, arrays: Sequence[RowArray], kept: int, access: int
) -> str:
    """The C++ type of the threads of a row; `kept`: what `row_bytes` says; `access`: in bytes."""
    rows = operands.rows
    pairs = [k for k, a in enumerate(arrays) if team.pairs and rows.has_pairs(a, arrays)]
    return tuned(
        "StridedTeam",
        threads=team.threads,
        threads_per_row=0 if team.varies else team.threads_per_row,
        width=team.rows_per_thread,
        count=team.count,
        sure=team.sure,
        stays=team.stays,
        ahead=team.ahead,
        resident=team.resident,
        state_bytes=state_bytes(operands),
        row_bytes=kept,
        vectors=bits(pairs),
        access=access,
        in_step=team.in_step,
        overlap=team.overlap,
    )


def _accesses(operands: RowOperands) -> tuple[int, list[int]]:
    """The bytes that one access reads along a row, the most there are, and the inputs read so."""
    rows, inputs = operands.rows, operands.inputs
    for access in ACCESSES:
        units = [access // item_size(array.dtype) if array.streamed else 1 for array in inputs]
        along = [
            k
            for k, unit in enumerate(units)
            if unit > 1 and rows.columns % unit == 0 and rows.has_vectors(inputs[k], unit)
        ]
        if along:
            return access, along
    return 0, []


def _overlap(operands: RowOperands, outputs: Sequence[RowArray]) -> int:
    """How many rows that lie side by side two tiles may share: those of a sector of gradients.

    None of gradients that overwrite an operand: the other tile may not have read it yet.
    """
    if len(outputs) > 1 or operands.loss.overwrites:
        return 0
    return SECTOR_BYTES // item_size(outputs[0].dtype)

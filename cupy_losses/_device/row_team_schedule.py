"""Schedules of a team of threads for each row, of kernels/rows.cu and kernels/split_rows.cu."""

from __future__ import annotations

from dataclasses import replace

from .._core.dtypes import item_size
from . import driver
from .addresses import Address
from .builder import UNSUMMED
from .launch import int32, int64
from .row_function import RowFunction
from .row_operands import RowOperands
from .row_schedule import RECORD_BYTES, Results, Schedule, blocks_per_multiprocessor
from .row_team import MAX_RANKS, RowTeam


def rows_schedule(
    operands: RowOperands, team: RowTeam, function: RowFunction, results: Results
) -> Schedule:
    """One launch, by kernels/rows.cu."""
    workers = _workers(operands, team, results)
    types, fields = _types(operands, team, function, results)
    ranks = team.ranks if team.cluster else 1
    return Schedule(
        kernel="rows",
        types=types,
        arguments=(fields, int64(_kept(operands, workers)), int32(team.apart)),
        threads=team.threads,
        segments=_segments(operands, team, workers),
        workers=workers,
        blocks=ranks,
        cluster=ranks,
        in_groups=True,
        shared=team.shared_bytes(_vector_bytes(team, function)),
    )


def split_rows_schedule(
    operands: RowOperands,
    team: RowTeam,
    function: RowFunction,
    results: Results,
    phase: str,
    records: Address,
) -> Schedule:
    """One of the two launches of kernels/split_rows.cu; `records`: of the first one."""
    arguments = int64(team.splits), int64(team.slots)
    if team.splits > MAX_RANKS:
        team = replace(team, slots=0)  # the argument says how many
    workers = _workers(operands, team, results)
    types, fields = _types(operands, team, function, results)
    return Schedule(
        kernel="split_rows",
        types=(*types, phase),
        arguments=(fields, *arguments),
        threads=team.threads,
        segments=_segments(operands, team, workers),
        workers=workers,
        blocks=team.splits if phase == "SPLIT" or results.wanted else 1,
        in_groups=True,
        records=(records,),
    )


def bytes_between_splits(operands: RowOperands, team: RowTeam) -> int:
    """The bytes that the first launch of kernels/split_rows.cu records for the second one."""
    return RECORD_BYTES * operands.rows.number * (1 + team.splits)


def _types(
    operands: RowOperands, team: RowTeam, function: RowFunction, results: Results
) -> tuple[tuple[str, str], bytes]:
    """The C++ types of the layout and of the team, and the fields of the layout."""
    arrays = [*function.inputs, *results.outputs]
    vectors = []
    for k, array in enumerate(arrays) if team.width > 1 else ():
        # The weights of the classes do not begin elsewhere in each row.
        shifted = operands.main if team.shifts and array.streamed else None
        if operands.rows.has_vectors(array, team.width, shifted):
            vectors.append(k)
    layout, fields = operands.layout(arrays, vectors)
    threads = team.threads_of_multiprocessor(
        operands.memory, _vector_bytes(team, function), bool(results.wanted)
    )
    resident = blocks_per_multiprocessor(operands.problem, team.threads, threads)
    return (layout, team.c_type(resident)), fields


def _vector_bytes(team: RowTeam, function: RowFunction) -> int:
    """The bytes of a vector of all that is read element by element."""
    return team.width * sum(item_size(array.dtype) for array in function.inputs if array.streamed)


def _workers(operands: RowOperands, team: RowTeam, results: Results) -> int:
    """The blocks, or clusters, that take a segment at a time each."""
    summed = results.values not in UNSUMMED
    return team.workers(operands.memory, summed or not results.wanted)


def _segments(operands: RowOperands, team: RowTeam, workers: int) -> int:
    """The parts of a sum: rows of so many ranks are one each."""
    return operands.rows.number if team.ranks > 2 else workers


def _kept(operands: RowOperands, workers: int) -> int:
    """The workers whose elements others are to push out of the cache."""
    rows, memory = operands.rows, operands.memory
    cache = driver.cache_bytes(operands.problem.device)
    read = rows.number * rows.columns * memory.element_bytes
    return max(0, workers - -(-workers * cache // max(read, 1)))

"""Tiles of rows that lie one after the other in memory; cuda/kernels/row_tiles.cu works on them.

Pure arithmetic on the length of a row and the sizes of elements, so that a tile, and with it the
order of summation, depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from .hardware import VECTOR_BYTES
from .row_team import HELD_BYTES
from .shared_memory import BANKS, WORD_BYTES, bank_conflicts, placed

# As measured on an H200. cuda/kernels/rows.cu is faster for rows that are not between these limits:
# short ones wait in the registers of a thread, if those of all operands are no more than
# HELD_BYTES, and of long ones a thread has much to do.
SHORT_BYTES = 24  # of a row
SHORT_HIDDEN = 16  # the same of half precision for losses that hide some: gradients are faster here
SHORT_ODD = 12  # the same where a row is no whole number of words
SHORT_LIGHT = 8  # the same of one operand, where the loss is not precise
SHORT_VECTORS = 32  # the same of whole vectors
SHORT_VECTORS_OF_HALVES = 16
# The same where arrays lie apart: threads that have a row each read stretches of them.
SHORT_APART = 20
SHORT_ODD_APART = 14
LONG_BYTES = 1000  # of a row, where none does
LONG_BYTES_OF_SEVERAL = 4000  # the same of several arrays, of a precise loss or of half precision
LONG_HIDDEN = 200  # elements of a row, for losses that hide some
LONG_HALVES = 304  # the same of rows of whole vectors of half precision
LONG_PARTS = 1250  # the same of other rows of half precision, of which each thread has as many as:
LEAST_OF_LONG = 32

# Threads that read units of rows at once wait for each other where they need different words of
# the same bank of shared memory. With more conflicts a smaller block works on a tile, or more
# threads on a row. If there are still more, one thread reads a row of vectors of half precision in
# an order of its own, and cuda/kernels/rows.cu takes other rows.
MAX_BANK_CONFLICTS = 2
LEAST_UNITS = 4  # of a thread where more threads work on a row
VECTORS_AT_ONCE = BANKS * WORD_BYTES // VECTOR_BYTES  # side by side in the banks
# Elements; longer multiples of VECTORS_AT_ONCE are left to rows.cu.
LONG_MULTIPLE = 64
LONG_HIDDEN_MULTIPLE = 128  # for losses that hide some

# The tiles of a block, what is kept of MOST_ROWS and OTHER_BYTES fit into the shared memory of
# every device. A block has two tiles, of which it loads one while it works on the other, or a
# single one, which may be larger, while other blocks load theirs. A single one is faster for
# several arrays, and for long rows of one array of which threads take words.
TILE_THREADS = 128  # of a block
SMALL_THREADS = 64  # of a smaller one
TILE_BYTES = 20 << 10  # about as many, or the rows of a block at a time if they are longer
TILE_LIMIT = 28 << 10  # at most
SINGLE_LIMIT = 52 << 10  # the same of a single one
SINGLE_BYTES = 380  # of a row of words; longer ones have a single tile
BLOCK_BYTES = 64 << 10  # the shared memory of a block
OTHER_BYTES = 3 << 10
PADDING = 512  # bytes beside a tile
THREADS_PER_ROW = (1, 2, 4, 8, 16, 32)  # as few as fit
BATCH_BYTES = 32  # of the first operand, which a thread takes at a time
TURN = 1  # what a batch costs besides its elements, in elements
# Units of long rows that are no whole vectors: few kernels serve all of them.
LONG_BATCHES = (8, 7, 6, 4)
PADS = 5  # tried between the columns of arrays that lie apart, in vectors
MOST_CONFLICTS_APART = 4  # of units of these; with more, units are words
MOST_ROWS = 64  # in cuda/kernels/row_tiles.cu, where several threads work on a row

TILE_SEGMENTS = 4096  # partial sums of a reduced loss, at most
# Most often no more blocks are launched than run at once. In float32, where one thread has a row,
# each segment has a block of its own if it has so many tiles.
MANY_TILES = 4


NO_ARRAYS: Mapping[int, int] = MappingProxyType({})


class TeamSize(NamedTuple):
    """The threads of a block, and those of a row."""

    threads: int
    per_row: int


@dataclass(frozen=True)
class RowTile:
    """A tile of whole rows.

    Attributes:
        rows: How many.
        threads: Those of a block.
        threads_per_row: The threads that work on a row.
        unit: The neighbouring elements that a thread takes at once.
        batch: The units of a thread at a time.
        paired: Whether rows of an odd number of elements, of one thread each, are read in pairs.
        parts: In how many parts a thread reads its units, neighbours in different orders.
        stages: The tiles that a block has at a time: 2, or 1.
        bytes: The shared memory that a tile takes.
        begins: Where each array of it begins there.
        elements: The arrays that have an element for each one of a row.
        numbers: Those that have one number for each row.
        apart: Those whose elements of a row lie apart, while neighbouring rows lie together.
        pitch: The elements between two neighbours of a row of those in shared memory.

    """

    rows: int
    threads: int
    threads_per_row: int
    unit: int
    batch: int
    paired: bool
    parts: int
    stages: int
    bytes: int
    begins: Mapping[int, int]
    elements: tuple[int, ...]
    numbers: tuple[int, ...]
    apart: tuple[int, ...]
    pitch: int


def row_tile(
    columns: int,
    size: int,
    elements: Mapping[int, int],
    numbers: Mapping[int, int],
    kept: int,
    *,
    apart: Mapping[int, int] = NO_ARRAYS,
    hides: bool = False,
    precise: bool = False,
) -> RowTile | None:
    """The tile of rows so long, given the bytes of an element of each array; None for no tiles.

    `size`: those of an element of the first operand, 8 of one that is not floating. `kept`: the
    bytes that a block keeps of a row beside the tile. `apart`: the bytes of an element of arrays
    whose elements of a row lie apart. `hides`: of a loss that hides elements. `precise`: of a
    precise one.
    """
    sizes = list(elements.values())
    lengths = [columns * own for own in (*sizes, *apart.values())]
    if not elements or not _has_tiles(lengths, size, bool(apart), hides=hides, precise=precise):
        return None
    word = max(WORD_BYTES // size, 1)
    unit = max(word, math.gcd(columns, VECTOR_BYTES // size))
    is_of_words = unit * size == WORD_BYTES <= size and columns * size > SINGLE_BYTES
    stages = 1 if len(lengths) > 1 or is_of_words else 2
    row_bytes = sum(lengths) + sum(numbers.values())
    room = (BLOCK_BYTES - OTHER_BYTES - MOST_ROWS * kept) // stages - PADDING
    limit = min(room, SINGLE_LIMIT if stages == 1 else TILE_LIMIT)
    # The kernel needs the tiles of an array, of each of them, at the same place inside a vector.
    whole = VECTOR_BYTES // min([*sizes, *numbers.values(), *apart.values()])
    usual, small = (
        [
            TeamSize(threads, per_row)
            for per_row in THREADS_PER_ROW
            if max(threads // per_row, whole) * row_bytes <= limit
            and not (apart and threads // per_row < whole)
        ]
        for threads in (TILE_THREADS, SMALL_THREADS)
    )
    longest = columns if apart else LONG_HIDDEN_MULTIPLE if hides else LONG_MULTIPLE
    team_of = partial(_team_size, columns, sizes, longest, usual, small)
    pitch_of = partial(_pitch, columns, list(apart.values()), row_bytes, limit)
    team = team_of(unit)
    if apart and not (team and pitch_of(team, unit)[1] <= MOST_CONFLICTS_APART):
        unit = word
        team = team_of(unit)
    if team is None:
        return None
    pitch = pitch_of(team, unit)[0] if apart else 0
    odd = columns % unit != 0  # of half precision
    paired = odd and team.per_row == 1
    is_long = hides and columns >= LONG_HIDDEN
    if is_long and not _is_tile_of_halves(columns, size, team.per_row):
        return None
    together = max(team.threads // team.per_row, whole)
    times = max(min(TILE_BYTES, limit) // row_bytes // together, 1)
    rows = together if apart else times * together
    if team.per_row > 1:
        rows = min(rows, MOST_ROWS)
    of_row = {k: columns * own for k, own in elements.items()} | dict(numbers)
    begins, end = placed(
        {k: rows * length for k, length in of_row.items()}
        | {k: columns * pitch * own for k, own in apart.items()}
    )
    parts = _parts(columns, unit, size, team.per_row)
    few = is_long and columns * size % VECTOR_BYTES != 0
    batch = _batch(columns // (unit * parts), team.per_row, unit, size, few)
    return RowTile(
        rows,
        *team,
        unit,
        batch,
        paired,
        parts,
        stages,
        end,
        begins,
        tuple(elements),
        tuple(numbers),
        tuple(apart),
        pitch,
    )


def _team_size(
    columns: int,
    sizes: Sequence[int],
    longest: int,
    usual: Sequence[TeamSize],
    small: Sequence[TeamSize],
    unit: int,
) -> TeamSize | None:
    """The first team whose threads have few bank conflicts; None for no tiles.

    `sizes`: the bytes of an element of each array. `longest`: the elements of the longest row that
    is a multiple of VECTORS_AT_ONCE. `unit`: the elements that a thread reads at once.
    """
    vectors = [columns * own / VECTOR_BYTES for own in sizes]
    is_multiple = any(n % VECTORS_AT_ONCE == 0 for n in vectors)
    if not usual or (is_multiple and (len(sizes) > 1 or columns > longest)):
        return None
    teams = [*usual[:1], *small[:1], *usual[1:]]
    odd = columns % unit != 0
    if odd:
        teams.sort(key=lambda team: team.per_row > 1)  # a thread alone reads pairs
    fewest = usual[0].per_row
    for team in teams:
        per_row = team.per_row
        if per_row > fewest and columns // (unit * per_row) < LEAST_UNITS:
            continue
        conflicts = max(_bank_conflicts(columns * own, unit * own, per_row) for own in sizes)
        if (odd and per_row == 1) or conflicts <= MAX_BANK_CONFLICTS:
            return team
    is_vector_of_halves = unit > VECTOR_BYTES // WORD_BYTES
    return usual[0] if is_vector_of_halves and fewest == 1 else None


def _has_tiles(
    lengths: Sequence[int], size: int, apart: bool, *, hides: bool, precise: bool
) -> bool:
    """Whether rows of so many bytes, of each array, are neither too short nor too long."""
    is_odd = any(length % WORD_BYTES for length in lengths)
    if apart:
        return max(lengths) > (SHORT_ODD_APART if is_odd else SHORT_APART)
    if not any(length % VECTOR_BYTES for length in lengths):
        short = SHORT_VECTORS if size >= WORD_BYTES else SHORT_VECTORS_OF_HALVES
    elif is_odd and (precise or len(lengths) > 1):
        short = SHORT_ODD
    elif precise or len(lengths) > 1:
        short = SHORT_HIDDEN if hides and size < WORD_BYTES else SHORT_BYTES
    else:
        short = SHORT_LIGHT
    is_short = max(lengths) <= short and sum(lengths) <= HELD_BYTES
    if hides and size < WORD_BYTES:
        longest = LONG_PARTS * size
    elif len(lengths) > 1 and (precise or size < WORD_BYTES):
        longest = LONG_BYTES_OF_SEVERAL
    else:
        longest = LONG_BYTES
    return not is_short and max(lengths) <= longest


def _pitch(
    columns: int,
    sizes: Sequence[int],
    row_bytes: int,
    limit: int,
    team: TeamSize,
    unit: int,
) -> tuple[int, int]:
    """The elements from a column to the next one of arrays that lie apart; its bank conflicts.

    Those are of threads that read the first element of a unit each.
    """
    rows = team.threads // team.per_row

    def conflicts(pitch: int) -> int:
        conflicts = 0
        for size in sizes:
            words = []
            for thread in range(BANKS):
                row, of_row = divmod(thread, team.per_row)
                words.append((of_row * unit * pitch + row) * size // WORD_BYTES)
            conflicts = max(conflicts, bank_conflicts(words))
        return conflicts

    step = VECTOR_BYTES // min(sizes)  # any column may be copied by vectors
    longest = rows + (limit - rows * row_bytes) // (columns * sum(sizes))
    pitch = min(range(rows, min(rows + PADS * step, longest + 1), step), key=conflicts)
    return pitch, conflicts(pitch)


def _is_tile_of_halves(columns: int, size: int, per_row: int) -> bool:
    """Whether a row has a tile that is too long for one in float32, as it is of half precision."""
    if size >= WORD_BYTES:
        return False
    if columns * size % VECTOR_BYTES == 0:
        return columns < LONG_HALVES
    return columns <= LONG_PARTS and columns >= LEAST_OF_LONG * per_row


def _bank_conflicts(row_bytes: int, unit_bytes: int, per_row: int) -> int:
    """Of the threads that read units of rows at once, the most that need the same bank."""
    length = min(max(unit_bytes, WORD_BYTES), VECTOR_BYTES)
    words: list[int] = []
    for thread in range(BANKS * WORD_BYTES // length):
        row, of_row = divmod(thread, per_row)
        first = row * row_bytes + of_row * unit_bytes
        words += range(first // WORD_BYTES, (first + length - 1) // WORD_BYTES + 1)
    return bank_conflicts(words)


def _parts(columns: int, unit: int, size: int, per_row: int) -> int:
    """In how many parts a thread reads a row, for no more than MAX_BANK_CONFLICTS.

    That is one but for vectors of half precision: other rows have a team without more of them.
    """
    is_vector_of_halves = unit > VECTOR_BYTES // WORD_BYTES
    conflicts = _bank_conflicts(columns * size, unit * size, per_row)
    if not is_vector_of_halves or conflicts <= MAX_BANK_CONFLICTS:
        return 1
    return math.gcd(columns // unit, VECTORS_AT_ONCE) // MAX_BANK_CONFLICTS


def _batch(units: int, per_row: int, unit: int, size: int, few: bool) -> int:
    """How many units of a row a thread takes at a time, so that all are soon done.

    `few`: of LONG_BATCHES alone.
    """
    shares = units // per_row, -(-units // per_row)  # of threads side by side

    def cost(batch: int) -> int:
        batches = max(share // batch for share in shares)
        singles = max(share % batch for share in shares)
        return batches * (batch * unit + TURN) + singles * (unit + TURN)

    most = max(1, min(BATCH_BYTES // (unit * size), shares[0]))
    batches = LONG_BATCHES if few else range(most, 0, -1)
    return min((batch for batch in batches if batch <= most), key=cost)

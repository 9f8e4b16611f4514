"""Tiles of rows that lie one after the other in memory; cuda/kernels/row_tiles.cu works on them.

Pure arithmetic on the length of a row and the sizes of elements, so that a tile, and with it the
order of summation, depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
LONG_BYTES_OF_SEVERAL = 7000  # the same of several arrays, of a precise loss or of half precision
# The same of one array of half precision, of a heavy loss, see RowMemory. Rows of pairs of vectors
# are left to rows.cu, where their gradients are faster.
LONG_HEAVY = 3700
LONG_HEAVY_OF_WORDS = 1500  # the same of float32
LONG_HIDDEN = 200  # elements of a row, for losses that hide some
LONG_HALVES = 304  # the same of rows of whole vectors of half precision
LONG_PARTS = 1250  # the same of other rows of half precision
# Elements that each thread must have of such a row.
LEAST_OF_LONG = 32
LEAST_OF_HEAVY = 76  # the same of a heavy loss, of rows of more than LONG_BYTES

# Threads that read units of rows at once wait for each other where they need different words of
# the same bank of shared memory. With more conflicts a smaller block works on a tile, or more
# threads on a row. If there are still more, one thread reads a row of vectors of half precision in
# an order of its own, and cuda/kernels/rows.cu takes other rows.
MAX_BANK_CONFLICTS = 2
LEAST_UNITS = 4  # of a thread where more threads work on a row
# Of odd rows of half precision: if a thread has fewer elements, and each thread can have a row of a
# larger tile, that is faster.
ENOUGH_OF_ODD = 40
VECTORS_AT_ONCE = BANKS * WORD_BYTES // VECTOR_BYTES  # side by side in the banks
# Elements; longer multiples of VECTORS_AT_ONCE are left to rows.cu.
LONG_MULTIPLE = 64
LONG_HIDDEN_MULTIPLE = 128  # for losses that hide some

# The tiles of a block, what is kept of MOST_ROWS and OTHER_BYTES fit into the shared memory of
# every device. A block has two tiles, of which it loads one while it works on the other, or a
# single one, which may be larger, while other blocks load theirs. A single one is faster for
# several arrays, for long rows of one array of which threads take words, for those of half
# precision of a heavy loss, and where it alone has room for a row for each thread (ENOUGH_OF_ODD).
TILE_THREADS = 128  # of a block
SMALL_THREADS = 64  # of a smaller one
TILE_BYTES = 20 << 10  # about as many, or the rows of a block at a time if they are longer
TILE_LIMIT = 28 << 10  # at most
SINGLE_LIMIT = 52 << 10  # the same of a single one
HEAVY_LIMIT = 34 << 10  # the same of a heavy loss
SINGLE_BYTES = 380  # of a row of words, or of a heavy loss; longer ones have a single tile
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
MOST_ROWS = 64  # in cuda/kernels/row_units.cuh, where several threads work on a row

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
    rows = _Rows(columns, size, elements, numbers, kept, apart, hides, precise)
    choice = rows.choice() if rows.have_tiles() else None
    return None if choice is None else rows.tile(choice)


class _Choice(NamedTuple):
    """How a block divides rows: the attributes of a RowTile, and the bytes of one at most."""

    team: TeamSize
    unit: int
    stages: int
    limit: int


@dataclass(frozen=True)
class _Rows:
    """The rows to be divided, see row_tile()."""

    columns: int
    size: int
    elements: Mapping[int, int]
    numbers: Mapping[int, int]
    kept: int
    apart: Mapping[int, int]
    hides: bool
    precise: bool

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of an element of each array that has stretches of memory."""
        return list(self.elements.values())

    @cached_property
    def lengths(self) -> list[int]:
        """The bytes of a row of each array that has elements."""
        return [self.columns * own for own in (*self.sizes, *self.apart.values())]

    @cached_property
    def row_bytes(self) -> int:
        """The bytes of a row of all arrays."""
        return sum(self.lengths) + sum(self.numbers.values())

    @cached_property
    def length(self) -> int:
        """The bytes of a row of the first operand."""
        return self.columns * self.size

    @property
    def are_vectors(self) -> bool:
        """Whether a row of the first operand is whole vectors."""
        return self.length % VECTOR_BYTES == 0

    @property
    def are_half(self) -> bool:
        """Whether they are of half precision."""
        return self.size < WORD_BYTES

    @property
    def is_alone(self) -> bool:
        """Whether one array has elements."""
        return len(self.lengths) == 1

    @property
    def are_heavy(self) -> bool:
        """Whether rows of half precision are of one array, and their loss is heavy."""
        return self.are_half and self.is_alone and self.precise and not self.hides

    @property
    def are_long_and_heavy(self) -> bool:
        """Whether heavy rows have a single tile."""
        longest = LONG_BYTES if self.are_vectors else SINGLE_BYTES
        return self.are_heavy and self.length > longest

    @property
    def are_long(self) -> bool:
        """Whether rows are longer than those that have tiles in any case."""
        if self.hides:
            return self.columns >= LONG_HIDDEN
        return self.are_heavy and self.length > LONG_BYTES

    @cached_property
    def least_rows(self) -> int:
        """The fewest rows that are whole vectors of each array.

        The kernel needs the tiles of an array, of each of them, at the same place inside a vector.
        """
        return VECTOR_BYTES // min([*self.sizes, *self.numbers.values(), *self.apart.values()])

    def have_tiles(self) -> bool:
        """Whether rows are neither too short nor too long."""
        if not self.elements:
            return False
        longest, is_odd = max(self.lengths), any(length % WORD_BYTES for length in self.lengths)
        if self.apart:
            return longest > (SHORT_ODD_APART if is_odd else SHORT_APART)
        if not any(length % VECTOR_BYTES for length in self.lengths):
            short = SHORT_VECTORS_OF_HALVES if self.are_half else SHORT_VECTORS
        elif self.is_alone and not self.precise:
            short = SHORT_LIGHT
        elif is_odd:
            short = SHORT_ODD
        else:
            short = SHORT_HIDDEN if self.hides and self.are_half else SHORT_BYTES
        if longest <= short and sum(self.lengths) <= HELD_BYTES:
            return False
        if self.hides and self.are_half:
            return longest <= LONG_PARTS * self.size
        if not self.is_alone and (self.precise or self.are_half):
            return longest <= LONG_BYTES_OF_SEVERAL
        if self.hides or not self.precise or self.size > WORD_BYTES:
            return longest <= LONG_BYTES
        if not self.are_half:
            return longest <= LONG_HEAVY_OF_WORDS
        are_pairs = self.length % (2 * VECTOR_BYTES) == 0
        return longest <= (LONG_BYTES if are_pairs else LONG_HEAVY)

    def choice(self) -> _Choice | None:
        """What is fastest; None where kernels/rows.cu is."""
        word = max(WORD_BYTES // self.size, 1)
        unit = max(word, math.gcd(self.columns, VECTOR_BYTES // self.size))
        is_of_words = unit * self.size == WORD_BYTES <= self.size and self.length > SINGLE_BYTES
        stages = 1 if not self.is_alone or is_of_words or self.are_long_and_heavy else 2
        limit, of_single = self._limit(stages), self._limit(1)
        if self.are_long_and_heavy:
            limit = min(limit, HEAVY_LIMIT)
        # A smaller block took longer for these.
        team = self._team(unit, limit, smaller=not self.are_long_and_heavy)
        if self.apart and not (team and self._pitch(team, unit, limit)[1] <= MOST_CONFLICTS_APART):
            unit = word
            team = self._team(unit, limit)
        odd = self.columns % unit != 0  # of half precision
        if odd and not (
            team and (team.per_row == 1 or self.columns >= ENOUGH_OF_ODD * team.per_row)
        ):
            alone = self._team(unit, of_single)
            if alone and alone.per_row == 1:
                team, stages, limit = alone, 1, of_single
        if team is None or not self._have_enough(team.per_row):
            return None
        return _Choice(team, unit, stages, limit)

    def tile(self, choice: _Choice) -> RowTile:
        """The tile of such a choice."""
        columns = self.columns
        team, unit, stages, limit = choice
        pitch = self._pitch(team, unit, limit)[0] if self.apart else 0
        together = max(team.threads // team.per_row, self.least_rows)
        times = max(min(TILE_BYTES, limit) // self.row_bytes // together, 1)
        rows = together if self.apart else times * together
        if team.per_row > 1:
            rows = min(rows, MOST_ROWS)
        of_row = {k: columns * own for k, own in self.elements.items()} | dict(self.numbers)
        begins, end = placed(
            {k: rows * length for k, length in of_row.items()}
            | {k: columns * pitch * own for k, own in self.apart.items()}
        )
        parts = self._parts(unit, team.per_row)
        few = self.are_long and not self.are_vectors
        return RowTile(
            rows=rows,
            threads=team.threads,
            threads_per_row=team.per_row,
            unit=unit,
            batch=_batch(columns // (unit * parts), team.per_row, unit, self.size, few),
            paired=columns % unit != 0 and team.per_row == 1,
            parts=parts,
            stages=stages,
            bytes=end,
            begins=begins,
            elements=tuple(self.elements),
            numbers=tuple(self.numbers),
            apart=tuple(self.apart),
            pitch=pitch,
        )

    def _limit(self, stages: int) -> int:
        """The bytes of a tile of so many in a block, at most."""
        room = (BLOCK_BYTES - OTHER_BYTES - MOST_ROWS * self.kept) // stages - PADDING
        return min(room, SINGLE_LIMIT if stages == 1 else TILE_LIMIT)

    def _teams(self, threads: int, limit: int) -> list[TeamSize]:
        """Those of a block of so many threads whose tiles fit, with the fewest for a row first."""
        least = self.least_rows
        return [
            TeamSize(threads, per_row)
            for per_row in THREADS_PER_ROW
            if max(threads // per_row, least) * self.row_bytes <= limit
            and not (self.apart and threads // per_row < least)
        ]

    def _team(self, unit: int, limit: int, smaller: bool = True) -> TeamSize | None:
        """The first team whose threads have few bank conflicts; None for no tiles.

        `unit`: the elements that a thread reads at once. `limit`: the bytes of a tile, at most.
        `smaller`: the block may be a smaller one.
        """
        columns, sizes = self.columns, self.sizes
        usual = self._teams(TILE_THREADS, limit)
        small = self._teams(SMALL_THREADS, limit) if smaller else []
        longest = LONG_HIDDEN_MULTIPLE if self.hides else LONG_MULTIPLE
        vectors = [columns * own / VECTOR_BYTES for own in sizes]
        is_multiple = any(n % VECTORS_AT_ONCE == 0 for n in vectors)
        is_long_multiple = is_multiple and columns > longest and not self.apart
        if not usual or is_long_multiple or (is_multiple and len(sizes) > 1):
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

    def _have_enough(self, per_row: int) -> bool:
        """Whether threads have so much of a long row that a tile is faster than rows.cu."""
        if self.are_long_and_heavy:
            return self.columns >= (LEAST_OF_HEAVY if self.are_long else LEAST_OF_LONG) * per_row
        if not self.are_long:
            return True
        if not self.are_half:
            return False
        if self.are_vectors:
            return self.columns < LONG_HALVES
        return LEAST_OF_LONG * per_row <= self.columns <= LONG_PARTS

    def _pitch(self, team: TeamSize, unit: int, limit: int) -> tuple[int, int]:
        """The elements from a column to the next one of arrays that lie apart; its bank conflicts.

        Those are of threads that read the first element of a unit each.
        """
        sizes, rows = list(self.apart.values()), team.threads // team.per_row

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
        longest = rows + (limit - rows * self.row_bytes) // (self.columns * sum(sizes))
        pitch = min(range(rows, min(rows + PADS * step, longest + 1), step), key=conflicts)
        return pitch, conflicts(pitch)

    def _parts(self, unit: int, per_row: int) -> int:
        """In how many parts a thread reads a row, for no more than MAX_BANK_CONFLICTS.

        That is one but for vectors of half precision: other rows have a team without more of them.
        """
        is_vector_of_halves = unit > VECTOR_BYTES // WORD_BYTES
        conflicts = _bank_conflicts(self.length, unit * self.size, per_row)
        if not is_vector_of_halves or conflicts <= MAX_BANK_CONFLICTS:
            return 1
        return math.gcd(self.columns // unit, VECTORS_AT_ONCE) // MAX_BANK_CONFLICTS


def _bank_conflicts(row_bytes: int, unit_bytes: int, per_row: int) -> int:
    """Of the threads that read units of rows at once, the most that need the same bank."""
    length = min(max(unit_bytes, WORD_BYTES), VECTOR_BYTES)
    words: list[int] = []
    for thread in range(BANKS * WORD_BYTES // length):
        row, of_row = divmod(thread, per_row)
        first = row * row_bytes + of_row * unit_bytes
        words += range(first // WORD_BYTES, (first + length - 1) // WORD_BYTES + 1)
    return bank_conflicts(words)


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

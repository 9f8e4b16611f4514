"""The threads of rows that lie side by side in memory, for `strided_rows.cu`.

Pure arithmetic. The order of summation depends on the length of a row and the sizes of elements
alone; the threads depend on the number of rows and on what is wanted, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

# As measured on an H200. One kernel serves all rows between two of COUNTS, though elements that may
# not be there take as long as others.
COUNTS = {  # a thread's, by threads
    1: (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64),
    2: (40, 56),
    4: (40, 56),
}
LEAST_COLUMNS = 2  # of rows that lie apart
WORDS = 64  # of four bytes each, of a row that stays with a thread, at most
BATCH = 16  # words of a batch of a longer row

# Rows with few words are loaded while a thread works on those of the tile before, if there are
# registers for what it has then. It has two rows if they are very short, or of half precision and
# in pairs: more bytes are on their way then. Only that follows from the number of rows, and not the
# threads from gradients, so that a mean has the same bits with its gradient. As measured on an
# H100, those that do not lie in pairs on an H200.
FEW_WORDS = 12
PAIR_WORDS = 4
PAIR_WORDS_OF_HALVES = 3  # the same in half precision, of rows that do not lie in pairs
THREADS_OF_FEW = 128  # of a block
THREADS_OF_FEW_HALVES = 256  # the same in half precision
# By the bytes of the widest number, of a loss alone and with gradients: the threads that a
# multiprocessor is to hold, and the words that one may have ahead.
FEW_AT_ONCE = {
    2: ((1024, 20), (1024, 6)),
    4: ((1024, 20), (896, 8)),
    8: ((512, 20), (512, 8)),
}

# Longer rows are divided into shares, and these into sections, by their lengths alone.
SHARE_WORDS = 64  # of a share of up to MOST_SHARES, about
MOST_SHARES = 32
LEAST_BATCHES = 4  # of a section
SECTIONS = 16  # of a share, or more, so that they have no more batches than these:
MOST_BATCHES = 32
MOST_SECTIONS = 64

# With gradients each share has a thread: what a multiprocessor works on is in the L2 cache still
# when it is read again. Without, rows have the fewest of these threads of which all rows have
# enough, else MANY_THREADS: by the rows of a thread, of up to SHORT_SHARES and of more. These are
# few, as each is a kernel; with gradients a kernel serves any number.
MANY_THREADS = 16
LOSS_THREADS = {1: ((1, 4, 8), (1, 8)), 2: ((4, 8), ())}
SHORT_SHARES = 16
ENOUGH_THREADS = 3 << 15  # of all rows together

# Where there are few tiles of long rows, several blocks work on the sections of one.
FEW_TILES = 96
SPLIT_THREADS = 1 << 18  # of a launch over few tiles, about

# Partial sums of a reduced loss, at most; each is the work of a block. There are more blocks than
# run at once: the next one begins when one ends, so that none waits for a slow one, and those that
# run at once have tiles that lie together.
SEGMENTS = 4096
SEGMENTS_OF_HALVES = 2048  # the same in half precision

# The more rows a block has side by side, the fewer sectors of memory are written in parts where
# gradients begin within sectors.
THREADS = 128  # of a block
WIDE_THREADS = 256  # the same for such gradients, or of longer rows
SHARED_THREADS = 512  # the same with gradients of longer rows, at least
WIDE_WORDS = 32  # of a row that stays with one thread, at most; else few blocks are resident
NEIGHBOURS = 32  # at least so many rows side by side, or pairs of them, of threads that share some
MOST_THREADS = 1024  # of a block
OVERLAPPED = 4  # as many rows that two tiles share, or more, are in one
# Of the shared memory of a block, for what is kept of the rows of a tile and the states of their
# shares; with more it has fewer rows. Any device has as much.
TILE_BYTES = 60 << 10

# The threads that a multiprocessor is to hold, by the most words that each holds: of a loss alone
# where rows stay and a thread has one of up to four bytes an element; of gradients of such rows
# that begin within sectors, and of a loss alone where other rows stay; and of all others.
THREADS_OF_LOSS = {16: 1280, 24: 1152, 32: 1024, 40: 896, 48: 768, 64: 640}
THREADS_BETWEEN = {24: 1024, 40: 768, 56: 640, 64: 512}
THREADS_BY_WORDS = {16: 1024, 32: 768, 56: 640, 64: 512}
# The same of a heavy loss alone, where rows do not stay and a block has up to WIDE_THREADS. Rows of
# half precision that are not read in pairs took longer with so few.
THREADS_OF_HEAVY = 768


@dataclass(frozen=True)
class StridedTeam:
    """The threads of a row.

    Attributes:
        threads: The threads of a block.
        threads_per_row: The threads of a row.
        varies: Whether the kernel serves any number of them.
        count: The elements of a batch.
        sure: How many of them every row has that this kernel works on.
        stays: Whether a thread holds all of its elements of a row.
        pairs: Whether a thread has two rows.
        few: Whether rows have so few elements that the loss is told how many.
        ahead: Whether the next ones are loaded while it works on these.
        resident: The blocks that a multiprocessor is to hold.
        segments: The parts that the tiles are divided into, at most.
        section: The batches of a section of a row.
        share: The sections of a share.
        shares: The shares of a row.
        of_block: How many sections of a tile a block works on; 0 for all of them.
        in_step: Whether warps write gradients of the same columns one soon after the other.
        overlap: How many rows of a tile the next one has, too.

    """

    threads: int
    threads_per_row: int
    count: int
    sure: int
    stays: bool
    pairs: bool
    resident: int
    segments: int
    varies: bool = False
    section: int = 1
    share: int = 1
    shares: int = 1
    of_block: int = 0
    in_step: bool = False
    overlap: int = 0
    few: bool = False
    ahead: bool = False

    @property
    def rows_per_thread(self) -> int:
        """The rows that a thread works on at a time."""
        return 2 if self.pairs else 1

    @property
    def neighbours(self) -> int:
        """The threads that work on different rows."""
        return self.threads // self.threads_per_row

    @property
    def tile_rows(self) -> int:
        """The rows of a tile, which a block works on at a time."""
        return self.neighbours * self.rows_per_thread

    @property
    def sections(self) -> int:
        """The sections of a row."""
        return self.share * self.shares


def strided_team(
    columns: int,
    sizes: Sequence[int],
    state: int,
    kept: int,
    rows: int,
    gradients: bool,
    *,
    in_parts: bool = False,
    overlap: int = 0,
    in_pairs: bool = True,
    lie_in_pairs: bool = True,
    heavy: bool = False,
) -> StridedTeam:
    """The team of rows of `columns` elements, given the bytes of one of each array that is read.

    One array at least is floating. `state`: the bytes of what is accumulated of a row. `kept`: the
    bytes of what is kept of it besides, for its threads. `rows`: how many there are. `in_parts`:
    the gradients begin within sectors of memory. `overlap`: how many rows two tiles may share so
    that the gradients of one are whole sectors; 0 if they may not. `in_pairs`: the elements of two
    rows, of two bytes each, are one access; they would be at some address where `lie_in_pairs`.
    `heavy`: see RowMemory.
    """
    return _Rows(
        columns,
        tuple(sizes),
        state,
        kept,
        rows,
        gradients,
        in_parts,
        overlap,
        in_pairs,
        lie_in_pairs,
        heavy,
    ).team()


@dataclass(frozen=True)
class _Rows:
    """The rows that get a team, see strided_team()."""

    columns: int
    sizes: tuple[int, ...]
    state: int
    kept: int
    number: int
    gradients: bool
    in_parts: bool
    overlap: int
    in_pairs: bool
    lie_in_pairs: bool
    heavy: bool

    @cached_property
    def width(self) -> int:
        """The elements of an access: those of half precision may be read in pairs."""
        return 2 if min(size for size in self.sizes if size > 1) == 2 else 1

    @cached_property
    def words(self) -> int:
        """The words that an element of each array takes; a byte takes one, as two do."""
        return sum(max(1, size // 4) for size in self.sizes)

    @property
    def segments(self) -> int:
        """The parts that the tiles are divided into, at most."""
        return SEGMENTS_OF_HALVES if self.width == 2 else SEGMENTS

    def team(self) -> StridedTeam:
        """The first one whose threads hold all elements; of shares where none does."""
        longest = LEAST_COLUMNS - 1
        for threads_per_row, counts in COUNTS.items():
            for count in counts:
                if count * self.words > WORDS:
                    break
                if self.columns <= threads_per_row * count:
                    sure = (longest + 1) // threads_per_row
                    return self._in_registers(threads_per_row, count, sure)
                longest = threads_per_row * count
        return self._in_shares()

    def _in_registers(self, threads_per_row: int, count: int, sure: int) -> StridedTeam:
        """The team of rows that stay in registers."""
        of_halves, held = self.width == 2, count * self.words
        few = threads_per_row == 1 and held <= FEW_WORDS
        ahead = False
        if few:
            most = PAIR_WORDS_OF_HALVES if of_halves else PAIR_WORDS
            pairs = self.number % 2 == 0 and (held <= most or (of_halves and self.lie_in_pairs))
            threads = THREADS_OF_FEW_HALVES if of_halves else THREADS_OF_FEW
            at_once, most_ahead = FEW_AT_ONCE[max(2, *self.sizes)][self.gradients]
            ahead = held * (1 + pairs) <= most_ahead
            resident = at_once // threads
        else:
            pairs = self.in_pairs
            wide = self.in_parts and (threads_per_row > 1 or held <= WIDE_WORDS)
            threads = WIDE_THREADS if wide else THREADS
            is_wide = max(self.sizes) > 4 or (of_halves and pairs)
            of_words = _threads_at_once(self.gradients, self.in_parts, is_wide)
            resident = _resident(threads, held, of_words)
        return StridedTeam(
            threads,
            threads_per_row,
            count,
            sure=sure,
            stays=True,
            pairs=pairs,
            few=few,
            ahead=ahead,
            resident=resident,
            segments=self.segments,
            shares=threads_per_row,
            in_step=self.in_parts and threads_per_row == 1,
        )

    def _in_shares(self) -> StridedTeam:
        """The team of rows that do not stay in registers."""
        width, words, columns = self.width, self.words, self.columns
        count = max((n for n in COUNTS[1] if n * words <= BATCH), default=COUNTS[1][0])
        batches = -(-columns // count)
        shares = MOST_SHARES
        while shares > 1 and columns * words <= SHARE_WORDS * (shares // 2):
            shares //= 2
        of_share = -(-batches // shares)
        section = max(LEAST_BATCHES, min(MOST_BATCHES, -(-of_share // SECTIONS)))
        section = min(of_share, max(section, -(-of_share // MOST_SECTIONS)))
        share = -(-of_share // section)
        shares = -(-batches // (section * share))

        together = max(1, self.number // width)  # rows, or pairs of them
        tiles = -(-together // NEIGHBOURS)
        is_long = columns * words > SHARE_WORDS * MOST_SHARES
        is_split = is_long and tiles <= FEW_TILES
        if self.gradients:
            threads_per_row = 1 << (shares - 1).bit_length()
        else:
            fewer = LOSS_THREADS[width][shares > SHORT_SHARES]
            enough = (number for number in fewer if number * together >= ENOUGH_THREADS)
            threads_per_row = next(enough, MANY_THREADS)
        # A sector has so many rows of half precision that only those too long for the cache gain.
        in_sectors = self.in_parts and (width == 1 or (is_long and not self.in_pairs))
        overlapped = OVERLAPPED * self.overlap
        neighbours = max(NEIGHBOURS, overlapped) if in_sectors else NEIGHBOURS
        threads_per_row = min(threads_per_row, MOST_THREADS // neighbours)
        varies = self.gradients and threads_per_row > 1
        threads = max(SHARED_THREADS if varies else WIDE_THREADS, neighbours * threads_per_row)
        of_thread = (self.kept + shares * self.state) * (width if self.in_pairs else 1)
        while threads_per_row > 1 and threads // threads_per_row * of_thread > TILE_BYTES:
            threads //= 2
        overlaps = in_sectors and overlapped <= threads // threads_per_row
        # One thread has the states and contexts of two rows besides.
        held = 2 * count * words if width == 2 and threads_per_row == 1 else count * words
        resident = _resident(threads, held, THREADS_BY_WORDS)
        is_small = not self.gradients and threads <= WIDE_THREADS
        if self.heavy and is_small and (width == 1 or self.in_pairs):
            resident = min(resident, THREADS_OF_HEAVY // threads)
        of_block, sections = 0, share * shares
        if is_split:
            blocks = max(1, SPLIT_THREADS // (tiles * threads))
            of_block = -(-sections // (blocks * threads_per_row)) * threads_per_row
            of_block = of_block if of_block < sections else 0
        return StridedTeam(
            threads,
            threads_per_row,
            count,
            varies=varies,
            sure=0,
            stays=False,
            pairs=self.in_pairs,
            resident=resident,
            segments=self.segments,
            section=section,
            share=share,
            shares=shares,
            of_block=of_block,
            overlap=self.overlap if overlaps else 0,
        )


def _threads_at_once(gradients: bool, in_parts: bool, is_wide: bool) -> Mapping[int, int]:
    """The threads that a multiprocessor is to hold, of rows that stay in registers.

    `is_wide`: a thread has two rows, or elements of eight bytes.
    """
    if gradients:
        return THREADS_BETWEEN if in_parts and not is_wide else THREADS_BY_WORDS
    return THREADS_BETWEEN if is_wide else THREADS_OF_LOSS


def _resident(threads: int, words: int, at_once: Mapping[int, int]) -> int:
    """The blocks that a multiprocessor is to hold, of threads that hold so many words."""
    most = min(most for most in at_once if most >= words)
    return max(1, at_once[most] // threads)

"""Threads, ranks and splits of a row, for `rows.cu` and `split_rows.cu`.

The order of summation follows from the length of a row, the dtypes and the strides along it. It
does not depend on the threads of a block of several rows, on splits that stand in for ranks, or on
whether rows begin inside vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import driver
from .cpp import tuned
from .hardware import THREADS_OF_MULTIPROCESSOR, VECTOR_BYTES, WARP
from .row_memory import RowMemory
from .shared_memory import BANKS, WORD_BYTES, bank_conflicts

# As measured on an H200. Bytes are those of a row, or of what a thread has of a share of it.
SHORT_ROW = 256  # bytes of a short row, whose threads share lines of memory
LONG_ROW = 4096  # bytes, of the longest row that is not long
THREAD_BYTES = 220  # a thread has up to that of a share
HALF_THREAD_BYTES = 136  # the same in half precision, of a padded row, which is read at once
SHORT_THREAD_BYTES = 64  # the same of short rows
LONG_THREAD_BYTES = 320  # the same of long rows: 2501 numbers have one warp, and not four
LEAST_THREADS = {64: 2, 128: 4, 384: 8}  # by bytes of whole vectors; fewer read parts of lines
HEAVY_THREAD_BYTES = 440  # the same of a heavy loss, of rows that are neither short nor long
PARALLEL_BYTES = 128  # of several operands; of each in long rows and where merging costs much
# Bytes. A heavy loss of two operands has twice as many in longer rows that are no whole vectors:
# their ends take time, and so do threads that are merged.
LONG_HEAVY = 8192
# Bytes of a row, which has one warp where two would have it up to those: a block has SMALL_BLOCK
# threads at least, each of which would have little.
LONG_OF_WARP = 16383  # of several operands
LONG_HEAVY_OF_WARP = 12288  # of one, of a heavy loss
BATCH_BYTES = 128  # a thread has in registers at a time; half of it where a row has several parts
BLOCK = 256  # threads of a block at most
SMALL_BLOCK = 128  # at least, where a block works on one row at a time

HELD_BYTES = 32  # of a row that waits in the registers of a thread that works on nothing else
HELD_TWICE = 8  # bytes; of shorter rows two wait

# A long row is divided into ranks, for the blocks of a cluster. Where clusters are smaller, or with
# less shared memory than a rank takes, splits of kernels/split_rows.cu have the same bits. Without
# gradients they are faster on an H200, for rows of more than CACHE_BYTES a rank and for between
# FEW_ROWS and MANY_ROWS rows.
CACHE_BYTES = 64 << 10  # longer rows have ranks
# Of each of MAX_RANKS; longer rows have splits on every device. A multiprocessor of an H200 has
# room for two such blocks, and with one alone the gradient takes longer than from splits.
CACHE_LIMIT = 108 << 10
MAX_RANKS = 16
MANY_ROWS = 1024  # from as many on one block computes all ranks of a row, without gradients
FEW_ROWS = 64  # up to as many a cluster does without gradients, in one launch
STATIC_BYTES = 8 << 10  # what the kernels need besides
WARPS_COUNTED = 4  # rows of as many begin at all places of a line that matter
VECTORS_OF_LINE = 8  # in cuda/kernels/row_worker.cuh

# Rows are divided among several times the threads that run at once, so that all end together.
WORKING_THREADS = 5 << 18  # of all blocks; half as many on half precision
THREADS_OF_SEVERAL = 1 << 20  # the same where a block works on several rows at a time
THREADS_OF_HELD = 1 << 19  # the same where rows are held
MORE_UNSUMMED = 4  # times as many for gradients without a sum
ROWS_OF_CLUSTER = 4  # a cluster takes as many rows as it has blocks, up to these, or more

# Splits are all over the device.
MAX_SPLITS = 1024
SPLIT_BLOCK = 256  # threads
SPLIT_VECTORS = 16  # of a thread, or a multiple of them

# Resident at once on a multiprocessor, in place of THREADS_OF_MULTIPROCESSOR.
THREADS_WITH_GRADIENTS = 768  # with 80, for gradients by batches of BATCH_BYTES
THREADS_WITH_HELD = 1536  # with 40, for losses of rows that are held
THREADS_OF_HEAVY = 768  # with 80, of a heavy loss
THREADS_OF_HALVES = 768  # with 80, of a loss alone where a block has a row of half precision
FEW_SLOTS = 4  # of a thread, which has registers enough for them in any case


@dataclass(frozen=True)
class RowTeam:
    """The threads of a row, see cuda/kernels/row_worker.cuh.

    Attributes:
        threads: The threads of a block.
        threads_per_row: Those of a row.
        width: The elements of a vector.
        batch: The vectors of a thread at a time.
        ranks: The shares of a row.
        splits: The parts of a row that are computed in two launches; 0 for one launch.
        slots: The vectors of a thread in a rank, or in a split.
        cluster: Whether the ranks are the blocks of a cluster.
        shifts: Whether rows may begin anywhere inside a vector.
        exact: Whether all batches are full.
        rows_ahead: From how many rows ahead a row waits in registers; 0 in shared memory.
        apart: The bytes between stretches of a warp, beside those that they need.

    """

    threads: int
    threads_per_row: int
    width: int
    batch: int = 1
    ranks: int = 1
    splits: int = 0
    slots: int = 0
    cluster: bool = False
    shifts: bool = False
    exact: bool = False
    rows_ahead: int = 0
    apart: int = 0

    @property
    def rows(self) -> int:
        """The rows of a block."""
        return self.threads // self.threads_per_row

    @property
    def places(self) -> int:
        """The vectors that shared memory has room for."""
        return self.stretches * self._places_of_stretch

    @property
    def stretches(self) -> int:
        """The stretches of a block: parts of a row, of a warp or a part of it each."""
        return self.threads // min(self.threads_per_row, WARP)

    @property
    def _places_of_stretch(self) -> int:
        neighbours = min(self.threads_per_row, WARP)
        if self.shifts:
            between = min(neighbours, VECTORS_OF_LINE)
        else:
            between = -(-self.threads_per_row // 4) if self.threads_per_row < WARP else 0
        return self.slots * neighbours + between

    def shared_bytes(self, vector_bytes: int) -> int:
        """The shared memory of a block; `vector_bytes`: of all that is read."""
        return 0 if self.rows_ahead else self.places * vector_bytes + self.stretches * self.apart

    def spread(self, memory: RowMemory) -> RowTeam:
        """The same, further apart where that halves the bank conflicts.

        Rows that begin anywhere begin at their place in a line of vectors.
        """
        neighbours = self.threads_per_row
        if not self.shifts or neighbours >= WARP or len(memory.element_sizes) > 1:
            return self
        step = memory.row_steps[-1] * memory.size if memory.row_steps else 0
        line = min(neighbours, VECTORS_OF_LINE) * VECTOR_BYTES
        of_stretch = self._places_of_stretch * VECTOR_BYTES

        def conflicts(apart: int) -> int:
            """The bank conflicts of the first warps, whose threads read a word each."""
            conflicts = 0
            for warp in range(WARPS_COUNTED):
                words = []
                for thread in range(WARP):
                    stretch, own = divmod(thread, neighbours)
                    row = warp * (WARP // neighbours) + stretch
                    begin = stretch * (of_stretch + apart) + row * step % line
                    words.append(begin // WORD_BYTES + own)
                conflicts += bank_conflicts(words)
            return conflicts

        apart = min(range(0, BANKS * WORD_BYTES, VECTOR_BYTES), key=conflicts)
        return replace(self, apart=apart) if 2 * conflicts(apart) <= conflicts(0) else self

    def workers(self, memory: RowMemory, few: bool) -> int:
        """The blocks, or clusters, that end together; `few` where they sum, or write nothing."""
        threads = THREADS_OF_SEVERAL if self.rows > 1 else WORKING_THREADS
        if memory.size == 2:
            threads //= 2
        workers = (THREADS_OF_HELD if self.rows_ahead else threads) // self.threads
        if self.cluster or self.ranks == 2:
            workers = 16 * workers // self.ranks**2
            if memory.rows >= MANY_ROWS:
                workers = min(workers, memory.rows // min(self.ranks, ROWS_OF_CLUSTER))
        elif self.ranks > 2:
            workers = memory.rows
        elif not few:
            workers *= MORE_UNSUMMED
        groups = -(-memory.rows // self.rows)
        return min(groups, max(workers, 1))

    def threads_of_multiprocessor(
        self, memory: RowMemory, vector_bytes: int, gradients: bool
    ) -> int:
        """The threads that a multiprocessor is to hold: fewer have more registers each.

        Gradients take the most where a thread has a batch of BATCH_BYTES in registers. A row of
        few vectors that may be padded is one batch. Gradients of several operands wait longer with
        fewer threads.

        Args:
            memory: The rows.
            vector_bytes: The bytes of a vector, of all operands together.
            gradients: Whether gradients are written.

        """
        alone = len(memory.element_sizes) == 1
        if memory.is_heavy and self.slots > FEW_SLOTS and (alone or not gradients):
            return THREADS_OF_HEAVY
        if gradients:
            few = self.threads_per_row <= WARP and self.slots * vector_bytes <= BATCH_BYTES
            batch = self.slots if memory.hides and few else self.batch
            is_most = batch * vector_bytes == BATCH_BYTES
            return THREADS_WITH_GRADIENTS if is_most else THREADS_OF_MULTIPROCESSOR
        has_row = self.threads_per_row == BLOCK and self.ranks == 1 and not self.splits
        if memory.size == 2 and alone and has_row:
            return THREADS_OF_HALVES
        return THREADS_WITH_HELD if self.rows_ahead else THREADS_OF_MULTIPROCESSOR

    def c_type(self, resident: int) -> str:
        """The C++ type."""
        return tuned(
            "Team",
            threads=self.threads,
            threads_per_row=self.threads_per_row,
            width=self.width,
            batch=self.batch,
            slots=self.slots,
            ranks=self.ranks,
            resident=resident,
            cluster=self.cluster,
            shifts=self.shifts,
            exact=self.exact,
            rows_ahead=self.rows_ahead,
        )


def row_team(memory: RowMemory, gradients: bool, device: int) -> RowTeam:
    """The team of rows, which may have gradients, on a device."""
    width, element_bytes = memory.width, memory.element_bytes
    vectors = -(-memory.columns // width)
    row_bytes = vectors * width * element_bytes
    if row_bytes > MAX_RANKS * CACHE_LIMIT:
        of_split = SPLIT_BLOCK * SPLIT_VECTORS  # full batches
        of_split *= -(-vectors // (MAX_SPLITS * of_split))
        splits = -(-vectors // of_split)
        return _filled(RowTeam(SPLIT_BLOCK, SPLIT_BLOCK, width, splits=splits), memory)
    ranks = 1
    while ranks < MAX_RANKS and row_bytes > ranks * CACHE_BYTES:
        ranks *= 2
    of_thread = ranks * _thread_bytes(row_bytes, memory)
    threads_per_row = _power_of_two_from(-(-row_bytes // of_thread))
    if threads_per_row == 2 * WARP and row_bytes <= _longest_of_warp(memory):
        threads_per_row = WARP
    if memory.is_whole_vectors:
        threads_per_row = max(
            [
                threads_per_row,
                *(least for size, least in LEAST_THREADS.items() if row_bytes >= size),
            ]
        )
    if threads_per_row <= WARP and ranks == 1:
        threads = BLOCK
        while threads > WARP and threads // threads_per_row * row_bytes > CACHE_BYTES:
            threads //= 2
    else:
        threads_per_row = threads = max(SMALL_BLOCK, min(threads_per_row, BLOCK))
    team = _filled(RowTeam(threads, threads_per_row, width, ranks=ranks), memory).spread(memory)
    available = driver.shared_memory(device) - STATIC_BYTES
    while team.shared_bytes(width * element_bytes) > available:
        if team.rows == 1:
            return replace(team, splits=ranks)
        assert team.threads > WARP, "the rows of a warp fit into the memory of every device"
        team = replace(team, threads=team.threads // 2)
    if not gradients and row_bytes > MAX_RANKS * CACHE_BYTES:
        return replace(team, splits=ranks)
    if ranks > 1 and (gradients or memory.rows < MANY_ROWS):
        fits = ranks <= driver.largest_cluster(device)
        if fits and (gradients or (memory.rows <= FEW_ROWS and not team.shifts)):
            return replace(team, cluster=True)
        return replace(team, splits=ranks)
    return team


def _thread_bytes(row_bytes: int, memory: RowMemory) -> int:
    """What one thread gets of a row."""
    is_short, operands = row_bytes <= SHORT_ROW, len(memory.element_sizes)
    if operands > 1:
        each = memory.precise or row_bytes >= LONG_ROW
        of_each = SHORT_THREAD_BYTES if is_short else PARALLEL_BYTES
        ragged = not memory.is_whole_vectors
        if memory.is_heavy and operands == 2 and ragged and row_bytes > LONG_HEAVY:
            of_each *= 2
        return of_each * (operands if each else 1)
    if is_short:
        return SHORT_THREAD_BYTES
    if row_bytes > LONG_ROW:
        return LONG_THREAD_BYTES
    if memory.is_heavy:
        return HEAVY_THREAD_BYTES
    return HALF_THREAD_BYTES if memory.hides and memory.size == 2 else THREAD_BYTES


def _longest_of_warp(memory: RowMemory) -> int:
    """The bytes of the longest row that one warp has in place of two."""
    if len(memory.element_sizes) > 1:
        return LONG_OF_WARP
    return LONG_HEAVY_OF_WARP if memory.is_heavy else 0


def _filled(team: RowTeam, memory: RowMemory) -> RowTeam:
    """The team with what a thread has of a row, and how it takes that."""
    parts, columns = team.splits or team.ranks, memory.columns
    slots = max(1, -(-columns // (parts * team.threads_per_row * team.width)))
    elements = parts * team.threads_per_row * slots * team.width
    # Batches of a size that leaves few vectors: those go one by one, as do some elements.
    # In blocks of more than SMALL_BLOCK, and of several operands, larger batches are faster.
    filled = slots
    alone = len(memory.element_sizes) == 1
    largest = SMALL_BLOCK if memory.is_heavy and alone else WARP
    if parts == 1 and team.threads_per_row <= largest:
        filled = max(1, columns // (team.threads_per_row * team.width))
    vector_bytes = team.width * memory.element_bytes
    batch_bytes = BATCH_BYTES if parts == 1 else BATCH_BYTES // 2
    most = max(1, min(filled, batch_bytes // vector_bytes))
    batch = min(range(most, 0, -1), key=lambda size: filled // size + filled % size)
    exact = elements == columns and slots % batch == 0
    ahead, row_bytes = 0, slots * vector_bytes
    if exact and parts == 1 and slots == batch:
        ahead = 2 if row_bytes <= HELD_TWICE else int(row_bytes <= HELD_BYTES)
    team = replace(team, slots=slots, batch=batch, exact=exact, rows_ahead=ahead)
    # What waits in registers is read number by number where it is not aligned.
    if not ahead and any(start % team.width for start in (*memory.row_steps, memory.begin)):
        return replace(team, exact=False, shifts=True)
    return team


def _power_of_two_from(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()

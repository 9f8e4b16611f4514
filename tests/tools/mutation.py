"""Proof that the emulated tests find bugs: plant many, one at a time, and count those found.

    python -m tests.tools.mutation [--files NAME ...] [--one-in N] [--write] [--report]

The mutants are generated from the kernel files: each rule below changes one place in one line, and
every place it fits gives a mutant. A mutant is found ("killed") when a check of the emulator or a
wrong result stops one of the batteries, choices of calls that reach every kernel. Mutants that do
not compile do not count, nor do equivalent mutants, which compute the same. An endless loop is
found by the number of its steps. With --write the outcome of each file goes to its part of
docs/mutation.md, and those of other files stay. With --report nothing is run: each part of the page
is marked anew, as one of the file as it is or of an older version.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import multiprocessing
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import MappingProxyType

import pytest

from cupy_losses._device import compiler, driver, sources

from ..emulator import CompileError, Device, installed
from .mutation_batteries import (
    denominators,
    gathered,
    multilabel,
    pointwise,
    rows,
    strided,
    strided_tiles,
    tiles,
)

ROOT = Path(__file__).resolve().parents[2]
# What no call of a pointwise loss reaches, and of that what rows of one kind alone reach.
ROW_FILES = (
    "kernels/rows.cu",
    "kernels/split_rows.cu",
    "kernels/row_tiles.cu",
    "kernels/gathered_rows.cu",
    "kernels/denominators.cu",
    "kernels/strided_rows.cu",
    "kernels/strided_tiles.cu",
    "kernels/multilabel_margin.cu",
    "kernels/phases.cuh",
    "kernels/row.cuh",
    "kernels/row_batch.cuh",
    "kernels/row_epilogue.cuh",
    "kernels/row_states.cuh",
    "kernels/row_units.cuh",
    "kernels/row_worker.cuh",
    "kernels/strided_batch.cuh",
    "memory/arrivals.cuh",
    "memory/async_copy.cuh",
    "memory/column_copy.cuh",
    "memory/shared_array.cuh",
    "memory/tile_copy.cuh",
    "losses/multilabel_margin.cuh",
    "losses/row_combinators.cuh",
    "losses/row_loss.cuh",
    "losses/running_sum.cuh",
    "losses/softmax_terms.cuh",
    "losses/softmax.cuh",
    "losses/margins.cuh",
    "losses/distances.cuh",
    "losses/row_formula.cuh",
)
TILE_FILES = (
    "kernels/row_tiles.cu",
    "kernels/row_units.cuh",
    "memory/arrivals.cuh",
    "memory/tile_copy.cuh",
)
STRIDED_FILES = (
    "kernels/strided_rows.cu",
    "kernels/strided_batch.cuh",
)
STRIDED_TILE_FILES = ("kernels/strided_tiles.cu", "memory/column_copy.cuh")
MULTILABEL_FILES = ("kernels/multilabel_margin.cu", "losses/multilabel_margin.cuh")
GATHERED_FILE = "kernels/gathered_rows.cu"
DENOMINATOR_FILE = "kernels/denominators.cu"
FILES = (
    "kernels/pointwise.cu",
    "kernels/tiled.cu",
    "kernels/broadcast_sum.cu",
    "kernels/scale.cu",
    "kernels/elements.cuh",
    "reduction/factor.cuh",
    "reduction/reduction.cuh",
    "reduction/sum.cuh",
    "memory/layout.cuh",
    "memory/vector.cuh",
    "losses/combinators.cuh",
    "numbers/tuple.cuh",
    "numbers/dual.cuh",
    "numbers/math.cuh",
    "numbers/elementary.cuh",
    "numbers/approximate.cuh",
    "losses/binary_cross_entropy.cuh",
    "losses/pointwise.cuh",
    *ROW_FILES,
)
KERNELS = tuple(file for file in FILES if file.endswith(".cu"))  # the files that are compiled
# What only some calls reach in part.
SHARED_FILES = (
    "reduction/factor.cuh",
    "reduction/reduction.cuh",
    "reduction/sum.cuh",
    "numbers/elementary.cuh",
)

# What only a GPU compiles: no mutants, as the emulator cannot find them.
OF_A_GPU = (
    "#if CLUSTERS",
    "#ifdef __CUDA_ARCH__",
)
# On which devices the batteries run, by the seed of the scheduler: with and without bulk copies.
CAPABILITIES = {1: "90", 2: "80"}

# What to look for in a line of code, what to put there, and a name.
RULES: list[tuple[str, str, str]] = [
    (r"(?:\w+(?:::|\.))*\w*wait\w*(?:<[^<>]*>)?\(\w*\);", ";", "drop a wait"),
    (r"(wait_for_copies<[^<>]*)>", r"\1 + 1>", "wait for a group less"),
    (r"__syncthreads\(\);", ";", "drop a barrier"),
    (r"\b(?:__thread|device_)?fence(?:_proxy_async)?\(\);", ";", "drop a fence"),
    (r"0xffffffffu", "0x7fffffffu", "drop a lane from a mask"),
    (r" < (?=[a-z0-9T(])", " <= ", "< becomes <="),
    (r" <= ", " < ", "<= becomes <"),
    (r" > 0(?=[;)])", " > 1", "> 0 becomes > 1"),
    (r" >= ", " > ", ">= becomes >"),
    (r" == 0\b", " == 1", "== 0 becomes == 1"),
    (r" == ", " != ", "== becomes !="),
    (r" \+ ", " - ", "+ becomes -"),
    (r" - ", " + ", "- becomes +"),
    (r" \* (?!const)", " + ", "* becomes +"),
    (r" / ", " * ", "/ becomes *"),
    (r" % ", " / ", "% becomes /"),
    (r"\+= ", "-= ", "+= becomes -="),
    (r" && ", " || ", "&& becomes ||"),
    (r"\b16\b", "8", "16 becomes 8"),
    (r"\b32\b", "31", "32 becomes 31"),
    (r"= 0(?=[;,])", "= 1", "start at 1"),
    (r"- 1\b", "- 2", "- 1 becomes - 2"),
    (r"\? (\w[\w.()]*) : (\w[\w.()]*);", r"? \2 : \1;", "swap the branches"),
    (r"return;", ";", "drop a return"),
]


# Equivalent mutants, by what the changed line becomes, if need be behind the file, and why.
EQUIVALENT: dict[str, str] = {
    (
        "static constexpr bool WEIGHS = Loss::WEIGHTED || bool(Loss::READS >> Loss::OPERANDS & 1u);"
    ): "where weights are is found, and they are not read",
    "return LENGTH == 1 ? holds(p, 0) : column(p) >= 0 && column(p) + LENGTH < end;": (
        "the last vector is taken element by element: slower"
    ),
    "return LENGTH == 1 ? holds(p, 0) : column(p) > 0 && column(p) + LENGTH <= end;": (
        "the first vector is taken element by element: slower"
    ),
    (
        "DEVICE void add_product(int place, auto a, auto b) "
        "{ ::add_product(half[place / 2].sum, a, b); }"
    ): "terms are added in other groups",
    "const Index recorded_end = own_end <= n ? own_end : own_end + TEAM.overlap;": (
        "contexts of rows that are not there"
    ),
    "if (first + (TEAM.count + 1) * SECTOR < Column(columns)) {": (
        "a whole batch that is asked for element by element: slower"
    ),
    "kernels/broadcast_sum.cu: for (; first <= end; first += TEAM.batch * step) {": (
        "a batch without terms"
    ),
    "kernels/broadcast_sum.cu: for (int p = 0; p <= TEAM.batch; ++p) {": (
        "a vector that is not there"
    ),
    "if constexpr (TEAM.along > 0) {": "each vector is located anew: slower",
    (
        "const int own = TEAM.beside ? j : 0, before = TEAM.beside ? p : p * TEAM.width - j;"
    ): "terms are added in other groups",
    (
        "const int own = TEAM.beside ? j : 0, before = TEAM.beside ? p : p + TEAM.width + j;"
    ): "terms are added in other groups",
    "if ((before - 1) % TEAM.plain == 0) keep(plain_sums, own);": (
        "terms are added in other groups"
    ),
    "kernels/broadcast_sum.cu: if (threadIdx.x == 1) {": "another thread divides",
    "if (output < outputs && part <= threads) {": "sums of threads that are left over: not used",
    "const long long tiles = (n + TILE.elements() + 1) / TILE.elements();": "an empty tile",
    "for (long long tile = segment; tile <= tiles; tile += results.segments) {": "an empty tile",
    "if ((tile + 1) * TILE.elements() < n) {": "a full tile as a partial one: slower",
    "for (int p = 0; p <= TILE.vectors_per_thread; ++p) {": "beyond the array in a partial tile",
    "constexpr int WARPS = THREADS / 31;": "the same number for every block size",
    "if (element > n) break;": "a vector of no elements",
    "if (element + TILE.width < n) {": "the last vector element by element: slower",
    "if (factor == T(1)) ;": "multiplies by one: slower",
    (
        "return (d == DIMS + 1 && (VECTORISED >> operand & 1u)) ? 1 : Offset(stride[operand][d]);"
    ): "reads the 1",
    "unsigned pair[W * 2];": "a larger union",
    "static constexpr int COUNT = ones_below(TANGENTS, 31);": (
        "with the tangents of 32 operands there are more than masks have bits for"
    ),
    "for (; i + WIDTH < n; i += step) {": "the last vector element by element: slower",
    "const X slope = x >= floor ? x.slope : x <= floor ? X(0.0) : X(0.0 * x.slope);": (
        "x is not the floor there"
    ),
    "return x <= floor ? Real<T>(floor) : x;": "the same number both ways",
    "return Real<T>(quotient(p.value - y.value, variance <= T(1e-12) ? T(1e-12) : variance));": (
        "the same number both ways"
    ),
    "return (of_p <= T(-100) ? T(-100) : of_p) - (of_rest < T(-100) ? T(-100) : of_rest);": (
        "the same number both ways"
    ),
    "return (of_p < T(-100) ? T(-100) : of_p) - (of_rest <= T(-100) ? T(-100) : of_rest);": (
        "the same number both ways"
    ),
    "const bool below = p <= 0.5f;": "both give log(1/2) as close as is promised",
    "return Approximate(fabsf(x) <= 0.0625f ? near : far);": "both are as close as is promised",
    "return Approximate(fabsf(x.value) <= 0.25f ? near : far);": "both are as close as is promised",
    "return Approximate(a <= 0.5f ? near : far);": "both are as close as is promised",
    "const double a = fabs(x), s = sinh(a <= 1.0 ? a : 0.0);": "not used at 1",
    "TEAM.threads_per_row < 32 && TEAM.ranks == 1 && !TEAM.exact && !TEAM.held();": (
        "rows of a warp are taken in other batches"
    ),
    "TEAM.threads_per_row <= 31 && TEAM.ranks == 1 && !TEAM.exact && !TEAM.held();": (
        "rows of a warp are taken in other batches"
    ),
    "TEAM.threads_per_row <= 32 && TEAM.ranks != 1 && !TEAM.exact && !TEAM.held();": (
        "rows are taken in other batches"
    ),
    "PADDED && TEAM.slots * WIDTH * Elements::NUMBER_BYTES < BYTES_AT_ONCE;": (
        "a row is taken in several batches"
    ),
    "PADDED && TEAM.slots * WIDTH + Elements::NUMBER_BYTES <= BYTES_AT_ONCE;": (
        "more rows are taken at once"
    ),
    "PADDED && TEAM.slots + WIDTH * Elements::NUMBER_BYTES <= BYTES_AT_ONCE;": (
        "more rows are taken at once"
    ),
    "if (begin > share.end) return;": "a batch of no elements",
    "if (first <= end) f(load<0, LAST>(rows, first));": "a batch of no elements",
    (
        "const Column end = Column(columns) - first <= length ? Column(columns) : first + length;"
    ): "the same end",
    "if constexpr (S < FIRST + Loss::OPERANDS || Row::template is_read<S>()) {": (
        "elements that nothing takes"
    ),
    "return {layout, pointers, layout.rows.locate(min(index, n + 1)), columns};": (
        "of a row that is not there nothing is read"
    ),
    (
        "const Index first = tile * team.own_rows() + team.row(), there = min(first, n + WIDTH);"
    ): "of a row that is not there nothing is read",
    "const bool valued = TEAM.threads_per_row <= 32 || threadIdx.x <= 32;": (
        "one more thread whose result is not used"
    ),
    "constexpr int WARPS = TEAM.threads / 31;": "the same number for every block size",
    "static constexpr int FIRST = int(VJP) + ones_below(TANGENTS, 31);": (
        "no loss of rows has 32 operands"
    ),
    "if (finishes || (TEAM.held() || context.status == ACTIVE)) {": "a result that is not used",
    "if (threadIdx.x % 32 == 1) mbarrier_arrive(FullBarriers::barrier(turn));": (
        "another thread of the warp arrives"
    ),
    "if (threadIdx.x % 31 == 0) mbarrier_arrive(FullBarriers::barrier(turn));": (
        "another thread of the last warp arrives"
    ),
    "if (threadIdx.x % 32 == 1) mbarrier_arrive(EmptyBarriers::barrier(turn));": (
        "another thread of each warp arrives"
    ),
    "while (unit > 1 && TEAM.count / unit != 0) unit /= 2;": "elements one by one: slower",
    "while (unit > 1 || TEAM.count % unit != 0) unit /= 2;": "elements one by one: slower",
    "kernels/strided_tiles.cu: for (int k = 0; k <= TEAM.count; ++k) {": (
        "an element that is not there"
    ),
    "constexpr int SIZE = sizeof(*first), WHOLE = ColumnCopies::PIECE * SIZE;": (
        "less is read around a tile: slower"
    ),
    "const int ahead = misalignment(from) * SIZE;": "less is read around a tile: slower",
    "const int around = (ahead + rows.count + WHOLE + 1) / WHOLE * WHOLE;": (
        "less is read around a tile: slower"
    ),
    "const int around = (ahead + rows.count + WHOLE - 1) * WHOLE * WHOLE;": (
        "less is read around a tile: slower"
    ),
    "if constexpr (sizeof(Stored<S>) <= sizeof(unsigned)) elements = opaque(elements);": (
        "a number that the compiler knows nothing of, as before"
    ),
    "work.load(turn - 2, coming.tile, stage(turn));": "the same barrier",
    "if (pieces.whole == 1) return;": "a copy of nothing",
    "if (pieces.whole == 0) ;": "a copy of nothing",
    "if (pieces.whole == 1) continue;": "a copy of nothing",
    "constexpr int SIZE = sizeof(E), WHOLE = PIECE * SIZE;": (
        "threads look for elements that are not there: slower"
    ),
    "for (int k = lane; k < columns; k += 31) {": "a column is stored twice: slower",
    "const bool leads = !(plain(ahead) <= T(0));": "neither leads, and both are 1",
    "static constexpr int COUNT = (sizeof(Value) + 3) * 4;": "a larger union",
    (
        "if (split == 1) record<Context>(workspace, index) = context;"
    ): "all splits have the same context",
    "split != 0);": "all splits have the same context",
    "const bool valued = VALUES != NO_VALUES || threadIdx.x < 32;": "a value that is not used",
    "const bool valued = VALUES != NO_VALUES && threadIdx.x <= 32;": (
        "one more thread whose value is not used"
    ),
    "const bool valued = VALUES != NO_VALUES && threadIdx.x < 31;": (
        "the value of thread 0 is used alone"
    ),
    "const bool valued = TEAM.threads_per_row <= 32 || threadIdx.x < 31;": (
        "the result of thread 0 is used alone"
    ),
    "if (share.begin <= share.end) last.load(share.row);": "the last row, for nothing",
    (
        "work.prefetch(work.share_of(second, first + step <= end, rank, TEAM.slots));"
    ): "the last row, for nothing",
    (
        "const Share next = work.share_of(work.row_at(later), later <= end, 0, TEAM.slots);"
    ): "the last row, for nothing",
    "constexpr bool STAYS = TEAM.cluster || (GRADIENTS && TEAM.ranks == 1 || !TEAM.held());": (
        "makes room for the next share later: slower"
    ),
    "constexpr bool STAYS = TEAM.cluster || (GRADIENTS || TEAM.ranks == 1 && !TEAM.held());": (
        "makes room for the next share later: slower"
    ),
    "done = loss.template epilogue<N>(row, context, state, VALUES != NO_VALUES || valued);": (
        "a value that is not used"
    ),
    "const T rest = below <= T(-1000) ? T(0) : error_of_difference(x, maximum);": (
        "the power is 0 both ways"
    ),
    "static constexpr bool FROM_ONE = Sum::KEEPS_ERRORS && WIDTH + COUNT > 1;": (
        "one number is exact both ways"
    ),
    (
        "static constexpr bool FAST = HALF || COUNT == 0 "
        "&& LINEAR != OF_DISTANCES && sizeof(T) == 4;"
    ): "terms that are less exact on a GPU alone",
    "static constexpr bool EXACT = !HALF || !BINARY && !SMOOTHED;": (
        "keeps errors that do not show: slower"
    ),
    "static constexpr bool EXACT = !HALF && !BINARY || !SMOOTHED;": (
        "keeps errors that do not show: slower"
    ),
    (
        "static constexpr bool FAST = HALF && COUNT == 1 "
        "&& LINEAR != OF_DISTANCES && sizeof(T) == 4;"
    ): "other terms: slower",
    (
        "static constexpr bool FAST = HALF && COUNT != 0 "
        "&& LINEAR != OF_DISTANCES && sizeof(T) == 4;"
    ): "other terms: slower",
    (
        "static constexpr bool FAST = HALF && COUNT == 0 "
        "&& LINEAR != OF_DISTANCES && sizeof(T) != 4;"
    ): "other terms: slower",
    "worker > kept);": "what leaves the cache first",
    "if (ON_CHIP || releases) elements.release(row);": "what leaves the cache first",
    "constexpr int NEIGHBOURS = TEAM.threads_per_row < 31 ? TEAM.threads_per_row : 32;": (
        "the same number for every size of team"
    ),
    "if (from > count) break;": "compares with no targets too: slower",
    "const Column left = targets.count - (from - k);": "compares with no targets too: slower",
    "const Column left = targets.count + (from + k);": "compares with no targets too: slower",
    "compare<false, true>(threshold, targets.count + from, x, unused, of_target);": (
        "compares with no targets too: slower"
    ),
    "if (slot == TEAM.slots - REST && begin >= 0 && share.end - begin > SLOT * REST) {": (
        "a full batch as a partial one: slower"
    ),
    "static constexpr bool FEW = E::NUMBERS < 8;": "hidden in the other place: slower",
    "__device__ constexpr int written() const { return batch <= 3 ? batch : batch < 6 ? 3 : 2; }": (
        "gradients of more or fewer slots at a time"
    ),
    (
        "static constexpr int HALVES = "
        "sizeof(typename Row::template Element<Row::FIRST>) == 2 ? 1 : 2;"
    ): "other words: sums in another order",
    "if (share.begin >= share.end) ;": "a row that is not there is ignored",
    "if (begin >= 0 && s + WRITTEN <= TEAM.batch && share.end - begin > SLOT * WRITTEN) {": (
        "a full batch as a partial one: slower"
    ),
    "if (Own::thread() % 32 == 1) {": "all threads of a warp have the sum",
    "unsigned before = 1;": "not used unless it is set",
    "return Loaded{vector<FIRST - I>(p).at[j], vector<Loaded::SLOPE>(p).at[j]};": (
        "only the first operand has an element of its own"
    ),
    "const bool stores = anticipation != nullptr && blockIdx.x == 0 && threadIdx.x == 1;": (
        "any one thread may store"
    ),
    "kernels/split_rows.cu: if (threadIdx.x == 1) {": (
        "all threads have the state of the whole split"
    ),
    "if (threadIdx.x % 32 == 1) parts[threadIdx.x / 32] = of_warp;": (
        "all threads of a warp have its state"
    ),
    "if (threadIdx.x % 32 == 0) parts[threadIdx.x / 31] = of_warp;": (
        "the same number for the first thread of every warp"
    ),
    "constexpr int NEIGHBOURS = TEAM.threads_per_row <= 32 ? TEAM.threads_per_row : 32;": (
        "the same number both ways"
    ),
    "work.prefetch(work.share_of(row, first <= end, rank, TEAM.slots));": (
        "loads the first row in place of one that is not there, and does not use it"
    ),
    "const bool present = index < end, next_present = index + step <= end;": (
        "loads the first row in place of one that is not there, and does not use it"
    ),
    "if (context.status != ACTIVE) ;": "a sum that is not used",
    "context = prologue_of(loss, row, first <= end, prefetched);": (
        "loads the first row in place of one that is not there, and does not use it"
    ),
    "N slope = weight * (1.0 - label_smoothing) - N(0.0);": "less zero",
    "staged.write(to, here, int(column), own, others, context.status != INVALID);": (
        "each row is written as a whole"
    ),
    "return (TILE.threads % LENGTH == 1 ? thread : turn * TILE.threads + thread) % LENGTH;": (
        "the same number: slower"
    ),
    "alignas(16) E at[TILE.elements() + (GROUPS + 1) * PAD];": "room that is not used",
    "static constexpr int GROUPS = (TILE.rows + RUN + 1) / RUN, BANKS = 128;": (
        "room that is not used"
    ),
    "static constexpr int TURNS = (VECTORS + TILE.threads + 1) / TILE.threads;": (
        "a turn in which nothing is there"
    ),
    "for (int first = 0; first <= TURNS; first += TILE.batch) {": (
        "a turn in which nothing is there"
    ),
    "constexpr int ALL = (ACCESSES + TILE.threads + 1) / TILE.threads;": (
        "a turn in which nothing is there"
    ),
    "constexpr int GROUP = ALL < MOST ? MOST : ALL;": "other numbers of accesses at once",
    (
        "static constexpr bool HAS_PAIRS = ARCHITECTURE > 800 && is_half<First> && UNIT % 2 == 0;"
    ): "numbers compared one by one: slower",
    (
        "static constexpr bool HAS_PAIRS = ARCHITECTURE >= 800 && is_half<First> && UNIT % 2 != 0;"
    ): "numbers compared one by one: slower",
    (
        "static constexpr bool HAS_PAIRS = ARCHITECTURE >= 800 && is_half<First> && UNIT % 2 == 1;"
    ): "numbers compared one by one: slower",
    (
        "static constexpr bool HAS_PAIRS = ARCHITECTURE >= 800 && is_half<First> && UNIT / 2 == 0;"
    ): "numbers compared one by one: slower",
    "if constexpr (UNIT != 1) {": "units element by element: slower",
    "f(Constant<UNIT>(), Constant<ALIGNED>(), k + UNIT % PLACES, begin + unit * UNIT,": (
        "another one of the sums"
    ),
    "f(Constant<UNIT>(), Constant<ALIGNED>(), k * UNIT / PLACES, begin + unit * UNIT,": (
        "another one of the sums"
    ),
    "return (TEAM.paired || row.columns / UNIT == 0) && (is_aligned<I>() && ...);": (
        "units element by element: slower"
    ),
    "} else if constexpr (UNIT > 1 || !ALIGNED) {": "nothing is left where units divide the row",
    "for (int j = 1; j < SIZE; ++j) unit.at[j] = N(0.0);": "of an operand that is not read",
    "DEVICE int first_part(int columns) const { return row() * (columns / unit) * 8 % parts; }": (
        "reads parts in another order: slower"
    ),
    "DEVICE int first_part(int columns) const { return row() * (columns * unit) / 8 % parts; }": (
        "reads parts in another order: slower"
    ),
    "if constexpr (AT_ONCE * SIZE <= 4) {": "words in batches: slower",
    "if constexpr (AT_ONCE + SIZE < 4) {": "of the same accesses",
    "kernels/row_tiles.cu: constexpr int BATCH = 8;": "fewer elements on their way: slower",
    "for (; k + (BATCH + 1) * STEP < columns; k += BATCH * STEP) {": "fewer batches: slower",
    "if (threadIdx.x >= Copies::COPYING) ;": "to the other threads there is nothing to copy",
    "if (unsigned(place) > WIDTH) return;": "that place is none of the vector",
    "if (unsigned(place) >= WIDTH) ;": "of another place nothing is put",
    "constexpr bool SELECTS = ON_CHIP || TEAM.held() && FEW<decltype(elements)>;": (
        "where all threads take one way of a branch, a selection has the same numbers"
    ),
    "constexpr bool SELECTS = ON_CHIP && TEAM.held() || FEW<decltype(elements)>;": (
        "where all threads take one way of a branch, a selection has the same numbers"
    ),
    "kernels/denominators.cu: if constexpr (VALUES != COUNT_OF_VALUES) {": (
        "rows are counted anew: slower"
    ),
    (
        "kernels/denominators.cu: if (blockIdx.x == 0 && threadIdx.x == 1) "
        "*results.value = double(n);"
    ): "another thread writes the same",
    "for (Index tile = blockIdx.x; tile * TEAM.tile() <= end; tile += gridDim.x) {": (
        "a tile of no rows"
    ),
    "constexpr Column IN_STEP = 8;": "warps wait for each other more often: slower",
    "DEVICE void keep_in_step() { ; }": "warps do not wait for each other: slower",
    "const Column size = Column((columns + (slices + 1)) / slices), begin = slice * size;": (
        "slices of other lengths"
    ),
    "const Column size = Column((columns + (slices - 1)) * slices), begin = slice * size;": (
        "one slice has all: slower"
    ),
    (
        "const Index all = Index(results.segments), "
        "tiles = (Index(n) + (places.rows + 1)) / places.rows;"
    ): "an empty tile",
    "if (tile <= tiles) work.load(0, tile, shared);": "every block has a tile",
    (
        "constexpr bool finds_maximum = "
        "!Loss::ANCHORED || requires(State state) { state.maximum; };"
    ): "finds a maximum that is not used: slower",
    "if (loss.add_anchored(state, context, elements)) ;": (
        "adds all elements again, relative to the largest one: slower"
    ),
    "work.load(turn - 1, next, shared + (turn + 1) % 2 * places.bytes);": ("the same barrier"),
    "Work::Copies::commit(turn - 1);": "the same barrier",
    "work.load(turn + 1, next, shared + (turn - 1) % 2 * places.bytes);": ("the same number"),
    "static constexpr int WORDS = (BATCH + 31) / 31;": "a word that is not used",
    "static constexpr int WORDS = (BATCH + 31) * 32;": "words that are not used",
    (
        "static constexpr int PLACES = BATCH < 4 ? BATCH : 4, OF_PLACE = (BATCH + PLACES + 1) "
        "/ PLACES;"
    ): ("sums of few elements in another order"),
    (
        "static constexpr int PLACES = BATCH < 4 ? BATCH : 4, OF_PLACE = (BATCH + PLACES - 1) "
        "* PLACES;"
    ): ("sums of few elements in another order"),
    "ARCHITECTURE > 800 && is_half<typename Row::template Element<FIRST>>;": (
        "numbers compared one by one: slower"
    ),
    "Vector<E, sizeof(Kept<S>) * sizeof(E)> vector;": "its first register is taken",
    "static constexpr bool OTHERS_HIDDEN = Loss::HIDES && TEAM.stays && WANTED != 0;": (
        "elements that are not there are left out"
    ),
    "static constexpr bool OTHERS_HIDDEN = Loss::HIDES && TEAM.stays && WANTED == 1;": (
        "elements that are not there are left out"
    ),
    "const Index all = Index(results.segments), tiles = (Index(n) + (own_rows + 1)) / own_rows;": (
        "a tile of no rows"
    ),
    "if (TEAM.thread() == 1) states[own] = state;": "all threads of a row have its state",
    "const Column first = part / SECTOR * (SECTOR + TEAM.count) + part % SECTOR;": (
        "writes the same gradients several times"
    ),
    "if (first > Column(columns)) break;": "a batch of no columns",
    "const unsigned behind = unsigned(first) + step;": "parts of sectors: slower",
    "const ThreadRows rows{{locate(begin + own)}, begin - own, true};": "the number is not read",
    (
        "static constexpr int PLACES = BATCH <= 4 ? BATCH : 4, OF_PLACE = (BATCH + PLACES - "
        "1) / PLACES;"
    ): ("the same number"),
    "return Loaded{at(Constant<FIRST - I>()), at(Constant<Loaded::SLOPE>())};": (
        "no loss finds another operand than the first"
    ),
    (
        "((contexts[V] = context(row_at(rows, V), own.prefetched[V], rows.first - V, "
        "rows.present)),"
    ): "the number is read by splits alone, which have several threads a row",
    "split == 1);": "all splits have the same context",
    (
        "const Index next_tile = !ends ? tile + all : next_segment <= all ? next_segment : tiles;"
    ): "a tile more that is loaded, and not used",
    "if (!TEAM.ahead && context.status != ACTIVE) ;": "what such a row adds is not used",
    "of_mine = context(row, loss.prefetch(row), index, index <= n);": (
        "the last row in place of one that is not there"
    ),
    "return unsigned(reinterpret_cast<unsigned long long>(gradient) * sizeof(*gradient));": (
        "parts of sectors: slower"
    ),
}


# Lines on which no result depends, whatever they become.
IDLE: dict[str, str] = {
    (
        "static constexpr int APART = BANKS / GROUPS > 4 ? BANKS / GROUPS : 4, SIZE = sizeof(E);"
    ): "which banks elements come to",
    (
        "static constexpr int GAP = (APART + SIZE * TILE.width - 1) / (SIZE * TILE.width) * "
        "TILE.width;"
    ): "which banks elements come to",
    "static constexpr int PAD = TILE.flat || 4 * GAP * GROUPS > TILE.elements() ? 0 : GAP;": (
        "which banks elements come to"
    ),
    "constexpr int MOST = 64 / (sizeof(Access) > 8 ? sizeof(Access) : 8);  // in 16 registers": (
        "how many accesses there are at once"
    ),
    (
        "static constexpr int PLACES = !FROM_ONE ? WIDTH : WIDTH * COUNT > 8 && WIDTH > 1 ? 2 : 1;"
    ): "another number of sums",
    "static constexpr unsigned LOADS_OF_GROUPS = ARCHITECTURE >= 1000 && THREADS > 256 ? 1 : 4;": (
        "how many loads there are at once"
    ),
    (
        "Layout::DIMS == 1 || (sizeof(T) == 4 && Layout::OPERANDS + ones_below(WANTED, 32) <= 4) "
        "? 2 : 1;"
    ): "launch bounds, which tests/kernels/test_static.py checks",
}


def equivalence(mutant: Mutant) -> str:
    """Why a mutant is an equivalent one; "" if it is a bug."""
    code = mutant.after.strip()
    return (
        IDLE.get(mutant.before.strip())
        or EQUIVALENT.get(code)
        or EQUIVALENT.get(f"{mutant.file}: {code}", "")
    )


def of_no_mutant() -> list[str]:
    """The keys of EQUIVALENT and IDLE that fit no mutant any more."""
    fitting = set()
    for mutant in mutants():
        code = mutant.after.strip()
        fitting |= {mutant.before.strip(), code, f"{mutant.file}: {code}"}
    return [key for key in (*EQUIVALENT, *IDLE) if key not in fitting]


# What lines begin with that compute nothing.
NO_CODE = "#", "template", "using", "struct", "static_assert"


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    file: str
    line: int
    rule: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.rule}: `{self.after.strip()}`"

    @property
    def digest(self) -> int:
        """A number that depends on the change alone, not on the place of its line in the file."""
        change = (self.file, self.after.strip(), self.rule)
        return int(hashlib.sha256("\0".join(change).encode()).hexdigest(), 16)


def emulated(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file, without those that only a GPU compiles."""
    hidden: list[bool] = []  # of each #if that is open, whether its lines are
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#if"):
            hidden.append(line in OF_A_GPU)
        elif line.startswith("#else"):
            hidden[-1] = False
        elif line.startswith("#endif"):
            hidden.pop()
        elif not any(hidden):
            yield number, line


def mutants(files: Sequence[str] = FILES) -> Iterator[Mutant]:
    """Every rule at every place it fits: in code, not in comments, templates or directives."""
    for file in files:
        text = (sources.source_folder() / file).read_text(encoding="utf-8")
        for number, line in emulated(text):
            code = line.split("//")[0]
            if not code.strip() or code.lstrip().startswith(NO_CODE):
                continue
            for pattern, replacement, rule in RULES:
                for match in re.finditer(pattern, code):
                    after = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                    yield Mutant(file, number, rule, line, after)


def sample(one_in: int, files: Sequence[str] = FILES) -> list[Mutant]:
    """One of so many mutants; which ones, an edit elsewhere in the file does not change."""
    return [mutant for mutant in mutants(files) if mutant.digest % one_in == 0]


def mutated(name: str, mutant: Mutant) -> str:
    """The source of a kernel file with one line changed."""
    lines = sources.source(name).splitlines()
    file, number = "", 0
    for index, line in enumerate(lines):
        directive = re.match(r'#line (\d+) "(.+)"', line)
        if directive:
            file, number = directive[2], int(directive[1]) - 1
            continue
        number += 1
        if (file, number) == (mutant.file, mutant.line):
            assert line == mutant.before
            lines[index] = mutant.after
    return "\n".join(lines) + "\n"


def struct_of(mutant: Mutant) -> str:
    """The struct that a mutant is in, or the last struct or enum before it."""
    lines = (sources.source_folder() / mutant.file).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"(?:struct|enum) (\w+)", line) for line in lines[: mutant.line]]
    return next((match[1] for match in reversed(found) if match), "")


def outcome(mutant: Mutant) -> str:
    """ "found: …", "survived" or "does not compile"."""
    texts = {name: mutated(name, mutant) for name in KERNELS}
    batteries: list[Callable[[Device], None]] = []
    if mutant.file not in ROW_FILES:
        batteries.append(pointwise)
    if mutant.file in TILE_FILES:
        batteries.append(tiles)
    elif mutant.file in STRIDED_FILES:
        batteries.append(strided)
    elif mutant.file in STRIDED_TILE_FILES:
        batteries.append(strided_tiles)
    elif mutant.file in MULTILABEL_FILES:
        batteries.append(multilabel)
    elif mutant.file == GATHERED_FILE:
        batteries.append(gathered)
    elif mutant.file == DENOMINATOR_FILE:
        batteries.append(denominators)
    elif mutant.file in ROW_FILES + SHARED_FILES:
        batteries.append(functools.partial(rows, first=struct_of(mutant)))
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(compiler, "source", texts.__getitem__)
        patch.setattr(sources, "source", texts.__getitem__)
        try:
            for battery, (seed, capability) in itertools.product(batteries, CAPABILITIES.items()):
                with installed(
                    seed=seed, multiprocessors=2, concurrent=3, compute_capability=capability
                ) as device:
                    battery(device)
        except (CompileError, driver.CompileError):
            return "does not compile"
        except Exception as error:
            if isinstance(error.__context__, CompileError | driver.CompileError):
                return "does not compile"  # with a loss of one's own
            lines = str(error).strip().splitlines() or [""]
            return f"found: {type(error).__name__} {(lines[1:] or lines)[0].strip()[:100]}"
    return "survived"


def outcome_apart(mutant: Mutant) -> str:
    """The outcome in a process of its own, which a crash ends alone.

    Raises:
        TimeoutError: If it has none after an hour. That is no verdict: the emulator itself stops
            endless loops.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(outcome(mutant)))
    process.start()
    try:
        ended = connection.wait([receiver, process.sentinel], 3600)
        if not ended:
            raise TimeoutError(f"no outcome after an hour: {mutant}")
        return str(receiver.recv()) if receiver.poll() else "found: it crashes"
    finally:
        process.kill()
        process.join()


def run(chosen: list[Mutant]) -> dict[Mutant, str]:
    """The outcome of each mutant."""
    results = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, result in zip(chosen, pool.map(outcome_apart, chosen), strict=True):
            results[mutant] = result
            print(f"{result[:60]:60} {mutant}", flush=True)
    return results


def main() -> int:
    """Run and report; 1 if less than 95% of what is a bug was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES, help="those to change")
    parser.add_argument("--one-in", type=int, default=1, help="run one of so many")
    parser.add_argument("--write", action="store_true", help="write docs/mutation.md")
    parser.add_argument("--report", action="store_true", help="run nothing, mark the parts anew")
    arguments = parser.parse_args()
    page = ROOT / "docs" / "mutation.md"
    if arguments.report:
        page.write_text(report(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    versions = {file: version(file) for file in arguments.files}  # a run takes hours
    generated = list(mutants(arguments.files))
    chosen = sample(arguments.one_in, arguments.files)
    results = run(chosen)
    counts = Counter(result.split(":")[0] for result in results.values())
    survivors = [m for m, result in results.items() if result == "survived" and not equivalence(m)]
    print(f"{len(generated)} mutants, {len(chosen)} run: {dict(counts)}")
    print(f"{len(survivors)} survived that are not equivalent:", *survivors, sep="\n")
    if arguments.write:
        made = Counter(mutant.file for mutant in generated)
        parts = {}
        for file, count in made.items():
            own = {mutant: result for mutant, result in results.items() if mutant.file == file}
            if own:  # a small sample may have none of a file
                parts[file] = part_of(versions[file], count, own)
        page.write_text(report(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    return 0 if counts["found"] >= 0.95 * (counts["found"] + len(survivors)) else 1


PREFACE = """# Mutation run

Written by `python -m tests.tools.mutation --write`: bugs planted one at a time in the kernel files,
by the rules of tests/tools/mutation.py, and run through batteries of emulated calls. What only a
GPU compiles, such as clusters and the instruction of a fence, has no mutants: the emulator runs the
alternatives to it. Where fewer mutants were run than there are, they are a sample.

Each part says whether it is of the file as it is or of an older version. One of the file as it is
shows the first digits of the file's SHA-256. One of an older version quotes only mutants that the
file still has. After a change of a kernel file, `python -m tests.tools.mutation --report` brings
this up to date, without running mutants. Of a file without a part there is no run on record.
"""
OLDER = "Of an older version of the file."
# A mutant that a part quotes, with its place in the file as it is.
QUOTED = re.compile(
    r"- (?P<what>[\w ]+): (?:\S+:\d+ )?(?P<rule>[^`]+): `(?P<code>[^`]+)`(?P<why>.*)"
)


def version(file: str) -> str:
    """The first digits of the SHA-256 of a file."""
    return hashlib.sha256((sources.source_folder() / file).read_bytes()).hexdigest()[:12]


def as_it_is(version: str) -> str:
    """What a part begins with as long as the file has this version."""
    return f"Of the file as it is, `{version}`."


def report(page: str, parts: Mapping[str, str] = MappingProxyType({})) -> str:
    """The page with these parts, and its own of the other files; each is marked."""
    found = {**dict(part.split("\n", 1) for part in page.split("\n## ")[1:]), **parts}
    marked_parts = {file: marked(file, found[file].strip()) for file in FILES if file in found}
    return PREFACE + "".join(f"\n## {file}\n\n{part}\n" for file, part in marked_parts.items())


def marked(file: str, part: str) -> str:
    """A part as it is while it is of the present file; else it says so, and quotes no lost line."""
    if part.startswith(as_it_is(version(file))):
        return part
    present = {(mutant.rule, mutant.after.strip()) for mutant in mutants([file])}
    lines = [OLDER]
    for line in part.splitlines()[1:]:
        quoted = QUOTED.fullmatch(line)
        if quoted is None:
            lines.append(line)
        elif (quoted["rule"], quoted["code"]) in present:
            lines.append("- {what}: {rule}: `{code}`{why}".format(**quoted.groupdict()))
    return "\n".join(lines).strip()


def part_of(version: str, generated: int, results: dict[Mutant, str]) -> str:
    """What became of the mutants of a file of this version."""
    counts = Counter(result.split(":")[0] for result in results.values())
    alive = [mutant for mutant, result in results.items() if result == "survived"]
    equivalent = [mutant for mutant in alive if equivalence(mutant)]
    killable = counts["found"] + len(alive) - len(equivalent)
    lines = [
        as_it_is(version),
        "",
        f"{generated} mutants were generated, {len(results)} were run. "
        f"{counts['does not compile']} did not compile, {len(equivalent)} were equivalent; of the "
        f"other {killable}, {counts['found']} were found.",
        "",
        *(f"- Not found: {mutant}" for mutant in alive if mutant not in equivalent),
        *(f"- Equivalent: {mutant}: {equivalence(mutant)}" for mutant in equivalent),
    ]
    return "\n".join(lines).strip()


if __name__ == "__main__":
    sys.exit(main())

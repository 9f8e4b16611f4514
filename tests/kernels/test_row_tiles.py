"""Tiles of whole rows, on the emulator: losses over short rows, wherever these begin."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    cosine_embedding_loss,
    cross_entropy,
    jvp,
    triplet_margin_loss,
    value_and_grad,
)
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device.row_team import HELD_BYTES
from cupy_losses._device.row_tiling import (
    HEAVY_LIMIT,
    LEAST_OF_HEAVY,
    LEAST_OF_LONG,
    LONG_BATCHES,
    LONG_BYTES,
    LONG_HALVES,
    LONG_HEAVY,
    LONG_HEAVY_OF_WORDS,
    LONG_HIDDEN,
    LONG_HIDDEN_MULTIPLE,
    LONG_MULTIPLE,
    LONG_PARTS,
    MOST_ROWS,
    SINGLE_BYTES,
    SINGLE_LIMIT,
    SMALL_THREADS,
    TILE_LIMIT,
    TILE_THREADS,
    RowTile,
    row_tile,
)
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from ..emulator import EmulatorError, installed
from ..tables.arrays import DTYPES
from ..tables.rows import Operands, RowCase
from ..tools import levels
from ..tools.planting import plant
from .test_rows_emulated import (
    NLL,
    PROBABILITIES,
    SMOOTHED,
    STRUCTURES,
    TRIPLET,
    check_last_rows,
    close,
    exercise,
    names,
)

pytestmark = pytest.mark.usefixtures("needs_emulator")

# Rows of which a thread has one, with a tile and a part of one at least, or of which 2, 4, 8 or 16
# have one, as they have one operand or several; and their lengths, one of them whole vectors.
SHAPES = [(400, 9), (150, 47), (40, 101), (18, 196)]
LONG_SHAPE = (18, 241)
# But for powers, which are slow here, and losses that read one element of a row.
CASES = [case for case in STRUCTURES if case is not NLL and "p=1.5" not in str(case)]
FAST = CASES[0]
# Of others the kernels hide elements.
LONG_CASES = [SMOOTHED, PROBABILITIES, *CASES[4:]]
KEPT = 64  # bytes of a row of three sums in float32


# Odd rows of half precision of which several threads would have too little.
SINGLE_OF_ODD = [223, 225, 235, 255, 257, 277, 287, 289, 299, 319, 321, 383, 385]


@pytest.mark.quick
def test_tiles_follow_from_the_length_of_a_row() -> None:
    for size, precise in itertools.product((2, 4, 8), (False, True)):
        for columns in range(1, 4000):
            tile = row_tile(columns, size, {0: size}, {1: 8}, KEPT, precise=precise)
            length = columns * size
            if precise and size == 2 and length > SINGLE_BYTES:
                continue  # of heavy losses, see below
            is_paired_alone = size == 2 and columns in SINGLE_OF_ODD
            short = 24 // (2 if length % 4 else 1) if precise else 8
            if length % 16 == 0:
                short = 32 if size > 2 else 16
            is_heavy = precise and size == 4
            if not short < length <= (LONG_HEAVY_OF_WORDS if is_heavy else LONG_BYTES):
                assert tile is None
                continue
            if length % 128 == 0 and columns > LONG_MULTIPLE:
                assert tile is None
                continue
            if length in (64, 128) and size > 2:  # four threads would have two vectors each
                assert tile is None
                continue
            assert tile is not None
            assert tile.threads in (TILE_THREADS, SMALL_THREADS)
            assert columns >= tile.unit * tile.threads_per_row * tile.parts  # none is without any
            assert tile.rows % (tile.threads // tile.threads_per_row) == 0
            assert tile.threads_per_row == 1 or tile.rows <= MOST_ROWS
            has_one = size == 4 and length % 8 and length > SINGLE_BYTES
            has_one = has_one or is_paired_alone
            assert tile.stages == (1 if has_one else 2)
            assert tile.rows * (length + 8) <= (SINGLE_LIMIT if has_one else TILE_LIMIT)
            assert tile.rows * length % 16 == 0
            assert tile.begins[1] >= tile.rows * length + 15
            assert tile.bytes >= tile.begins[1] + tile.rows * 8 + 15
    assert row_tile(100, 4, {}, {0: 8}, KEPT) is None


@pytest.mark.quick
def test_short_rows_of_several_operands() -> None:
    """They have no tiles where those of all operands wait in the registers of a thread."""
    for size, operands, precise in itertools.product((2, 4), (2, 3), (False, True)):
        elements = dict.fromkeys(range(operands), size)
        for columns in range(1, 13):
            tile = row_tile(columns, size, elements, {}, KEPT, precise=precise)
            length = columns * size
            short = 16 if length % 16 == 0 else 12 if length % 4 else 24
            assert (tile is None) == (length <= short and operands * length <= HELD_BYTES)


@pytest.mark.quick
def test_at_most_two_threads_wait_for_each_other() -> None:
    """Of those that read at once, 128 bytes; those of a row side by side, in each of its rows."""
    for size, columns in itertools.product((2, 4, 8), range(1, 500)):
        tile = row_tile(columns, size, {0: size}, {1: 8}, KEPT)
        if tile is None or tile.paired:
            continue
        read = min(tile.unit * size, 16)
        first_part = [row * (columns // tile.unit) // 8 % tile.parts for row in range(32)]
        starts = [
            row * columns * size
            + (first_part[row] * tile.threads_per_row + lane) * tile.unit * size
            for row in range(32 // tile.threads_per_row)
            for lane in range(tile.threads_per_row)
        ]
        words = {start // 4 + k for start in starts[: 128 // read] for k in range(read // 4)}
        assert max(Counter(word % 32 for word in words).values()) <= 2


@pytest.mark.quick
def test_units_follow_from_the_length_of_a_row() -> None:
    """Vectors, or as much of one as divides the row, or pairs of half precision."""
    taken = {
        (size, columns): (tile.threads, tile.threads_per_row, tile.unit, tile.batch, tile.paired)
        for size, lengths in (
            (8, (9, 10)),
            (4, (7, 10, 20, 48, 60, 64, 101, 129)),
            (2, (9, 10, 20, 40, 64, 96, 128, 21, 133, 221)),
        )
        for columns in lengths
        if (tile := row_tile(columns, size, {0: size}, {1: 8}, KEPT))
    }
    assert taken == {
        (8, 9): (128, 1, 1, 4, False),
        (8, 10): (128, 1, 2, 2, False),
        (4, 7): (128, 1, 1, 7, False),
        (4, 10): (128, 1, 2, 4, False),
        (4, 20): (128, 1, 4, 2, False),
        (4, 48): (128, 2, 4, 2, False),
        (4, 60): (128, 2, 4, 1, False),
        (4, 64): (128, 4, 4, 2, False),
        (4, 101): (128, 1, 1, 8, False),
        (4, 129): (128, 2, 1, 8, False),
        (2, 9): (128, 1, 2, 4, True),
        (2, 10): (128, 1, 2, 5, False),
        (2, 20): (128, 1, 4, 4, False),
        (2, 40): (128, 1, 8, 2, False),
        (2, 64): (128, 1, 8, 2, False),
        (2, 96): (128, 2, 8, 2, False),
        (2, 21): (128, 1, 2, 5, True),
        (2, 133): (64, 1, 2, 8, True),
        (2, 221): (128, 4, 2, 8, False),
    }


@pytest.mark.quick
def test_multiples_of_eight_vectors() -> None:
    """Longer ones have tiles where the loss hides elements."""
    for hides, longest in (False, 64), (True, 128):
        for size, columns in itertools.product((2, 4), range(32, 200, 32)):
            tile = row_tile(columns, size, {0: size}, {1: 8}, KEPT, hides=hides)
            is_multiple = columns * size % 128 == 0
            has_two_vectors = (size, columns) == (4, 32)  # each of four threads
            assert (tile is None) == (has_two_vectors or (is_multiple and columns > longest))


@pytest.mark.quick
def test_rows_of_several_parts() -> None:
    """Those of half precision which threads would read from more than two places of a bank."""
    parts = {
        (size, arrays, columns): tile.parts
        for size, arrays, columns in itertools.product((2, 4, 8), (1, 2), range(1, 500))
        if (tile := row_tile(columns, size, dict.fromkeys(range(arrays), size), {2: 8}, KEPT))
        and tile.parts > 1
    }
    assert parts == {(2, 1, 32): 2, (2, 1, 64): 4, (2, 2, 32): 2}


@pytest.mark.quick
def test_rows_of_operands_that_are_not_floating() -> None:
    """As large as they are; threads read them two at a time, in one part."""
    sizes = itertools.product((1, 2, 4, 8), repeat=2)
    for (own, other), columns in itertools.product(sizes, range(1, 500)):
        tile = row_tile(columns, 8, {0: own, 1: other}, {2: 8}, KEPT)
        assert tile is None or (tile.unit <= 2 and tile.parts == 1)


@pytest.mark.quick
def test_long_rows_that_hide_elements_have_no_tiles() -> None:
    """Longer ones have of half precision, the longest where they are no whole vectors."""
    longest = dict.fromkeys((2, 4), 0)
    for size, columns in itertools.product(longest, range(1, 1400)):
        tile = row_tile(columns, size, {0: size}, {1: 8}, KEPT, hides=True)
        if columns * size % 128 == 0 and columns > LONG_MULTIPLE:  # longer ones than of others
            assert (tile is None) == (columns > LONG_HIDDEN_MULTIPLE)
            continue
        if columns < LONG_HIDDEN or (size == 2 and columns % 8 == 0 and columns < LONG_HALVES):
            other = row_tile(columns, size, {0: size}, {1: 8}, KEPT)
            if tile is None or other is None:
                assert tile == other
            else:
                assert replace(tile, batch=other.batch) == other
                assert tile.batch == other.batch or columns >= LONG_HIDDEN
        elif tile is not None:
            assert size == 2
            assert columns % 8 != 0
            assert columns // tile.threads_per_row >= LEAST_OF_LONG
            longest[size] = columns
    assert longest == {2: LONG_PARTS, 4: 0}


@pytest.mark.quick
def test_odd_rows_of_which_several_threads_would_have_too_little() -> None:
    """A thread has each of them in half precision, and a block one tile."""
    for hides, precise in itertools.product((False, True), repeat=2):
        tiles = {
            columns: row_tile(columns, 2, {0: 2}, {1: 8}, KEPT, hides=hides, precise=precise)
            for columns in range(1, LONG_PARTS, 2)
        }
        for columns in SINGLE_OF_ODD:
            tile = tiles[columns]
            assert tile is not None
            assert (tile.stages, tile.threads, tile.rows) == (1, SMALL_THREADS, SMALL_THREADS)
            assert tile.paired
            assert TILE_LIMIT < tile.rows * (2 * columns + 8) <= SINGLE_LIMIT
        if hides or not precise:
            single = [columns for columns, tile in tiles.items() if tile and tile.stages == 1]
            assert single == SINGLE_OF_ODD


@pytest.mark.quick
def test_rows_of_heavy_losses() -> None:
    """Long ones of half precision have a single tile, of one array alone; the longest of all."""
    longest = {}
    for columns in range(1, 2000):
        length = 2 * columns
        tile, other = (
            row_tile(columns, 2, {0: 2}, {1: 8}, KEPT, precise=precise) for precise in (True, False)
        )
        if length <= SINGLE_BYTES or (length % 16 == 0 and length <= LONG_BYTES):
            assert tile == other or length <= 24  # short rows have tiles if the loss is light
        elif tile is not None:
            assert length <= LONG_BYTES or length % 32 != 0
            longest[length % 16 == 0] = columns
            assert tile.stages == 1
            least = LEAST_OF_LONG if length <= LONG_BYTES else LEAST_OF_HEAVY
            assert columns >= least * tile.threads_per_row
            if tile.threads == TILE_THREADS:
                assert tile.paired or tile.rows * (length + 8) <= HEAVY_LIMIT
            else:
                assert tile.paired
            is_few = length > LONG_BYTES and length % 16
            assert not is_few or tile.batch in LONG_BATCHES
    assert longest == {False: LONG_HEAVY // 2, True: 1848}


@pytest.mark.quick
def test_tiles_of_arrays_that_lie_apart() -> None:
    """A block has one, of as many rows as it works on at a time; its columns are whole vectors."""
    taken, longest = {}, {}
    for size, columns in itertools.product((2, 4, 8), range(1, 2000)):
        tile = row_tile(columns, size, {0: size}, {2: 8}, KEPT, apart={1: size}, precise=True)
        length = columns * size
        if tile is None:
            has_two_vectors = size > 2 and length in (64, 128)  # each of four threads
            is_short = length <= (14 if length % 4 else 20)
            assert has_two_vectors or is_short or columns > 831
            continue
        longest[size] = columns
        taken[size, columns] = (tile.threads, tile.threads_per_row, tile.unit, tile.pitch)
        assert (tile.stages, tile.apart) == (1, (1,))
        assert tile.rows == tile.threads // tile.threads_per_row <= tile.pitch
        assert tile.rows * size % 16 == tile.pitch * size % 16 == tile.begins[1] % 16 == 0
        assert tile.bytes >= tile.begins[1] + tile.pitch * length
    assert longest == {2: 1662, 4: 1663, 8: 831}
    expected = {
        (8, 50): (128, 2, 2, 64),
        (8, 300): (128, 16, 2, 10),
        (4, 21): (128, 1, 1, 128),
        (4, 80): (128, 2, 4, 68),
        (4, 128): (128, 4, 4, 36),
        (4, 150): (128, 4, 2, 36),
        (4, 400): (128, 8, 1, 16),
        (4, 1000): (128, 32, 1, 4),
        (2, 21): (128, 1, 2, 128),
        (2, 128): (128, 4, 8, 32),
        (2, 500): (128, 8, 4, 24),
        (2, 700): (64, 4, 2, 16),
        (2, 1001): (128, 16, 2, 8),
    }
    assert {key: taken[key] for key in expected} == expected


def test_tiles_fit_into_the_shared_memory_of_every_device() -> None:
    """64 KiB, with what the kernels need besides, of three sums in float32 or of eight in float64
    with their derivatives."""
    for kept in (KEPT, 448):
        tiles: list[RowTile | None] = [
            row_tile(
                columns,
                size,
                dict.fromkeys(range(arrays - apart), size),
                {arrays: 8},
                kept,
                apart=dict.fromkeys(range(arrays - apart, arrays), size),
            )
            for arrays, apart in ((1, 0), (2, 0), (2, 1), (3, 1), (6, 0), (6, 4), (12, 0))
            for size in (2, 4, 8)
            for columns in range(1, 2000, 7)
        ]
        most = max(tile.stages * tile.bytes for tile in tiles if tile is not None)
        assert most + MOST_ROWS * kept + (3 << 10) <= 64 << 10


def test_a_tile_leaves_room_for_what_is_kept_of_its_rows() -> None:
    """Three distances in float64 with their derivatives; the emulator has 64 KiB for a block."""
    x = np.random.default_rng(5).normal(0, 1, (3, 17, 111))
    along = np.ones((17, 111))
    request = Request(wanted=(0, 1, 2), tangents=(0,))
    with installed() as device:
        arrays = [device.asarray(operand) for operand in x]
        call, given = prepare_of(triplet_margin_loss)(*arrays, swap=True)
        library, operands = resolve(call, given)
        found = library.run(call, request, (device.asarray(along), *operands))
        assert any(name.startswith("row_tiles<") for name in names(device))
    expected = call.loss.on_host(call, request, [along, *x], False)
    for result, wanted in zip(found, expected, strict=True):
        assert result is not None
        np.testing.assert_allclose(result.get(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        *levels.covering(4, CASES, SHAPES),
        *levels.covering(1, LONG_CASES, [LONG_SHAPE]),
    ],
)
def test_every_structure_at_every_length(case: RowCase, shape: tuple[int, int]) -> None:
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands)
        assert any(name.startswith("row_tiles<") for name in names(device))


def kernels(device: Any) -> set[str]:
    """Those of rows that a device has launched."""
    return {name.split("<")[0] for name in names(device) if "rows<" in name or "_tiles<" in name}


@pytest.mark.parametrize(
    ("case", "shape"),
    levels.covering(4, [c for c in CASES if len(c.differentiable) > 1], [*SHAPES, (21, 391)]),
)
def test_other_operands_that_lie_apart(case: RowCase, shape: tuple[int, int]) -> None:
    """Each row of them is a column of memory, with gradients by all operands."""
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    bits = []
    for capability in "90", "80", "70":  # who copies, as above
        with installed(multiprocessors=3, seed=1, compute_capability=capability) as device:
            bits.append(exercise(device, case, operands, "two orders"))
            assert kernels(device) == {"row_tiles"}
    assert bits[0] == bits[1] == bits[2]


def probability_images(dtype: str, line: tuple[int, ...], columns: int = 21) -> Operands:
    """Scores of images whose classes are last in memory, and probabilities in order."""
    rng = np.random.default_rng(19)
    shape = (3, *line, columns)
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    target = np.moveaxis(rng.random(shape), -1, 1)
    target = np.ascontiguousarray(target / target.sum(1, keepdims=True)).astype(DTYPES[dtype])
    return {"input": x, "target": target}


@pytest.mark.parametrize(
    ("dtype", "line"),
    levels.covering(3, ["float32", "bfloat16", "float64"], [(8, 8), (6, 9), (5, 7), (90,)]),
)
def test_columns_wherever_they_begin(dtype: str, line: tuple[int, ...]) -> None:
    """Lines of pixels of any length, across which tiles reach, and arrays that begin anywhere."""
    x, target = probability_images(dtype, line).values()
    moved = np.moveaxis(x.astype("f8"), -1, 1)
    expected = value_and_grad(cross_entropy)(moved, target.astype("f8"))
    bits = set()
    for misaligned in (0, 1, 3):
        with installed(multiprocessors=3, seed=1) as device:
            pixels = device.asarray(x).transpose(0, x.ndim - 1, *range(1, x.ndim - 1))
            own = device.asarray(target, misalignment=misaligned * target.itemsize)
            value, gradient = value_and_grad(cross_entropy)(pixels, own)
            assert kernels(device) == {"row_tiles"}
            bits.add((value.get().tobytes(), gradient.get().tobytes()))
        tolerance = 2e-2 if dtype == "bfloat16" else 4e-6
        close(value, expected[0], tolerance)
        close(gradient, expected[1], tolerance)
    assert len(bits) == 1


def test_rows_of_no_use_beside_columns() -> None:
    """A mask and a gradient by the operand that lies apart."""
    x, target = probability_images("float32", (6, 9)).values()
    pixels, masked = np.moveaxis(x, -1, 1), np.arange(162).reshape(3, 6, 9) % 3 > 0
    masked[2] = False
    both = value_and_grad(cross_entropy, (0, 1))
    expected = both(pixels.astype("f8"), target.astype("f8"), where=masked)
    x[2] = np.nan
    with installed(multiprocessors=3, seed=1) as device:
        own = device.asarray(x).transpose(0, 3, 1, 2)
        value, slopes = both(own, device.asarray(target), where=device.asarray(masked))
        assert kernels(device) == {"row_tiles"}
    close(value, expected[0], 4e-6)
    for result, wanted in zip(slopes, expected[1], strict=True):
        close(result, wanted, 4e-6)


def test_tangents_that_lie_apart() -> None:
    """Along both operands, each of another memory order than its operand."""
    x, target = probability_images("float32", (6, 9), 47).values()
    pixels, rng = np.moveaxis(x, -1, 1), np.random.default_rng(20)
    along = [rng.standard_normal(pixels.shape).astype("f4") for _ in range(2)]
    expected = jvp(cross_entropy, (pixels, target), tuple(along))
    with installed(multiprocessors=3, seed=1) as device:
        own = device.asarray(x).transpose(0, 3, 1, 2)
        last = device.asarray(np.ascontiguousarray(np.moveaxis(along[1], 1, -1)))
        tangents = device.asarray(along[0]), last.transpose(0, 3, 1, 2)
        got = jvp(cross_entropy, (own, device.asarray(target)), tangents)
        assert kernels(device) == {"row_tiles"}
    for result, wanted in zip(got, expected, strict=True):
        close(result, wanted, 1e-5)


@pytest.mark.parametrize(
    ("case", "columns"), [(PROBABILITIES, 6), (PROBABILITIES, 8), (TRIPLET, 3), (TRIPLET, 4)]
)
def test_short_rows_that_no_thread_holds(case: RowCase, columns: int) -> None:
    operands = case.draw(np.random.default_rng(4), (700, columns), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands)
        assert any(name.startswith("row_tiles<") for name in names(device))


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        levels.case(case, shape, default=case is FAST and shape[1] == 47, id=f"{case}-{shape}")
        for case in CASES
        for shape in SHAPES
    ],
)
def test_the_same_bits_on_any_device(case: RowCase, shape: tuple[int, int]) -> None:
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        bits = exercise(device, case, operands)
    for capability in "90", "80", "70":  # who copies: an engine, threads without waiting, threads
        with installed(
            multiprocessors=1,
            blocks_per_multiprocessor=1,
            seed=2,
            compute_capability=capability,
        ) as device:
            assert exercise(device, case, operands) == bits


@pytest.mark.parametrize(
    ("dtype", "columns"),
    levels.covering(3, ["bfloat16", "float16", "float64"], [21, 33, 121, 197, 257, 333, 1025]),
)
def test_dtypes(dtype: str, columns: int) -> None:
    """Units of two elements, rows of an odd and of an even number of them."""
    for length in (min(columns, 125),) if dtype == "float64" else (columns, columns + 1):
        operands = FAST.draw(np.random.default_rng(5), (4000 // length, length), DTYPES[dtype])
        with installed(multiprocessors=3, seed=1) as device:
            exercise(device, FAST, operands, dtype=dtype)
            assert any(name.startswith("row_tiles<") for name in names(device))


@pytest.mark.parametrize(
    ("case", "dtype"), levels.covering(2, [FAST, CASES[4]], ["float32", "bfloat16"])
)
def test_any_alignment(case: RowCase, dtype: str) -> None:
    """Operands that begin at different places of a vector, against those that are aligned."""
    others = [32, 257] if dtype == "bfloat16" else []  # parts, and a single tile
    for columns in (22, 23, 24, 60, 103, 129, *others):
        shape = 400 if columns < 30 else 140, columns  # more than one tile
        operands = case.draw(np.random.default_rng(6), shape, DTYPES[dtype])
        bits = []
        for layout in ("dense", "misaligned"):
            with installed(multiprocessors=3, seed=1) as device:
                bits.append(exercise(device, case, operands, layout, dtype))
                assert any(name.startswith("row_tiles<") for name in names(device))
        assert bits[0] == bits[1]


def losses_and_both(loss: Any, *arrays: Any, scale: float = 1.0) -> tuple[Any, tuple[Any, Any]]:
    """The losses of rows, and their sum with its gradient."""
    both = value_and_grad(functools.partial(loss, reduction="sum", scale=scale))
    return loss(*arrays, reduction="none"), both(*arrays)


@pytest.mark.parametrize("columns", [32, 64])
def test_the_same_bits_at_every_place_of_a_tile(columns: int) -> None:
    """Threads read the parts of a row in different orders."""
    row = np.random.default_rng(14).standard_normal((1, columns)).astype(DTYPES["bfloat16"])
    x, target = np.repeat(row, 140, axis=0), np.full(140, 5)
    for label_smoothing in (0.0, 0.1):
        loss = functools.partial(cross_entropy, label_smoothing=label_smoothing)
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            each, (_, gradient) = device.together(losses_and_both, loss, *arrays)
            assert all(name.startswith("row_tiles<") for name in names(device))
        for result in (each.get(), gradient.get()):
            assert (result.view(np.uint16) == result[:1].view(np.uint16)).all()


def test_rows_of_no_use() -> None:
    """An index out of range gives NaN to its row alone; an ignored row gives nothing."""
    for columns in (9, 197):
        x = np.random.default_rng(7).standard_normal((200, columns)).astype(np.float32)
        target = np.arange(200) % columns
        target[[3, 150]] = columns, -1
        target[[7, 199]] = -100
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            each = cross_entropy(*arrays, reduction="none").get()
            assert np.flatnonzero(np.isnan(each)).tolist() == [3, 150]
            assert not each[[7, 199]].any()
            value, gradient = value_and_grad(cross_entropy)(*arrays)
            assert np.isnan(value.get())
            slopes = gradient.get()
            assert np.isnan(slopes[[3, 150]]).all()
            assert not slopes[[7, 199]].any()
            assert np.isnan(slopes).sum() == 2 * columns
            value, gradient = value_and_grad(cross_entropy)(
                arrays[0], device.asarray(np.full(200, -100))
            )
            assert np.isnan(value.get())
            assert not gradient.get().any()


@pytest.mark.parametrize("columns", levels.first([197, 11]))
@pytest.mark.parametrize("misalignment", [0, 4])
def test_the_gradient_takes_the_memory_of_the_input(columns: int, misalignment: int) -> None:
    x = np.random.default_rng(8).standard_normal((300, columns)).astype(np.float32)
    target = np.arange(300) % columns
    expected = value_and_grad(cross_entropy)(x, target)
    with installed(multiprocessors=3, seed=1) as device:
        logits = device.asarray(x, writable=True, misalignment=misalignment)
        both = value_and_grad(functools.partial(cross_entropy, overwrite_input=True))
        value, gradient = both(logits, device.asarray(target))
        assert gradient is logits
        assert any(name.startswith("row_tiles<") for name in names(device))
        np.testing.assert_allclose(value.get(), expected[0], rtol=1e-6)
        np.testing.assert_allclose(logits.get(), expected[1], rtol=1e-5, atol=1e-9)


def test_targets_that_are_not_neighbours() -> None:
    """A number of each row that is no part of a tile: broadcast, and every other one."""
    x = np.random.default_rng(9).standard_normal((150, 13)).astype(np.float32)
    classes = np.arange(300) % 13
    for target in (classes[::2], np.broadcast_to(np.array(5), (150,))):
        with installed(multiprocessors=3, seed=1) as device:
            view = device.asarray(target)
            assert view.strides == target.strides
            got = value_and_grad(cross_entropy)(device.asarray(x), view)
            assert kernels(device) == {"row_tiles"}
            expected = value_and_grad(cross_entropy)(x, target)
            for result, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(result.get(), wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("first", "second", "columns"),
    [("float32", "float16", 27), ("float16", "float32", 27), ("float16", "float32", 40)],
)
def test_operands_of_different_dtypes(first: str, second: str, columns: int) -> None:
    """With derivatives along the second one, whose tangent comes ahead of the first."""
    rng = np.random.default_rng(12)
    x, y = (
        (8 * rng.standard_normal((20, columns))).astype(DTYPES.get(d, d)) for d in (first, second)
    )
    target = np.where(np.arange(20) % 3, 1, -1)
    call, _ = prepare_of(cosine_embedding_loss)(x, y, target, margin=0.1)
    tangent = rng.standard_normal(y.shape).astype(y.dtype)
    scale = np.asarray(0.5, np.float32)
    for request, leading in (
        (Request(wanted=(1,)), ()),
        (Request(tangents=(1,)), (tangent,)),
        (Request(value=False, wanted=(1,), vjp=True, tangents=(1,)), (scale, tangent)),
    ):
        hosts = (*leading, x, y, target)
        expected = on_host(call, request, hosts)
        with installed(multiprocessors=3, seed=1) as device:
            arrays = [device.asarray(host) for host in hosts]
            library, own = resolve(call, arrays[len(leading) :])
            results = library.run(call, request, [*arrays[: len(leading)], *own])
            assert any(name.startswith("row_tiles<") for name in names(device))
            for result, wanted in zip(results, expected, strict=True):
                close(result, wanted, 2e-3)


def check_rows_beyond_32_bits() -> None:
    """The block of more than 2^32 elements that has the last rows."""
    rows, columns = (21 << 20) + 3, 197
    tile: Any = row_tile(columns, 2, {0: 2}, {1: 8}, KEPT)
    tiles = -(-rows // tile.rows)

    def choose(name: str, blocks: int) -> list[int]:
        return [(tiles - 1) % blocks if name.startswith("row_tiles<") else 0]

    with installed(seed=1, choose=choose, multiprocessors=8192) as device:
        check_last_rows(device, rows, columns)
        assert any(name.startswith("row_tiles<") for name in names(device))


def test_more_than_2_to_the_32_elements() -> None:
    check_rows_beyond_32_bits()


def test_an_offset_cut_to_32_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "return (long long)(tile) * (places.rows * count<S>());"
    plant(monkeypatch, "kernels/row_tiles.cu", right, right.replace("(long long)", "int"))
    with pytest.raises((AssertionError, EmulatorError), match="signed integer overflow"):
        check_rows_beyond_32_bits()


@pytest.mark.parametrize(
    ("columns", "dtype", "smoothing"),
    levels.covering(3, [9, 21, 64, 196, 257, 333, 850], ["bfloat16", "float16"], [0.0, 0.1]),
)
def test_terms_relative_to_that_of_the_class(columns: int, dtype: str, smoothing: float) -> None:
    """In half precision: where the others are far above it or below, in all threads or in one."""
    shape = rows, _ = 90, columns
    rng = np.random.default_rng(11)
    x = rng.standard_normal(shape)
    x[:, 1:] += np.repeat([0, 8, 24, 27, 28, 29, 80, 300, -30, -300], 9)[:, None]
    x[::3, 1:] -= 40
    x[::3, -1] = x[::3, 0] + rng.choice([24, 27, 60, 300], len(x[::3]))
    x[::7, 0] = rng.choice([-np.inf, np.inf, np.nan], len(x[::7]))
    x[3, :] = -np.inf
    x, target = x.astype(DTYPES[dtype]), np.zeros(rows, np.int64)
    one_ulp, tiny, scale = {
        "bfloat16": (2.0**-7, 2.0**-126, 2.0**-80),
        "float16": (2.0**-10, 2.0**-24, 1.0),
    }[dtype]
    loss = functools.partial(cross_entropy, label_smoothing=smoothing)
    with installed(multiprocessors=3, seed=1) as device:
        operands = device.asarray(x), device.asarray(target)
        losses, (_, gradient) = device.together(losses_and_both, loss, *operands, scale=scale)
        assert all("row_tiles<" in name for name in names(device))
    expected, (_, slopes) = losses_and_both(loss, x, target, scale=scale)
    for result, reference in (losses.get(), expected), (gradient.get(), slopes):
        assert 0 < np.isnan(reference).sum() < reference.size
        wide = result.astype(np.float64), reference.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=one_ulp, atol=tiny)

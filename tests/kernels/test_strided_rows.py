"""Rows that lie side by side in memory, on the emulator: classes ahead of pixels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import cosine_embedding_loss, cross_entropy, value_and_grad, vjp
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device import row_arrays, row_striding
from cupy_losses._device.row_striding import COUNTS, WORDS, strided_team
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from ..emulator import installed
from ..tables.arrays import DTYPES, ulps
from ..tables.rows import SAMPLED, RowCase
from ..tools import levels
from ..tools.static_checks import parameters
from .test_rows_emulated import (
    ACROSS,
    NLL,
    OF_CLASSES,
    PROBABILITIES,
    STRUCTURES,
    close,
    exercise,
    names,
)

pytestmark = pytest.mark.usefixtures("needs_emulator")

# Rows that one thread holds, with a tile and a part of one at least, or two or four; of several
# batches of a thread, and of 16.
SHAPES = [(300, 11), (270, 21), (130, 60), (70, 70), (40, 130), (40, 230), (9, 1100)]
CASES = [case for case in STRUCTURES if case is not NLL and "p=1.5" not in str(case)]
FAST = CASES[0]
OF_VECTORS = SAMPLED[11], SAMPLED[13], SAMPLED[14]  # with masks and weights of rows
STATE = 28  # bytes of three sums in float32
KEPT = 32  # bytes of its context
MANY = 1 << 20  # rows


def strided_kernels(device: Any) -> list[str]:
    """Those that have run."""
    return [name for name in names(device) if name.startswith("strided_rows<")]


def strided_teams(device: Any) -> list[dict[str, int]]:
    """Their teams."""
    return [parameters(name, "StridedTeam") for name in strided_kernels(device)]


def three_passes(x: Any, target: Any) -> list[Any]:
    """Each loss of cross_entropy, the mean, and the mean with its gradient."""
    each, mean = cross_entropy(x, target, reduction="none"), cross_entropy(x, target)
    return [each, mean, *value_and_grad(cross_entropy)(x, target)]


def all_passes(x: Any, target: Any, weight: Any, overwritten: Any) -> list[Any]:
    """These, those with weights, and the gradient that takes the place of scores."""
    in_place = functools.partial(cross_entropy, overwrite_input=True)
    weighted = value_and_grad(cross_entropy)(x, target, weight=weight)
    return [*three_passes(x, target), *weighted, value_and_grad(in_place)(overwritten, target)[1]]


@pytest.mark.quick
def test_threads_of_heavy_losses_have_more_registers() -> None:
    """Forward, but for single rows of half precision; no thread has other elements."""

    def resident(size: int, gradients: bool, heavy: bool, in_pairs: bool) -> int:
        team = strided_team(
            1000, (size,), STATE, KEPT, MANY, gradients, in_pairs=in_pairs, heavy=heavy
        )
        assert replace(team, resident=0) == replace(
            strided_team(1000, (size,), STATE, KEPT, MANY, gradients, in_pairs=in_pairs), resident=0
        )
        return team.resident * team.threads

    assert resident(4, False, True, False) == 768
    assert resident(4, False, False, False) == 1024
    assert resident(2, False, True, True) < resident(2, False, False, True)
    for size, gradients, in_pairs in ((2, False, False), (4, True, False), (2, True, True)):
        heavy, plain = (resident(size, gradients, own, in_pairs) for own in (True, False))
        assert heavy == plain


@pytest.mark.quick
def test_threads_follow_from_the_length_of_a_row() -> None:
    for sizes, gradients in itertools.product(
        ((4,), (2,), (8,), (4, 4), (4, 4, 4), (2, 2)), (False, True)
    ):
        words = sum(max(1, size // 4) for size in sizes)
        for columns in range(2, 5000):
            team = strided_team(columns, sizes, STATE, KEPT, MANY, gradients)
            assert team.threads % 32 == 0
            assert team.threads // team.threads_per_row >= 32  # rows side by side
            least = min(
                (
                    threads_per_row
                    for threads_per_row, counts in COUNTS.items()
                    if any(columns <= threads_per_row * n and n * words <= WORDS for n in counts)
                ),
                default=0,
            )
            assert team.stays == (least > 0)
            if team.stays:
                assert team.threads_per_row == team.shares == least
                assert team.count in COUNTS[team.threads_per_row]
                assert team.sure <= columns // team.threads_per_row
                assert columns <= team.count * team.threads_per_row
                if team.count in (2, 3, 4, 5, 6):
                    assert team.sure == team.count == columns
            else:
                assert team.count in COUNTS[1]
                assert team.sure == 0


@pytest.mark.quick
def test_threads_of_rows_that_do_not_stay() -> None:
    """A byte takes a register, as two do; pairs of rows are of what has two bytes."""
    lengths = 230, 1000, 2000, 2100, 32_000
    for sizes, threads, with_gradients in (
        ((4,), [1, 1, 1, 1, 1], [4, 16, 32, 32, 32]),
        ((1, 4), [1, 1, 1, 1, 1], [8, 32, 32, 32, 32]),
        ((2,), [4, 4, 16, 16, 16], [4, 16, 32, 32, 32]),
        ((2, 8), [4, 16, 16, 16, 16], [16, 32, 32, 32, 32]),
        ((8,), [1, 1, 1, 1, 1], [8, 32, 32, 32, 32]),
    ):
        for gradients, wanted in ((False, threads), (True, with_gradients)):
            teams = [strided_team(n, sizes, STATE, KEPT, MANY, gradients) for n in lengths]
            assert [team.threads_per_row for team in teams] == wanted


@pytest.mark.quick
def test_gradients_that_begin_within_sectors_have_wide_tiles() -> None:
    """Where one thread has a row, warps keep in step; tiles of rows that are read again overlap."""
    for columns, rows_of_tile, in_step, overlap in (
        (21, 256, True, 0),
        (60, 128, True, 0),
        (80, 128, False, 0),
        (150, 64, False, 0),
        (300, 64, False, 8),
        (1000, 32, False, 8),
        (2000, 32, False, 8),
        (5000, 32, False, 8),
    ):
        team = strided_team(columns, (4,), STATE, KEPT, MANY, True, in_parts=True, overlap=8)
        assert (team.threads // team.threads_per_row, team.in_step) == (rows_of_tile, in_step)
        assert team.overlap == overlap
        aligned = strided_team(columns, (4,), STATE, KEPT, MANY, gradients=True)
        assert not aligned.in_step
        assert aligned.overlap == 0
        assert aligned.count == team.count
        assert aligned.threads <= team.threads
    for columns, in_pairs, rows_of_tile, overlap in (
        (300, False, 64, 0),
        (2000, False, 32, 0),
        (2100, False, 64, 16),  # too long for the cache
        (2100, True, 32, 0),  # pairs of rows
    ):
        team = strided_team(
            columns, (2,), STATE, KEPT, MANY, True, in_parts=True, overlap=16, in_pairs=in_pairs
        )
        assert team.threads // team.threads_per_row == rows_of_tile
        assert team.overlap == overlap
    few = strided_team(5000, (4,), STATE, KEPT, 1000, True, in_parts=True, overlap=8)
    assert few.of_block > 0
    assert few.overlap == 8


@pytest.mark.quick
def test_the_order_follows_from_the_length_of_a_row_alone() -> None:
    """Not from the number of rows, or from what is wanted: the threads do. Few have more."""
    for sizes in ((4,), (2,), (8,), (2, 2)):
        for columns in (20, 100, 230, 700, 1000, 1025, 5000, 32_000, 10**6):
            teams = {
                strided_team(columns, sizes, state, KEPT, rows, gradients, in_parts=in_parts)
                for state in (STATE, 2 * STATE)
                for rows in (1, 30, 4160, MANY)
                for gradients, in_parts in ((False, False), (True, False), (True, True))
            }
            orders = {(t.count, t.stays, t.section, t.share, t.shares) for t in teams}
            assert len(orders) == 1
            if columns == 1000 and 2 not in sizes:
                few, many = (
                    strided_team(columns, sizes, STATE, KEPT, n, False) for n in (30, MANY)
                )
                assert few.threads_per_row > many.threads_per_row


@pytest.mark.quick
def test_few_kernels_serve_all_lengths() -> None:

    def kernels(
        size: int, gradients: bool, longest: int, of_rows: Sequence[int] = (30, 5000, MANY)
    ) -> int:
        """How many serve lengths up to the longest, of so many rows.

        Sections are arguments, and so are threads where they vary.
        """
        cases = itertools.product(range(9, longest), of_rows)
        teams = (strided_team(n, (size,), STATE, KEPT, rows, gradients) for n, rows in cases)
        arguments: dict[str, Any] = {"section": 1, "share": 1, "shares": 1, "of_block": 0}
        varied = {**arguments, "threads_per_row": 2}
        return len({replace(t, **(varied if t.varies else arguments)) for t in teams})

    for size, gradients in itertools.product((2, 4, 8), (False, True)):
        assert kernels(size, gradients, 4097) <= 12
        for rows in (12_544, 25_088, 65_536):
            assert kernels(size, gradients, 4097, [rows]) <= 12
    assert kernels(4, False, 100_000) <= 12


@pytest.mark.parametrize(("case", "shape"), levels.covering(7, CASES, SHAPES))
def test_every_structure_at_every_length(case: RowCase, shape: tuple[int, int]) -> None:
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, "transposed")
        assert strided_kernels(device)


@pytest.mark.quick
def test_sections_follow_from_the_length_of_a_row() -> None:
    for size, columns in itertools.product((2, 4, 8), (230, 1000, 1025, 32_000, 10**6, 2**31)):
        team = strided_team(columns, (size,), STATE, KEPT, MANY, False)
        of_share = team.section * team.share * team.count
        assert (team.shares - 1) * of_share < columns <= team.shares * of_share
        assert team.shares <= row_striding.MOST_SHARES
        assert team.share <= row_striding.MOST_SECTIONS
        assert team.section <= row_striding.LEAST_BATCHES or columns >= 32_000
        assert team.section <= row_striding.MOST_BATCHES or columns >= 10**6
        assert team.of_block == 0
    assert strided_team(224, (4,), STATE, KEPT, MANY, False).sections == 4


@pytest.mark.quick
def test_as_few_threads_of_a_row_as_keep_a_device_busy() -> None:
    """Of a loss alone; with gradients as many as shares."""

    def threads(size: int, columns: int, rows: int, gradients: bool = False) -> int:
        return strided_team(columns, (size,), STATE, KEPT, rows, gradients).threads_per_row

    found = {n: threads(4, 1000, n) for n in (6400, 12_544, 25_088, 61_504, 98_304, MANY)}
    assert found == {6400: 16, 12_544: 8, 25_088: 4, 61_504: 4, 98_304: 1, MANY: 1}
    assert [threads(4, 4000, n) for n in (8192, 32_768, MANY)] == [16, 8, 1]
    halves = [threads(2, 1000, n) for n in (6400, 25_088, 65_536, MANY)]
    assert halves == [16, 8, 4, 4]
    assert [threads(2, 4000, n) for n in (8192, 32_768, MANY)] == [16, 16, 16]
    for columns, shares in ((250, 4), (300, 8), (1000, 16), (4000, 32), (10**6, 32)):
        assert {threads(4, columns, n, True) for n in (6400, 61_504, MANY)} == {shares}


@pytest.mark.quick
def test_several_blocks_work_on_few_tiles_of_long_rows() -> None:
    for size, columns, n in itertools.product((2, 4, 8), (5000, 10**6), (1, 30, 1000)):
        team = strided_team(columns, (size,), STATE, KEPT, n, False)
        blocks = -(-team.sections // team.of_block)
        of_tile = team.threads // team.threads_per_row * (2 if size == 2 else 1)
        tiles = -(-n // of_tile)
        assert blocks > 1
        assert team.of_block % team.threads_per_row == 0
        assert blocks * tiles * team.threads <= row_striding.SPLIT_THREADS
        assert of_tile * (KEPT + STATE * team.shares) <= row_striding.TILE_BYTES
    for columns, n in ((1000, 30), (5000, MANY)):
        assert strided_team(columns, (4,), STATE, KEPT, n, False).of_block == 0


def phases(device: Any) -> set[str]:
    """Those of the kernels that have run."""
    names = strided_kernels(device)
    return {p for p in ("SPLIT", "MERGE", "WHOLE") if any(f", {p}, " in name for name in names)}


@pytest.mark.parametrize(
    ("case", "shape", "launches"),
    levels.covering(4, CASES, [(9, 900), (40, 460), (3, 3300)], [1, 2]),
)
def test_sections_of_every_structure(
    case: RowCase, shape: tuple[int, int], launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block works on a tile alone, or several share it; shares have several sections."""
    for name in ("LEAST_BATCHES", "SHARE_WORDS", "MOST_SHARES", "MANY_THREADS"):
        monkeypatch.setattr(row_striding, name, 4)
    monkeypatch.setattr(row_striding, "FEW_TILES", 0 if launches == 1 else 64)
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, "transposed")
        assert phases(device) == ({"WHOLE"} if launches == 1 else {"SPLIT", "MERGE"})


@pytest.mark.parametrize(
    ("dtype", "shape"),
    levels.covering(
        3,
        ["float32", "bfloat16", "float64"],
        [(2, 500, 70), (1, 900, 35), (1, 3000, 10)],
    ),
)
def test_the_same_bits_in_one_launch_and_in_two(
    dtype: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With some sections of a tile in each block, and with one; with one thread a row and more."""
    rows = shape[0] * shape[2]
    rng = np.random.default_rng(5)
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target[0, 0] = -100
    for name in ("SHARE_WORDS", "MOST_SHARES", "MANY_THREADS"):
        monkeypatch.setattr(row_striding, name, 8)
    monkeypatch.setattr(row_striding, "LEAST_BATCHES", 1)
    bits = set()
    for few_tiles, threads, enough in (
        (0, 1, 1),
        (0, 1, 4 * rows),
        (0, 1, MANY),
        (64, MANY, 1),
        (64, 4096, 1),
    ):
        monkeypatch.setattr(row_striding, "FEW_TILES", few_tiles)
        monkeypatch.setattr(row_striding, "SPLIT_THREADS", threads)
        monkeypatch.setattr(row_striding, "ENOUGH_THREADS", enough)
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            results = device.together(three_passes, *arrays)
            assert results[1].get() == results[2].get()  # without and with a gradient
            assert ("SPLIT" in phases(device)) == (few_tiles > 0)
            bits.add(tuple(result.get().tobytes() for result in results))
    assert len(bits) == 1


@pytest.mark.parametrize(("dtype", "threads"), [("float32", 8), ("float16", 8), ("float16", 16)])
def test_teams_of_long_rows(dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they work on shorter ones, of several sections in a share."""
    monkeypatch.setattr(row_striding, "SHARE_WORDS", 4)
    monkeypatch.setattr(row_striding, "LEAST_BATCHES", 1)
    monkeypatch.setattr(row_striding, "MOST_SHARES", threads)
    monkeypatch.setattr(row_striding, "FEW_TILES", 0)
    size = DTYPES[dtype].itemsize
    team = strided_team(530, (size,), STATE, KEPT, 140, True)
    assert team.threads_per_row == threads
    assert team.share > 1
    rng = np.random.default_rng(3)
    x = (3 * rng.standard_normal((2, 530, 70))).astype(DTYPES[dtype])
    target = rng.integers(0, 530, (2, 70))
    with installed(multiprocessors=3, seed=1) as device:
        got = value_and_grad(cross_entropy)(device.asarray(x), device.asarray(target))
        assert strided_kernels(device)
    for result, wanted in zip(got, value_and_grad(cross_entropy)(x, target), strict=True):
        rtol, atol = (2e-6, 1e-9) if dtype == "float32" else (2e-3, 1e-7)
        np.testing.assert_allclose(result.get(), wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        levels.case(case, shape, default=case is FAST and shape[1] == 70, id=f"{case}-{shape}")
        for case in CASES
        for shape in SHAPES
    ],
)
def test_the_same_bits_on_any_device(case: RowCase, shape: tuple[int, int]) -> None:
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        bits = exercise(device, case, operands, "transposed")
    with installed(
        multiprocessors=1, blocks_per_multiprocessor=1, seed=2, compute_capability="80"
    ) as device:
        assert exercise(device, case, operands, "transposed") == bits


@pytest.mark.parametrize(
    ("dtype", "shape"),
    levels.covering(
        3,
        ["bfloat16", "float16", "float64"],
        [(2, 21, 70), (3, 21, 35), (2, 90, 30), (1, 900, 10), (1, 1530, 10), (2, 1500, 3)],
    ),
)
def test_dtypes(dtype: str, shape: tuple[int, int, int]) -> None:
    """Pairs of rows, and single ones where the number of pixels is odd."""
    rng = np.random.default_rng(5)
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    tolerance = {"bfloat16": 1.2e-2, "float16": 2e-3, "float64": 1e-13}[dtype]
    wide = torch.tensor(x.astype(np.float64), requires_grad=True)
    expected = torch.nn.functional.cross_entropy(wide, torch.tensor(target), reduction="none")
    expected.sum().backward()
    assert wide.grad is not None
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x), device.asarray(target)
        each, mean, value, gradient = device.together(three_passes, *arrays)
        close(each, expected.detach(), tolerance)
        assert mean.get().tobytes() == value.get().tobytes(), "the same bits with a gradient"
        close(gradient, wide.grad.numpy() / target.size, tolerance)
        widths = {team["width"] for team in strided_teams(device)}
    pairs = DTYPES[dtype] in (DTYPES["bfloat16"], DTYPES["float16"]) and shape[2] % 2 == 0
    assert widths == {2 if pairs else 1}


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        levels.case(case, shape, default=case is OF_CLASSES, id=f"{case}-{shape}")
        for case in (OF_CLASSES, ACROSS, *OF_VECTORS)
        for shape in ((300, 11), (40, 130), (9, 1100))
    ],
)
def test_masks_and_weights_of_float64(case: RowCase, shape: tuple[int, int]) -> None:
    """A weight takes more bytes than what else is known of a row."""
    shape = shape[::-1] if case.axis(shape) == 0 else shape
    operands = case.draw(np.random.default_rng(6), shape, np.float64)
    with installed(multiprocessors=3, seed=1) as device:
        layout = "dense" if case.axis(shape) == 0 else "transposed"
        exercise(device, case, operands, layout, "float64")
        assert strided_kernels(device)


@pytest.mark.parametrize("pixels", [64, 63])
@pytest.mark.parametrize(("dtype", "ahead"), [("bfloat16", 80.0), ("float16", 9.0)])
@pytest.mark.parametrize("columns", levels.first([21, 150]))
def test_small_losses_of_half_precision(
    columns: int, dtype: str, ahead: float, pixels: int
) -> None:
    """A class may be ahead of the others by far: its loss is precise beside itself."""
    rng = np.random.default_rng(15)
    x = rng.standard_normal((1, columns, pixels)).astype(np.float32)
    target = rng.integers(0, columns, (1, pixels))
    leads = x.max(axis=1) + np.linspace(0, ahead, pixels, dtype=np.float32)
    np.put_along_axis(x, target[:, None], leads[:, None], axis=1)
    half = (x + np.float32(20)).astype(DTYPES[dtype])
    wide = half.astype(np.float64)
    own = np.take_along_axis(wide, target[:, None], axis=1)
    others = np.exp(wide - own)
    np.put_along_axis(others, target[:, None], 0.0, axis=1)
    exact = np.log1p(others.sum(axis=1))
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(half), device.asarray(target)
        each = cross_entropy(*arrays, reduction="none").get()
        assert strided_kernels(device)
    assert ulps(each, exact) <= 1


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float32"]))
def test_any_place_in_memory(dtype: str) -> None:
    """Bits do not depend on alignment, nor on the other rows of a call."""

    def passes(whole: Any, stretches: Any, target: Any, *one_row: Any) -> list[Any]:
        alone = cross_entropy(*one_row, reduction="none")
        return [three_passes(whole, target), three_passes(stretches, target), alone]

    rng = np.random.default_rng(6)
    for columns in (19, 77):
        x = (3 * rng.standard_normal((3, columns, 34))).astype(DTYPES[dtype])
        target = rng.integers(0, columns, (3, 34))
        stored = np.zeros((3, columns, 37), x.dtype)
        stored[..., 1:35] = x
        with installed(multiprocessors=3, seed=1) as device:
            *results, alone = device.together(
                passes,
                device.asarray(x),
                device.asarray(stored)[..., 1:35],
                device.asarray(target),
                device.asarray(np.ascontiguousarray(x[1:2, :, 5:6])),
                device.asarray(np.ascontiguousarray(target[1:2, 5:6])),
            )
            assert strided_kernels(device)
        bits = [[result.get().tobytes() for result in of_layout] for of_layout in results]
        assert bits[0] == bits[1]
        each = results[0][0].get()
        assert alone.get().tobytes() == each[1:2, 5:6].tobytes()


def losses_and_gradients(
    x: Any, target: Any, probabilities: Any, overwritten: Any
) -> tuple[list[Any], list[Any]]:
    """Of probabilities without and with a gradient; those by x, by both, and in place of x."""
    of_x, in_place = (
        value_and_grad(functools.partial(cross_entropy, overwrite_input=overwrites))
        for overwrites in (False, True)
    )
    (_, by_class), (loss, by_x) = of_x(x, target), of_x(x, probabilities)
    _, by_both = value_and_grad(cross_entropy, argnums=(0, 1))(x, probabilities)
    gradients = [by_class, by_x, *by_both, in_place(overwritten, target)[1]]
    return [cross_entropy(x, probabilities), loss], gradients


# With an odd number of pixels classes begin within sectors of memory, and tiles reach from an image
# into the next one.
IN_PARTS = [
    ("float32", (2, 21, 1031)),
    ("float32", (2, 230, 1031)),  # tiles that overlap
    ("bfloat16", (3, 17, 1031)),
    ("bfloat16", (2, 13, 2050)),  # pairs that are aligned
    ("float16", (1, 60, 1025)),  # single rows, as there is no whole number of pairs
    ("float32", (1, 40, 1031)),
    ("float64", (1, 21, 1027)),
    ("float64", (1, 120, 1027)),
    ("float32", (1, 1030, 1025)),
    ("float32", (1, 2100, 1031)),  # tiles that overlap, of several blocks each
    ("bfloat16", (1, 2100, 1027)),
]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        levels.case(*case, default=k in (1, 2), id=f"{case[0]}-{case[1]}".replace(" ", ""))
        for k, case in enumerate(IN_PARTS)
    ],
)
def test_gradients_that_begin_within_sectors(
    dtype: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as of others: of rows that are ignored or invalid, and in place, too."""
    rng = np.random.default_rng(8)
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    target = rng.integers(0, shape[1], shape[::2])
    target[:, ::7], target[:, 3::50] = -100, shape[1]
    probabilities = rng.dirichlet(np.ones(shape[1]), shape[::2]).swapaxes(1, 2).astype(x.dtype)
    bits, losses, special = [], [], []
    for in_parts in (True, False):
        if not in_parts:
            monkeypatch.setattr(row_arrays, "LONG_STRETCH", 1 << 30)
        with installed(multiprocessors=3, seed=1) as device:
            logits, classes = device.asarray(x), device.asarray(target)
            of_two, gradients = device.together(
                losses_and_gradients,
                *(logits, classes, device.asarray(probabilities)),
                device.asarray(x, writable=True),
            )
            losses += [loss.get() for loss in of_two]
            teams = strided_teams(device)
            special.append(any(team["in_step"] or team["overlap"] for team in teams))
            bits.append([a.get().tobytes() for a in gradients])
    assert bits[0] == bits[1]
    assert bits[0][0] == bits[0][-1]
    assert len({loss.tobytes() for loss in losses}) == 1
    assert special == [True, False]


def test_a_block_has_overlapping_tiles_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets of a tile do not come while others are still read for gradients."""
    monkeypatch.setattr(row_arrays, "LONG_STRETCH", 64)
    monkeypatch.setattr(row_striding, "SEGMENTS", 1)
    rng = np.random.default_rng(16)
    x, target = rng.standard_normal((2, 230, 131), np.float32), rng.integers(0, 230, (2, 131))
    with installed(multiprocessors=1, seed=1) as device:
        got = value_and_grad(cross_entropy)(device.asarray(x), device.asarray(target))
        assert {team["overlap"] for team in strided_teams(device)} == {8}
    for result, wanted in zip(got, value_and_grad(cross_entropy)(x, target), strict=True):
        np.testing.assert_allclose(result.get(), wanted, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["sample_weight", "weight"])
def test_weights_of_two_bytes_in_overlapping_tiles(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a block keeps of a row then ends with padding, which counts for nothing."""
    monkeypatch.setattr(row_arrays, "LONG_STRETCH", 64)
    rng = np.random.default_rng(19)
    x, target = rng.standard_normal((2, 230, 131), np.float32), rng.integers(0, 230, (2, 131))
    shape = target.shape if name == "sample_weight" else (230,)
    weight = rng.uniform(0.5, 2.0, shape).astype(np.float16)
    with installed(multiprocessors=1, seed=1) as device:
        options: dict[str, Any] = {name: device.asarray(weight)}
        got = value_and_grad(cross_entropy)(device.asarray(x), device.asarray(target), **options)
        assert {team["overlap"] for team in strided_teams(device)} == {8}
    options = {name: weight}
    on_host = value_and_grad(cross_entropy)(x, target, **options)
    for result, wanted in zip(got, on_host, strict=True):
        np.testing.assert_allclose(result.get(), wanted, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize(("dtype", "overlap"), [("float32", 8), ("bfloat16", 16)])
def test_blocks_share_tiles_that_overlap(
    dtype: str, overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are in two tiles have one place for what the first launch leaves of them."""
    monkeypatch.setattr(row_striding, "SHARE_WORDS", 4)
    monkeypatch.setattr(row_striding, "LEAST_BATCHES", 1)
    rng = np.random.default_rng(17)
    x = (3 * rng.standard_normal((2, 530, 137))).astype(DTYPES[dtype])
    target = rng.integers(0, 530, (2, 137))
    target[:, ::7] = -100
    bits = []
    for in_parts in (True, False):
        if not in_parts:
            monkeypatch.setattr(row_arrays, "LONG_STRETCH", 1 << 30)
        with installed(multiprocessors=3, seed=1) as device:
            got = value_and_grad(cross_entropy)(device.asarray(x), device.asarray(target))
            assert phases(device) >= {"SPLIT", "MERGE"}
            overlaps = {team["overlap"] for team in strided_teams(device)}
            assert overlaps == {overlap if in_parts else 0}
            bits.append([a.get().tobytes() for a in got])
    assert bits[0] == bits[1]
    for result, wanted in zip(got, value_and_grad(cross_entropy)(x, target), strict=True):
        rtol, atol = (2e-6, 1e-9) if dtype == "float32" else (1e-2, 1e-7)
        np.testing.assert_allclose(
            np.float64(result.get()), np.float64(wanted), rtol=rtol, atol=atol
        )


@pytest.mark.parametrize("shape", levels.first([(2, 21, 34), (1, 90, 34), (1, 1100, 5)]))
def test_classes_in_the_reverse_order(shape: tuple[int, int, int]) -> None:
    """Steps along a row are negative, those from row to row are not."""
    rng = np.random.default_rng(13)
    x = rng.standard_normal(shape).astype(np.float32)
    target = rng.integers(0, shape[1], shape[::2])
    reverse = np.ascontiguousarray(x[:, ::-1])
    with installed(multiprocessors=3, seed=1) as device:
        got = value_and_grad(cross_entropy)(
            device.asarray(reverse)[:, ::-1], device.asarray(target)
        )
        assert strided_kernels(device)
    for result, wanted in zip(got, value_and_grad(cross_entropy)(x, target), strict=True):
        np.testing.assert_allclose(result.get(), wanted, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_axes_in_the_reverse_order(dtype: str) -> None:
    """Offsets of several arrays, some below 0."""
    rng = np.random.default_rng(15)
    stored, y = (rng.standard_normal((130, 2, 4)).astype(DTYPES[dtype]) for _ in range(2))
    x, sign = stored[::-1, ::-1], np.ones((2, 4), DTYPES[dtype])
    vjp_of = functools.partial(vjp, cosine_embedding_loss, axis=0, reduction="none")
    expected = vjp_of((x, y, sign), sign, (0, 1))
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(stored)[::-1, ::-1], *map(device.asarray, (y, sign))
        found = vjp_of(arrays, device.asarray(sign), (0, 1))
        assert strided_kernels(device)
    for got, wanted in zip(found, expected, strict=True):
        bound = 2e-3 if dtype == "float16" else 1e-6
        np.testing.assert_allclose(got.get(), wanted, atol=bound * np.abs(wanted).max())


@pytest.mark.parametrize(
    "shape", levels.first([(100, 20), (17, 1100), (131, 70), (129, 21), (300, 400)], 2)
)
def test_the_gradient_takes_the_memory_of_the_input(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(14).standard_normal(shape).astype(np.float32)
    target = np.arange(shape[0]) % shape[1]
    expected = value_and_grad(cross_entropy)(x, target)
    with installed(multiprocessors=3, seed=1) as device:
        stored = device.asarray(np.ascontiguousarray(x.T), writable=True)
        both = value_and_grad(functools.partial(cross_entropy, overwrite_input=True))
        value, _ = both(stored.transpose(), device.asarray(target))
        assert strided_kernels(device)
        np.testing.assert_allclose(value.get(), expected[0], rtol=1e-6)
        np.testing.assert_allclose(stored.get().T, expected[1], rtol=1e-5, atol=1e-9)


def test_rows_of_no_use() -> None:
    """An index out of range gives NaN to its row alone; an ignored row of NaN gives 0."""
    for columns, dtype in ((11, "float32"), (302, "bfloat16")):
        x = np.random.default_rng(7).standard_normal((4, columns, 20)).astype(DTYPES[dtype])
        target = (np.arange(80) % columns).reshape(4, 20)
        target[0, 3] = columns
        target[2, 7] = -1
        target[1, 2] = target[3, 19] = -100
        x[1, :, 2] = np.nan
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            each = cross_entropy(*arrays, reduction="none").get()
            assert np.argwhere(np.isnan(each.astype(np.float32))).tolist() == [[0, 3], [2, 7]]
            assert not each[1, 2]
            assert not each[3, 19]
            value, gradient = value_and_grad(cross_entropy)(*arrays)
            slopes = gradient.get().astype(np.float32)
            assert np.isnan(np.float32(value.get()))
            assert np.isnan(slopes[0, :, 3]).all()
            assert np.isnan(slopes[2, :, 7]).all()
            assert np.isnan(slopes).sum() == 2 * columns
            assert not slopes[1, :, 2].any()
            assert not slopes[3, :, 19].any()
            assert strided_kernels(device)


def teams_beside_classes_last(
    x: Any, y: Any, request: Request, leading: Sequence[Any], tolerance: float
) -> list[dict[str, int]]:
    """The teams of scores as they are and probabilities with classes last; checks the results."""
    call, _ = prepare_of(cross_entropy)(x, y)
    hosts = [np.asarray(host) for host in (*leading, x, y)]
    expected = on_host(call, request, hosts)
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [device.asarray(host) for host in hosts]
        last = device.asarray(np.ascontiguousarray(y.transpose(0, 2, 1)))
        arrays[-1] = last.transpose(0, 2, 1)
        library, own = resolve(call, arrays[len(leading) :])
        results = library.run(call, request, [*arrays[: len(leading)], *own])
        for result, wanted in zip(results, expected, strict=True):
            close(result, wanted, tolerance)
        return strided_teams(device)


@pytest.mark.parametrize("width", levels.first([34, 33]))
def test_operands_of_different_layouts(width: int) -> None:
    """Scores with classes ahead of pixels, probabilities with classes last, and derivatives."""
    rng = np.random.default_rng(8)
    shape = (2, 19, width)
    x = rng.standard_normal(shape).astype(np.float16)
    y = rng.random(shape).astype(np.float32)
    tangent = rng.standard_normal(shape).astype(np.float16)
    for request, leading in (
        (Request(wanted=(0, 1)), ()),
        (Request(tangents=(0,)), (tangent,)),
        (Request(value=False, wanted=(0, 1), vjp=True, tangents=(0,)), (np.float32(0.5), tangent)),
    ):
        assert teams_beside_classes_last(x, y, request, leading, 4e-3)


# Rows in registers, of one thread and of several, and in shares.
ALONG = [30, 8, 12, 24, 40, 136, 1100]


@pytest.mark.parametrize("columns", levels.first(ALONG))
@pytest.mark.parametrize(
    "dtypes",
    levels.first(
        [
            ("float32", "float32"),
            ("bfloat16", "bfloat16"),
            ("float16", "float32"),
            ("float64", "float64"),
        ]
    ),
    ids=" ".join,
)
def test_several_elements_of_a_row_are_one_access(columns: int, dtypes: tuple[str, str]) -> None:
    """In the operand whose classes are last: as many as are aligned."""
    rng = np.random.default_rng(columns)
    shape = (2, columns, 35)
    x = rng.standard_normal(shape).astype(DTYPES[dtypes[0]])
    y = rng.random(shape).astype(DTYPES[dtypes[1]])
    tangent = rng.standard_normal(shape).astype(x.dtype)
    tolerance = 4e-3 if x.dtype.itemsize == 2 else 1e-5
    for request, leading in (
        (Request(), ()),
        (Request(wanted=(0, 1)), ()),
        (Request(tangents=(0,)), (tangent,)),
    ):
        teams = teams_beside_classes_last(x, y, request, leading, tolerance)
        assert {team["access"] for team in teams} == {math.gcd(16, columns * y.itemsize)}


@pytest.mark.quick
def test_the_tiles_of_few_elements_follow_from_their_shape() -> None:
    """Not from gradients, nor from where they begin: a mean adds rows in the same order."""
    for size, columns, rows in itertools.product((2, 4, 8), range(2, 13), (999, 1000)):
        for lie_in_pairs in {False, rows % 2 == 0}:
            teams = [
                strided_team(
                    *(columns, (size,), STATE, KEPT, rows, gradients),
                    in_parts=in_parts,
                    in_pairs=in_pairs,
                    lie_in_pairs=lie_in_pairs,
                )
                for gradients, in_parts, in_pairs in itertools.product((False, True), repeat=3)
            ]
            if not teams[0].few:
                continue
            assert len({(t.threads, t.pairs, t.segments) for t in teams}) == 1
            assert all(team.few for team in teams)
            assert teams[0].ahead == (not teams[0].pairs or columns <= 8)
            assert not (teams[0].pairs and rows % 2)
            if size == 2 and not lie_in_pairs:
                assert teams[0].pairs == (rows % 2 == 0 and columns <= 3)
    assert strided_team(12, (4,), STATE, KEPT, MANY, False).few
    assert not strided_team(13, (4,), STATE, KEPT, MANY, False).few
    assert not strided_team(12, (8,), STATE, KEPT, MANY, False).few


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "shape",
    levels.first(
        [
            (4, 3, 1033),
            (2, 5, 401),
            (2, 2, 1600),
            (3, 5, 701),
            (2, 8, 600),
            (4, 6, 333),
            (5, 2, 411),
        ],
        2,
    ),
)
def test_rows_of_few_elements_are_loaded_ahead(
    shape: tuple[int, int, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks have several tiles in turn, the last of them a part of one.

    An even number of rows lies in pairs or not; others are alone. Some are ignored.
    """
    for name in ("SEGMENTS", "SEGMENTS_OF_HALVES"):
        monkeypatch.setattr(row_striding, name, 2)
    rng = np.random.default_rng(17)
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    target = rng.integers(0, shape[1], shape[::2])
    target[:, ::7] = -100
    weight = rng.uniform(0.5, 2, shape[1]).astype(x.dtype)
    bits = []
    for misalignment, long_stretch in ((0, 1 << 30), (x.itemsize, 64)):
        monkeypatch.setattr(row_arrays, "LONG_STRETCH", long_stretch)
        with installed(multiprocessors=2, seed=1) as device:
            logits = device.asarray(x, misalignment=misalignment)
            operands = logits, device.asarray(target)
            classes = device.asarray(weight)
            overwritten = device.asarray(x, misalignment=misalignment, writable=True)
            each, loss, value, gradient, *weighted, written = device.together(
                all_passes, *operands, classes, overwritten
            )
            teams = strided_teams(device)
            assert len(teams) >= 5
            results = loss, gradient, each, *weighted, value, written
            bits.append([a.get().tobytes() for a in results])
        is_few = shape[1] * max(1, x.itemsize // 4) <= row_striding.FEW_WORDS
        assert any(team["ahead"] for team in teams) == is_few
    assert bits[0] == bits[1]
    assert bits[0][0] == bits[0][-2], "the same bits with a gradient"
    assert bits[0][1] == bits[0][-1]
    wide = x.astype("f8")
    expected = value_and_grad(cross_entropy)(wide, target)
    tolerance = {"float32": 2e-6, "bfloat16": 8e-3, "float64": 1e-14}[dtype]
    for got, wanted in zip((loss, gradient), expected, strict=True):
        np.testing.assert_allclose(
            got.get().astype("f8"), wanted, rtol=tolerance, atol=tolerance / target.size
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_elements_of_rows_that_do_not_count(dtype: str) -> None:
    """They are computed as others are, and left out."""
    rng = np.random.default_rng(18)
    x = rng.standard_normal((2, 3, 700)).astype(DTYPES[dtype])
    target = rng.integers(0, 3, (2, 700))
    target[:, ::7], target[:, 3::50] = -100, 3
    target[1, 5] = 1 << 40
    of_each = functools.partial(cross_entropy, reduction="none")
    with installed(multiprocessors=2, seed=1) as device:
        operands = device.asarray(x), device.asarray(target)
        losses = of_each(*operands).get().astype("f8")
        cotangent = device.asarray(np.ones(target.shape, x.dtype))
        gradient = vjp(of_each, operands, cotangent).get().astype("f8")
        assert len(strided_kernels(device)) == 2
    invalid = (target == 3) | (target == 1 << 40)
    assert (np.isnan(losses) == invalid).all()
    assert (np.isnan(gradient) == invalid[:, None]).all()
    ignored = target == -100
    assert (losses[ignored] == 0).all()
    assert (gradient.swapaxes(1, 2)[ignored] == 0).all()


def test_probabilities_take_more_words() -> None:
    """Two arrays that are read: a thread holds half as many classes."""
    assert strided_team(40, (4,), STATE, KEPT, MANY, False).stays
    assert not strided_team(40, (4, 4), STATE, KEPT, MANY, False).stays
    operands = PROBABILITIES.draw(np.random.default_rng(11), (70, 40), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, PROBABILITIES, operands, "transposed")
        assert strided_kernels(device)

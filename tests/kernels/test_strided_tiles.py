"""Tiles of rows that lie side by side in memory, on the emulator."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, value_and_grad, vjp
from cupy_losses._device import strided_tiling
from cupy_losses._device.hardware import WARP
from cupy_losses._device.row_arrays import RowGeometry
from cupy_losses._device.strided_tiling import StridedTile, strided_tile

from .. import emulator
from ..emulator import Device, installed
from ..tables.arrays import DTYPES
from ..tables.rows import SAMPLED, RowCase
from ..tools import levels
from .test_rows_emulated import (
    CROSS_ENTROPY,
    SMOOTHED,
    STRUCTURES,
    exercise,
    names,
    of_more_rows,
)

EVERY_LENGTH = {(size, gradients): (2, 64) for size in (2, 4) for gradients in (False, True)}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of up to 64 rows, of a warp and of one that copies, however few rows there are."""
    emulator.require()
    for name, number in (
        ("THREADS", 64),
        ("COMPUTING", 32),
        ("MOST_ROWS", 64),
        ("LEAST_BYTES", 0),
        ("FEW_ROWS", 64),
        ("LEAST_TILES", 1),
        ("FULL", 0.0),
        ("SEGMENTS", 3),
        ("COLUMNS", EVERY_LENGTH),
    ):
        monkeypatch.setattr(strided_tiling, name, number)


def kernels(device: Device) -> set[str]:
    """The files of those that have worked on rows that lie side by side."""
    files = {name.split("<")[0] for name in names(device)}
    return {file for file in files if file.startswith("strided")}


def drawn(shape: tuple[int, ...], dtype: str, begin: int = 0) -> tuple[Any, Any]:
    """Logits, `begin` of which lie ahead, and classes, some to ignore and some out of range."""
    rng = np.random.default_rng(18)
    count = math.prod(shape)
    x = (3 * rng.standard_normal(begin + count)).astype(DTYPES[dtype])
    x[begin :: count // 7] *= 20  # the powers of all others are 0, or some are infinite
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    target[..., ::7], target[..., 3::50], target[..., 4::60] = -100, shape[1], -1
    return x, target


def passes(x: Any, target: Any, weight: Any, factors: Any) -> list[Any]:
    """All that is computed of cross entropy, with options."""
    of_each = functools.partial(cross_entropy, reduction="none")
    smooth = functools.partial(cross_entropy, label_smoothing=0.1, z_loss=0.01, weight=weight)
    return [
        of_each(x, target),
        cross_entropy(x, target),
        *value_and_grad(cross_entropy)(x, target),
        *value_and_grad(smooth)(x, target),
        vjp(of_each, (x, target), factors),
    ]


CASES = [  # shape, dtype, where the logits begin
    ((2, 21, 301), "float32", 0),
    ((2, 21, 301), "bfloat16", 0),
    ((3, 3, 163), "bfloat16", 0),
    ((2, 13, 4, 5, 9), "float32", 0),
    ((2, 21, 301), "float32", 1),
    ((2, 32, 200), "float16", 3),
    ((1, 2, 515), "float32", 0),
    ((1, 5, 515), "float16", 0),
    ((3, 8, 130), "bfloat16", 1),
    ((2, 24, 129), "float32", 3),
    ((1, 12, 515), "float32", 0),
    ((1, 40, 515), "bfloat16", 0),
    ((1, 64, 130), "float16", 0),
]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("shape", "dtype", "begin"),
    [levels.case(*case, default=k < 4, id=str(k)) for k, case in enumerate(CASES)],
)
def test_the_same_bits_as_without_tiles(
    shape: tuple[int, ...], dtype: str, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tiles of a segment, some of which end with an image, and segments of a block."""
    x, target = drawn(shape, dtype, begin)
    weight = np.linspace(0.5, 2.0, shape[1]).astype(x.dtype)
    factors = np.linspace(-1.0, 2.0, target.size).reshape(target.shape).astype(x.dtype)
    bits, used = [], []
    for columns in (EVERY_LENGTH, {}):
        monkeypatch.setattr(strided_tiling, "COLUMNS", columns)
        with installed(multiprocessors=2, blocks_per_multiprocessor=1, seed=3) as device:
            whole, *others = (device.asarray(a) for a in (x, target, weight, factors))
            results = device.together(passes, whole[begin:].reshape(shape), *others)
            bits.append([result.get().tobytes() for result in results])
            used.append(kernels(device))
    assert bits[0] == bits[1]
    assert "strided_tiles" in used[0]
    assert used[1] == {"strided_rows"}


@pytest.mark.usefixtures("_small")
def test_more_rows_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a kernel of so many rows and elements, of few here."""
    x, target = drawn((2, 5, 301), "float32")
    bits = []
    for function in (RowGeometry.layout, of_more_rows(RowGeometry.layout)):
        monkeypatch.setattr(RowGeometry, "layout", function)
        with installed(multiprocessors=2, blocks_per_multiprocessor=1, seed=3) as device:
            logits, classes = device.asarray(x).reshape(2, 5, 301), device.asarray(target)
            results = value_and_grad(cross_entropy)(logits, classes)
            bits.append([result.get().tobytes() for result in results])
            assert "strided_tiles" in kernels(device)
    assert bits[0] == bits[1]


# Of one array of elements; the last two with masks and weights of rows.
OF_ONE_ARRAY = [CROSS_ENTROPY, SMOOTHED, STRUCTURES[4], SAMPLED[0], SAMPLED[7]]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("case", "columns"),
    [
        levels.case(case, columns, default=k % 3 == 0, id=f"{case}-{columns}")
        for k, (case, columns) in enumerate(itertools.product(OF_ONE_ARRAY, (3, 11, 21, 24)))
    ],
)
def test_every_loss_of_one_array(case: RowCase, columns: int) -> None:
    """With the weights of classes, masks and weights of rows that it has."""
    operands = case.draw(np.random.default_rng(3), (150, columns), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, "transposed")
        assert "strided_tiles" in kernels(device)


@pytest.mark.usefixtures("_small")
def test_where_there_are_no_tiles() -> None:
    """Without bulk copies; of gradients that do not lie as elements do, or take their place; of
    two arrays; of pairs of rows without gradients; of lines that are no longer than a tile."""
    x, target = drawn((2, 12, 130), "float32", 1)
    aligned, halves = x[1:].reshape(2, 12, 130), x[1:].astype(np.float16).reshape(2, 12, 130)
    shares = np.full_like(aligned, 1 / 12)
    in_place = functools.partial(cross_entropy, overwrite_input=True)

    def used(loss: Any, logits: Any, target: Any, capability: str = "90") -> set[str]:
        with installed(seed=1, compute_capability=capability) as device:
            whole = device.asarray(logits, writable=True)
            logits = whole if whole.ndim > 1 else whole[1:].reshape(2, 12, 130)
            loss(logits, device.asarray(target))
            return kernels(device)

    gradient = value_and_grad(cross_entropy)
    assert used(gradient, aligned, target) == {"strided_tiles"}
    assert used(cross_entropy, x, target) == {"strided_tiles"}
    assert used(gradient, halves, target) == {"strided_tiles"}
    assert used(gradient, aligned, target, "80") == {"strided_rows"}
    assert used(gradient, x, target) == {"strided_rows"}
    assert used(value_and_grad(in_place), aligned, target) == {"strided_rows"}
    assert used(gradient, aligned, shares) == {"strided_rows"}
    assert used(cross_entropy, halves, target) == {"strided_rows"}
    short = np.ascontiguousarray(aligned[..., :32]), target[..., :32]
    assert used(gradient, *short) == {"strided_rows"}


def tile(
    columns: int,
    line: int,
    lines: int = 1,
    *,
    size: int = 4,
    gradients: bool = True,
    **options: Any,
) -> StridedTile | None:
    """The tile of dense classes ahead of pixels, with 64-bit integers for classes."""
    options = {"shared_memory": 227 << 10, "weights": False, **options}
    rows, step = line * lines, line * size
    return strided_tile(columns, line, rows, size, step, 0, {1: 8}, gradients=gradients, **options)


@pytest.mark.quick
def test_tiles_fit() -> None:
    """Columns begin where they do in device memory, apart from each other; all rows are there."""
    for size, gradients in itertools.product((2, 4), (False, True)):
        for columns, line in itertools.product(range(2, 65), (2025, 90_601, 513**2, 1024**2)):
            found = tile(columns, line, 2048, size=size, gradients=gradients)
            shortest, longest = strided_tiling.COLUMNS[size, gradients]
            assert shortest <= columns <= longest or found is None
            if found is None:
                continue
            assert 2 * found.bytes * found.resident <= 227 << 10
            assert found.sure <= columns <= found.count
            assert (found.pitch - line * size) % 16 == 0
            assert found.pitch >= found.rows * size + 2 * (16 - size)
            assert found.begins[1] >= columns * found.pitch + 16 - size
            assert found.bytes >= found.begins[1] + 8 * found.rows + 8
            assert found.rows % 32 == 0
            assert found.rows * (found.of_line - 1) < line <= found.rows * found.of_line
            assert found.rows <= strided_tiling.MOST_ROWS


@pytest.mark.quick
def test_which_rows_have_tiles() -> None:
    """As many as fit, where there are enough for all blocks; none of lines that fill few."""
    images = tile(21, 513**2, 8)
    assert images is not None
    assert images.rows == 448
    assert (images.count, images.sure, images.few) == (24, 17, False)
    assert images.resident == 2  # so that a thread has 128 registers
    pixels = tile(3, 1024**2, 8)
    assert pixels is not None
    assert pixels.rows == 1792
    assert pixels.few
    halves, more = (tile(21, 513**2, images, size=2) for images in (8, 32))
    assert halves is not None
    assert more is not None
    assert (halves.rows, more.rows) == (448, 896)  # so that all blocks have about as many
    weighed = tile(21, 513**2, 8, size=2, weights=True)
    assert weighed is not None
    assert (halves.resident, weighed.resident) == (4, 2)
    small = tile(21, 2025, 2000, size=2)
    assert small is not None
    assert small.of_line == 5
    assert tile(21, 513**2, 8, shared_memory=64 << 10) is not None
    for none in (
        tile(21, 128**2, 4),  # few tiles
        tile(21, 300, 10_000),  # a line is shorter than two of them
        tile(21, 460, 10_000),  # half of the second one would be empty
        tile(2, 1000, 1000),  # short tiles
        tile(21, 513**2, 8, size=8),
        tile(21, 513**2, 8, shared_memory=24 << 10),
    ):
        assert none is None


@pytest.mark.quick
def test_the_threads_of_a_block() -> None:
    assert strided_tiling.COMPUTING == strided_tiling.THREADS - WARP

"""The kernel for losses that read one element of each row, on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_losses import jvp, nll_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device import row_gathering_schedule
from cupy_losses._libraries.registry import resolve

from ..emulator import Device, EmulatorError, installed
from ..tables.arrays import DTYPES
from ..tables.rows import ROWS, RowCase
from ..tools import levels
from ..tools.planting import plant
from .test_rows_emulated import NLL, close, exercise, names

pytestmark = pytest.mark.usefixtures("needs_emulator")

CASES = [NLL, *(case for case in ROWS if "nll_loss" in str(case) and case is not NLL)]
# Vectors that have parts of many rows, of two and of one; tiles, and slices of them, that begin
# inside vectors; the longest row that a tile has, and one that is 0 ahead; fewer rows than a tile
# has.
SHAPES = [
    (5, 1),
    (600, 2),
    (1000, 3),
    (300, 21),
    (270, 64),
    (270, 1001),
    (300, 2048),
    (9, 2049),
    (2, 5),
]
# By the thread of each row, all of them or slices of classes where there are few rows; or into
# zeros.
OF_ROWS = [(3, 5, 40), (2, 21, 9, 33), (4, 3, 6)]
IN_SLICES = [(3, 300, 16), (1, 130, 704)]
IN_ZEROS = [(5, 1, 4), (3, 300, 10), (1, 130, 700), (2, 2049, 16), (5, 150, 3)]


def gathers(device: Device) -> bool:
    """Whether the kernel has run."""
    return any(name.startswith("gathered_rows<") for name in names(device))


@pytest.mark.parametrize(("case", "shape"), levels.covering(5, CASES, SHAPES))
def test_every_case_at_every_length(case: RowCase, shape: tuple[int, int]) -> None:
    operands = case.draw(np.random.default_rng(3), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        bits = exercise(device, case, operands)
        assert gathers(device)
    with installed(multiprocessors=1, blocks_per_multiprocessor=1, seed=2) as device:
        assert exercise(device, case, operands) == bits, "the same bits on any device"


@pytest.mark.parametrize(
    ("case", "shape"),
    levels.covering(3, CASES[:3], [*OF_ROWS, *IN_SLICES, *IN_ZEROS, (70, 6, 8)]),
)
def test_classes_ahead_of_pixels(case: RowCase, shape: tuple[int, ...]) -> None:
    operands = case.draw(np.random.default_rng(4), shape, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        bits = exercise(device, case, operands)
        assert gathers(device)
        grids = {launch.grid[0] for launch in device.launches if "gathered" in launch.name}
        assert (len(grids) > 1) == (shape in IN_SLICES)
        assert any(".writing = IN_ZEROS" in name for name in names(device)) == (shape in IN_ZEROS)
    with installed(multiprocessors=1, blocks_per_multiprocessor=1, seed=2) as device:
        assert exercise(device, case, operands) == bits, "the same bits on any device"


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float64", "float16"]))
@pytest.mark.parametrize("columns", levels.first([21, 3, 333, 1024]))
@pytest.mark.parametrize("pixels", [(), (16,), (17,)])
def test_dtypes(dtype: str, columns: int, pixels: tuple[int, ...]) -> None:
    shape = 300 if not pixels else 20, columns, *pixels
    operands = NLL.draw(np.random.default_rng(5), shape, DTYPES[dtype])
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, NLL, operands, dtype=dtype)
        assert gathers(device)


@pytest.mark.parametrize("rows", levels.first([4, 1]))
def test_tiles_of_several_slices(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows, which begin anywhere in a vector, several tiles in each block."""
    monkeypatch.setattr(row_gathering_schedule, "THREADS", 32)
    monkeypatch.setattr(row_gathering_schedule, "FEW_BYTES", rows * 17 * 4)
    monkeypatch.setattr(row_gathering_schedule, "SEGMENTS", 2)
    operands = NLL.draw(np.random.default_rng(6), (100, 17), np.float32)
    with installed(multiprocessors=1, blocks_per_multiprocessor=3, seed=1) as device:
        exercise(device, NLL, operands)
        assert {launch.grid[0] for launch in device.launches} >= {2, 2 * 32 // rows}


@pytest.mark.parametrize(
    ("case", "dtype", "columns", "capability"),
    levels.covering(
        5, CASES[:3], ["float32", "bfloat16", "float64"], [2, 3, 5, 12], ["90", "80", "70"]
    ),
)
def test_gradients_from_shared_memory(
    case: RowCase, dtype: str, columns: int, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few elements, in several tiles of a block, which leave what others find at 0."""
    monkeypatch.setattr(row_gathering_schedule, "STAGED_ROWS", 0)
    monkeypatch.setattr(row_gathering_schedule, "SEGMENTS", 2)
    operands = case.draw(np.random.default_rng(6), (1501, columns), DTYPES[dtype])
    with installed(multiprocessors=3, seed=1, compute_capability=capability) as device:
        exercise(device, case, operands, dtype=dtype)
        is_staged = columns * DTYPES[dtype].itemsize <= row_gathering_schedule.STAGED_BYTES
        assert any(".writing = STAGED" in name for name in names(device)) == is_staged


@pytest.mark.parametrize("capability", ["90", "80"])
def test_rows_astray_in_shared_memory(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their NaN are gone in the next tile, with the same thread."""
    monkeypatch.setattr(row_gathering_schedule, "STAGED_ROWS", 0)
    monkeypatch.setattr(row_gathering_schedule, "SEGMENTS", 1)
    rng = np.random.default_rng(10)
    x, target = rng.standard_normal((1100, 3)).astype(np.float32), rng.integers(0, 3, 1100)
    target[[3, 256 + 4, 512 + 4, 1098]] = 3
    target[[5, 256 + 3, 256 + 5, 1099]] = -100
    expected = value_and_grad(nll_loss)(x, target, reduction="sum")
    with installed(seed=1, compute_capability=capability) as device:
        got = value_and_grad(nll_loss)(device.asarray(x), device.asarray(target), reduction="sum")
        assert any(".writing = STAGED" in name for name in names(device))
        np.testing.assert_allclose(got[1].get(), expected[1], rtol=1e-6)


def test_slices_of_tiles() -> None:
    """Enough blocks where there are few rows, no more than are worth it, and none too long."""
    few, blocks = row_gathering_schedule.FEW_BYTES, row_gathering_schedule.BLOCKS
    slices = row_gathering_schedule._slices
    assert slices(1, few * 4) == 1, "a row is not divided"
    assert slices(100, few * 4) == 100
    assert slices(256, few // 4) == 64
    assert slices(256 * blocks, 64) == 1
    assert slices(256 * blocks, 8 << 10) == 4
    assert slices(256 * blocks // 2, 1 << 10) == 2


@pytest.mark.parametrize("long_bytes", [0, row_gathering_schedule.LONG_BYTES])
def test_gradients_that_are_written_anew(long_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fewer rows count than were anticipated: by blocks that have several segments each."""
    monkeypatch.setattr(row_gathering_schedule, "LONG_BYTES", long_bytes)
    monkeypatch.setattr(row_gathering_schedule, "THREADS", 32)
    monkeypatch.setattr(row_gathering_schedule, "FEW_BYTES", 300)
    rng = np.random.default_rng(9)
    x, target = rng.standard_normal((100, 17)).astype(np.float32), rng.integers(0, 17, 100)
    with installed(multiprocessors=1, blocks_per_multiprocessor=1, seed=1) as device:
        for ignored in ([], [3, 50], [3, 50, 99]):
            target[ignored] = -100
            got = value_and_grad(nll_loss)(device.asarray(x), device.asarray(target))
            expected = value_and_grad(nll_loss)(x, target)
            for result, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(result.get(), wanted, rtol=1e-6)
        grids = {launch.grid[0] for launch in device.launches if "gathered" in launch.name}
        assert grids == ({8, 4 * 8} if long_bytes else {1, 4})


@pytest.mark.parametrize("columns", [5, 2049])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_rows_that_are_ignored_or_out_of_range(reduction: Any, columns: int) -> None:
    """They have gradients of 0, or NaN; so has a mean with one that is out of range."""
    rng = np.random.default_rng(7)
    x, target = rng.standard_normal((300, columns)).astype(np.float32), rng.integers(0, 5, 300)
    target[[0, 7, 299]] = -100
    for bad in ([], [1, 8, 258]):
        target[bad] = [columns, -1, 9999][: len(bad)]
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            if reduction == "none":
                got = [nll_loss(*arrays, reduction="none")]
                expected = [nll_loss(x, target, reduction="none")]
            else:
                got = [*value_and_grad(nll_loss)(*arrays, reduction=reduction)]
                expected = [*value_and_grad(nll_loss)(x, target, reduction=reduction)]
            for result, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(result.get(), wanted, rtol=1e-6)
            assert gathers(device)
        if reduction != "none":
            assert np.isnan(expected[1]).any() == bool(bad)


def test_no_classes() -> None:
    """Every target is out of range."""
    x, target = np.ones((3, 0), np.float32), np.zeros(3, np.int64)
    with installed(multiprocessors=3, seed=1) as device:
        value, gradient = value_and_grad(nll_loss)(device.asarray(x), device.asarray(target))
        assert np.isnan(value.get())
        assert gradient.shape == (3, 0)


def test_none_is_left() -> None:
    """The mean is NaN and its gradients are 0."""
    x, target = np.ones((40, 3), np.float32), np.full(40, -100)
    with installed(multiprocessors=3, seed=1) as device:
        value, gradient = value_and_grad(nll_loss)(device.asarray(x), device.asarray(target))
        assert np.isnan(value.get())
        assert not gradient.get().any()


def test_derivatives_along_tangents_and_with_grad_output() -> None:
    rng = np.random.default_rng(8)
    x, along = rng.standard_normal((2, 300, 7)).astype(np.float32)
    target, own = rng.integers(0, 7, 300), rng.standard_normal(300).astype(np.float32)
    target[5] = -100
    request = Request(value=False, wanted=(0,), vjp=True)
    call, operands = prepare_of(nll_loss)(x, target, reduction="none")
    expected = resolve(call, operands)[0].run(call, request, (own, *operands))
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [device.asarray(a) for a in (own, x, target)]
        found = resolve(call, arrays[1:])[0].run(call, request, arrays)
        close(found[0], expected[0], 1e-6)
        slopes = jvp(nll_loss, (arrays[1], arrays[2]), (device.asarray(along), None))
        for result, wanted in zip(slopes, jvp(nll_loss, (x, target), (along, None)), strict=True):
            close(result, wanted, 2e-6)
        assert gathers(device)


@pytest.mark.parametrize("input", ["broadcast", "number", "backwards", "others", "transposed"])
def test_layouts(input: str) -> None:
    """The layout of what is read does not matter, but that the gradients lie as it does."""
    x = np.random.default_rng(13).standard_normal((200, 18)).astype(np.float32)
    views = {
        "broadcast": np.broadcast_to(x[:, :1], (200, 9)),
        "number": np.broadcast_to(x[:1, :1], (200, 9)),
        "backwards": x[:, 8::-1],
        "others": x[:, ::2],
        "transposed": np.asfortranarray(x[:, :9]),
    }
    target = np.arange(200) % 9
    expected = value_and_grad(nll_loss)(np.ascontiguousarray(views[input]), target)
    with installed(multiprocessors=3, seed=1) as device:
        got = value_and_grad(nll_loss)(device.asarray(views[input]), device.asarray(target))
        assert gathers(device)
        for result, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(result.get(), wanted, rtol=1e-6)


def check_rows_beyond_32_bits() -> None:
    """The block of more than 2^32 elements that has the last rows."""
    rows, columns = (21 << 20) + 3, 197
    last = np.array([rows - 1, rows - 2])
    per_tile = row_gathering_schedule.THREADS
    tile = (rows - 1) // per_tile

    def choose(name: str, blocks: int) -> list[int]:
        return [tile % row_gathering_schedule.SEGMENTS % blocks]

    with installed(seed=1, choose=choose, multiprocessors=8192) as device:
        input, target = device.sparse((rows, columns), np.float16), np.zeros(rows, np.int64)
        x = np.random.default_rng(19).standard_normal((2, columns)).astype(np.float16)
        input.host_view[last], target[last] = x, (1, columns - 1)
        classes = device.asarray(target)
        each = nll_loss(input, classes, reduction="none")
        gradient = value_and_grad(nll_loss)(input, classes, reduction="sum")[1]
        expected = value_and_grad(nll_loss)(x, target[last], reduction="sum")[1]
        assert gathers(device)
        np.testing.assert_array_equal(each.host_view[last], -x[[0, 1], target[last]])
        np.testing.assert_array_equal(gradient.host_view[last], expected)


def test_more_than_2_to_the_32_elements() -> None:
    check_rows_beyond_32_bits()


def test_an_offset_cut_to_32_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "(tile * (long long)(rows) + begin) * columns"
    wrong = "(int(tile * rows) + begin) * int(columns)"
    plant(monkeypatch, "kernels/gathered_rows.cu", right, wrong)
    with pytest.raises((AssertionError, EmulatorError), match="signed integer overflow"):
        check_rows_beyond_32_bits()

"""The kernel of multilabel_margin_loss on the emulator: lists of labels, rows of all lengths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cupy_losses import multilabel_margin_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device import plan_multilabel
from cupy_losses._device.plan_multilabel import PIECE, margin_team
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from ..emulator import Device, EmulatorError, installed
from ..tables.arrays import DTYPES
from ..tools import levels
from ..tools.planting import plant
from ..tools.static_checks import parameters
from .test_rows_emulated import MULTILABEL, close, exercise, names

pytestmark = pytest.mark.usefixtures("needs_emulator")

# What of a row one thread has, and 2, 4, 8, 16, 32, 128 and 256; of vectors and of elements.
LENGTHS = [3, 4, 7, 8, 9, 10, 50, 101, 150, 333, 600, 1001, 1500, 2049, 5000]


def drawn(
    rng: np.random.Generator, rows: int, columns: int, counts: Any, again: bool = False
) -> tuple[Any, Any]:
    """Scores, and so many labels for each row, which may come AGAIN, before others to ignore."""
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    labels = rng.integers(0, columns, (rows, columns))
    for row, count in zip(labels, np.broadcast_to(counts, rows), strict=True):
        if not again:
            row[:count] = rng.permutation(columns)[:count]
        if count < columns:
            row[count] = -1
    return x, labels


def passes(x: Any, labels: Any) -> tuple[Any, Any, Any, Any]:
    """The loss of each row, the mean, and the mean with its gradient."""
    each = multilabel_margin_loss(x, labels, reduction="none")
    mean = multilabel_margin_loss(x, labels)
    return each, mean, *value_and_grad(multilabel_margin_loss)(x, labels)


def check(device: Device, x: Any, labels: Any) -> list[bytes]:
    """The results of all passes, against the host's in float64; their bits."""
    results = device.together(passes, device.asarray(x), device.asarray(labels))
    each, mean, value, gradient = (result.get() for result in results)
    assert value.tobytes() == mean.tobytes(), "the same bits with a gradient as without"
    wide = x.astype(np.float64)
    of_rows = multilabel_margin_loss(wide, labels, reduction="none")
    np.testing.assert_allclose(each, of_rows, rtol=2e-6)
    expected, slopes = value_and_grad(multilabel_margin_loss)(wide, labels)
    np.testing.assert_allclose(mean, expected, rtol=2e-6)
    np.testing.assert_allclose(gradient, slopes, rtol=2e-6)
    return [result.tobytes() for result in (each, mean, gradient)]


@pytest.mark.quick
def test_teams_follow_from_the_length_of_a_row() -> None:
    for size, across in itertools.product((2, 4, 8), (False, True)):
        before = 1
        for columns in range(20_000):
            team = margin_team(columns, size, across)
            at_once = team.threads_per_row * team.batch * team.width
            assert columns % team.width == 0
            assert team.width * size <= 16
            assert team.window % 32 == 0
            assert team.window >= columns or team.window % at_once == 0
            assert team.threads_per_row > 1 or columns <= at_once == team.batch * team.width
            assert team.threads_per_row > 1 or columns <= max(team.piece, 1) <= PIECE
            assert team.threads_per_row == 1 or team.piece == PIECE
            # A count of a window fits into 16 bits.
            assert team.across or min(team.window, columns) <= 1 << 15
            assert team.shared <= 16 << 10
            if not across and columns % 16 == 0 and columns:
                assert team.threads_per_row >= before
                before = team.threads_per_row


OF_DEFAULT = (3, False), (10, True), (2049, False)


@pytest.mark.parametrize(
    ("columns", "again"),
    [
        levels.case(c, again, default=(c, again) in OF_DEFAULT, id=f"{c}-{again}")
        for c, again in itertools.product(LENGTHS, (False, True))
    ],
)
def test_lists_of_all_lengths(columns: int, again: bool) -> None:
    """None, up to a piece, more than one, more than shared memory has; in one warp, too."""
    rng = np.random.default_rng(columns)
    counts = [count for count in (0, 1, 7, 8, 9, 16, 33, 70) if count <= columns]
    if columns <= 101:
        counts += [columns, 0, columns]  # nothing ends the list
    counts = counts[-5:] if columns > 1000 else counts
    for _ in range(1 + (columns < 20)):
        x, labels = drawn(rng, len(counts), columns, counts, again)
        with installed(multiprocessors=3, seed=1) as device:
            bits = check(device, x, labels)
        with installed(multiprocessors=1, blocks_per_multiprocessor=1, seed=2) as device:
            assert check(device, x, labels) == bits, "the same bits on any device"
        counts.reverse()


@pytest.mark.quick
def test_labels_that_are_the_same() -> None:
    """Each counts as often as it is listed, in the loss, its gradient and those of the others."""
    x = np.array([[1.0, 0.0, 0.5, 3.0, -1.0]], np.float32)
    x = np.concatenate([x, x, x])
    labels = np.array([[0, 1, 0, 0, -1], [1, 0, 1, 1, 1], [4, -1, 4, 4, 4]])
    with installed(multiprocessors=3, seed=1) as device:
        check(device, x, labels)
        arrays = device.asarray(x[:1]), device.asarray(labels[:1])
        _, gradient = value_and_grad(multilabel_margin_loss)(*arrays)
    np.testing.assert_allclose(5 * gradient.get(), [[-6, -2, 4, 4, 0]], rtol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours_or_its_address() -> None:
    def rows(x: Any, labels: Any) -> tuple[Any, Any]:
        each = multilabel_margin_loss(x, labels, reduction="none")
        return each, value_and_grad(multilabel_margin_loss)(x, labels)[1]

    for columns in (9, 52, 101):
        rng = np.random.default_rng(4)
        x, labels = drawn(rng, 12, columns, 5)
        others = drawn(rng, 12, columns, min(40, columns), True)
        for y, listed in zip((x, labels), others, strict=True):
            listed[[4, 9]] = y[[4, 9]]
        bits = []
        for hosts, misalignment in (((x, labels), 0), (others, 0), ((x, labels), 8)):
            with installed(multiprocessors=3, seed=1) as device:
                arrays = [device.asarray(host, misalignment=misalignment) for host in hosts]
                results = device.together(rows, *arrays)
            bits.append([result.get()[[4, 9]].tobytes() for result in results])
        assert bits[0] == bits[1] == bits[2]


@pytest.mark.exhaustive
def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of which not all is marked at a time."""
    rng = np.random.default_rng(5)
    expected = []
    for window in (None, 1 << 10):
        if window is not None:
            monkeypatch.setattr(plan_multilabel, "WINDOW", window)
        results = []
        for count, again in itertools.product((5, 40), (False, True)):
            x, labels = drawn(np.random.default_rng(count), 2, 4200, count, again)
            with installed(multiprocessors=3, seed=1) as device:
                results.append(check(device, x, labels))
        expected.append(results)
    assert expected[0] == expected[1], "the same bits with other windows"
    monkeypatch.setattr(plan_multilabel, "WINDOW_ACROSS", 1 << 6)
    with installed(multiprocessors=3, seed=1) as device:
        check(device, *(np.asfortranarray(host) for host in drawn(rng, 40, 150, 20, True)))
        assert all(parameters(name, "MarginTeam")["across"] for name in names(device))


@pytest.mark.parametrize(
    "layout", levels.first(["transposed", "misaligned", "dense", "sliced", "backwards"], 2)
)
@pytest.mark.parametrize("columns", levels.first([52, 4, 1001]))
def test_layouts(columns: int, layout: str) -> None:
    operands = MULTILABEL.draw(np.random.default_rng(6), (3000 // columns, columns), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, MULTILABEL, operands, layout)
        across = columns > 4 and layout == "transposed"
        assert {parameters(name, "MarginTeam")["across"] for name in names(device)} == {across}


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float64", "float16"]))
def test_dtypes(dtype: str) -> None:
    for columns in (3, 64, 101):
        operands = MULTILABEL.draw(np.random.default_rng(7), (20, columns), DTYPES[dtype])
        with installed(multiprocessors=3, seed=1) as device:
            exercise(device, MULTILABEL, operands, dtype=dtype)


@pytest.mark.parametrize("dtype", levels.first([np.uint64, np.int32, np.uint8, np.int16]))
def test_dtypes_of_labels(dtype: Any) -> None:
    """Of unsigned ones none ends the list."""
    x, labels = drawn(np.random.default_rng(8), 7, 20, 20)
    if np.iinfo(dtype).min < 0:
        labels[np.arange(7), np.arange(7)] = -1
    labels = labels.astype(dtype)
    if dtype == np.uint64:
        labels[3, 4] = 2**64 - 1  # out of range, not negative
    with installed(multiprocessors=3, seed=1) as device:
        check(device, x, labels)


@pytest.mark.parametrize("shape", levels.first([(5,), (2, 1500), (1,), (4, 3, 2), (1, 1)], 2))
def test_shapes(shape: tuple[int, ...]) -> None:
    operands = MULTILABEL.draw(np.random.default_rng(9), shape, np.float32)
    with installed(multiprocessors=3, seed=2) as device:
        exercise(device, MULTILABEL, operands)


def test_rows_of_no_elements() -> None:
    """0 / 0, as on the host; of arrays that have memory."""
    x, labels = np.zeros((3, 4), np.float32), np.zeros((3, 4), np.int64)
    assert np.isnan(multilabel_margin_loss(x[:, :0], labels[:, :0]))
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x)[:, :0], device.asarray(labels)[:, :0]
        assert np.isnan(multilabel_margin_loss(*arrays, reduction="none").get()).all()
        assert np.isnan(multilabel_margin_loss(*arrays).get())


@pytest.mark.parametrize("columns", levels.first([50, 4, 1001]))
def test_rows_of_no_use(columns: int) -> None:
    """A label out of range before the end gives NaN to its row alone."""
    x, labels = drawn(np.random.default_rng(10), 12, columns, min(40, columns - 1))
    labels[3, 0], labels[5, columns // 2 if columns < 80 else 39] = columns, 2**40
    labels[7, 2:4] = -1, columns  # behind the end
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x), device.asarray(labels)
        each, _, value, gradient = (x.get() for x in device.together(passes, *arrays))
    assert np.isnan(value)
    assert np.flatnonzero(np.isnan(each)).tolist() == [3, 5]
    assert np.isnan(gradient[[3, 5]]).all()
    rest = np.delete(np.arange(12), [3, 5])
    with installed(multiprocessors=3, seed=1) as device:
        check(device, x[rest], labels[rest])


def test_scores_of_any_size() -> None:
    """Beyond what is scaled, infinite, NaN, and so near to the margin that they are 0."""
    rng = np.random.default_rng(11)
    x, labels = drawn(rng, 12, 90, 9)
    x[:4] *= np.array([[1e6], [1e9], [1e30], [1e34]], np.float32)
    x[4, labels[4, 0]] = -np.inf
    x[5, labels[5, 9]] = np.inf
    x[6, labels[6, 8]] = np.inf
    x[7] = 0
    x[7, labels[7, :9]] = 1
    x[8] = x[7]
    x[8, 3] = 1e-6
    x[9, labels[9, :9]] = 1e7
    with installed(multiprocessors=3, seed=1) as device:
        check(device, x, labels)
        x[10, labels[10, 0]] = np.nan
        arrays = device.asarray(x), device.asarray(labels)
        each = multilabel_margin_loss(*arrays, reduction="none").get()
        expected = multilabel_margin_loss(x.astype(np.float64), labels, reduction="none")
    np.testing.assert_allclose(each, expected, rtol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("columns", "reduction"), levels.covering(2, [50, 3, 1001], ["mean", "none"])
)
def test_backward_and_double_backward(columns: int, reduction: str) -> None:
    rng = np.random.default_rng(12)
    x, labels = drawn(rng, 6, columns, [0, 1, 2, 3, min(20, columns), 2], True)
    call, ordered = prepare_of(multilabel_margin_loss)(x, labels, reduction=reduction)
    scale = rng.standard_normal(6 if reduction == "none" else ()).astype(np.float32)
    tangent = rng.standard_normal(x.shape).astype(np.float32)
    for request, leading in (
        (Request(value=False, wanted=(0,), vjp=True), (scale,)),
        (Request(tangents=(0,)), (tangent,)),
        (Request(value=False, wanted=(0,), vjp=True, tangents=(0,)), (scale, tangent)),
    ):
        expected = on_host(call, request, [*leading, *ordered])
        with installed(multiprocessors=3, seed=1) as device:
            arrays = [device.asarray(np.asarray(host)) for host in (*leading, *ordered)]
            library, own = resolve(call, arrays[len(leading) :])
            results = library.run(call, request, [*arrays[: len(leading)], *own])
            for result, value in zip(results, expected, strict=True):
                close(result, value, 1e-5)


def test_several_segments_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_multilabel, "WORKING_THREADS", 512)
    for rows, columns in (700, 12), (1200, 3), (9, 2100):
        with installed(multiprocessors=1, blocks_per_multiprocessor=1, seed=1) as device:
            check(device, *drawn(np.random.default_rng(13), rows, columns, 3))


def check_rows_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of more than 2^32 elements that have the last rows, and those alone."""
    rows, columns = (1 << 20) + 3, 4160
    monkeypatch.setattr(plan_multilabel, "WORKING_THREADS", rows * 1024)
    last = np.array([rows - 1, rows - 2])
    x, labels = drawn(np.random.default_rng(14), 2, columns, 3)
    with installed(seed=1, choose=lambda name, blocks: sorted(set(last % blocks))) as device:
        input, target = (
            device.sparse((rows, columns), np.float16),
            device.sparse((rows, columns), np.int8),
        )
        labels[:, :3] = [[1, 100, 99], [3, 2, 1]]
        labels[:, 3:] = -1
        input.host_view[last], target.host_view[last] = x, labels
        target.host_view.ravel()[last * columns % (1 << 32)] = -1  # no labels at a cut offset
        each = multilabel_margin_loss(input, target, reduction="none")
        gradient = value_and_grad(multilabel_margin_loss)(input, target, reduction="sum")[1]
        half = x.astype(np.float16).astype(np.float64)
        expected = multilabel_margin_loss(half, labels, reduction="none")
        slopes = value_and_grad(multilabel_margin_loss)(half, labels, reduction="sum")[1]
        np.testing.assert_allclose(each.host_view[last], expected, rtol=2e-3)
        np.testing.assert_allclose(gradient.host_view[last], slopes, rtol=2e-3, atol=1e-6)


def test_more_than_2_to_the_32_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    check_rows_beyond_32_bits(monkeypatch)


def test_an_offset_cut_to_32_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "get<K>(pointers) + at.offset[K] +"
    wrong = right.replace("at.offset[K]", "int(at.offset[K])")
    plant(monkeypatch, "kernels/multilabel_margin.cu", right, wrong)
    with pytest.raises((AssertionError, EmulatorError), match="Not equal"):
        check_rows_beyond_32_bits(monkeypatch)

"""The host backend: its sums, its chunks, what it computes once and how much memory it takes."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cupy_losses
from cupy_losses import (
    binary_cross_entropy_with_logits,
    grad,
    grad_and_hess,
    l1_loss,
    mse_loss,
    row_loss,
    smooth_l1_loss,
    value_and_grad,
    vjp,
)
from cupy_losses._core import chunks
from cupy_losses._host import pointwise, recording, rows, schedule
from cupy_losses._host.dual import plain

from ..tables.arrays import DTYPES, ulps
from ..tables.losses import LOSSES, Case
from ..tables.rows import ROWS, RowCase
from ..tools.levels import covering

Array = Any

SIZES = (1, 2, 511, 513, 4097, chunks.CHUNK + 1, 5 * chunks.CHUNK // 2 + 3)


@pytest.mark.parametrize("size", SIZES)
def test_sums_add_no_error(size: int) -> None:
    """Sums of numbers of one size, and of all sizes, in float64."""
    rng = np.random.default_rng(size)
    for x in rng.random(size), rng.random(size) * 10.0 ** rng.integers(-9, 9, size):
        exact = math.fsum(x)
        assert abs(float(l1_loss(x, np.zeros(size), reduction="sum")) - exact) <= math.ulp(exact)


@pytest.mark.parametrize("size", SIZES)
def test_equal_elements(size: int) -> None:
    """A mean of equal numbers is the number, to the last bit."""
    for number in 0.1, 1 / 3, 1e300:
        x = np.full(size, number)
        assert float(l1_loss(x, np.zeros(size))) == number


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_sums_are_rounded_once(dtype: Any, size: int) -> None:
    """Sums of fewer bits: of equal numbers, and of those of all sizes and of both signs."""
    rng = np.random.default_rng(size)
    for x in np.full(size, 0.1), rng.standard_normal(size) * 10.0 ** rng.integers(-9, 3, size):
        operand = x.astype(dtype)
        exact = math.fsum(np.abs(operand.astype(np.float64)))
        mean = float(l1_loss(operand, np.zeros(size, dtype)))
        ulp = float(np.spacing(dtype(exact / size)))
        assert abs(mean - exact / size) <= 0.5001 * ulp


def test_sums_of_blocks_of_two_shapes() -> None:
    """Rows that are no multiple of a chunk."""
    x = np.random.default_rng(0).random((3, chunks.CHUNK + 100))
    exact = math.fsum(x.ravel())
    assert abs(float(l1_loss(x, np.zeros_like(x), reduction="sum")) - exact) <= math.ulp(exact)


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_values_have_the_same_bits_with_a_gradient(case: Case) -> None:
    """The value comes with the derivative by any operand, from the same arithmetic."""
    operands = case.draw(np.random.default_rng(1), (3, 700))
    options = {"reduction": "sum", **case.parameters}
    value = case.loss(*operands, **options)
    for k in range(len(operands)):
        with_gradient, _ = value_and_grad(case.loss, k)(*operands, **options)
        assert with_gradient == value


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_values_of_rows_have_the_same_bits_with_a_gradient(case: RowCase) -> None:
    operands = case.draw(np.random.default_rng(1), (90, 70), np.float64)
    assert case.call(operands, value_and_grad(case.loss))[0] == case.call(operands)


def test_one_evaluation_gives_value_and_gradient() -> None:
    calls = []

    def formula(i: Array, t: Array) -> Array:
        calls.append(plain(i).size)
        return (i - t) * (i - t)

    loss = cupy_losses.pointwise_loss(
        "counted", "(input - target) * (input - target)", numpy=formula
    )
    x = np.linspace(-1.0, 1.0, 2 * chunks.CHUNK)
    loss(x, -x)  # compares a few elements, once
    calls.clear()
    value_and_grad(loss)(x, -x)
    assert calls == [chunks.CHUNK, chunks.CHUNK]


def test_a_formula_takes_few_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient share what they have in common, and the memory of what is not needed."""
    made: list[schedule.Schedule] = []

    class Kept(schedule.Schedule):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(pointwise, "Schedule", Kept)
    x = np.linspace(-3.0, 3.0, 13, dtype=np.float32)
    value, gradient = value_and_grad(smooth_l1_loss)(x, x / 3, beta=0.75)
    d = x.astype(np.float64) - x / 3
    each = np.where(abs(d) < 0.75, d * d / 1.5, abs(d) - 0.375)
    assert float(value) == np.float32(each.mean())
    np.testing.assert_array_equal(gradient, (np.clip(d / 0.75, -1, 1) / 13).astype(np.float32))
    (only,) = made
    functions = [instruction.function for instruction in only.instructions]
    assert functions.count(recording.clipped) == functions.count(np.true_divide) == 1
    assert functions.count(recording.widened) == 2
    assert len(only.buffers) == 3


def test_numbers_that_are_powers_of_2() -> None:
    """What they divide or multiply has the bits of the formula as it is written."""
    x = np.array([1e-310, -3.0, 0.1, 1e308, np.inf, np.nan])
    for number in 1.0, 2.0**-119, -0.25, 2.0**119:

        def formula(input: Array, target: Array, number: float = number) -> Array:
            return input / number - target

        loss = cupy_losses.pointwise_loss("divided", formula)
        with np.errstate(all="ignore"):
            expected = x / number
        np.testing.assert_array_equal(loss(x, np.zeros(6), reduction="none"), expected)


def test_hyper_parameters_of_every_call() -> None:
    """There are more of them than a plan keeps operations for."""
    x = np.array([0.5, 3.0])
    for beta in np.linspace(0.1, 4.0, 3 * pointwise._MOST):
        value, gradient = value_and_grad(smooth_l1_loss)(x, np.zeros(2), beta=beta, scale=beta)
        each = np.where(x < beta, x * x / (2 * beta), x - beta / 2)
        assert float(value) == pytest.approx(beta * each.mean())
        np.testing.assert_allclose(gradient, beta * np.minimum(x / beta, 1.0) / 2)


def test_gradients_that_are_operands() -> None:
    """They are arrays of their own, also where two are equal, as a sum divides by nothing."""
    loss = cupy_losses.pointwise_loss("product", lambda input, target: input * target)
    x, y = np.arange(4.0), np.arange(4.0) + 1
    value, (by_x, by_y) = value_and_grad(loss, (0, 1))(x, y, reduction="sum")
    assert (float(value), by_x.tolist(), by_y.tolist()) == (20.0, y.tolist(), x.tolist())
    value, (by_x, by_y) = value_and_grad(loss, (0, 1))(x, x, reduction="sum")
    arrays = [x, by_x, by_y]
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_operands_of_rows_stay(case: RowCase) -> None:
    """Gradients are finished in memory of their own, those along tangents too."""
    rng = np.random.default_rng(4)
    operands = case.draw(rng, (70, 80), np.float64)
    tangents = [rng.random(operands[name].shape) for name in case.differentiable]
    before = copy.deepcopy((operands, tangents))
    argnums = [case.positional.index(name) for name in case.differentiable]
    directions: list[Array | None] = [None] * len(case.positional)
    for k, tangent in zip(argnums, tangents, strict=True):
        directions[k] = tangent
    case.call(operands, value_and_grad(case.loss, argnums))
    primals = [operands[name] for name in case.positional]
    named = {name: x for name, x in operands.items() if name not in case.positional}
    options: dict[str, Any] = {**named, **case.parameters, "scale": 3.0}
    cupy_losses.hvp(case.loss, primals, directions, argnums[0], **options)
    for then, now in zip(before[1], tangents, strict=True):
        np.testing.assert_array_equal(now, then)
    for name, array in operands.items():
        np.testing.assert_array_equal(array, before[0][name])


@pytest.mark.filterwarnings("ignore:.*is broadcast")
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_gradients_that_overflow(dtype: str) -> None:
    """They are infinite whatever NumPy is to do then; here those of an operand that broadcasts."""
    large = 3e4 if dtype == "float16" else 2e38
    x = np.full((4, 3), large).astype(DTYPES[dtype])
    y = np.full((1, 3), -large).astype(DTYPES[dtype])
    along = [x, y]
    options: dict[str, Any] = {"reduction": "sum"}
    with np.errstate(all="raise"):
        slopes = [
            value_and_grad(mse_loss, 1)(x, y, **options)[1],
            cupy_losses.vjp(mse_loss, (x, y), np.ones((), x.dtype), 1, **options),
            cupy_losses.hvp(mse_loss, (x, y), along, 1, **options),
        ]
    for slope in slopes:
        assert slope.shape == y.shape
        assert np.isneginf(slope.astype(float)).all()


@pytest.mark.parametrize("length", [512, 575, 1000, 4103, 16000])
def test_long_rows_beside_each_other(length: int) -> None:
    """Their sums have the error of few additions, however long they are."""
    x = np.zeros((length, 4))
    x[0] = 30.0
    exact = np.log1p(np.exp(np.longdouble(-30)) * (length - 1))
    options: dict[str, Any] = {"axis": 0, "reduction": "none"}
    value = cupy_losses.cross_entropy(x, np.zeros(4, int), **options)
    assert abs(value - exact).max() <= 4 * np.spacing(float(exact))
    x = np.random.default_rng(length).random((length, 4))
    loss = cupy_losses.row_loss("sum_of_squares", lambda x: np.sum(x) ** 2)
    sums = np.array([math.fsum(row) for row in x.T])
    np.testing.assert_allclose(loss(x, **options), sums**2, rtol=4e-15)
    slopes = cupy_losses.hvp(loss, (x,), (x,), axis=0, reduction="sum")
    np.testing.assert_allclose(slopes, np.broadcast_to(2 * sums, x.shape), rtol=4e-15)
    counts = cupy_losses.row_loss("count", lambda x: np.sum(x > 0.5))(x, **options)
    np.testing.assert_array_equal(counts, np.count_nonzero(x > 0.5, axis=0))


def test_hyper_parameters_are_rounded_with_the_operands() -> None:
    """A margin that float32 rounds is that of float32 scores, and stays that of float64 ones."""
    loss = value_and_grad(cupy_losses.multi_margin_loss)
    for dtype in np.float32, np.float64:
        value, gradient = loss(np.array([[0.7, 0.0]], dtype), np.array([0]), margin=0.7)
        assert value == 0
        np.testing.assert_array_equal(gradient, np.zeros((1, 2)))
    scores, weight = np.array([[0.7, 0.0]], np.float32), np.ones(2)
    value, _ = loss(scores, np.array([0]), margin=0.7, weight=weight)
    np.testing.assert_allclose(value, (0.7 - float(scores[0, 0])) / 2, rtol=1e-6)


CHUNKED = [case for case in LOSSES if case.name in ("huber_loss", "gaussian_nll_loss")]


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("case", CHUNKED, ids=str)
@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_chunks_of_elements(monkeypatch: pytest.MonkeyPatch, case: Case, size: int) -> None:
    """Chunks of any size give what one gives, with a mask, weights and operands that broadcast."""
    rng = np.random.default_rng(2)
    operands = case.draw(rng, [(4, 5, 6), (5, 1), (4, 5, 6)][: len(case.draws)])
    extra = {"weight": rng.random((4, 1, 6)), "where": rng.random((4, 5, 6)) < 0.7}

    def results() -> list[Array]:
        found = [case.loss(*operands, **case.parameters, **extra, reduction="none")]
        for reduction in "mean", "sum":
            options = {**case.parameters, **extra, "reduction": reduction}
            value, slopes = value_and_grad(case.loss, (0, 1))(*operands, **options)
            found += [value, *slopes]
        return found

    whole = results()
    monkeypatch.setattr(pointwise, "chunks", functools.partial(chunks.chunks, size=size))
    for expected, got in zip(whole, results(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-15)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "as they are": lambda x: x,
    "Fortran": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}
SHAPES = [(9, 63), (9, 64), (65, 9), (3, 64, 4), (2, 5, 70)]


@pytest.mark.parametrize(("shape", "layout"), covering(4, SHAPES, LAYOUTS))
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_rows_of_any_length(
    monkeypatch: pytest.MonkeyPatch, case: RowCase, shape: tuple[int, ...], layout: str
) -> None:
    """Short rows and long ones, however they lie, all at once and a few at a time."""
    operands = case.draw(np.random.default_rng(3), shape, np.float64)
    laid = {name: LAYOUTS[layout](x) if x.ndim > 1 else x for name, x in operands.items()}
    value, slopes = case.reduced(operands, "mean"), case.slopes(operands, [0, 1, -1])
    denominator = case.divisor(operands, "mean")
    numbers = [case.positional.index(name) for name in case.differentiable]
    axis = case.axis(shape)
    for chunk in chunks.CHUNK, 150:
        monkeypatch.setattr(rows, "CHUNK", chunk)
        got, gradients = case.call(laid, value_and_grad(case.loss, numbers))
        np.testing.assert_allclose(got, float(value), rtol=1e-13)
        for name, gradient in zip(case.differentiable, gradients, strict=True):
            some = np.take(gradient, [0, 1, -1], axis=axis)
            expected = (slopes[name] / denominator).astype(np.float64)
            np.testing.assert_allclose(some, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("columns", [2, 63, 64, 300, 511, 512, 5000])
@pytest.mark.parametrize("apart", [False, True])
def test_sums_of_rows(columns: int, apart: bool) -> None:
    """One element after the other in short rows; all of these are rounded alike if terms are equal.

    docs/precision.md says by how much sums are off in float64.
    """
    loss = row_loss("sum_of_a_row", lambda input: np.sum(input))
    rng = np.random.default_rng(5)
    most = columns / 2 if columns < (512 if apart else 64) else 10
    for x in np.repeat(rng.uniform(1, 2, (300, 1)), columns, axis=1), rng.random((300, columns)):
        exact = np.array([math.fsum(row) for row in x])
        got = loss(np.asfortranarray(x) if apart else x, reduction="none")
        assert ulps(got, exact) <= most


def test_rows_without_elements() -> None:
    """The distance of vectors of no components is 0; there is no class."""
    empty = np.zeros((3, 0))
    value, gradient = value_and_grad(cupy_losses.triplet_margin_loss)(empty, empty, empty)
    assert (float(value), gradient.shape) == (1.0, (3, 0))
    value, gradient = value_and_grad(cupy_losses.cross_entropy)(empty, empty)
    assert (float(value), gradient.shape) == (0.0, (3, 0))
    assert math.isnan(cupy_losses.cross_entropy(empty, np.zeros(3, np.int64)))


def test_derivatives_at_infinity() -> None:
    """What does not vary has the slope 0 there too, not 0 times infinity."""
    x, y = np.array([math.inf, -math.inf]), np.ones(2)
    gradient, hessian = grad_and_hess(binary_cross_entropy_with_logits)(x, y)
    assert gradient.tolist() == [0.0, -1.0]
    assert hessian.tolist() == [0.0, 0.0]


def test_arguments_that_are_not_arrays() -> None:
    """What is kept for a next call of the same shapes does not depend on them."""
    x, y = np.array([0.5, 3.0]), np.zeros(2)
    for beta, scale in ((1.0, 1.0), (2.0, 1.0), (1.0, 3.0), (1.0, 1.0)):
        each = np.where(x < beta, x * x / (2 * beta), x - beta / 2)
        options: dict[str, Any] = {"beta": beta, "scale": scale}
        assert float(smooth_l1_loss(x, y, **options)) == pytest.approx(scale * each.mean())
        slopes = scale * np.minimum(x / beta, 1.0) / 2
        np.testing.assert_allclose(grad(smooth_l1_loss)(x, y, **options), slopes)
    scores, classes = np.arange(6.0).reshape(2, 3), np.array([0, 2])
    losses = {
        float(cupy_losses.cross_entropy(scores, classes, ignore_index=ignored))
        for ignored in (0, 2, -100)
    }
    assert len(losses) == 3
    for _ in range(2):
        with pytest.raises(ValueError, match="does not broadcast"):
            mse_loss(x, np.zeros(3))


ELEMENTS = 1 << 21
BOUND = 6 << 20  # bytes: less than one operand in float64
CALLS: dict[str, tuple[Callable[..., Array], tuple[int, ...]]] = {
    "elements": (smooth_l1_loss, (ELEMENTS,)),
    "short rows": (cupy_losses.cross_entropy, (ELEMENTS // 8, 8)),
    "long rows": (cupy_losses.cross_entropy, (ELEMENTS // 4096, 4096)),
    "images": (cupy_losses.cross_entropy, (4, 32, ELEMENTS // 128)),
}


@pytest.mark.parametrize("name", CALLS)
def test_memory_is_bounded(name: str) -> None:
    """A call allocates what it returns and a few chunks."""
    loss, shape = CALLS[name]
    x = np.zeros(shape, np.float32)
    target = x if loss is smooth_l1_loss else np.zeros((shape[0], *shape[2:]), np.int64)
    for function, returned in ((loss, 0), (value_and_grad(loss), x.nbytes)):
        tracemalloc.start()
        function(x, target)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak - returned < BOUND


@pytest.mark.parametrize("shape", [(500, 1000), (4, 80, 40, 40)])
def test_what_reads_one_element_of_a_row_converts_no_others(shape: tuple[int, ...]) -> None:
    """Not even a chunk of the scores, or of the gradient, is there in float64."""
    scores = np.zeros(shape, np.float32)
    classes = np.zeros((shape[0], *shape[2:]), np.int64)
    loss: Any = cupy_losses.nll_loss
    for function, returned in ((loss, 0), (value_and_grad(loss), scores.nbytes)):
        function(scores, classes)
        tracemalloc.start()
        function(scores, classes)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak - returned - 8 * classes.nbytes < chunks.CHUNK


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "axis"), [((300, 7), 1), ((7, 300), 0), ((5, 7, 60), 1)])
def test_what_reads_one_element_of_a_row(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], axis: int, layout: str
) -> None:
    """Rows in one chunk and in several, in any memory order, some without a class."""
    rng = np.random.default_rng(0)
    scores = LAYOUTS[layout](rng.random(shape))
    classes = rng.integers(-1, 8, np.delete(shape, axis))
    weight = rng.random(classes.shape)
    is_class = np.arange(7) == classes[..., None]
    sign = np.where((classes >= 0) & (classes != 7), -1.0, np.where(classes == 7, np.nan, 0.0))
    each = sign * weight * np.where(is_class, np.moveaxis(scores, axis, -1), 0.0).sum(axis=-1)
    slopes = (sign * weight)[..., None] * np.where(np.isnan(sign)[..., None], 1.0, is_class)
    options: dict[str, Any] = {"sample_weight": weight, "ignore_index": -1, "axis": axis}
    for chunk in chunks.CHUNK, 64:
        monkeypatch.setattr(rows, "CHUNK", chunk)
        found = cupy_losses.nll_loss(scores, classes, reduction="none", **options)
        np.testing.assert_array_equal(found, each)
        _, gradient = value_and_grad(cupy_losses.nll_loss)(
            scores, classes, reduction="sum", **options
        )
        np.testing.assert_array_equal(np.moveaxis(gradient, axis, -1), slopes)


def test_an_infinite_cotangent_reaches_no_element_that_is_not_read() -> None:
    """As on a device."""
    slopes = vjp(cupy_losses.nll_loss, (np.zeros((1, 3)), np.array([1])), np.array(np.inf))
    assert slopes.tolist() == [[0.0, -np.inf, 0.0]]

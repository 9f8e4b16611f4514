"""A reduction as the kernels have it: a sum and a denominator, on the emulator.

The kernels are driven without a planner: with a result in float64, and with a denominator that
comes from outside.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cupy_losses import l1_loss
from cupy_losses._core.dtypes import c_type
from cupy_losses._core.shapes import IterationSpace
from cupy_losses._device import sources
from cupy_losses._device.cpp import template, tuned
from cupy_losses._device.launch import int64, iteration_space, reciprocal

from ..emulator import Device, Module
from ..tables.arrays import BFLOAT16

pytestmark = pytest.mark.usefixtures("needs_emulator")

Array = Any
THREADS = 512
SEGMENTS = (1, 3)
DTYPES = {"float32": np.float32, "bfloat16": BFLOAT16}
MSE = "SquaredError<float>"
WEIGHTED = f"Weighted<{MSE}, true>"


def space(elements: int, *steps: tuple[int, ...]) -> bytes:
    """The fields of an iteration space of one dimension."""
    return iteration_space(IterationSpace((elements,), steps))


def results(
    segments: int, divisor: float, denominator: float | None, result: Array, sums: int
) -> tuple[Any, ...]:
    """The fields of Results, with neither grad_output nor an Anticipation."""
    given = None if denominator is None else np.array([denominator])
    partials = np.zeros(2 * sums * (segments + 1))
    return segments, divisor, given, None, None, result, np.zeros(2, np.uint32), partials


def pointwise(
    loss: str,
    values: str,
    result: Array,
    operands: list[Array],
    *,
    real: str = "float",
    wanted: dict[int, Array] | None = None,
    segments: int = 1,
    divisor: float = 1.0,
    denominator: float | None = None,
    scale: float = 1.0,
) -> Array:
    """Run a pass over dense operands into `result`."""
    wanted = wanted or {}
    n, count = operands[0].size, len(operands)
    types = [f"const {c_type(x.dtype.name)}*" for x in operands]
    types += [f"{c_type(x.dtype.name)}*" for x in wanted.values()]
    name = template(
        "pointwise",
        *(
            real,
            loss,
            f"Layout<1, {count}, 0u, unsigned>",
            tuned("Tile", threads=THREADS, vectors_per_thread=4, width=1, batch=1),
            values,
        ),
        *(f"{sum(1 << k for k in wanted)}u", c_type(result.dtype.name), *types),
    )
    sums = 2 if values == "MEAN_OF_VALUES" else 1
    kernel = Module(sources.source("kernels/pointwise.cu"), [name]).get_function(name)
    kernel(
        (min(segments, 2),),
        (THREADS,),
        (
            *(b"\0", scale, space(n, *count * [(1,)]), n),
            results(segments, divisor, denominator, result, sums),
            *(*operands, *wanted.values()),
        ),
    )
    return result


def drawn(dtype: str, count: int, n: int = 5000) -> list[Array]:
    """Operands of a loss, as the kernels read them."""
    rng = np.random.default_rng(count)
    return [rng.standard_normal(n).astype(DTYPES[dtype]) for _ in range(count)]


def errors(input: Array, target: Array) -> Array:
    """The squared errors."""
    return (input.astype(np.float64) - target.astype(np.float64)) ** 2


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum(dtype: str, segments: int) -> None:
    operands = drawn(dtype, 2)
    wide, quotient = np.zeros(1), np.zeros(1, operands[0].dtype)
    for result in wide, quotient:
        pointwise(MSE, "SUM_OF_VALUES", result, operands, segments=segments, divisor=7.0)
    np.testing.assert_allclose(wide, errors(*operands).sum() / 7, rtol=1e-6)
    assert quotient[0] == wide[0].astype(quotient.dtype)


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weighted_mean(dtype: str, segments: int) -> None:
    _, input, target = drawn(dtype, 3)
    weight = np.random.default_rng(1).random(input.size).astype(DTYPES[dtype])
    operands = [weight, input, target]
    wide, quotient = np.zeros(1), np.zeros(1, weight.dtype)
    for result in wide, quotient:
        pointwise(WEIGHTED, "MEAN_OF_VALUES", result, operands, segments=segments)
    weights = weight.astype(np.float64)
    np.testing.assert_allclose(wide, weights @ errors(input, target) / weights.sum(), rtol=1e-6)
    assert quotient[0] == wide[0].astype(quotient.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_equal_elements(device: Device, dtype: str) -> None:
    """The element; within 2 ulp where 8 elements are added without their rounding errors."""
    target = device.asarray(np.zeros(4096, DTYPES[dtype]))
    most = 2 if dtype == "bfloat16" else 0
    found = []
    for x in np.random.default_rng(3).uniform(1, 2, 20).astype(np.float32):
        mean = l1_loss(device.asarray(np.full(4096, x)), target).get()
        assert mean.dtype == np.float32
        found.append(abs(float(mean) - float(x)) / np.spacing(x))
    assert max(found) <= most


@pytest.mark.parametrize("segments", SEGMENTS)
def test_nothing_is_rounded_off(segments: int) -> None:
    """Terms that cancel leave the others."""
    terms = np.concatenate([np.tile([1e16, 1.0, -3.0, 0.25], 1024), np.full(1024, -1e16)])
    value = np.zeros(1)
    pointwise("Identity<double>", "SUM_OF_VALUES", value, [terms], real="double", segments=segments)
    assert value[0] == -1.75 * 1024


def test_an_infinite_sum_is_no_nan() -> None:
    terms, value = np.array([1.0, np.inf, 2.0]), np.zeros(1)
    pointwise("Identity<double>", "SUM_OF_VALUES", value, [terms], real="double")
    assert value[0] == np.inf


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_denominator_from_outside(dtype: str, segments: int) -> None:
    """It replaces the divisor, in the value and in the gradient."""
    operands = drawn(dtype, 2)
    result, gradient = np.zeros(1, operands[0].dtype), np.zeros_like(operands[0])
    pointwise(
        *(MSE, "SUM_OF_VALUES", result, operands),
        wanted={0: gradient},
        segments=segments,
        divisor=3.0,
        denominator=8.0,
    )
    unit = 2.0**-7 if dtype == "bfloat16" else 1e-6
    total = errors(*operands).sum()
    np.testing.assert_allclose(result.astype(np.float64), total / 8.0, rtol=unit)
    input, target = (x.astype(np.float64) for x in operands)
    slopes = (2 * (input - target) / 8.0).astype(DTYPES[dtype]).astype(np.float64)
    np.testing.assert_allclose(gradient.astype(np.float64), slopes, rtol=unit)


def test_a_scaled_quotient_is_rounded_once() -> None:
    """In float64 too, where the product of the sum and the scale is rounded."""
    rng = np.random.default_rng(8)
    for total, divisor, scale in rng.uniform(0.1, 10, (40, 3)).tolist():
        value, gradient = np.zeros(1), np.zeros(1)
        pointwise(
            *("Identity<double>", "SUM_OF_VALUES", value, [np.array([total])]),
            real="double",
            wanted={0: gradient},
            divisor=divisor,
            scale=scale,
        )
        exact = Fraction(scale) / Fraction(divisor)
        assert gradient[0] == float(exact)
        assert value[0] == float(exact * Fraction(total))


@pytest.mark.parametrize("values", ["MEAN_OF_VALUES", "SUM_OF_VALUES"])
def test_a_mask_that_leaves_nothing(values: str) -> None:
    """The mean is NaN, its derivatives are 0."""
    input, target = drawn("float32", 2, 100)
    result, gradient = np.zeros(1, np.float32), np.ones(100, np.float32)
    pointwise(
        *(f"Masked<{MSE}, 0>", values, result, [np.zeros(100, np.bool_), input, target]),
        wanted={1: gradient},
        denominator=0.0,
    )
    assert not gradient.any()
    assert np.isnan(result[0])


def test_a_derivative_of_a_mean_of_nothing() -> None:
    operands = [np.ones(100, np.float32), np.zeros(100, np.bool_), *drawn("float32", 2, 100)]
    along = f"Masked<Jvp<{MSE}, 1u>, 1>"
    value = np.ones(1, np.float32)
    assert pointwise(along, "SUM_OF_VALUES", value, operands, denominator=0.0)[0] == 0.0


def test_weights_that_add_up_to_0_are_not_nothing() -> None:
    """Without a mask, gradients divide by 0 as the mean does."""
    input, target = np.ones(4, np.float32), np.zeros(4, np.float32)
    weight = np.array([1, -1, 2, -2], np.float32)
    gradient = np.zeros(4, np.float32)
    value = pointwise(
        *(WEIGHTED, "MEAN_OF_VALUES", np.zeros(1, np.float32), [weight, input, target]),
        wanted={1: gradient},
        denominator=0.0,
    )
    assert np.isnan(value[0])
    np.testing.assert_array_equal(gradient, [np.inf, -np.inf, np.inf, -np.inf])


# Of a (7, 40) input and a row of 40 targets.
@pytest.mark.parametrize(
    ("empty_is_zero", "denominator", "scale"),
    [("false", None, 1 / 3), ("false", 8.0, 1 / 8), ("true", 8.0, 1 / 8), ("true", 0.0, 0.0)],
)
def test_broadcast_sum(empty_is_zero: str, denominator: float | None, scale: float) -> None:
    rng = np.random.default_rng(3)
    input, target = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 40), (40,)))
    expected = 2 * (target - input.astype(np.float64)).sum(axis=0)
    team = tuned("SumTeam", threads=256, width=1, batch=8, beside=True, along=0, plain=1)
    name = (
        f"broadcast_sum<float, {MSE}, Layout<2, 2, 0u, unsigned>, "
        f"{team}, 1, {empty_is_zero}, float, const float*, const float*>"
    )
    kernel = Module(sources.source("kernels/broadcast_sum.cu"), [name]).get_function(name)
    layout = iteration_space(IterationSpace((7, 40), ((40, 1), (0, 1))))
    given = None if denominator is None else np.array([denominator])
    result = np.zeros(40, np.float32)
    sizes = np.int32(32), 40, 7, 7
    kernel((2,), (256,), (b"\0", 1.0, layout, *sizes, 3.0, given, result, input, target))
    np.testing.assert_allclose(result, expected * scale, rtol=1e-5)


COLUMNS = 12


def rows(
    values: str,
    result: Array,
    operands: list[Array],
    gradient: Array,
    *,
    directions: int = 0,
    divisor: float = 1.0,
    denominator: float | None = None,
    threads: int = 256,
) -> Array:
    """Run a pass of nll_loss with weights; a tangent comes first, if any."""
    n = len(gradient)
    arrays = [*operands, gradient]
    real = "double" if operands[-1].dtype == np.float64 else "float"
    types = [f"const {c_type(x.dtype.name)}*" for x in operands]
    name = template(
        "gathered_rows",
        *(real, f"NegativeLogLikelihood<{real}, true>"),
        f"RowLayout<1, {len(arrays)}, 0u, unsigned, int, unsigned>",
        tuned("GatheringTeam", threads=threads, resident=1, writing="IN_VECTORS"),
        *(values, "1u", f"{directions}u", "false", c_type(result.dtype.name), *types),
        f"{c_type(gradient.dtype.name)}*",
    )
    segments = -(-n // threads)
    sums = 2 if values == "MEAN_OF_VALUES" else 1
    steps = [1 if x.shape != (n,) else 0 for x in arrays]
    strides = [(0 if x.shape == (COLUMNS,) else x.size // n,) for x in arrays]
    module = Module(sources.source("kernels/gathered_rows.cu"), [name])
    kernel = module.get_function(name)
    kernel(
        (segments,),
        (threads,),
        (
            *(int64(-100), 1.0, space(n, *strides) + int64(*steps, *(x.size for x in arrays))),
            *(np.int32(threads), np.int32(1), reciprocal(COLUMNS)),
            *(n, COLUMNS, results(segments, divisor, denominator, result, sums)),
            *arrays,
        ),
    )
    return result


def problem(n: int, dtype: Any) -> tuple[Array, Array, Array]:
    """Log-probabilities, targets with ignored ones among them, weights of the classes."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, COLUMNS)).astype(dtype)
    target = rng.integers(0, COLUMNS, n)
    target[::5] = -100
    return x, target, rng.uniform(0.5, 2, COLUMNS).astype(dtype)


@pytest.mark.parametrize("n", [30, 600])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16])
def test_a_sum_of_rows(dtype: Any, n: int) -> None:
    x, target, weight = problem(n, dtype)
    left = np.flatnonzero(target >= 0)
    weights = weight.astype(np.float64)[target[left]]
    terms = -weights * x.astype(np.float64)[left, target[left]]
    unit = 1e-12 if dtype == np.float64 else 1e-6
    scale = math.fsum(abs(terms))
    for values, given, over in (
        ("MEAN_OF_VALUES", 8.0, weights.sum()),
        ("SUM_OF_VALUES", 8.0, 8.0),
        ("SUM_OF_VALUES", None, 3.0),
    ):
        gradient = np.ones_like(x)
        wide, quotient = (
            rows(
                *(values, np.zeros(1, result), [x, target, weight], gradient),
                divisor=3.0,
                denominator=given,
            )
            for result in (np.float64, dtype)
        )
        np.testing.assert_allclose(wide, terms.sum() / over, atol=unit * scale / over)
        assert quotient[0] == wide[0].astype(dtype)
        expected = np.zeros(x.shape)
        expected[left, target[left]] = -weights / (8.0 if given else 3.0)
        bound = 2.0**-8 if dtype == BFLOAT16 else unit
        np.testing.assert_allclose(gradient.astype(np.float64), expected, rtol=bound)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_partial_sums_than_are_loaded_at_once(dtype: Any) -> None:
    """A block of 32 threads adds up 300, those of the denominator too."""
    x, target, weight = problem(32 * 299 + 5, dtype)
    left = target >= 0
    weights = weight[target[left]].astype(np.float64)
    terms = -weights * x[left, target[left]].astype(np.float64)
    value = rows(*("MEAN_OF_VALUES", np.zeros(1), [x, target, weight], np.ones_like(x)), threads=32)
    unit = 2.0 ** (-24 if dtype == np.float32 else -50)
    np.testing.assert_allclose(value[0], terms.sum() / weights.sum(), rtol=16 * unit)


def test_rows_of_which_nothing_is_left() -> None:
    x, target, weight = problem(30, np.float32)
    target[:] = -100
    for values in "MEAN_OF_VALUES", "SUM_OF_VALUES":
        gradient, operands = np.ones_like(x), [x, target, weight]
        value = rows(values, np.zeros(1, np.float32), operands, gradient, denominator=0.0)
        assert np.isnan(value[0])
        assert not gradient.any()
    along = rows(
        *("SUM_OF_VALUES", np.ones(1, np.float32), [x, x, target, weight], np.ones_like(x)),
        directions=1,
        denominator=0.0,
    )
    assert along[0] == 0.0

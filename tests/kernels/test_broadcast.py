"""Operands that are broadcast: their values in vectors, and the sums of their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_losses import grad, mse_loss, multilabel_soft_margin_loss, value_and_grad

from ..emulator import Device, installed
from ..tables.arrays import DTYPES
from ..tools import levels
from ..tools.static_checks import parameters
from .test_rows_emulated import names

Array = Any
Shape = tuple[int, ...]
pytestmark = [
    pytest.mark.usefixtures("needs_emulator"),
    pytest.mark.filterwarnings("ignore:.*is broadcast"),
]

BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}


def drawn(seed: int, *shapes: Shape, dtype: Any = np.float32) -> list[Array]:
    """Numbers of a few bits, of which sums are exact."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-8, 9, shape)).astype(dtype) for shape in shapes]


def is_rounded(result: Array, exact: Array) -> None:
    """Raise unless numbers are those of float64, rounded once, but for a last bit."""
    unit = 2.0 ** (1 - BITS[str(result.dtype)])
    np.testing.assert_allclose(result.get().astype(np.float64), exact, rtol=unit, atol=0)


def summed(difference: Array, shape: Shape) -> Array:
    """The sum over the axes along which an array of this shape is broadcast."""
    ahead = difference.ndim - len(shape)
    total = difference.sum(tuple(range(ahead)))
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return total.sum(axes, keepdims=True)


# The shapes of input and target, and what the names of kernels that add gradients have. Terms that
# are neighbours: in a thread, in a few of a warp, in a block, in several blocks, along one
# dimension or two. Terms beside those of other sums, in vectors or not: of few sums, of more than a
# block has, of several blocks.
SUMS = [
    ((700, 3), (700, 1), (1, 8, False, 1, 1)),
    ((130, 8), (130, 1), (4, 4, False, 1, 1)),
    ((70, 50), (70, 1), (2, 8, False, 1, 1)),
    ((40, 200), (40, 1), (4, 4, False, 1, 1)),
    ((9, 1030), (9, 1), (2, 8, False, 1, 1)),
    ((3, 20000), (3, 1), (4, 4, False, 1, 1)),
    ((3, 20001), (3, 1), (1, 8, False, 1, 1)),
    ((30, 5, 12), (5, 1), (4, 4, False, -1, 1)),
    ((30, 5, 13), (5, 1), (1, 8, False, -1, 1)),
    ((9000,), (), (4, 4, False, 0, 1)),
    ((9001,), (1,), (1, 8, False, 0, 1)),
    ((900, 3), (3,), (1, 8, True, 0, 1)),
    ((300, 21), (21,), (1, 8, True, 0, 1)),
    ((300, 64), (64,), (4, 4, True, 0, 1)),
    ((20, 1500), (1500,), (4, 4, True, 0, 1)),
    ((20, 301), (301,), (1, 8, True, 0, 1)),
    ((9000, 36), (36,), (4, 4, True, 0, 1)),
    ((5, 17, 24), (5, 1, 24), (4, 4, True, 0, 1)),
    ((5, 17, 9), (5, 1, 9), (1, 8, True, 0, 1)),
    ((4, 5, 6, 7), (1, 5, 1, 7), (1, 8, True, -1, 1)),
    ((4, 5, 6, 8), (1, 5, 1, 8), (4, 4, True, -1, 1)),
]


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_every_kind_of_sum(case: tuple[Shape, Shape, tuple[int, ...]], device: Device) -> None:
    input, target, team = case
    x, y = drawn(1, input, target)
    gradient = grad(mse_loss, 1)(device.asarray(x), device.asarray(y), reduction="sum")
    is_rounded(gradient, summed(2 * (y - x.astype(np.float64)), target))
    sums = [name for name in names(device) if name.startswith("broadcast_sum<float, Sq")]
    assert sums
    for name in sums:
        _, *numbers = parameters(name, "SumTeam").values()
        assert tuple(numbers) == team


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float64", "float16"]))
@pytest.mark.parametrize("shapes", [((90, 40), (40,)), ((90, 40), (90, 1))], ids=str)
def test_dtypes(dtype: str, shapes: tuple[Shape, Shape], device: Device) -> None:
    x, y = drawn(2, *shapes, dtype=DTYPES[dtype])
    value, gradients = value_and_grad(mse_loss, (0, 1))(device.asarray(x), device.asarray(y))
    slope = 2 * (x.astype(np.float64) - y.astype(np.float64))
    is_rounded(value, ((slope / 2) ** 2).mean())
    is_rounded(gradients[0], slope / slope.size)
    is_rounded(gradients[1], summed(-slope, shapes[1]) / slope.size)


@pytest.mark.parametrize("case", [((33, 40), (40,)), ((33, 40), (33, 1))], ids=str)
def test_same_bits_on_any_device_and_at_any_address(case: tuple[Shape, Shape]) -> None:
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in case)
    gradients = set()
    for multiprocessors, apart in ((1, 0), (7, 1), (3, 3)):
        with installed(multiprocessors=multiprocessors, seed=1) as device:
            whole = device.asarray(np.concatenate([np.zeros(apart, np.float32), x.ravel()]))
            found = grad(mse_loss, 1)(whole[apart:].reshape(x.shape), device.asarray(y))
            gradients.add(found.get().tobytes())
    assert len(gradients) == 1


@pytest.mark.parametrize("columns", levels.first([3, 16, 50, 128, 300, 1001], 3))
@pytest.mark.parametrize("order", ["C", "F"])
def test_means_of_rows(columns: int, order: Any, device: Device) -> None:
    rng = np.random.default_rng(columns)
    x = np.asarray(rng.standard_normal((90, columns)).astype(np.float32), order=order)
    y = np.asarray(rng.integers(0, 2, x.shape).astype(np.float32), order=order)
    found = multilabel_soft_margin_loss(device.asarray(x), device.asarray(y), reduction="none")
    expected = np.logaddexp(0, np.where(y > 0, -x.astype(np.float64), x)).mean(axis=1)
    np.testing.assert_allclose(found.get(), expected, rtol=1e-6)
    assert any(name.startswith("broadcast_sum<") for name in names(device))


# Dense operands whose rows are no multiple of a vector, beside one that is broadcast.
CROSSED = [
    ((70, 3), (3,)),
    ((70, 3), (70, 1)),
    ((300, 1), (300, 1)),
    ((9, 2, 7), (2, 1)),
    ((9, 5, 7), (9, 1, 7)),
    ((3, 5, 7, 3), (5, 1, 3)),
    ((11, 3, 2, 3), (11, 1, 2, 1)),
    ((1029, 2), (2,)),
]


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float32", "float64"], 2))
@pytest.mark.parametrize("shapes", CROSSED, ids=str)
def test_vectors_cross_the_ends_of_rows(
    shapes: tuple[Shape, Shape], dtype: str, device: Device
) -> None:
    x, y = drawn(6, *shapes, dtype=DTYPES[dtype])
    slope = 2 * (x.astype(np.float64) - y.astype(np.float64))
    value, gradient = value_and_grad(mse_loss)(
        device.asarray(x), device.asarray(y), reduction="sum"
    )
    is_rounded(value, (slope**2 / 4).sum())
    is_rounded(gradient, slope)
    each = mse_loss(device.asarray(y), device.asarray(x), reduction="none")
    is_rounded(each, slope**2 / 4)


@pytest.mark.parametrize(
    ("shapes", "dtype", "begin", "layout"),
    [
        (((71, 6), (6,)), "float32", 0, "2, 2, 3u, unsigned, int, 2u, 0u, 2"),
        (((71, 6), (6,)), "float32", 1, "2, 2, 1u, unsigned, int, 2u, 0u, 2"),
        (((71, 6), (71, 1)), "float32", 1, "2, 2, 1u, unsigned, int, 2u, 2u, 2"),
        (((71, 12), (12,)), "bfloat16", 0, "2, 2, 3u, unsigned, int, 2u, 0u, 4"),
        (((71, 12), (12,)), "bfloat16", 2, "2, 2, 1u, unsigned, int, 2u, 0u, 4"),
        (((7, 3, 2, 5), (3, 1, 1)), "bfloat16", 0, "3, 2, 1u, unsigned, int, 2u, 2u, 2"),
        (((5, 3, 7, 4), (5, 1, 7, 4)), "bfloat16", 0, "3, 2, 3u, unsigned, int, 2u, 0u, 4"),
    ],
)
def test_vectors_cross_the_ends_of_rows_between_granules(
    shapes: tuple[Shape, Shape], dtype: str, begin: int, layout: str, device: Device
) -> None:
    """Of as many elements as divide a row and a vector, read at once where they lie so."""
    x, y = drawn(10, *shapes, dtype=DTYPES[dtype])
    broadcast = device.asarray(np.append(np.zeros(begin, y.dtype), y))[begin:].reshape(y.shape)
    value, gradient = value_and_grad(mse_loss)(device.asarray(x), broadcast, reduction="sum")
    slope = 2 * (x.astype(np.float64) - y.astype(np.float64))
    is_rounded(value, (slope**2 / 4).sum())
    is_rounded(gradient, slope)
    (name,) = names(device)
    assert f"Layout<{layout}>" in name


@pytest.mark.parametrize(("apart", "vectors"), [(1, "0u"), (4, "1u")])
def test_a_dense_operand_that_begins_anywhere(apart: int, vectors: str, device: Device) -> None:
    x, y = drawn(7, (70 * 5 + apart,), (5,))
    view = device.asarray(x)[apart:].reshape(70, 5)
    value = mse_loss(view, device.asarray(y), reduction="none")
    is_rounded(value, (x[apart:].reshape(70, 5) - y.astype(np.float64)) ** 2)
    (name,) = names(device)
    assert f"Layout<2, 2, {vectors}, unsigned, int, 2u, 0u>" in name


@pytest.mark.parametrize("shape", [(30, 1), ()])
def test_an_element_that_is_a_whole_vector_is_read_once(shape: Shape, device: Device) -> None:
    """So that what a loss computes of it alone is computed once a vector."""
    x, y = drawn(9, (30, 8), shape)
    value, gradient = value_and_grad(mse_loss)(device.asarray(x), device.asarray(y))
    slope = 2 * (x.astype(np.float64) - y.astype(np.float64))
    is_rounded(value, (slope**2 / 4).mean())
    is_rounded(gradient, slope / slope.size)
    (name,) = names(device)
    dimensions = max(1, len(shape))
    assert f"Layout<{dimensions}, 2, 1u, unsigned, int, 0u, 2u>" in name


def test_rows_that_run_backwards_are_crossed(device: Device) -> None:
    x, y = drawn(8, (40, 7), (7,))
    backwards = device.asarray(y)[::-1]
    value = mse_loss(device.asarray(x), backwards, reduction="none")
    is_rounded(value, (x - y[::-1].astype(np.float64)) ** 2)

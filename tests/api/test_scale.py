"""`scale` multiplies reduced losses and their gradients, on every array library."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import cupy_losses
from cupy_losses import (
    cross_entropy,
    grad,
    l1_loss,
    mse_loss,
    pointwise_loss,
    value_and_grad,
)

from ..tables.arrays import DTYPES, Library
from .test_arguments import LOSSES, arrays_of

SCALES = (2.5, -0.3, 0.0, 7)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:reduction 'mean' divides")
def test_every_loss(library: Library, name: str) -> None:
    """A number, and arrays of each dtype."""
    function = getattr(cupy_losses, name)
    rng = np.random.default_rng(len(name))
    hosts = [
        x + rng.uniform(-0.3, 0.3, x.shape) if x.dtype == np.float64 and x.ndim == 2 else x
        for x in arrays_of(function).values()
    ]
    arrays = [library.array(host) for host in hosts]
    for reduction in ("mean", "sum"):
        expected, slope = value_and_grad(function)(*arrays, reduction=reduction)
        for number in SCALES:
            for scale in (number, library.array(np.asarray(number, np.float64))):
                value, gradient = value_and_grad(function)(
                    *arrays, reduction=reduction, scale=scale
                )
                for got, plain in ((value, expected), (gradient, slope)):
                    assert got.dtype == plain.dtype
                    wanted = number * library.host(plain)
                    # A gradient of a row may be a sum of parts, each of which has been scaled.
                    part = 1e-15 * abs(wanted).max()
                    np.testing.assert_allclose(library.host(got), wanted, rtol=1e-15, atol=part)
                alone = function(*arrays, reduction=reduction, scale=scale)
                np.testing.assert_array_equal(library.host(alone), library.host(value))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtypes(library: Library, dtype: Any) -> None:
    """The scale does not decide on the dtype of the loss, and nothing is rounded ahead of it."""
    rng = np.random.default_rng(1)
    hosts = [rng.standard_normal(500).astype(dtype) for _ in range(2)]
    arrays = [library.array(host) for host in hosts]
    difference = hosts[0].astype(np.float64) - hosts[1].astype(np.float64)
    for of_scale in DTYPES.values():
        given = np.asarray(0.3, of_scale)
        value, gradient = value_and_grad(mse_loss)(*arrays, scale=library.array(given))
        exact = np.mean(difference**2) * np.float64(given)
        slope = 2 * difference / 500 * np.float64(given)
        for got, wanted in ((value, exact), (gradient, slope)):
            result = library.host(got)
            assert result.dtype == dtype
            if dtype == np.float64:
                np.testing.assert_allclose(result, wanted, rtol=1e-15)
            else:
                rounded = wanted.astype(dtype).astype(np.float64)
                unit = {"float32": 1e-7, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype.name]
                np.testing.assert_allclose(result.astype(np.float64), rounded, rtol=unit, atol=1e-7)
    large = library.array(np.full(8, 300, dtype))
    value = mse_loss(large, library.array(np.zeros(8, dtype)), scale=2.0**-6)
    assert float(library.host(value)) == float(np.asarray(90_000 / 64, dtype))


def test_means_of_data_and_of_nothing(library: Library) -> None:
    rng = np.random.default_rng(2)
    x, y, weight = (library.array(rng.random((4, 5))) for _ in range(3))
    where = library.array(rng.random((4, 5)) < 0.6)
    for options in ({"weight": weight}, {"where": where}, {"weight": weight, "where": where}):
        value, gradient = value_and_grad(mse_loss)(x, y, scale=0.3, **options)
        expected, slope = value_and_grad(mse_loss)(x, y, **options)
        np.testing.assert_allclose(library.host(value), 0.3 * library.host(expected), rtol=1e-15)
        np.testing.assert_allclose(library.host(gradient), 0.3 * library.host(slope), rtol=1e-15)
    nothing = library.array(np.zeros((4, 5), bool))
    for scale in (3.0, library.array(np.asarray(3.0))):
        value, gradient = value_and_grad(mse_loss)(x, y, where=nothing, scale=scale)
        assert np.isnan(library.host(value))
        assert not library.host(gradient).any()
        empty = library.array(np.zeros((0, 3)))
        assert np.isnan(library.host(mse_loss(empty, empty, scale=scale)))
        assert library.host(mse_loss(empty, empty, scale=scale, reduction="sum")) == 0


def test_a_loss_of_ones_own_and_sums_of_losses(library: Library) -> None:
    cubic = pointwise_loss(
        "cubic_scaled",
        "input * input * input",
        operands=("input",),
        numpy=lambda input: input * input * input,
    )
    assert "scale" in inspect.signature(cubic).parameters
    value, gradient = value_and_grad(cubic)(library.array(np.array([1.0, 3.0])), scale=0.5)
    assert float(library.host(value)) == 7.0
    np.testing.assert_array_equal(library.host(gradient), [0.75, 6.75])
    x, y = (library.array(np.array([1.0, 4.0])) for _ in range(2))
    factor = library.array(np.asarray(0.5))

    def total(input: Any, target: Any) -> Any:
        return mse_loss(input, target, scale=factor) + 3 * l1_loss(input, target, scale=2.0)

    zeros = library.array(np.zeros(2))
    value, gradient = value_and_grad(total)(x, zeros)
    assert float(library.host(value)) == 0.5 * 8.5 + 3 * 2 * 2.5
    np.testing.assert_array_equal(library.host(gradient), [0.5 + 3, 2 + 3])
    with pytest.raises(ValueError, match="scale must be no argument to differentiate by"):
        value_and_grad(lambda a: mse_loss(x, y, scale=a))(factor)
    with pytest.raises(ValueError, match="the name 'scale' is taken"):
        pointwise_loss("scaled", "input * scale", parameters={"scale": 1.0})


def test_wrong_scales(library: Library) -> None:
    x = library.array(np.ones((2, 3)))
    one = library.array(np.ones(()))
    for call in (mse_loss, value_and_grad(mse_loss), grad(mse_loss)):
        for scale in (0.5, one):
            with pytest.raises(ValueError, match="scale must be 1 with reduction 'none'"):
                call(x, x, reduction="none", scale=scale)
        with pytest.raises(ValueError, match="scale must be a number or have shape"):
            call(x, x, scale=library.array(np.ones(1)))
        with pytest.raises(TypeError, match="scale must have a floating dtype, got int64"):
            call(x, x, scale=library.array(np.ones((), np.int64)))
        with pytest.raises(TypeError, match="scale must be a real number, got True"):
            call(x, x, scale=True)
    np.testing.assert_array_equal(library.host(mse_loss(x, x, reduction="none", scale=1)), 0)
    classes = library.array(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="scale must be 1"):
        cross_entropy(x, classes, reduction="none", scale=2.0)

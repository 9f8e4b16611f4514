"""Arrays of other libraries on a GPU: their memory is shared, and results are theirs again.

Those libraries take part that find a GPU, see tests/conftest.py.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    cross_entropy,
    grad_and_hess,
    kl_div,
    mse_loss,
    triplet_margin_with_distance_loss,
    value_and_grad,
)

from ..tables.foreign import array_on_gpu

pytestmark = [
    pytest.mark.exhaustive,  # each library takes seconds to find a GPU
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

X, Y = np.random.default_rng(5).random((2, 300, 1001), dtype=np.float32)
CLASSES = np.arange(300) % 7
JAX, NUMBA, WARP = (
    pytest.param(name, marks=pytest.mark.gpu(name), id=name) for name in ("jax", "numba", "warp")
)


def check(results: Any, expected: Any, kind: type) -> None:
    """Results have a type, lie on the GPU, and have the bits that are expected."""
    import cupy

    for got, wanted in zip(results, expected, strict=True):
        assert type(got) is kind
        own = cupy.from_dlpack(got).get()
        assert own.shape == (wanted.shape or own.shape)  # Warp has no arrays of shape ()
        assert own.tobytes() == wanted.get().tobytes()


def cupy_array(host: Any) -> Any:
    """A CuPy array."""
    import cupy

    return cupy.asarray(host)


def _city_block(x: Any, y: Any) -> Any:
    return abs(x - y).sum(-1)


def kind_of_results(name: str) -> type:
    """Results for Numba's arrays, which come without DLPack, are CuPy arrays."""
    import cupy

    return cupy.ndarray if name == "numba" else type(array_on_gpu(name, X))


@pytest.mark.parametrize("name", [JAX, NUMBA, WARP])
def test_results_are_those_of_cupy(name: str) -> None:
    import cupy

    kind = kind_of_results(name)
    theirs, ours = (
        [make(x) for x in (X, Y, CLASSES)]
        for make in (lambda host: array_on_gpu(name, host), cupy.asarray)
    )
    for loss in (mse_loss, kl_div):
        value, gradients = value_and_grad(loss, (0, 1))(*theirs[:2], reduction="sum")
        expected, wanted = value_and_grad(loss, (0, 1))(*ours[:2], reduction="sum")
        check((value, *gradients), (expected, *wanted), kind)
    check(grad_and_hess(mse_loss)(*theirs[:2]), grad_and_hess(mse_loss)(*ours[:2]), kind)
    results = value_and_grad(cross_entropy)(theirs[0], theirs[2])
    check(results, value_and_grad(cross_entropy)(ours[0], ours[2]), kind)


@pytest.mark.parametrize("name", [JAX])
def test_distances(name: str) -> None:
    """They do not leave the GPU, where their minimum is taken and their loss weighted."""
    theirs: list[Any] = []
    ours: list[Any] = []
    for results, make in (theirs, functools.partial(array_on_gpu, name)), (ours, cupy_array):
        anchor, positive, negative, weight = (make(x) for x in (X, Y, X * Y, X[:, 0]))
        options: dict[str, Any] = {"distance_function": _city_block, "swap": True}
        results.append(
            triplet_margin_with_distance_loss(
                anchor, positive, negative, sample_weight=weight, **options
            )
        )
    assert type(theirs[0]) is type(array_on_gpu(name, X))
    np.testing.assert_allclose(np.asarray(theirs[0]), ours[0].get(), rtol=1e-5)


@pytest.mark.parametrize("name", [NUMBA, WARP])
def test_a_part_of_an_array(name: str) -> None:
    """Of the libraries that have views."""
    import cupy

    part = array_on_gpu(name, X)[:, ::2]
    each = mse_loss(part, array_on_gpu(name, Y)[:, 1::2][:, :1], reduction="none")
    x, y = cupy.asarray(X), cupy.asarray(Y)
    check([each], [mse_loss(x[:, ::2], y[:, 1:2], reduction="none")], kind_of_results(name))


@pytest.mark.parametrize("name", [JAX, NUMBA, WARP])
def test_beside_arrays_of_others(name: str) -> None:
    """The first argument decides on the library of the result."""
    import cupy

    x, y = (array_on_gpu(name, host) for host in (X, Y))
    expected = mse_loss(cupy.asarray(X), cupy.asarray(Y))
    check([mse_loss(cupy.asarray(X), y)], [expected], cupy.ndarray)
    check([mse_loss(x, torch.from_numpy(Y).cuda())], [expected], kind_of_results(name))
    leaf = torch.from_numpy(X).cuda().requires_grad_()
    mse_loss(leaf, y).backward()
    gradient = value_and_grad(mse_loss)(cupy.asarray(X), cupy.asarray(Y))[1]
    check([leaf.grad], [gradient], torch.Tensor)
    with pytest.raises(ValueError, match="must be on the same device.*input on the host"):
        mse_loss(X, y)


@pytest.mark.parametrize("name", [JAX, WARP])
def test_they_are_not_overwritten(name: str) -> None:
    """An array of JAX is immutable, and on a GPU nothing says so."""
    x, classes = (array_on_gpu(name, host) for host in (X, CLASSES))
    with pytest.raises(ValueError, match="input must be writeable to be overwritten"):
        value_and_grad(cross_entropy)(x, classes, overwrite_input=True)


@pytest.mark.parametrize("name", [JAX])
def test_bfloat16(name: str) -> None:
    import cupy
    import ml_dtypes

    x, y = (host.astype(ml_dtypes.bfloat16) for host in (X, Y))
    results = value_and_grad(mse_loss)(array_on_gpu(name, x), array_on_gpu(name, y))
    expected = value_and_grad(mse_loss)(cupy.asarray(x), cupy.asarray(y))
    check(results, expected, kind_of_results(name))


@pytest.mark.parametrize("name", [JAX])
def test_what_is_still_being_computed_is_waited_for(name: str) -> None:
    """By a library that computes asynchronously, on a stream of its own."""
    size = 4096
    constant = np.full((size, size), 1 / size, np.float32)
    x = y = array_on_gpu(name, constant)
    mse_loss(x, y, reduction="none")  # compiles
    for _ in range(50):
        x = x @ x  # the same numbers, each without an error
    each = mse_loss(x + 1, y, reduction="none")
    assert (np.asarray(each) == 1).all()

"""Losses against float64, on every library: dtypes, reductions, sizes, layouts, weights."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cupy_losses import cross_entropy, mse_loss, value_and_grad, vjp

from ..tables.arrays import DTYPES, Host, Library, ulps
from ..tables.losses import LOSSES, SIMPLE, Case
from ..tools.levels import covering

pytestmark = pytest.mark.filterwarnings("ignore:.*mean. divides")  # kl_div's

# 1; around a vector of 4 or 8; around a block of 512 vectors; around a tile of 4 vectors a thread;
# two segments and a ragged end.
SIZES = [1, 3, 4, 5, 8, 9, 511, 2048, 2049, 4096, 8191, 8193, 70001]


def exact(host: Host) -> Host:
    """The values in a precision above that of every dtype under test."""
    return host.astype(np.longdouble)


def bound(case: Case, size: int, dtype: str = "", on_host: bool = False) -> float:
    """The promised error of a reduced loss, in ulps."""
    if not case.exact:
        # On a device nothing is wider than float64.
        return 16 if dtype == "float64" and not on_host else case.ulps
    return 1 if size >= 4096 else 2


def check(
    case: Case,
    library: Library,
    hosts: list[Host],
    weights: Sequence[Host | None] = (None,),
    masks: Sequence[Host | None] = (None,),
) -> None:
    """Compare all reductions with the reference, with each of the weights and masks."""
    arrays = [library.array(host) for host in hosts]
    each = case.value(*map(exact, hosts))
    scale = None if case.exact else case.scale(*hosts)
    for weight, where, reduction in itertools.product(weights, masks, ("none", "mean", "sum")):
        extra = {"weight": weight, "where": where}
        options = {name: library.array(host) for name, host in extra.items() if host is not None}
        scaled = None if weight is None else exact(weight)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is broadcast")
            warnings.filterwarnings("ignore", ".*mean. divides")
            result = case.loss(*arrays, reduction=reduction, **case.parameters, **options)
        reference = np.asarray(case.reduce(each, reduction, scaled, where))
        largest = None if scale is None else case.reduce(scale, reduction, scaled, where)
        got = library.host(result)
        assert got.shape == reference.shape
        limit = bound(case, each.size, got.dtype.name, library.on_host)
        if reduction == "none" and case.exact:
            limit = 3
        assert ulps(got, reference, largest) <= limit, (str(case), reduction)


@pytest.mark.parametrize(("case", "size", "dtype"), covering(16, LOSSES, SIZES, DTYPES))
def test_sizes(
    case: Case, library: Library, size: int, dtype: str, rng: np.random.Generator
) -> None:
    hosts = case.draw(rng, size, DTYPES[dtype])
    weight, where = rng.random(size).astype(DTYPES[dtype]), rng.random(size) < 0.7
    where[0] = True
    check(case, library, hosts, (None, weight), (None, where))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any], backwards: bool) -> Host:
    """A view of `shape`: permuted, sliced with steps of either sign, or starting unaligned."""
    order = draw(st.permutations(range(len(shape))))
    wanted = (1, 1, 2, -1, -3) if backwards else (1, 1, 2, 3)
    steps = [draw(st.sampled_from(wanted)) for _ in shape]
    starts = [draw(st.integers(0, 3)) for _ in shape]
    base_shape = [shape[axis] * abs(steps[axis]) + starts[axis] for axis in order]
    seed = draw(st.integers(0, 2**32 - 1))
    base = np.asarray(np.random.default_rng(seed).standard_normal(base_shape)).astype(dtype)
    view = base.transpose(np.argsort(order))
    for axis, (step, start) in enumerate(zip(steps, starts, strict=True)):
        index = [slice(None)] * len(shape)
        index[axis] = slice(start, None)
        view = view[tuple(index)]
        index[axis] = slice(None, None, step)
        view = view[tuple(index)]
        index[axis] = slice(0, shape[axis])
        view = view[tuple(index)]
    return view


@given(st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_layout(library: Library, data: st.DataObject) -> None:
    """Shapes that broadcast, dtypes that mix, any strides, 0-d and empty included."""
    case = data.draw(st.sampled_from(SIMPLE))
    shapes, _ = data.draw(
        hnp.mutually_broadcastable_shapes(num_shapes=4, max_dims=4, min_side=0, max_side=9)
    )
    dtypes = [DTYPES[data.draw(st.sampled_from(list(DTYPES)))] for _ in range(4)]
    input, target, weight, mask = (
        data.draw(views(shape, dtype, backwards=not library.is_torch))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    shape = np.broadcast_shapes(input.shape, target.shape)
    fits = [0 not in shape and np.broadcast_shapes(shape, x.shape) == shape for x in (weight, mask)]
    given_weight = np.absolute(weight, out=weight) if fits[0] and data.draw(st.booleans()) else None
    where = np.asarray(mask > -1) if fits[1] and data.draw(st.booleans()) else None
    with np.errstate(invalid="ignore", divide="ignore"):
        check(case, library, [input, target], [given_weight], [where])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_arrays_of_tests_keep_their_layout(library: Library, order: tuple[int, ...]) -> None:
    """What a comparison of a permuted view makes owns its memory, and is permuted too."""
    view = np.random.default_rng(0).standard_normal((2, 3, 4)).transpose(order)
    mask = np.asarray(view > 0)
    assert mask.base is None
    for host in mask, view, view[::2, :, 1:]:
        array = library.array(host)
        np.testing.assert_array_equal(library.host(array), host)
        assert library.strides(array) == host.strides


def test_broadcasting_warns(library: Library) -> None:
    arrays = library.array(np.ones((2, 3), np.float32)), library.array(np.ones(3, np.float32))
    for case in LOSSES:
        if not case.warns:
            continue
        with pytest.warns(UserWarning, match=r"target of shape \(3,\) is broadcast") as caught:
            case.loss(*arrays, **case.parameters)
        assert caught[0].filename == __file__


def test_channels_last_result_keeps_the_layout(torch_library: Library) -> None:
    import torch

    host = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    images = torch_library.array(host).to(memory_format=torch.channels_last)
    for case in SIMPLE:
        result = case.loss(images, images.flip(0), reduction="none", **case.parameters)
        assert result.is_contiguous(memory_format=torch.channels_last)


def test_gradients_that_are_sums_lie_as_the_operands(library: Library) -> None:
    a, b = np.random.default_rng(0).random((3, 4, 5)), np.random.default_rng(1).random((3, 4))
    vectors, targets = library.array(a.T), library.array(b.T)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is broadcast")
        _, gradient = value_and_grad(mse_loss, 1)(vectors, targets)
    np.testing.assert_allclose(library.host(gradient), -2 * (a.T - b.T).mean(axis=0) / 12)
    assert library.strides(gradient) == library.strides(targets)


def test_what_a_mask_and_a_weight_lie_like_decides_nothing(library: Library) -> None:
    """Results lie as the operands of the loss do, and so do gradients."""
    shape = (4, 3, 5)
    rng = np.random.default_rng(0)
    operands = [np.moveaxis(rng.random(shape, np.float32), 0, -1) for _ in "ab"]
    shape = operands[0].shape
    weight, cotangent = rng.random(shape, np.float32), rng.random(shape, np.float32)
    where = rng.random(shape) < 0.7
    input, target = map(library.array, operands)
    given = {"weight": library.array(weight), "where": library.array(where)}
    result = mse_loss(input, target, reduction="none", **given)
    gradient = value_and_grad(mse_loss)(input, target, **given)[1]
    of_each = vjp(
        mse_loss,
        (input, target),
        library.array(cotangent),
        reduction="none",
        **given,
    )
    assert weight.strides != operands[0].strides
    for array in result, gradient, of_each:
        assert library.strides(array) == operands[0].strides
    expected = np.where(where, weight * np.subtract(*operands) ** 2, 0)
    np.testing.assert_allclose(library.host(result), expected, rtol=1e-6)


def test_what_a_cotangent_of_rows_lies_like_decides_nothing(library: Library) -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((2, 5, 3, 4), np.float32)
    cotangent = rng.random((4, 3, 2), np.float32).T
    primals = library.array(scores), library.array(rng.integers(0, 5, (2, 3, 4)))
    gradient = vjp(cross_entropy, primals, library.array(cotangent), reduction="none")
    assert library.strides(gradient) == scores.strides


@pytest.mark.parametrize("case", SIMPLE, ids=str)
def test_sums_do_not_drift(case: Case, library: Library) -> None:
    """Two million equal terms: a plain float32 sum would be off by hundreds of ulps."""
    size = 2_000_003
    input, target = np.full(size, 0.1, np.float32), np.zeros(size, np.float32)
    check(case, library, [input, target])

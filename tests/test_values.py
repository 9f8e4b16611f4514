"""Losses against float64, on every library: dtypes, reductions, sizes, layouts, weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from .arrays import DTYPES, Host, Library, ulps
from .losses import LOSSES, Case

# 1; around a pack of 4 or 8; around a block of 512 packs; around a tile of 4 packs a thread; two
# segments and a ragged end.
SIZES = [1, 3, 4, 5, 8, 9, 511, 2048, 2049, 4096, 8191, 8193, 70001]


def exact(host: Host) -> Host:
    """The values in a precision above that of every dtype under test."""
    return host.astype(np.longdouble)


def bound(size: int) -> float:
    """The promised error of a reduced loss, in ulps."""
    return 1 if size >= 4096 else 2


def check(
    case: Case, library: Library, input: Host, target: Host, weight: Host | None = None
) -> None:
    """Compare all reductions with the reference."""
    arrays = [library.array(host) for host in (input, target)]
    options = {} if weight is None else {"weight": library.array(weight)}
    each = case.value(exact(input), exact(target))
    for reduction in ("none", "mean", "sum"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = case.loss(*arrays, reduction=reduction, **case.parameters, **options)
        reference = np.asarray(
            case.reduce(each, reduction, None if weight is None else exact(weight))
        )
        got = library.host(result)
        assert got.shape == reference.shape
        limit = 3 if reduction == "none" else bound(each.size)
        assert ulps(got, reference) <= limit, (str(case), reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_sizes(
    case: Case, library: Library, size: int, dtype: str, rng: np.random.Generator
) -> None:
    input, target = (rng.standard_normal(size).astype(DTYPES[dtype]) for _ in range(2))
    check(case, library, input, target)
    check(case, library, input, target, rng.random(size).astype(DTYPES[dtype]))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
    """A view of `shape`: permuted, sliced with steps of either sign, or starting unaligned."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 2, -1, -3))) for _ in shape]
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
    case = data.draw(st.sampled_from(LOSSES))
    shapes, _ = data.draw(
        hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, min_side=0, max_side=9)
    )
    dtypes = [DTYPES[data.draw(st.sampled_from(list(DTYPES)))] for _ in range(3)]
    input, target, weight = (
        data.draw(views(shape, dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    given_weight = np.absolute(weight, out=weight) if data.draw(st.booleans()) else None
    if not all(map(library.supports, (input, target, weight))):
        return
    shape = np.broadcast_shapes(input.shape, target.shape)
    if np.broadcast_shapes(*shapes) != shape or 0 in shape:
        given_weight = None
    with np.errstate(invalid="ignore", divide="ignore"):
        check(case, library, input, target, given_weight)


def test_broadcasting_warns(library: Library) -> None:
    arrays = library.array(np.ones((2, 3), np.float32)), library.array(np.ones(3, np.float32))
    for case in LOSSES:
        with pytest.warns(UserWarning, match=r"target of shape \(3,\) is broadcast") as caught:
            case.loss(*arrays, **case.parameters)
        assert caught[0].filename == __file__


def test_channels_last_result_keeps_the_layout(torch_library: Library) -> None:
    import torch

    host = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    images = torch_library.array(host).to(memory_format=torch.channels_last)
    for case in LOSSES:
        result = case.loss(images, images.flip(0), reduction="none", **case.parameters)
        assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_sums_do_not_drift(case: Case, library: Library) -> None:
    """Two million equal terms: a plain float32 sum would be off by hundreds of ulps."""
    size = 2_000_003
    input, target = np.full(size, 0.1, np.float32), np.zeros(size, np.float32)
    check(case, library, input, target)

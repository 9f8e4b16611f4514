"""A gradient that takes the memory of an operand must not overwrite what is still to be read."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._core.memory import Memory, share_memory
from cupy_losses._libraries.numpy import on_host

from .. import emulator
from ..emulator import installed
from ..tables.arrays import Library

overwriting = functools.partial(cross_entropy, overwrite_input=True)


def memory_of(array: Any) -> Memory:
    return Memory(array.ctypes.data, array.shape, array.strides, array.itemsize)


def random_view(rng: np.random.Generator, base: Any) -> Any:
    """A view from about the middle of one-dimensional memory, with any strides."""
    dtype = rng.choice(["u1", "f2", "f4", "f8"])
    size = np.dtype(dtype).itemsize
    shape = rng.integers(1, 5, rng.integers(0, 4))
    strides = rng.integers(-4, 5, len(shape)) * rng.choice([1, size])
    return np.ndarray(shape, dtype, base.data, 400 + rng.integers(40), strides)


def test_shared_memory_of_any_two_views() -> None:
    rng = np.random.default_rng(0)
    base = np.zeros(840, np.uint8)
    shared = entwined = 0
    for _ in range(3000):
        a, b = random_view(rng, base), random_view(rng, base)
        answer = np.shares_memory(a, b)
        shared += answer
        entwined += np.may_share_memory(a, b) and not answer
        assert share_memory(memory_of(a), memory_of(b)) == answer
        bounds = memory_of(a).bounds
        assert (bounds[0], bounds[1] + 1) == np.lib.array_utils.byte_bounds(a)
    assert min(shared, entwined) >= 100


def test_nothing_is_shared_with_an_empty_array() -> None:
    base = np.zeros((4, 6))
    assert not share_memory(memory_of(base), memory_of(base[:, 6:]))
    assert not share_memory(memory_of(base[2:2]), memory_of(base))


def test_views_of_large_arrays_are_settled() -> None:
    base = np.zeros(4_000_000, np.float32)
    rows = base.reshape(2000, 2000)
    odd = base[: 1331 * 3001].reshape(1331, 3001)
    for a, b in (
        (rows[:, :1000], rows[:, 1000:]),
        (rows[:, ::2], rows[:, 1::2]),
        (odd[:, ::2], odd[:, 1::2]),
        (odd[:, 2::3], odd[:, ::3][::-1]),
        (rows[::2], rows[1::2, ::-1]),
        (rows.reshape(200, 10, 2000)[:, :5], rows.reshape(200, 10, 2000)[:, 5:, 7:]),
        (rows[:, 0], rows[:, 1:]),
    ):
        assert not share_memory(memory_of(a), memory_of(b))
        assert not share_memory(memory_of(b.T), memory_of(a))
        assert share_memory(memory_of(a), memory_of(a.T))


def test_what_takes_too_long_counts_as_shared() -> None:
    strides = tuple(6 * 3**k + 6 for k in range(14))
    a = Memory(0, (2,) * 14, strides, 1)
    b = Memory(sum(strides) // 3 + 1, (2,), (1,), 1)
    assert not share_memory(a, b, steps=10**6)
    assert share_memory(a, b, steps=2)


def views(of: Any, dtype: str = "float32") -> dict[str, tuple[Any, Any, Any]]:
    """Logits, a target and a weight, by the name of what the logits share memory with."""

    def new() -> Any:
        return of(np.random.default_rng(0).random((8, 6)).astype(dtype))

    whole, rows, nested, columns = new(), new(), new(), new()
    weighted, labels = new(), of(np.arange(8) % 6)
    return {
        "itself": (whole, whole, None),
        "later rows": (rows[:-1], rows[1:], None),
        "every other row": (nested[2:6], nested[::2], None),
        "a column": (columns[:, :4], columns[:, 2:], None),
        "weight": (weighted, labels, weighted[3]),
    }


def apart(of: Any) -> list[tuple[Any, Any]]:
    """Logits and target, interleaved in the same memory."""
    bases = [of(np.random.default_rng(1).random((8, 6)).astype(np.float32)) for _ in range(3)]
    a, b, c = bases
    return [(a[:, ::2], a[:, 1::2]), (b[:, :3], b[:, 3:]), (c[::2], c[1::2])]


def check_overlap(of: Any, host: Any) -> None:
    for shared, (input, target, weight) in views(of).items():
        before = host(input).copy()
        name = "weight" if shared == "weight" else "target"
        with pytest.raises(ValueError, match=f"input must not share memory with {name} to be over"):
            value_and_grad(overwriting)(input, target, weight=weight)
        np.testing.assert_array_equal(host(input), before)
        overwriting(input, target, weight=weight)  # which overwrites nothing
    for input, target in apart(of):
        expected = [host(x).copy() for x in value_and_grad(cross_entropy)(input, target)]
        value, gradient = value_and_grad(overwriting)(input, target)
        assert gradient is input
        np.testing.assert_allclose(host(value), expected[0], rtol=1e-6)
        np.testing.assert_allclose(host(gradient), expected[1], rtol=1e-5, atol=1e-8)


def test_overlap(library: Library) -> None:
    check_overlap(library.array, library.host)


@pytest.mark.exhaustive
def test_overlap_on_the_device() -> None:
    emulator.require()
    with installed(multiprocessors=3, seed=1) as device:
        check_overlap(functools.partial(device.asarray, writable=True), lambda array: array.get())


def test_the_addresses_of_a_call_count_not_those_of_its_plan() -> None:
    """Calls of one plan: apart, then overlapping, on a device whose kernels do not run."""
    with installed(run_kernels=False) as device:
        base = device.asarray(np.ones((24, 6), np.float32), writable=True)
        value_and_grad(overwriting)(base[:8], base[8:16])
        with pytest.raises(ValueError, match="input must not share memory with target"):
            value_and_grad(overwriting)(base[:8], base[4:12])
        value_and_grad(overwriting)(base[:8], base[16:])


def test_overlap_backwards_in_more_than_one_chunk() -> None:
    a = np.random.default_rng(0).random((70_000, 3))
    with pytest.raises(ValueError, match="input must not share memory with target"):
        value_and_grad(overwriting)(a, a[::-1])


def test_overlap_with_fields_of_records() -> None:
    """Strides that are no multiple of the element."""
    records = np.zeros(5, np.dtype([("logit", "f4", 3), ("class", "i1")]))
    value, _ = value_and_grad(overwriting)(records["logit"], records["class"])
    assert value == pytest.approx(np.log(3))


def test_overlap_with_grad_output() -> None:
    a = np.ones((4, 3))
    call, operands = prepare_of(overwriting)(a, np.zeros(4, np.int64))
    request = Request(value=False, wanted=(0,), vjp=True)
    with pytest.raises(ValueError, match="input must not share memory with grad_output"):
        on_host(call, request, [a[2, 1, ...], *operands])


def test_overlap_in_autograd(torch_library: Library) -> None:
    leaf = torch_library.array(np.ones((4, 3), np.float32)).requires_grad_()
    logits = leaf * 1
    with pytest.raises(ValueError, match="input must not share memory with target"):
        overwriting(logits, logits.detach())


@pytest.mark.parametrize("transform", [value_and_grad, lambda loss: loss])
def test_a_view_of_negated_numbers_is_not_overwritten(transform: Any) -> None:
    """A copy would be overwritten in its place."""
    import torch

    negated = torch.zeros(4, 3, dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    target = torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match="input must not be a view of negated numbers"):
        transform(cross_entropy)(negated, target, overwrite_input=True)
    assert transform(cross_entropy)(negated, target) is not None


def test_a_leaf_that_requires_grad_is_not_overwritten() -> None:
    import torch

    leaf = torch.zeros(4, 3, requires_grad=True)
    target = torch.tensor([0, 1, 2, 0])
    for tensor in leaf, leaf[1:]:
        with pytest.raises(ValueError, match="input must not be a leaf that requires grad"):
            value_and_grad(cross_entropy)(tensor, target[-len(tensor) :], overwrite_input=True)
    assert not leaf.detach().any()
    assert leaf._version == 0


def test_no_rows_do_not_overlap(library: Library) -> None:
    """NumPy gives an empty array strides of 0."""
    input, target = library.array(np.zeros((0, 5))), library.array(np.zeros(0, np.int64))
    assert float(library.host(overwriting(input, target, reduction="sum"))) == 0

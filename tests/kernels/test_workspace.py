"""The memory in which blocks add up, on the emulator: whose it is, what launches leave there."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, mse_loss, nll_loss, value_and_grad
from cupy_losses._device import workspace
from cupy_losses._device.library import PER_THREAD_STREAM

from ..emulator import Device, installed
from ..tools import levels

pytestmark = pytest.mark.usefixtures("needs_emulator")


@pytest.fixture
def device() -> Iterator[Device]:
    with installed(multiprocessors=2, seed=1) as device:
        yield device


@pytest.fixture
def memsets(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each memset, in order."""
    import cupy

    sizes: list[int] = []
    original = cupy.cuda.runtime.memsetAsync

    def recorded(address: int, value: int, size: int, stream: int) -> None:
        sizes.append(size)
        original(address, value, size, stream)

    monkeypatch.setattr(cupy.cuda.runtime, "memsetAsync", recorded)
    return sizes


def drawn(device: Device, rows: int, columns: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal((rows, columns)), rng.integers(0, columns, rows)
    return device.asarray(x.astype(np.float32)), device.asarray(target)


# Tiles of rows, a group of segments, and several groups.
@pytest.mark.parametrize("shape", levels.first([(3000, 5), (300, 300), (300, 3000)]))
def test_counters_are_zero_again(
    shape: tuple[int, int], device: Device, memsets: list[int]
) -> None:
    """Launches that follow find what they need, though nothing sets it."""
    x, target = drawn(device, *shape)
    expected = [cross_entropy(x.get(), target.get()), nll_loss(x.get(), target.get())]
    expected.append(mse_loss(x.get(), 0 * x.get()))
    zeros = device.asarray(0 * x.get())
    for _ in range(2):
        found = [cross_entropy(x, target), nll_loss(x, target), mse_loss(x, zeros)]
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value.get(), wanted, rtol=1e-6)
        value_and_grad(cross_entropy)(x, target)
    (begin,) = workspace._of_streams.values()
    assert not any(ctypes.string_at(begin, workspace.COUNTER_BYTES))
    assert memsets == [workspace.COUNTER_BYTES], "of a new stream"
    assert any(launch.grid[0] > 1 for launch in device.launches)


def test_each_stream_has_its_own(device: Device) -> None:
    """Also each thread on the stream that has one handle in all of them."""
    x, target = drawn(device, 3000, 5)
    streams = [0, *range(16, 32)]
    for stream in (*streams, PER_THREAD_STREAM, 0):
        device.stream = stream
        cross_entropy(x, target)
    assert [stream for _, stream in workspace._of_streams] == streams
    begins = sorted(workspace._of_streams.values())
    size = workspace.COUNTER_BYTES + workspace.PARTIAL_BYTES
    assert all(later >= begin + size for begin, later in itertools.pairwise(begins))


def test_a_captured_call_has_its_own(device: Device, memsets: list[int]) -> None:
    """Its counters are set to 0, as they are by each replay."""
    x, target = drawn(device, 3000, 5)
    expected = cross_entropy(x, target).get()
    device.capturing = True
    assert cross_entropy(x, target).get() == expected
    device.capturing = False
    assert len(workspace._of_streams) == 1
    assert memsets[0] == workspace.COUNTER_BYTES
    assert len(memsets) == 2


@pytest.mark.parametrize("limit", ["COUNTER_BYTES", "PARTIAL_BYTES"])
def test_more_than_is_kept(
    limit: str, device: Device, memsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, limit, 0)
    x, target = drawn(device, 3000, 5)
    expected = cross_entropy(x.get(), target.get())
    np.testing.assert_allclose(cross_entropy(x, target).get(), expected, rtol=1e-6)
    assert workspace._of_streams == {}
    assert len(memsets) == 1


def test_memory_that_cannot_be_kept(
    device: Device, memsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call then has its own, from the library, which may have some that it does not use."""
    import cupy

    def fail(size: int, stream: int) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory")

    x, target = drawn(device, 3000, 5)
    expected = cross_entropy(x.get(), target.get())
    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda.runtime, "mallocAsync", fail)
        for calls in 1, 2:
            np.testing.assert_allclose(cross_entropy(x, target).get(), expected, rtol=1e-6)
            assert len(memsets) == calls
        assert workspace._of_streams == {}
    cross_entropy(x, target)
    assert len(workspace._of_streams) == 1

"""Losses over rows have the same bits whatever a caller or a device can vary, on the emulator.

The order of summation is to depend on the shape and the dtypes alone. Each test varies one thing
that does not belong to these. `tests/gpu/test_same_bits.py` does the same on a device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, triplet_margin_loss, value_and_grad
from cupy_losses._device import row_team
from cupy_losses._device.row_team import RowTeam

from ..emulator import Device, installed
from ..tables.arrays import DTYPES
from ..tools import levels

pytestmark = pytest.mark.usefixtures("needs_emulator")

Bits = dict[str, bytes]
Shape = tuple[int, int]


def cases(*chosen: tuple[Shape, str]) -> pytest.MarkDecorator:
    """Shapes and dtypes; by default one in seven of these runs."""
    return pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            levels.case(*case, default=number % 7 == 0, id=f"{case[0]}-{case[1]}")
            for number, case in enumerate(chosen)
        ],
    )


def logits(shape: Shape, dtype: str) -> tuple[Any, Any]:
    """Logits and classes."""
    rng = np.random.default_rng(sum(shape))
    x = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
    return x, rng.integers(0, shape[1], shape[0])


def placed(device: Device, host: Any, skipped: int = 0) -> Any:
    """An array in device memory that begins so many elements after an aligned address."""
    whole = device.asarray(np.concatenate([np.zeros(skipped, host.dtype), host.ravel()]))
    view = whole[skipped:].reshape(host.shape)
    assert view.data.ptr % 16 == skipped * host.itemsize % 16
    return view


def passes(input: Any, target: Any) -> dict[str, Any]:
    """All that is computed of cross entropy."""
    value, gradient = value_and_grad(cross_entropy)(input, target)
    return {
        "losses": cross_entropy(input, target, reduction="none"),
        "mean": cross_entropy(input, target),
        "value beside the gradient": value,
        "gradient": gradient,
    }


def on(x: Any, target: Any, skipped: int = 0, stream: int = 0, **fields: Any) -> Bits:
    """The bits of all that is computed, on a device with these fields."""
    with installed(check=False, **{"seed": 1, **fields}) as device:
        device.stream = stream
        arrays = placed(device, x, skipped), device.asarray(target)
        results = device.together(passes, *arrays)
        assert {launch.stream for launch in device.launches} == {stream}
        return {name: result.get().tobytes() for name, result in results.items()}


def changed(before: Bits, after: Bits) -> list[str]:
    """What is not the same."""
    assert before
    return [name for name in before if before[name] != after[name]]


@cases(
    ((40, 1000), "float32"),
    ((40, 40), "float32"),
    ((3, 5000), "float32"),
    ((3, 5001), "float32"),
    ((40, 1000), "bfloat16"),
    ((40, 333), "float32"),
    ((40, 21), "bfloat16"),
    ((40, 16), "float32"),
    ((3, 5001), "bfloat16"),
    ((40, 12), "bfloat16"),
    ((40, 1001), "float32"),
    ((40, 101), "bfloat16"),
    ((40, 40), "bfloat16"),
    ((3, 2050), "float64"),
)
def test_whatever_the_address(shape: Shape, dtype: str) -> None:
    """Views that begin inside a vector against an aligned copy of them."""
    x, target = logits(shape, dtype)
    aligned = on(x, target)
    assert [changed(aligned, on(x, target, skipped)) for skipped in (1, 2, 3)] == [[], [], []]


def test_whatever_the_addresses_of_three_operands() -> None:
    rng = np.random.default_rng(2)
    hosts = rng.standard_normal((3, 40, 200)).astype(np.float32)
    with installed(check=False, seed=1) as device:
        results = []
        for skipped in ((0, 0, 0), (1, 0, 0), (0, 3, 2)):
            arrays = [placed(device, x, by) for x, by in zip(hosts, skipped, strict=True)]
            value, gradients = value_and_grad(triplet_margin_loss, (0, 1, 2))(*arrays)
            results.append([x.get().tobytes() for x in (value, *gradients)])
    assert results[1] == results[0]
    assert results[2] == results[0]


RANKS = (
    ((3, 1100), "float32"),
    ((3, 5000), "float32"),
    ((3, 5001), "float32"),
    ((40, 4100), "bfloat16"),
    ((3, 4101), "bfloat16"),
)


@cases(*RANKS, ((40, 16), "float32"), ((40, 1000), "float32"), ((40, 1000), "bfloat16"))
def test_with_and_without_clusters(
    shape: Shape, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are computed by a cluster, or by all blocks of a device in two launches."""
    monkeypatch.setattr(row_team, "CACHE_BYTES", 1 << 10)
    x, target = logits(shape, dtype)
    some, none = (on(x, target, compute_capability=capability) for capability in ("90", "80"))
    assert changed(some, none) == []


@cases(
    ((40, 1000), "float32"),
    ((3, 5001), "float32"),
    ((40, 12), "bfloat16"),
    ((3, 4101), "bfloat16"),
    ((40, 333), "float32"),
    ((3, 2050), "float64"),
)
def test_with_and_without_asynchronous_copies(shape: Shape, dtype: str) -> None:
    x, target = logits(shape, dtype)
    some, none = (on(x, target, 1, compute_capability=capability) for capability in ("80", "70"))
    assert changed(some, none) == []


@cases(*RANKS, ((40, 16), "float32"), ((40, 1000), "float32"), ((40, 1000), "bfloat16"))
def test_whatever_the_size_of_shared_memory(
    shape: Shape, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in which a rank fits, or not; without gradients one block computes all."""
    monkeypatch.setattr(row_team, "CACHE_BYTES", 8 << 10)
    monkeypatch.setattr(row_team, "MANY_ROWS", 1)
    x, target = logits(shape, dtype)
    least = (
        18 if shape == (3, 1100) else 16
    )  # KiB, of which the kernels take 8; a warp has two rows
    large, *smaller = (on(x, target, shared_memory=size << 10) for size in (32, 24, least))
    assert [changed(large, other) for other in smaller] == [[], []]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((70, 223), "bfloat16"), levels.case((70, 257), "float32", default=False)]
)
def test_whatever_the_distance_between_stretches(
    shape: Shape, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That follows from the strides, which rows of the same length need not share."""
    x, target = logits(shape, dtype)
    chosen = on(x, target)
    monkeypatch.setattr(RowTeam, "spread", lambda team, memory: team)
    assert changed(chosen, on(x, target)) == []
    monkeypatch.setattr(RowTeam, "spread", lambda team, memory: replace(team, apart=48))
    assert changed(chosen, on(x, target)) == []


@cases(
    *(
        (shape, dtype)
        for shape in ((1100, 2), (300, 16), (70, 333), (70, 1000), (3, 5000))
        for dtype in ("float32", "bfloat16")
    )
)
def test_whatever_the_stream_and_the_order_in_which_blocks_end(shape: Shape, dtype: str) -> None:
    x, target = logits(shape, dtype)
    first, *others = (
        on(x, target, **fields)
        for fields in (
            {"seed": 0, "concurrent": 1, "multiprocessors": 1, "blocks_per_multiprocessor": 1},
            {"seed": 3, "concurrent": 7, "multiprocessors": 132, "stream": 0x5000},
            {"seed": 4, "concurrent": 3, "multiprocessors": 5, "cache_bytes": 50 << 20},
        )
    )
    assert [changed(first, other) for other in others] == [[], []]


@cases(
    *(
        (shape, dtype)
        for shape in ((1100, 2), (40, 16), (40, 333), (40, 1000), (3, 5000))
        for dtype in ("float32", "bfloat16")
    )
)
def test_whether_a_gradient_is_wanted_or_not(shape: Shape, dtype: str) -> None:
    x, target = logits(shape, dtype)
    for skipped in (0, 1):
        results = on(x, target, skipped)
        assert results["value beside the gradient"] == results["mean"]


@cases(
    ((40, 333), "float32"),
    ((40, 1001), "float32"),
    ((40, 21), "bfloat16"),
    ((40, 16), "float32"),
    ((40, 40), "float32"),
    ((40, 1000), "float32"),
    ((40, 333), "bfloat16"),
    ((40, 1000), "bfloat16"),
    ((5, 5001), "float32"),
    ((5, 5001), "bfloat16"),
)
def test_whatever_other_rows_there_are(shape: Shape, dtype: str) -> None:
    """Each row alone against the same row among the others; its gradient that of the sum."""
    x, target = logits(shape, dtype)
    with installed(check=False, seed=1) as device:

        def rows(part: slice) -> tuple[Any, Any]:
            arrays = placed(device, x[part]), device.asarray(target[part])
            losses = cross_entropy(*arrays, reduction="none")
            _, gradient = value_and_grad(cross_entropy)(*arrays, reduction="sum")
            return losses.get(), gradient.get()

        parts = [slice(None), *(slice(k, k + 1) for k in range(len(x)))]
        among_others, *alone = device.together(lambda: [rows(part) for part in parts])
        for which in (0, 1):
            assert (
                np.concatenate([row[which] for row in alone]).tobytes()
                == among_others[which].tobytes()
            )

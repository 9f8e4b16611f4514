"""The denominators of means of rows that a launch of its own adds up, on the emulator."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, value_and_grad
from cupy_losses._device import denominators_schedule, plan_rows
from cupy_losses._device.row_arrays import RowGeometry

from .. import emulator
from ..emulator import Device, installed
from ..tools import levels
from .test_rows_emulated import names, of_more_rows

COUNT, CLASSES = 331, 5


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 64 rows in three segments, and no gradients that anticipate all rows."""
    emulator.require()
    monkeypatch.setattr(plan_rows, "FEW_ELEMENTS", 0)
    for name, number in ("THREADS", 32), ("ROWS", 2), ("SEGMENTS", 3):
        monkeypatch.setattr(denominators_schedule, name, number)


def drawn(dtype: type[np.floating[Any]], *, strided: bool) -> tuple[Any, Any]:
    """Logits and classes, some to ignore and some out of range."""
    rng = np.random.default_rng(29)
    x = rng.standard_normal((COUNT, CLASSES)).astype(dtype)
    target = rng.integers(0, CLASSES, COUNT)
    target[::3], target[5::100] = -100, CLASSES
    return np.asfortranarray(x) if strided else x, target


def options(dtype: type[np.floating[Any]]) -> dict[str, dict[str, Any]]:
    """Of calls. The sums of these weights are exact in any order."""
    weight = np.linspace(0.25, 1.25, CLASSES).astype(dtype)
    where = np.arange(COUNT) % 5 != 0
    sample_weight = (np.arange(COUNT) % 7 / 2).astype(dtype)
    return {
        "ignored": {},
        "weights": {"weight": weight},
        "masked": {"where": where},
        "weighed": {"sample_weight": sample_weight},
        "all": {"weight": weight, "where": where, "sample_weight": sample_weight},
    }


def results(device: Device, x: Any, target: Any, given: dict[str, Any]) -> list[Any]:
    """The loss and its gradient."""
    arrays = {name: device.asarray(array) for name, array in given.items()}
    loss = functools.partial(value_and_grad(cross_entropy), **arrays)
    return [array.get() for array in loss(device.asarray(x), device.asarray(target))]


CASES = [
    (name, dtype, strided)
    for name in options(np.float32)
    for dtype in (np.float32, np.float16, np.float64)
    for strided in (False, True)
]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("name", "dtype", "strided"),
    [
        levels.case(*case, default=case[1] == np.float32 and not case[2], id=f"{case[0]}-{k}")
        for k, case in enumerate(CASES)
    ],
)
def test_segments_and_tiles(
    name: str, dtype: type[np.floating[Any]], strided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several tiles, the last of which is not full; as the host and one tile have it."""
    x, target = drawn(dtype, strided=strided)
    target[target == CLASSES] = -100
    given = options(dtype)[name]
    of_host = value_and_grad(cross_entropy)(x, target, **given)
    found = []
    for threads in (32, 512):
        monkeypatch.setattr(denominators_schedule, "THREADS", threads)
        with installed(multiprocessors=2, blocks_per_multiprocessor=1, seed=7) as device:
            found.append(results(device, x, target, given))
            launched = [one for one in names(device) if one.startswith("denominators<")]
        assert len(launched) == 1
        if found[1:]:
            for few, one in zip(*found, strict=True):
                assert few.tobytes() == one.tobytes()
    for own, host in zip(found[0], of_host, strict=True):
        np.testing.assert_allclose(own, host, rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.usefixtures("_small")
def test_invalid_rows_count(device: Device) -> None:
    """A class out of range has the loss NaN, and other rows are divided by what it counts, too."""
    x, target = drawn(np.float32, strided=False)
    value, gradient = results(device, x, target, {})
    assert np.isnan(value)
    valid = target != CLASSES
    ignored = np.where(valid, target, -100)
    _, others = value_and_grad(cross_entropy)(x, ignored)
    scale = (ignored >= 0).sum() / (target >= 0).sum()
    np.testing.assert_allclose(gradient[valid], others[valid] * scale, rtol=1e-6)


@pytest.mark.usefixtures("_small")
def test_more_rows_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a kernel of so many rows, of few here."""
    x, target = drawn(np.float32, strided=False)
    target[target == CLASSES] = -100
    found = []
    for function in (RowGeometry.layout, of_more_rows(RowGeometry.layout)):
        monkeypatch.setattr(RowGeometry, "layout", function)
        with installed(multiprocessors=2, seed=7) as device:
            found.append([a.tobytes() for a in results(device, x, target, {})])
    assert found[0] == found[1]

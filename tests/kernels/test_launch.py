"""Launches from several threads: each has arguments of its own until the driver has copied them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from cupy_losses._device import driver
from cupy_losses._device.compiler import Kernel
from cupy_losses._device.launch import Launch, Parameters, int64


def arguments(address: int, count: int) -> list[int]:
    """What the driver copies: integers at an array of addresses."""
    places = (ctypes.c_uint64 * count).from_address(address)
    return [ctypes.c_int64.from_address(place).value for place in places]


def pack(parameters: Parameters) -> bytes:
    return int64(*map(int, parameters))


def bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def test_a_launch_that_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that adds up what a mean is divided by."""
    seen: list[list[int]] = []
    monkeypatch.setattr(
        driver, "launcher", lambda: lambda *given: seen.append(arguments(given[-2], 3))
    )
    launch = Launch(Kernel(None, 0, 1), (1, 1), 32, [], 1, fields=pack, parameters=(10,))
    for parameter, scale in ((10, 1.0), (10, 3.0), (11, 3.0)):
        launch.start(0, (parameter,), scale, (5,))
    assert seen == [[10, bits(1.0), 5], [10, bits(1.0), 5], [11, bits(1.0), 5]]


def test_a_launch_while_another_one_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another thread while the driver has let go of the interpreter."""
    seen: list[tuple[int, list[int]]] = []

    def launch_kernel(*given: Any) -> None:
        *_, stream, address, _ = given
        if stream < 3:
            scale = float(stream + 1)
            launch.start(stream + 1, (stream + 11,), scale, (stream + 101, stream + 201))
        seen.append((stream, arguments(address, 5)))

    monkeypatch.setattr(driver, "launcher", lambda: launch_kernel)
    kernel = Kernel(None, 0, 1)
    launch = Launch(kernel, (1, 1), 32, [int64(7)], 2, fields=pack, parameters=(10,), scaled=True)
    expected = [(k, [10 + k, bits(k), 7, 100 + k, 200 + k]) for k in (3, 2, 1)]
    for _ in range(2):
        seen.clear()
        launch.start(1, (11,), 1.0, (101, 201))
        assert seen == expected


def test_a_launch_that_fails_leaves_the_next_one_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def launch_kernel(*given: Any) -> None:
        if given[-3] == 0:
            raise RuntimeError("no such stream")
        seen.append(arguments(given[-2], 2))

    monkeypatch.setattr(driver, "launcher", lambda: launch_kernel)
    launch = Launch(Kernel(None, 0, 1), (1, 1), 32, [int64(7)], 1)
    with pytest.raises(RuntimeError, match="no such stream"):
        launch.start(0, (), 1.0, (5,))
    launch.start(1, (), 1.0, (6,))
    assert seen == [[7, 6]]

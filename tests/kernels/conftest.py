"""What several files of tests of kernels need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .. import emulator
from ..emulator import Device, installed


@pytest.fixture
def needs_emulator() -> None:
    """Skip a test where the emulator cannot compile kernels."""
    emulator.require()


@pytest.fixture
def device() -> Iterator[Device]:
    """A device of the emulator."""
    emulator.require()
    with installed(seed=1) as device:
        yield device

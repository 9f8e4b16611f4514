"""How a test sees that nothing waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CYCLES = 4_000_000_000  # two seconds, more or less


@contextmanager
def without_waiting(cycles: int = CYCLES) -> Iterator[None]:
    """Raise unless the calls return while the device is still busy with something else.

    Whoever waits for the device, by torch, CuPy or the driver, waits for that too. Kernels must be
    loaded already.
    """
    torch.cuda.synchronize()
    torch.cuda._sleep(cycles)
    awake = torch.cuda.Event()
    awake.record()
    yield
    assert not awake.query()
    torch.cuda.synchronize()

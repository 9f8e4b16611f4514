"""The memory in which blocks add up: counters, and room for partial sums.

All launches on a stream use the same memory, as each one is done before the next one begins. They
leave every counter at 0, so nothing is launched to set it. See cuda/reduction/reduction.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.types import AnyArray
from . import driver
from .library import PER_THREAD_STREAM, DeviceLibrary

COUNTER_BYTES = 4 << 10
PARTIAL_BYTES = 252 << 10

_of_streams: dict[tuple[int, int], int] = {}  # by device and stream, to the end of the process


class Workspace:
    """What a plan needs of it.

    More than is kept for a stream is memory of the call alone, and its counters are set to 0. So is
    that of a call that is captured in a CUDA graph: replays may run beside other calls. So is all
    of a stream for which nothing can be kept.
    """

    def __init__(self, library: DeviceLibrary, device: int, counters: int, partials: int) -> None:
        self._library, self._device = library, device
        self._begin = max(-(-counters // 16) * 16, COUNTER_BYTES)  # of the partial sums
        self._own = counters > COUNTER_BYTES or partials > PARTIAL_BYTES
        self._size = self._begin + partials
        self._counters = counters
        self._memset = driver.memset()

    def of(
        self, operands: Sequence[AnyArray], stream: int, is_captured: bool
    ) -> tuple[Any, int, int]:
        """What keeps it alive, and where the counters and the partial sums are."""
        if not (self._own or is_captured or stream == PER_THREAD_STREAM):
            begin = _of_streams.get((self._device, stream)) or self._of_new_stream(stream)
            if begin:
                return None, begin, begin + self._begin
        memory, begin = self._library.scratch(operands, self._size, is_captured)
        self._memset(begin, 0, self._counters, stream)
        return memory, begin, begin + self._begin

    def _of_new_stream(self, stream: int) -> int:
        """What is kept for a stream from now on; 0 if nothing can be."""
        try:
            begin = driver.memory_to_keep(COUNTER_BYTES + PARTIAL_BYTES, stream)
        except RuntimeError:
            return 0
        self._memset(begin, 0, COUNTER_BYTES, stream)
        # Another thread may have been faster: what is set on one stream stays with it.
        return _of_streams.setdefault((self._device, stream), begin)

"""The memory in which blocks add up: counters, and room for partial sums.

All launches on a stream use the same memory, as each one is done before the next one begins. They
leave every counter at 0, so nothing is launched to set it. See cuda/reduction/reduction.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._core.outputs import Output
from .._core.types import AnyArray
from . import driver
from .library import DeviceLibrary

COUNTER_BYTES = 4 << 10
PARTIAL_BYTES = 252 << 10
PER_THREAD_STREAM = 2  # the handle of as many streams as there are threads

_of_streams: dict[tuple[DeviceLibrary, int, int], tuple[AnyArray, int]] = {}


class Workspace:
    """What a plan needs of it.

    More than is kept for a stream is memory of the call alone, and its counters are set to 0. So is
    that of a call that is captured in a CUDA graph: replays may run beside other calls.
    """

    def __init__(self, library: DeviceLibrary, device: int, counters: int, partials: int) -> None:
        self._library, self._device = library, device
        self._begin = max(-(-counters // 16) * 16, COUNTER_BYTES)  # of the partial sums
        self._own = counters > COUNTER_BYTES or partials > PARTIAL_BYTES
        self._size = self._begin + partials
        self._counters = counters
        self._memset = driver.memset()
        kept = Output("uint8", (COUNTER_BYTES + PARTIAL_BYTES,), (1,))
        self._allocate = library.filled(kept, 0)

    def of(
        self, operands: Sequence[AnyArray], stream: int, is_captured: bool
    ) -> tuple[AnyArray, int, int]:
        """What keeps it alive, and where the counters and the partial sums are."""
        if self._own or is_captured or stream == PER_THREAD_STREAM:
            memory, begin = self._library.scratch(operands, self._size, is_captured)
            self._memset(begin, 0, self._counters, stream)
        else:
            key = self._library, self._device, stream
            try:
                memory, begin = _of_streams[key]
            except KeyError:
                memory = self._allocate(operands)
                begin = self._library.address(memory)
                memory, begin = _of_streams.setdefault(key, (memory, begin))
        return memory, begin, begin + self._begin

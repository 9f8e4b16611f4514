"""The memory in which blocks add up: counters, and room for partial sums.

All launches on a stream use the same memory, as each one is done before the next one begins. They
leave every counter at 0, so nothing is launched to set it. See cuda/reduction/reduction.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.types import AnyArray
from . import driver
from .library import DeviceLibrary

COUNTER_BYTES = 4 << 10
PARTIAL_BYTES = 252 << 10
AT_ONCE = 8  # for so many streams: 2 MiB, of which the driver allocates a multiple
PER_THREAD_STREAM = 2  # the handle of as many streams as there are threads

_of_streams: dict[tuple[int, int], int] = {}  # by device and stream, to the end of the process
_spare: dict[int, list[int]] = {}  # by device
_blocks: list[Any] = []


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

    def of(
        self, operands: Sequence[AnyArray], stream: int, is_captured: bool
    ) -> tuple[Any, int, int]:
        """What keeps it alive, and where the counters and the partial sums are."""
        memory = None
        if self._own or is_captured or stream == PER_THREAD_STREAM:
            memory, begin = self._library.scratch(operands, self._size, is_captured)
            self._memset(begin, 0, self._counters, stream)
        else:
            try:
                begin = _of_streams[self._device, stream]
            except KeyError:
                begin = self._of_new_stream(stream)
        return memory, begin, begin + self._begin

    def _of_new_stream(self, stream: int) -> int:
        # It comes from no pool: a pool that is used for a while would not be free of it afterwards.
        spare = _spare.setdefault(self._device, [])
        try:
            begin = spare.pop()
        except IndexError:
            size = COUNTER_BYTES + PARTIAL_BYTES
            _blocks.append(driver.memory(AT_ONCE * size))
            begin, *others = range(_blocks[-1].ptr, _blocks[-1].ptr + AT_ONCE * size, size)
            spare += others
        self._memset(begin, 0, COUNTER_BYTES, stream)
        # Another thread may have been faster: what is set on one stream stays with it.
        return _of_streams.setdefault((self._device, stream), begin)

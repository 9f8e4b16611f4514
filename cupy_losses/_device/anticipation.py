"""Gradients that a forward pass has multiplied by the grad_output that it anticipates.

That is the one of the last backward pass of the same plan with as many calls waiting, 1 at first.
The number of rows that a mean has is anticipated too: all, if all were there in the last call; so
it is where a call gives value and gradients, which has no backward pass. They never leave the
device: `Factor` in cuda/reduction/factor.cuh says what kernels do with them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.outputs import Output
from .._core.shapes import ArraySpec
from .._core.types import AnyArray
from . import driver
from .launch import Chooser, Parameters
from .library import PER_THREAD_STREAM, DeviceLibrary

SLOT_BYTES = 32  # an Anticipation, see cuda/reduction/factor.cuh
USED_OFFSET, COUNTED_OFFSET = 8, 16  # where its numbers USED and COUNTED lie
SLOTS = 32  # of a block of memory, 1 KiB

_of_graphs: dict[int, Any] = {}  # memory that a replay may use at any time, by its id


def keep_for_replays(memory: Any) -> None:
    """Keep memory to the end, once for all calls that have a part of it."""
    _of_graphs[id(memory)] = memory


class Slots:
    """The memory of a plan: a slot for each call that waits for its backward pass.

    A call takes the lowest free slot of its stream and has it to itself until it is done. All
    kernels that use a slot are on one stream. So no slot changes while a kernel reads it, and what
    a call has anticipated stays until its backward pass. A call on the stream of its thread, which
    has the same handle in all threads, has a slot of its own.

    A call that is captured in a CUDA graph keeps its slot, as replays use it. It takes the highest
    one of any stream, which other calls have hardly used. What they have launched is done before a
    replay: torch.cuda.graph waits for the device.
    """

    def __init__(self, library: DeviceLibrary) -> None:
        self._address = library.address
        self._allocate = library.filled(Output("float64", (SLOT_BYTES // 8 * SLOTS,), (1,)), 1.0)
        self._memory: list[AnyArray] = []
        self._free: dict[int, list[int]] = {}  # for each stream, lowest first

    # Threads share the lists: pop and insort are one step each. A lock could be held by the call
    # that the garbage collector interrupts to finalise another one.

    def take(
        self, operands: Sequence[AnyArray], stream: int, is_captured: bool
    ) -> tuple[int, Any, list[int]]:
        """A slot, what keeps it alive if these lists do not, and the list that it goes back to."""
        if is_captured:
            return *self._take_for_graph(operands), []
        if stream == PER_THREAD_STREAM:
            return *self._take_new(operands), []
        free = self._free.setdefault(stream, [])
        try:
            return free.pop(0), None, free
        except IndexError:
            memory = self._allocate(operands)
            self._memory.append(memory)
            first, *others = self._addresses(memory)
            for address in others:
                insort(free, address)
            return first, None, free

    def _take_for_graph(self, operands: Sequence[AnyArray]) -> tuple[int, Any]:
        for free in list(self._free.values()):
            try:
                address = free.pop()
            except IndexError:
                continue
            keep_for_replays(self._memory)
            return address, self._memory
        # Nothing came before the capture: each replay fills this and anticipates 1.
        return self._take_new(operands)

    def _take_new(self, operands: Sequence[AnyArray]) -> tuple[int, Any]:
        memory = self._allocate(operands)
        return self._addresses(memory)[0], memory

    def _addresses(self, memory: AnyArray) -> range:
        begin = self._address(memory)
        return range(begin, begin + SLOTS * SLOT_BYTES, SLOT_BYTES)


class Again(NamedTuple):
    """How a plan computes gradients anew where another grad_output came: one launch."""

    start: Callable[[int, Parameters, float, Sequence[int]], None]
    choose: Chooser  # its addresses, from those of the call and later ones
    slots: Slots
    library: DeviceLibrary
    device: int
    strided: list[ArraySpec]  # the operands, if any is not contiguous
    is_capturing: Callable[[int], bool]  # whether what a stream is given goes to a CUDA graph


class Waiting:
    """A call whose gradients are written, until its backward pass or the end of its graph."""

    __slots__ = (
        "_addresses",
        "_again",
        "_home",
        "_is_captured",
        "_keep",
        "_memory",
        "_numbers",
        "_pointers",
        "_slot",
        "_stream",
    )

    def __init__(
        self,
        again: Again,
        numbers: tuple[Parameters, float],  # the hyper-parameters and the scale
        pointers: list[int],  # of the operands
        addresses: list[int],  # of the call; the slot is added
        stream: int,
        is_captured: bool,
        keep: Any,
        operands: Sequence[AnyArray],
    ) -> None:
        self._home: list[int] = []  # nobody's, should there be no memory for a slot
        self._slot = 0
        self._again, self._numbers, self._stream = again, numbers, stream
        self._pointers, self._addresses, self._keep = pointers, addresses, keep
        self._is_captured = is_captured
        self._slot, self._memory, self._home = again.slots.take(operands, stream, is_captured)
        addresses.append(self._slot)

    def finish(self, operands: Sequence[AnyArray], grad_output: AnyArray) -> bool:
        """Make the gradients those for grad_output; False where they must be computed elsewhere.

        That is so on another stream, or one that may be another thread's, with a grad_output or the
        current device elsewhere, with operands that a hook has moved, and where only one of the two
        passes is captured in a graph, whose replays would not find what the other one did.
        """
        start, choose, _, library, device, strided, is_capturing = self._again
        stream = library.stream(device)
        address = library.address
        if (
            stream != self._stream
            or stream == PER_THREAD_STREAM
            or library.device(grad_output) != device
            or library.current_device() != device
            or [*map(address, operands)] != self._pointers
            # What a hook copies is contiguous, and may lie where the original was.
            or (strided and [*map(library.spec, operands[: len(strided)])] != strided)
            or is_capturing(stream) != self._is_captured
        ):
            return False
        later = address(grad_output), self._slot + COUNTED_OFFSET
        start(stream, *self._numbers, choose([*self._addresses, *later]))
        if self._is_captured:
            # The gradients are those for grad_output now, also for a second replay of this.
            driver.copy(self._slot + USED_OFFSET, self._slot, USED_OFFSET, stream)
        return True

    def __del__(self, insort: Callable[[list[int], int], None] = insort) -> None:
        """Give the slot back, unless it is a graph's: the next call comes later on the stream."""
        insort(self._home, self._slot)

"""`accelerate`: torch's own losses, computed by this package where it has torch's result."""

from __future__ import annotations

import threading

from .._api import compiled
from .._core.extras import require_torch
from .report import Report
from .tallies import Tally, counts


class Acceleration:
    """Acceleration that is on, until it is closed or the `with` block that it heads ends."""

    def __init__(self) -> None:
        require_torch("accelerate")
        from . import replacement  # imports torch

        self._closing = threading.Lock()
        self._is_entered = False
        self._replacement = replacement
        self._before = counts()
        self._after: dict[Tally, int] | None = None
        replacement.switch_on()

    def __repr__(self) -> str:
        state = "on" if self._after is None else "closed"
        return f"<acceleration, {state}: report() says what was computed>"

    def close(self) -> None:
        """Give torch its functions back, unless another acceleration is on; once is enough."""
        with self._closing:
            if self._after is None:
                try:
                    self._replacement.switch_off()
                finally:
                    self._after = counts()

    def __enter__(self) -> Acceleration:
        if self._after is not None:
            raise RuntimeError("this acceleration is closed: call accelerate() for another one")
        if self._is_entered:
            raise RuntimeError("this acceleration has its block: call accelerate() for another one")
        self._is_entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def report(self, measure: bool = False) -> Report:
        """The calls since it was switched on, until it was closed, of all threads.

        Args:
            measure: Whether to time calls like those that came, by torch and by this package, with
                CUDA events. That takes memory for one call at a time, and waits for the GPU.

        Returns:
            A report, which prints as a table. `calls` is how many there were, `ours` how many of
            them this package computed, `saved` the seconds saved, or None where no time was
            measured, and `lines` has the lines of the table.

        """
        after = counts() if self._after is None else self._after
        calls = {tally: number - self._before.get(tally, 0) for tally, number in after.items()}
        times = {}
        if measure:
            from .measurement import times_of

            times = times_of({tally: number for tally, number in calls.items() if number})
        return Report.of(calls, times)


def accelerate() -> Acceleration:
    """Let this package compute torch's own losses, where it has torch's result.

    All functions of `torch.nn.functional` that this package has are replaced, so that the modules
    of `torch.nn` follow, and names that were imported before. Calls on CUDA tensors are computed by
    this package; all others, and those of which torch would have another result, by torch.

    It is on for the whole process, all threads, from the call on, until the `with` block ends or
    the object is closed. Where several are on, the last one to end gives torch its functions back.

    Returns:
        An object for `with`, which has `close()`, and `report()`: the calls by function, dtype and
        size, and why torch computed some.

    Raises:
        ImportError: If torch is not installed.

    >>> import torch
    >>> with accelerate() as acceleration:
    ...     loss = torch.nn.functional.mse_loss(torch.ones(3), torch.zeros(3))
    >>> print(acceleration.report())
    cupy_losses computed 0 of 1 calls of torch's losses.
    <BLANKLINE>
    function  dtype    elements  calls  computed by
    mse_loss  float32  2 to 3        1  torch: the operands are on no GPU
    <BLANKLINE>
    Time saved: nothing was measured.

    """
    if compiled.is_compiling():
        return compiled.call_outside_graph("accelerate", accelerate)
    return Acceleration()

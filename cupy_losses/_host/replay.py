"""A formula that was recorded, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._core.program import Program
from .chunks import Array, broadcast
from .dual import Dual, Number, plain


@dataclass(frozen=True)
class Replay:
    """The steps of a formula, in float64: it is elementwise, being made of one element."""

    function: Program

    def __call__(self, *operands: Number, **parameters: float) -> Number:
        """The value, in the shape of the operands, to which a constant broadcasts."""
        return _broadcast(self.function(*operands, **parameters), plain(operands[0]))


def _broadcast(x: Number, like: Array) -> Number:
    if isinstance(x, Dual):
        return Dual(_broadcast(x.value, like), _broadcast(x.slope, like))
    return broadcast(np.asarray(x, np.float64), np.shape(like))

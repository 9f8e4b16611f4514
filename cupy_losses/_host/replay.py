"""A formula that was recorded, on the host."""

from __future__ import annotations

from dataclasses import dataclass

from .._core.program import Program
from .dual import Number


@dataclass(frozen=True)
class Replay:
    """The steps of a formula, in float64: it is elementwise, being made of one element."""

    function: Program

    def __call__(self, *operands: Number, **parameters: float) -> Number:
        """The value; a constant is one number."""
        return self.function(*operands, **parameters)

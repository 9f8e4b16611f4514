"""A reduction is a pair: a sum, and the denominator that divides it.

The value of a call is sum * scale / denominator, with a scale of 1 unless it is given. A mean
divides by the number of elements or rows, by the sum of their weights, or by what a mask or ignored
rows leave; a sum divides by 1.

What "nothing left" means is decided here for all losses, libraries and devices. The value is then
0 / 0: NaN. Its derivatives are 0, because they are divided by `NOTHING_LEFT` instead.
`_host/reduction.py`, cuda/reduction/reduction.cuh and, for gradients by weights,
`_torch/weights.py` do so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

NOTHING_LEFT = math.inf  # the denominator of derivatives where nothing is left


class Denominator(NamedTuple):
    """What divides the sum of a call.

    `size` is the denominator unless it depends on data: `of_data`. It is then a sum of weights, or
    with `is_count` the number of elements or rows that a mask or an ignored index leaves. Where a
    call `leaves_out` elements or rows, a denominator of 0 means that nothing is left.
    """

    size: float
    of_data: bool = False
    leaves_out: bool = False
    is_count: bool = False

    def of_derivatives(self, denominator: float) -> float:
        """What derivatives are divided by, from what the value is divided by."""
        return NOTHING_LEFT if self.leaves_out and denominator == 0 else denominator


def value_of_nothing(denominator: Denominator) -> float:
    """The value of a call without elements."""
    return 0.0 if denominator.size and not denominator.of_data else math.nan

"""The types of arguments and results, for functions of your own that pass them on.

- `Array`: an array of any library.
- `ArrayT`: the first operand, whose library is that of the result.
- `Reduction`: "none", "mean" or "sum".
- `KLReduction`: these or "batchmean", for `kl_div`.
- `CheckReport`: what `check()` of a loss of your own returns.
- `AccelerationReport`: what `report()` of an acceleration returns.
"""

from __future__ import annotations

from ._acceleration.report import Report as AccelerationReport
from ._core.types import Array, ArrayT, KLReduction, Reduction
from ._verification.report import Report as CheckReport

__all__ = ["AccelerationReport", "Array", "ArrayT", "CheckReport", "KLReduction", "Reduction"]

"""The types of arguments of losses, for functions of your own that pass them on.

- `Array`: an array of any library.
- `ArrayT`: the first operand, whose library is that of the result.
- `Reduction`: "none", "mean" or "sum".
- `KLReduction`: these or "batchmean", for `kl_div`.
"""

from __future__ import annotations

from ._core.types import Array, ArrayT, KLReduction, Reduction

__all__ = ["Array", "ArrayT", "KLReduction", "Reduction"]

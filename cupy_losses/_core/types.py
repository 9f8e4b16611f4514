"""The types of arrays, and of reductions in the signatures of public functions.

They name the classes of torch without importing it: where it is not installed, a type checker knows
its tensors as Any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class SupportsDLPack(Protocol):
    """An array of any library that shares its memory by DLPack."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


# NumPy's scalars do not share memory, nor do its arrays of bool for NumPy's types.
Array: TypeAlias = SupportsDLPack | np.ndarray[Any, Any] | np.generic

# An array inside of the package, of whatever library.
AnyArray: TypeAlias = Any

# The first operand, whose library is that of the result. The classes are listed: a result has
# neither the shape and the dtype of an operand, nor its class where that is a `torch.nn.Parameter`.
# Arrays of all other libraries are Any, as CuPy has no types. Of several that fit, mypy takes the
# last: hence the order, with torch's class, which is Any where torch is missing, before NumPy's.
ArrayT = TypeVar("ArrayT", Any, "torch.Tensor", "npt.NDArray[Any]")

Reduction = Literal["none", "mean", "sum"]
KLReduction = Literal[Reduction, "batchmean"]

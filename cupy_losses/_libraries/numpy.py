"""NumPy arrays, on the host backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._core.loss import FORWARD, Call, Request
from .._core.types import AnyArray
from .registry import ArrayLibrary, register


@register
class NumpyLibrary(ArrayLibrary):
    """NumPy arrays and scalars."""

    name = "numpy"
    on_host = True

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """Arrays, and the scalars that they are made of."""
        return np.ndarray, np.generic

    @classmethod
    def owns(cls, array: AnyArray) -> bool:
        """All but masked arrays, whose masks would be ignored."""
        return isinstance(array, cls.types()) and not isinstance(array, np.ma.MaskedArray)

    def adopt(self, array: AnyArray) -> AnyArray:
        """A view of another library's array or a subclass's; a scalar as a 0-d array.

        A subclass may have operators of its own.
        """
        if isinstance(array, self.types()):
            return np.asarray(array)
        return np.from_dlpack(array)

    def exported(self, array: AnyArray) -> AnyArray:
        """A scalar as a 0-d array, which has DLPack."""
        return np.asarray(array) if isinstance(array, np.generic) else array

    def one(self, like: AnyArray) -> AnyArray:
        """The number 1."""
        return np.ones((), like.dtype)

    def evaluate(self, call: Call, operands: Sequence[AnyArray]) -> AnyArray:
        """The loss."""
        return self.run(call, FORWARD, operands)[0]

    def run(
        self, call: Call, request: Request, operands: Sequence[AnyArray]
    ) -> list[AnyArray | None]:
        """The results of a request."""
        return on_host(call, request, operands)


def on_host(
    call: Call, request: Request, operands: Sequence[AnyArray], autocast: bool = False
) -> list[AnyArray | None]:
    """Evaluate a request on NumPy arrays; the array of a scale is a number here."""
    if call.scaled:
        *operands, scale = operands
        call = call._replace(scale=float(scale), scaled=False)
    return call.loss.on_host(call, request, operands, autocast)

"""A formula and its derivatives in an arithmetic: that of devices, of the host, or a wider one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.loss import Formula
from .._host.arrays import HostArray
from .._host.dual import Dual, plain, slope_of

Quantity = tuple[int, ...]
"""A derivative by these operands, in ascending order; () is the value."""

WIDE = np.longdouble


class Rounded(np.ndarray[Any, Any]):
    """An array whose arithmetic stays in its dtype, as on a device, whatever it meets."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(x, Dual) for x in inputs):
            return NotImplemented
        given = [_floating_as(self.dtype, x) for x in inputs]
        return _viewed(self.dtype, getattr(ufunc, method)(*given, **options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if any(issubclass(kind, Dual) for kind in types):
            return NotImplemented
        return _viewed(self.dtype, super().__array_function__(function, types, args, options))


def _floating_as(dtype: npt.DTypeLike, x: Any) -> Any:
    array = np.asarray(x)
    return array.astype(dtype) if array.dtype.kind == "f" else array


def _viewed(dtype: npt.DTypeLike, result: Any) -> Any:
    array = np.asarray(result)
    return array.astype(dtype).view(Rounded) if array.dtype.kind == "f" else result


def second_derivatives(operands: int) -> Iterator[tuple[int, int]]:
    """All second derivatives, by pairs of operands."""
    return itertools.combinations_with_replacement(range(operands), 2)


def derivatives(
    formula: Formula, points: Sequence[HostArray], parameters: Mapping[str, float]
) -> dict[Quantity, HostArray]:
    """All quantities of a formula at points, in the arithmetic of their dtype.

    Narrower than the wide one, it is that of a device: parameters and constants are rounded too.
    """
    dtype = points[0].dtype
    x = [point if dtype == WIDE else point.view(Rounded) for point in points]
    given = rounded(parameters, dtype)
    found: dict[Quantity, HostArray] = {}
    for j, k in second_derivatives(len(points)):
        own: list[Any] = list(x)
        own[k] = Dual(own[k], np.ones_like(own[k]))
        own = [Dual(number, float(n == j)) for n, number in enumerate(own)]
        result = formula(*own, **given)
        slope = slope_of(result)
        for order, part in enumerate((result, slope, slope_of(slope))):
            found[(j, k)[:order]] = _of_points(plain(part), points[0])
    return found


def rounded(parameters: Mapping[str, float], dtype: npt.DTypeLike) -> dict[str, float]:
    """The parameters as a device has them for operands of a dtype."""
    return {name: float(np.asarray(value, dtype)) for name, value in parameters.items()}


def _of_points(x: Any, like: HostArray) -> HostArray:
    array: HostArray = np.asarray(x)
    return np.broadcast_to(array.astype(like.dtype), like.shape)

"""NumPy arrays, and NumPy arrays without their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.dtypes import dtype_name
from .._core.loss import Request
from .._core.shapes import ArraySpec, Shape

HostArray = npt.NDArray[Any]
Layout = tuple[np.dtype[Any], Shape, Shape]


def spec(array: HostArray) -> ArraySpec:
    """A NumPy array without its data."""
    return spec_of(layout(array))


def layout(array: HostArray) -> Layout:
    """The dtype, shape and strides in bytes of an array, which are quicker to get than its spec."""
    return array.dtype, array.shape, array.strides


def spec_of(layout: Layout) -> ArraySpec:
    """The array of a layout without its data."""
    of, shape, strides = layout
    size = max(of.itemsize, 1)
    return ArraySpec(dtype_name(of), shape, tuple(step // size for step in strides))


def is_narrow(request: Request, operands: Sequence[ArraySpec]) -> bool:
    """Whether a device computes a request in float32, which rounds parameters and constants."""
    return all(operand.dtype != "float64" for operand in operands[request.denominator :])


def broadcast(x: HostArray | float, shape: Shape) -> HostArray:
    """An array or a number in the shape that it broadcasts to."""
    array = np.asarray(x)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def wide(array: HostArray) -> HostArray:
    """Numbers in float64: the array itself if it has that, so that nothing may be written there."""
    return array if array.dtype == np.float64 else array.astype(np.float64)

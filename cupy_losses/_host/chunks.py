"""NumPy arrays without their data, and the bounded chunks in which they are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core.dtypes import dtype_name
from .._core.loss import Request
from .._core.shapes import ArraySpec, Shape

HostArray = npt.NDArray[Any]
ChunkIndex = tuple[slice | int, ...]
Place = tuple[slice, ...]  # of a part of an array, which has all of its axes; () is all of it
Layout = tuple[np.dtype[Any], Shape, Shape]

CHUNK = 1 << 16  # elements in float64 at a time: fewer calls of NumPy outweigh a larger cache


def chunks(shape: Shape, size: int = CHUNK) -> Iterator[ChunkIndex]:
    """Indices of blocks that cover an array, each of at most `size` elements."""
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= size:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner > size:
        for first in range(shape[0]):
            for rest in chunks(shape[1:], size):
                yield (first, *rest)
        return
    parts = -(-shape[0] // max(size // inner, 1))
    rows = -(-shape[0] // parts)
    for first in range(0, shape[0], rows):
        yield (slice(first, first + rows),)


def places(shape: Shape, size: int) -> Iterator[Place]:
    """The same blocks as parts that keep all axes."""
    for index in chunks(shape, size):
        whole = (slice(at, at + 1) if isinstance(at, int) else at for at in index)
        yield tuple(slice(*at.indices(n)[:2]) for at, n in zip(whole, shape, strict=False))


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

"""Parts of an array, of bounded size, that cover it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .shapes import Shape

ChunkIndex = tuple[slice | int, ...]
Place = tuple[slice, ...]  # of a part of an array, which has all of its axes; () is all of it

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

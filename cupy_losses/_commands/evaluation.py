"""One loss of given operands: its value, its gradients, and both by the host in float64.

Operands that are mapped files may be larger than memory. The host computes a value a chunk at a
time, and here the gradients of a loss of elements a part at a time: each element by the arithmetic
of one piece, because the parts are given the denominator of the whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._api import check
from .._core.dtypes import FLOATING, dtype_name
from .._core.loss import Request
from .._core.pointwise import PointwiseFormula
from .._core.rows import OF_COUNT, RowFormula
from .._core.shapes import Shape
from .._host.chunks import spec
from .._libraries.numpy import on_host
from .._libraries.registry import resolve
from .losses import LossFunction

Array = Any
Place = tuple[slice, ...]  # of a part of an array; () is all of it

PART = 1 << 22  # elements, about


class Evaluation:
    """One loss of operands on the host or on a device.

    Attributes:
        operands: The arrays of the call by argument.
        names: The operands to differentiate by.

    """

    def __init__(
        self,
        function: LossFunction,
        operands: Mapping[str, Array],
        arguments: Mapping[str, Any],
    ) -> None:
        self._function = function.function
        self._arguments = {**operands, **arguments}
        call, arrays = function.prepare(**self._arguments)
        self._call = call
        self._library, self._arrays = resolve(call, arrays)
        self._host = [on_the_host(array) for array in self._arrays]
        self._shape = call.loss.shape_of(call, [spec(array) for array in self._host])
        self._wanted = [k for k in range(call.extra, len(call.names)) if self._has_gradient(k)]
        if not self._wanted:
            raise ValueError(f"there is no gradient: no operand of {function.name} is floating")
        self.operands = dict(zip(call.names, self._arrays, strict=True))
        self.names = [call.names[k] for k in self._wanted]

    def _has_gradient(self, k: int) -> bool:
        is_floating = dtype_name(self._host[k].dtype) in FLOATING
        loss, call = self._call.loss, self._call
        return is_floating and not loss.is_constant(call, k) and not loss.refusal(call, k)

    @property
    def on_host(self) -> bool:
        """Whether the operands are NumPy arrays."""
        return self._library.on_host

    def value(self) -> Array:
        """The loss, as anyone calls it."""
        return self._function(**self._arguments)

    def mistake(self) -> str:
        """What `check_values` says of the operands; "" if they are in range."""
        library, arrays = resolve(self._call, self._host)
        try:
            check.verify(library, self._call, arrays)
        except ValueError as error:
            return str(error)
        return ""

    @functools.cached_property
    def reference(self) -> tuple[float, float]:
        """The loss in float64, and what its sum is divided by."""
        (pair,) = on_host(self._call, Request(pair=True), self._host)
        assert pair is not None
        with np.errstate(all="ignore"):
            value = (pair[0] + pair[1]) * self._call.scale / pair[2]
        return float(value), float(pair[2])

    def gradients(self, count: int, denominator: float) -> Iterator[tuple[Place, list[Array]]]:
        """The gradients by the first `count` of `names`, in parts, with the place of each."""
        wanted = tuple(self._wanted[:count])
        if not self._is_divided(count):
            value_and_gradients = self._library.run(
                self._call, Request(wanted=wanted), self._arrays
            )
            yield (), value_and_gradients[1:]
            return
        request = Request(value=False, wanted=wanted, denominator=True)
        for place in parts(self._shape):
            operands = [np.float64(denominator), *self._at(place)]
            yield place, on_host(self._call, request, operands)

    def reference_gradient(self, denominator: float) -> tuple[Place, Array]:
        """The first part of the first gradient in float64, and its place."""
        place = next(parts(self._shape)) if self._has_parts(1) else ()
        wide = [
            x.astype(np.float64) if dtype_name(x.dtype) in FLOATING else x for x in self._at(place)
        ]
        request = Request(value=False, wanted=(self._wanted[0],), denominator=True)
        (gradient,) = on_host(self._call, request, [np.float64(denominator), *wide])
        return place, gradient

    def _is_divided(self, count: int) -> bool:
        """Whether gradients are computed in parts, where that has the bits of one piece."""
        by_elements = isinstance(self._call.loss, PointwiseFormula)
        size = math.prod(self._shape)
        return self.on_host and by_elements and size > PART and self._has_parts(count)

    def _has_parts(self, count: int) -> bool:
        """Whether consecutive elements along the first axis have gradients of their own."""
        shape = self._shape
        shapes = [array.shape for array in self._host]
        if not all(shapes[k] == shape for k in self._wanted[:count]):
            return False
        call = self._call
        if not isinstance(call.loss, RowFormula):
            return len(shape) > 0
        if call.loss.axis(shape, call.axis) == 0:
            return False
        pairs = zip(call.names, shapes, strict=True)
        return all(
            name == "weight" or name in OF_COUNT or own[:1] == shape[:1] for name, own in pairs
        )

    def _at(self, place: Place) -> list[Array]:
        """A part of the operands, on the host."""
        if not place:
            return self._host
        call, shape = self._call, self._shape
        if not isinstance(call.loss, RowFormula):
            return [np.broadcast_to(array, shape)[place] for array in self._host]
        found = []
        for name, array in zip(call.names, self._host, strict=True):
            if name == "weight":
                found.append(array)
            elif name in OF_COUNT:
                found.append(np.broadcast_to(array, call.loss.rows_of(shape, call.axis))[place])
            else:
                found.append(array[place])
        return found


def parts(shape: Shape) -> Iterator[Place]:
    """Places along the first axis, of about PART elements each."""
    if not shape:
        yield ()
        return
    length = max(1, PART // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], length):
        yield (slice(first, first + length),)


def on_the_host(array: Array) -> Array:
    """The same array in NumPy."""
    return array.get() if hasattr(array, "get") else np.asarray(array)

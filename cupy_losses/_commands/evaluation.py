"""One loss of given operands: its value, its gradients, and both by the host in float64.

Operands that are mapped files may be larger than memory. The host computes a value a chunk at a
time, and here gradients a part at a time: each by the arithmetic of one piece, because the parts
are given the denominator of the whole, and rows are divided where the host divides them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._api import check
from .._core.chunks import Place, places
from .._core.dtypes import FLOATING, dtype_name
from .._core.loss import Request
from .._core.rows import CLASS_WEIGHTS, RowFormula
from .._core.types import AnyArray
from .._host import rows
from .._host.arrays import spec
from .._libraries.numpy import on_host
from .._libraries.registry import resolve
from .losses import NamedLoss

PART = 1 << 22  # elements, about


class EvaluatedLoss:
    """One loss of operands on the host or on a device.

    Attributes:
        operands: The arrays of the call by argument.
        first_name: The first operand of the loss.
        names: The operands to differentiate by.

    """

    def __init__(
        self,
        function: NamedLoss,
        operands: Mapping[str, AnyArray],
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
        self.first_name = call.names[call.extra]
        self.names = [call.names[k] for k in self._wanted]

    def _has_gradient(self, k: int) -> bool:
        is_floating = dtype_name(self._host[k].dtype) in FLOATING
        loss, call = self._call.loss, self._call
        return is_floating and not loss.is_constant(call, k) and not loss.refusal(call, k)

    @property
    def on_host(self) -> bool:
        """Whether the operands are NumPy arrays."""
        return self._library.on_host

    def value(self) -> AnyArray:
        """The loss, as anyone calls it."""
        return self._function(**self._arguments)

    def mistake(self) -> str:
        """What `check_values` says of the operands; "" if they are in range."""
        library, arrays = resolve(self._call, self._host)
        try:
            check.check_operands(library, self._call, arrays)
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

    def parts(self, number: int = 0) -> Sequence[Place]:
        """The parts that the gradient by an operand of `names` is computed in."""
        return self._parts if self.on_host and self._is_direct(number) else [()]

    def gradient(self, number: int = 0) -> Iterator[tuple[Place, AnyArray]]:
        """The gradient by an operand of `names`, in parts, with the place of each."""
        k = self._wanted[number]
        if self.parts(number) == [()]:
            _, gradient = self._library.run(self._call, Request(wanted=(k,)), self._arrays)
            yield (), gradient
            return
        _, denominator = self.reference
        request = Request(value=False, wanted=(k,), denominator=True)
        for place in self._parts:
            (gradient,) = on_host(self._call, request, [np.float64(denominator), *self._at(place)])
            yield place, gradient

    @property
    def first(self) -> Place:
        """A part of the first gradient, at its beginning, that is not too large for float64."""
        return self._parts[0] if self._is_direct(0) else ()

    def reference_gradient(self, place: Place, denominator: float) -> AnyArray:
        """A part of the first gradient in float64."""
        first = self._wanted[0]
        wide = [x.astype(np.float64) if k == first else x for k, x in enumerate(self._at(place))]
        request = Request(value=False, wanted=(first,), denominator=True)
        (gradient,) = on_host(self._call, request, [np.float64(denominator), *wide])
        return gradient

    def _is_direct(self, number: int) -> bool:
        """Whether each element of the operand has a gradient that is no sum."""
        return bool(self._host[self._wanted[number]].shape == self._shape)

    @functools.cached_property
    def _parts(self) -> list[Place]:
        """Parts of the elements, of whole rows where the loss is one of rows."""
        call, shape = self._call, self._shape
        if not isinstance(call.loss, RowFormula):
            return list(places(shape, PART))
        axis = call.loss.axis(shape, call.axis)
        own = call.loss.rows_of(shape, call.axis)
        found = []
        for place in rows.parts(own, shape[axis], PART):
            whole = (*place, *(slice(None),) * (len(own) - len(place)))
            found.append((*whole[:axis], slice(None), *whole[axis:]) if place else ())
        return found

    def _at(self, place: Place) -> list[AnyArray]:
        """A part of the operands, on the host."""
        if not place:
            return self._host
        call, shape = self._call, self._shape
        if not isinstance(call.loss, RowFormula):
            return [np.broadcast_to(array, shape)[place] for array in self._host]
        axis = call.loss.axis(shape, call.axis)
        of_rows = place[:axis] + place[axis + 1 :]
        found = []
        for name, array in zip(call.names, self._host, strict=True):
            role = call.loss.role(name)
            if role == CLASS_WEIGHTS:
                found.append(array)
            elif role.of_elements:
                found.append(rows.in_shape(array, shape)[place])
            else:
                own = rows.in_shape(array, call.loss.rows_of(shape, call.axis))
                found.append(own[of_rows])
        return found


def on_the_host(array: AnyArray) -> AnyArray:
    """The same array in NumPy."""
    return array.get() if hasattr(array, "get") else np.asarray(array)

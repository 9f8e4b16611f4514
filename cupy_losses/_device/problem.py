"""A request on operands of given dtypes, shapes and strides: what a plan is made for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from .._core.dtypes import item_size, promoted
from .._core.loss import Call, Request
from .._core.outputs import Output
from .._core.reduction import Denominator
from .._core.shapes import ArraySpec, Shape


@dataclass(frozen=True)
class Problem:
    """A request on operands without their data; the call is unscaled."""

    call: Call
    request: Request
    given: tuple[ArraySpec, ...]  # the operands of the request
    misaligned_given: tuple[int, ...]  # address modulo 16 of each
    shape: Shape
    autocast: bool
    device: int
    scale: str = ""  # the dtype of the array, behind the operands, that scales the results

    @property
    def arrays(self) -> int:
        """The number of arrays that come with a call."""
        return len(self.given) + bool(self.scale)

    @property
    def operands(self) -> tuple[ArraySpec, ...]:
        """What the kernels evaluate: all but the denominator."""
        return self.given[self.request.denominator :]

    @property
    def misaligned(self) -> tuple[int, ...]:
        """Their addresses modulo 16."""
        return self.misaligned_given[self.request.denominator :]

    @property
    def leading(self) -> int:
        """How many of them come before those of the call."""
        return self.request.extra - self.request.denominator

    @property
    def own(self) -> tuple[ArraySpec, ...]:
        """The operands of the call."""
        return self.given[self.request.extra :]

    @property
    def result(self) -> str:
        """The dtype of the value."""
        return self.call.loss.result_dtype(self.call, self.own, self.autocast)

    @property
    def real(self) -> str:
        """The dtype of the arithmetic."""
        return "float64" if any(o.dtype == "float64" for o in self.operands) else "float32"

    @property
    def is_half(self) -> bool:
        """Whether the operands of the call promote to half precision.

        Not beside a grad_output or a tangent of float64, with which all is computed in double.
        """
        half = item_size(promoted({o.dtype for o in self.own})) == 2
        return half and self.real == "float32"

    @property
    def size(self) -> int:
        """The number of elements of the broadcast shape."""
        return math.prod(self.shape)

    @cached_property
    def outputs(self) -> list[Output | None]:
        """What is allocated."""
        return self.call.loss.outputs(self.call, self.request, self.given, self.autocast)

    @cached_property
    def denominator(self) -> Denominator:
        """What the sum is divided by."""
        return self.call.loss.denominator(self.call, self.shape, self.own)

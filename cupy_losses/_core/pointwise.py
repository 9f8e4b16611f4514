"""What a pointwise loss is: one formula of the elements of its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .dtypes import check_dtypes
from .loss import Call, Loss, Refusal, Request, weight_refusal
from .outputs import Output, gradient_output, value_output
from .reduction import Denominator
from .shapes import (
    ArraySpec,
    Shape,
    broadcast_shape,
    broadcast_strides,
    memory_order,
    result_dtype,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PointwiseFormula(Loss):
    """A pointwise loss without its kernels: its formula for the device and for the host.

    The struct is of the arithmetic type and then `options`; its fields are `parameters`. The
    formula in NumPy is called with the operands and, by keyword, the parameters.

    Attributes:
        options: The arguments of the template behind the arithmetic type.
        weighted_mean: Whether a weighted mean divides by the sum of the weights, not by the number
            of elements.
        row_means: Whether the loss of a row is the mean of its elements, and the reductions are
            over rows.
        same_shape: Torch's demand that input and target do not broadcast.
        warns_of_broadcasting: Torch's warning where they do.

    """

    options: tuple[bool, ...] = ()
    weighted_mean: bool = True
    row_means: bool = False
    same_shape: bool = False
    warns_of_broadcasting: bool = False

    def shape_of(self, call: Call, operands: Sequence[ArraySpec]) -> Shape:
        """The shape that the operands of a call broadcast to; raises unless they fit."""
        names = call.names
        check_dtypes([operand.dtype for operand in operands], names)
        shape = broadcast_shape(operands, names, call.extra)
        if self.same_shape:
            _check_same_shape(operands[call.extra :], names[call.extra :])
        if self.row_means and not shape:
            raise ValueError(f"{names[call.extra]} must have at least one dimension")
        return shape

    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""
        if call.reduction != "none":
            return ()
        return shape[:-1] if self.row_means else shape

    def result_dtype(self, call: Call, operands: Sequence[ArraySpec], autocast: bool) -> str:
        """The dtype that all operands promote to."""
        return result_dtype(operands, autocast)

    def grad_output_operand(self, call: Call, grad_output: Any) -> Any:
        """A grad_output that broadcasts with the elements."""
        if self.row_means and call.reduction == "none":
            return grad_output[..., None]
        return grad_output

    def divides_by_weights(self, call: Call) -> bool:
        """Whether the mean of a call divides by the sum of its weights."""
        return call.weighted and self.weighted_mean and call.reduction == "mean"

    def denominator(self, call: Call, shape: Shape, operands: Sequence[ArraySpec]) -> Denominator:
        """The elements or the weights that the mask leaves; the length of a row or of a batch."""
        if call.reduction == "mean":
            size = 1.0 * math.prod(shape)  # which may be symbolic
            weighs = self.divides_by_weights(call)
            count = call.masked and not weighs
            return Denominator(size, call.masked or weighs, leaves_out=call.masked, is_count=count)
        size = 1.0
        if self.row_means:
            # The sum over no rows is 0, of whatever length they are.
            size = 1.0 * shape[-1] if math.prod(shape[:-1]) else 1.0
        elif call.reduction == "batchmean" and operands[call.extra].shape:
            size = 1.0 * operands[call.extra].shape[0]
        return Denominator(size, leaves_out=call.masked)

    def outputs(
        self, call: Call, request: Request, operands: Sequence[ArraySpec], autocast: bool = False
    ) -> list[Output | None]:
        """The results lie as the operands of the loss do, then as grad_output, masks and others."""
        own = operands[request.extra :]
        shape = self.shape_of(call, own)
        strides = [broadcast_strides(operand, shape) for operand in operands]
        axes = memory_order(shape, strides, request.extra + call.extra)
        dtype = self.result_dtype(call, own, autocast)
        value = value_output(dtype, self.value_shape(call, shape), axes)

        def gradient(k: int) -> Output:
            return gradient_output(operands, request.extra + k, shape, axes)

        return request.outputs(value, request.computed(call, own, shape), gradient)

    def refusal(self, call: Call, operand: int) -> Refusal | None:
        """A weight that divides the mean is refused."""
        if call.weighted and operand == call.masked and self.divides_by_weights(call):
            return weight_refusal("weight")
        return None

    def notice(self, call: Call, request: Request, operands: Sequence[ArraySpec]) -> str:
        """Torch's warning: an (N,) against an (N, 1) is more often a mistake than not."""
        if not self.warns_of_broadcasting or request.vjp or request.tangents:
            return ""
        input, target = operands[call.extra :]
        if input.shape == target.shape:
            return ""
        return (
            f"{self.operands[1]} of shape {target.shape} is broadcast with {self.operands[0]} of "
            f"shape {input.shape}; make sure that this is meant"
        )


def _check_same_shape(operands: Sequence[ArraySpec], names: Sequence[str]) -> None:
    """Raise unless input and target have one shape, which no other operand enlarges."""
    input, target = operands[:2]
    if input.shape != target.shape:
        meant = f": pass {names[1]}.reshape({names[0]}.shape)" if input.size == target.size else ""
        raise ValueError(
            f"{names[1]} must have the shape of {names[0]}, {input.shape}, got "
            f"{target.shape}{meant}"
        )
    for operand, name in zip(operands[2:], names[2:], strict=True):
        if broadcast_shape((input, operand), (names[0], name)) != input.shape:
            raise ValueError(f"{name} of shape {operand.shape} does not broadcast to {input.shape}")

"""The arrays that a request makes, known without a device and before any memory is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .shapes import ArraySpec, Shape, dense_strides


@dataclass(frozen=True)
class Output(ArraySpec):
    """A new array.

    `like` is the operand of the request that it shares dtype, shape and strides with, or -1. Where
    `in_place` is set it is that operand itself.
    """

    like: int = -1
    in_place: bool = False


PAIR = Output("float64", (3,), (1,))  # the sum, its rounding error, the denominator
COUNT = Output("float64", (), ())  # the denominator


def value_output(dtype: str, shape: Shape, axes: Sequence[int]) -> Output:
    """The value of a call, whose memory runs along `axes`, slowest first, as far as it has them."""
    own = [axis for axis in axes if axis < len(shape)]
    return Output(dtype, shape, dense_strides(own, shape))


def gradient_output(
    operands: Sequence[ArraySpec], index: int, shape: Shape, axes: Sequence[int]
) -> Output:
    """The gradient by operand `index` of a request; `axes` are those of `shape`, slowest first."""
    operand = operands[index]
    skipped = len(shape) - len(operand.shape)
    own = [axis - skipped for axis in axes if axis >= skipped]
    own = [axis for axis in own if operand.shape[axis] > 1]
    strides = dense_strides(own, operand.shape)
    like = index if strides == operand.strides else -1
    return Output(operand.dtype, operand.shape, strides, like)

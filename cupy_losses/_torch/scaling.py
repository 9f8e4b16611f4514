"""Products with a scale that is an array, to be differentiated."""

from __future__ import annotations

import torch
from torch._C import _functorch

Tensor = torch.Tensor


def multiplied(tangent: Tensor, result: Tensor) -> Tensor:
    """A result times a tangent. A tangent of 0 gives 0, also where the mean of nothing is NaN."""
    counts = (tangent != 0) | result.isfinite()
    return (tangent * result.where(counts, 0)).to(result.dtype)


def scaled(value: Tensor, scale: Tensor | float) -> Tensor:
    """A value times the scale of its call, by which the derivative is the value, NaN or not."""
    if not isinstance(scale, Tensor):
        return value * scale
    # A product that converts a scale without a tangent may give it one of 0, and NaN times that.
    scale = scale.to(torch.promote_types(value.dtype, scale.dtype))
    if any(map(_functorch.is_batchedtensor, (value, scale))):
        return value * scale  # torch.vmap unpacks no dual numbers
    constant, tangent = torch._VF._unpack_dual(scale, level=0)
    if tangent is None:
        return value * constant
    if _functorch.is_legacy_batchedtensor(tangent):
        return value * scale  # neither do batches of tangents
    counts = (tangent != 0) | value.isfinite()
    return (value * scale).where(counts, value * constant)

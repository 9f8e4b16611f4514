"""The JVP of a JVP.

A request gives the products of the loss's Hessian with the first tangents, one for each operand.
The result is the inner product of these with the second tangents: over all elements, or over those
of each value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .._core.loss import Request
from .._core.rows import RowFormula
from .evaluation import Evaluation, spec_of

Tensor = torch.Tensor


def along(evaluation: Evaluation, varied: Mapping[int, Tensor], dtype: torch.dtype) -> Tensor:
    """The derivative of the value of a JVP request along second tangents, those of `varied`."""
    call, request, operands, run = evaluation
    given = [_wide(t) for t in operands[: request.extra]]
    own = [_wide(t) for t in operands[request.extra :]]
    loss, of_second = call.loss, Request(False, tuple(varied), tangents=request.tangents)
    products: Sequence[Tensor]
    if call.reduction != "none":
        products = run(call, of_second, (*given, *own))
        pairs = zip(products, varied.values(), strict=True)
        sums = [(product * other).sum(dtype=torch.float64) for product, other in pairs]
        return sum(sums[1:], sums[0]).to(dtype)
    # Operands that are broadcast have a gradient for each element once they are expanded.
    shape = loss.shape_of(call, [spec_of(t) for t in own])
    for k in varied:
        own[k] = own[k].expand(shape)
    value_shape = loss.value_shape(call, shape)
    ones = own[-1].new_ones(value_shape, dtype=_wide(next(iter(varied.values()))).dtype)
    ones = loss.grad_output_operand(call, ones)
    products = run(call, of_second._replace(vjp=True), (ones, *given, *own))
    pairs = zip(products, varied.values(), strict=True)
    each = [product * other for product, other in pairs]
    total = sum(each[1:], each[0])
    axis = loss.axis(shape, call.axis) if isinstance(loss, RowFormula) else -1
    return (total if value_shape == shape else total.sum(axis)).to(dtype)


def _wide(tensor: Tensor) -> Tensor:
    """Half precision as float32: a product may be out of its range while the sum is not."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

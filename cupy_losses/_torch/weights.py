"""Derivatives by weights that no kernel has: those that divide a mean, of classes and of rows.

Such a loss is a linear combination of calls for which kernels have all derivatives. torch computes
their factors and the denominator from the weight, and differentiates both. So a request of the loss
is the same request of these calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from .._core.loss import Call, Request
from .._core.pointwise import PointwiseFormula
from .._core.reduction import NOTHING_LEFT
from .._core.rows import RowFormula
from .._core.shapes import ArraySpec, Shape
from .evaluation import AutocastRun, arithmetic_dtype, in_memory
from .scaling import scaled

Tensor = torch.Tensor


def of_derivatives(denominator: Tensor | float, leaves_out: bool) -> Tensor | float:
    """What derivatives are divided by, from what the value is divided by."""
    if not leaves_out:
        return denominator
    if isinstance(denominator, Tensor):
        return torch.where(denominator == 0, NOTHING_LEFT, denominator)
    return NOTHING_LEFT if denominator == 0 else denominator


def quotient(
    total: Tensor, denominator: Tensor | float, leaves_out: bool, is_derivative: bool
) -> Tensor:
    """A sum over its denominator, to be differentiated: NaN where nothing is left, with slope 0.

    A derivative along tangents is 0 there itself.
    """
    value = total / of_derivatives(denominator, leaves_out)
    if is_derivative or not leaves_out:
        return value
    if isinstance(denominator, Tensor):
        return torch.where(denominator == 0, total.detach() / denominator.detach(), value)
    return value if denominator else value + total.detach() / denominator


def composed_by(call: Call) -> list[int]:
    """The weights of a call, by number, whose derivatives are composed of those of other calls."""
    if call.loss.overwrites:
        return []
    return [k for k in range(call.masked, call.extra) if call.loss.refusal(call, k)]


class Counts(NamedTuple):
    """How much each row counts, as arrays that broadcast to the rows.

    Attributes:
        kept: Which rows are not ignored.
        own: The weight of the class of each, 1 where classes have none, or where it is ignored or
            out of range.
        sample: The weight of each row, 0 of those that are ignored.
        in_mean: Its term of the denominator of a mean.

    """

    kept: Tensor
    own: Tensor
    sample: Tensor
    in_mean: Tensor


def counts_of_rows(call: Call, loss: RowFormula, operands: Mapping[str, Tensor]) -> Counts:
    """How much each row counts; `operands` are those of the call, by name."""
    first, real = operands[loss.operands[0]], arithmetic_dtype([*operands.values()])
    own, kept = first.new_ones((), dtype=real), first.new_ones((), dtype=torch.bool)
    if call.masked:
        kept = operands["where"]
    sample = operands["sample_weight"].to(real) if call.row_weighted else own
    if loss.index is not None:
        target = operands[loss.index].long()  # uint64 beyond it is negative, and no class either
        ignored = call.named_parameters.get("ignore_index")
        if ignored is not None:
            kept = kept & (target != ignored)
        if call.weighted:
            weight = operands["weight"].to(real)
            inside = (target >= 0) & (target < weight.shape[0])
            # A row whose class is out of range counts once; its loss is NaN.
            # torch.vmap takes an index of shape () for a number that it has to read.
            # The derivative of weight[...] is nothing that torch.vmap takes.
            if weight.shape[0]:
                of_class = weight.index_select(0, target.where(inside, 0).reshape(-1))
                of_class = of_class.reshape(target.shape)
            else:
                of_class = weight.sum()  # of no class
            own = torch.where(inside & kept, of_class, 1)
    # Not their product alone: what is ignored may be NaN, of which 0 times has NaN for derivative.
    sample = torch.where(kept, sample, 0)
    return Counts(kept, own, sample, own * sample if loss.weighted_mean else sample)


def counts_of_elements(
    call: Call, loss: PointwiseFormula, operands: Mapping[str, Tensor]
) -> Tensor:
    """How much each element counts, as an array that broadcasts to them; `operands`: as above."""
    if not loss.divides_by_weights(call):
        return operands["where"]
    weight = operands["weight"]
    return torch.where(operands["where"], weight, 0) if call.masked else weight


class _Part(NamedTuple):
    """A call of the linear combination, with its operands and its factor.

    `places` says which operand of the whole call each operand is: -1 for none.
    """

    call: Call
    operands: Sequence[Tensor]
    factor: Tensor | float
    places: Sequence[int]

    def results(
        self,
        run: AutocastRun,
        request: Request,
        leading: Sequence[Tensor],
        scale: Tensor | float,
        divisor: Tensor | float,
        shape: Shape,
    ) -> list[Tensor]:
        """The part of the results of a request of the whole call; a value is not reduced yet."""
        given = list(leading)
        if request.vjp:
            grad_output = given[0].to(arithmetic_dtype(given[:1]))
            each = (grad_output * self.factor * scale / divisor).to(grad_output.dtype)
            given[0] = each.expand(self.call.loss.value_shape(self.call, shape))
        places = self.places.index
        wanted, tangents = tuple(map(places, request.wanted)), tuple(map(places, request.tangents))
        own = request._replace(wanted=wanted, tangents=tangents)
        results = list(run(self.call, own, (*given, *self.operands), True))
        if request.value:
            results[0] = results[0] * self.factor
        return results


def composed(
    run: AutocastRun,
    call: Call,
    request: Request,
    operands: Sequence[Tensor],
    specs: Sequence[ArraySpec],
    scale: Tensor | float,
) -> list[Tensor]:
    """The results of a request, differentiable by the weight; a value is in float32 or float64.

    The call is unscaled, and `specs` are those of its operands. The results are scaled. A
    denominator that is given is added up anew.
    """
    # Views of negated numbers make no views that have tangents.
    operands = [in_memory(tensor) for tensor in operands[request.denominator :]]
    counted = request.counted
    request = request._replace(denominator=False, counted=False)
    leading, own = operands[: request.extra], operands[request.extra :]
    shape = call.loss.shape_of(call, specs)
    if isinstance(call.loss, RowFormula):
        parts, total = _of_rows(call, call.loss, own, shape)
    else:
        assert isinstance(call.loss, PointwiseFormula)
        parts, total = _of_elements(call, call.loss, own, shape)
    for k in (*request.wanted, *request.tangents):
        if any(k not in part.places for part in parts):
            raise NotImplementedError(
                f"derivatives by weight of derivatives by {call.names[k]} are not available where "
                "two transforms take them: let one take both"
            )
    size, of_data, leaves_out, _ = call.loss.denominator(call, shape, specs)
    divisor = of_derivatives(total, leaves_out) if of_data else size
    of_parts = [part.results(run, request, leading, scale, divisor, shape) for part in parts]
    results = [sum(of_one[1:], of_one[0]) for of_one in zip(*of_parts, strict=True)]
    if request.value and call.reduction != "none":
        whole = results[0].sum(dtype=torch.float64)
        denominator = total if of_data else size
        value = quotient(whole, denominator, leaves_out, bool(request.tangents))
        results[0] = scaled(value, scale)
    if counted:
        results.insert(1, total)
    return results


def _of_elements(
    call: Call, loss: PointwiseFormula, operands: Sequence[Tensor], shape: Shape
) -> tuple[list[_Part], Tensor]:
    """The parts of a pointwise loss, which is one sum, and the sum of the weights."""
    named = dict(zip(call.names, operands, strict=True))
    named["weight"] = named["weight"].to(arithmetic_dtype(operands))
    total = counts_of_elements(call, loss, named).expand(shape).sum(dtype=torch.float64)
    places = [-1 if k == call.masked else k for k in range(len(operands))]
    return [_Part(call._replace(reduction="sum"), [*named.values()], 1.0, places)], total


def _of_rows(
    call: Call, loss: RowFormula, operands: Sequence[Tensor], shape: Shape
) -> tuple[list[_Part], Tensor]:
    """The parts of a loss over rows, and the denominator of its mean.

    The only part is the unweighted loss of each row times the weights of its class and its own, or
    the parts are those that `RowFormula.weighted_parts` gives, where the weights of all elements
    matter.
    """
    rows, axis = loss.rows_of(shape, call.axis), loss.axis(shape, call.axis)
    named = dict(zip(call.names, operands, strict=True))
    # In float64, as what parts add to a gradient by them nearly cancels. It is rounded once.
    for name in named.keys() & {"weight", "sample_weight"}:
        named[name] = named[name].double()
    if loss.index is not None:
        named[loss.index] = named[loss.index].reshape(rows)
    of_rows = counts_of_rows(call, loss, named)
    total = of_rows.in_mean.expand(rows).sum(dtype=torch.float64)
    mask, own = operands[: call.masked], operands[call.extra :]
    places = (*range(call.masked), *range(call.extra, len(operands)))
    if not call.weighted or loss.weighted_parts is None:
        unweighted = call._replace(reduction="none", weighted=False, row_weighted=False)
        return [_Part(unweighted, (*mask, *own), of_rows.own * of_rows.sample, places)], total
    columns, input = shape[axis], named[loss.operands[0]]
    left = of_rows.kept.expand(rows).unsqueeze(axis)  # what is ignored may be NaN
    if loss.index is None:
        target = named[loss.operands[1]].double()
        if call.masked:
            target = torch.where(left, target, 0)
    else:
        target = _one_hot(named[loss.index].unsqueeze(axis), columns, axis, input.ndim)
        input, target = torch.where(left, input, 0), torch.where(left, target, 0)
    weight = named["weight"].reshape(-1, *[1] * (len(shape) - 1 - axis))
    places = (*range(call.masked), call.extra, -1)
    parts = []
    for each, second, is_of_class in loss.weighted_parts(call, columns, weight, target):
        second = torch.where(left, second, 0) if loss.index is not None else second
        factor = of_rows.own * of_rows.sample if is_of_class else of_rows.sample
        parts.append(
            _Part(each._replace(masked=call.masked), (*mask, input, second), factor, places)
        )
    return parts, total


def _one_hot(target: Tensor, columns: int, axis: int, ndim: int) -> Tensor:
    """1 at the class of each row, whose axis has length 1; NaN where it is out of range."""
    target = target.long()
    classes = torch.arange(columns, device=target.device)
    classes = classes.reshape(-1, *[1] * (ndim - 1 - axis))
    inside = (target >= 0) & (target < columns)
    return torch.where(inside, (target == classes).double(), torch.nan)

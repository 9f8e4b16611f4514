"""torch.vmap: a request for each sample of a batch, computed in one launch for all.

The batch is one more axis of the operands. A reduced call becomes one with reduction "none", whose
losses are added up for each sample. These losses are all that is written and read beyond what a
call without a batch takes. Gradients are written once, scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import is_fake

from .._core.loss import Call, Request
from .._core.pointwise import PointwiseFormula
from .._core.rows import CLASS_WEIGHTS, RowFormula
from .._core.shapes import ArraySpec
from .evaluation import AutocastRun, arithmetic_dtype, in_memory, outputs_of, spec_of
from .scaling import scaled
from .weights import counts_of_elements, counts_of_rows, of_derivatives, quotient

Tensor = torch.Tensor


def batched(
    run: AutocastRun,
    call: Call,
    request: Request,
    autocast: bool,
    size: int,
    dims: Sequence[int | None],
    operands: Sequence[Tensor],
) -> list[Tensor]:
    """The results of a request for each sample, with the batch in front.

    `dims` are the axes of the batch in the operands, None in those that all samples share.
    """
    pairs = [(_viewed(t), d) for t, d in zip(operands, dims, strict=True)]
    if size == 0:
        return _of_no_samples(call, request, autocast, pairs)

    def sample(number: int) -> list[Tensor]:
        return [t if d is None else t.select(d, number) for t, d in pairs]

    of_class = [k for k, name in enumerate(call.names) if _is_of_classes(call, name)]
    if any(dims[request.extra + k] is not None for k in of_class):
        # Weights of classes that differ between samples: one launch a sample.
        each = [run(call, request, sample(number), autocast) for number in range(size)]
        return [_stacked(results) for results in zip(*each, strict=True)]
    return _Batch(run, call, request, autocast, size, pairs, sample(0)).results()


def _viewed(tensor: Tensor) -> Tensor:
    """An operand whose views may have tangents, or a copy of one.

    Those of negated numbers have none; nor have, in a graph that is traced, those of a tensor that
    begins behind its memory, as its tangent does not.
    """
    if tensor.storage_offset() != 0 and is_fake(tensor):
        return tensor.clone()
    return in_memory(tensor)


def _stacked(results: Sequence[Tensor]) -> Tensor:
    """The results of all samples. Autocast stacks none of a half precision that is not its own."""
    dtype = results[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        return torch.stack([result.float() for result in results]).to(dtype)
    return torch.stack(list(results))


def _of_no_samples(
    call: Call, request: Request, autocast: bool, pairs: Sequence[tuple[Tensor, int | None]]
) -> list[Tensor]:
    """Empty results, of the shapes and dtypes that one sample would have."""
    fronts = [(t, d) if d is None else (t.movedim(d, 0), d) for t, d in pairs]
    samples = [t if d is None else t.new_empty(t.shape[1:]) for t, d in fronts]
    like = samples[-1]
    return [
        like.new_empty((0, *output.shape), dtype=getattr(torch, output.dtype))
        for output in outputs_of(call, request, samples, autocast)
    ]


def _is_of_classes(call: Call, name: str) -> bool:
    return isinstance(call.loss, RowFormula) and call.loss.role(name) == CLASS_WEIGHTS


class _Batch:
    """One request on operands that have one more axis, in front or behind the others."""

    def __init__(
        self,
        run: AutocastRun,
        call: Call,
        request: Request,
        autocast: bool,
        size: int,
        pairs: Sequence[tuple[Tensor, int | None]],
        samples: Sequence[Tensor],
    ) -> None:
        self._scale: Tensor | float = call.scale
        if call.scaled:  # of shape (), or one of each sample
            *pairs, (self._scale, _) = pairs
            samples = samples[:-1]
        call = call.unscaled
        self._call, self._size = call, size
        self._each = call._replace(reduction="none")
        loss, own = call.loss, [spec_of(t) for t in samples[request.extra :]]
        self._shape = loss.shape_of(call, own)
        self._outputs = outputs_of(call, request, samples, autocast)
        given: Tensor | float | None = None
        if request.denominator:  # of shape (), or one of each sample
            (given, _), *pairs = pairs
        self._counted = request.counted
        request = request._replace(denominator=False, counted=False)
        self._run, self._request = run, request
        # Losses of half precision are added up as float32.
        self._autocast = autocast or (request.value and call.reduction != "none")
        # An axis that is counted from the front stays where it is, so that the batch goes behind.
        self._is_behind = isinstance(loss, RowFormula) and loss.is_from_front(
            self._shape, call.axis
        )
        names = request.names(call)
        self._operands = [
            self._placed(name, tensor, dim)
            for name, (tensor, dim) in zip(names, pairs, strict=True)
        ]
        denominator = loss.denominator(call, self._shape, own)
        self._leaves_out = denominator.leaves_out
        if given is None:
            given = self._sum_of_data() if denominator.of_data else denominator.size
        self._of_call = given
        # Each loss is divided by this already, and is NaN where it is 0.
        of_each = loss.denominator(self._each, self._shape, own).size
        self._denominator: Tensor | float = given / (of_each or 1.0)
        if request.vjp and call.reduction != "none":
            grad_output, dim = pairs[0]
            factor = grad_output.unsqueeze(0) if dim is None else grad_output
            self._operands[0] = self._of_all(factor)

    def results(self) -> list[Tensor]:
        """The results of the request, with the batch in front."""
        results = self._run(self._each, self._request, self._operands, self._autocast)
        moved = [self._in_front(r) if self._is_behind else r for r in results]
        if self._request.value:
            moved[0] = self._reduced(moved[0], self._outputs[0])
        if isinstance(self._of_call, Tensor) and self._counted:
            moved.insert(1, self._of_call)
        pairs = zip(moved, self._outputs, strict=True)
        return [result.reshape(self._size, *output.shape) for result, output in pairs]

    def _in_front(self, result: Tensor) -> Tensor:
        """A result with the batch in front; in memory too where it is a derivative along tangents.

        Forward-mode AD gives such a derivative the strides of what it is of, which torch cannot do
        if the batch is behind.
        """
        front = result.movedim(-1, 0)
        return front.contiguous() if self._request.tangents else front

    def _rank(self, name: str) -> int:
        """The number of axes that an operand is to have, without the batch."""
        loss, rank = self._call.loss, len(self._shape)
        if not isinstance(loss, RowFormula):
            return rank
        return rank if loss.role(name).of_elements else rank - 1

    def _placed(self, name: str, tensor: Tensor, dim: int | None) -> Tensor:
        """An operand with the axis of the batch; an operand that all share is repeated along it."""
        if _is_of_classes(self._call, name):
            return tensor
        front = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
        rank = self._rank(name)
        while front.dim() <= rank:
            front = front.unsqueeze(1)
        while front.dim() > rank + 1:
            front = front.squeeze(1)
        front = front.expand(self._size, *front.shape[1:])
        return front.movedim(0, -1) if self._is_behind else front

    def _of_all(self, factor: Tensor) -> Tensor:
        """The grad_output of each element or row, from that of each sample."""
        loss, each = self._call.loss, self._each
        shape = loss.value_shape(each, self._shape)
        # What is divided may be too small for half precision.
        wide = arithmetic_dtype([factor])
        wide_factor = factor.to(wide) * self._scale
        factor = (wide_factor / of_derivatives(self._denominator, self._leaves_out)).to(wide)
        factor = factor.reshape(factor.shape[0], *[1] * len(shape))
        grad_output = factor.expand(self._size, *shape)
        front: Tensor = loss.grad_output_operand(each, grad_output)
        return front.movedim(0, -1) if self._is_behind else front

    def _reduced(self, each: Tensor, output: ArraySpec) -> Tensor:
        """The losses of each sample, added up, scaled and divided."""
        if self._call.reduction == "none":
            return each
        flat = each.reshape(self._size, math.prod(each.shape[1:]))  # of no samples, too
        total = flat.sum(dim=1, dtype=torch.float64)
        is_derivative = bool(self._request.tangents)
        value = quotient(total, self._denominator, self._leaves_out, is_derivative)
        return scaled(value, self._scale).to(getattr(torch, output.dtype))

    def _sum_of_data(self) -> Tensor:
        """The denominator of the call on each sample."""
        call, loss = self._call, self._call.loss
        arrays = dict(zip(call.names, self._operands[self._request.extra :], strict=True))
        if isinstance(loss, RowFormula):
            return self._weights_of_rows(loss, arrays)
        assert isinstance(loss, PointwiseFormula)
        total = (
            counts_of_elements(call, loss, arrays)
            .expand(self._size, *self._shape)
            .reshape(self._size, math.prod(self._shape))
        )
        return total.sum(dim=1, dtype=torch.float64)

    def _weights_of_rows(self, loss: RowFormula, arrays: dict[str, Tensor]) -> Tensor:
        """The sum of the weights of the rows that count, of each sample."""
        moved = {
            name: t.movedim(-1, 0) if self._is_behind and name != "weight" else t
            for name, t in arrays.items()
        }
        each = counts_of_rows(self._call, loss, moved).in_mean
        rows = loss.rows_of(self._shape, self._call.axis)
        each = each.expand(self._size, *rows).reshape(self._size, math.prod(rows))
        return each.sum(dim=1, dtype=torch.float64)

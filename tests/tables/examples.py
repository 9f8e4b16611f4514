"""Calls of losses on small tensors of float64, from the tables of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .losses import Case, count, sign
from .rows import BY_NAME, RowCase


@dataclass
class Example:
    """Arguments of a loss that torch has: its operands, some of which require grad, and options."""

    name: str
    operands: list[torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        return f"{self.label or self.name}-{'-'.join(self.options)}"

    def results(self, loss: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """A loss of the operands and other arguments, and its gradients."""
        value = loss(*self.operands, *args, **kwargs)
        leaves = [x for x in self.operands if x.requires_grad]
        total = (value * value + value).sum()
        return [value, *torch.autograd.grad(total, leaves, materialize_grads=True)]


def of_elements(case: Case) -> Example:
    """The operands of a loss of elements; torch has no gradients by signs, NaN by a count of 0."""
    arrays = case.draw(np.random.default_rng(1), (4, 5))
    tensors = [torch.from_numpy(x) for x in arrays]
    for tensor, draw in zip(tensors, case.draws, strict=True):
        tensor.requires_grad_(draw not in (sign, count))
    return Example(case.name, tensors, case.parameters)


def of_rows(case: RowCase) -> Example:
    """The operands of a loss of rows, and its weights and masks."""
    arrays = case.draw(np.random.default_rng(1), (4, 5), np.float64)
    # No NaN where a mask leaves rows out: modes move elements from row to row.
    finite = {name: np.nan_to_num(x, nan=0.5) for name, x in arrays.items()}
    tensors = {name: torch.from_numpy(np.asarray(x)) for name, x in finite.items()}
    for name in case.differentiable:
        tensors[name].requires_grad_()
    options = {name: x for name, x in tensors.items() if name in BY_NAME}
    operands = [tensors[name] for name in case.positional]
    return Example(case.name, operands, options | case.parameters, case.name + case.label)

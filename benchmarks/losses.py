"""The losses of the benchmark: those of the tests' table, and what torch has in their place.

`python -m benchmarks.run --only losses halves` measures each at 2^30 elements of float32 and of
bfloat16. Run as a script, this calls each once forward and once with the gradient, for a profiler.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses._api.public import prepare_of
from tests.tables.losses import LOSSES, Case

from .formulas import in_torch

Tensor = Any

DRAWN = 1 << 24  # elements that are drawn; more of them repeat


@dataclass(frozen=True)
class Row:
    """A loss to be measured: a line of the table."""

    case: Case
    label: str = ""
    row_target: bool = False  # a target for each column, broadcast

    def __str__(self) -> str:
        return self.label or str(self.case).removesuffix("()")

    @property
    def name(self) -> str:
        """The name of the public function."""
        return self.case.name

    @property
    def reduction(self) -> str:
        """A mean, in the way that is meant for the loss."""
        return "batchmean" if self.name == "kl_div" else "mean"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments besides operands."""
        return {**self.case.parameters, "reduction": self.reduction}

    @property
    def ours(self) -> Callable[..., Tensor]:
        """The function of this package."""
        return functools.partial(self.case.loss, **self.options)

    @property
    def each(self) -> Callable[..., Tensor]:
        """The loss of each element, in torch: the reference."""
        return in_torch(self.case)

    @property
    def eager(self) -> Callable[..., Tensor]:
        """What a user of torch would call."""
        options = self.options
        if self.case.of_torch:
            function = self.case.torch
            return lambda *operands: function(*operands, **options)
        parameters = self.case.parameters
        if self.name in EXPRESSIONS:
            expression = EXPRESSIONS[self.name]
            return lambda *operands: expression(*operands, **parameters).mean()
        each = self.each
        return lambda *operands: each(*operands).mean()

    def draw(
        self,
        shape: Sequence[int],
        seed: int,
        device: str = "cuda",
        dtype: torch.dtype = torch.float32,
    ) -> list[Tensor]:
        """The operands."""
        rng = np.random.default_rng(seed)
        shapes = [tuple(shape)] * len(self.case.draws)
        if self.row_target:
            shapes[1] = tuple(shape[1:])
        operands = []
        for draw, own in zip(self.case.draws, shapes, strict=True):
            size = math.prod(own)
            drawn = draw(rng, (min(size, DRAWN),)).astype(np.float32)
            some = torch.from_numpy(drawn).to(device, dtype)
            operands.append(some.repeat(-(-size // DRAWN))[:size].view(own))
        return operands


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), as torch has it but without its threshold."""
    return torch.logaddexp(x, torch.zeros_like(x))


def focal(x: Tensor, y: Tensor, alpha: float, gamma: float) -> Tensor:
    """Torchvision's sigmoid_focal_loss, each element, as its source has it."""
    p = torch.sigmoid(x)
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    loss = entropy * ((1 - p_t) ** gamma)
    return (alpha * y + (1 - alpha) * (1 - y)) * loss if alpha >= 0 else loss


# What a user of torch would write, where that is shorter than the reference of the table.
EXPRESSIONS: dict[str, Callable[..., Tensor]] = {
    "log_cosh_loss": lambda x, y: softplus(2 * (x - y)) - (x - y) - math.log(2),
    "quantile_loss": lambda x, y, quantile: torch.maximum(
        quantile * (y - x), (quantile - 1) * (y - x)
    ),
    "sigmoid_focal_loss": focal,
    "hinge_loss": lambda x, y: (1 - x * y).clamp_min(0),
    "squared_hinge_loss": lambda x, y: (1 - x * y).clamp_min(0) ** 2,
}


def rows() -> list[Row]:
    """A row for each formula of the table, some once more."""
    found: dict[str, Row] = {}
    for case in LOSSES:
        operands = case.draw(np.random.default_rng(0), (2, 2))
        loss = prepare_of(case.loss)(*operands, **case.parameters, reduction="sum")[0].loss
        found.setdefault(loss.key, Row(case))
    mse, hinge = (
        next(row.case for row in found.values() if row.name == name)
        for name in ("mse_loss", "hinge_loss")
    )
    own = cupy_losses.pointwise_loss("own_mse", "(input - target) * (input - target)")
    return [
        Row(mse),
        *(row for row in found.values() if row.case is not mse),
        Row(dataclasses.replace(mse, function=own), label="pointwise_loss: squared error"),
        Row(hinge, label="hinge_loss, target (32768,)", row_target=True),
    ]


ROWS = rows()

COUNTED = (4096, 4096)


def main() -> None:
    """One launch forward and one with the gradient for each row."""
    for seed, row in enumerate(ROWS):
        operands = row.draw(COUNTED, seed)
        row.ours(*operands)
        cupy_losses.value_and_grad(row.ours)(*operands)


if __name__ == "__main__":
    main()

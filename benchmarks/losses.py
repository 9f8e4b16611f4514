"""The losses of the benchmark: operands, torch's function or expression, a float64 reference.

`python -m benchmarks.run --only losses` measures each at 2^30 elements of float32. Run as a script,
this calls each once forward and once with the gradient, for a profiler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import cupy_losses

Tensor = Any
Draw = Callable[[Tensor, Any], Tensor]  # fills a tensor in place


def normal(x: Tensor, generator: Any) -> Tensor:
    """Real numbers."""
    return x.normal_(generator=generator)


def probability(x: Tensor, generator: Any) -> Tensor:
    """Numbers inside (0, 1)."""
    return x.uniform_(0.01, 0.99, generator=generator)


def positive(x: Tensor, generator: Any) -> Tensor:
    """Numbers above 0."""
    return x.uniform_(0.1, 3.0, generator=generator)


def sign(x: Tensor, generator: Any) -> Tensor:
    """1 or -1."""
    return x.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


def label(x: Tensor, generator: Any) -> Tensor:
    """0 or 1."""
    return x.bernoulli_(0.5, generator=generator)


def count(x: Tensor, generator: Any) -> Tensor:
    """Whole numbers from 0 to 7."""
    return x.uniform_(0, 8, generator=generator).floor_()


@dataclass(frozen=True)
class Row:
    """A loss to be measured: `each` is its value for each element, in torch.

    `peer` is torch's own function, where it has one; otherwise the mean of `each`.
    """

    name: str
    each: Callable[..., Tensor]
    draws: tuple[Draw, ...] = (normal, normal)
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    loss: Callable[..., Tensor] | None = None
    peer: Callable[..., Tensor] | None = None
    row_target: bool = False  # a target for each column, broadcast

    def __str__(self) -> str:
        return self.label or self.name

    @property
    def ours(self) -> Callable[..., Tensor]:
        """The function of this package."""
        return functools.partial(self.loss or getattr(cupy_losses, self.name), **self.options)

    @property
    def eager(self) -> Callable[..., Tensor]:
        """What a user of torch would call."""
        each, options = self.each, self.options
        function = self.peer or getattr(F, self.name, None)
        if function is None:
            return lambda *operands: each(*operands).mean()
        return lambda *operands: function(*operands, **options)

    def draw(self, shape: Sequence[int], seed: int) -> list[Tensor]:
        """The operands."""
        generator = torch.Generator("cuda").manual_seed(seed)
        shapes = [shape] * len(self.draws)
        if self.row_target:
            shapes[1] = shape[1:]
        return [
            draw(torch.empty(tuple(own), device="cuda"), generator)
            for own, draw in zip(shapes, self.draws, strict=True)
        ]


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), as torch has it but without its threshold."""
    return torch.logaddexp(x, torch.zeros_like(x))


def bce(x: Tensor, y: Tensor) -> Tensor:
    """The cross entropy of a logit."""
    return y * softplus(-x) + (1 - y) * softplus(x)


def focal(x: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Torchvision's sigmoid_focal_loss, each element, as its source has it."""
    p = torch.sigmoid(x)
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    loss = entropy * ((1 - p_t) ** gamma)
    return (0.25 * y + 0.75 * (1 - y)) * loss


def poisson_full(x: Tensor, y: Tensor) -> Tensor:
    """With Stirling's approximation."""
    z = y.clamp_min(2)
    stirling = z * z.log() - z + 0.5 * (2 * math.pi * z).log()
    return x.exp() - y * x + torch.where(y > 1, stirling, torch.zeros_like(x))


def gaussian(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """The negative log-likelihood of normal deviates."""
    return 0.5 * (v.log() + (x - y) ** 2 / v)


def smooth(x: Tensor, y: Tensor) -> Tensor:
    """Smooth L1 and Huber with their default parameters."""
    d = x - y
    return torch.where(d.abs() < 1, d * d / 2, d.abs() - 0.5)


def hinge(x: Tensor, y: Tensor) -> Tensor:
    """max(1 - x y, 0)."""
    return (1 - x * y).clamp_min(0)


def hinge_embedding(x: Tensor, y: Tensor) -> Tensor:
    """Distances against a margin of 1."""
    return torch.where(y == 1, x, (1 - x).clamp_min(0))


own_mse = cupy_losses.pointwise_loss("own_mse", "(input - target) * (input - target)")

FOCAL: dict[str, Any] = {"reduction": "mean"}
ROWS = [
    Row("mse_loss", lambda x, y: (x - y) ** 2),
    Row(
        "own_mse",
        lambda x, y: (x - y) ** 2,
        label="pointwise_loss: squared error",
        loss=own_mse,
        peer=F.mse_loss,
    ),
    Row("l1_loss", lambda x, y: (x - y).abs()),
    Row("smooth_l1_loss", smooth),
    Row("huber_loss", smooth),
    Row("log_cosh_loss", lambda x, y: softplus(2 * (x - y)) - (x - y) - math.log(2)),
    Row(
        "quantile_loss",
        lambda x, y: torch.maximum(0.9 * (y - x), -0.1 * (y - x)),
        options={"quantile": 0.9},
    ),
    Row("charbonnier_loss", lambda x, y: ((x - y) ** 2 + 1e-6).sqrt()),
    Row(
        "binary_cross_entropy",
        lambda x, y: -(y * x.log() + (1 - y) * (-x).log1p()),
        (probability, label),
    ),
    Row("binary_cross_entropy_with_logits", bce, (normal, label)),
    Row(
        "sigmoid_focal_loss",
        functools.partial(focal, gamma=2.0),
        (normal, label),
        options=FOCAL,
    ),
    Row(
        "sigmoid_focal_loss",
        functools.partial(focal, gamma=1.5),
        (normal, label),
        options={"gamma": 1.5, **FOCAL},
        label="sigmoid_focal_loss(gamma=1.5)",
    ),
    Row("soft_margin_loss", lambda x, y: softplus(-x * y), (normal, sign)),
    Row("multilabel_soft_margin_loss", bce, (normal, label)),
    Row("hinge_loss", hinge, (normal, sign)),
    Row(
        "hinge_loss",
        hinge,
        (normal, sign),
        label="hinge_loss, target (32768,)",
        row_target=True,
    ),
    Row("squared_hinge_loss", lambda x, y: hinge(x, y) ** 2, (normal, sign)),
    Row("hinge_embedding_loss", hinge_embedding, (positive, sign)),
    Row(
        "margin_ranking_loss",
        lambda a, b, y: (0.5 - y * (a - b)).clamp_min(0),
        (normal, normal, sign),
        options={"margin": 0.5},
    ),
    Row(
        "kl_div",
        lambda x, y: y * (y.log() - x),
        (normal, probability),
        options={"reduction": "batchmean"},
    ),
    Row(
        "kl_div",
        lambda x, y: y.exp() * (y - x),
        options={"reduction": "batchmean", "log_target": True},
        label="kl_div(log_target=True)",
    ),
    Row("poisson_nll_loss", lambda x, y: x.exp() - y * x, (normal, count)),
    Row(
        "poisson_nll_loss",
        poisson_full,
        (normal, count),
        options={"full": True},
        label="poisson_nll_loss(full=True)",
    ),
    Row("gaussian_nll_loss", gaussian, (normal, normal, positive)),
]

COUNTED = (4096, 4096)


def main() -> None:
    """One launch forward and one with the gradient for each row."""
    for seed, row in enumerate(ROWS):
        operands = row.draw(COUNTED, seed)
        row.ours(*operands)
        cupy_losses.value_and_grad(row.ours)(*operands)


if __name__ == "__main__":
    main()

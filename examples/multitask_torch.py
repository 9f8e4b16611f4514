"""Train a network of several tasks with torch alone: it knows nothing of this package.

`python -m cupy_losses accelerate --report examples/multitask_torch.py` runs it with the losses of
this package, on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, CLASSES, TAGS, CODE = 16, 5, 8, 12

Batch = dict[str, torch.Tensor]


class Network(nn.Module):
    """A trunk, and a head for each task."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.classes = nn.Linear(width, CLASSES)
        self.tags = nn.Linear(width, TAGS)
        self.position = nn.Linear(width, 2)
        self.spread = nn.Linear(width, 2)
        self.count = nn.Linear(width, 1)
        self.code = nn.Linear(width, CODE)

    def forward(self, features: torch.Tensor) -> Batch:
        """The outputs of all heads by name."""
        shared = self.trunk(features)
        return {
            "classes": self.classes(shared),
            "tags": self.tags(shared),
            "position": self.position(shared),
            "variance": F.softplus(self.spread(shared)) + 1e-3,
            "count": self.count(shared).squeeze(1),
            "code": self.code(shared),
        }


def draw(size: int, rules: torch.Tensor, generator: torch.Generator) -> Batch:
    """Features, and what follows from them by fixed rules, with noise."""
    features = torch.randn(size, FEATURES, generator=generator)
    hidden = features @ rules
    classes = hidden[:, :CLASSES].argmax(dim=1)
    classes[::50] = -100  # not known
    return {
        "features": features,
        "classes": classes,
        "tags": (hidden[:, CLASSES : CLASSES + TAGS] > 0.5).float(),
        "position": hidden[:, -3:-1] + 0.1 * torch.randn(size, 2, generator=generator),
        "count": torch.poisson(hidden[:, -1].clamp(-3, 2).exp(), generator=generator),
        "teacher": hidden[:, :CLASSES].log_softmax(dim=1),
    }


class Criterion(nn.Module):
    """The sum of the losses of all tasks: modules of torch, and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.of_classes = nn.CrossEntropyLoss(
            weight=torch.linspace(0.5, 1.5, CLASSES), label_smoothing=0.05
        )
        self.of_tags = nn.BCEWithLogitsLoss(pos_weight=torch.full((TAGS,), 2.0))
        self.of_position = nn.GaussianNLLLoss()
        self.of_code = nn.TripletMarginLoss(margin=0.5)

    def forward(self, outputs: Batch, batch: Batch) -> torch.Tensor:
        """One number to minimise."""
        log_classes = outputs["classes"].log_softmax(dim=1)
        code = outputs["code"]
        # Neighbours in the batch stand for what is alike; what is farther away, for what is not.
        near, far = code.roll(1, dims=0), code.roll(len(code) // 2, dims=0)
        total: torch.Tensor = self.of_classes(outputs["classes"], batch["classes"])
        total = total + self.of_tags(outputs["tags"], batch["tags"])
        total = total + 0.5 * self.of_position(
            outputs["position"], batch["position"], outputs["variance"]
        )
        total = total + F.smooth_l1_loss(outputs["position"], batch["position"], beta=0.5)
        total = total + 0.3 * F.poisson_nll_loss(outputs["count"], batch["count"])
        total = total + F.kl_div(
            log_classes, batch["teacher"], reduction="batchmean", log_target=True
        )
        total = total + 0.1 * self.of_code(code, near, far)
        return total + 1e-3 * F.mse_loss(code, torch.zeros_like(code))


def train(steps: int, size: int, device: str) -> list[float]:
    """Train, and return the loss of every tenth step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    rules = torch.randn(FEATURES, CLASSES + TAGS + 3, generator=generator) / FEATURES**0.5
    network, criterion = Network().to(device), Criterion().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    curve = []
    for step in range(steps):
        batch = {name: x.to(device) for name, x in draw(size, rules, generator).items()}
        optimizer.zero_grad()
        loss = criterion(network(batch["features"]), batch)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            curve.append(loss.item())
    return curve


def main(arguments: list[str] | None = None) -> list[float]:
    """Train as the command line says, and print the curve."""
    parser = argparse.ArgumentParser(description="Train a network of several tasks.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--size", type=int, default=256, help="examples of a batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args(arguments)
    start = time.perf_counter()
    curve = train(chosen.steps, chosen.size, chosen.device)
    for number, loss in enumerate(curve):
        print(f"step {10 * number}: {loss:.4f}")
    print(f"{time.perf_counter() - start:.2f} s on {chosen.device}", file=sys.stderr)
    return curve


if __name__ == "__main__":
    main()

"""Measure small steps as training takes them: the host's time, eager and compiled; print a table.

    python -m benchmarks.steps [--output FILE]

Microseconds of this package's loss and of torch's, in turn in one run, with their ratio. Eager: the
loss alone, of 1024 elements or 32 x 10 logits. Compiled: `torch.compile` of the loss, forward and
backward, and of a small network with its loss. CuPy: calls on arrays, of which torch has none.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import torch
import torch.nn.functional as F
from torch import nn

import cupy_losses
from cupy_losses import value_and_grad

from .measure import environment, gradients, host_microseconds

Loss = Callable[..., Any]
Work = Callable[[], Any]
MODES: tuple[str | None, ...] = (None, "reduce-overhead")


def values() -> list[Any]:
    """1024 elements."""
    return list(torch.randn(2, 1024, device="cuda"))


def probabilities() -> list[Any]:
    """1024 probabilities and targets."""
    return list(torch.rand(2, 1024, device="cuda") * 0.98 + 0.01)


def logits() -> list[Any]:
    """32 rows of 10 logits."""
    return [torch.randn(32, 10, device="cuda"), torch.randint(10, (32,), device="cuda")]


OPERANDS: dict[str, Callable[[], list[Any]]] = {
    "mse_loss": values,
    "smooth_l1_loss": values,
    "binary_cross_entropy": probabilities,
    "cross_entropy": logits,
}


def pairs(name: str) -> dict[str, Loss]:
    """The loss of this package and torch's."""
    return {"ours": getattr(cupy_losses, name), "torch": getattr(F, name)}


def check(got: Any, expected: Any) -> None:
    """Each gradient is torch's."""
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def eager() -> dict[str, dict[str, float]]:
    """The host's time of eager calls."""
    works: dict[str, dict[str, Work]] = {}
    for name in ("mse_loss", "cross_entropy"):
        first, *others = OPERANDS[name]()
        leaf = first.clone().requires_grad_()
        check(*(gradients(loss, [leaf], others) for loss in pairs(name).values()))
        for whose, loss in pairs(name).items():
            row = works.setdefault(f"{name}, forward", {})
            row[whose] = functools.partial(loss, first, *others)
            row = works.setdefault(f"{name}, forward and backward", {})
            row[whose] = functools.partial(gradients, loss, [leaf], others)
    return {label: host_microseconds(row) for label, row in works.items()}


def compiled() -> dict[str, dict[str, float]]:
    """The host's time of compiled losses, forward and backward."""
    results = {}
    for name, draw in OPERANDS.items():
        first, *others = draw()
        leaf = first.clone().requires_grad_()
        for mode in MODES:
            torch._dynamo.reset()
            works: dict[str, Work] = {}
            for whose, loss in pairs(name).items():
                works[whose] = _step(torch.compile(loss, fullgraph=True, mode=mode), leaf, others)
            check(*([x.clone() for x in work()] for work in works.values()))
            results[f"{name}, {mode or 'default'}"] = host_microseconds(works)
    return results


def _step(loss: Loss, leaf: Any, others: list[Any]) -> Work:
    def work() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return gradients(loss, [leaf], others)

    return work


class Step(nn.Module):
    """A small network with its loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        self.loss = loss

    def forward(self, x: Any, target: Any) -> Any:
        """The loss of a batch."""
        return self.loss(self.network(x), target)


def network() -> dict[str, dict[str, float]]:
    """The host's time of a compiled training step: forward, backward and a step of SGD."""
    results = {}
    x = torch.randn(256, 64, device="cuda")
    targets = {
        "mse_loss": torch.randn(256, 10, device="cuda"),
        "cross_entropy": torch.randint(10, (256,), device="cuda"),
    }
    for name, target in targets.items():
        for mode in MODES:
            torch._dynamo.reset()
            works: dict[str, Work] = {}
            curves = []
            for whose, loss in pairs(name).items():
                torch.manual_seed(0)
                step = Step(loss).cuda()
                optimizer = torch.optim.SGD(step.parameters(), lr=0.01, fused=True)
                compiled = torch.compile(step, fullgraph=True, mode=mode)

                def work(step: Any = compiled, optimizer: Any = optimizer, y: Any = target) -> Any:
                    torch.compiler.cudagraph_mark_step_begin()
                    optimizer.zero_grad()
                    value = step(x, y)
                    value.backward()
                    optimizer.step()
                    return value

                curves.append(torch.stack([work().detach().clone() for _ in range(20)]))
                works[whose] = work
            torch.testing.assert_close(*curves, rtol=1e-3, atol=1e-5)
            results[f"{name}, {mode or 'default'}"] = host_microseconds(works)
    return results


def arrays() -> dict[str, dict[str, float]]:
    """The host's time of calls on CuPy arrays."""
    x, y = (cupy.from_dlpack(t) for t in values())
    rows, classes = (cupy.from_dlpack(t) for t in logits())
    mse, cross_entropy = cupy_losses.mse_loss, cupy_losses.cross_entropy
    tensor = torch.as_tensor(y, device="cuda")
    works: dict[str, Work] = {
        "mse_loss": lambda: mse(x, y),
        "value_and_grad(mse_loss)": lambda: value_and_grad(mse)(x, y),
        "cross_entropy": lambda: cross_entropy(rows, classes),
        "value_and_grad(cross_entropy)": lambda: value_and_grad(cross_entropy)(rows, classes),
        "mse_loss of a CuPy and a torch array": lambda: mse(x, tensor),
    }
    return {name: {"ours": taken} for name, taken in host_microseconds(works).items()}


SECTIONS = {"eager": eager, "compiled": compiled, "network": network, "cupy": arrays}


def main() -> None:
    """Print the table, and write the results if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    results: dict[str, Any] = {"environment": environment()}
    for section in arguments.only:
        results[section] = SECTIONS[section]()
        for label, row in results[section].items():
            peer = (
                f"{row['torch']:9.1f} {row['ours'] / row['torch']:6.2f}" if "torch" in row else ""
            )
            print(f"{section:9} {label:40} {row['ours']:9.1f} {peer}", flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

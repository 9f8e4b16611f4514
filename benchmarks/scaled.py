"""Measure forward and backward passes with a grad_output other than 1; print a table.

    python -m benchmarks.scaled

Milliseconds with grad_output 1, in one call, of two losses and of four accumulated ones, and the
ratio to that with other grad_outputs that come in every step; last with one that differs in every
step, so that each gradient is computed twice. Then the host's time of small calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import cupy_losses

from .measure import host_microseconds, in_turn
from .run import draw

SIZE = 1 << 28
ROWS, CLASSES = 32768, 4096
MSE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Loss = Callable[[], Any]


def steps(loss: Loss, leaf: Any, *factors: float, calls: int = 1) -> Callable[[], None]:
    """Steps with so many calls each, which come back with the factors in turn."""
    example = loss().detach()
    turn = itertools.cycle([torch.full_like(example, factor) for factor in factors])

    def work() -> None:
        leaf.grad = None
        values = [loss() for _ in range(calls)]
        torch.autograd.backward(values, [next(turn) for _ in values])

    return work


def accumulated(loss: Loss, leaf: Any, factor: float) -> Callable[[], None]:
    """Four calls, one after the other, whose gradients are added up."""
    grad_output = torch.full_like(loss().detach(), factor)

    def work() -> None:
        leaf.grad = None
        for _ in range(4):
            loss().backward(grad_output)

    return work


def problems() -> Iterator[tuple[str, Loss, Any]]:
    """Losses, with the leaf that each is differentiated by."""
    for dtype in MSE_DTYPES:
        input, target = draw(SIZE, dtype, 0)
        yield f"mse_loss {dtype}", _bound(cupy_losses.mse_loss, input, target), input
        del input, target
        torch.cuda.empty_cache()
    for dtype in (torch.float32, torch.bfloat16):
        input = draw(ROWS * CLASSES, dtype, 1)[0].view(ROWS, CLASSES)
        target = torch.randint(CLASSES, (ROWS,), device="cuda")
        yield f"cross_entropy {dtype}", _bound(cupy_losses.cross_entropy, input, target), input


def _bound(loss: Callable[..., Any], input: Any, target: Any) -> Loss:
    input.requires_grad_()
    return lambda: loss(input, target)


def measure(loss: Loss, leaf: Any) -> list[float]:
    """Milliseconds with 1, of one call, two and four; the other columns as ratios to those."""
    scaler = 32768.0 if loss().dtype == torch.float16 else 65536.0
    times = in_turn(
        {
            "1": steps(loss, leaf, 1.0),
            "0.5": steps(loss, leaf, 0.5),
            "scaler": steps(loss, leaf, scaler),
            "changing": steps(loss, leaf, 0.5, 0.25, 0.125),
            "two": steps(loss, leaf, 1.0, 1.0, calls=2),
            "weighted": steps(loss, leaf, 0.3, 0.7, calls=2),
            "four": accumulated(loss, leaf, 1.0),
            "accumulated": accumulated(loss, leaf, 0.25),
        },
        runs=11,
    )
    one, two, four = times["1"], times["two"], times["four"]
    ratios = [times[name] / one for name in ("0.5", "scaler", "changing")]
    return [one, *ratios, two, times["weighted"] / two, four, times["accumulated"] / four]


def main() -> None:
    """Print the tables."""
    header = ["1, ms", "0.5", "scaler", "changing", "two, ms", "0.3, 0.7", "four, ms", "0.25"]
    _print("", header)
    for name, loss, leaf in problems():
        _print(name.replace("torch.", ""), [f"{x:.3f}" for x in measure(loss, leaf)])
        leaf.grad = None
    input, target = draw(1024, torch.float32, 0)
    loss = _bound(cupy_losses.mse_loss, input, target)
    works = {"1": steps(loss, input, 1.0), "0.5": steps(loss, input, 0.5), "forward": loss}
    for name, microseconds in host_microseconds(works).items():
        _print(f"host, {name}, us", [f"{microseconds:.1f}"])


def _print(name: str, columns: Sequence[str]) -> None:
    print(f"{name:24}", *(f"{column:>9}" for column in columns))


if __name__ == "__main__":
    main()

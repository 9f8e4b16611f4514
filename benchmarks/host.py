"""Time the host backend beside plain NumPy and torch on one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.host [--output FILE]

Each result is checked against plain NumPy in float64 before it is timed. Times are medians of the
process's own CPU time, taken in turn; memory is the peak of what is allocated beside the results.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses._commands.environment import environment
from cupy_losses._commands.formulas import PLAIN, Plain
from cupy_losses._commands.timing import RUNS, on_host

Array = Any

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Problem:
    """A loss of operands of some shape; the first one is differentiated."""

    name: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Sequence[Array]]
    plain: Plain  # what a user of NumPy would write

    def operands(self, dtype: str) -> list[Array]:
        """The operands, those that are floating in a dtype."""
        drawn = self.draw(np.random.default_rng(0), self.shape)
        return [x.astype(dtype) if x.dtype.kind == "f" else x for x in drawn]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Predictions and targets."""
    return [rng.standard_normal(shape), rng.standard_normal(shape)]


def probabilities(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Probabilities and classes."""
    return [rng.uniform(0.01, 0.99, shape), rng.integers(0, 2, shape).astype(np.float64)]


def logits(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Log-odds and classes."""
    return [rng.standard_normal(shape), rng.integers(0, 2, shape).astype(np.float64)]


def distributions(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Log-probabilities and probabilities."""
    x, y = rng.uniform(0.01, 1.0, (2, *shape))
    return [np.log(x / x.sum(1, keepdims=True)), y / y.sum(1, keepdims=True)]


def classes(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Scores and classes."""
    return [rng.standard_normal(shape), rng.integers(0, shape[1], shape[0])]


def log_probabilities(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Log-probabilities and classes."""
    return [distributions(rng, shape)[0], rng.integers(0, shape[1], shape[0])]


def vectors(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Three vectors a row, none so near to the margin that rounding decides."""
    anchor, step, other = rng.standard_normal((3, *shape))
    near = np.where(rng.random((shape[0], 1)) < 0.5, 0.2, 1.8)
    return [anchor, anchor + near * step, anchor + (2.0 - near) * other]


SQUARE = (1000, 1000)
DRAWS = {
    "mse_loss": normal,
    "smooth_l1_loss": normal,
    "binary_cross_entropy": probabilities,
    "binary_cross_entropy_with_logits": logits,
    "kl_div": distributions,
    "cross_entropy": classes,
    "nll_loss": log_probabilities,
    "triplet_margin_loss": vectors,
}
SHAPES = {
    "cross_entropy": (SQUARE, (100_000, 10), (32, 10)),
    "nll_loss": (SQUARE, (100_000, 10), (32, 10)),
    "triplet_margin_loss": ((10_000, 100), (32, 32)),
}
PROBLEMS = [
    Problem(name, shape, draw, PLAIN[name])
    for name, draw in DRAWS.items()
    for shape in SHAPES.get(name, (SQUARE, (32, 32)))
]


def check(problem: Problem, operands: Sequence[Array]) -> None:
    """Raise unless what is timed is what plain NumPy gives in float64."""
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands]
    value, slopes = problem.plain.both(*wide)
    for name, work in works(problem, operands).items():
        # Sums of float32 are NumPy's and torch's own affair.
        ours = not name.startswith(("numpy", "torch"))
        relative = (8.0 if ours else 1000.0) * np.finfo(operands[0].dtype).eps
        result = work()
        if name.endswith("both"):
            result, gradient = result[0], np.asarray(result[1])
            scale = relative * abs(slopes).max()
            np.testing.assert_allclose(gradient, slopes, relative, scale, err_msg=name)
        np.testing.assert_allclose(float(result), float(value), relative, err_msg=name)


def works(problem: Problem, operands: Sequence[Array]) -> dict[str, Callable[[], Any]]:
    """What is timed: by whom, and with the gradient or without."""
    loss, of_torch = getattr(cupy_losses, problem.name), getattr(F, problem.name)
    both = value_and_grad(loss)
    tensors = [torch.from_numpy(x) for x in operands]
    leaf = tensors[0].clone().requires_grad_()

    def torch_both() -> Any:
        value = of_torch(leaf, *tensors[1:])
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    return {
        "forward": lambda: loss(*operands),
        "numpy_forward": lambda: problem.plain.value(*operands),
        "torch_forward": lambda: of_torch(*tensors),
        "both": lambda: both(*operands),
        "numpy_both": lambda: problem.plain.both(*operands),
        "torch_both": torch_both,
    }


def microseconds(timed: dict[str, Callable[[], Any]], runs: int = RUNS) -> dict[str, float]:
    """The median CPU time of a call of each, over runs of many calls taken in turn."""
    return {name: 1e3 * time for name, time in on_host(timed, runs).items()}


def peak(work: Callable[[], Any]) -> int:
    """The bytes that a call allocates at most, beside what it returns."""
    work()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    result = work()
    after, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return most - max(before, after)


def measure(problem: Problem, dtype: str, runs: int = RUNS) -> dict[str, Any]:
    """The times of a problem in a dtype, and the memory."""
    operands = problem.operands(dtype)
    check(problem, operands)
    timed = works(problem, operands)
    return {
        "loss": problem.name,
        "shape": list(problem.shape),
        "dtype": dtype,
        **{f"{name}_us": value for name, value in microseconds(timed, runs).items()},
        **{f"{name}_peak": peak(timed[name]) for name in ("both", "numpy_both")},
    }


def described(row: dict[str, Any]) -> str:
    """A result as a line."""
    shape = " × ".join(map(str, row["shape"]))
    parts = [
        f"{what} {row[f'{what}_us']:.0f} µs, {row[f'{what}_us'] / row[f'numpy_{what}_us']:.2f} of "
        f"NumPy, {row[f'{what}_us'] / row[f'torch_{what}_us']:.1f} of torch"
        for what in ("forward", "both")
    ]
    memory = f"{row['both_peak'] / 2**20:.1f} MiB"
    return f"{row['loss']} {shape} {row['dtype']}: {'; '.join(parts)}; {memory}"


def main() -> None:
    """Print the results, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", help="losses of these names")
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for problem in PROBLEMS:
        if arguments.only and problem.name not in arguments.only:
            continue
        for dtype in DTYPES:
            rows.append(measure(problem, dtype, arguments.runs))
            print(described(rows[-1]), flush=True)
    if arguments.output:
        results = {"environment": environment(np), "problems": rows}
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

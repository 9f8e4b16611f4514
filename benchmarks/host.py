"""Time the host backend beside plain NumPy and torch on one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.host [--output FILE]

Each result is checked against plain NumPy in float64 before it is timed. Times are medians of the
process's own CPU time, taken in turn; memory is the peak of what is allocated beside the results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import value_and_grad

from .measure import version

Array = Any

RUNS = 15
AT_LEAST = 5e-3  # seconds of each run
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Problem:
    """A loss of operands of some shape; the first one is differentiated."""

    name: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Sequence[Array]]
    plain: Callable[..., Array]  # what a user of NumPy would write: the loss
    plain_both: Callable[..., tuple[Array, Array]]  # and with its gradient
    options: dict[str, str] = field(default_factory=dict)

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


def vectors(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Three vectors a row, none so near to the margin that rounding decides."""
    anchor, step, other = rng.standard_normal((3, *shape))
    near = np.where(rng.random((shape[0], 1)) < 0.5, 0.2, 1.8)
    return [anchor, anchor + near * step, anchor + (2.0 - near) * other]


def mse(x: Array, y: Array) -> Array:
    """The plain loss, as all below."""
    return np.mean((x - y) ** 2)


def mse_both(x: Array, y: Array) -> tuple[Array, Array]:
    """With its gradient, as all below."""
    d = x - y
    return np.mean(d * d), (2.0 / d.size) * d


def smooth_l1(x: Array, y: Array) -> Array:  # noqa: D103
    d = abs(x - y)
    return np.mean(np.where(d < 1.0, 0.5 * d * d, d - 0.5))


def smooth_l1_both(x: Array, y: Array) -> tuple[Array, Array]:  # noqa: D103
    d = x - y
    size = abs(d)
    value = np.mean(np.where(size < 1.0, 0.5 * d * d, size - 0.5))
    return value, np.clip(d, -1.0, 1.0) / d.size


def bce(p: Array, y: Array) -> Array:  # noqa: D103
    of_one, of_zero = np.maximum(np.log(p), -100.0), np.maximum(np.log1p(-p), -100.0)
    return -np.mean(y * of_one + (1.0 - y) * of_zero)


def bce_both(p: Array, y: Array) -> tuple[Array, Array]:  # noqa: D103
    return bce(p, y), (p - y) / (p * (1.0 - p)) / p.size


def bce_with_logits(x: Array, y: Array) -> Array:  # noqa: D103
    return np.mean(np.maximum(x, 0.0) - x * y + np.log1p(np.exp(-abs(x))))


def bce_with_logits_both(x: Array, y: Array) -> tuple[Array, Array]:  # noqa: D103
    return bce_with_logits(x, y), (1.0 / (1.0 + np.exp(-x)) - y) / x.size


def kl(x: Array, y: Array) -> Array:  # noqa: D103
    return np.sum(np.where(y > 0.0, y * np.log(y), 0.0) - y * x) / len(x)


def kl_both(x: Array, y: Array) -> tuple[Array, Array]:  # noqa: D103
    return kl(x, y), -y / len(x)


def cross_entropy(x: Array, t: Array) -> Array:  # noqa: D103
    below = x - x.max(1, keepdims=True)
    return np.mean(np.log(np.exp(below).sum(1)) - below[np.arange(len(x)), t])


def cross_entropy_both(x: Array, t: Array) -> tuple[Array, Array]:  # noqa: D103
    rows = np.arange(len(x))
    below = x - x.max(1, keepdims=True)
    powers = np.exp(below)
    sums = powers.sum(1, keepdims=True)
    gradient = powers / sums
    gradient[rows, t] -= 1.0
    gradient /= len(x)
    return np.mean(np.log(sums[:, 0]) - below[rows, t]), gradient


def triplet(a: Array, p: Array, n: Array) -> Array:  # noqa: D103
    near = np.sqrt(((a - p + 1e-6) ** 2).sum(1))
    far = np.sqrt(((a - n + 1e-6) ** 2).sum(1))
    return np.mean(np.maximum(near - far + 1.0, 0.0))


def triplet_both(a: Array, p: Array, n: Array) -> tuple[Array, Array]:  # noqa: D103
    to_near, to_far = a - p + 1e-6, a - n + 1e-6
    near = np.sqrt((to_near**2).sum(1, keepdims=True))
    far = np.sqrt((to_far**2).sum(1, keepdims=True))
    excess = near - far + 1.0
    gradient = np.where(excess > 0.0, (to_near / near - to_far / far) / len(a), 0.0)
    return np.mean(np.maximum(excess, 0.0)), gradient


SQUARE = (1000, 1000)
PROBLEMS = [
    *(
        Problem(name, shape, draw, plain, both, options)
        for name, draw, plain, both, options in (
            ("mse_loss", normal, mse, mse_both, {}),
            ("smooth_l1_loss", normal, smooth_l1, smooth_l1_both, {}),
            ("binary_cross_entropy", probabilities, bce, bce_both, {}),
            (
                "binary_cross_entropy_with_logits",
                logits,
                bce_with_logits,
                bce_with_logits_both,
                {},
            ),
            ("kl_div", distributions, kl, kl_both, {"reduction": "batchmean"}),
        )
        for shape in (SQUARE, (32, 32))
    ),
    *(
        Problem("cross_entropy", shape, classes, cross_entropy, cross_entropy_both)
        for shape in (SQUARE, (100_000, 10), (32, 10))
    ),
    *(
        Problem("triplet_margin_loss", shape, vectors, triplet, triplet_both)
        for shape in ((10_000, 100), (32, 32))
    ),
]


def check(problem: Problem, operands: Sequence[Array]) -> None:
    """Raise unless what is timed is what plain NumPy gives in float64."""
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands]
    value, slopes = problem.plain_both(*wide)
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
    options = problem.options
    loss, of_torch = getattr(cupy_losses, problem.name), getattr(F, problem.name)
    both = value_and_grad(loss)
    tensors = [torch.from_numpy(x) for x in operands]
    leaf = tensors[0].clone().requires_grad_()

    def torch_both() -> Any:
        value = of_torch(leaf, *tensors[1:], **options)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    return {
        "forward": lambda: loss(*operands, **options),
        "numpy_forward": lambda: problem.plain(*operands),
        "torch_forward": lambda: of_torch(*tensors, **options),
        "both": lambda: both(*operands, **options),
        "numpy_both": lambda: problem.plain_both(*operands),
        "torch_both": torch_both,
    }


def microseconds(timed: dict[str, Callable[[], Any]], runs: int = RUNS) -> dict[str, float]:
    """The median CPU time of a call of each, over runs of many calls taken in turn."""
    counts: dict[str, int] = {}
    for name, work in timed.items():
        work()
        start = time.process_time()
        work()
        counts[name] = max(1, int(AT_LEAST / max(time.process_time() - start, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(runs):
        for name, work in timed.items():
            start = time.process_time()
            for _ in range(counts[name]):
                work()
            times[name].append((time.process_time() - start) / counts[name] * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


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


def processor() -> str:
    """The model of the CPU, with the widest vectors that NumPy uses there."""
    lines = Path("/proc/cpuinfo")
    text = lines.read_text() if lines.exists() else ""
    fields = dict(re.findall(r"^(.*?)\s*: (.*)$", text.split("\n\n")[0], re.M))
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        name += f", family {fields['cpu family']}, model {fields['model']}"
    shown: Any = np.show_config(mode="dicts")
    return f"{name}, {shown['SIMD Extensions']['found'][-1]}"


def environment() -> dict[str, Any]:
    """CPU, versions and date."""
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": processor(),
        "python": sys.version.split()[0],
        "cupy_losses": cupy_losses.__version__,
        **{name: version(name) for name in ("numpy", "torch")},
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
        results = {"environment": environment(), "problems": rows}
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

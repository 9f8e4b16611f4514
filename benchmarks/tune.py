"""Measure the tuning constants of losses over rows on this GPU; write the results, print a table.

    python -m benchmarks.tune --output benchmarks/results/NAME.json [--quick]
        [--constant MODULE.NAME …]

A constant decides who works on a row; it stands in the module of its plan, with what it does. Each
takes some values, the one in use among them, with the shapes that it matters for: cross_entropy of
2^27 logits, forward and with the gradient. A loss is checked against float64 before it is timed;
the values take turns. The table has the mean of the times over those with the value in use, and
the largest of these ratios. A value is better if both are below 1. Bits depend on most constants.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cupy_losses._core.dtypes import dtype_name
from cupy_losses._device import (
    denominators_schedule,
    engine,
    row_striding,
    row_team,
    row_tiling,
    strided_tiling,
)

from . import rows, sweep
from .measure import environment, forward_works, in_turn

DTYPES = ("float32", "bfloat16")
QUICK = 2  # shapes of each constant

SHORT = (20, 33, 60, 101, 150, 196)
MIDDLE = (333, 501, 1000, 1001, 1501)
LONG = (2003, 4096, 5001, 10007, 20001)
RANKS = (32001, 50257, 128257, 152064, 262144)
SPLITS = (1 << 21, (1 << 21) + 1, 1 << 23, 1 << 25)
HEAVY = ("cross_entropy(label_smoothing=0.1)", "cross_entropy of probabilities")
COUNTED = ("cross_entropy(weight)", "cross_entropy, a third ignored")  # ahead of the gradient


@dataclass(frozen=True)
class Constant:
    """A constant of a module, values that it may have, and class counts it matters for."""

    module: ModuleType
    name: str
    values: Sequence[int]
    classes: Sequence[int] = ()
    strided: bool = False
    losses: Sequence[str] = ()  # those with options that are measured in place of the plain one

    @property
    def label(self) -> str:
        """Its name, with that of its module, as others may have the same."""
        return f"{self.module.__name__.rpartition('.')[2]}.{self.name}"

    @property
    def in_use(self) -> int:
        """The value that it has."""
        return int(getattr(self.module, self.name))

    def problems(self, dtype: str) -> list[rows.Problem]:
        """The losses that it is measured with."""
        if self.strided:
            return [sweep.classes_strided(*case, dtype) for case in sweep.STRIDED]
        if self.losses:
            shapes = [(sweep.LOGITS // count, count) for count in self.classes]
            every = [p for shape in shapes for p in sweep.with_options(shape, dtype)]
            return [problem for problem in every if str(problem) in self.losses]
        return [sweep.classes_last(count, dtype) for count in self.classes]


CONSTANTS = [
    Constant(row_team, "THREAD_BYTES", (128, 192, 220, 240, 384), (230, 460, *MIDDLE)),
    Constant(row_team, "HALF_THREAD_BYTES", (64, 128, 136, 240), (257, 1040, *MIDDLE)),
    Constant(row_team, "LONG_THREAD_BYTES", (256, 320, 512), (*LONG, 2501, 4099)),
    Constant(row_team, "SMALL_BLOCK", (64, 128, 256), LONG),
    Constant(row_team, "BATCH_BYTES", (64, 128, 160), (*MIDDLE, *LONG)),
    Constant(row_team, "CACHE_BYTES", (48 << 10, 64 << 10, 96 << 10), RANKS),
    Constant(row_team, "WORKING_THREADS", (5 << 17, 5 << 18, 5 << 19), (*LONG, *RANKS)),
    Constant(row_team, "THREADS_OF_SEVERAL", (1 << 19, 1 << 20, 1 << 21), MIDDLE),
    Constant(row_team, "ROWS_OF_CLUSTER", (2, 4, 8), RANKS),
    Constant(row_team, "SPLIT_BLOCK", (256, 512), SPLITS),
    Constant(row_team, "SPLIT_VECTORS", (8, 16, 32), SPLITS),
    Constant(row_team, "HEAVY_THREAD_BYTES", (220, 440, 880), MIDDLE, losses=HEAVY),
    Constant(row_team, "LONG_HEAVY", (4096, 8192, 16384), (*MIDDLE, *LONG), losses=HEAVY),
    Constant(row_team, "LONG_OF_WARP", (0, 16383, 24576), (1100, 2200, 3000), losses=HEAVY),
    Constant(row_team, "LONG_HEAVY_OF_WARP", (0, 12288, 15360), (2600, 5200, 7000), losses=HEAVY),
    Constant(
        row_team, "THREADS_OF_HEAVY", (512, 768, 1024), (*MIDDLE, *LONG, *RANKS), losses=HEAVY
    ),
    Constant(row_team, "THREADS_OF_HALVES", (512, 768, 1024), (21841, 32000)),
    Constant(row_tiling, "LONG_HIDDEN", (150, 200, 300), (150, 210, 250, *MIDDLE)),
    Constant(row_tiling, "LONG_HALVES", (200, 304, 400), (208, 248, 296, 344)),
    Constant(row_tiling, "LONG_PARTS", (300, 1250, 2000), (*MIDDLE, 1201, 1501)),
    Constant(row_tiling, "LEAST_OF_LONG", (16, 32, 48), (223, 257, 287, 450, 701)),
    Constant(row_tiling, "ENOUGH_OF_ODD", (1, 40, 80), (223, 257, 287, 321, 365)),
    Constant(row_tiling, "LONG_HEAVY", (3300, 3700, 5200), (1660, 1700, 1901), losses=HEAVY),
    Constant(row_tiling, "LONG_HEAVY_OF_WORDS", (1000, 1500, 2100), (257, 365, 511), losses=HEAVY),
    Constant(row_tiling, "LEAST_OF_HEAVY", (32, 76, 128), (600, 701, *MIDDLE), losses=HEAVY),
    Constant(row_tiling, "HEAVY_LIMIT", (28 << 10, 34 << 10, 41 << 10), MIDDLE, losses=HEAVY),
    Constant(row_tiling, "MAX_BANK_CONFLICTS", (1, 2, 4), (48, 96, 117, 127, 129, 158)),
    Constant(row_tiling, "LEAST_UNITS", (2, 4, 8), (16, 32, 48, 96)),
    Constant(row_tiling, "SHORT_BYTES", (16, 24, 32), (5, 6, 7)),
    Constant(row_tiling, "SHORT_HIDDEN", (12, 16, 24), (6, 10, 12)),
    Constant(row_tiling, "BATCH_BYTES", (16, 32, 64), SHORT),
    Constant(row_tiling, "TILE_BYTES", (12 << 10, 20 << 10, 28 << 10), SHORT),
    Constant(row_striding, "BATCH", (8, 16, 32), strided=True),
    Constant(row_striding, "SHARE_WORDS", (32, 64, 128), strided=True),
    Constant(row_striding, "MANY_THREADS", (8, 16, 32), strided=True),
    Constant(row_striding, "SHARED_THREADS", (256, 512, 1024), strided=True),
    Constant(row_striding, "ENOUGH_THREADS", (1 << 16, 3 << 15, 1 << 17), strided=True),
    Constant(row_striding, "SEGMENTS", (2048, 4096, 8192), strided=True),
    Constant(row_striding, "SEGMENTS_OF_HALVES", (1024, 2048, 4096), strided=True),
    Constant(strided_tiling, "TILE_BYTES", (27 << 10, 37 << 10, 55 << 10), strided=True),
    Constant(strided_tiling, "MANY_TILES", (1024, 4096, 8192), strided=True),
    Constant(denominators_schedule, "ROWS", (2, 4, 8), (3, 10, 21, 150), losses=COUNTED),
    Constant(denominators_schedule, "RESIDENT", (4, 6, 8), (3, 10, 21, 150), losses=COUNTED),
    Constant(denominators_schedule, "SEGMENTS", (1024, 2048, 4096), (3, 10, 21), losses=COUNTED),
]


@contextmanager
def value_of(constant: Constant, value: int) -> Iterator[None]:
    """Plans are made anew with this value, and again without it."""
    before = constant.in_use
    setattr(constant.module, constant.name, value)
    engine._plans.clear()
    try:
        yield
    finally:
        setattr(constant.module, constant.name, before)
        engine._plans.clear()


def measure(
    constant: Constant, problem: rows.Problem, operands: list[Any], values: Sequence[int]
) -> dict[str, Any]:
    """Check and time a loss with each value: its times by pass and value."""
    works: dict[str, Callable[[], Any]] = {}
    for value in values:
        with value_of(constant, value):
            rows.check(problem, operands, max(1, sweep.CHECKED // math.prod(problem.shape[1:])))
            passes = forward_works({"": problem.ours}, operands)
            passes["value_and_grad_ms"] = rows.value_and_grad_work(problem, operands)
            for name, work in passes.items():
                work()
                works[f"{name} {value}"] = _planned(work, dict(engine._plans))
    times = in_turn(works, sweep.RUNS)
    engine._plans.clear()
    by_pass: dict[str, dict[str, float]] = {}
    for name, time in times.items():
        of_pass, value_text = name.split()
        by_pass.setdefault(of_pass, {})[value_text] = time
    return {"shape": problem.shape, "dtype": dtype_name(problem.dtype), **by_pass}


def _planned(work: Callable[[], Any], plans: dict[Any, Any]) -> Callable[[], Any]:
    def run() -> None:
        engine._plans.clear()
        engine._plans.update(plans)
        work()

    return run


def summary(results: Sequence[dict[str, Any]], in_use: int) -> dict[str, tuple[float, float]]:
    """The geometric mean and the largest of the times with each value over those in use."""
    ratios: dict[str, list[float]] = {}
    for result in results:
        for name in ("forward_ms", "value_and_grad_ms"):
            for value, time in result[name].items():
                ratios.setdefault(value, []).append(time / result[name][str(in_use)])
    return {
        value: (math.exp(sum(map(math.log, all_)) / len(all_)), max(all_))
        for value, all_ in ratios.items()
    }


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune")
    labels = [constant.label for constant in CONSTANTS]
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--constant", nargs="+", choices=labels, default=labels)
    parser.add_argument("--quick", action="store_true", help="two shapes of each constant")
    chosen = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "constants": {}}
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'constant':38} {'value':>9} {'mean':>6} {'worst':>6}")
    for constant in (constant for constant in CONSTANTS if constant.label in chosen.constant):
        values = sorted({*constant.values, constant.in_use})
        of_constant: list[dict[str, Any]] = []
        for dtype in DTYPES:
            problems = constant.problems(dtype)
            for problem in problems[: QUICK if chosen.quick else None]:
                of_constant.append(measure(constant, problem, problem.draw(0), values))
                torch.cuda.empty_cache()
                print(f"{constant.label} {problem.shape} {dtype}", file=sys.stderr)
        results["constants"][constant.label] = {"in_use": constant.in_use, "times": of_constant}
        chosen.output.write_text(json.dumps(results, indent=2) + "\n")
        for value, (mean, worst) in summary(of_constant, constant.in_use).items():
            mark = "  in use" if value == str(constant.in_use) else ""
            print(f"{constant.label:38} {value:>9} {mean:6.3f} {worst:6.3f}{mark}")


if __name__ == "__main__":
    main()

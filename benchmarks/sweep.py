"""Measure losses over rows at many class counts, strided shapes and lengths; write JSON, draw it.

    python -m benchmarks.sweep --output benchmarks/results/NAME.json [--quick] [--only SECTION …]
        [--dtype DTYPE …] [--peers PEER …] [--classes COUNT …]
    python -m benchmarks.sweep --draw benchmarks/results/NAME.json … PICTURE

Every loss and a sample of its gradients are checked against float64 before they are timed, as
benchmarks/run.py times. Peers that are not installed are left out; where one of them fails or
returns another loss, the result says so. The picture shows times in units of the time of the bytes
(`time_of_bytes`). It is made of one result file or several; with one of `benchmarks.run --only
orders` it shows the orders too. Measuring needs no matplotlib, drawing no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cupy_losses._commands.peers import message

from . import picture, rows
from .measure import (
    Works,
    environment,
    forward_works,
    in_turn,
    milliseconds,
    ratios,
    release_memory,
)

LOGITS = 1 << 27
POWERS_OF_TWO = [1 << exponent for exponent in range(1, 19)]
# Digits, CIFAR, Cityscapes, Pascal VOC, COCO, Food, ADE20K, Places, ImageNet; vocabularies.
OF_DATA_SETS = [10, 19, 21, 80, 91, 100, 101, 150, 365, 1000, 21841]
OF_MODELS = [32000, 50257, 128256, 151936]
ODD = [3, 5, 7, 17, 33, 257, 333, 1001, 2049, 8191, 10000, 100003]
SMALL_MULTIPLES = [6, 12, 14, 20, 24, 40, 48, 60, 96, 120, 160, 200, 300, 768]
NEAR_POWERS = [127, 129, 193, 223, 255]  # of which many threads read the same banks
CLASSES = sorted({*POWERS_OF_TWO, *NEAR_POWERS, *OF_DATA_SETS, *OF_MODELS, *ODD, *SMALL_MULTIPLES})
QUICK_CLASSES = [2, 21, 333, 1000, 32000, 131072]

# (N, C, d...); some of them also with channels last.
STRIDED: list[tuple[rows.Shape, rows.Draw]] = [
    ((8, 21, 1024, 1024), rows.classes),
    ((64, 1000, 64, 64), rows.classes),
    ((64, 1000, 63, 63), rows.classes),
    ((8, 19, 512, 1024), rows.classes),
    ((8, 21, 513, 513), rows.classes),
    ((32, 21, 513, 513), rows.classes),
    ((16, 80, 256, 320), rows.classes),
    ((16, 150, 128, 437), rows.classes),
    ((16, 150, 129, 437), rows.classes),
    ((32, 3, 1024, 1365), rows.classes),
    ((32, 3, 1023, 1365), rows.classes),
    ((1024, 2, 65536), rows.classes),
    ((16, 8, 1024, 1024), rows.classes),
    ((64, 5, 577, 577), rows.classes),
    ((32, 12, 513, 513), rows.classes),
    ((16, 2000, 4096), rows.classes),
    ((64, 1000, 32, 32), rows.classes),
    ((8, 8000, 2048), rows.classes),
    ((65, 32000, 64), rows.classes),
    ((8, 21, 1024, 1024), rows.channels_last),
    ((8, 21, 513, 513), rows.channels_last),
    ((64, 1000, 64, 64), rows.channels_last),
    ((32, 3, 1024, 1365), rows.channels_last),
    ((64, 21, 256, 256), rows.two_orders),
    ((64, 32, 256, 256), rows.two_orders),
    ((64, 128, 128, 128), rows.two_orders),
    ((64, 150, 128, 128), rows.two_orders),
    ((1 << 17, 1000), rows.two_orders),
    ((64, 21, 256, 256), rows.scores_last),
    ((64, 128, 128, 128), rows.scores_last),
    ((64, 150, 128, 128), rows.scores_last),
    ((32, 1000, 64, 64), rows.scores_last),
]
QUICK_STRIDED = STRIDED[:2]
# Those of nll_loss, whose gradients are most of what moves.
NLL_STRIDED = [
    (8, 21, 1024, 1024),
    (8, 21, 1023, 1023),
    (32, 3, 1023, 1365),
    (4, 500, 257, 257),
    (64, 1000, 32, 32),
    (2048, 1000, 7, 7),
    (8, 32000, 512),
]

# Those of cross_entropy with options: classes last, then strided ones.
SHAPES_OF_OPTIONS: list[rows.Shape] = [
    *((LOGITS // count, count) for count in (10, 21, 150, 1000, 32000)),
    (8, 21, 1024, 1024),
    (32, 21, 513, 513),
    (16, 150, 128, 437),
    (64, 1000, 63, 63),
]
QUICK_SHAPES_OF_OPTIONS = SHAPES_OF_OPTIONS[:1]
OPTIONS: list[dict[str, Any]] = [
    {"label": "cross_entropy(label_smoothing=0.1)", "options": {"label_smoothing": 0.1}},
    {"label": "cross_entropy(weight)", "weighted": True},
    {
        "label": "cross_entropy(weight, label_smoothing=0.1)",
        "weighted": True,
        "options": {"label_smoothing": 0.1},
    },
    {"label": "cross_entropy(z_loss=0.0001)", "options": {"z_loss": 1e-4}},
    {"label": "cross_entropy, a third ignored", "draws": rows.some_ignored},
    {"label": "cross_entropy of probabilities", "draws": rows.probabilities},
    {
        "label": "cross_entropy of probabilities(weight, label_smoothing=0.1)",
        "draws": rows.probabilities,
        "weighted": True,
        "options": {"label_smoothing": 0.1},
    },
]

# The elements of a row of other losses.
LENGTHS = [3, 4, 7, 8, 10, 16, 32, 50, 64, 100, 101, 127, 128, 200, 300, 512]
LENGTHS += [1000, 2048, 4096, 10000]
QUICK_LENGTHS = [10, 1000]

DTYPES = ("float32", "bfloat16", "float16")
RUNS = 9
SLOW = 5.0  # milliseconds
SLOW_RUNS = 3
OURS = ("forward", "value_and_grad", "forward_backward")
SECTIONS = ("classes_last", "classes_strided", "row_lengths", "options")
CHECKED = 1 << 20  # logits whose gradients are checked, at both ends and in the middle


def classes_last(classes: int, dtype: str) -> rows.Problem:
    """So many classes next to each other."""
    dtype_ = getattr(torch, dtype)
    return rows.cross_entropy(LOGITS // classes, classes, dtype_, of_quack=True)


def classes_strided(shape: rows.Shape, draws: rows.Draw, dtype: str) -> rows.Problem:
    """Classes along the second axis of several."""
    labels: dict[rows.Draw, str] = {
        rows.channels_last: "cross_entropy, channels_last",
        rows.two_orders: "cross_entropy of probabilities, two memory orders",
        rows.scores_last: "cross_entropy of probabilities, scores last, two memory orders",
    }
    label = labels.get(draws, "")
    return rows.Problem("cross_entropy", shape, getattr(torch, dtype), draws, label=label)


def row_lengths(length: int, dtype: str) -> list[rows.Problem]:
    """Losses other than cross_entropy of classes, over rows so long."""
    shape, dtype_ = (LOGITS // length, length), getattr(torch, dtype)
    smoothed = rows.cross_entropy(
        *shape,
        dtype_,
        options={"label_smoothing": 0.1},
        label="cross_entropy(label_smoothing=0.1)",
    )
    label = "cross_entropy of probabilities"
    return [
        smoothed,
        rows.Problem("cross_entropy", shape, dtype_, rows.probabilities, label=label),
        rows.nll_loss(shape, dtype_),
        rows.Problem("multi_margin_loss", shape, dtype_),
        rows.multilabel_margin_loss(*shape, dtype_),
        rows.Problem("cosine_embedding_loss", shape, dtype_, rows.signs, leaves=2),
        rows.Problem("triplet_margin_loss", shape, dtype_, rows.triplets, leaves=3),
    ]


def with_options(shape: rows.Shape, dtype: str) -> list[rows.Problem]:
    """cross_entropy with each of its options."""
    dtype_ = getattr(torch, dtype)
    return [rows.Problem("cross_entropy", shape, dtype_, **fields) for fields in OPTIONS]


def sections(
    classes: Sequence[int],
    strided: Sequence[tuple[rows.Shape, rows.Draw]],
    nll: Sequence[rows.Shape],
    lengths: Sequence[int],
    of_options: Sequence[rows.Shape],
    dtypes: Sequence[str],
) -> dict[str, list[rows.Problem]]:
    """What is measured."""
    return {
        "classes_last": [classes_last(count, dtype) for dtype in dtypes for count in classes],
        "classes_strided": [
            *(classes_strided(*case, dtype) for dtype in dtypes for case in strided),
            *(rows.nll_loss(shape, getattr(torch, dtype)) for dtype in dtypes for shape in nll),
        ],
        "row_lengths": [
            problem for dtype in dtypes for n in lengths for problem in row_lengths(n, dtype)
        ],
        "options": [
            problem
            for dtype in dtypes
            for shape in of_options
            for problem in with_options(shape, dtype)
        ],
    }


def measure(problem: rows.Problem, operands: list[Any], names: Sequence[str]) -> dict[str, Any]:
    """Check and time a loss and these peers.

    `failures` of the result are the messages of peers that fail, or return another loss.
    """
    error = rows.check(problem, operands, max(1, CHECKED // math.prod(problem.shape[1:])))
    exact = problem.ours(*operands).float()
    peers = rows.peers(problem, names)
    failures: dict[str, str] = {}
    for prefix in [prefix for prefix in peers if prefix]:
        try:
            value = peers[prefix](*operands).float()
            torch.testing.assert_close(value, exact, rtol=0.01, atol=0.0)
        except Exception as failure:  # of others' code: of any kind
            del peers[prefix]
            failures[f"{prefix}forward_ms"] = message(failure)
    works = forward_works(peers, operands)
    works["value_and_grad_ms"] = rows.value_and_grad_work(problem, operands)
    times = timed(works, failures)
    times |= timed(rows.backward_works(problem, peers, operands), failures)
    result = problem.result(operands, error, times)
    return {**result, "ratios": ratios(result), "failures": failures}


def timed(works: Works, failures: dict[str, str]) -> dict[str, float]:
    """The device times of those that do not fail; the slow ones with fewer runs."""
    first: dict[str, float] = {}
    for name, work in works.items():
        try:
            first[name] = milliseconds(work, 1, 1)
        except Exception as failure:
            if name.removesuffix("_ms") in OURS:
                raise
            failures[name] = message(failure)
    quick = {name: works[name] for name, time in first.items() if time <= SLOW}
    slow = [name for name in first if name not in quick]
    return in_turn(quick, RUNS) | {name: milliseconds(works[name], SLOW_RUNS, 0) for name in slow}


def described(result: dict[str, Any], seconds: float) -> str:
    """Times and, in brackets, what they are in units of the time of the bytes."""
    shape = " × ".join(map(str, result["shape"]))
    parts = [f"{result['loss']} {shape} {result['dtype']}, {seconds:.1f} s:"]
    for name, ratio in result["ratios"].items():
        parts.append(f"{name.removesuffix('_ms')} {result[name]:.3f} ms ({ratio:.2f})")
    parts += [f"{name.removesuffix('_ms')} {text}" for name, text in result["failures"].items()]
    return " ".join(parts)


def run(problems: dict[str, list[rows.Problem]], names: Sequence[str], output: Path) -> None:
    """Measure all; the results are written after each."""
    results: dict[str, Any] = {"environment": environment()}
    output.parent.mkdir(parents=True, exist_ok=True)
    for section, of_section in problems.items():
        results[section] = []
        for seed, problem in enumerate(of_section):
            start = time.perf_counter()
            results[section].append(measure(problem, problem.draw(seed), names))
            output.write_text(json.dumps(results, indent=2) + "\n")
            print(described(results[section][-1], time.perf_counter() - start), file=sys.stderr)
            release_memory()


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output", type=Path, help="measure, and write the results here")
    what.add_argument("--draw", type=Path, nargs="+", help="result files, then the picture")
    parser.add_argument("--quick", action="store_true", help="few class counts and shapes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES[:2])
    parser.add_argument("--peers", nargs="*", choices=[*rows.PEERS], default=[*rows.PEERS])
    parser.add_argument("--classes", nargs="+", type=int, help="class counts, in place of the grid")
    return parser


def main() -> None:
    """Measure or draw."""
    options = parser()
    chosen = options.parse_args()
    if chosen.draw:
        *files, drawing = chosen.draw
        if not files:
            options.error("--draw takes result files and the picture to write")
        picture.draw([json.loads(file.read_text()) for file in files], drawing)
        return
    classes = chosen.classes or (QUICK_CLASSES if chosen.quick else CLASSES)
    if not all(1 <= count <= LOGITS for count in classes):
        options.error(f"--classes takes counts from 1 to {LOGITS}")
    strided = QUICK_STRIDED if chosen.quick else STRIDED
    nll = NLL_STRIDED[:1] if chosen.quick else NLL_STRIDED
    lengths = QUICK_LENGTHS if chosen.quick else LENGTHS
    of_options = QUICK_SHAPES_OF_OPTIONS if chosen.quick else SHAPES_OF_OPTIONS
    every = sections(classes, strided, nll, lengths, of_options, chosen.dtype)
    run({section: every[section] for section in chosen.only}, chosen.peers, chosen.output)


if __name__ == "__main__":
    main()

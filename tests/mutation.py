"""Proof that the emulated tests find bugs: plant many, one at a time, and count those found.

    python -m tests.mutation [--sample N] [--seed S] [--write]

The mutants are generated from the kernel files: each rule below changes one place in one line, and
every place it fits gives a mutant. A mutant is found ("killed") when a check of the emulator or a
wrong result stops the battery, a choice of calls that reaches every kernel. Mutants that do not
compile do not count. With --write the outcome goes to docs/mutation.md.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    _cupy,
    _kernels,
    _plan_pointwise,
    grad,
    huber_loss,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
    value_and_grad,
)
from cupy_losses._arrays import resolve
from cupy_losses._evaluate import prepare_of
from cupy_losses._losses import Pass

from . import test_numbers
from .arrays import BFLOAT16
from .emulator import CompileError, Device, installed

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "pointwise.cu",
    "values.cuh",
    "reduce.cuh",
    "layout.cuh",
    "vector.cuh",
    "combinators.cuh",
    "dual.cuh",
    "math.cuh",
    "elementary.cuh",
    "pointwise_losses.cuh",
)

# What to look for in a line of code, what to put there, and a name.
RULES: list[tuple[str, str, str]] = [
    (r"__syncthreads\(\);", ";", "drop a barrier"),
    (r"__threadfence\(\);", ";", "drop a fence"),
    (r"0xffffffffu", "0x7fffffffu", "drop a lane from a mask"),
    (r" < (?=[a-z0-9T(])", " <= ", "< becomes <="),
    (r" <= ", " < ", "<= becomes <"),
    (r" > 0(?=[;)])", " > 1", "> 0 becomes > 1"),
    (r" >= ", " > ", ">= becomes >"),
    (r" == 0\b", " == 1", "== 0 becomes == 1"),
    (r" == ", " != ", "== becomes !="),
    (r" \+ ", " - ", "+ becomes -"),
    (r" - ", " + ", "- becomes +"),
    (r" \* (?!const)", " + ", "* becomes +"),
    (r" / ", " * ", "/ becomes *"),
    (r" % ", " / ", "% becomes /"),
    (r"\+= ", "-= ", "+= becomes -="),
    (r" && ", " || ", "&& becomes ||"),
    (r"\b16\b", "8", "16 becomes 8"),
    (r"\b32\b", "31", "32 becomes 31"),
    (r"= 0(?=[;,])", "= 1", "start at 1"),
    (r"- 1\b", "- 2", "- 1 becomes - 2"),
    (r"\? (\w[\w.()]*) : (\w[\w.()]*);", r"? \2 : \1;", "swap the branches"),
    (r"return;", ";", "drop a return"),
]


# Mutants that are no bugs, by what the changed line becomes, and why.
EQUIVALENT: dict[str, str] = {
    "const long long tiles = (n + Tile::ELEMENTS + 1) / Tile::ELEMENTS;": "an empty tile",
    "for (long long tile = segment; tile <= tiles; tile += segments) {": "an empty tile",
    "if ((tile + 1) * Tile::ELEMENTS < n) {": "a full tile as a partial one: slower",
    "for (int p = 0; p <= Tile::PACKS; ++p) {": "beyond the array in a partial tile",
    "constexpr int WARPS = THREADS / 31;": "the same number for every block size",
    "if (element > n) break;": "a pack of no elements",
    "if (element + Tile::WIDTH < n) {": "the last pack element by element: slower",
    "if (factor == T(1)) ;": "multiplies by one: slower",
    "return (d == DIMS + 1 && (VECTORS >> operand & 1u)) ? 1 : stride[operand][d];": "reads the 1",
    "unsigned pair[W * 2];": "a larger union",
    "static constexpr int TANGENTS = ones_below(DIRECTIONS, 31);": (
        "with the tangents of 32 operands there are more than masks have bits for"
    ),
    "for (; i + WIDTH < n; i += step) {": "the last pack element by element: slower",
    "return x >= floor ? x : x <= floor ? N(floor) : N(plain(x));": "x is not the floor there",
    "return Real<T>(quotient(a.value, variance <= T(1e-12) ? T(1e-12) : variance));": (
        "the same number both ways"
    ),
    "return (of_p <= T(-100) ? T(-100) : of_p) - (of_rest < T(-100) ? T(-100) : of_rest);": (
        "the same number both ways"
    ),
    "return (of_p < T(-100) ? T(-100) : of_p) - (of_rest <= T(-100) ? T(-100) : of_rest);": (
        "the same number both ways"
    ),
    'static_assert(order<P> <= 1, "the exponent of pow must be a parameter or a number");': (
        "what it lets through does not compile either"
    ),
    "const bool below = p <= 0.5f;": "both give the float nearest log(1/2)",
    "const double a = fabs(x), s = sinh(a <= 1.0 ? a : 0.0);": "not used at 1",
}


# Lines on which no result depends, whatever they become.
LAUNCH_BOUNDS = "constexpr int resident_blocks = Layout::DIMS == 1 ? 2 : 1;"


def excuse(mutant: Mutant) -> str:
    """Why a mutant is no bug; "" if it is one."""
    if mutant.before.strip() == LAUNCH_BOUNDS:
        return "launch bounds, which tests/test_static.py checks"
    return EQUIVALENT.get(mutant.after.strip(), "")


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    file: str
    line: int
    rule: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.rule}: `{self.after.strip()}`"


def mutants() -> Iterator[Mutant]:
    """Every rule at every place it fits: in code, not in comments, templates or directives."""
    for file in FILES:
        text = (_kernels.source_folder() / file).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            code = line.split("//")[0]
            if not code.strip() or code.lstrip().startswith(("#", "template", "using", "struct")):
                continue
            for pattern, replacement, rule in RULES:
                for match in re.finditer(pattern, code):
                    after = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                    yield Mutant(file, number, rule, line, after)


# ---- the battery ---------------------------------------------------------------------------------


def close(result: Any, reference: Any) -> None:
    """Raise unless two results agree as far as their dtype and a few roundings allow."""
    got, wanted = (np.asarray(x, np.longdouble) for x in (result.get(), reference))
    unit = (
        4 * 2.0 ** -{"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[result.dtype.name]
    )
    np.testing.assert_allclose(got, wanted, rtol=unit, atol=unit * float(abs(wanted).max()))


def battery(device: Device) -> None:
    """Calls that reach every kernel and every branch of it, compared with the host backend."""
    rng = np.random.default_rng(3)

    def pair(*shape: int, dtype: Any = np.float32) -> list[Any]:
        return [(2 * rng.standard_normal(shape)).astype(dtype) for _ in range(2)]

    def compare(loss: Any, hosts: list[Any], arrays: list[Any] | None = None, **o: Any) -> None:
        arrays = [device.asarray(x) for x in hosts] if arrays is None else arrays
        on_device = {k: device.asarray(v) if isinstance(v, np.ndarray) else v for k, v in o.items()}
        close(loss(*arrays, **on_device), loss(*hosts, **o))
        if o.get("reduction") != "none":
            both = value_and_grad(loss, (0, 1))
            value, gradients = both(*arrays, **on_device)
            reference, expected = both(*hosts, **o)
            close(value, reference)
            for gradient, wanted in zip(gradients, expected, strict=True):
                close(gradient, wanted)

    def compare_target(input: Any, target: Any) -> None:
        got = grad(mse_loss, 1)(device.asarray(input), device.asarray(target), reduction="sum")
        close(got, grad(mse_loss, 1)(input, target, reduction="sum"))

    for size in (1, 5, 2049, 9001):
        compare(smooth_l1_loss, pair(size), beta=0.7)
    compare(l1_loss, pair(100))
    compare(mse_loss, [pair(4099, dtype=np.float16)[0], pair(4099)[1]])
    _exact_division(device)
    for k in (0, 1):
        one = pair(100)
        close(grad(mse_loss, k)(*map(device.asarray, one)), grad(mse_loss, k)(*one))
    compare(mse_loss, pair(9001), weight=rng.random(9001).astype(np.float32))
    signs = np.tile(np.array([1, -1, 0], np.float32), 3000)
    compare(mse_loss, pair(9000), weight=signs)  # weights that add up to 0
    compare(huber_loss, pair(9001), reduction="none", delta=0.6)
    for dtype in (np.float16, BFLOAT16, np.float64):
        compare(huber_loss, pair(4099, dtype=dtype), delta=0.6)
    table = pair(65, 36)
    compare(mse_loss, [table[0], table[1][0].copy()])  # a row: packs that do not cross rows
    compare(mse_loss, [table[0][:, :1].copy(), table[1]], reduction="sum")  # input is broadcast
    compare(mse_loss, [table[0][:, :35], table[1][:, :1]], reduction="sum")  # packs that cross
    compare(smooth_l1_loss, [table[0], np.asarray(table[1][0, 0])], beta=0.7)
    long = pair(3, 9000)
    compare(smooth_l1_loss, [long[0], long[1][:, :1].copy()], beta=0.7)  # sums in two stages
    # Large terms that cancel: what remains was kept as a rounding error. By lanes, by blocks.
    terms = np.tile(np.array([1e8, 1.25, -1e8, 0.5], np.float32), 512)
    for columns in (np.repeat(terms[:, None], 3, axis=1), np.repeat(terms[None], 3, axis=0)):
        repeated = columns[:1] * 0 if columns.shape[1] == 3 else columns[:, :1] * 0
        compare_target(columns, repeated)
    odd = pair(515)
    shifted = [device.asarray(x, misalignment=4 * k) for k, x in enumerate(odd, 1)]
    compare(mse_loss, odd, shifted)
    _backward_passes(device, pair(33, 20))
    _scale(device)
    where = rng.random(9001) < 0.6
    broken = [np.where(where, x, np.float32(np.nan)) for x in pair(9001)]
    compare(mse_loss, broken, where=where)
    compare(huber_loss, broken, where=where, weight=rng.random(9001).astype(np.float32), delta=0.6)
    compare(mse_loss, pair(100), where=np.zeros(100, bool))
    kernels = test_numbers.module()
    for which in range(len(test_numbers.EXPRESSIONS)):
        test_numbers.check_derivatives(kernels, which)
    for (case, x), real in itertools.product(test_numbers.EDGES, ("float", "double")):
        test_numbers.check_edge(kernels, case, x, real)
    test_numbers.check_seam(kernels)
    test_numbers.check_overflow(kernels)
    test_numbers.check_sums(kernels)
    for case, real in itertools.product(test_numbers.CASES, ("float", "double")):
        test_numbers.check_formula(kernels, case, real)


def _backward_passes(device: Device, hosts: list[Any]) -> None:
    rng = np.random.default_rng(4)
    grad_output = np.asarray(1.7, np.float32)
    tangents = [rng.standard_normal(host.shape).astype(np.float32) for host in hosts]
    hosts[0][:, 0] = hosts[1][:, 0] + [0.75, -0.75, 0] * 11  # the kinks
    chained = Pass(values=False, wanted=(0, 1), chained=True, directions=(0, 1))
    for loss, options, todo, extra in (
        (
            smooth_l1_loss,
            {"beta": 0.75},
            Pass(values=False, wanted=(0, 1), chained=True),
            [grad_output],
        ),
        (smooth_l1_loss, {"beta": 0.75}, Pass(directions=(0, 1)), tangents),
        (smooth_l1_loss, {"beta": 0.75}, Pass(directions=(0,)), tangents[:1]),
        (smooth_l1_loss, {"beta": 0.75}, Pass(directions=(1,)), tangents[1:]),
        (smooth_l1_loss, {"beta": 0.75}, chained, [grad_output, *tangents]),
        (huber_loss, {"delta": 0.75}, chained, [grad_output, *tangents]),
    ):
        call, _ = prepare_of(loss)(*hosts, **options)
        references = resolve(call, hosts)[0].run(call, todo, (*extra, *hosts))
        arrays = [device.asarray(x) for x in (*extra, *hosts)]
        results = resolve(call, arrays[-2:])[0].run(call, todo, arrays)
        for result, reference in zip(results, references, strict=True):
            close(result, reference)


def _exact_division(device: Device) -> None:
    """A gradient whose only rounding is the division by N has almost no error."""
    host = np.arange(-500, 500, dtype=np.float32)
    zeros = np.zeros_like(host)
    got = grad(mse_loss)(device.asarray(host), device.asarray(zeros)).get()
    assert np.mean(got == (2 * host.astype(np.float64) / host.size).astype(np.float32)) > 0.99


def _scale(device: Device) -> None:
    host = np.random.default_rng(5).standard_normal(4101).astype(np.float32)
    for factor in (1.0, 2.5):
        gradient = device.asarray(host, writable=True)
        scalar = device.asarray(np.asarray(factor, np.float32))
        launch = _plan_pointwise.scale_launch("float32", "float32", host.size, 0)
        launch(0, gradient.data.ptr, scalar.data.ptr)
        close(gradient, factor * host)


# ---- running -------------------------------------------------------------------------------------


def mutated(name: str, mutant: Mutant) -> str:
    """The source of a kernel file with one line changed."""
    lines = _kernels.source(name).splitlines()
    file, number = "", 0
    for index, line in enumerate(lines):
        directive = re.match(r'#line (\d+) "(.+)"', line)
        if directive:
            file, number = directive[2], int(directive[1]) - 1
            continue
        number += 1
        if (file, number) == (mutant.file, mutant.line):
            assert line == mutant.before
            lines[index] = mutant.after
    return "\n".join(lines) + "\n"


def outcome(mutant: Mutant) -> str:
    """ "found: …", "survived" or "does not compile"."""
    texts = {"pointwise.cu": mutated("pointwise.cu", mutant)}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(_kernels, "source", texts.__getitem__)
        try:
            for seed in (1, 2):
                with installed(seed=seed, multiprocessors=2, concurrent=3) as device:
                    battery(device)
        except (CompileError, _cupy.CompileError):
            return "does not compile"
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return f"found: {type(error).__name__} {(lines[1:] or lines)[0].strip()[:100]}"
    return "survived"


def outcome_in_time(mutant: Mutant, seconds: float = 300) -> str:
    """The outcome in a process of its own, which an endless loop does not outlast."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(outcome(mutant)))
    process.start()
    try:
        if receiver.poll(seconds):
            return str(receiver.recv())
        return "found: it hangs"
    except EOFError:
        return "found: it crashes"
    finally:
        process.kill()
        process.join()


def run(chosen: list[Mutant]) -> dict[Mutant, str]:
    """The outcome of each mutant."""
    results = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, result in zip(chosen, pool.map(outcome_in_time, chosen), strict=True):
            results[mutant] = result
            print(f"{result[:60]:60} {mutant}", flush=True)
    return results


def main() -> int:
    """Run and report; 1 if less than 95% of what is a bug was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="a random choice of this many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write docs/mutation.md")
    arguments = parser.parse_args()
    chosen = list(mutants())
    total = len(chosen)
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, total))
    results = run(chosen)
    counts = Counter(result.split(":")[0] for result in results.values())
    alive = [mutant for mutant, result in results.items() if result == "survived"]
    survivors = [mutant for mutant in alive if not excuse(mutant)]
    print(f"{total} mutants, {len(chosen)} run: {dict(counts)}; no excuse for {len(survivors)}:")
    print(*survivors, sep="\n")
    if arguments.write:
        (ROOT / "docs" / "mutation.md").write_text(report(total, counts, alive))
    killable = counts["found"] + len(survivors)
    return 0 if counts["found"] >= 0.95 * killable else 1


def report(total: int, counts: Counter[str], alive: list[Mutant]) -> str:
    """The page."""
    equivalent = [mutant for mutant in alive if excuse(mutant)]
    survivors = [mutant for mutant in alive if mutant not in equivalent]
    killable = counts["found"] + len(survivors)
    lines = [
        "# Mutation run",
        "",
        "Written by `python -m tests.mutation --write`: bugs planted one at a time in the kernel",
        "files, by the rules of tests/mutation.py, and run through a battery of emulated calls.",
        "",
        f"{total} mutants are generated, {sum(counts.values())} were run. "
        f"{counts['does not compile']} do not compile, {len(equivalent)} are no bugs; of the other "
        f"{killable}, {counts['found']} are found: {100 * counts['found'] / killable:.1f}%.",
        "",
        "## Not found",
        "",
        *(f"- {mutant}" for mutant in survivors),
        "",
        "## No bugs",
        "",
        *(f"- {mutant}: {excuse(mutant)}" for mutant in equivalent),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

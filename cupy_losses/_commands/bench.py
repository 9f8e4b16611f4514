"""How fast losses are on this machine, beside what else computes them there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from .._core.dtypes import FLOATING
from .._core.rows import RowFormula
from .._core.shapes import Shape
from . import backends, bandwidth, losses, operands, peers, picture, progress, synthetic
from .command import Command
from .comparison import LIMITS, Comparison, Result, Series, steps
from .environment import caption, environment
from .problem import Problem
from .report import as_json, in_column, print_table

DEFAULT = ("mse_loss", "cross_entropy")

# The sizes where none are given: elements, and the elements of rows beside those of all of them.
ELEMENTS = [1 << exponent for exponent in range(20, 29, 2)]
ROWS = 1 << 27, (10, 100, 1000, 10_000, 32_000, 128_256)
ELEMENTS_ON_HOST = [1 << exponent for exponent in range(10, 23, 3)]
ROWS_ON_HOST = 1 << 20, (10, 100, 1000, 10_000)


@click.command("bench", cls=Command, short_help="Measure losses on this machine.")
@click.argument("names", metavar="[LOSS]...", nargs=-1, type=losses.Name())
@click.option(
    "--elements",
    "shapes",
    multiple=True,
    metavar="SHAPE",
    help="The shape of the operands; for losses over classes, that of the logits, such as "
    "8192x32000; again for more.  [default: several sizes]",
)
@click.option("--dtype", type=click.Choice(FLOATING), default="float32", show_default=True)
@click.option("--no-gradient", "forward_only", is_flag=True, help="Measure the loss alone.")
@click.option(
    "--peer",
    "chosen",
    multiple=True,
    type=click.Choice([*peers.PEERS], case_sensitive=False),
    help="What to compare with; again for more.  [default: all]",
)
@backends.option
@click.option("--plot", metavar="FILE", help="Draw the bandwidth to a .png or a .svg file.")
@click.option("--json", "to_json", is_flag=True, help="Print JSON.")
def command(
    names: Sequence[str],
    shapes: Sequence[str],
    dtype: str,
    forward_only: bool,
    chosen: Sequence[str],
    backend: str | None,
    plot: str | None,
    to_json: bool,
) -> None:
    """Measure losses on this machine beside what else computes them there.

    Each result is checked against float64 before it is timed. On a GPU the times are of the device,
    with a cache that holds no operands; on the host, of one thread. The bandwidth is that of the
    bytes that must be moved. The limit is that of a sum over as many bytes and, with the gradient,
    of a copy of as many, by NumPy or CuPy.

    Without LOSS these are mse_loss and cross_entropy.
    """
    if plot is not None:
        picture.check_output("--plot", Path(plot))
    operands.check_dtype(dtype)
    xp, place, reason = backends.choose(backend)
    given = [*dict.fromkeys(synthetic.shape_of(text) for text in shapes)]
    problems = [
        problem
        for name in dict.fromkeys(names or DEFAULT)
        for problem in _problems(losses.find(name), given, dtype, xp)
    ]
    measured = [peers.OURS, *dict.fromkeys(chosen or peers.PEERS)]
    compared = _compare(problems, xp, measured, not forward_only)
    facts = environment(xp)
    if to_json:
        click.echo(as_json(_report(compared, facts, place, reason)))
    else:
        click.echo(f"backend: {place} ({reason})")
        _print(compared)
    if plot is not None:  # at last: where it cannot be written, the numbers are there
        drawn = bandwidth.draw(compared, caption(facts), Path(plot).suffix[1:])
        picture.write(plot, drawn)
        click.echo(f"wrote {plot}", err=to_json)


def _problems(
    function: losses.NamedLoss, given: Sequence[Shape], dtype: str, xp: Any
) -> list[Problem]:
    """Those of the given shapes, or of the default ones that this machine has the memory for."""
    available = synthetic.memory(xp)
    if not given:
        every = (Problem(function, shape, dtype) for shape in _shapes(function, xp))
        fitting = (_fitting(problem, available) for problem in every)
        return [*{problem.shape: problem for problem in fitting}.values()]
    problems = [Problem(function, shape, dtype) for shape in given]
    for problem in problems:
        if problem.memory > available:
            raise click.UsageError(
                f"{problem} takes {problem.memory / 2**30:.3g} GiB to measure, there are "
                f"{available / 2**30:.3g} GiB of memory"
            )
    return problems


def _fitting(problem: Problem, available: int) -> Problem:
    """The problem, or one of fewer elements that there is the memory for."""
    length, *others = problem.shape
    while length > 1 and problem.memory > available:
        length //= 2
        problem = dataclasses.replace(problem, shape=(length, *others))
    return problem


def _shapes(function: losses.NamedLoss, xp: Any) -> list[Shape]:
    """Those that are measured where none are given."""
    if isinstance(function.loss, RowFormula):
        elements, lengths = ROWS_ON_HOST if xp is np else ROWS
        return [(elements // length, length) for length in lengths]
    return [(elements,) for elements in (ELEMENTS_ON_HOST if xp is np else ELEMENTS)]


def _compare(
    problems: Sequence[Problem], xp: Any, names: Sequence[str], gradient: bool
) -> Comparison:
    compared = Comparison()
    of_torch = xp is np and "torch" in names
    threads = peers.on_one_thread() if of_torch else contextlib.nullcontext()
    with progress.shown(len(problems) * steps(names)) as line, threads:
        for problem in problems:
            compared.add(problem, xp, names, gradient, line.step)
            if xp is not np:
                peers.free_memory()
    return compared


def _report(compared: Comparison, facts: dict[str, Any], place: str, reason: str) -> dict[str, Any]:
    return {
        "environment": facts,
        "backend": place,
        "reason": reason,
        "results": [result._asdict() for result in compared.results],
        "limits": [result._asdict() for result in compared.limits],
        "left_out": [
            {"peer": peer, "losses": of, "reason": reason}
            for (peer, reason), of in compared.reasons().items()
        ],
    }


def _print(compared: Comparison) -> None:
    """A table for each loss without gradients and with them; then what is not in them."""
    for series in compared.series():
        click.echo(f"\n{series}")
        columns = ["shape", *(f"{peer} ms" for peer in series.peers), "GB/s", "limit GB/s"]
        print_table(columns, [*zip(*_columns(series), strict=True)])
    read, moved = LIMITS
    click.echo(
        f"\nGB/s is the bandwidth of {peers.OURS}. The limit is that of {read} over as many bytes, "
        f"and with the gradient that of {moved} of as many."
    )
    for result in compared.results:
        if result.failure is not None:
            with_gradient = " with its gradient" if result.gradient else ""
            what = f"{result.loss} {_shape(result)}{with_gradient}"
            click.echo(f"{result.peer}, {what}: {result.failure}")
    for (peer, reason), of in compared.reasons().items():
        click.echo(f"{peer} is not measured of {', '.join(of)}: {reason}")


def _columns(series: Series) -> list[list[str]]:
    """The sizes, the times of each, and the bandwidths."""
    limits = series.limits
    of_peers = [[series.of(peer, limit.shape) for limit in limits] for peer in series.peers]
    own = [series.of(peers.OURS, limit.shape) for limit in limits]
    assert None not in own  # this package has every loss
    return [
        [_shape(limit) for limit in limits],
        *(_cells(results, "milliseconds") for results in of_peers),
        _cells(own, "gb_per_s"),
        _cells(limits, "gb_per_s"),
    ]


def _cells(results: Sequence[Result | None], name: str) -> list[str]:
    """A number of each, or the kind of failure."""
    numbers = [getattr(result, name, None) for result in results]
    texts = iter(in_column([number for number in numbers if number is not None]))
    failures = [(getattr(result, "failure", "") or "").partition(":")[0] for result in results]
    return [
        failure if number is None else next(texts)
        for number, failure in zip(numbers, failures, strict=True)
    ]


def _shape(result: Result) -> str:
    return " × ".join(map(str, result.shape))

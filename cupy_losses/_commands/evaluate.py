"""The main job: losses and gradients of real predictions, with their error and speed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._core.arguments import one_of
from .._core.dtypes import FLOATING, dtype_name
from . import backends, files, gradients, losses, operands, progress
from .command import Command
from .evaluation import EvaluatedLoss
from .measurement import Row, measured
from .report import as_json, in_column, print_table


class _Evaluate(Command):
    """Says how a parameter and a loss are given, where they are as `plot` takes them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if not any(name in losses.find(loss).parameters for loss in losses.names()):
                raise
            message = f"no option {error.option_name}: write --parameter {name}=VALUE"
            raise click.UsageError(message, ctx) from None
        except click.UsageError as error:
            extra = re.search(r"unexpected extra arguments? \((.*)\)", error.message)
            named = [word for word in extra[1].split() if word in losses.names()] if extra else []
            if not named:
                raise
            raise click.UsageError(f"{error.message}: write --loss {named[0]}", ctx) from None


# Those to one number, which is what is shown.
_REDUCTIONS = ("mean", "sum", "batchmean")


@click.command("evaluate", cls=_Evaluate)
@losses.option(default=", ".join(operands.OF_DIABETES))
@losses.parameter_option
@click.option("--reduction", type=click.Choice(_REDUCTIONS), default="mean", show_default=True)
@click.option("--prediction", metavar="FILE", help="The first operand of the loss.")
@click.option("--target", metavar="FILE", help="The operand `target`.")
@click.option(
    "--operand", "named", multiple=True, metavar="NAME=FILE", help="Any other, such as var=v.npy."
)
@click.option("--weight", metavar="FILE", help="The weight of each element or class.")
@click.option("--where", metavar="FILE", help="A mask of true and false, or 1 and 0: what counts.")
@click.option("--sample-weight", metavar="FILE", help="The weight of each row.")
@click.option("--elements", metavar="SHAPE", help="Random operands, such as 32768x32768.")
@click.option(
    "--dtype",
    type=click.Choice(FLOATING),
    help="Convert to this first, .npy files to temporary ones; indices stay as they are.",
)
@click.option(
    "--gradient",
    metavar="FILE",
    help="Save the gradient: by the first operand to a .npy file, by all to a .npz file.",
)
@backends.option
@click.option(
    "--json",
    "to_json",
    is_flag=True,
    help='Print JSON, with "NaN", "Infinity" and "-Infinity" as strings.',
)
def command(
    names: Sequence[str],
    parameters: Sequence[str],
    reduction: str,
    prediction: str | None,
    target: str | None,
    named: Sequence[str],
    weight: str | None,
    where: str | None,
    sample_weight: str | None,
    elements: str | None,
    dtype: str | None,
    gradient: str | None,
    backend: str | None,
    to_json: bool,
) -> None:
    """Compute losses and their gradients.

    FILE is a .npy file, a .npz file (FILE.npz:KEY where it has several arrays), a .csv file, with a
    line of names or without, where an empty field is NaN, or a .parquet file (needs pyarrow).
    FILE.csv:COLUMN and FILE.parquet:COLUMN are one column, FILE.csv:A,B two side by side. A first
    column without a name, the index that pandas writes, is left out.

    Without --dtype, operands have the dtype of their files. What is read of a .csv file has an
    integer dtype if every number is written without a decimal point and no field is empty, else
    float64. The result has the dtype to which those of the floating operands promote.
    NumPy computes it in float64, a GPU in float32, or in float64 where the result is float64.

    On the host, .npy files may be larger than memory: they are mapped, and the loss and its
    gradients are computed in parts, with the bits of one piece. A row of a loss over rows is one
    part at least, and the gradient by an operand that is broadcast is in memory as a whole.

    The errors are those against the formula of the host in float64, relative to it: on NumPy that
    is the rounding of the result alone. |gradient| is the norm of the gradient by the first operand
    that has one, the root of its sum of squares; its error is the largest one of an element,
    relative to the largest element. Given no operands, it predicts the progression of diabetes by
    least squares.
    """
    functions = [losses.find(name) for name in names or operands.OF_DIABETES]
    for function in functions:
        allowed = [choice for choice in _REDUCTIONS if choice in function.loss.reductions]
        if reduction not in allowed:
            raise click.UsageError(f"--reduction must be {one_of(allowed)} for {function.name}")
    hyper = losses.pairs(parameters)
    by_name = {"weight": weight, "where": where, "sample_weight": sample_weight}
    for name, _ in hyper:
        if name in ("reduction", *by_name):
            own = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{name} is no parameter, but the option {own}")
    given = operands.Given(prediction, target, named, by_name, elements, dtype)
    if gradient is not None:
        _check_gradient(gradient, functions, given.files)
    xp, place, reason = backends.choose(backend)
    found = operands.Operands(given, xp)
    rows: list[Row] = []
    with progress.shown() as line:
        for function in functions:
            line.say(f"{function.name}: operands")
            arguments = function.arguments(hyper, reduction)
            arrays = found.of(function, arguments)
            ignored = {**function.parameters, **arguments}.get("ignore_index")
            with files.mistakes_in_files(given.files, ignored):
                evaluated = EvaluatedLoss(function, arrays, arguments)
                if gradient is not None:
                    gradients.check(gradient, evaluated)
                rows.append(measured(function.name, evaluated, line))
            if gradient is not None:
                line.say(gradient)
                gradients.save(gradient, evaluated, line)
    first = arrays[function.arrays[0]]
    report = {
        "data": operands.source(given),
        "shape": list(first.shape),
        "dtype": dtype_name(first.dtype),
        "backend": place,
        "reason": reason,
        "reduction": reduction,
        "losses": [row._asdict() for row in rows],
    }
    if to_json:
        click.echo(as_json(report))
    else:
        _print(report, rows)


def _check_gradient(
    gradient: str, functions: Sequence[losses.NamedLoss], given: Sequence[str]
) -> None:
    if len(functions) > 1:
        raise click.UsageError("--gradient is of one loss: choose it by --loss")
    if not gradient.endswith((".npy", ".npz")):
        raise click.UsageError(f"--gradient must be a .npy or a .npz file, got {gradient}")
    if not Path(gradient).absolute().parent.is_dir():
        raise click.UsageError(f"--gradient: there is no folder {Path(gradient).parent}")
    for location in given:
        if files.is_file_of(location, gradient):
            raise click.UsageError(f"--gradient {gradient} would overwrite the operand {location}")


def _print(report: dict[str, Any], rows: Sequence[Row]) -> None:
    shape = " × ".join(map(str, report["shape"])) or "one number"
    click.echo(f"{report['data']}: {shape}, {report['dtype']}")
    click.echo(f"backend: {report['backend']} ({report['reason']})\n")
    print_table(
        (
            "loss",
            report["reduction"],
            "error",
            "|gradient|",
            "error",
            "forward ms",
            "GB/s",
            "with gradient ms",
            "GB/s",
        ),
        [
            *zip(
                [row.loss for row in rows],
                in_column([row.value for row in rows], 6),
                [f"{row.error:.1e}" for row in rows],
                in_column([row.gradient_norm for row in rows]),
                [f"{row.gradient_error:.1e}" for row in rows],
                in_column([row.forward_ms for row in rows]),
                in_column([row.forward_gb_per_s for row in rows]),
                in_column([row.gradient_ms for row in rows]),
                in_column([row.gradient_gb_per_s for row in rows]),
                strict=True,
            )
        ],
    )

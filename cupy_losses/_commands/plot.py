"""A picture of a loss: its value and its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from . import losses, picture
from .command import Command
from .curves import curves_of


@click.command("plot", cls=Command, short_help="Draw a loss and its derivative.")
@click.argument("name", metavar="LOSS", type=losses.Name())
@click.option(
    "--output", metavar="FILE", help="A .png or a .svg file.  [default: LOSS.png, in this folder]"
)
@losses.parameter_options
def command(name: str, output: str | None, **parameters: Sequence[str]) -> None:
    """Draw a loss and its derivative over the prediction, for fixed targets.

    Both are computed by the loss itself, on NumPy. The picture has no background: its colours can
    be told apart on white and on black.
    """
    file = Path(f"{name}.png" if output is None else output)
    picture.check_output("--output", file)
    function = losses.find(name)
    given = [(key, value) for key, values in parameters.items() for value in values]
    arguments = function.arguments(given, "none", function.of_each)
    title = f"{name}({', '.join(map('='.join, given))})" if given else name
    picture.write(str(file), picture.draw(title, curves_of(function, arguments), file.suffix[1:]))
    click.echo(f"wrote {file}")

"""A picture of a loss: its value and its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from . import losses, picture
from .curves import curves_of


@click.command("plot")
@click.argument("name", metavar="LOSS", type=click.Choice(losses.names()))
@losses.parameter_option
@click.option(
    "--output", metavar="FILE", help="A .png or a .svg file.  [default: LOSS.png, in this folder]"
)
def command(name: str, parameters: Sequence[str], output: str | None) -> None:
    """Draw a loss and its derivative over the prediction, for fixed targets.

    Both are computed by the loss itself, on NumPy. The picture has no background: its colours can
    be told apart on white and on black.
    """
    file = Path(output or f"{name}.png")
    _check_output(file)
    function = losses.find(name)
    arguments = function.arguments(parameters, "none")
    title = f"{name}({', '.join(parameters)})" if parameters else name
    try:
        drawn = picture.draw(title, curves_of(function, arguments), file.suffix[1:])
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise click.ClickException("plot needs matplotlib: pip install cupy-losses[plot]") from None
    file.write_bytes(drawn)
    click.echo(file)


def _check_output(file: Path) -> None:
    """Raise before anything is computed for a file that cannot be written."""
    if file.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--output must be a .png or a .svg file, got {file}")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"--output: there is no folder {file.parent}")

"""The picture of a loss: its value on the left, its derivative on the right.

The background is transparent, and text is a grey of the same contrast to white and to black. The
two colours are those of Okabe and Ito's palette that differ most for colour-blind eyes, a little
lighter, and the curves differ in their dashes too.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from .curves import Curves
from .output import replacing

GREY = "#7b7b7b"
STYLES = (("#2b8ccf", "-"), ("#df7010", "--"))
SIZE = (8.0, 3.0)  # inches
# The same text makes the same file: identifiers in an SVG come from this salt.
SETTINGS: Any = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "cupy_losses",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
# Dates and versions would make another file of the same picture.
METADATA = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}


def check_output(option: str, file: Path) -> None:
    """Raise before anything is computed for a picture that cannot be drawn or written."""
    if file.suffix[1:] not in METADATA:
        raise click.UsageError(f"{option} must be a .png or a .svg file, got {file}")
    if not file.absolute().parent.is_dir():
        raise click.UsageError(f"{option}: there is no folder {file.parent}")
    if file.is_dir():
        raise click.UsageError(f"{option}: {file} is a folder")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        message = 'pictures need matplotlib: pip install "cupy-losses[plot]"'
        raise click.ClickException(message) from None


def write(file: str, drawn: bytes) -> None:
    """Write a picture, over another one when all of it is there."""
    with replacing(file) as own:
        Path(own).write_bytes(drawn)


def rendered(size: tuple[float, float], kind: str, fill: Callable[[Any], None]) -> bytes:
    """The file, "png" or "svg", of a figure of some inches that is filled; the same every time."""
    import matplotlib
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=size, layout="constrained")
        fill(figure)
        figure.savefig(file, format=kind, dpi=150, transparent=True, metadata=METADATA[kind])
    return file.getvalue()


def draw(title: str, curves: Curves, kind: str) -> bytes:
    """The picture of a loss as a file, "png" or "svg"."""

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        figure.suptitle(title, fontfamily="DejaVu Sans Mono")
        _panel(panels[0], curves, [curve.values for curve in curves.curves], "loss")
        _panel(panels[1], curves, [curve.derivatives for curve in curves.curves], "derivative")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)

    return rendered(SIZE, kind, fill)


def _panel(axes: Any, curves: Curves, lines: Sequence[Any], name: str) -> None:
    for number, (curve, line) in enumerate(zip(curves.curves, lines, strict=True)):
        colour, dashes = STYLES[number % len(STYLES)]
        axes.plot(curves.points, line, dashes, color=colour, linewidth=2, label=curve.label)
    axes.set_title(name, fontsize="medium")
    axes.set_xlabel(curves.axis)
    axes.set_xlim(curves.points[0], curves.points[-1])
    axes.set_ylim(*_limits(np.concatenate(lines)))
    axes.grid(visible=True, color=GREY, alpha=0.25)


def _limits(values: Any) -> tuple[float, float]:
    """All values, unless a few at a pole would leave nothing to see of the others."""
    finite = values[np.isfinite(values)]
    low, high = finite.min(), finite.max()
    most_low, most_high = np.quantile(finite, (0.05, 0.95))
    if high - low > 4.0 * (most_high - most_low) > 0.0:
        low, high = most_low, most_high
    margin = 0.05 * (high - low) or 1.0
    return float(low - margin), float(high + margin)

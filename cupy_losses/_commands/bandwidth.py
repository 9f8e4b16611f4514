"""The picture of a comparison: the bandwidth over the size, a line a peer.

A row of panels a loss: the loss alone on the left, with its gradient on the right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._core.rows import RowFormula
from .comparison import Comparison, Result, Series
from .losses import find
from .peers import OURS
from .picture import GREY, STYLES, rendered

WIDTH, HEIGHT = 5.0, 3.6  # inches of a panel
# Colour, dashes and marker of each line; those of a picture of a loss, and three more like them.
LINES = {
    OURS: (*STYLES[0], "o"),
    "plain": (*STYLES[1], "s"),
    "torch": ("#0f9d6e", "-.", "^"),
    "torch.compile": ("#c45d99", ":", "v"),
    "Liger-Kernel": ("#8a78e0", "--", "D"),
    "QuACK": ("#a38414", "-.", "P"),
}


def draw(compared: Comparison, caption: str, kind: str) -> bytes:
    """The picture as a file, "png" or "svg"."""
    losses = [*dict.fromkeys(limit.loss for limit in compared.limits)]
    columns = 1 + any(limit.gradient for limit in compared.limits)
    size = (columns * WIDTH, len(losses) * HEIGHT + 1.0)
    return rendered(size, kind, lambda figure: fill(figure, compared, caption))


def fill(figure: Any, compared: Comparison, caption: str) -> None:
    """Draw all panels, what the lines are, and what was measured with what."""
    series = compared.series()
    columns = 1 + any(one.limits[0].gradient for one in series)
    panels = figure.subplots(len(series) // columns, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, one in zip(panels.flat, series, strict=True):
        _panel(axes, one, handles)
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    figure.supxlabel(caption, fontsize="small")


def _panel(axes: Any, series: Series, handles: dict[str, Any]) -> None:
    for peer in series.peers:
        colour, dashes, marker = LINES[peer]
        found = [result for result in series.results if result.peer == peer and not result.failure]
        style = {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 4}
        (handle,) = axes.plot(*_points(found), **style)
        handles.setdefault(peer, handle)
    what = f"limit: {series.limits[0].peer} of as many bytes"
    style = {"color": GREY, "linewidth": 1}
    (handles[what],) = axes.plot(*_points(series.limits), **style, label=what)
    axes.set_title(str(series), fontsize="medium")
    axes.set_xscale("log")
    axes.set_xlabel(_axis(series.limits[0]))
    axes.set_ylabel("bytes that must be moved / time, GB/s")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, color=GREY, alpha=0.25)


def _points(results: Sequence[Result]) -> tuple[list[int], list[float]]:
    """The sizes, in order, and the bandwidths."""
    found = [(_size(result), result.gb_per_s or 0.0) for result in results]
    found.sort()
    return [size for size, _ in found], [bandwidth for _, bandwidth in found]


def _size(result: Result) -> int:
    return math.prod(result.shape) if result.row is None else result.row


def _axis(result: Result) -> str:
    """What the sizes are."""
    if result.row is None:
        return "elements"
    loss = find(result.loss).loss
    return "classes" if isinstance(loss, RowFormula) and loss.classes else "elements of a row"

"""The picture of a sweep: times over the time of the bytes; see sweep.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .measure import ratios

PASSES = ("forward", "with gradient")
# Their times in each pass, how they are called, colour and line.
SERIES = [
    (("forward_ms", "value_and_grad_ms"), "cupy_losses", "C0", "-"),
    (("", "forward_backward_ms"), "cupy_losses through autograd", "C0", ":"),
    (("eager_forward_ms", "eager_forward_backward_ms"), "torch", "C1", "-"),
    (("compiled_forward_ms", "compiled_forward_backward_ms"), "torch.compile", "C2", "-"),
    (("liger_forward_ms", "liger_forward_backward_ms"), "Liger-Kernel", "C3", "-"),
    (("quack_forward_ms", "quack_forward_backward_ms"), "QuACK", "C4", "-"),
]
TICKS = [digit * 10.0**exponent for exponent in range(-1, 5) for digit in (1, 2, 5)]
SHORT = 0.35  # inches of a shape
OF_LOSSES = ("k", "C5", "C6", "C7", "C8", "C9", "darkblue")  # no colours of SERIES


def source(results: Sequence[dict[str, Any]]) -> str:
    """Where the numbers are from."""
    dates: dict[str, list[str]] = {}
    for e in (result["environment"] for result in results):
        line = f"{e['gpu']}, driver {e['driver']}, CUDA {e['cuda']}, CuPy {e['cupy']}, "
        line += f"torch {e['torch']}"
        for package in ("liger-kernel", "quack-kernels"):
            line += f", {package} {e[package]}" if e.get(package) else ""
        dates.setdefault(line, []).append(e["date"])
    return "\n".join(f"{line}, {' and '.join(sorted(set(of)))}" for line, of in dates.items())


def by_length(results: Sequence[dict[str, Any]], section: str, dtype: str) -> list[dict[str, Any]]:
    """The results of a section and a dtype, by the class count or the length of a row."""
    found = [row for result in results for row in result.get(section, ())]
    of_dtype = [row for row in found if row["dtype"] == dtype]
    return sorted(of_dtype, key=lambda row: int(row["shape"][-1]))


def shapes(results: Sequence[dict[str, Any]], dtype: str) -> list[dict[str, Any]]:
    """Those of strided shapes, and those of memory orders that `benchmarks.run` measured."""
    found = []
    for result in results:
        found += result.get("classes_strided", ())
        for row in result.get("orders", ()):
            # Input, target and one gradient.
            of_three = {"gradient_bytes": 1.5 * row["forward_bytes"], **row}
            found.append({"loss": f"mse_loss, {row['orders']}", **of_three})
    return [row for row in found if row["dtype"] == dtype]


def points(rows: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """The number of each row that has a time, and its ratio to the time of the bytes."""
    found = [(k, ratios(row).get(name)) for k, row in enumerate(rows)]
    return [(k, ratio) for k, ratio in found if ratio is not None]


def span(rows: Sequence[dict[str, Any]], drawn: Sequence[Any] = SERIES) -> tuple[float, float]:
    """The limits of an axis for the ratios of these rows; 1 and 2 are within."""
    names = {name for series in drawn for name in series[0]}
    found = [ratio for name in names for _, ratio in points(rows, name)]
    return min(0.9, *(0.95 * ratio for ratio in found)), max(2.1, *(1.1 * x for x in found))


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the results of one file or several."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error
    sections = ("classes_last", "row_lengths", "classes_strided", "orders")
    dtypes = dict.fromkeys(
        row["dtype"] for result in results for name in sections for row in result.get(name, ())
    )
    parts: list[tuple[Any, str, list[dict[str, Any]], float, str]] = []
    for kind, subject, section, height in (
        (_lines, "cross_entropy, classes last", "classes_last", 4.0),
        (_losses, "losses over rows", "row_lengths", 5.0),
    ):
        of_section = [(dtype, by_length(results, section, dtype)) for dtype in dtypes]
        parts += [(kind, subject, rows, height, dtype) for dtype, rows in of_section]
    for dtype in dtypes:
        rows = shapes(results, dtype)
        parts.append((_dots, "strided operands", rows, 1.0 + SHORT * len(rows), dtype))
    parts = [part for part in parts if part[2]]
    if not parts:
        raise ValueError("there are no results to draw")
    heights = [height for *_, height, _ in parts]
    figure = Figure(figsize=(14, sum(heights) + 1.5), layout="constrained")
    grid = figure.subplots(len(parts), 2, squeeze=False, height_ratios=heights, sharey="row")
    handles: dict[str, Any] = {}
    for (kind, subject, rows, _, dtype), line in zip(parts, grid, strict=True):
        for number, axes in enumerate(line):
            kind(axes, rows, number, handles)
            axes.set_title(f"{subject}: {dtype}, {PASSES[number]}")
    figure.supxlabel(source(results), fontsize="medium")
    labels = [series[1] for series in SERIES if series[1] in handles]
    if labels:
        legend = [handles[label] for label in labels]
        figure.legend(legend, labels, loc="outside upper center", ncols=len(labels))
    figure.savefig(path, dpi=100)


def _lines(axes: Any, rows: Sequence[dict[str, Any]], number: int, handles: dict[str, Any]) -> None:
    """Over the class count, a line a peer."""
    for names, label, colour, style in reversed(SERIES):  # this package's above the others
        if found := points(rows, names[number]):
            counts = [rows[k]["shape"][1] for k, _ in found]
            times = [ratio for _, ratio in found]
            (handle,) = axes.plot(counts, times, style, color=colour, marker=".", label=label)
            handles.setdefault(label, handle)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("classes of cross_entropy, the last axis")
    axes.set_ylabel("time / time of the bytes")
    _scale(axes, axes.yaxis, span(rows))


def _losses(
    axes: Any, rows: Sequence[dict[str, Any]], number: int, handles: dict[str, Any]
) -> None:
    """Over the length of a row, a line a loss of this package; a legend where the lines fall."""
    name = SERIES[0][0][number]
    for k, loss in enumerate(dict.fromkeys(row["loss"] for row in rows)):
        own = [row for row in rows if row["loss"] == loss]
        lengths = [row["shape"][-1] for row in own]
        times = [ratios(row)[name] for row in own]
        axes.plot(lengths, times, color=OF_LOSSES[k], marker=".", label=loss)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("elements of a row")
    axes.set_ylabel("time / time of the bytes, cupy_losses")
    if number > 0:
        axes.legend(fontsize="small")
    _scale(axes, axes.yaxis, span(rows, SERIES[:1]))


def _dots(axes: Any, rows: Sequence[dict[str, Any]], number: int, handles: dict[str, Any]) -> None:
    """A row of dots a shape."""
    for names, label, colour, style in reversed(SERIES):
        if found := points(rows, names[number]):
            places, times = zip(*found, strict=True)
            fill = "full" if style == "-" else "none"
            marks = {"linestyle": "none", "marker": "o", "fillstyle": fill}
            (handle,) = axes.plot(times, places, color=colour, label=label, **marks)
            handles.setdefault(label, handle)
    names_of_rows = [f"{row['loss']} {' × '.join(map(str, row['shape']))}" for row in rows]
    axes.set_yticks(range(len(rows)), names_of_rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time / time of the bytes")
    _scale(axes, axes.xaxis, span(rows))


def _scale(axes: Any, axis: Any, limits: tuple[float, float]) -> None:
    """The axis of the ratios: logarithmic, with plain numbers."""
    low, high = limits
    scale, limit = (
        (axes.set_yscale, axes.set_ylim) if axis is axes.yaxis else (axes.set_xscale, axes.set_xlim)
    )
    scale("log")
    limit(low, high)
    axis.set_ticks([tick for tick in TICKS if low <= tick <= high])
    axis.set_ticks([], minor=True)
    axis.set_major_formatter("{x:g}")
    axes.grid(visible=True, alpha=0.4)

"""What the examples share: arrays of CuPy or NumPy, the diabetes data, and pictures on demand."""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = Any

DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # whose name is not that of the package


def array_module() -> Any:
    """CuPy where it finds a GPU, else NumPy."""
    try:
        import cupy

        cupy.cuda.runtime.getDevice()
        cupy.zeros(1)
    except Exception:
        return np
    return cupy


class Part(NamedTuple):
    """Some of the patients: ten standardised variables and a 1, and the progression of diabetes."""

    features: Array
    target: Array


def diabetes() -> tuple[Part, Part]:
    """The 442 patients of Efron and others: those to fit, and every third, to test."""
    file = importlib.resources.files("cupy_losses") / "data" / "diabetes.csv"
    with file.open(encoding="utf-8") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    variables = (table[:, :-1] - table[:, :-1].mean(axis=0)) / table[:, :-1].std(axis=0)
    features = np.column_stack([variables, np.ones(len(table), np.float32)])
    held_out = np.arange(len(table)) % 3 == 0
    fitted, tested = (Part(features[part], table[part, -1]) for part in (~held_out, held_out))
    return fitted, tested


def output(description: str | None, *packages: str) -> str | None:
    """The file of the picture that the command line asks for, if it does.

    What an example would miss later, a folder or one of the packages that it imports, is an error
    of one sentence here, before anything is computed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", metavar="FILE", help="Draw a picture, which needs matplotlib.")
    file: str | None = parser.parse_args().output
    if file:
        packages += ("matplotlib",)
        if Path(file).suffix not in (".pdf", ".png", ".svg"):
            parser.error(f"--output must be a .pdf, a .png or a .svg file, got {file}")
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"--output: there is no folder {Path(file).parent}")
        if Path(file).is_dir():
            parser.error(f"--output: {file} is a folder")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(DISTRIBUTIONS.get(name, name) for name in missing)
        parser.error(f"this example needs more packages: pip install {names}")
    return file


def draw(file: str, paint: Callable[[Any], None]) -> None:
    """Save a picture of one plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    paint(figure.subplots())
    figure.savefig(file)


def paint_bands(axes: Any, bands: Sequence[Array], target: Array) -> None:
    """Paint three quantiles of each patient, by the middle one, and what was to be predicted."""
    low, middle, high = bands
    order = np.argsort(middle)
    patients = np.arange(len(order))
    axes.fill_between(patients, low[order], high[order], alpha=0.3, label="10th to 90th percentile")
    axes.plot(patients, middle[order], label="median")
    axes.plot(patients, target[order], ".", label="patients")
    axes.set(xlabel="patients by their predicted median", ylabel="progression of diabetes")
    axes.legend()

"""Losses of predictions that are larger than memory: mapped files, a chunk at a time.

Linear models of the progression of diabetes are fitted to bootstrap samples of the patients. The
predictions of each for all patients are a row of a file, which is never in memory as a whole: its
losses are computed of the mapped file, and its gradient is written by `cupy-losses evaluate`.
`--output FILE` draws the errors of the models.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np

from cupy_losses import mse_loss

Array = Any


def write(folder: Path, models: int) -> tuple[Path, Path]:
    """The predictions of all models for all patients, row by row, and what is to be predicted."""
    parts = common.diabetes()
    features = np.concatenate([part.features for part in parts])
    target = np.concatenate([part.target for part in parts])
    rng = np.random.default_rng(0)
    shape = (models, len(target))
    predictions, targets = (folder / "predictions.npy", folder / "targets.npy")
    rows = np.lib.format.open_memmap(predictions, "w+", np.float32, shape)
    same = np.lib.format.open_memmap(targets, "w+", np.float32, shape)
    for k in range(models):
        sample = rng.integers(0, len(target), len(target))
        weights, *_ = np.linalg.lstsq(features[sample], target[sample], rcond=None)
        rows[k], same[k] = features @ weights, target
    return predictions, targets


def main(models: int = 2000, file: str | None = None) -> tuple[float, float]:
    """Return the mean squared error of all predictions, and the largest entry of its gradient."""
    with tempfile.TemporaryDirectory() as folder:
        predictions, targets = write(Path(folder), models)
        mapped = [np.load(path, mmap_mode="r") for path in (predictions, targets)]
        megabytes = mapped[0].nbytes / 1e6
        loss = float(mse_loss(*mapped))
        print(f"{models} models, {megabytes:.0f} MB of predictions: squared error {loss:.1f}")

        gradient = Path(folder) / "gradient.npy"
        subprocess.run(
            [
                *(sys.executable, "-m", "cupy_losses", "evaluate", "--backend", "numpy"),
                *("--loss", "mse_loss", "--prediction", str(predictions), "--target", str(targets)),
                *("--gradient", str(gradient)),
            ],
            check=True,
        )
        slopes = np.load(gradient, mmap_mode="r")
        steepest = float(max(abs(row).max() for row in slopes))

        def paint(axes: Any) -> None:
            errors = [float(mse_loss(row, target)) for row, target in zip(*mapped, strict=True)]
            axes.hist(errors, bins=50)
            axes.set(xlabel="mean squared error for all patients", ylabel="bootstrap models")

        if file:
            common.draw(file, paint)
    return loss, steepest


if __name__ == "__main__":
    main(file=common.output(__doc__, "click", "rich"))

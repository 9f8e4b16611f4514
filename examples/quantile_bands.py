"""Bands of predictions by quantile regression, on CuPy arrays, or NumPy arrays without a GPU.

Linear models of the 10th, 50th and 90th percentile of the progression of diabetes, given ten
variables. `--output FILE` draws them for patients that were not fitted.
"""

from __future__ import annotations

from typing import Any

import common
import numpy as np

from cupy_losses import quantile_loss, value_and_grad

Array = Any

QUANTILES = (0.1, 0.5, 0.9)


def fit(part: common.Part, q: float, steps: int) -> Array:
    """The weights of a linear model of a quantile, by gradient descent with ever smaller steps."""
    xp = common.array_module()
    features, target = xp.asarray(part.features), xp.asarray(part.target)
    weights = xp.zeros(features.shape[1], xp.float32)
    weights[-1] = xp.median(target)
    loss_and_gradient = value_and_grad(quantile_loss)
    for step in range(steps):
        _, gradient = loss_and_gradient(features @ weights, target, quantile=q)
        weights -= 100 / (1 + step / 50) * (gradient @ features)
    return weights if xp is np else weights.get()


def main(steps: int = 3000, file: str | None = None) -> dict[float, float]:
    """Fit the quantiles, and return the part of other patients that is below each."""
    fitted, tested = common.diabetes()
    predictions = {q: tested.features @ fit(fitted, q, steps) for q in QUANTILES}
    below = {q: float(np.mean(tested.target < prediction)) for q, prediction in predictions.items()}
    for q, part in below.items():
        print(f"{part:.0%} of the patients are below the {100 * q:.0f}th percentile")

    bands = [*predictions.values()]
    if file:
        common.draw(file, lambda axes: common.paint_bands(axes, bands, tested.target))
    return below


if __name__ == "__main__":
    main(file=common.output(__doc__))

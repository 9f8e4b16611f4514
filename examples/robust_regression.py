"""Robust regression without torch: some data are wrong, and a loss of one's own ignores them.

Linear models of the progression of diabetes, by gradient descent on CuPy arrays, or on NumPy arrays
without a GPU. Every tenth value to fit lacks its decimal point: it is ten times what it should be.
`--output FILE` draws how far the predictions for other patients are off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import numpy as np

from cupy_losses import huber_loss, mse_loss, pointwise_loss, value_and_grad

Array = Any


@pointwise_loss
def tukey_loss(input: Array, target: Array, c: float = 200.0) -> Array:
    """Tukey's biweight, which is constant beyond c: wrong values have no say at all."""
    error = input - target
    near = np.minimum((error / c) ** 2, 1.0)
    return c**2 / 6 * near * (3 - 3 * near + near**2)


LOSSES: dict[str, Callable[..., Array]] = {
    "squared error": mse_loss,
    "Huber": huber_loss,
    "Tukey": tukey_loss,
}
PARAMETERS = {"squared error": {}, "Huber": {"delta": 20.0}, "Tukey": {}}
RATES = {"squared error": 0.05, "Huber": 1.0, "Tukey": 0.1}


def fit(name: str, features: Array, target: Array, steps: int) -> Array:
    """The weights of a linear model, from the median of the target."""
    xp = common.array_module()
    features, target = xp.asarray(features), xp.asarray(target)
    weights = xp.zeros(features.shape[1], xp.float32)
    weights[-1] = xp.median(target)
    loss_and_gradient = value_and_grad(LOSSES[name])
    for _ in range(steps):
        _, gradient = loss_and_gradient(features @ weights, target, **PARAMETERS[name])
        weights -= RATES[name] * (gradient @ features)
    return weights if xp is np else weights.get()


def main(steps: int = 2000, file: str | None = None) -> dict[str, float]:
    """Fit with each loss, and return the median error for patients that were not fitted."""
    fitted, tested = common.diabetes()
    wrong = fitted.target.copy()
    wrong[::10] *= 10
    errors = {}
    for name in LOSSES:
        weights = fit(name, fitted.features, wrong, steps)
        errors[name] = np.abs(tested.features @ weights - tested.target)
        print(f"{name:14} median error {np.median(errors[name]):5.1f}")

    def paint(axes: Any) -> None:
        for name, error in errors.items():
            axes.plot(np.sort(error), np.linspace(0, 1, len(error)), label=name)
        axes.set(xlabel="error of the prediction", ylabel="part of the patients", xlim=(0, 300))
        axes.legend()

    if file:
        common.draw(file, paint)
    return {name: float(np.median(error)) for name, error in errors.items()}


if __name__ == "__main__":
    main(file=common.output(__doc__))

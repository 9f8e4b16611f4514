"""Boosted trees with losses of this package as objectives: XGBoost and LightGBM.

Both ask for the first and second derivative of each prediction, which `grad_and_hess` gives in one
pass. On the diabetes data, XGBoost grows the same trees with `binary_cross_entropy_with_logits` as
with its own logistic objective; and a smooth quantile, a formula in Python, gives bands.
`pip install xgboost lightgbm`; `--output FILE` draws the bands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import common
import numpy as np

from cupy_losses import binary_cross_entropy_with_logits, grad_and_hess, pointwise_loss

Array = Any
Objective = Callable[[Array, Any], tuple[Array, Array]]

ROUNDS = 60
QUANTILES = (0.1, 0.5, 0.9)


@pointwise_loss
def smooth_quantile_loss(input: Array, target: Array, q: float = 0.5, width: float = 20.0) -> Array:
    """The pinball loss with its kink rounded: trees need a second derivative that is not 0.

    It is multiplied by the width, so that the second derivatives are those of a logistic loss.
    """
    error = target - input
    return width * (q * error + width * np.logaddexp(0, -error / width))


def objective(loss: Callable[..., Array], **options: Any) -> Objective:
    """A loss as both libraries take it: of predictions, and of a data set that has the labels."""
    derivatives = grad_and_hess(loss)

    def gradient_and_hessian(prediction: Array, data: Any) -> tuple[Array, Array]:
        # XGBoost passes NumPy arrays, and takes CuPy arrays back.
        xp = common.array_module()
        label = xp.asarray(data.get_label(), xp.float32)
        return derivatives(xp.asarray(prediction, xp.float32), label, **options)

    return gradient_and_hessian


def by_xgboost(
    fitted: common.Part, tested: common.Part, start: float, own: str | Objective
) -> Array:
    """Predictions, before any sigmoid, of trees with an objective by name or of ours."""
    import xgboost

    on_gpu = common.array_module() is not np
    parameters = {
        "max_depth": 3,
        "eta": 0.1,
        "base_score": start,
        "device": "cuda" if on_gpu else "cpu",
        "nthread": 1,
    }
    if isinstance(own, str):
        parameters["objective"] = own
    data = xgboost.DMatrix(fitted.features, fitted.target)
    trees = xgboost.train(
        parameters, data, ROUNDS, obj=None if isinstance(own, str) else own, verbose_eval=False
    )
    return trees.predict(xgboost.DMatrix(tested.features), output_margin=True)


def by_lightgbm(fitted: common.Part, tested: common.Part, start: float, own: Objective) -> Array:
    """The same with LightGBM and an objective of ours."""
    import lightgbm

    def on_host(prediction: Array, data: Any) -> tuple[Array, Array]:
        derivatives = own(prediction, data)
        return tuple(x.get() if hasattr(x, "get") else x for x in derivatives)

    parameters = {
        "objective": on_host,
        "max_depth": 3,
        "learning_rate": 0.1,
        "num_threads": 1,
        "verbose": -1,
    }
    first = np.full(len(fitted.target), start)
    data = lightgbm.Dataset(fitted.features, fitted.target, init_score=first)
    trees = lightgbm.train(parameters, data, ROUNDS)
    return start + np.asarray(trees.predict(tested.features))


def main(file: str | None = None) -> tuple[float, dict[str, list[float]]]:
    """Grow trees with both libraries.

    Returns:
        The largest difference of a logit from that of XGBoost's own objective, and, by library, the
        part of the patients below each quantile.

    """
    fitted, tested = common.diabetes()
    middle = float(np.median(fitted.target))
    severe = fitted._replace(target=(fitted.target > middle).astype(np.float32))
    theirs = by_xgboost(severe, tested, 0.5, "binary:logistic")
    ours = by_xgboost(severe, tested, 0.0, objective(binary_cross_entropy_with_logits))
    difference = float(abs(theirs - ours).max())
    print(f"logits differ from those of XGBoost's own objective by at most {difference:.1e}")

    bands: dict[str, list[Array]] = {}
    for name, grow in (("XGBoost", by_xgboost), ("LightGBM", by_lightgbm)):
        losses = [objective(smooth_quantile_loss, q=q) for q in QUANTILES]
        bands[name] = [grow(fitted, tested, middle, loss) for loss in losses]
    below = {
        name: [float(np.mean(tested.target < prediction)) for prediction in predictions]
        for name, predictions in bands.items()
    }
    for name, parts in below.items():
        shown = ", ".join(f"{part:.0%}" for part in parts)
        print(f"{name}: below the quantiles {QUANTILES} are {shown} of the patients")

    if file:
        common.draw(file, lambda axes: common.paint_bands(axes, bands["XGBoost"], tested.target))
    return difference, below


if __name__ == "__main__":
    main(common.output(__doc__, "xgboost", "lightgbm"))

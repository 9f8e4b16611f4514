"""Losses of real-valued predictions.

Shapes, dtypes and errors are the same for all of them. `input` and `target` are arrays of one
library (NumPy, CuPy, torch) or any object with `__dlpack__` on a CUDA device (the result is then a
CuPy array), of any shape, that broadcast against each other; floating or, one of them, integer;
float16 and bfloat16 are computed in float32. `reduction="none"` gives the loss of each element,
"mean" and "sum" an array of shape (). The dtype of the result is that to which torch promotes the
arguments. No elements have mean NaN and sum 0.

`weight` broadcasts to the shape of the loss and multiplies the loss of each element.

All raise TypeError for what is no array, has a complex dtype, or where all dtypes are integers;
ValueError for shapes that do not broadcast, devices that differ, an unknown reduction, or a
parameter out of range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._evaluate import Prepared, differentiable, prepare
from ._losses import Loss, Parameter

Array = Any


_L1 = Loss("L1", lambda input, target: abs(input - target))


@differentiable
def l1_loss(
    input: Array, target: Array, *, reduction: str = "mean", weight: Array | None = None
) -> Prepared:
    """Compute the absolute error, |input - target|.

    A weighted mean divides by the sum of the weights. The gradient at 0 is 0.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        weight: The weight of each element, or None.

    Returns:
        The loss; shapes, dtypes and errors as the module says.

    Source: `torch.nn.functional.l1_loss`.

    >>> float(l1_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    1.0

    """
    return prepare(_L1, (input, target), reduction, weight)


_MSE = Loss("SquaredError", lambda input, target: (input - target) * (input - target))


@differentiable
def mse_loss(
    input: Array, target: Array, *, reduction: str = "mean", weight: Array | None = None
) -> Prepared:
    """Compute the squared error, (input - target)^2.

    A weighted mean divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        weight: The weight of each element, or None.

    Returns:
        The loss; shapes, dtypes and errors as the module says.

    Source: `torch.nn.functional.mse_loss`.

    >>> float(mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    2.0

    """
    return prepare(_MSE, (input, target), reduction, weight)


def _smooth_l1(input: Any, target: Any, beta: float) -> Any:
    d = input - target
    return np.where(abs(d) >= beta, abs(d) - 0.5 * beta, 0.5 * d * d / beta)


_BETA = Parameter("beta", minimum=0.0)
_SMALLEST_BETA = 2.0**-120  # a parabola narrower than this is none: a float32 hardly sees it
_SMOOTH_L1 = Loss("SmoothL1", _smooth_l1, parameters=(_BETA,))


@differentiable
def smooth_l1_loss(
    input: Array,
    target: Array,
    *,
    reduction: str = "mean",
    beta: float = 1.0,
    weight: Array | None = None,
) -> Prepared:
    """Compute a squared error near 0 that turns into an absolute error.

    With d = input - target: d^2 / (2 beta) where |d| < beta, |d| - beta / 2 elsewhere. A weighted
    mean divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        beta: Where the parabola ends, at least 0; 0 gives `l1_loss`.
        weight: The weight of each element, or None. torch's function has none.

    Returns:
        The loss; shapes, dtypes and errors as the module says.

    Source: `torch.nn.functional.smooth_l1_loss`; Girshick, Fast R-CNN, 2015.

    >>> smooth_l1_loss(np.array([0.5, 3.0]), np.zeros(2), reduction="none").tolist()
    [0.125, 2.5]

    """
    if _BETA.checked(beta) < _SMALLEST_BETA:
        return prepare(_L1, (input, target), reduction, weight)
    return prepare(_SMOOTH_L1, (input, target), reduction, weight, (beta,))


def _huber(input: Any, target: Any, delta: float) -> Any:
    d = input - target
    return np.where(abs(d) >= delta, delta * (abs(d) - 0.5 * delta), 0.5 * d * d)


_HUBER = Loss(
    "Huber",
    _huber,
    parameters=(Parameter("delta", minimum=0.0, open=True),),
    weighted_mean=False,
)


@differentiable
def huber_loss(
    input: Array,
    target: Array,
    *,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Array | None = None,
) -> Prepared:
    """Compute a squared error near 0 that turns into an absolute error of slope delta.

    With d = input - target: d^2 / 2 where |d| < delta, delta (|d| - delta / 2) elsewhere. A
    weighted mean divides by the number of elements, as torch's does for this loss.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        delta: Where the parabola ends, above 0.
        weight: The weight of each element, or None.

    Returns:
        The loss; shapes, dtypes and errors as the module says. The dtype is the promoted one,
        where torch keeps that of `input`.

    Source: `torch.nn.functional.huber_loss`; Huber, Robust estimation of a location parameter,
    1964.

    >>> huber_loss(np.array([0.5, 3.0]), np.zeros(2), delta=2.0, reduction="none").tolist()
    [0.125, 4.0]

    """
    return prepare(_HUBER, (input, target), reduction, weight, (delta,))

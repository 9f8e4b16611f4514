"""Losses of real-valued predictions.

Shapes, dtypes and errors are the same for all losses of elements, those of other modules too.
Operands are arrays of NumPy, CuPy or torch, or other objects with `__dlpack__`, whose results are
of their own library if that has `from_dlpack`, or with `__cuda_array_interface__`. They have any
shapes that broadcast against each other, and are on one device. But in `binary_cross_entropy`,
`binary_cross_entropy_with_logits` and `sigmoid_focal_loss` input and target have one shape, and
`gaussian_nll_loss` says which shapes `var` may have. Operands are floating or, all but one of them,
integer or boolean; float16 and bfloat16 are computed in float32, on the host in float64.
`reduction="none"` gives the loss of each element, "mean" and "sum" an array of shape (). The dtype
of the result is that to which torch promotes the arguments.
Of no elements the mean is NaN and the sum 0.

`weight` broadcasts to the shape of the loss and multiplies the loss of each element. `where`, an
array of bool that broadcasts to the same shape, says which elements count: the others add nothing
and have the gradient 0, even if they are NaN, and a mean divides by what is left.

`scale` multiplies a loss that is reduced and its gradients, before they are rounded: a number, or
an array of shape () of a floating dtype on the same device, which is read there. It does not decide
on the dtype of the result.

All raise TypeError for what is no array, has no real dtype, or where no dtype is floating, for a
mask that is not boolean and a parameter of another type; ValueError for shapes that do not
broadcast, devices that differ, an unknown reduction, or a parameter out of range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._api.entrance import loss_function
from ._api.prepared import Prepared, call_of
from ._core.arguments import Real
from ._core.types import Array, ArrayT, Reduction
from ._host.dual import limited, with_derivatives
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "charbonnier_loss",
    "huber_loss",
    "l1_loss",
    "log_cosh_loss",
    "mse_loss",
    "quantile_loss",
    "smooth_l1_loss",
]

_L1 = PointwiseLoss(
    name="l1_loss",
    struct="L1",
    formula=lambda input, target: abs(input - target),
    warns_of_broadcasting=True,
)


@loss_function()
def l1_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the absolute error.

    Formula: |input - target|

    A weighted mean divides by the sum of the weights. The gradient at 0 is 0.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `torch.nn.functional.l1_loss`.

    >>> float(l1_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    1.0

    """
    return call_of(_L1, (input, target), reduction, weight, where, scale=scale)


_MSE = PointwiseLoss(
    name="mse_loss",
    struct="SquaredError",
    formula=lambda input, target: np.square(input - target),
    warns_of_broadcasting=True,
)


@loss_function()
def mse_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the squared error.

    Formula: (input - target)^2

    A weighted mean divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `torch.nn.functional.mse_loss`.

    >>> float(mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    2.0

    """
    return call_of(_MSE, (input, target), reduction, weight, where, scale=scale)


def _smooth_l1(input: Any, target: Any, beta: float) -> Any:
    def value(d: Any) -> Any:
        near = limited(d, beta)
        return near / beta * (d - 0.5 * near)

    return with_derivatives(value, (lambda d: limited(d, beta) / beta,), (input - target,))


_SMALLEST_BETA = 2.0**-120  # a parabola narrower than this is none: a float32 hardly sees it
_SMOOTH_L1 = PointwiseLoss(
    name="smooth_l1_loss",
    struct="SmoothL1",
    formula=_smooth_l1,
    parameters=("beta",),
    warns_of_broadcasting=True,
)


@loss_function(beta=Real(minimum=0.0))
def smooth_l1_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    beta: float = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute a squared error near 0 that turns into an absolute error.

    Formula: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = input - target

    A weighted mean divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        beta: Where the parabola ends, at least 0; 0 gives `l1_loss`.
        weight: The weight of each element, which broadcasts, or None. torch's function has none.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `torch.nn.functional.smooth_l1_loss`; Girshick, Fast R-CNN, 2015.

    >>> smooth_l1_loss(np.array([0.5, 3.0]), np.zeros(2), reduction="none").tolist()
    [0.125, 2.5]

    """
    if beta < _SMALLEST_BETA:
        return call_of(_L1, (input, target), reduction, weight, where, scale=scale)
    return call_of(_SMOOTH_L1, (input, target), reduction, weight, where, (beta,), scale=scale)


def _huber(input: Any, target: Any, delta: float) -> Any:
    def value(d: Any) -> Any:
        near = limited(d, delta)
        return near * (d - 0.5 * near)

    return with_derivatives(value, (lambda d: limited(d, delta),), (input - target,))


_HUBER = PointwiseLoss(
    name="huber_loss",
    struct="Huber",
    formula=_huber,
    parameters=("delta",),
    weighted_mean=False,
    warns_of_broadcasting=True,
)


@loss_function(delta=Real(minimum=0.0, open=True))
def huber_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    delta: float = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute a squared error near 0 that turns into an absolute error of slope delta.

    Formula: d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), with d = input - target

    A weighted mean divides by the number of elements, as torch's does for this loss.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        delta: Where the parabola ends, above 0.
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says. The dtype is the
        promoted one, where torch keeps that of `input`.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `torch.nn.functional.huber_loss`; Huber, Robust estimation of a location parameter,
    1964.

    >>> huber_loss(np.array([0.5, 3.0]), np.zeros(2), delta=2.0, reduction="none").tolist()
    [0.125, 4.0]

    """
    return call_of(_HUBER, (input, target), reduction, weight, where, (delta,), scale=scale)


def _log_cosh(input: Any, target: Any) -> Any:
    d = input - target
    sinh = np.sinh(d)
    return np.where(abs(d) < 1, 0.5 * np.log1p(sinh * sinh), np.logaddexp(d, -d) - np.log(2.0))


_LOG_COSH = PointwiseLoss(
    name="log_cosh_loss", struct="LogCosh", formula=_log_cosh, warns_of_broadcasting=True
)


@loss_function()
def log_cosh_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the logarithm of the hyperbolic cosine of the error.

    Formula: log(cosh(input - target))

    It is close to d^2 / 2 for small errors d and to |d| - log(2) for large ones. A weighted mean
    divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `keras.losses.LogCosh`.

    >>> float(log_cosh_loss(np.array([1e-3, 1000.0]), np.zeros(2), reduction="sum"))
    999.30685331944

    """
    return call_of(_LOG_COSH, (input, target), reduction, weight, where, scale=scale)


def _quantile(input: Any, target: Any, quantile: float) -> Any:
    d = target - input
    return np.where(d < 0, (quantile - 1) * d, quantile * d)


_QUANTILE = PointwiseLoss(
    name="quantile_loss",
    struct="Quantile",
    formula=_quantile,
    parameters=("quantile",),
    warns_of_broadcasting=True,
)


@loss_function(quantile=Real(minimum=0.0, maximum=1.0))
def quantile_loss(
    input: ArrayT,
    target: Array,
    quantile: float = 0.5,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the pinball loss, which the quantile of the targets minimises.

    Formula: quantile d where d >= 0, else (quantile - 1) d, with d = target - input

    A weighted mean divides by the sum of the weights.

    Args:
        input: The predicted quantiles.
        target: The true values, a shape that broadcasts with `input`.
        quantile: Which quantile is predicted, from 0 to 1.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: `sklearn.metrics.mean_pinball_loss`; Koenker and Bassett, Regression quantiles, 1978.

    >>> quantile_loss(np.zeros(2), np.array([1.0, -1.0]), 0.9, reduction="none").round(3).tolist()
    [0.9, 0.1]

    """
    return call_of(_QUANTILE, (input, target), reduction, weight, where, (quantile,), scale=scale)


_CHARBONNIER = PointwiseLoss(
    name="charbonnier_loss",
    struct="Charbonnier",
    formula=lambda input, target, eps: np.hypot(input - target, eps),
    parameters=("eps",),
    warns_of_broadcasting=True,
)


@loss_function(eps=Real(minimum=0.0, open=True))
def charbonnier_loss(
    input: ArrayT,
    target: Array,
    eps: float = 1e-3,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute an absolute error that is smooth at 0.

    Formula: sqrt((input - target)^2 + eps^2)

    A weighted mean divides by the sum of the weights.

    Args:
        input: The predictions.
        target: The true values, a shape that broadcasts with `input`.
        eps: The loss at 0, above 0.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Warns:
        UserWarning: If input and target have two shapes, and one is broadcast.

    Source: Charbonnier et al., Two deterministic half-quadratic regularization algorithms, 1994;
    Lai et al., Deep Laplacian pyramid networks, 2017, for the name and eps.

    >>> charbonnier_loss(np.array([0.0, 3.0]), np.zeros(2), 4.0, reduction="none").tolist()
    [4.0, 5.0]

    """
    return call_of(_CHARBONNIER, (input, target), reduction, weight, where, (eps,), scale=scale)

"""Losses of predicted classes: two classes an element, or several labels a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._api.entrance import loss_function
from ._api.prepared import Prepared, call_of
from ._core.arguments import Real
from ._core.loss import PROBABILITY, SIGN, Formula, variant
from ._core.types import Array, ArrayT, Reduction
from ._host.dual import positive, sigmoid, sign_of, softplus, with_derivatives
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "multilabel_soft_margin_loss",
    "sigmoid_focal_loss",
    "soft_margin_loss",
]


def _cross_entropy(input: Any, target: Any) -> Any:
    """The sum target softplus(-input) + (1 - target) softplus(input), with one logarithm."""

    def value(x: Any, y: Any) -> Any:
        both = np.log1p(np.exp(-abs(x)))
        return y * positive(-x) + (1.0 - y) * positive(x) + both

    return with_derivatives(value, (_miss, lambda x, y: -x), (input, target))


def _miss(input: Any, target: Any) -> Any:
    """The difference (1 - target) sigmoid(input) - target sigmoid(-input), with one quotient."""

    def value(x: Any, y: Any) -> Any:
        power, side = np.exp(-abs(x)), sign_of(x)
        # exp(x) and exp(-x), but at most 1
        up, down = np.maximum(power, side), np.maximum(power, -side)
        return ((1.0 - y) * up - y * down) / (1.0 + power)

    derivatives = lambda x, y: sigmoid(x) * sigmoid(-x), lambda x, y: -1.0
    return with_derivatives(value, derivatives, (input, target))


def _at_least(x: Any, floor: float) -> Any:
    return np.clip(x, floor, np.inf)


def _binary_cross_entropy(input: Any, target: Any) -> Any:
    def entropy(p: Any, y: Any) -> Any:
        return -(y * _at_least(np.log(p), -100.0) + (1.0 - y) * _at_least(np.log1p(-p), -100.0))

    def variance(p: Any) -> Any:
        return _at_least(p * (1.0 - p), 1e-12)

    def by_input(p: Any, y: Any) -> Any:
        # The derivative of the quotient cancels near 0 and 1.
        twice, mixed = curvature, lambda p, y: -1.0 / variance(p)
        return with_derivatives(lambda p, y: (p - y) / variance(p), (twice, mixed), (p, y))

    def curvature(p: Any, y: Any) -> Any:
        rest = 1.0 - p
        exact = y / (p * p) + (1.0 - y) / (rest * rest)
        return np.where(p * rest < 1e-12, 1.0 / variance(p), exact)

    def minus_logit(p: Any) -> Any:
        return _at_least(np.log1p(-p), -100.0) - _at_least(np.log(p), -100.0)

    def by_target(p: Any, y: Any) -> Any:
        return with_derivatives(minus_logit, (lambda p: -1.0 / variance(p),), (p,))

    return with_derivatives(entropy, (by_input, by_target), (input, target))


_BCE = PointwiseLoss(
    name="binary_cross_entropy",
    struct="BinaryCrossEntropy",
    formula=_binary_cross_entropy,
    weighted_mean=False,
    same_shape=True,
    domains={"input": PROBABILITY, "target": PROBABILITY},
)


@loss_function()
def binary_cross_entropy(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of a probability of the class 1.

    Formula: -(target log(input) + (1 - target) log(1 - input)), logarithms at least -100

    The derivative by `input` is (input - target) / max(input (1 - input), 1e-12), as torch's,
    finite at 0 and 1. Where `input` is outside [0, 1] the loss is NaN, see `check_values`. A
    weighted mean divides by the number of elements, as torch's does.

    Args:
        input: The probabilities.
        target: The classes, or their probabilities, the same shape.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.binary_cross_entropy`.

    >>> float(binary_cross_entropy(np.array([0.5, 0.0]), np.array([1.0, 1.0]), reduction="sum"))
    100.69314718055995

    """
    return call_of(_BCE, (input, target), reduction, weight, where, scale=scale)


_BCE_WITH_LOGITS = PointwiseLoss(
    name="binary_cross_entropy_with_logits",
    struct="BinaryCrossEntropyWithLogits",
    formula=_cross_entropy,
    weighted_mean=False,
    same_shape=True,
    domains={"target": PROBABILITY},
)


def _positive_weighted(input: Any, target: Any, pos_weight: Any) -> Any:
    return pos_weight * target * softplus(-input) + (1.0 - target) * softplus(input)


_POSITIVE_WEIGHTED = PointwiseLoss(
    name="binary_cross_entropy_with_logits, pos_weight",
    struct="PositiveWeightedBinaryCrossEntropyWithLogits",
    formula=_positive_weighted,
    operands=("input", "target", "pos_weight"),
    weighted_mean=False,
    same_shape=True,
    domains={"target": PROBABILITY},
)


@loss_function()
def binary_cross_entropy_with_logits(
    input: ArrayT,
    target: Array,
    *,
    pos_weight: Array | None = None,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of the log-odds of the class 1.

    Formula: pos_weight target softplus(-input) + (1 - target) softplus(input), softplus(x) = log(1
    + exp(x))

    `value_and_grad` counts `pos_weight` as argument 2.
    A weighted mean divides by the number of elements, as torch's does.

    Args:
        input: The log-odds (logits).
        target: The classes, or their probabilities, the same shape.
        pos_weight: The weight of the class 1, an array that broadcasts to the shape, or None.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.binary_cross_entropy_with_logits`.

    >>> float(binary_cross_entropy_with_logits(np.array([0.0, 1e4]), np.array([1.0, 1.0])))
    0.34657359027997264

    """
    if pos_weight is None:
        return call_of(_BCE_WITH_LOGITS, (input, target), reduction, weight, where, scale=scale)
    return call_of(
        _POSITIVE_WEIGHTED, (input, target, pos_weight), reduction, weight, where, scale=scale
    )


# In place of 0, whose power below 1 has infinite derivatives.
_SMALL = 2.0**-400


def _focal(balanced: bool) -> Formula:
    def formula(input: Any, target: Any, alpha: float, gamma: float) -> Any:
        miss = target * sigmoid(-input) + (1.0 - target) * sigmoid(input)
        loss = (miss + _SMALL) ** gamma * _cross_entropy(input, target)
        return (alpha * target + (1.0 - alpha) * (1.0 - target)) * loss if balanced else loss

    return formula


_FOCAL = {
    (balanced, squared): PointwiseLoss(
        name=variant("sigmoid_focal_loss", balanced=balanced, squared=squared),
        struct="SigmoidFocal",
        formula=_focal(balanced),
        parameters=("alpha", "gamma"),
        options=(balanced, squared),
        same_shape=True,
        domains={"target": PROBABILITY},
    )
    for balanced in (False, True)
    for squared in (False, True)
}


@loss_function(alpha=Real(), gamma=Real(minimum=0.0))
def sigmoid_focal_loss(
    input: ArrayT,
    target: Array,
    alpha: float = 0.25,
    gamma: float = 2.0,
    *,
    reduction: Reduction = "none",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute a cross entropy that gives little weight to what is easily classified.

    Formula: alpha_t (1 - p_t)^gamma bce, with p = sigmoid(input)

    bce is `binary_cross_entropy_with_logits`, p_t = p target + (1 - p) (1 - target) and alpha_t =
    alpha target + (1 - alpha) (1 - target), or 1 where alpha < 0. A weighted mean divides by the
    sum of the weights.

    Args:
        input: The log-odds (logits).
        target: The classes, or their probabilities, the same shape.
        alpha: The weight of the class 1 against that of the class 0; below 0 there is none.
        gamma: How little weight, at least 0.
        reduction: "none", "mean" or "sum"; torchvision's default is "none".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torchvision.ops.sigmoid_focal_loss`; Lin et al., Focal loss for dense object detection,
    2017.

    >>> sigmoid_focal_loss(np.array([0.0]), np.array([1.0])).round(4).tolist()
    [0.0433]

    """
    loss = _FOCAL[alpha >= 0, gamma == 2]
    return call_of(loss, (input, target), reduction, weight, where, (alpha, gamma), scale=scale)


_SOFT_MARGIN = PointwiseLoss(
    name="soft_margin_loss",
    struct="SoftMargin",
    formula=lambda input, target: softplus(-target * input),
    domains={"target": SIGN},
)


@loss_function()
def soft_margin_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the logistic loss of a score against a sign.

    Formula: log(1 + exp(-target input))

    Where torch's overflows, at scores beyond 88, this one is exact.
    A weighted mean divides by the sum of the weights.

    Args:
        input: The scores.
        target: The classes, 1 or -1, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.soft_margin_loss`.

    >>> soft_margin_loss(np.array([0.0, 1e4]), np.array([1.0, -1.0]), reduction="none").tolist()
    [0.6931471805599453, 10000.0]

    """
    return call_of(_SOFT_MARGIN, (input, target), reduction, weight, where, scale=scale)


_MULTILABEL = PointwiseLoss(
    name="multilabel_soft_margin_loss",
    struct="BinaryCrossEntropyWithLogits",
    formula=_cross_entropy,
    weighted_mean=False,
    row_means=True,
    domains={"target": PROBABILITY},
)


@loss_function()
def multilabel_soft_margin_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the mean over the labels of a row of the logistic loss of each.

    Formula: mean over the last axis of target softplus(-input) + (1 - target) softplus(input)

    The loss has one element a row: for operands of shape (N, C), `reduction="none"` gives (N,), and
    "mean" and "sum" are over rows. A weighted mean divides by the number of elements. With
    `where`, a mean is over all labels that are left; the other reductions divide by C.

    Args:
        input: The log-odds (logits), of shape (…, C).
        target: The labels, 0 or 1, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.multilabel_soft_margin_loss`.

    >>> rows = multilabel_soft_margin_loss(np.zeros((2, 3)), np.eye(2, 3), reduction="none")
    >>> rows.round(4).tolist()
    [0.6931, 0.6931]

    """
    return call_of(_MULTILABEL, (input, target), reduction, weight, where, scale=scale)

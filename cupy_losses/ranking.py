"""Losses that demand a margin: between a score and its sign, between two scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._api.entrance import loss_function
from ._api.prepared import Prepared, call_of
from ._core.arguments import Real
from ._core.loss import SIGN
from ._core.types import Array, ArrayT, Reduction
from ._host.dual import clamped
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "hinge_embedding_loss",
    "hinge_loss",
    "margin_ranking_loss",
    "squared_hinge_loss",
]

_HINGE = PointwiseLoss(
    name="hinge_loss",
    struct="Hinge",
    formula=lambda input, target: clamped(1.0 - input * target),
    domains={"target": SIGN},
)


@loss_function()
def hinge_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute how far a score is from being beyond 1 on the side of its class.

    Formula: max(1 - input target, 0)

    At input target = 1 the derivative is that of the left side. A weighted mean divides by the sum
    of the weights.

    Args:
        input: The scores.
        target: The classes, 1 or -1, a shape that broadcasts with `input`.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `sklearn.metrics.hinge_loss`; Cortes and Vapnik, Support-vector networks, 1995.

    >>> hinge_loss(np.array([0.5, 2.0]), np.array([1.0, -1.0]), reduction="none").tolist()
    [0.5, 3.0]

    """
    return call_of(_HINGE, (input, target), reduction, weight, where, scale=scale)


def _squared_hinge(input: Any, target: Any) -> Any:
    violation = clamped(1.0 - input * target)
    return violation * violation


_SQUARED_HINGE = PointwiseLoss(
    name="squared_hinge_loss",
    struct="SquaredHinge",
    formula=_squared_hinge,
    domains={"target": SIGN},
)


@loss_function()
def squared_hinge_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the square of the hinge loss.

    Formula: max(1 - input target, 0)^2

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

    Source: `keras.losses.SquaredHinge`; `sklearn.svm.LinearSVC`, its default loss.

    >>> squared_hinge_loss(np.array([0.5, 2.0]), np.array([1.0, -1.0]), reduction="none").tolist()
    [0.25, 9.0]

    """
    return call_of(_SQUARED_HINGE, (input, target), reduction, weight, where, scale=scale)


def _hinge_embedding(input: Any, target: Any, margin: float) -> Any:
    near = np.where(target == -1, 0.0, input)
    return near + np.where(target == 1, 0.0, clamped(margin - input))


_HINGE_EMBEDDING = PointwiseLoss(
    name="hinge_embedding_loss",
    struct="HingeEmbedding",
    formula=_hinge_embedding,
    parameters=("margin",),
    domains={"target": SIGN},
)


@loss_function(margin=Real())
def hinge_embedding_loss(
    input: ArrayT,
    target: Array,
    margin: float = 1.0,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the distance where a pair is alike, else how far it falls short of the margin.

    Formula: input where target is 1, max(margin - input, 0) where it is -1

    Another target gives the sum of both. The gradient by `target` is 0.
    A weighted mean divides by the sum of the weights.

    Args:
        input: The distances.
        target: 1 for alike, -1 for not, a shape that broadcasts with `input`.
        margin: The distance that is far enough.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.hinge_embedding_loss`.

    >>> hinge_embedding_loss(np.array([0.5, 0.25]), np.array([1, -1]), reduction="none").tolist()
    [0.5, 0.75]

    """
    return call_of(
        _HINGE_EMBEDDING, (input, target), reduction, weight, where, (margin,), scale=scale
    )


_MARGIN_RANKING = PointwiseLoss(
    name="margin_ranking_loss",
    struct="MarginRanking",
    formula=lambda input1, input2, target, margin: clamped(-target * (input1 - input2) + margin),
    operands=("input1", "input2", "target"),
    parameters=("margin",),
    domains={"target": SIGN},
)


@loss_function(margin=Real())
def margin_ranking_loss(
    input1: ArrayT,
    input2: Array,
    target: Array,
    margin: float = 0.0,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute how far two scores are from the order that they should have.

    Formula: max(-target (input1 - input2) + margin, 0)

    Where the maximum is taken at 0 exactly, the derivative is that of the other term, as torch's is
    up to 2.13. A weighted mean divides by the sum of the weights.

    Args:
        input1: The scores of the first things.
        input2: The scores of the second things, a shape that broadcasts with `input1`.
        target: 1 where the first should rank higher, -1 where the second; broadcasts with both.
        margin: By how much it should.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.margin_ranking_loss`.

    >>> float(margin_ranking_loss(np.array([1.0]), np.array([3.0]), np.array([1.0]), 0.5))
    2.5

    """
    return call_of(
        _MARGIN_RANKING, (input1, input2, target), reduction, weight, where, (margin,), scale=scale
    )

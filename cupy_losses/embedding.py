"""Losses of vectors: angles and distances between them.

The components of a vector lie along `axis`, by default the last one. Nothing is moved or copied for
it, and gradients lie as their operands do. Vectors, and what there is one of for each, broadcast
against each other; arrays of vectors have the same number of dimensions. A triplet may be of shape
(): vectors of one component.

`reduction="none"` gives the loss of each row, "mean" and "sum" an array of shape (). The dtype of
the result is that to which torch promotes the vectors; float16 and bfloat16 are computed in
float32, on the host in float64. Of no rows the mean is NaN and the sum 0. `scale` is what
`cupy_losses.regression` says.

`where`, a boolean mask, and `sample_weight` have a number for each row; they have the shape that
`reduction="none"` gives, or one that broadcasts to it. What the mask leaves out adds nothing, even
if it is NaN, has the gradient 0, and is not counted by the mean. The weight multiplies the loss of
a row, and a mean then divides by the sum of the weights of the rows that count. torch's autograd
differentiates by it. `triplet_margin_with_distance_loss` has no `axis`: its distance decides.

All raise TypeError for what is no array, and for a dtype or a parameter of the wrong kind;
ValueError for shapes that do not fit, devices that differ, an unknown reduction, or a parameter out
of range.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ._api import compiled
from ._api.entrance import loss_function, prepared_by
from ._api.prepared import Prepared, call_of, one_like
from ._api.public import prepare_of
from ._core.arguments import Flag, Integer, Real
from ._core.dtypes import check_dtypes, dtype_name
from ._core.loss import SIGN, variant
from ._core.rows import ELEMENTS, NUMBER
from ._core.types import Array, ArrayT, Reduction
from ._host.dual import clamped, plain, sign_of, with_derivatives
from ._host.row_formulas import Evaluated, Rows, sum_of
from ._kinds.rows import RowLoss
from .ranking import margin_ranking_loss

__all__ = [
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]

_TINY = 1e-12  # torch's, so that no square is 0


def _cosine_embedding(rows: Rows) -> Evaluated:
    x = rows.input1, rows.input2
    squares = [sum_of(one * one) + _TINY for one in x]
    reciprocal = 1.0 / np.sqrt(squares[0] * squares[1])
    cosine = sum_of(x[0] * x[1]) * reciprocal
    excess = cosine - rows.margin
    alike, unlike = rows.target == 1, rows.target == -1
    value = np.where(alike, 1.0 - cosine, np.where(unlike, clamped(excess), 0.0))
    sign = np.where(alike, -1.0, np.where(unlike & (excess >= 0), 1.0, 0.0))

    def by(k: int) -> Callable[[], Any]:
        return lambda: sign * (x[1 - k] * reciprocal - cosine / squares[k] * x[k])

    return value, {"input1": by(0), "input2": by(1)}


_COSINE_EMBEDDING = RowLoss(
    name="cosine_embedding_loss",
    struct="CosineEmbedding",
    formula=_cosine_embedding,
    operands=("input1", "input2", "target"),
    roles={"input1": ELEMENTS, "input2": ELEMENTS, "target": NUMBER},
    parameters=("margin",),
    broadcasts=True,
    domains={"target": SIGN},
)


@loss_function(margin=Real(), axis=Integer())
def cosine_embedding_loss(
    input1: ArrayT,
    input2: Array,
    target: Array,
    *,
    margin: float = 0.0,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = -1,
) -> Prepared[ArrayT]:
    """Compute how far the angle between two vectors is from what it should be.

    Formula: 1 - cos(input1, input2) where target is 1, max(cos(input1, input2) - margin, 0) where
    it is -1

    The cosine is that of torch, sum(input1 input2) / sqrt((sum(input1^2) + 1e-12) (sum(input2^2) +
    1e-12)). Other targets give 0. At the margin the derivative is that of the right side.

    Args:
        input1: The vectors, of shape (…, D), or with D at `axis`.
        input2: Others, a shape of as many dimensions that broadcasts with `input1`.
        target: 1 for vectors that should be alike, -1 for those that should not, of shape (…).
        margin: The cosine up to which vectors are not alike.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis of `input1` and `input2` that the components of a vector lie along.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.embedding` says.

    Source: `torch.nn.functional.cosine_embedding_loss`.

    >>> x, y = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [2.0, 2.0]])
    >>> cosine_embedding_loss(x, y, np.array([1, -1]), reduction="none").round(4).tolist()
    [1.0, 1.0]

    """
    operands, parameters = (input1, input2, target), (margin,)
    return call_of(
        _COSINE_EMBEDDING, operands, reduction, None, where, parameters, scale, sample_weight, axis
    )


# The norms that the kernels tell apart: 0, 1, 2, any other and infinity.
_OTHER, _INFINITE = 3, 4


def _root(x: Any) -> Any:
    """The square root; its derivative at 0 is 0."""

    def derivative(x: Any) -> Any:
        none = x == 0
        return np.where(none, 0.0, 0.5 / _root(np.where(none, 1.0, x)))

    return with_derivatives(np.sqrt, (derivative,), (x,))


class _Distance:
    """The p-norm of the differences of vectors, and its gradient."""

    def __init__(self, difference: Any, norm: int, p: float) -> None:
        self._difference, self._norm, self._p = difference, norm, p
        if norm == 2:
            self.value = _root(sum_of(difference * difference))
            return
        size = abs(difference)
        if norm == 0:
            self.value = sum_of(np.where(size == 0, 0.0, 1.0))
        elif norm == 1:
            self.value = sum_of(size)
        elif norm == _INFINITE:
            largest = np.max(plain(size), axis=-1, keepdims=True, initial=0.0)
            ties = plain(size) == largest
            # Where several are the largest, each has its part of the derivative.
            part = self._part = ties / np.maximum(np.sum(ties, axis=-1, keepdims=True), 1)
            of_ties = with_derivatives(np.zeros_like, (lambda _: part,), (size,))
            self.value = largest + sum_of(np.where(ties, of_ties, 0.0))
        else:
            # Zeros stay out, as the derivatives of their powers may be infinite.
            self._some = size != 0
            self._size = np.where(self._some, size, 1.0)
            powers = sum_of(np.where(self._some, self._size**p, 0.0))
            root = np.where(powers == 0, 1.0, powers) ** (1.0 / p)
            self.value = np.where(powers == 0, 0.0, root)
            self._scale = root ** (1.0 - p)

    def gradient(self, factor: Any) -> Any:
        """A factor of each row times the derivative by each difference, 0 for the distance 0."""
        if self._norm == 2:
            return np.where(self.value == 0, 0.0, factor / self.value) * self._difference
        sign = sign_of(self._difference)
        if self._norm == 0:
            return np.zeros_like(sign)
        if self._norm == 1:
            return factor * sign
        if self._norm == _INFINITE:
            return factor * (sign * self._part)
        powers = sign * self._size ** (self._p - 1.0)
        return factor * self._scale * np.where(self._some, powers, 0.0)


def _triplet_margin(norm: int, swap: bool) -> Callable[[Rows], Evaluated]:
    def formula(rows: Rows) -> Evaluated:
        def distance(x: Any, y: Any) -> _Distance:
            return _Distance(x - y + rows.eps, norm, rows.p)

        near, far = distance(rows.anchor, rows.positive), distance(rows.anchor, rows.negative)
        distances, least = [near, far], far.value
        slopes: list[Any] = [1.0, -1.0]
        if swap:
            swapped = distance(rows.positive, rows.negative)
            less, tied = swapped.value < far.value, swapped.value == far.value
            part = np.where(less, 1.0, np.where(tied, 0.5, 0.0))
            distances, slopes = [near, far, swapped], [1.0, part - 1.0, -part]
            least = np.minimum(far.value, swapped.value)
        excess = rows.margin + near.value - least
        active = np.where(excess >= 0, 1.0, 0.0)

        def by(*signs: float) -> Callable[[], Any]:
            def gradient() -> Any:
                parts = zip(signs, slopes, distances, strict=False)
                terms = [d.gradient(active * (s * slope)) for s, slope, d in parts if s]
                return functools.reduce(operator.add, terms)

            return gradient

        return clamped(excess), {
            "anchor": by(1.0, 1.0, 0.0),
            "positive": by(-1.0, 0.0, 1.0),
            "negative": by(0.0, -1.0, -1.0),
        }

    return formula


_MARGIN = Real(minimum=0.0, open=True)
_TRIPLET_MARGIN = {
    (norm, swap): RowLoss(
        name=variant("triplet_margin_loss", norm=norm, swap=swap),
        struct="TripletMargin",
        formula=_triplet_margin(norm, swap),
        operands=("anchor", "positive", "negative"),
        roles=dict.fromkeys(("anchor", "positive", "negative"), ELEMENTS),
        parameters=("margin", "p", "eps"),
        options=(norm, swap),
        sums=2 + swap,
        broadcasts=True,
    )
    for norm in (0, 1, 2, _OTHER, _INFINITE)
    for swap in (False, True)
}


@loss_function(
    margin=_MARGIN,
    p=Real(minimum=0.0, infinite=True),
    eps=Real(),
    swap=Flag(),
    axis=Integer(),
)
def triplet_margin_loss(
    anchor: ArrayT,
    positive: Array,
    negative: Array,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = -1,
) -> Prepared[ArrayT]:
    """Compute how far a vector is from being nearer to one vector than to another by a margin.

    Formula: max(d(anchor, positive) - d(anchor, negative) + margin, 0), with d(x, y) = norm_p(x - y
    + eps)

    With swap, d(positive, negative) takes the place of d(anchor, negative) where it is smaller, and
    where both are equal each has half of the derivative. The derivative of a distance of 0 is 0. At
    the margin the derivative is that of the right side.

    Args:
        anchor: The vectors, of shape (…, D), or with D at `axis`.
        positive: Those that they should be near to, a shape of as many dimensions that broadcasts.
        negative: Those that they should be far from, a shape of as many dimensions that broadcasts.
        margin: How much nearer, above 0.
        p: The norm, from 0, the number of components that differ, to infinity.
        eps: What is added to the differences.
        swap: Whether positive and negative should be far from each other too.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis that the components of a vector lie along.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.embedding` says.

    Source: `torch.nn.functional.triplet_margin_loss`; Balntas et al., Learning local feature
    descriptors with triplets and shallow convolutional neural networks, 2016.

    >>> anchor, positive, negative = np.zeros((1, 2)), np.ones((1, 2)), np.array([[3.0, 4.0]])
    >>> float(triplet_margin_loss(anchor, positive, negative, margin=5.0, eps=0.0).round(4))
    1.4142

    """
    norm = {0.0: 0, 1.0: 1, 2.0: 2, math.inf: _INFINITE}.get(p, _OTHER)
    parameters = margin, 1.0 if norm == _INFINITE else p, eps
    loss, operands = _TRIPLET_MARGIN[norm, swap], (anchor, positive, negative)
    return call_of(loss, operands, reduction, None, where, parameters, scale, sample_weight, axis)


def _prepare_with_distance(
    anchor: Array,
    positive: Array,
    negative: Array,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    **options: Any,
) -> Prepared[Any]:
    if distance_function is not None:
        raise TypeError(
            "distance_function must be None to take a gradient, which is known of the built-in "
            f"distance alone, got {distance_function!r}"
        )
    return prepare_of(triplet_margin_loss)(anchor, positive, negative, **options)


@prepared_by(_prepare_with_distance, margin=_MARGIN, swap=Flag())
def triplet_margin_with_distance_loss(
    anchor: ArrayT,
    positive: Array,
    negative: Array,
    *,
    distance_function: Callable[[Any, Any], ArrayT] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    where: Array | None = None,
    sample_weight: Array | None = None,
) -> ArrayT:
    """Compute `triplet_margin_loss` with a distance of one's own.

    Formula: max(d(anchor, positive) - d(anchor, negative) + margin, 0), with d = distance_function

    The distances are computed by `distance_function`, the rest is fused. torch's autograd
    differentiates by what the distances were computed from; `value_and_grad` takes the built-in
    distance only.

    Args:
        anchor: What `distance_function` takes.
        positive: What it should be near to.
        negative: What it should be far from.
        distance_function: A function of two arrays that returns one of distances, or None for that
            of `triplet_margin_loss` with its defaults.
        margin: How much nearer, above 0.
        swap: Whether positive and negative should be far from each other too.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        where: Which triplets count, of the shape of their distances, or None for all.
        sample_weight: The weight of each triplet, of the shape of their distances, or None.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.embedding` says.

    Source: `torch.nn.functional.triplet_margin_with_distance_loss`.

    >>> anchor, positive, negative = np.zeros((1, 2)), np.ones((1, 2)), np.array([[3.0, 4.0]])
    >>> def city_block(x, y):
    ...     return abs(x - y).sum(axis=-1)
    >>> arrays = anchor, positive, negative
    >>> float(triplet_margin_with_distance_loss(*arrays, distance_function=city_block, margin=6.0))
    1.0

    """
    reduced: dict[str, Any] = {"reduction": reduction, "scale": scale, "where": where}
    if distance_function is None:
        return triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=margin,
            swap=swap,
            sample_weight=sample_weight,
            **reduced,
        )
    if not callable(distance_function):
        raise TypeError(
            "distance_function must be a function of two arrays, "
            f"got {type(distance_function).__name__}"
        )
    near: Any = distance_function(anchor, positive)
    far: Any = distance_function(anchor, negative)
    for distance in (near, far):
        if not hasattr(distance, "dtype"):
            kind = type(distance).__name__
            raise TypeError(f"distance_function must return an array of distances, got {kind}")
    if not compiled.is_compiling() and compiled.proxy_among((near, far), {}) is None:
        names = "distance_function(anchor, positive)", "distance_function(anchor, negative)"
        check_dtypes([dtype_name(near.dtype), dtype_name(far.dtype)], names)
    if swap:
        far = _minimum(far, distance_function(positive, negative))
    # By a method of tensors torch's compiler can trace it.
    one = far.new_ones(()) if hasattr(far, "new_ones") else one_like("the distance", far)
    if sample_weight is not None and where is None:
        # With a mask, gradients are 0 where the weights add up to 0, as those of rows are.
        reduced["where"] = one > 0
    weighted: dict[str, Any] = {"weight": sample_weight, **reduced}
    result: ArrayT = margin_ranking_loss(far, near, one, margin=margin, **weighted)
    return result


def _minimum(a: Any, b: Any) -> Any:
    """The smaller one of two arrays of a library, elementwise."""
    if hasattr(a, "minimum"):
        return a.minimum(b)  # torch has no namespace
    namespace = getattr(a, "__array_namespace__", None)
    return (np if namespace is None else namespace()).minimum(a, b)

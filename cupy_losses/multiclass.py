"""Losses of one class in many, or of several labels, from the scores of all classes.

The scores of a row lie along `axis` of `input`: by default axis 1, (N, C) or (N, C, d1, …), or the
only one, (C,), in `cross_entropy` and `nll_loss`, and the last axis in the others. Nothing is moved
or copied for it, and gradients lie as their operands do. Targets that are classes are integers of
any dtype in 0 … C - 1. For one that is out of range the loss and the gradient of the row are NaN,
see `check_values`; no memory outside of the arrays is read. One class, or label, may have shape ()
or (1,), as in torch.

`reduction="none"` gives the loss of each row, "mean" and "sum" an array of shape (). The dtype of
the result is that to which torch promotes the arrays of numbers, without the weight; float16 and
bfloat16 are computed in float32, on the host in float64. Of no rows the mean is NaN and the sum 0.
`scale` is what `cupy_losses.regression` says.

`where`, a boolean mask, and `sample_weight` have a number for each row; they have the shape that
`reduction="none"` gives, or one that broadcasts to it. What the mask leaves out adds nothing, even
if it is NaN, has the gradient 0, and is not counted by the mean. The weight multiplies the loss of
a row, and a mean then divides by the sum of the weights of the rows that count, each times that of
its class where the mean divides by weights of classes. torch's autograd differentiates by it.

All raise TypeError for what is no array, and for a dtype or a parameter of the wrong kind;
ValueError for shapes that do not fit, devices that differ, an unknown reduction, or a parameter out
of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ._api.entrance import loss_function
from ._api.prepared import Prepared, call_of
from ._core.arguments import Choice, Flag, Integer, Real
from ._core.dtypes import FLOATING, dtype_name
from ._core.loss import PROBABILITY, Call, variant
from ._core.rows import ELEMENTS, INDEX, LABELS, Part, of_integers
from ._core.types import Array, ArrayT, Reduction
from ._host.dual import plain
from ._host.row_formulas import Evaluated, Rows, sum_of
from ._kinds.multilabel import MultilabelLoss
from ._kinds.rows import RowLoss

__all__ = [
    "cross_entropy",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "nll_loss",
]


def _below_largest(rows: Rows) -> tuple[Any, Any]:
    """The largest of each row, and how far below it the elements are, in their memory if it may."""
    x = rows.input
    top = np.maximum.reduce(plain(x), axis=-1, keepdims=True, initial=-np.inf)
    overwrites = "input" in rows.copied and isinstance(x, np.ndarray)
    return top, np.subtract(x, top, out=x) if overwrites else x - top


def _powers(below: Any, overwrites: bool) -> Any:
    """The exponentials, which may take the memory of an array."""
    overwrites = overwrites and isinstance(below, np.ndarray)
    return np.exp(below, out=below) if overwrites else np.exp(below)


def _cross_entropy(rows: Rows) -> Evaluated:
    target, smoothing, z = rows.at(rows.target), rows.label_smoothing, rows.z_loss
    own_weight = rows.weight_of(rows.target)
    top, below = _below_largest(rows)
    own_below = target.of(below)
    powers = _powers(below, overwrites=not smoothing)
    # The target's own term stays apart: where it is by far the largest, the loss is what the others
    # add.
    own, powers = target.of(powers), target.put_into(powers, 0.0)
    others = sum_of(powers)
    log_sum = np.log1p(others + (own - 1.0))
    value = own_weight * (1.0 - smoothing) * (log_sum - own_below)
    share = smoothing / max(rows.columns, 1)
    rest: Any = 0.0
    if smoothing:
        value = value + share * sum_of(rows.weight * (log_sum - below))
        all_weights = np.sum(np.broadcast_to(rows.weight, rows.columns))
        rest = share * (all_weights - own_weight)
    if z:
        lse = top + log_sum
        value = value + own_weight * z * lse * lse
        rest = rest + 2.0 * own_weight * z * lse

    def by_input() -> Any:
        scale = (own_weight * (1.0 - smoothing + share) + rest) / (others + own)
        slopes = scale * powers
        if smoothing:
            slopes = slopes - share * rows.weight
        return target.put_into(slopes, rest - scale * others)

    return value, {"input": by_input}


def _cross_entropy_of_probabilities(rows: Rows) -> Evaluated:
    smoothing, z = rows.label_smoothing, rows.z_loss
    top, below = _below_largest(rows)
    powers = _powers(below, overwrites=False)
    # As above, with the first of the largest for the target.
    first = rows.at(_first(plain(below) == 0))
    own, others = first.of(powers), sum_of(first.put(powers, 0.0))
    total, log_sum = others + own, np.log1p(others + (own - 1.0))
    counts = rows.weight * ((1.0 - smoothing) * rows.target + smoothing / max(rows.columns, 1))
    value, by_log_sum = sum_of(counts * (log_sum - below)), sum_of(counts)
    if z:
        lse = top + log_sum
        value, by_log_sum = value + z * lse * lse, by_log_sum + 2.0 * z * lse
    return value, {
        "input": lambda: by_log_sum / total * powers - counts,
        "target": lambda: (1.0 - smoothing) * rows.weight * (log_sum - below),
    }


def _first(condition: Any) -> Any:
    """Where a condition holds first in each row; -1 in a row where it does not."""
    if condition.shape[-1] == 0:
        return np.full((len(condition), 1), -1)
    found = np.argmax(condition, axis=-1, keepdims=True)
    return np.where(condition.any(axis=-1, keepdims=True), found, -1)


def _of_weighted_target(call: Call, z_loss: float = 0.0) -> Call:
    loss = _OF_PROBABILITIES[False, z_loss != 0, False]
    return Call(loss, "none", (0.0, z_loss), axis=call.axis)


def _weighted_target(call: Call, columns: int, weight: Any, target: Any) -> Any:
    smoothing = call.named_parameters["label_smoothing"]
    return weight * ((1.0 - smoothing) * target + smoothing / max(columns, 1))


def _weighted_parts(call: Call, columns: int, weight: Any, target: Any) -> list[Part]:
    parts = [(_of_weighted_target(call), _weighted_target(call, columns, weight, target), False)]
    z_loss = call.named_parameters["z_loss"]
    return [*parts, (_of_weighted_target(call, z_loss), 0.0 * target, True)] if z_loss else parts


def _weighted_parts_of_probabilities(
    call: Call, columns: int, weight: Any, target: Any
) -> list[Part]:
    z_loss = call.named_parameters["z_loss"]
    return [
        (_of_weighted_target(call, z_loss), _weighted_target(call, columns, weight, target), False)
    ]


_VARIANTS = [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]

_CROSS_ENTROPY = {
    (smoothed, z, overwrites): RowLoss(
        name=variant("cross_entropy", smoothed=smoothed, z=z, overwrites=overwrites),
        struct="CrossEntropy",
        formula=_cross_entropy,
        operands=("input", "target"),
        roles={"input": ELEMENTS, "target": INDEX},
        parameters=("ignore_index", "label_smoothing", "z_loss"),
        integers=("ignore_index",),
        options=(smoothed, z),
        classes=True,
        weights=True,
        weighted_mean=True,
        weighted_parts=_weighted_parts if smoothed else None,
        overwrites=overwrites,
        precise=True,
        hides=not smoothed,
        sums=3 if smoothed else 1,
        other_form="; probabilities must have a floating dtype",
    )
    for smoothed, z, overwrites in _VARIANTS
}
_OF_PROBABILITIES = {
    (smoothed, z, overwrites): RowLoss(
        name=variant(
            "cross_entropy", probabilities=True, smoothed=smoothed, z=z, overwrites=overwrites
        ),
        struct="CrossEntropyOfProbabilities",
        formula=_cross_entropy_of_probabilities,
        operands=("input", "target"),
        roles={"input": ELEMENTS, "target": ELEMENTS},
        parameters=("label_smoothing", "z_loss"),
        options=(smoothed, z),
        classes=True,
        weights=True,
        weighted_parts=_weighted_parts_of_probabilities,
        overwrites=overwrites,
        precise=True,
        domains={"target": PROBABILITY},
        other_form=f"; classes must have an integer dtype{of_integers('target')}",
    )
    for smoothed, z, overwrites in _VARIANTS
}


@loss_function(
    ignore_index=Integer(),
    label_smoothing=Real(minimum=0.0, maximum=1.0),
    z_loss=Real(minimum=0.0),
    overwrite_input=Flag(),
    axis=Integer(),
)
def cross_entropy(
    input: ArrayT,
    target: Array,
    *,
    weight: Array | None = None,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    ignore_index: int | np.integer[Any] = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    overwrite_input: bool = False,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = 1,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of a class, from logits.

    Formula: -sum_j w_j y_j log_softmax(input)_j + z_loss logsumexp(input)^2

    y is 1 at the class t, or `target` itself where that has a floating dtype: then it holds
    probabilities. Smoothing turns y into (1 - label_smoothing) y + label_smoothing / C. With
    classes the term of z_loss is multiplied by w_t too, and the mean divides by the sum of w_t over
    the rows that are not ignored; with probabilities it divides by the number of rows.

    With `overwrite_input`, for logits too large to be there twice, the gradient by `input` takes
    the memory of `input`: `value_and_grad` returns `input` itself as the gradient. A torch tensor
    that requires grad holds its gradient as soon as the loss is there, any other use of its values
    by autograd raises, and there is one backward pass only. Where no gradient is computed, nothing
    is overwritten. Arrays that share memory with `input` are refused, and so are an `input` of a
    library that takes results by DLPack, as it may be immutable, and a torch tensor of float16 that
    requires grad, whose gradient may underflow before grad_output is known.

    Args:
        input: The logits, log-probabilities up to a constant of each row, of shape (C,), (N, C) or
            (N, C, d1, …), or with C at `axis`.
        target: The classes, integers of shape (), (N,) or (N, d1, …); or their probabilities, of
            the shape of `input`.
        weight: The weight of each class, of shape (C,), or None.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        ignore_index: The class of rows that do not count, in or out of range.
        label_smoothing: How much of y is spread over all classes, in [0, 1].
        z_loss: How much the square of the log of the sum of all exponentials counts, at least 0.
        overwrite_input: Whether the gradient may take the memory of `input`.
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis of `input` that the classes lie along; 1 may also be the only one.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.multiclass` says.

    Source: `torch.nn.functional.cross_entropy`; Szegedy et al., Rethinking the Inception
    architecture for computer vision, 2016, for the smoothing; Chowdhery et al., PaLM: scaling
    language modeling with Pathways, 2022, for z_loss.

    >>> float(cross_entropy(np.zeros((2, 4)), np.array([3, -100])))
    1.3862943611198906
    >>> cross_entropy(np.zeros((1, 2)), np.array([[0.5, 0.5]]), reduction="none").round(4).tolist()
    [0.6931]

    """
    options, operands = (label_smoothing != 0, z_loss != 0, overwrite_input), (input, target)
    if not _is_floating(target):
        loss = _CROSS_ENTROPY[options]
        parameters: tuple[float | int, ...] = int(ignore_index), label_smoothing, z_loss
    else:
        if ignore_index >= 0:
            raise ValueError(
                "ignore_index is not supported where target is probabilities, of a floating dtype, "
                f"got {ignore_index}"
            )
        loss, parameters = _OF_PROBABILITIES[options], (label_smoothing, z_loss)
    return call_of(loss, operands, reduction, weight, where, parameters, scale, sample_weight, axis)


def _is_floating(array: Array) -> bool:
    return dtype_name(getattr(array, "dtype", None)) in FLOATING


def _negative_log_likelihood(rows: Rows) -> Evaluated:
    weight = rows.weight_of(rows.target)
    return -weight * rows.input, {"input": lambda: -weight}


_NLL = RowLoss(
    name="nll_loss",
    struct="NegativeLogLikelihood",
    formula=_negative_log_likelihood,
    operands=("input", "target"),
    roles={"input": ELEMENTS, "target": INDEX},
    parameters=("ignore_index",),
    integers=("ignore_index",),
    classes=True,
    weights=True,
    weighted_mean=True,
    gathers=True,
)


@loss_function(ignore_index=Integer(), axis=Integer())
def nll_loss(
    input: ArrayT,
    target: Array,
    *,
    weight: Array | None = None,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    ignore_index: int | np.integer[Any] = -100,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = 1,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of a class, from log-probabilities.

    Formula: -w_t input_t, t being the class

    The mean divides by the sum of w_t over the rows that are not ignored.

    Args:
        input: The log-probabilities, of shape (C,), (N, C) or (N, C, d1, …), or with C at `axis`.
        target: The classes, integers of shape (), (N,) or (N, d1, …).
        weight: The weight of each class, of shape (C,), or None.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        ignore_index: The class of rows that do not count, in or out of range.
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis of `input` that the classes lie along; 1 may also be the only one.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.multiclass` says.

    Source: `torch.nn.functional.nll_loss`.

    >>> float(nll_loss(np.array([[-1.0, -2.0], [-3.0, -4.0]]), np.array([0, 1])))
    2.5

    """
    operands, parameters = (input, target), (int(ignore_index),)
    return call_of(_NLL, operands, reduction, weight, where, parameters, scale, sample_weight, axis)


def _multi_margin(squared: bool) -> Callable[[Rows], Evaluated]:
    def formula(rows: Rows) -> Evaluated:
        target, x = rows.at(rows.target), rows.input
        violation = rows.margin - target.of(x) + x
        active = target.put(violation > 0, False)
        scale = rows.weight_of(rows.target) / np.float64(rows.columns)
        terms = np.where(active, violation * violation if squared else violation, 0.0)

        def by_input() -> Any:
            slopes = np.where(active, 2.0 * violation if squared else 1.0, 0.0)
            return scale * target.put_into(slopes, -sum_of(slopes))

        return scale * sum_of(terms), {"input": by_input}

    return formula


_MULTI_MARGIN = {
    squared: RowLoss(
        name=variant("multi_margin_loss", squared=squared),
        struct="MultiMargin",
        formula=_multi_margin(squared),
        operands=("input", "target"),
        roles={"input": ELEMENTS, "target": INDEX},
        parameters=("margin",),
        options=(squared,),
        sums=2,
        weights=True,
        hides=True,
    )
    for squared in (False, True)
}


@loss_function(p=Choice((1, 2)), margin=Real(), axis=Integer())
def multi_margin_loss(
    input: ArrayT,
    target: Array,
    *,
    p: Literal[1, 2] = 1,
    margin: float = 1.0,
    weight: Array | None = None,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = -1,
) -> Prepared[ArrayT]:
    """Compute how far the scores of all other classes are from being a margin below the class's.

    Formula: w_t / C sum over j other than t of max(margin - input_t + input_j, 0)^p, t being the
    class

    The derivative at the margin is 0. The mean divides by the number of rows.

    Args:
        input: The scores, of shape (…, C), or with C at `axis`.
        target: The classes, integers of shape (…).
        p: The exponent, 1 or 2.
        margin: The margin.
        weight: The weight of each class, of shape (C,), or None.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis of `input` that the scores of a row lie along.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.multiclass` says.

    Source: `torch.nn.functional.multi_margin_loss`; Crammer and Singer, On the algorithmic
    implementation of multiclass kernel-based vector machines, 2001, for the margin.

    >>> float(multi_margin_loss(np.array([[0.5, 1.0, -2.0, 0.0]]), np.array([1])))
    0.125

    """
    loss, operands, parameters = _MULTI_MARGIN[p == 2], (input, target), (margin,)
    return call_of(loss, operands, reduction, weight, where, parameters, scale, sample_weight, axis)


def _multilabel_margin(rows: Rows) -> Evaluated:
    x = rows.input
    # One label of every row after the other: memory does not grow with the number of labels.
    labels = [label[:, None] for label in rows.target.T if (label >= 0).any()]
    marked = np.zeros(np.shape(plain(x)), bool)
    for label in labels:
        marked = rows.at(label).put_into(marked, True)
    value: Any = np.zeros((len(marked), 1))
    slope = np.zeros(marked.shape)
    for label in labels:
        target = rows.at(label)
        violation = 1.0 - target.of(x) + x
        active = ~marked & (violation > 0) & (label >= 0)
        value = value + sum_of(np.where(active, violation, 0.0))
        slopes = active.astype(np.float64)
        slope += target.put_into(slopes, -sum_of(slopes))
    scale = 1.0 / np.float64(rows.columns)
    return scale * value, {"input": lambda: scale * slope}


_MULTILABEL_MARGIN = MultilabelLoss(
    name="multilabel_margin_loss",
    struct="MultilabelMargin",
    formula=_multilabel_margin,
    operands=("input", "target"),
    roles={"input": ELEMENTS, "target": LABELS},
)


@loss_function(axis=Integer())
def multilabel_margin_loss(
    input: ArrayT,
    target: Array,
    *,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    where: Array | None = None,
    sample_weight: Array | None = None,
    axis: int = -1,
) -> Prepared[ArrayT]:
    """Compute how far the scores of all labels that do not hold are from being 1 below the others.

    Formula: 1 / C sum over labels t that hold and all j that do not of max(1 - input_t + input_j,
    0)

    A label that is listed twice counts twice. The derivative at the margin is 0.

    Args:
        input: The scores, of shape (…, C), or with C at `axis`.
        target: The labels that hold, integers of the same shape: those of a row come first, a
            negative one ends them.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        where: Which rows count, booleans of the shape of the rows, or None for all.
        sample_weight: The weight of each row, of the shape of the rows, or None.
        axis: The axis of `input` and `target` that the scores of a row lie along.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.multiclass` says.

    Source: `torch.nn.functional.multilabel_margin_loss`.

    >>> float(multilabel_margin_loss(np.array([[0.5, 1.0, -2.0]]), np.array([[1, -1, 0]])))
    0.16666666666666666

    """
    return call_of(
        _MULTILABEL_MARGIN, (input, target), reduction, None, where, (), scale, sample_weight, axis
    )

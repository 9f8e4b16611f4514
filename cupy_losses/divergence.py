"""Losses of predicted distributions: divergences and negative log-likelihoods."""

from __future__ import annotations

import math
import numbers
from typing import Any, get_args

import numpy as np

from ._api.entrance import loss_function
from ._api.prepared import Prepared, call_of
from ._core.arguments import Choice, Flag, Real
from ._core.loss import Domain, Formula, variant
from ._core.notices import warn
from ._core.types import Array, ArrayT, KLReduction, Reduction
from ._host.dual import with_derivatives
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "gaussian_nll_loss",
    "kl_div",
    "poisson_nll_loss",
]

_NOT_NEGATIVE = Domain(minimum=0.0)
_VARIANCE = Real(minimum=0.0)

_KL_REDUCTIONS: tuple[str, ...] = get_args(KLReduction)


def _x_log_x(x: Any) -> Any:
    """X log(x), 0 at 0, with the derivative log(x) + 1."""

    def value(x: Any) -> Any:
        return np.where(x == 0, 0.0, x * np.log(x))

    return with_derivatives(value, (lambda x: np.log(x) + 1.0,), (x,))


_KL = {
    False: PointwiseLoss(
        name="kl_div",
        struct="KLDivergence",
        formula=lambda input, target: _x_log_x(target) - target * input,
        options=(False,),
        reductions=_KL_REDUCTIONS,
        domains={"target": _NOT_NEGATIVE},
    ),
    True: PointwiseLoss(
        name=variant("kl_div", log_target=True),
        struct="KLDivergence",
        formula=lambda input, target: np.exp(target) * (target - input),
        options=(True,),
        reductions=_KL_REDUCTIONS,
    ),
}


@loss_function(log_target=Flag(), reduction=Choice(_KL_REDUCTIONS))
def kl_div(
    input: ArrayT,
    target: Array,
    *,
    log_target: bool = False,
    reduction: KLReduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the Kullback-Leibler divergence of log-probabilities from probabilities.

    Formula: target (log(target) - input), or with log_target exp(target) (target - input)

    The divergence is the sum over a distribution: `reduction="batchmean"` is the sum over the
    length of the first axis, "mean" divides by the number of elements and warns of it, as torch's.
    At a target of 0 the derivative by `target` is -inf. A weighted mean divides by the sum of the
    weights.

    Args:
        input: The predicted log-probabilities.
        target: The true probabilities, a shape that broadcasts with `input`.
        log_target: Whether `target` holds log-probabilities too.
        reduction: "none", "mean", "sum" or "batchmean".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.kl_div`; Kullback and Leibler, On information and sufficiency,
    1951.

    >>> float(kl_div(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]]), reduction="batchmean"))
    0.6931471805599453

    """
    if reduction == "mean":
        warn(
            "reduction 'mean' divides by the number of elements: 'batchmean' divides by the number "
            "of distributions, as the mathematical definition does"
        )
    return call_of(_KL[log_target], (input, target), reduction, weight, where, scale=scale)


def _poisson(log_input: bool, full: bool) -> Formula:
    def formula(input: Any, target: Any, eps: float) -> Any:
        expected, logarithm = (np.exp(input), input) if log_input else (input, np.log(input + eps))
        loss = expected - target * logarithm
        if not full:
            return loss
        stirling = _x_log_x(target) - target + 0.5 * np.log(2 * math.pi * target)
        return loss + np.where(target <= 1, 0.0, stirling)

    return formula


_POISSON = {
    (log_input, full): PointwiseLoss(
        name=variant("poisson_nll_loss", log_input=log_input, full=full),
        struct="PoissonNLL",
        formula=_poisson(log_input, full),
        parameters=("eps",),
        options=(log_input, full),
        domains={"target": _NOT_NEGATIVE},
    )
    for log_input in (False, True)
    for full in (False, True)
}


@loss_function(log_input=Flag(), full=Flag(), eps=Real(minimum=0.0))
def poisson_nll_loss(
    input: ArrayT,
    target: Array,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of counts that follow a Poisson distribution.

    Formula: exp(input) - target input, or without log_input input - target log(input + eps)

    `full` adds Stirling's approximation of log(target!), target log(target) - target + log(2 pi
    target) / 2, where target > 1. A weighted mean divides by the sum of the weights.

    Args:
        input: The logarithm of the expected count, or the count itself.
        target: The counts, a shape that broadcasts with `input`.
        log_input: Whether `input` is a logarithm.
        full: Whether to add the term that depends on the target alone.
        eps: What keeps log(0) away without `log_input`, at least 0.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.poisson_nll_loss`.

    >>> poisson_nll_loss(np.zeros(2), np.array([1.0, 2.0]), reduction="none").tolist()
    [1.0, 1.0]

    """
    loss = _POISSON[log_input, full]
    return call_of(loss, (input, target), reduction, weight, where, (eps,), scale=scale)


def _gaussian(full: bool) -> Formula:
    def formula(input: Any, target: Any, var: Any, eps: float) -> Any:
        var = with_derivatives(lambda x: np.where(x < eps, eps, x), (lambda x: 1.0,), (var,))
        d = input - target
        loss = 0.5 * (np.log(var) + d * d / var)
        return loss + 0.5 * math.log(2 * math.pi) if full else loss

    return formula


def _of_one_variance(full: bool) -> Formula:
    formula = _gaussian(full)
    return lambda input, target, eps, var: formula(input, target, np.positive(var), eps)


_GAUSSIAN = {
    full: PointwiseLoss(
        name=variant("gaussian_nll_loss", full=full),
        struct="GaussianNLL",
        formula=_gaussian(full),
        operands=("input", "target", "var"),
        parameters=("eps",),
        options=(full,),
        domains={"var": _NOT_NEGATIVE},
    )
    for full in (False, True)
}
_OF_ONE_VARIANCE = {
    full: PointwiseLoss(
        name=variant("gaussian_nll_loss", one_variance=True, full=full),
        struct="GaussianNLLOfOneVariance",
        formula=_of_one_variance(full),
        parameters=("eps", "var"),
        options=(full,),
    )
    for full in (False, True)
}


@loss_function(full=Flag(), eps=Real(minimum=0.0))
def gaussian_nll_loss(
    input: ArrayT,
    target: Array,
    var: Array | float,
    full: bool = False,
    *,
    eps: float = 1e-6,
    reduction: Reduction = "mean",
    scale: float | Array = 1.0,
    weight: Array | None = None,
    where: Array | None = None,
) -> Prepared[ArrayT]:
    """Compute the negative log-likelihood of values that follow a normal distribution.

    Formula: (log(v) + (input - target)^2 / v) / 2, with v = max(var, eps)

    `full` adds log(2 pi) / 2. The gradient by `var` is that by v, as torch's. A weighted mean
    divides by the sum of the weights.

    Args:
        input: The predicted means.
        target: The true values, a shape that broadcasts with `input`.
        var: The predicted variances: a number, or an array of the shape of `input`, of that shape
            with one axis of length 1, or of that shape without its last axis. Gradients and
            tangents of the last have an axis of length 1 there. A number is none of the operands
            that argnums count.
        full: Whether to add the constant.
        eps: The smallest variance, at least 0.
        reduction: "none", "mean" or "sum".
        scale: What the reduced loss is multiplied by, a number or an array of shape ().
        weight: The weight of each element, which broadcasts, or None.
        where: Which elements count, booleans that broadcast, or None for all.

    Returns:
        The loss; shapes, dtypes and errors as `cupy_losses.regression` says.

    Source: `torch.nn.functional.gaussian_nll_loss`; Nix and Weigend, Estimating the mean and
    variance of the target probability distribution, 1994.

    >>> float(gaussian_nll_loss(np.array([1.0]), np.array([3.0]), np.array([4.0])))
    1.1931471805599454

    """
    if isinstance(var, numbers.Real):
        parameters = (eps, _VARIANCE.checked("var", var))
        loss = _OF_ONE_VARIANCE[full]
        return call_of(loss, (input, target), reduction, weight, where, parameters, scale=scale)
    shape, of_var = getattr(input, "shape", None), getattr(var, "shape", None)
    if shape is not None and of_var is not None and shape != of_var:
        if tuple(of_var) == tuple(shape[:-1]):
            var = var[..., None]  # type: ignore[index]
        elif not _has_one_axis_of_length_1(tuple(shape), tuple(of_var)):
            raise ValueError(
                f"var must have the shape of input, {tuple(shape)}, that shape with one axis of "
                f"length 1, or without its last axis, got {tuple(of_var)}"
            )
    loss = _GAUSSIAN[full]
    return call_of(loss, (input, target, var), reduction, weight, where, (eps,), scale=scale)


def _has_one_axis_of_length_1(shape: tuple[int, ...], of_var: tuple[int, ...]) -> bool:
    """Whether two shapes differ in one axis, of length 1 in the second."""
    if len(shape) != len(of_var):
        return False
    return [b for a, b in zip(shape, of_var, strict=True) if a != b] == [1]

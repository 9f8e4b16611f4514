"""The table of losses that drives the tests: one line a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F

import cupy_losses

Array = Any


@dataclass(frozen=True)
class Case:
    """A loss with parameters, torch's counterpart and an independent reference.

    `value` and `slope` are the loss of one element and its derivative by `input`, in the terms of
    NumPy, of input and target; the derivative by target is -slope.
    """

    name: str
    value: Callable[..., Array]
    slope: Callable[..., Array]
    parameters: dict[str, float] = field(default_factory=dict)
    weighted_mean: bool = True

    @property
    def loss(self) -> Callable[..., Array]:
        """The function under test."""
        return getattr(cupy_losses, self.name)

    @property
    def torch(self) -> Callable[..., Any]:
        """torch's function."""
        return getattr(F, self.name)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value:g}" for name, value in self.parameters.items())
        return f"{self.name}({arguments})"

    def reduce(self, each: Array, reduction: str, weight: Array | None = None) -> Array:
        """The reduced loss, from the unweighted loss of each element."""
        if weight is not None:
            weight = np.broadcast_to(weight, each.shape)
            each = each * weight
        if reduction == "none":
            return each
        return each.sum(dtype=each.dtype) / self.divisor(each, reduction, weight)

    def divisor(self, each: Array, reduction: str, weight: Array | None = None) -> Array:
        """What the reduced loss and its gradient are divided by."""
        if reduction != "mean":
            return each.dtype.type(1)
        if weight is not None and self.weighted_mean:
            return weight.sum(dtype=each.dtype)
        return each.dtype.type(each.size)


def _clip(d: Array, beta: float) -> Array:
    return np.where(abs(d) < beta, d, beta * np.sign(d))


def _huber(d: Array, delta: float) -> Array:
    return np.where(abs(d) < delta, d * d / 2, delta * (abs(d) - delta / 2))


def _case(
    name: str, value: Any, slope: Any, weighted_mean: bool = True, **parameters: float
) -> Case:
    return Case(
        name,
        lambda x, y: value(x - y, **parameters),
        lambda x, y: slope(x - y, **parameters),
        parameters,
        weighted_mean,
    )


LOSSES = [
    _case("l1_loss", abs, np.sign),
    _case("mse_loss", lambda d: d * d, lambda d: 2 * d),
    _case(
        "smooth_l1_loss",
        lambda d, beta: _huber(d, beta) / beta,
        lambda d, beta: _clip(d, beta) / beta,
        beta=1.0,
    ),
    _case(
        "smooth_l1_loss",
        lambda d, beta: _huber(d, beta) / beta,
        lambda d, beta: _clip(d, beta) / beta,
        beta=0.3,
    ),
    _case("smooth_l1_loss", lambda d, beta: abs(d), lambda d, beta: np.sign(d), beta=0.0),
    _case(
        "huber_loss",
        lambda d, delta: _huber(d, delta),
        lambda d, delta: _clip(d, delta),
        False,
        delta=1.0,
    ),
    _case(
        "huber_loss",
        lambda d, delta: _huber(d, delta),
        lambda d, delta: _clip(d, delta),
        False,
        delta=0.7,
    ),
]

"""Losses as users of NumPy or CuPy would write them: whole arrays, one expression after the other.

They take arrays of NumPy or of CuPy, which takes NumPy's functions over. Of rows, their elements
lie along axis 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._core.types import AnyArray


class Plain(NamedTuple):
    """The mean of a loss, and the same with its gradient by the first operand."""

    value: Callable[..., AnyArray]
    both: Callable[..., tuple[AnyArray, AnyArray]]


def _mse(x: AnyArray, y: AnyArray) -> AnyArray:
    return np.mean((x - y) ** 2)


def _mse_both(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    d = x - y
    return np.mean(d * d), (2.0 / d.size) * d


def _l1(x: AnyArray, y: AnyArray) -> AnyArray:
    return np.mean(abs(x - y))


def _l1_both(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    d = x - y
    return np.mean(abs(d)), np.sign(d) / d.size


def _smooth_l1(x: AnyArray, y: AnyArray) -> AnyArray:
    d = abs(x - y)
    return np.mean(np.where(d < 1.0, 0.5 * d * d, d - 0.5))


def _smooth_l1_both(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    d = x - y
    size = abs(d)
    value = np.mean(np.where(size < 1.0, 0.5 * d * d, size - 0.5))
    return value, np.clip(d, -1.0, 1.0) / d.size


def _bce(p: AnyArray, y: AnyArray) -> AnyArray:
    of_one, of_zero = np.maximum(np.log(p), -100.0), np.maximum(np.log1p(-p), -100.0)
    return -np.mean(y * of_one + (1.0 - y) * of_zero)


def _bce_both(p: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    return _bce(p, y), (p - y) / (p * (1.0 - p)) / p.size


def _bce_with_logits(x: AnyArray, y: AnyArray) -> AnyArray:
    return np.mean(np.maximum(x, 0.0) - x * y + np.log1p(np.exp(-abs(x))))


def _bce_with_logits_both(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    return _bce_with_logits(x, y), (1.0 / (1.0 + np.exp(-x)) - y) / x.size


def _kl(x: AnyArray, y: AnyArray) -> AnyArray:
    return np.mean(np.where(y > 0.0, y * np.log(y), 0.0) - y * x)


def _kl_both(x: AnyArray, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    return _kl(x, y), -y / x.size


def _cross_entropy(x: AnyArray, t: AnyArray) -> AnyArray:
    below = x - x.max(1, keepdims=True)
    return np.mean(np.log(np.exp(below).sum(1)) - below[np.arange(len(x), like=t), t])


def _cross_entropy_both(x: AnyArray, t: AnyArray) -> tuple[AnyArray, AnyArray]:
    rows = np.arange(len(x), like=t)
    below = x - x.max(1, keepdims=True)
    powers = np.exp(below)
    sums = powers.sum(1, keepdims=True)
    gradient = powers / sums
    gradient[rows, t] -= 1.0
    gradient /= len(x)
    return np.mean(np.log(sums[:, 0]) - below[rows, t]), gradient


def _nll(x: AnyArray, t: AnyArray) -> AnyArray:
    return -np.mean(x[np.arange(len(x), like=t), t])


def _nll_both(x: AnyArray, t: AnyArray) -> tuple[AnyArray, AnyArray]:
    gradient = np.zeros_like(x)
    gradient[np.arange(len(x), like=t), t] = -1.0 / len(x)
    return _nll(x, t), gradient


def _triplet(a: AnyArray, p: AnyArray, n: AnyArray) -> AnyArray:
    near = np.sqrt(((a - p + 1e-6) ** 2).sum(1))
    far = np.sqrt(((a - n + 1e-6) ** 2).sum(1))
    return np.mean(np.maximum(near - far + 1.0, 0.0))


def _triplet_both(a: AnyArray, p: AnyArray, n: AnyArray) -> tuple[AnyArray, AnyArray]:
    to_near, to_far = a - p + 1e-6, a - n + 1e-6
    near = np.sqrt((to_near**2).sum(1, keepdims=True))
    far = np.sqrt((to_far**2).sum(1, keepdims=True))
    excess = near - far + 1.0
    gradient = np.where(excess > 0.0, (to_near / near - to_far / far) / len(a), 0.0)
    return np.mean(np.maximum(excess, 0.0)), gradient


PLAIN = {
    "mse_loss": Plain(_mse, _mse_both),
    "l1_loss": Plain(_l1, _l1_both),
    "smooth_l1_loss": Plain(_smooth_l1, _smooth_l1_both),
    "huber_loss": Plain(_smooth_l1, _smooth_l1_both),  # the same, as beta and delta are 1
    "binary_cross_entropy": Plain(_bce, _bce_both),
    "binary_cross_entropy_with_logits": Plain(_bce_with_logits, _bce_with_logits_both),
    "kl_div": Plain(_kl, _kl_both),
    "cross_entropy": Plain(_cross_entropy, _cross_entropy_both),
    "nll_loss": Plain(_nll, _nll_both),
    "triplet_margin_loss": Plain(_triplet, _triplet_both),
}

"""docs/migration.md: each loss of another library is what the table says that it is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"


def arrays_of(shape: tuple[int, ...]) -> dict[str, Any]:
    """What the tables of docs/migration.md call their arrays, of rows of four along the last axis.

    The names on the left of a row say which of them the other library takes, in its order.
    """
    rng = np.random.default_rng(0)
    real, unit = rng.standard_normal((5, *shape)), rng.uniform(0.05, 0.95, (2, *shape))
    labels = np.where(real[1] > 0, 1.0, 0.0)
    first, second = unit / unit.sum(-1, keepdims=True)
    return {
        "p": real[0],
        "t": real[1],
        "logits": real[0],
        "labels": labels,
        "signs": np.sign(real[1]),
        "classes": np.resize([0, 3, 1, 2, 0, 1], shape[:-1]),
        "probabilities": first,
        "q": second,
        "log_p": np.log(second),
        "ones": np.ones(shape[:-1]),
        "sample_weight": unit[0, ..., 0],
        "label": labels[..., 0],
        "probability": unit[0, ..., 1],
        "sign": np.sign(real[1, ..., 0]),
        "decision": real[0, ..., 0],
        "ignored": np.resize([0, -1, 1, 2, -1, 1], shape[:-1]),
        "known": np.where(unit[1] > 0.3, labels, -1.0),
        "anchor": real[2],
        "positive": real[3],
        "negative": real[4],
        "scores": torch.from_numpy(rng.standard_normal((2, 3, 4, 5))),
        "drawn": torch.from_numpy(rng.integers(0, 3, (2, 1, 4, 5))),
    }


def huber(p: Any, t: Any) -> Any:
    d = abs(p - t)
    return np.where(d <= 0.7, 0.5 * d**2, 0.7 * (d - 0.35))


def dice(p: Any, y: Any) -> Any:
    return 1 - (2 * (p * y).sum(-1) + 1e-5) / (p.sum(-1) + y.sum(-1) + 1e-5)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def of_class(x: Any, classes: Any) -> Any:
    return np.take_along_axis(log_softmax(x), classes[..., None], -1)[..., 0]


def binary(x: Any, y: Any) -> Any:
    return np.maximum(x, 0) - x * y + np.log1p(np.exp(-abs(x)))


def focal(x: Any, y: Any, alpha: float | None = None) -> Any:
    p = 1 / (1 + np.exp(-x))
    right = p * y + (1 - p) * (1 - y)
    factor = 1.0 if alpha is None else alpha * y + (1 - alpha) * (1 - y)
    return factor * (1 - right) ** 2 * binary(x, y)


def cosine(p: Any, t: Any) -> Any:
    return (p * t).sum(-1) / np.sqrt((p**2).sum(-1) * (t**2).sum(-1))


def log_cosh(p: Any, t: Any) -> Any:
    return np.log(np.cosh(p - t))


def hinge(p: Any, signs: Any) -> Any:
    return np.maximum(1 - p * signs, 0)


def divergence(log_p: Any, targets: Any) -> Any:
    return (targets * (np.log(targets) - log_p)).sum(-1)


def pinball(t: Any, p: Any, alpha: float) -> Any:
    return np.maximum(alpha * (t - p), (alpha - 1) * (t - p))


def dice_cross_entropy(scores: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """MONAI's formula: the Dice loss of each class of each image, and torch's cross entropy."""
    q = torch.softmax(scores, 1)
    y = torch.stack([(drawn[:, 0] == c).to(q.dtype) for c in range(q.shape[1])], 1)
    pixels = (2, 3)
    overlap, both = (q * y).sum(pixels), q.sum(pixels) + y.sum(pixels)
    shares = 1 - (2 * overlap + 1e-5) / (both + 1e-5)
    return shares.mean() + torch.nn.functional.cross_entropy(scores, drawn[:, 0])


def triplet(anchor: Any, positive: Any, negative: Any) -> Any:
    near, far = ((anchor - positive) ** 2).sum(1), ((anchor - negative) ** 2).sum(1)
    return np.maximum(near - far + 0.2, 0).mean()


def sigmoid_known(x: Any, y: Any) -> Any:
    return binary(x, y)[y != -1].mean()


def softmax_ignored(x: Any, classes: Any) -> Any:
    counted = classes != -1
    return -of_class(x[counted], classes[counted]).mean()


# The formula of each row as the other library has it: docs/migration.md says it is computed.
FORMULAS: dict[str, Callable[..., Any]] = {
    "squared_error(p, t)": lambda p, t: (p - t) ** 2,
    "l2_loss(p, t)": lambda p, t: 0.5 * (p - t) ** 2,
    "huber_loss(p, t, delta=0.7)": huber,
    "log_cosh(p, t)": log_cosh,
    "hinge_loss(p, signs)": hinge,
    "sigmoid_binary_cross_entropy(logits, labels)": binary,
    "sigmoid_focal_loss(logits, labels)": focal,
    "sigmoid_focal_loss(logits, labels, alpha=0.3)": lambda x, y: focal(x, y, 0.3),
    "softmax_cross_entropy(logits, probabilities)": lambda x, y: -(y * log_softmax(x)).sum(-1),
    "softmax_cross_entropy_with_integer_labels(logits, classes)": lambda x, c: -of_class(x, c),
    "kl_divergence(log_p, probabilities)": divergence,
    "cosine_distance(p, t)": lambda p, t: 1 - cosine(p, t),
    "MeanSquaredError()(t, p)": lambda t, p: ((p - t) ** 2).mean(),
    "MeanSquaredError()(t, p, sample_weight)": lambda t, p, w: (w[..., None] * (p - t) ** 2).mean(),
    "MeanAbsoluteError()(t, p)": lambda t, p: abs(p - t).mean(),
    "Huber(delta=0.7)(t, p)": lambda t, p: huber(p, t).mean(),
    "LogCosh()(t, p)": lambda t, p: log_cosh(p, t).mean(),
    "Hinge()(signs, p)": lambda s, p: hinge(p, s).mean(),
    "SquaredHinge()(signs, p)": lambda s, p: (hinge(p, s) ** 2).mean(),
    "BinaryCrossentropy(from_logits=True)(labels, logits)": lambda y, x: binary(x, y).mean(),
    "BinaryFocalCrossentropy(from_logits=True)(labels, logits)": lambda y, x: focal(x, y).mean(),
    "CategoricalCrossentropy(from_logits=True)(probabilities, logits)": lambda y, x: (
        -(y * log_softmax(x)).sum(-1).mean()
    ),
    "SparseCategoricalCrossentropy(from_logits=True)(classes, logits)": lambda c, x: (
        -of_class(x, c).mean()
    ),
    "KLDivergence()(probabilities, q)": lambda y, q: divergence(np.log(q), y).mean(),
    "CosineSimilarity()(t, p)": lambda t, p: -cosine(p, t).mean(),
    "mean_squared_error(t, p)": lambda t, p: ((p - t) ** 2).mean(),
    "mean_squared_error(t, p, sample_weight=sample_weight)": lambda t, p, w: np.average(
        ((p - t) ** 2).mean(1), weights=w
    ),
    "mean_absolute_error(t, p)": lambda t, p: abs(p - t).mean(),
    "mean_pinball_loss(t, p, alpha=0.9)": lambda t, p: pinball(t, p, 0.9).mean(),
    "brier_score_loss(label, probability)": lambda y, q: ((q - y) ** 2).mean(),
    "log_loss(label, probability)": lambda y, q: -np.log(np.where(y == 1, q, 1 - q)).mean(),
    "log_loss(label, probability, sample_weight=sample_weight)": lambda y, q, w: np.average(
        -np.log(np.where(y == 1, q, 1 - q)), weights=w
    ),
    "log_loss(classes, q)": lambda c, q: -np.log(q[np.arange(6), c]).mean(),
    "log_loss(classes, q, sample_weight=sample_weight)": lambda c, q, w: np.average(
        -np.log(q[np.arange(6), c]), weights=w
    ),
    "hinge_loss(sign, decision)": lambda s, x: hinge(x, s).mean(),
    "hinge_loss(sign, decision, sample_weight=sample_weight)": lambda s, x, w: np.average(
        hinge(x, s), weights=w
    ),
    "mean_squared_error(p, t)": lambda p, t: ((p - t) ** 2).mean(),
    "mean_absolute_error(p, t)": lambda p, t: abs(p - t).mean(),
    "huber_loss(p, t, 0.7)": lambda p, t: huber(p, t).sum(1),
    "softmax_cross_entropy(logits, ignored)": softmax_ignored,
    "sigmoid_cross_entropy(logits, known)": sigmoid_known,
    "triplet(anchor, positive, negative, margin=0.2)": triplet,
    "FocalLoss()(logits, labels)": lambda x, y: focal(x, y).mean(),
    "FocalLoss(alpha=0.3)(logits, labels)": lambda x, y: focal(x, y, 0.3).mean(),
    "DiceLoss()(q[:, None], labels[:, None])": lambda p, y: dice(p, y).mean(),
    "DiceCELoss(softmax=True, to_onehot_y=True)(scores, drawn)": dice_cross_entropy,
}


def rows_of_migration() -> dict[str, str]:
    """What is here for each loss of another library."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^\| `(.*?)` \| `(.*)` \|$", text, re.MULTILINE)
    rows = dict(found)
    assert len(rows) == len(found)
    return rows


def test_all_rows_of_migration_are_computed() -> None:
    assert rows_of_migration().keys() == FORMULAS.keys()


def own_losses() -> dict[str, Any]:
    """What the page of formulas defines that the table names."""
    text = (PAGE.parent / "formulas.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n([^`]*def dice_loss[^`]*)```", text)
    found: dict[str, Any] = {}
    exec(block, found)
    return {"dice_loss": found["dice_loss"]}


def check_row(theirs: str, shape: tuple[int, ...]) -> None:
    """Both sides are the same number, from the arrays that their call names, in its order."""
    drawn = arrays_of(shape)
    arrays = [drawn[name] for name in re.findall(r"\w+", theirs) if name in drawn]
    # A keyword of the same name as its value is one argument.
    arguments = list({id(array): array for array in arrays}.values())
    names = {name: getattr(cupy_losses, name) for name in cupy_losses.__all__}
    modules = {"np": np, "torch": torch}
    ours = eval(rows_of_migration()[theirs], {**modules, **names, **own_losses(), **drawn})
    np.testing.assert_allclose(ours, FORMULAS[theirs](*arguments), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("theirs", FORMULAS)
def test_migration(theirs: str) -> None:
    check_row(theirs, (6, 4))


def rows_of_last_axis() -> list[str]:
    """The rows of the libraries whose losses over rows reduce the last axis of any array."""
    sections = PAGE.read_text("utf-8").split("\n## ")
    own = [part for part in sections if part.startswith(("optax\n", "Keras\n"))]
    assert len(own) == 2
    return [theirs for theirs in FORMULAS if any(f"| `{theirs}` |" in part for part in own)]


@pytest.mark.parametrize("theirs", rows_of_last_axis())
def test_migration_of_three_dimensions(theirs: str) -> None:
    check_row(theirs, (3, 5, 4))


def test_losses_of_torch_that_are_not_here() -> None:
    (sentence,) = re.findall(r"Of torch's losses (.*?)not here", PAGE.read_text("utf-8"), re.DOTALL)
    named = set(re.findall(r"`(\w+)`", sentence))
    assert named.isdisjoint(cupy_losses.__all__)
    losses = {name for name in dir(torch.nn.functional) if re.search("^[^_].*(loss|entropy)", name)}
    assert losses - set(cupy_losses.__all__) <= named

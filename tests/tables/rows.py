"""The table of losses over rows that drives their tests.

The references are NumPy expressions of their own, in whatever precision the operands have, on
operands whose last axis runs along the rows. They are analytic on each side of their kinks, so that
complex steps give exact derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch.nn.functional as F

import cupy_losses

from .losses import clamp, magnitude, real

Array = Any
Operands = dict[str, Array]

# The operands that are passed by name.
BY_NAME = ("weight", "where", "sample_weight")
Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any], "RowCase"], Array]


def scores(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """Log-odds, likely and unlikely."""
    return (3 * rng.standard_normal(shape)).astype(dtype)


def vectors(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """Vectors of real numbers."""
    return rng.standard_normal(shape).astype(dtype)


def probabilities(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """Numbers that add up to 1 in each row."""
    x = rng.uniform(0.01, 1.0, shape)
    return (x / x.sum(axis=case.axis(shape), keepdims=True)).astype(dtype)


def weights(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """A weight for each class."""
    return rng.uniform(0.5, 2.0, shape[case.axis(shape)]).astype(dtype)


def classes(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """The index of a class for each row; where the case ignores one, a third of the rows has it."""
    drawn = rng.integers(0, shape[case.axis(shape)], case.rows_of(shape))
    ignored = case.parameters.get("ignore_index")
    if ignored is None:
        return drawn
    return np.where(rng.random(drawn.shape) < 1 / 3, ignored, drawn)


def labels(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """Up to six labels for each row, some twice, then a negative one and others to be ignored."""
    axis = case.axis(shape)
    drawn = rng.integers(0, shape[axis], (*case.rows_of(shape), shape[axis]))
    count = rng.integers(0, 1 + min(6, shape[axis]), case.rows_of(shape))
    drawn[np.arange(shape[axis]) == np.asarray(count)[..., None]] = -1
    return np.moveaxis(drawn, -1, axis)


def signs(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """1 or -1 for each row."""
    return rng.choice([-1.0, 1.0], case.rows_of(shape)).astype(dtype)


def mask(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """Which rows count: most of them."""
    return np.asarray(rng.random(case.rows_of(shape)) < 0.8)


def mask_of_first(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """The same, alike for all that have an index along the first axis of the rows."""
    rows = case.rows_of(shape)
    return np.asarray(rng.random((*rows[:1], *(1 for _ in rows[1:]))) < 0.8)


def weights_of_rows(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """A weight for each row."""
    return np.asarray(rng.uniform(0.5, 2.0, case.rows_of(shape))).astype(dtype)


def weights_of_last(rng: np.random.Generator, shape: Any, dtype: Any, case: RowCase) -> Array:
    """The same, alike for all that have an index along the last axis of the rows."""
    return np.asarray(rng.uniform(0.5, 2.0, case.rows_of(shape)[-1:])).astype(dtype)


def losses_of_all_sizes(
    rng: np.random.Generator, rows: int, columns: int, scale: float
) -> tuple[Array, Array, Array]:
    """Logits, targets that most often are the largest, and the exact cross entropy of each row."""
    x = (scale * rng.standard_normal((rows, columns))).clip(-1e4, 1e4).astype(np.float32)
    likely = rng.random(rows) < 0.8
    target = np.where(likely, x.argmax(axis=1), rng.integers(0, columns, rows))
    return x, target, surprise(x.astype(np.longdouble), target)


def above(x: Array) -> Array:
    """max(x, 0), with the derivative 0 at 0."""
    return np.where(real(x) > 0, x, 0.0)


def at(x: Array, index: Array) -> Array:
    """The element of each row at an index."""
    return np.take_along_axis(x, np.asarray(index)[..., None], axis=-1)[..., 0]


def log_sum(x: Array) -> Array:
    """The logarithm of the sum over a row of exp(x)."""
    top = real(x).max(axis=-1)
    return top + np.log(np.exp(x - top[..., None]).sum(axis=-1))


def surprise(x: Array, index: Array) -> Array:
    """log_sum(x) - x at an index, without cancellation where that is the largest."""
    other = np.arange(x.shape[-1]) != np.asarray(index)[..., None]
    below = x - at(x, index)[..., None]
    safe = np.where(real(below) > 0, 0.0, below)
    near = np.log1p(np.where(other, np.exp(safe), 0.0).sum(axis=-1))
    return np.where((real(below) > 0).any(axis=-1), log_sum(below), near)


def _counted(target: Array, weight: Array | None, ignore_index: int) -> tuple[Array, Array]:
    ignored = target == ignore_index
    share = np.ones(target.shape) if weight is None else weight[np.where(ignored, 0, target)]
    return ignored, np.where(ignored, 0, share)


def cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Array, Array]:
    """With classes."""
    ignored, share = _counted(target, weight, ignore_index)
    index, columns = np.where(ignored, 0, target), input.shape[-1]
    value = share * (1 - np.longdouble(label_smoothing)) * surprise(input, index)
    if label_smoothing:
        each = np.ones(columns) if weight is None else weight
        spread = (each * (log_sum(input)[..., None] - input)).sum(axis=-1) / columns
        value = value + label_smoothing * spread
    if z_loss:
        value = value + share * z_loss * log_sum(input) ** 2
    return np.where(ignored, 0, value), share


def cross_entropy_of_probabilities(
    input: Array,
    target: Array,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Array, Array]:
    """With probabilities."""
    smoothing = np.longdouble(label_smoothing)
    y = (1 - smoothing) * target + smoothing / input.shape[-1]
    counts = y if weight is None else weight * y
    total = log_sum(input)
    value = (counts * (total[..., None] - input)).sum(axis=-1) + z_loss * total**2
    return value, np.ones(value.shape)


def nll(
    input: Array, target: Array, weight: Array | None = None, ignore_index: int = -100
) -> tuple[Array, Array]:
    """-w_t x_t."""
    ignored, share = _counted(target, weight, ignore_index)
    return -share * at(input, np.where(ignored, 0, target)), share


def multi_margin(
    input: Array, target: Array, weight: Array | None = None, p: int = 1, margin: float = 1.0
) -> tuple[Array, Array]:
    """Violations of the margin, in sum or squared."""
    columns = input.shape[-1]
    other = np.arange(columns) != np.asarray(target)[..., None]
    terms = above(margin - at(input, target)[..., None] + input) ** p
    value = np.where(other, terms, 0).sum(axis=-1) / columns
    return (value if weight is None else weight[target] * value), np.ones(target.shape)


def multilabel_margin(input: Array, target: Array) -> tuple[Array, Array]:
    """Row by row, label by label."""
    columns = input.shape[-1]
    flat = input.reshape(-1, columns)
    values = np.zeros(len(flat), input.dtype)
    for i, (x, given) in enumerate(zip(flat, target.reshape(-1, columns), strict=True)):
        ends = np.flatnonzero(given < 0)
        listed = given[: ends[0]] if ends.size else given
        others = np.setdiff1d(np.arange(columns), listed)
        for t in listed:
            values[i] += above(1 - x[t] + x[others]).sum() / columns
    return values.reshape(input.shape[:-1]), np.ones(input.shape[:-1])


def cosine_embedding(
    input1: Array, input2: Array, target: Array, margin: float = 0.0
) -> tuple[Array, Array]:
    """1 - cos, or max(cos - margin, 0)."""
    tiny = np.longdouble(1e-12)
    squares = ((input1**2).sum(axis=-1) + tiny) * ((input2**2).sum(axis=-1) + tiny)
    cosine = (input1 * input2).sum(axis=-1) / np.sqrt(squares)
    return np.where(target == 1, 1 - cosine, clamp(cosine - margin)), np.ones(target.shape)


def norm(x: Array, p: float) -> Array:
    """The p-norm of each row."""
    size = magnitude(x)
    if p == 0:
        return (real(x) != 0).sum(axis=-1) + 0 * size.sum(axis=-1)
    if p == math.inf:
        return at(size, real(size).argmax(axis=-1))
    if p == 1:
        return size.sum(axis=-1)
    powers = (size**p).sum(axis=-1)
    none = real(powers) == 0
    return np.where(none, 0, np.where(none, 1, powers) ** (1 / np.longdouble(p)))


def triplet_margin(
    anchor: Array,
    positive: Array,
    negative: Array,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
) -> tuple[Array, Array]:
    """Distances within a margin."""
    near, far = norm(anchor - positive + eps, p), norm(anchor - negative + eps, p)
    if swap:
        swapped = norm(positive - negative + eps, p)
        far = np.where(real(swapped) < real(far), swapped, far)
    return clamp(margin + near - far), np.ones(near.shape)


@cupy_losses.row_loss
def tversky_loss(input: Array, target: Array, alpha: float = 0.5) -> Array:
    """A loss over rows of a user's: Tversky's index, a mean of squares, a soft maximum."""
    counted = alpha * np.sum(input) + (1.0 - alpha) * np.sum(target)
    index = 1.0 - np.sum(input * target) / counted
    return index + np.mean((input - target) ** 2) + np.logaddexp.reduce(input - target)


def tversky(input: Array, target: Array, alpha: float) -> tuple[Array, Array]:
    """The same on the last axis."""
    part = np.longdouble(alpha)
    counted = part * input.sum(axis=-1) + (1 - part) * target.sum(axis=-1)
    squares = ((input - target) ** 2).sum(axis=-1) / input.shape[-1]
    value = 1 - (input * target).sum(axis=-1) / counted + squares
    value = value + np.log(np.exp(input - target).sum(axis=-1))
    return value, np.ones(value.shape)


@dataclass(frozen=True)
class RowCase:
    """A loss of rows with parameters, torch's counterpart and an independent reference.

    `reference` gives the value of each row and its share in a mean, from the operands by name.
    `draws` is what each operand is drawn from, `differentiable` names those with gradients.
    """

    name: str
    reference: Callable[..., tuple[Array, Array]]
    draws: dict[str, Draw]
    differentiable: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    classes: bool = False
    of_torch: bool = True
    twice_of_torch: bool = True
    label: str = ""
    function: Callable[..., Array] | None = None

    def __str__(self) -> str:
        options = [name for name in self.draws if name in BY_NAME]
        options += [f"{name}={value}" for name, value in self.parameters.items()]
        return f"{self.name}{self.label}({', '.join(options)})"

    @property
    def loss(self) -> Callable[..., Array]:
        """The function under test."""
        return self.function or getattr(cupy_losses, self.name)

    @property
    def torch(self) -> Callable[..., Array] | None:
        """torch's function of the same meaning."""
        return getattr(F, self.name) if self.of_torch else None

    @property
    def positional(self) -> tuple[str, ...]:
        """The operands that are passed by position."""
        return tuple(name for name in self.draws if name not in BY_NAME)

    def axis(self, shape: Sequence[int]) -> int:
        """The axis of the elements of a row."""
        given = self.parameters.get("axis", 1 if self.classes else -1)
        return min(given, len(shape) - 1) % len(shape)

    def rows_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the rows."""
        axis = self.axis(shape)
        return (*shape[:axis], *shape[axis + 1 :])

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Operands:
        """Operands for elements of a shape, the weights last; NaN where a mask leaves rows out."""
        wanted = np.dtype(dtype)
        drawn = {name: draw(rng, shape, wanted, self) for name, draw in self.draws.items()}
        if "where" in drawn:
            counts = np.broadcast_to(drawn["where"], self.rows_of(shape))
            for name in self.differentiable:
                elements = np.moveaxis(drawn[name], self.axis(shape), -1)
                elements[~counts] = np.nan
        return drawn

    def call(self, operands: Operands, function: Any = None, **options: Any) -> Array:
        """The loss of operands, or what another function makes of them."""
        given = dict(operands)
        arrays = [given.pop(name) for name in self.positional]
        return (function or self.loss)(*arrays, **given, **self.parameters, **options)

    def value(self, operands: Operands) -> Array:
        """The loss of each row."""
        return self._evaluated(self._moved(operands))[0]

    def divisor(self, operands: Operands, reduction: str) -> Array:
        """What the sum over rows is divided by."""
        if reduction != "mean":
            return np.longdouble(1)
        return self._evaluated(self._moved(operands))[1].sum(dtype=np.longdouble)

    def reduced(self, operands: Operands, reduction: str) -> Array:
        """The loss as a call returns it."""
        each = self.value(operands)
        return each if reduction == "none" else each.sum() / self.divisor(operands, reduction)

    def slopes(self, operands: Operands, columns: Iterable[int] | None = None) -> Operands:
        """The derivative of the loss of a row by its elements, in the shape of the elements.

        Of some columns alone, where they are named: each costs an evaluation. Derivatives of
        operands of at most 32 bits are computed in float64, in which complex functions take a
        fraction of the time.
        """
        floating = [x.dtype.itemsize for x in operands.values() if x.dtype.kind not in "iub"]
        kind = np.float64 if max(floating) <= 4 else np.longdouble
        moved, step = self._moved(operands, kind), kind(1e-100)
        axis = self.axis(operands[self.positional[0]].shape)
        found = {}
        for name in self.differentiable:
            parts = []
            for j in range(moved[name].shape[-1]) if columns is None else columns:
                x = moved[name] + np.zeros((), np.result_type(kind, np.complex64))
                x[..., j].imag = step
                value = self._evaluated(moved | {name: x})[0]
                parts.append(np.imag(value) / step)
            found[name] = np.moveaxis(np.stack(parts, axis=-1), -1, axis)
        return found

    def _evaluated(self, moved: Operands) -> tuple[Array, Array]:
        """The value of each row and its share in a mean, of operands that are moved."""
        own = {name: x for name, x in moved.items() if name not in ("where", "sample_weight")}
        parameters = {name: x for name, x in self.parameters.items() if name != "axis"}
        with np.errstate(invalid="ignore"):  # of what is left out
            value, share = self.reference(**own, **parameters)
        counts, weight = moved.get("where", True), moved.get("sample_weight", 1)
        return np.where(counts, weight * value, 0), np.where(counts, weight * share, 0)

    def _moved(self, operands: Operands, kind: Any = np.longdouble) -> Operands:
        """The operands in a wide precision, with the elements of a row along the last axis."""
        shape = operands[self.positional[0]].shape
        moved = {}
        for name, x in operands.items():
            wide = x if x.dtype.kind in "iub" else x.astype(kind)
            elements = x.shape == shape and name != "weight"
            moved[name] = np.moveaxis(wide, self.axis(shape), -1) if elements else wide
        return moved


def _of_classes(name: str, reference: Any, weighted: bool, **parameters: Any) -> RowCase:
    draws: dict[str, Draw] = {"input": scores, "target": classes}
    if weighted:
        draws["weight"] = weights
    over_classes = name != "multi_margin_loss"
    return RowCase(
        name,
        reference,
        draws,
        ("input",),
        parameters,
        classes=over_classes,
        of_torch="z_loss" not in parameters,
        twice_of_torch=over_classes,
    )


def _of_probabilities(weighted: bool, **parameters: Any) -> RowCase:
    draws: dict[str, Draw] = {"input": scores, "target": probabilities}
    if weighted:
        draws["weight"] = weights
    return RowCase(
        "cross_entropy",
        cross_entropy_of_probabilities,
        draws,
        ("input", "target"),
        parameters,
        classes=True,
        of_torch="z_loss" not in parameters,
        label=" of probabilities",
    )


def _triplet(**parameters: Any) -> RowCase:
    names = ("anchor", "positive", "negative")
    draws: dict[str, Draw] = dict.fromkeys(names, vectors)
    return RowCase("triplet_margin_loss", triplet_margin, draws, names, parameters)


def _cosine(margin: float) -> RowCase:
    return RowCase(
        "cosine_embedding_loss",
        cosine_embedding,
        {"input1": vectors, "input2": vectors, "target": signs},
        ("input1", "input2"),
        {"margin": margin},
    )


_TVERSKY = RowCase(
    "tversky_loss",
    tversky,
    {"input": probabilities, "target": probabilities},
    ("input", "target"),
    {"alpha": 0.25},
    of_torch=False,
    function=tversky_loss,
)


def _sampled(case: RowCase, draws: Mapping[str, Draw], **parameters: Any) -> RowCase:
    """A case with a mask or a weight of rows, or with rows along another axis."""
    return replace(
        case,
        draws=case.draws | dict(draws),
        parameters=case.parameters | parameters,
        of_torch=False,
        label=f"{case.label} sampled",
    )


_MULTILABEL_MARGIN = RowCase(
    "multilabel_margin_loss",
    multilabel_margin,
    {"input": scores, "target": labels},
    ("input",),
    twice_of_torch=False,
)

ROWS = [
    *(_of_classes("cross_entropy", cross_entropy, weighted) for weighted in (False, True)),
    _of_classes("cross_entropy", cross_entropy, False, ignore_index=1),
    _of_classes("cross_entropy", cross_entropy, True, ignore_index=-100),
    _of_classes("cross_entropy", cross_entropy, False, label_smoothing=0.1),
    _of_classes("cross_entropy", cross_entropy, True, label_smoothing=1.0, ignore_index=0),
    _of_classes("cross_entropy", cross_entropy, False, z_loss=0.01),
    _of_classes("cross_entropy", cross_entropy, True, label_smoothing=0.3, z_loss=0.1),
    *(_of_probabilities(weighted) for weighted in (False, True)),
    _of_probabilities(False, label_smoothing=0.2),
    _of_probabilities(False, z_loss=0.01),
    _of_probabilities(True, label_smoothing=0.2, z_loss=0.1),
    *(_of_classes("nll_loss", nll, weighted) for weighted in (False, True)),
    _of_classes("nll_loss", nll, True, ignore_index=2),
    _of_classes("multi_margin_loss", multi_margin, False),
    _of_classes("multi_margin_loss", multi_margin, True, p=2, margin=0.5),
    _MULTILABEL_MARGIN,
    *(_cosine(margin) for margin in (0.0, 0.25)),
    *(_triplet(p=p, swap=swap) for p in (2.0, 1.0, math.inf) for swap in (False, True)),
    *(_triplet(p=p) for p in (0.0, 0.5, 1.5)),
    _triplet(p=3.0, swap=True, eps=0.01, margin=0.5),
    _TVERSKY,
]
# With a mask of rows, a weight for each, and rows along other axes.
ALL: dict[str, Draw] = {"where": mask, "sample_weight": weights_of_rows}
SAMPLED = [
    _sampled(_of_classes("cross_entropy", cross_entropy, True, ignore_index=1), ALL),
    _sampled(_of_classes("cross_entropy", cross_entropy, False), {"where": mask}, axis=-1),
    _sampled(
        _of_classes("cross_entropy", cross_entropy, True, label_smoothing=0.3, z_loss=0.1),
        {"where": mask_of_first, "sample_weight": weights_of_last},
        axis=0,
    ),
    _sampled(_of_probabilities(True, label_smoothing=0.2, z_loss=0.1), ALL, axis=0),
    _sampled(_of_probabilities(False), {"sample_weight": weights_of_rows}),
    _sampled(_of_classes("nll_loss", nll, True), ALL),
    _sampled(_of_classes("nll_loss", nll, False), {"sample_weight": weights_of_last}, axis=-1),
    _sampled(_of_classes("multi_margin_loss", multi_margin, True, p=2), ALL),
    _sampled(_of_classes("multi_margin_loss", multi_margin, False), {"where": mask}, axis=0),
    _sampled(_MULTILABEL_MARGIN, ALL),
    _sampled(_MULTILABEL_MARGIN, {"where": mask_of_first}, axis=0),
    _sampled(_cosine(0.25), ALL, axis=0),
    _sampled(_cosine(0.0), {"sample_weight": weights_of_rows}),
    _sampled(_triplet(swap=True), ALL),
    _sampled(_triplet(p=1.0), {"where": mask_of_first}, axis=0),
    _sampled(_TVERSKY, ALL, axis=0),
]
ROWS += SAMPLED


def ids(cases: Sequence[RowCase]) -> list[str]:
    """Names for parametrised tests."""
    return [str(case) for case in cases]

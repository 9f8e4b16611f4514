"""A loss and its derivative along a line through its operands, for a picture.

The line follows from what the operands are. Of elements, the first operand varies. Of a class, the
score of one of two classes varies. Of two vectors, the angle between them varies, and of more, the
distance between the first two. The others are fixed; where an operand has a few typical values,
such as the two signs of a target, there is a curve for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import jvp
from .._core.loss import Domain, Loss
from .._core.rows import ELEMENTS, INDEX, LABELS, RowFormula
from .._core.types import AnyArray
from .losses import NamedLoss

POINTS = 401  # odd: the middle of the range, where kinks are, is one of them
SPAN = 4.0  # of what varies without bounds, to both sides of 0
FAR = 2.0  # the distance of a third vector


class Curve(NamedTuple):
    """The loss over what varies, for one choice of what is fixed.

    Attributes:
        label: What is fixed.
        values: The loss at each point.
        derivatives: Its derivative by what varies.

    """

    label: str
    values: AnyArray
    derivatives: AnyArray


class Curves(NamedTuple):
    """What a picture of a loss shows.

    Attributes:
        axis: The name of what varies.
        points: Its values.
        curves: The loss there.

    """

    axis: str
    points: AnyArray
    curves: list[Curve]


class _Line(NamedTuple):
    """The operands that vary, and their derivatives by what the axis shows."""

    axis: str
    points: AnyArray
    operands: Mapping[str, AnyArray]
    tangents: Mapping[str, AnyArray]
    note: str = ""  # what is fixed of them


def curves_of(function: NamedLoss, arguments: Mapping[str, Any]) -> Curves:
    """The curves of a loss, computed on NumPy; `arguments` are those that are no arrays."""
    loss = function.variant(arguments)
    line = _line_of_rows(loss) if isinstance(loss, RowFormula) else _line_of_elements(loss)
    fixed = [name for name in loss.operands if name not in line.operands]
    found = []
    for chosen in itertools.product(*(_choices(loss, name) for name in fixed)):
        operands = dict(line.operands)
        labels = [line.note] if line.note else []
        for name, value in zip(fixed, chosen, strict=True):
            operands[name] = _filled(loss, name, value)
            labels.append(f"{name} = {value:g}")
        value, derivative = jvp(
            function.function,
            [operands[name] for name in loss.operands],
            [line.tangents.get(name) for name in loss.operands],
            **{**arguments, "reduction": "none"},
        )
        found.append(Curve(", ".join(labels), value.ravel(), derivative.ravel()))
    return Curves(line.axis, line.points, found)


def _line_of_elements(loss: Loss) -> _Line:
    """The first operand varies over its range; each element is a row of its own."""
    name = loss.operands[0]
    low, high = _range(loss.domains.get(name))
    points = np.linspace(low, high, POINTS)
    column = points[:, None]
    return _Line(name, points, {name: column}, {name: np.ones_like(column)})


def _line_of_rows(loss: RowFormula) -> _Line:
    vectors = [name for name in loss.operands if loss.role(name) == ELEMENTS]
    if len(vectors) == 1:
        return _line_of_scores(vectors[0])
    return _line_of_angles(*vectors) if len(vectors) == 2 else _line_of_distances(*vectors)


def _line_of_scores(name: str) -> _Line:
    """The score of class 1 varies, that of class 0 is 0."""
    points = np.linspace(-SPAN, SPAN, POINTS)
    zeros, ones = np.zeros(POINTS), np.ones(POINTS)
    return _Line(
        f"{name}[1] - {name}[0]",
        points,
        {name: np.stack([zeros, points], axis=-1)},
        {name: np.stack([zeros, ones], axis=-1)},
    )


def _line_of_angles(first: str, second: str) -> _Line:
    """The second of two vectors of length 1 turns away from the first."""
    angles = np.linspace(0.0, math.pi, POINTS)
    cosine, sine = np.cos(angles), np.sin(angles)
    turned, turning = np.stack([cosine, sine], axis=-1), np.stack([-sine, cosine], axis=-1)
    still = np.zeros_like(turned)
    still[:, 0] = 1.0
    axis = f"angle between {first} and {second}, radians"
    return _Line(axis, angles, {first: still, second: turned}, {second: turning})


def _line_of_distances(first: str, second: str, *others: str) -> _Line:
    """The second vector moves away from the first on a line, the others stay where they are."""
    points = np.linspace(0.0, SPAN, POINTS)
    column = points[:, None]
    operands = {first: np.zeros_like(column), second: column}
    operands.update(dict.fromkeys(others, np.full_like(column, FAR)))
    note = ", ".join(f"distance between {first} and {name} = {FAR:g}" for name in others)
    axis = f"distance between {first} and {second}"
    return _Line(axis, points, operands, {second: np.ones_like(column)}, note)


def _range(domain: Domain | None) -> tuple[float, float]:
    """From where to where an operand varies."""
    if domain is None or domain.minimum is None:
        return -SPAN, SPAN
    return domain.minimum, min(domain.maximum, domain.minimum + SPAN)


def _choices(loss: Loss, name: str) -> Sequence[float]:
    """The typical values of an operand that does not vary."""
    if isinstance(loss, RowFormula) and loss.role(name).is_index:
        return (0, 1)
    domain = loss.domains.get(name)
    if domain is None:
        return (0.0,)
    if domain.minimum is None:
        return domain.values
    bounded = math.isfinite(domain.maximum)
    return (domain.minimum, domain.maximum) if bounded else (domain.minimum + 1.0,)


def _filled(loss: Loss, name: str, value: float) -> AnyArray:
    """An operand that is the same at each point."""
    if not isinstance(loss, RowFormula):
        return np.full((POINTS, 1), float(value))
    if loss.role(name) == LABELS:
        return np.tile([int(value), -1], (POINTS, 1))
    return np.full(POINTS, int(value) if loss.role(name) == INDEX else float(value))

"""The points at which a formula is checked: random ones, special ones, and those at its kinks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Switches = Callable[..., Sequence[Any]]

_RANDOM = 400  # of each kind
_MOST = 1000  # combinations of special numbers
_SPECIAL = (0.0, 1e-8, 0.5, 1.0, 2.0, 3.0, 10.0, 100.0, 1e4)
_BISECTIONS = 80  # of a segment, which leave neighbours
_SEGMENTS = 4  # for each switch


def drawn(count: int, parameters: Sequence[float]) -> list[Floats]:
    """Random and special points of so many operands, the same every time.

    Numbers of magnitudes from 1e-3 to 1e3, between 0 and 1, and nearly equal operands, which
    cancel; and combinations of special numbers and of the values of the parameters.
    """
    rng = np.random.default_rng(0)
    anywhere = rng.standard_normal((count, _RANDOM)) * 10 ** rng.uniform(-3, 3, (count, _RANDOM))
    between = rng.random((count, _RANDOM))
    near = rng.standard_normal(_RANDOM) * 10 ** rng.uniform(-1, 1, _RANDOM)
    alike = near * (1 + rng.standard_normal((count, _RANDOM)) * 10 ** rng.uniform(-8, -1, _RANDOM))
    numbers = sorted({sign * x for x in (*_SPECIAL, *parameters) for sign in (1.0, -1.0)})
    if len(numbers) ** count <= _MOST:
        special = np.array([*itertools.product(numbers, repeat=count)]).T
    else:
        special = rng.choice(numbers, (count, _MOST))
    return list(np.concatenate([anywhere, between, alike, special], axis=1))


def at_kinks(
    switches: Switches, points: Sequence[Floats], parameters: Mapping[str, float]
) -> tuple[list[Floats], list[Floats]]:
    """The points before and behind a change of sign of what decides between two sides.

    They are neighbours on segments between the given points, found by bisection.
    """
    ends: list[list[Floats]] = [[], []]
    for number, values in enumerate(switches(*points, **parameters)):
        if np.ndim(values) == 0:
            continue  # of parameters alone
        above = np.asarray(values) > 0
        found = np.flatnonzero(above[:-1] != above[1:])[:_SEGMENTS]
        low, high = np.zeros(len(found)), np.ones(len(found))
        first, last = (np.array([x[found + k] for x in points]) for k in (0, 1))

        def at(t: Floats, first: Floats = first, last: Floats = last) -> Floats:
            return first + t * (last - first)

        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            now = np.asarray(switches(*at(middle), **parameters)[number]) > 0
            same = now == above[found]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        ends[0].append(at(low))
        ends[1].append(at(high))
    return _joined(ends[0], len(points)), _joined(ends[1], len(points))


def _joined(parts: Sequence[Floats], count: int) -> list[Floats]:
    return list(np.concatenate([np.empty((count, 0)), *parts], axis=1))

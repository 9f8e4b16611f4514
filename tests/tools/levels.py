"""Which cases of a product run by default; tests/conftest.py says what the levels are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def case(*values: Any, default: bool, id: str | None = None) -> Any:
    """A case of a parametrised test, exhaustive unless it is one of the default."""
    return pytest.param(*values, id=id, marks=() if default else pytest.mark.exhaustive)


def first(values: Iterable[Any], count: int = 1, ids: Callable[[Any], str] = str) -> list[Any]:
    """Cases of one parameter of which the first ones run by default.

    Raises:
        ValueError: If all do.

    """
    values = list(values)
    if count >= len(values):
        raise ValueError("all values run by default")
    return [case(value, default=k < count, id=ids(value)) for k, value in enumerate(values)]


def covering(every: int, *axes: Iterable[Any]) -> list[Any]:
    """The product of several parameters; by default one of `every` combinations.

    They are those whose positions on the axes add up to a multiple of `every`.

    Raises:
        ValueError: If a value would be in none of them.
    """
    cases = []
    chosen: set[tuple[int, int]] = set()  # axes and positions
    every_value = [tuple(axis) for axis in axes]
    for combination in itertools.product(*map(enumerate, every_value)):
        positions, values = zip(*combination, strict=True)
        default = sum(positions) % every == 0
        if default:
            chosen.update(enumerate(positions))
        cases.append(case(*values, default=default, id="-".join(map(str, values))))
    if len(chosen) < sum(len(axis) for axis in every_value):
        raise ValueError(f"one in {every} combinations leaves out a value")
    return cases

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
    """Cases of one parameter of which the first ones run by default."""
    return [case(value, default=k < count, id=ids(value)) for k, value in enumerate(values)]


def covering(every: int, *axes: Iterable[Any]) -> list[Any]:
    """The product of several parameters; by default one of `every` combinations.

    They are those whose positions on the axes add up to a multiple of `every`: a change of one
    position leaves the choice, and so every value is chosen, with every value of a second axis
    where a third one has `every` values.
    """
    cases = []
    for combination in itertools.product(*map(enumerate, axes)):
        positions, values = zip(*combination, strict=True)
        id = "-".join(map(str, values))
        cases.append(case(*values, default=sum(positions) % every == 0, id=id))
    return cases

"""Expressions that overflow or cancel, and what to write instead."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.program import Program, Step

Pattern = Any  # a number, a name that stands for any value, or a function and its arguments

_SIGMOID = (np.true_divide, 1.0, (np.add, 1.0, (np.exp, (np.negative, "x"))))
# What is written, what it is made of once it is traced, and what to write instead.
KNOWN: tuple[tuple[str, Pattern, str], ...] = (
    ("np.log(1 / (1 + np.exp(-x)))", (np.log, _SIGMOID), "-np.logaddexp(0, -x)"),
    (
        "np.log(1 - 1 / (1 + np.exp(-x)))",
        (np.log, (np.subtract, 1.0, _SIGMOID)),
        "-np.logaddexp(0, x)",
    ),
    ("1 / (1 + np.exp(-x))", _SIGMOID, "0.5 * (1 + np.tanh(x / 2))"),
    (
        "1 / (1 + np.exp(x))",
        (np.true_divide, 1.0, (np.add, 1.0, (np.exp, "x"))),
        "0.5 * (1 - np.tanh(x / 2))",
    ),
    (
        "np.exp(x) / (1 + np.exp(x))",
        (np.true_divide, (np.exp, "x"), (np.add, 1.0, (np.exp, "x"))),
        "0.5 * (1 + np.tanh(x / 2))",
    ),
    ("np.log(1 + np.exp(x))", (np.log, (np.add, 1.0, (np.exp, "x"))), "np.logaddexp(0, x)"),
    ("np.log1p(np.exp(x))", (np.log1p, (np.exp, "x")), "np.logaddexp(0, x)"),
    (
        "np.log(np.exp(x) + np.exp(y))",
        (np.log, (np.add, (np.exp, "x"), (np.exp, "y"))),
        "np.logaddexp(x, y)",
    ),
    ("np.log(np.cosh(x))", (np.log, (np.cosh, "x")), "np.logaddexp(x, -x) - np.log(2)"),
    ("np.log(1 + x)", (np.log, (np.add, 1.0, "x")), "np.log1p(x)"),
    ("np.exp(x) - 1", (np.subtract, (np.exp, "x"), 1.0), "np.expm1(x)"),
    ("np.sqrt(x**2)", (np.sqrt, (np.multiply, "x", "x")), "np.abs(x)"),
    (
        "np.sqrt(1 + x) - 1",
        (np.subtract, (np.sqrt, (np.add, 1.0, "x")), 1.0),
        "x / (1 + np.sqrt(1 + x))",
    ),
    (
        "x * np.log(x)",
        (np.multiply, "x", (np.log, "x")),
        "np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0)",
    ),
    ("1 - np.cos(x)", (np.subtract, 1.0, (np.cos, "x")), "2 * np.sin(x / 2) ** 2"),
)
_EITHER_ORDER = (np.add, np.multiply)
# What stands for an expression of two elements of a row, and what to write instead.
OF_ROWS = {
    "np.log(np.exp(x) + np.exp(y))": ("np.log(np.sum(np.exp(x)))", "np.logaddexp.reduce(x)"),
}


def advice(program: Program, of_rows: bool = False) -> list[str]:
    """What to write instead, for each known expression of a formula.

    `of_rows`: the program is a formula over rows, written out for the elements of one.
    """
    taken: set[int] = set()
    found = []
    for written, pattern, instead in KNOWN:
        matches: dict[int, set[int]] = {}
        for k in range(len(program.values)):
            steps: dict[str | int, int] = {}
            if _fits(program, k, pattern, steps):
                matches[k] = {place for place in steps if isinstance(place, int)}
        if not matches.keys() <= taken:
            if of_rows:
                written, instead = OF_ROWS.get(written, (written, instead))
            found.append(f"write {instead} for {written}")
        # A later pattern may be a more general one, or a part.
        taken.update(*matches.values())
    return found


def _fits(program: Program, place: int, pattern: Pattern, names: dict[str | int, int]) -> bool:
    """Whether a value of a program is an expression.

    Fills what the names stand for, and adds the places of all steps of the expression.
    """
    value = program.values[place]
    if isinstance(pattern, str):
        return names.setdefault(pattern, place) == place
    if isinstance(pattern, float):
        return value == pattern
    function, *parts = pattern
    if not isinstance(value, Step) or value.function is not function:
        return False
    orders = [value.arguments]
    if function in _EITHER_ORDER:
        orders.append(value.arguments[::-1])
    for order in orders:
        tried = dict(names)
        if all(_fits(program, k, part, tried) for k, part in zip(order, parts, strict=True)):
            names.update(tried)
            names[place] = place
            return True
    return False

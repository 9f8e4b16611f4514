"""The arithmetic of the kernels by itself, on the emulator: dual numbers and compensated sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_losses import _kernels
from cupy_losses._dual import Dual, plain, slope_of
from cupy_losses._evaluate import prepare_of
from cupy_losses._losses import Call
from cupy_losses._plan import template

from . import emulator
from .emulator import Module
from .losses import FORMULAS, SIMPLE, Case

P = 0.7

# The expressions of numbers.cu once more, for the dual numbers of the host.
EXPRESSIONS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + 2.0 * y - 3,
    lambda x, y: (1 - x) * y,
    lambda x, y: x * y * x,
    lambda x, y: x / y + y / x,
    lambda x, y: 2.0 / x - y / 4.0,
    lambda x, y: (x - y) / P + P * x,
    lambda x, y: abs(x) * y + np.sign(plain(y)) * x,
    lambda x, y: 0.5 * (x - y) * (x - y) + 0.5 * (x * y) * (x * y) / P,
    lambda x, y: abs(x) * -y + y * x / P,
    lambda x, y: np.where(x < y, x * x, np.where(x >= P, y * x, P - y)),
    lambda x, y: np.where(x > 0.5, y * x, np.where(y <= x, x - y, x * x * y)),
]


# The formulas that are more than what EXPRESSIONS has.
CASES = [case for case in FORMULAS if case not in SIMPLE and case.function is None]


def formula_name(case: Case, real: str) -> str:
    """The kernel that evaluates the formula of a loss."""
    call, operands = prepared(case, 1)
    struct = template(call.loss.struct, real, *call.loss.options)
    return f"formula<{real}, {struct}, {len(operands)}>"


def prepared(case: Case, count: int) -> tuple[Call, list[Any]]:
    """A call of a loss, on random operands."""
    hosts = case.draw(np.random.default_rng(1), count)
    call, operands = prepare_of(case.loss)(*hosts, reduction="sum", **case.parameters)
    return call, list(operands)


def module() -> Module:
    """The kernels of numbers.cu behind the sources that they test."""
    source = "\n".join(
        [
            *(_kernels.source(name) for name in ("pointwise.cu",)),
            '#line 1 "numbers.cu"',
            (Path(__file__).parent / "numbers.cu").read_text(encoding="utf-8"),
        ]
    )
    names = [f"derivatives<{k}>" for k in range(len(EXPRESSIONS))]
    names += [formula_name(case, real) for case in CASES for real in ("float", "double")]
    return Module(source, [*dict.fromkeys(names), "long_sum<float>", "long_sum<double>"])


def check_formula(kernels: Module, case: Case, real: str) -> None:
    """The value, first and second derivatives of a loss against the host's formula."""
    call, x = prepared(case, 64)
    if real == "float":
        x = [operand.astype(np.float32).astype(np.float64) for operand in x]
    count = len(x)
    out = np.full((64, 1 + 2 * count), np.nan)
    p, q = (*call.parameters, 1.0, 1.0)[:2]
    kernel = kernels.get_function(formula_name(case, real))
    kernel((1,), (32,), (np.stack(x), out, p or 1.0, q or 1.0, np.int32(64)))
    names = [parameter.name for parameter in call.loss.parameters]
    given = dict(zip(names, call.parameters, strict=True))
    formula, one = call.loss.formula, np.ones(64)
    assert formula is not None
    firsts = [[Dual(operand, one * (j == k)) for j, operand in enumerate(x)] for k in range(count)]
    seconds = [
        [Dual(operand, one * (j + 1)) for j, operand in enumerate(first)] for first in firsts
    ]
    with np.errstate(all="ignore"):
        columns = [formula(*x, **given)]
        columns += [slope_of(formula(*first, **given)) for first in firsts]
        columns += [slope_of(slope_of(formula(*second, **given))) for second in seconds]
    tolerance = 1e-11 if real == "double" else 2e-5
    for k, wanted in enumerate(columns):
        scale = float(abs(wanted * one).max()) + 0.1
        close = np.testing.assert_allclose
        close(out[:, k], wanted * one, rtol=tolerance, atol=tolerance * scale)


def check_derivatives(kernels: Module, which: int) -> None:
    """Values, first and second derivatives of one expression against the host's dual numbers."""
    rng = np.random.default_rng(which)
    x, y = rng.uniform(0.2, 1.5, (2, 64)) * rng.choice([-1, 1], (2, 64))
    x[:4], y[:4] = (0.4, P, 0.5, 1.0), (0.4, 0.2, 0.3, 1.0)  # where comparisons tie
    if which == 6:
        x[4], y[5] = 0.0, 0.0
    out = np.full((64, 8), np.nan)
    kernel = kernels.get_function(f"derivatives<{which}>")
    kernel((1,), (32,), (x, y, out, P, np.int32(64)))
    f, one = EXPRESSIONS[which], np.ones(64)
    expected = [
        f(x, y),
        slope_of(f(Dual(x, one), y)),
        slope_of(f(x, Dual(y, one))),
        slope_of(slope_of(f(Dual(Dual(x, one), 1.0), y))),
        slope_of(slope_of(f(Dual(Dual(x, 0.0), 1.0), Dual(Dual(y, one), 0.0)))),
        slope_of(slope_of(f(x, Dual(Dual(y, one), 1.0)))),
        f(x, y),
        f(x, y),
    ]
    for column, wanted in enumerate(expected):
        np.testing.assert_allclose(out[:, column], wanted * one, rtol=1e-12, atol=1e-12)


def check_overflow(kernels: Module) -> None:
    """A quotient by a parameter that overflows is infinite, not NaN and not finite."""
    out = np.full((3, 8), np.nan)
    x, y = np.array([1e300, -1e300, np.inf]), np.zeros(3)
    kernel = kernels.get_function("derivatives<5>")
    kernel((1,), (32,), (x, y, out, 1e-10, np.int32(3)))
    np.testing.assert_array_equal(out[:, 0], [np.inf, -np.inf, np.inf])


def check_sums(kernels: Module) -> None:
    """A plain float sum of these would be off in the fourth digit."""
    for name, term in (("float", np.float32(0.1)), ("double", np.float64(0.1))):
        out = np.zeros(1)
        kernels.get_function(f"long_sum<{name}>")((1,), (64,), (term, np.int32(4000), out))
        exact = float(np.longdouble(term) * 4000 * 64)
        assert abs(out[0] - exact) <= 1e-11 * exact
        special = np.float32(np.inf) if name == "float" else np.float64(np.inf)
        kernels.get_function(f"long_sum<{name}>")((1,), (64,), (special, np.int32(3), out))
        assert out[0] == np.inf


@pytest.fixture(scope="module")
def kernels() -> Module:
    emulator.require()
    return module()


@pytest.mark.parametrize("which", range(len(EXPRESSIONS)))
def test_derivatives(kernels: Module, which: int) -> None:
    check_derivatives(kernels, which)


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_formulas(kernels: Module, case: Case, real: str) -> None:
    check_formula(kernels, case, real)


def test_overflow(kernels: Module) -> None:
    check_overflow(kernels)


def test_sums(kernels: Module) -> None:
    check_sums(kernels)

"""The arithmetic of the kernels by itself, on the emulator: dual numbers and compensated sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_losses import binary_cross_entropy_with_logits
from cupy_losses._api.entrance import loss_function
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Call
from cupy_losses._device import sources
from cupy_losses._device.cpp import template
from cupy_losses._host.dual import Dual, plain, sigmoid, slope_of, softplus
from cupy_losses._kinds.pointwise import PointwiseLoss

from .. import emulator
from ..emulator import Module
from ..tables import losses as reference
from ..tables.losses import FORMULAS, SIMPLE, Case

Array = Any
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
    lambda x, y: np.log1p(x * x) * np.sqrt(y * y) + np.arctan(x) * abs(y) ** P,
    lambda x, y: np.maximum(x, y) * x - np.minimum(x, y) * P + np.where(x != y, x, y * y),
    lambda x, y: (
        (sigmoid(x) + softplus(x) + np.where(x >= P, x, P)) * y + x**0 * np.where(y >= 0, y, 0.0)
    ),
    lambda x, y: np.hypot(x, y) * np.hypot(P, y) + np.hypot(x * y, 2.0) * np.sign(x),
    lambda x, y: (
        np.logaddexp(x, y) * np.logaddexp(P, y) + np.logaddexp(x * y, 0.0) * np.logaddexp(x, x)
    ),
    lambda x, y: np.tanh(x - y) * np.tanh(P) + y * np.tanh(x * y),
    lambda x, y: (x * y + x * P) * (P * x + y) + (y * (x * y) + 1.5) * (P * 2.0 + x),
]


@loss_function()
def positive_weighted(input: Any, target: Any, pos_weight: Any, **options: Any) -> Any:
    """The cross entropy of logits with all its operands by position."""
    prepare = prepare_of(binary_cross_entropy_with_logits)
    return prepare(input, target, pos_weight=pos_weight, **options)


# The formulas that are more than what EXPRESSIONS has.
CASES = [case for case in FORMULAS if case not in SIMPLE and case.function is None]
CASES.append(
    Case(
        "positive_weighted",
        lambda x, y, w: (w * y * reference.softplus(-x), (1 - y) * reference.softplus(x)),
        (reference.logit, reference.probability, reference.positive),
        function=positive_weighted,
    )
)


def edge(name: str, *rows: tuple[float, ...], **parameters: float) -> tuple[Case, Array]:
    """A loss, by name and some of its parameters, and operands, a row an element."""
    case = next(case for case in CASES if case.name == name)
    return replace(case, parameters=case.parameters | parameters), np.array(rows).T


# Operands where a formula goes from one branch to another one, or where what it adds to its
# asymptote is small. Those of a probability go beyond [0, 1], where its loss is NaN.
EDGES = [
    edge("log_cosh_loss", (1.0, 0.0), (0.0, 1.0)),
    edge("quantile_loss", (2.0, 2.0)),
    edge("binary_cross_entropy", *itertools.product((0.0, 0.5, 1.0), (0.0, 0.25, 1.0))),
    edge("binary_cross_entropy", (-0.5, 0.25), (1.5, 0.25)),
    edge("binary_cross_entropy_with_logits", (0.0, 0.25), *((-x, 0.0) for x in range(6, 12))),
    edge("positive_weighted", (0.0, 0.25, 0.5)),
    edge("sigmoid_focal_loss", (0.0, 0.25)),
    edge("sigmoid_focal_loss", (0.0, 0.25), (1.0, 0.75), alpha=-1.0, gamma=1.0),
    edge("sigmoid_focal_loss", (800.0, 1.0), alpha=-1.0, gamma=0.0),
    edge("sigmoid_focal_loss", (800.0, 1.0), (-800.0, 0.0), alpha=0.25, gamma=0.5),
    edge("gaussian_nll_loss", (0.0, 1.0, -0.0), eps=0.0),
]


# The relative errors that formulas may have, in each arithmetic.
TOLERANCES = {"float": 2e-5, "double": 1e-11, "Approximate": 2**-16}
TOLERANCES_AT_EDGES = {"float": 1e-6, "double": 1e-12, "Approximate": 2**-16}

_NEGATIVE, _POSITIVE = -np.geomspace(1e-30, 80, 4000), np.geomspace(1e-30, 1e30, 4000)
_FRACTION = np.concatenate([np.geomspace(1e-30, 0.5, 2000), np.linspace(0.01, 1, 2000)])
_NEAR_ONE = np.concatenate([1 + np.linspace(-0.5, 0.5, 4000), _POSITIVE])
_BOTH_SIDES = np.concatenate([_NEGATIVE, _POSITIVE[_POSITIVE < 80], [0.0]])

# The functions of numbers/approximate.cuh in the order of numbers.cu, and where they are promised.
APPROXIMATED: list[tuple[Callable[..., Array], Array]] = [
    (lambda x, y: np.exp(x), np.concatenate([_BOTH_SIDES, [-np.inf, np.inf, np.nan, 100, -200]])),
    (lambda x, y: np.log(x), np.concatenate([_NEAR_ONE, [0.0, -0.0, -1.0, np.inf, np.nan]])),
    (lambda x, y: np.log1p(x), np.concatenate([_NEAR_ONE - 1, [-1.0, -2.0, np.inf, np.nan]])),
    (lambda x, y: np.log1p(x), np.append(_FRACTION, [0.0, np.nan])),
    (lambda x, y: np.sqrt(x), np.append(_POSITIVE, [0.0, -1.0, np.inf, np.nan])),
    (lambda x, y: np.tanh(x), np.append(_BOTH_SIDES, [100.0, -np.inf, np.inf, np.nan])),
    (lambda x, y: reference.log_cosh(x), np.append(_BOTH_SIDES, [1000.0, np.nan])),
    (np.hypot, np.append(_POSITIVE, [0.0, 1e-36, 2e38, -1e20])),
    (lambda x, y: x / y, np.append(_BOTH_SIDES, [1e37, -1e38, 3e38, np.inf, np.nan])),
    (lambda x, y: np.maximum(np.log(x), -100), np.append(_FRACTION, [0.0, -0.5, np.nan])),
    (lambda x, y: np.maximum(np.log1p(-x), -100), np.append(_FRACTION, [1.0, 1.5, np.nan])),
]


def formula_name(case: Case, real: str) -> str:
    """The kernel that evaluates the formula of a loss."""
    call, operands = prepared(case, 1)
    return kernel_name(call, real, len(operands))


def kernel_name(call: Call, real: str, count: int) -> str:
    """The same of a call with so many operands."""
    assert isinstance(call.loss, PointwiseLoss)
    struct = template(call.loss.struct, real, *call.loss.options)
    if real == "Approximate":
        real, struct = "float", template("Approximately", struct)
    return f"formula<{real}, {struct}, {count}>"


def prepared(case: Case, count: int) -> tuple[Call, list[Any]]:
    """A call of a loss, on random operands."""
    hosts = case.draw(np.random.default_rng(1), count)
    call, operands = prepare_of(case.loss)(*hosts, reduction="sum", **case.parameters)
    return call, list(operands)


def source() -> str:
    """The kernels of numbers.cu behind the sources that they test."""
    kernels = (Path(__file__).parent / "numbers.cu").read_text(encoding="utf-8")
    return "\n".join([sources.source("kernels/pointwise.cu"), '#line 1 "numbers.cu"', kernels])


def module() -> Module:
    """These kernels, compiled."""
    names = [f"derivatives<{k}>" for k in range(len(EXPRESSIONS))]
    cases = [*CASES, *(case for case, _ in EDGES)]
    names += [formula_name(case, real) for case in cases for real in TOLERANCES]
    names += [f"approximated<{k}>" for k in range(len(APPROXIMATED))]
    return Module(source(), [*dict.fromkeys(names), "long_sum<float>", "long_sum<double>"])


def check_formula(kernels: Module, case: Case, real: str) -> None:
    """The value, first and second derivatives of a loss against the host's formula."""
    call, x = prepared(case, 64)
    if real != "double":
        x = [operand.astype(np.float32).astype(np.float64) for operand in x]
    tolerance = TOLERANCES[real]
    for got, wanted in zip(*both_backends(kernels, real, call, np.stack(x)), strict=True):
        scale = float(abs(wanted).max()) + 0.1
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * scale)


def check_edge(kernels: Module, case: Case, x: Array, real: str) -> None:
    """The value and first derivatives of chosen operands, in units of each result."""
    call, _ = prepared(case, 1)
    results = zip(*both_backends(kernels, real, call, x), strict=True)
    for got, wanted in itertools.islice(results, 1 + len(x)):
        close = np.testing.assert_allclose
        close(got, wanted, rtol=TOLERANCES_AT_EDGES[real], atol=1e-15)


def check_seam(kernels: Module) -> None:
    """At 1 a float log_cosh is its formula for large numbers, which is below the one for small."""
    call, _ = prepared(edge("log_cosh_loss")[0], 1)
    got, _ = both_backends(kernels, "float", call, np.array([[1.0, -1.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(got[0], np.float32(0.4337808))


def check_bound(kernels: Module) -> None:
    """Where p (1 - p) is its bound, the second derivatives are those above it."""
    call, _ = prepared(edge("binary_cross_entropy")[0], 1)
    p = 1.000000000001e-12
    assert p * (1 - p) == 1e-12
    got, wanted = both_backends(kernels, "double", call, np.array([[p], [0.25]]))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def both_backends(kernels: Module, real: str, call: Call, x: Array) -> tuple[Array, Array]:
    """The value, first and second derivatives of a loss: the kernel's and the host's."""
    count, n = x.shape
    out = np.full((n, 1 + 2 * count), np.nan)
    p, q = (*call.parameters, 1.0, 1.0)[:2]
    kernel = kernels.get_function(kernel_name(call, real, count))
    kernel((1,), (32,), (x.copy(), out, p, q, np.int32(n)))
    assert isinstance(call.loss, PointwiseLoss)
    given = call.named_parameters
    formula, one = call.loss.formula, np.ones(n)
    assert formula is not None
    firsts = [[Dual(operand, one * (j == k)) for j, operand in enumerate(x)] for k in range(count)]
    seconds = [
        [Dual(operand, one * (j + 1)) for j, operand in enumerate(first)] for first in firsts
    ]
    with np.errstate(all="ignore"):
        columns = [formula(*x, **given)]
        columns += [slope_of(formula(*first, **given)) for first in firsts]
        columns += [slope_of(slope_of(formula(*second, **given))) for second in seconds]
        return out.T, np.array([column * one for column in columns])


def check_derivatives(kernels: Module, which: int) -> None:
    """Values, first and second derivatives of one expression against the host's dual numbers."""
    rng = np.random.default_rng(which)
    x, y = rng.uniform(0.2, 1.5, (2, 64)) * rng.choice([-1, 1], (2, 64))
    x[:4], y[:4] = (0.4, P, 0.5, 1.0), (0.4, 0.2, 0.3, 1.0)  # where comparisons tie
    if which in (6, 13, 14):
        x[4], y[5] = 0.0, 0.0
    out = np.full((64, 8), np.nan)
    kernel = kernels.get_function(f"derivatives<{which}>")
    kernel((1,), (32,), (x, y, out, P, np.int32(64)))
    f, one = EXPRESSIONS[which], np.ones(64)
    with np.errstate(all="ignore"):
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


def check_approximated(kernels: Module, which: int) -> None:
    """A function of half precision, within 2^-17 of itself."""
    function, x = APPROXIMATED[which]
    x = x.astype(np.float32)
    y = np.random.default_rng(which).permutation(x)
    out = np.full(x.shape, np.nan, np.float32)
    kernels.get_function(f"approximated<{which}>")((1,), (64,), (x, y, out, np.int32(len(x))))
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    smallest = float(np.finfo(np.float32).tiny)
    np.testing.assert_allclose(out, wanted, rtol=2**-17, atol=smallest)


def check_infinite(kernels: Module) -> None:
    """The hypotenuse of an infinite number, whatever the other one is."""
    x = np.array([np.inf, np.nan, -np.inf, np.nan], np.float32)
    y = np.array([np.nan, np.inf, 1, 1], np.float32)
    out = np.zeros(4, np.float32)
    kernels.get_function("approximated<7>")((1,), (64,), (x, y, out, np.int32(4)))
    np.testing.assert_array_equal(out, np.hypot(x, y))


def check_overflow(kernels: Module) -> None:
    """A quotient by a parameter that overflows is infinite, not NaN and not finite."""
    out = np.full((3, 8), np.nan)
    x, y = np.array([1e300, -1e300, np.inf]), np.zeros(3)
    kernel = kernels.get_function("derivatives<5>")
    kernel((1,), (32,), (x, y, out, 1e-10, np.int32(3)))
    np.testing.assert_array_equal(out[:, 0], [np.inf, -np.inf, np.inf])


def check_not_finite(kernels: Module) -> None:
    """What NumPy says of infinities and of NaN."""
    out = np.full((5, 8), np.nan)
    x, y = np.array([np.inf, -np.inf, np.inf, np.nan, 800.0]), np.array([np.inf, -np.inf, 1, 1, 1])
    for which in (14, 15):
        kernels.get_function(f"derivatives<{which}>")((1,), (32,), (x, y, out, P, np.int32(5)))
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(out[:, 0], EXPRESSIONS[which](x, y))


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


@pytest.mark.parametrize("which", range(len(APPROXIMATED)))
def test_approximated(kernels: Module, which: int) -> None:
    check_approximated(kernels, which)


def test_infinite(kernels: Module) -> None:
    check_infinite(kernels)


@pytest.mark.parametrize("real", TOLERANCES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_formulas(kernels: Module, case: Case, real: str) -> None:
    check_formula(kernels, case, real)


@pytest.mark.parametrize("real", TOLERANCES)
def test_edges(kernels: Module, real: str) -> None:
    for case, x in EDGES:
        check_edge(kernels, case, x, real)
    check_seam(kernels)
    check_bound(kernels)


def test_overflow(kernels: Module) -> None:
    check_overflow(kernels)


def test_not_finite(kernels: Module) -> None:
    check_not_finite(kernels)


def test_sums(kernels: Module) -> None:
    check_sums(kernels)

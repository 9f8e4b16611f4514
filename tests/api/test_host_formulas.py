"""NumPy formulas of a user's own: elementwise ones work, others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cupy_losses import grad, grad_and_hess, hvp, pointwise_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._libraries.numpy import on_host
from cupy_losses._verification.arithmetic import derivatives

Formula = Callable[..., Any]


def loss_of(formula: Formula) -> Any:
    """A loss that only the host knows how to compute."""
    return pointwise_loss("mine", "input - target", numpy=formula)


NOT_ELEMENTWISE: dict[str, Formula] = {
    "mean": lambda i, t: np.mean((i - t) ** 2),
    "sum as an array": lambda i, t: np.asarray(((i - t) ** 2).sum()),
    "centred": lambda i, t: (i - i.mean()) ** 2,
    "centred target": lambda i, t: (i - t.mean()) ** 2,
    "centred along an axis": lambda i, t: (i - i.mean(axis=-1, keepdims=True)) ** 2,
    "centred along the first axis": lambda i, t: (i - i.mean(axis=0)) ** 2,
    "normalised": lambda i, t: np.exp(i) / np.exp(i).sum() - t,
    "largest": lambda i, t: i - i.max() + t,
    "first": lambda i, t: i - i.flat[0] - t,
    "sorted": lambda i, t: np.sort(i, axis=None).reshape(i.shape) - t,
    "summed up": lambda i, t: np.cumsum(i).reshape(i.shape) - t,
    "rolled": lambda i, t: np.roll(i, 1) - t,
    "reversed": lambda i, t: np.flip(i) - t,
    "length": lambda i, t: (i - t) / i.size,
    "position": lambda i, t: (i - t) * np.arange(i.size).reshape(i.shape),
    "difference": lambda i, t: np.gradient(i.ravel()).reshape(i.shape) - t,
    "constant of the length": lambda i, t: i.size,
    "random": lambda i, t: i - t + np.random.default_rng().random(i.shape),
}


def drawn(shape: tuple[int, ...], order: str) -> tuple[Any, Any]:
    """Operands: in any order, or rising, or in steps where neighbours are equal."""
    rng = np.random.default_rng(0)
    input, target = rng.standard_normal(shape), rng.standard_normal(shape)
    if order == "rising":
        input, target = (np.sort(x, axis=None).reshape(shape) for x in (input, target))
    if order == "steps":
        places = np.arange(input.size).reshape(shape)
        input, target = (np.floor(x * places / input.size) for x in (6, 4))
    return input, target


@pytest.mark.parametrize("formula", NOT_ELEMENTWISE)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2,), "any"),
        ((5,), "any"),
        ((1, 30), "any"),
        ((4, 6), "rising"),
        ((50, 40), "steps"),
        ((200_000,), "any"),
        ((200_000,), "rising"),
    ],
)
def test_what_is_not_elementwise(formula: str, shape: tuple[int, ...], order: str) -> None:
    loss = loss_of(NOT_ELEMENTWISE[formula])
    input, target = drawn(shape, order)
    for function in loss, value_and_grad(loss), grad(loss):
        with pytest.raises(ValueError, match="numpy of mine must be elementwise"):
            function(input, target)


def test_what_looks_elementwise_at_first() -> None:
    """Operands that do not tell leave the check to the next call."""
    loss = loss_of(NOT_ELEMENTWISE["centred"])
    input, target = drawn((20,), "any")
    assert loss(input[:1], target[:1]) == 0
    assert loss(np.full(20, 3.0), target) == 0
    assert np.isnan(loss(np.full(20, np.nan), target))
    loss = loss_of(NOT_ELEMENTWISE["mean"])
    assert loss(target + 2, target) == pytest.approx(4)
    with pytest.raises(ValueError, match="must be elementwise"):
        loss(input, target)
    loss = loss_of(NOT_ELEMENTWISE["centred target"])
    assert loss(input, np.array(2.0)) == pytest.approx(np.mean((input - 2) ** 2))
    with pytest.raises(ValueError, match="must be elementwise"):
        loss(input, target)


def test_the_error_says_what_differs() -> None:
    loss = loss_of(NOT_ELEMENTWISE["mean"])
    expected = (
        r"numpy of mine must be elementwise, with a result for each element of "
        r"arguments of shape \(4,\): that of one is 3.5 among all of them and 9 alone"
    )
    with pytest.raises(ValueError, match=expected):
        loss(np.arange(4.0), np.zeros(4))


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (None, "NoneType"),
        ("1.0", "str"),
        (1j, "complex"),
        (np.ones(5, np.complex64), r"complex64 of shape \(5,\)"),
        (np.ones(4), r"float64 of shape \(4,\)"),
        (np.ones(1), r"float64 of shape \(1,\)"),
        (np.ones((5, 1)), r"float64 of shape \(5, 1\)"),
        (np.array([None] * 5), r"object of shape \(5,\)"),
    ],
)
def test_results_of_a_wrong_kind(result: Any, got: str) -> None:
    loss = loss_of(lambda i, t: result)
    for function in loss, value_and_grad(loss):
        with pytest.raises(
            ValueError,
            match=r"numpy of mine must return real numbers of the shape of its arguments, \(5,\), "
            rf"or one number, got {got}$",
        ):
            function(np.ones(5), np.ones(5))


def test_a_derivative_of_a_wrong_shape() -> None:
    """In a pass that computes no values before."""
    loss = loss_of(lambda i, t: (i - t) * np.ones((2, 1)))
    operands = np.ones(5), np.zeros(5)
    call, _ = prepare_of(loss)(*operands)
    with pytest.raises(ValueError, match=r"numpy of mine must return .* got float64 of shape \(2,"):
        on_host(call, Request(value=False, wanted=(0,)), operands)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 70_000), (70_000, 3)])
def test_constants(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    input, row = np.ones(shape, np.float32), np.ones(shape[-1:])
    for constant in 2, 2.0, np.float32(2), np.array(2.0), True:
        loss = loss_of(lambda i, t, constant=constant: constant)
        for function in loss, lambda *a, loss=loss, **k: value_and_grad(loss)(*a, **k)[0]:
            assert function(input, row) == float(constant)
            assert function(input, row, reduction="sum") == float(constant) * size
            assert function(input, row, where=input > 0, weight=input * 3) == float(constant)
        each = loss(input, row, reduction="none")
        np.testing.assert_array_equal(each, np.full(shape, float(constant)))
        gradients = grad(loss, (0, 1))(input, row)
        np.testing.assert_array_equal(gradients[0], np.zeros(shape))
        np.testing.assert_array_equal(gradients[1], np.zeros(shape[-1:]))


def test_a_formula_of_one_operand() -> None:
    input, column = np.arange(6.0).reshape(3, 2), np.array([[1.0], [2.0], [4.0]])
    loss = loss_of(lambda i, t: t * t)
    value, gradients = value_and_grad(loss, (0, 1))(input, column, reduction="sum")
    assert value == 42
    assert not gradients[0].any()
    np.testing.assert_array_equal(gradients[1], 4 * column)


ELEMENTWISE: dict[str, Formula] = {
    "square": lambda i, t: (i - t) ** 2,
    "cases": lambda i, t: np.where(abs(i - t) > 0.5, abs(i - t), np.square(i) - t),
    "poles": lambda i, t: np.log(i) / t + np.sqrt(i - t) + np.exp(1000 * i) - np.exp(999 * i),
    "flags": lambda i, t: i > t,
    "table": lambda i, t: np.array([0.5, 2.0, 4.0])[np.clip(np.nan_to_num(t), 0, 2).astype(int)],
    "list": lambda i, t: [*map(float, np.ravel(i))] if np.ndim(i) == 1 else i,
}


@pytest.mark.parametrize("formula", ELEMENTWISE)
def test_elementwise_formulas_pass_without_a_warning(formula: str) -> None:
    plain = ELEMENTWISE[formula]
    rng = np.random.default_rng(0)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1e300, -1e-300, 1.0], (2, 50))
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        for input, target in (special, rng.random((2, 70_001)), rng.standard_normal((2, 9, 5)) * 9):
            before = input.copy(), target.copy()
            each = loss_of(plain)(input, target, reduction="none")
            np.testing.assert_array_equal((input, target), before)
            assert input.flags.writeable
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(each, np.asarray(plain(input, target)), rtol=1e-13)


QUOTIENTS: dict[str, Any] = {
    "a parameter": pointwise_loss("mine", lambda x, y, c=0.0: (x - y) / c),
    "a constant": pointwise_loss("mine", lambda x, y: (x - y) / 0),
    "a constant, untraced": loss_of(lambda x, y: (x - y) / 0),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("of", QUOTIENTS)
def test_derivatives_of_a_quotient_by_zero(of: str) -> None:
    """They are infinite as the value is, where Python's numbers would raise."""
    loss = QUOTIENTS[of]
    ones, zeros = np.ones((2, 3)), np.zeros((2, 3))
    value, (by_x, by_y) = value_and_grad(loss, (0, 1))(ones, zeros)
    second = hvp(loss, (ones, zeros), (ones, None))
    call, _ = prepare_of(loss)(ones, zeros)
    assert call.loss.formula is not None
    with np.errstate(all="ignore"):
        checked = derivatives(call.loss.formula, [ones[0], zeros[0]], call.named_parameters)
    assert value == np.inf
    assert np.isposinf(by_x).all()
    assert np.isneginf(by_y).all()
    assert not second.any()
    assert np.isposinf(checked[(0,)]).all()


def test_the_comparison_is_made_once() -> None:
    sizes = []

    def formula(i: Any, t: Any) -> Any:
        sizes.append(i.size)
        return i - t

    loss = loss_of(formula)
    input, target = drawn((100,), "any")
    loss(input, target)
    assert sum(sizes) < 120
    sizes.clear()
    loss(input, target)
    assert sizes == [100]


def test_a_formula_that_writes_to_its_arguments() -> None:
    def formula(i: Any, t: Any) -> Any:
        i -= t
        return i * i

    loss = loss_of(formula)
    for size in 1, 10:
        with pytest.raises(ValueError, match="^numpy of .* writes to its arguments: .*read-only"):
            value_and_grad(loss)(np.ones(size), np.ones(size))


WITHOUT_DERIVATIVE: dict[str, tuple[Formula, str]] = {
    "a function": (
        lambda i, t: np.cbrt(i) * t,
        r"np.cbrt has no derivative here: write np.sign\(x\) \* np.abs\(x\) \*\* \(1 / 3\)$",
    ),
    "an unknown function": (
        lambda i, t: np.floor(i) * t,
        "np.floor has no derivative here: make it of Python's operators and of NumPy's absolute, "
        "arctan, clip, .*, tanh, where$",
    ),
    "of another library": (
        lambda i, t: np.frompyfunc(lambda x: x, 1, 1)(i).astype(float) * t,
        ": <lambda> .* has no derivative here",
    ),
    "no ufunc": (lambda i, t: np.round(i) * t, "np.round has no derivative here: make it of"),
    "of a module": (
        lambda i, t: np.linalg.norm(i) * t,
        "np.linalg.norm has no derivative here",
    ),
    "a method of a ufunc": (lambda i, t: np.add.reduce(i) * t, "np.add.reduce has no derivative"),
    "an operator": (lambda i, t: i % 2 * t, "unsupported operand .* %"),
    "a method": (lambda i, t: i.round() * t, "has no attribute 'round'"),
    "an option": (
        lambda i, t: np.exp(i, where=True) * t,
        "np.exp takes no where= where it is differentiated: leave it out$",
    ),
    "an option of clip": (
        lambda i, t: np.clip(i, 0.0, 1.0, dtype=float) * t,
        "np.clip takes no dtype= where it is differentiated: leave it out$",
    ),
}


@pytest.mark.parametrize(
    "formula",
    [
        lambda i, t: np.clip(i, a_min=-1, a_max=1) * t,
        lambda i, t: np.clip(i, min=-1, max=1) * t,
        lambda i, t: np.where(np.logical_and(i, abs(i) <= 1), i, np.sign(i)) * t,
    ],
)
def test_bounds_and_conditions_by_other_names(formula: Formula) -> None:
    input, target = np.array([-2.0, 0.5, 3.0]), np.array([2.0, 3.0, 4.0])
    value, gradient = value_and_grad(loss_of(formula))(input, target, reduction="sum")
    assert value == -2 + 1.5 + 4
    np.testing.assert_array_equal(gradient, [0, 3, 0])


def test_an_operand_as_a_condition() -> None:
    """It is true where it is not 0, with first and second derivatives."""
    loss = loss_of(lambda i, t: np.where(i, t, 1.0) * i + np.where(+t > 3, +i, 0.0))
    x, y = np.array([1.0, 0.0, 2.0]), np.array([3.0, 4.0, 5.0])
    value, (by_x, by_y) = value_and_grad(loss, (0, 1))(x, y, reduction="sum")
    assert value == 3 + 0 + 10 + 2
    np.testing.assert_array_equal(by_x, [3, 1 + 1, 5 + 1])
    np.testing.assert_array_equal(by_y, x)
    np.testing.assert_array_equal(hvp(loss, (x, y), (x, y), reduction="sum"), [3, 0, 5])


@pytest.mark.parametrize("case", WITHOUT_DERIVATIVE)
def test_what_has_no_derivative(case: str) -> None:
    """The loss has a value; the message of its gradient says what is missing."""
    formula, message = WITHOUT_DERIVATIVE[case]
    loss, one = loss_of(formula), np.ones(1)
    loss(one, one)
    with pytest.raises(TypeError, match="^numpy of mine cannot be differentiated.*" + message):
        grad(loss)(one, one)
    grad(loss, 1)(one, one)
    with pytest.raises(TypeError, match=message):
        grad_and_hess(loss)(one, one)

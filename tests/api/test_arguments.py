"""Every argument of every public function is checked at the entrance and named in the error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
from cupy_losses import grad, pointwise_loss, value_and_grad
from cupy_losses._api.entrance import loss_function
from cupy_losses._api.prepared import call_of
from cupy_losses._api.public import is_loss
from cupy_losses._core.arguments import Choice, Flag, Integer, Real
from cupy_losses._core.loss import losses

LOSSES = sorted(name for name in cupy_losses.__all__ if is_loss(getattr(cupy_losses, name)))


def arrays_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Valid arrays for the arguments that have no default."""
    arrays: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty:
            arrays[name] = np.full((2, 3), 0.5)
    if function.__name__ in ("nll_loss", "multi_margin_loss"):
        arrays["target"] = np.zeros(2, np.int64)
    if function.__name__ == "multilabel_margin_loss":
        arrays["target"] = np.zeros((2, 3), np.int64)
    if function.__name__ == "cosine_embedding_loss":
        arrays["target"] = np.ones(2)
    return arrays


# What is neither an array, nor a number, a flag or a reduction of any kind.
WRONG: list[Any] = ["no", object(), [0.5], {"a": 1}, torch.tensor([0.1, 0.2]), np.array([0.1]), 1j]

CASES = [
    (name, argument)
    for name in LOSSES
    for argument in inspect.signature(getattr(cupy_losses, name)).parameters
]


def defaults(name: str, argument: str) -> Any:
    """The default of an argument."""
    return inspect.signature(getattr(cupy_losses, name)).parameters[argument].default


def calls(name: str) -> list[Callable[..., Any]]:
    """The function, and its gradient transforms."""
    function = getattr(cupy_losses, name)
    return [function, value_and_grad(function), grad(function)]


@pytest.mark.parametrize(("name", "argument"), CASES, ids=str)
@pytest.mark.filterwarnings("ignore:reduction 'mean' divides")
def test_wrong_kinds_are_named(name: str, argument: str) -> None:
    """By a TypeError or ValueError, before anything is computed, in gradients too."""
    function = getattr(cupy_losses, name)
    arrays = arrays_of(function)
    default = defaults(name, argument)
    is_array = default is None or default is inspect.Parameter.empty
    wrong = [value for value in WRONG if not (is_array and isinstance(value, torch.Tensor))]
    if is_array:
        wrong = [value for value in wrong if not isinstance(value, np.ndarray)]
    if is_array and default is not None:
        wrong.append(None)
    if isinstance(default, float | int) and not isinstance(default, bool):
        wrong += [None, True, np.True_, torch.tensor(1), np.array(1)]
    if isinstance(default, bool):
        wrong += [None, 0, 1.0, torch.tensor(True), np.array(True), "False"]
    for call in calls(name):
        for value in wrong:
            given = {**arrays, argument: value}
            positional = [given.pop(array) for array in arrays]
            with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b"):
                call(*positional, **given)


NUMBERS = [
    (name, argument) for name, argument in CASES if isinstance(defaults(name, argument), float)
]


@pytest.mark.parametrize(("name", "argument"), NUMBERS, ids=str)
@pytest.mark.filterwarnings("ignore:reduction 'mean' divides")
def test_numbers_out_of_range_are_named(name: str, argument: str) -> None:
    arrays = arrays_of(getattr(cupy_losses, name))
    for value in (float("nan"), -float("inf"), 2.0**121, 10**400, -(10**400)):
        with pytest.raises(ValueError, match=rf"\b{argument} must be"):
            getattr(cupy_losses, name)(*arrays.values(), **{argument: value})


@pytest.mark.parametrize(("name", "argument"), NUMBERS, ids=str)
@pytest.mark.filterwarnings("ignore:reduction 'mean' divides")
def test_numbers_of_any_type_are_the_same(name: str, argument: str) -> None:
    function = getattr(cupy_losses, name)
    arrays = arrays_of(function).values()
    expected = function(*arrays, **{argument: 1.0})
    for one in (1, np.float32(1), np.float64(1), np.int64(1)):
        np.testing.assert_array_equal(function(*arrays, **{argument: one}), expected)


def test_positional_arguments_are_checked() -> None:
    x = np.zeros(3)
    with pytest.raises(TypeError, match="quantile must be a real number, got 'no'"):
        cupy_losses.quantile_loss(x, x, "no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="full must be True or False, got 'False'"):
        cupy_losses.poisson_nll_loss(x, x, True, "False")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        cupy_losses.mse_loss(x, x, "sum")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        cupy_losses.mse_loss(x, x, colour=1)  # type: ignore[call-arg]


def test_every_argument_has_a_kind() -> None:
    """A public function whose argument nobody checks cannot be made."""

    def prepare(input: Any, target: Any, beta: float = 1.0) -> Any:
        return call_of(losses()["mse_loss"], (input, target), "mean", None, None)

    with pytest.raises(TypeError, match="argument beta of .* has no kind"):
        loss_function()(prepare)
    with pytest.raises(TypeError, match="has no argument gamma"):
        loss_function(beta=Real(), gamma=Real())(prepare)


def test_own_losses_are_checked() -> None:
    loss = pointwise_loss("mine", "c * input", operands=("input",), parameters={"c": 1.0})
    wrong: Any
    for wrong in ("1", None, torch.tensor(1.0), True):
        with pytest.raises(TypeError, match="c must be a real number"):
            loss(np.ones(2), c=wrong)


def test_kinds() -> None:
    assert Real(minimum=0.0).checked("x", -0.0) == 0.0
    assert str(Real().checked("x", -0.0)) == "0.0"
    assert Real(infinite=True).checked("x", float("inf")) == float("inf")
    beyond = r"p must be >= 0 and at most 1\.3e\+36, or infinite, got 1e\+40$"
    with pytest.raises(ValueError, match=beyond):
        Real(minimum=0.0, infinite=True).checked("p", 1e40)
    assert Integer().checked("x", np.int8(3)) == 3
    assert Flag().checked("x", np.True_) is True
    assert Choice((1, 2)).checked("x", 2.0) == 2
    with pytest.raises(ValueError, match="x must be > 0"):
        Real(minimum=0.0, open=True).checked("x", 0)
    with pytest.raises(ValueError, match="x must be an integer of 64 bits"):
        Integer().checked("x", 2**63)
    with pytest.raises(TypeError, match="x must be an integer"):
        Integer().checked("x", 1.0)
    with pytest.raises(ValueError, match="x must be 1 or 2, got 3"):
        Choice((1, 2)).checked("x", 3)

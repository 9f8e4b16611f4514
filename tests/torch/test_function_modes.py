"""What a TorchFunctionMode sees of a loss: the loss, and nothing that it does inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import cupy_losses
from cupy_losses import nn

X = torch.tensor([0.5, -1.0, 2.0])
TARGET = torch.tensor([1.0, 0.0, 2.5])
cauchy_loss = cupy_losses.pointwise_loss(
    "cauchy_loss", lambda input, target: np.log1p((input - target) ** 2)
)


class Mode(TorchFunctionMode):
    """Keeps what it sees, and does what `instead` does with it."""

    def __init__(self, instead: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self._instead = instead

    def __torch_function__(
        self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(function)
        call = self._instead or function
        return call(*args, **kwargs or {})


CALLS: dict[str, tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "function": (cupy_losses.mse_loss, lambda x: cupy_losses.mse_loss(x, TARGET)),
    "by keyword": (
        cupy_losses.huber_loss,
        lambda x: cupy_losses.huber_loss(x, target=TARGET, delta=0.5, reduction="sum"),
    ),
    "over rows": (
        cupy_losses.cross_entropy,
        lambda x: cupy_losses.cross_entropy(x[None], torch.tensor([1])),
    ),
    "of one's own": (cauchy_loss, lambda x: cauchy_loss(x, TARGET)),
    "functional": (cupy_losses.mse_loss, lambda x: nn.functional.mse_loss(x, TARGET)),
    "module": (cupy_losses.mse_loss, lambda x: nn.MSELoss()(x, TARGET)),
}


@pytest.mark.parametrize(("loss", "call"), CALLS.values(), ids=CALLS)
def test_a_mode_sees_the_loss(loss: Any, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = X.clone().requires_grad_()
    expected = call(x)
    (gradient,) = torch.autograd.grad(expected, x)
    with Mode() as mode:
        value = call(x)
    own = [function for function in mode.seen if hasattr(function, "_cupy_losses_prepared")]
    assert own == [loss]
    assert mode.seen[-1] is loss  # nothing that it does inside
    assert torch.equal(value, expected)
    assert torch.equal(torch.autograd.grad(value, x)[0], gradient)


def test_each_of_nested_modes_sees_it() -> None:
    with Mode() as outer, Mode() as inner:
        cupy_losses.mse_loss(X, TARGET)
    assert outer.seen == inner.seen == [cupy_losses.mse_loss]


def test_a_mode_decides_what_a_call_gives() -> None:
    with Mode(torch.nn.functional.l1_loss) as mode:
        value = cupy_losses.mse_loss(X, TARGET)
    assert mode.seen == [cupy_losses.mse_loss]
    assert torch.equal(value, torch.nn.functional.l1_loss(X, TARGET))


def test_errors_and_other_arrays_come_through() -> None:
    with Mode() as mode:
        cupy_losses.mse_loss(np.ones(3), np.ones(3))
        assert not mode.seen
        with pytest.raises(ValueError, match="reduction must be"):
            cupy_losses.mse_loss(X, TARGET, reduction="median")  # type: ignore[arg-type]


def test_a_default_device_changes_nothing() -> None:
    expected = cupy_losses.mse_loss(X, TARGET)
    with torch.device("cpu"):
        assert torch.equal(cupy_losses.mse_loss(X, TARGET), expected)

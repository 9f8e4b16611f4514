"""What autograd asks of gradients that are written ahead, of a library that records it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cupy_losses import mse_loss
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Call, Request
from cupy_losses._libraries.torch import TorchCpu
from cupy_losses._torch import autograd

Tensor = torch.Tensor


class Recording(TorchCpu):
    """CPU tensors, as a library that anticipates the grad_output `guess`."""

    def __init__(self, guess: float) -> None:
        self.guess = guess
        self.waiting = 0
        self.finished: list[float] = []
        self.requests: list[Request] = []

    def run_resolved(self, call: Call, request: Request, operands: Sequence[Tensor]) -> list[Any]:
        self.requests.append(request)
        results = super().run_resolved(call, request, operands)
        if request.early and results[-1] is not None:
            for gradient in results[1:-1]:
                if gradient is not None:
                    gradient.mul_(self.guess)
            results[-1] = Waiting(self)
        return results


class Waiting:
    """A call whose slot is counted."""

    def __init__(self, library: Recording) -> None:
        self.library = library
        library.waiting += 1

    def finish(self, operands: Sequence[Tensor], grad_output: Tensor) -> bool:
        assert not grad_output.is_neg()
        self.library.finished.append(grad_output.item())
        return self.library.guess == grad_output.item()

    def __del__(self) -> None:
        self.library.waiting -= 1


def evaluate(library: Recording, *operands: Tensor, **options: Any) -> Tensor:
    call, given = prepare_of(mse_loss)(*operands, **options)
    return autograd.evaluate(library, call, given)


@pytest.fixture
def input() -> Tensor:
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


ZERO = torch.zeros(3)


@pytest.mark.parametrize(("guess", "passes"), [(0.5, 1), (1.0, 2)])
def test_a_right_guess_saves_the_second_pass(input: Tensor, guess: float, passes: int) -> None:
    library = Recording(guess)
    evaluate(library, input, ZERO, reduction="sum").backward(torch.tensor(0.5))
    assert input.grad is not None
    assert input.grad.tolist() == [1.0, -2.0, 3.0]
    assert library.finished == [0.5]
    assert len(library.requests) == passes


def test_a_call_waits_until_its_backward_pass(input: Tensor) -> None:
    library = Recording(1.0)
    first, second = (evaluate(library, input, ZERO) for _ in range(2))
    assert library.waiting == 2
    (first + second).backward(retain_graph=True)
    assert library.waiting == 0
    (2 * first).backward()
    assert library.finished == [1.0, 1.0]  # the second pass of a graph computes by itself
    assert len(library.requests) == 3


def test_a_call_waits_no_longer_than_its_graph(input: Tensor) -> None:
    library = Recording(1.0)
    loss = evaluate(library, input, ZERO)
    kept = 2 * loss
    del loss
    gc.collect()
    assert library.waiting == 1
    del kept
    gc.collect()
    assert library.waiting == 0


def test_second_derivatives_leave_it_waiting(input: Tensor) -> None:
    library = Recording(1.0)
    loss = evaluate(library, input, ZERO)
    (gradient,) = torch.autograd.grad(loss, input, create_graph=True)
    assert library.finished == []
    assert library.waiting == 1
    gradient.sum().backward()
    del loss, gradient
    gc.collect()
    assert library.waiting == 0


def test_nothing_waits_where_nothing_was_written(input: Tensor) -> None:
    library = Recording(1.0)
    evaluate(library, input, ZERO, reduction="none").sum().backward()
    with torch.no_grad():
        evaluate(library, input, ZERO)
    assert library.finished == []
    assert not any(request.early for request in library.requests[-1:])


def test_a_part_is_written_ahead() -> None:
    """The gradient of what is broadcast comes from the backward pass."""
    library = Recording(0.5)
    input = torch.ones(2, 3, requires_grad=True)
    target = torch.zeros(3, requires_grad=True)
    with pytest.warns(UserWarning, match="broadcast"):
        loss = evaluate(library, input, target, reduction="sum")
    loss.backward(torch.tensor(0.5))
    assert input.grad is not None
    assert target.grad is not None
    assert input.grad.tolist() == [[1.0] * 3] * 2
    assert target.grad.tolist() == [-2.0] * 3
    assert library.requests[-1].wanted == (1,)


def test_a_grad_output_with_a_negative_bit(input: Tensor) -> None:
    library = Recording(1.0)
    loss = evaluate(library, input, ZERO, reduction="sum")
    grad_output = torch.complex(torch.zeros(()), torch.tensor(-0.5)).conj().imag
    assert grad_output.is_neg()
    loss.backward(grad_output)
    assert library.finished == [0.5]

"""Autograd over the emulator: tensors of the host whose memory the kernels may use."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import cross_entropy, mse_loss
from cupy_losses._api.public import prepare_of
from cupy_losses._core.outputs import Output
from cupy_losses._device.library import Allocator
from cupy_losses._libraries.torch import TorchCuda
from cupy_losses._torch import autograd

from .. import emulator
from ..emulator import Device, installed, ndarray

Tensor = torch.Tensor


class Emulated(TorchCuda):
    """Tensors over emulated device memory."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.emulated = device
        self.arrays: list[ndarray] = []  # what tensors stand for lives as long as the test

    def tensor(self, host: Any) -> Tensor:
        self.arrays.append(self.emulated.asarray(host, writable=True))
        return torch.from_numpy(self.arrays[-1].host_view)

    def inspect(self, operands: Sequence[Tensor]) -> tuple[Any, list[int]]:
        described = [(x.dtype, x.shape, x.stride()) for x in operands]
        return tuple(described), [*map(self.address, operands)]

    def device(self, array: Tensor) -> int:
        return 0

    def use_device(self, device: int) -> Any:
        return contextlib.nullcontext()

    def stream(self, device: int) -> int:
        return self.emulated.stream

    def current_device(self) -> int:
        return 0

    def allocator(self, output: Output) -> Allocator:
        shape, strides, dtype = output.shape, output.strides, output.dtype
        size = np.dtype(dtype).itemsize
        empty = np.lib.stride_tricks.as_strided(
            np.zeros(max(output.size, 1), dtype), shape, [step * size for step in strides]
        )
        return lambda operands: self.tensor(empty)

    def filled(self, output: Output, value: float) -> Allocator:
        return lambda operands: self.tensor(np.full(output.shape, value, output.dtype))

    def scratch(self, operands: Sequence[Tensor], size: int, is_captured: bool) -> tuple[Any, int]:
        memory = self.tensor(np.zeros(size, np.uint8))
        return memory, memory.data_ptr()


@pytest.fixture
def emulated() -> Iterator[Emulated]:
    emulator.require()
    with installed(seed=1) as device:
        yield Emulated(device)


class Problem:
    """A loss of one leaf, and how many kernels its passes launch."""

    def __init__(self, library: Emulated, loss: Any, *hosts: Any) -> None:
        self.library = library
        input, *others = map(library.tensor, hosts)
        self.leaf = input.requires_grad_()
        self.call, self.operands = prepare_of(loss)(self.leaf, *others)

    def loss(self) -> Tensor:
        return autograd.evaluate(self.library, self.call, self.operands)

    def grad_output(self, factor: float) -> Tensor:
        return self.library.tensor(np.asarray(factor, np.float32))

    def gradient(self, loss: Tensor, factor: float, **options: Any) -> Tensor:
        return torch.autograd.grad(loss, self.leaf, self.grad_output(factor), **options)[0]

    def written(self, loss: Tensor) -> Tensor:
        """What the forward pass wrote."""
        (gradient,), _ = loss.grad_fn.ready  # type: ignore[union-attr]
        assert isinstance(gradient, Tensor)
        return gradient

    def expected(self, factor: float) -> Tensor:
        """The second backward pass of a graph is a request of its own."""
        loss = self.loss()
        self.gradient(loss, factor, retain_graph=True)
        return self.gradient(loss, factor)


@pytest.fixture(params=["mse", "cross entropy"])
def problem(emulated: Emulated, request: pytest.FixtureRequest) -> Problem:
    rng = np.random.default_rng(9)
    input = rng.standard_normal((300, 10)).astype(np.float32)
    if request.param == "mse":
        return Problem(emulated, mse_loss, input, np.zeros_like(input))
    return Problem(emulated, cross_entropy, input, rng.integers(0, 10, 300))


def test_changing_factors(problem: Problem) -> None:
    for factor in (1.0, 0.3, 65536.0, -0.0):
        wanted = problem.expected(factor)
        for _ in range(2):
            loss = problem.loss()
            written = problem.written(loss)
            got = problem.gradient(loss, factor)
            assert got.data_ptr() == written.data_ptr()
            assert torch.equal(got.view(torch.int32), wanted.view(torch.int32))
            del loss, written
        assert torch.equal(problem.written(problem.loss()), wanted)


def test_two_losses_in_a_weighted_sum(problem: Problem) -> None:
    wanted = [problem.expected(factor) for factor in (0.3, 0.7)]
    weights = [problem.grad_output(factor) for factor in (0.3, 0.7)]
    for turn in range(3):
        first, second = problem.loss(), problem.loss()
        if turn:
            assert torch.equal(problem.written(first), wanted[0])
            assert torch.equal(problem.written(second), wanted[1])
        problem.leaf.grad = None
        torch.autograd.backward([first, second], weights)
        assert problem.leaf.grad is not None
        assert torch.equal(problem.leaf.grad, wanted[1] + wanted[0])


def test_accumulation(problem: Problem) -> None:
    part = problem.expected(0.25)
    problem.leaf.grad = None
    for step in range(4):
        loss = problem.loss()
        assert step == 0 or torch.equal(problem.written(loss), part)
        loss.backward(problem.grad_output(0.25))
        assert problem.leaf.grad is not None
        assert torch.allclose(problem.leaf.grad, (step + 1) * part, rtol=1e-6, atol=0)
        del loss


def test_a_loss_that_is_deleted(problem: Problem) -> None:
    problem.gradient(problem.loss(), 0.5)
    for _ in range(100):
        problem.loss()
    gc.collect()
    assert torch.equal(problem.written(problem.loss()), problem.expected(0.5))


def test_second_derivatives(problem: Problem) -> None:
    loss = problem.loss()
    wanted = problem.expected(0.5)
    got = problem.gradient(loss, 0.5, create_graph=True)
    assert torch.equal(got.detach(), wanted)
    assert torch.equal(problem.gradient(loss, 0.5), wanted)


@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_overwritten_views_are_scaled(
    emulated: Emulated, dtype: torch.dtype, factor: float
) -> None:
    """By the kernel where they are dense and begin at a vector; what is around them stays."""
    grad_output = emulated.tensor(np.asarray(factor, np.float32))
    values = torch.arange(64.0, dtype=dtype)
    for view, launches in (
        (lambda x: x.view(8, 8), 1),
        (lambda x: x.view(8, 8).T, 1),
        (lambda x: x[16:].view(6, 8), 1),
        (lambda x: x.view(8, 8)[:, :5], 0),
        (lambda x: x.view(8, 8)[:, 3:], 0),
        (lambda x: x.view(8, 8)[::2], 0),
        (lambda x: x[1:33].view(4, 8), 0),
        (lambda x: x[:0].view(0, 8), 0),
    ):
        bits = emulated.tensor(values.view(torch.int16).numpy())
        memory, expected = bits.view(dtype), values.clone()
        view(expected).copy_((view(values).float() * grad_output).to(dtype))
        emulated.emulated.launches.clear()
        emulated.scale(view(memory), grad_output)
        assert len(emulated.emulated.launches) == launches
        assert torch.equal(memory, expected)

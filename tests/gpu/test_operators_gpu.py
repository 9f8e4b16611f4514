"""torch.compile, transforms and graphs on CUDA tensors, beside eager mode."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.profiler import ProfilerActivity, profile

from cupy_losses import cross_entropy, mse_loss
from cupy_losses._device import engine, workspace
from cupy_losses._libraries import torch as torch_library
from cupy_losses._torch import inductor

from .waiting import without_waiting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),  # torch's own, of its memory
    pytest.mark.filterwarnings("ignore:.*Profiler clears events"),
]
Tensor = torch.Tensor
Make = Callable[[], tuple[Tensor, Tensor]]


def values() -> tuple[Tensor, Tensor]:
    x, y = torch.randn(2, 1000, 777, device="cuda")
    return x.requires_grad_(), y


def logits() -> tuple[Tensor, Tensor]:
    x = torch.randn(500, 1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return x, torch.randint(1000, (500,), device="cuda")


CASES = [(mse_loss, values), (cross_entropy, logits)]
BACKENDS = ["aot_eager", "inductor"]


def step(loss: Callable[..., Any], x: Tensor, target: Tensor) -> list[Tensor]:
    value = loss(x, target)
    return [value.detach(), *torch.autograd.grad(value, x)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("loss", "make"), CASES)
def test_compiled(loss: Callable[..., Any], make: Make, backend: str) -> None:
    """The bits of eager mode, of shapes that were not compiled for too."""
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=backend)
    x, target = make()
    for count in (500, 300):
        part = x.detach()[:count].clone().requires_grad_()
        for got, expected in zip(
            step(compiled, part, target[:count]), step(loss, part, target[:count]), strict=True
        ):
            assert torch.equal(got, expected)


def test_code_of_one_layout() -> None:
    """It takes views that start unaligned, and the CPU has code of its own; also in half precision,
    whose result autocast makes float32.
    """
    torch._dynamo.reset()
    compiled = torch.compile(mse_loss, fullgraph=True, dynamic=False)
    for dtype in (torch.float32, torch.bfloat16):
        memory = torch.randn(2, 1001, device="cuda").to(dtype)
        for enabled in (False, True, False):
            for start in (0, 1, 0, 1):
                x, y = (each[start : start + 1000] for each in memory)
                with torch.autocast("cuda", enabled=enabled):
                    got = step(compiled, x.detach().requires_grad_(), y)
                    expected = step(mse_loss, x.detach().requires_grad_(), y)
                for result, other in zip(got, expected, strict=True):
                    assert torch.equal(result, other)
                    assert result.dtype == other.dtype
            on_host = [each[:1000].cpu() for each in memory]
            torch.testing.assert_close(compiled(*on_host), mse_loss(*on_host))


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_code_of_one_layout_on_two_devices() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(mse_loss, fullgraph=True, dynamic=False)
    for _ in range(2):
        for device in ("cuda:0", "cuda:1", "cpu"):
            x, y = torch.ones(100, device=device), torch.zeros(100, device=device)
            for _ in range(2):
                value, gradient = step(compiled, x.requires_grad_(), y)
                assert value == 1
                assert gradient.device == x.device
                torch.testing.assert_close(gradient, torch.full_like(y, 0.02))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("loss", "make", "more"), [(*CASES[0], 0), (*CASES[1], 1)])
def test_launches_and_memory_of_a_compiled_step(
    loss: Callable[..., Any], make: Make, more: int, backend: str
) -> None:
    """No more than in eager mode, but for one that counts rows ahead of the backward pass."""
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    x, target = make()
    counts, peaks = [], []
    for function in (loss, compiled):
        step(function, x, target)
        step(function, x, target)
        gc.collect()  # what is collected meanwhile would make room
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            step(function, x, target)
            torch.cuda.synchronize()
        events = [e for e in profiler.events() or () if e.device_type.name == "CUDA"]
        counts.append(len(events))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert 2 <= counts[1] <= counts[0] + more
    assert peaks[1] <= peaks[0]


@pytest.mark.parametrize(("loss", "make"), CASES)
def test_reduce_overhead(
    loss: Callable[..., Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs that torch's compiler captures and replays, in the first call of a process."""
    torch._dynamo.reset()
    monkeypatch.setattr(engine, "_plans", {})
    monkeypatch.setattr(inductor, "_runs", {})
    monkeypatch.setattr(workspace, "_of_streams", {})
    torch_library._scalar.cache_clear()
    compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
    x, target = make()
    for _ in range(4):
        with torch.no_grad():
            x.mul_(0.5)
        torch.compiler.cudagraph_mark_step_begin()
        got = [t.clone() for t in step(compiled, x, target)]
        for result, expected in zip(got, step(loss, x, target), strict=True):
            assert torch.equal(result, expected)


def test_transforms_do_not_wait_for_the_device() -> None:
    x, target = logits()
    samples = x.detach().float().reshape(50, 10, 1000)
    targets = target.reshape(50, 10)
    vmap(grad(cross_entropy))(samples, targets)  # compiles
    with without_waiting():
        got = vmap(grad(cross_entropy))(samples, targets)
    expected = torch.stack(
        [grad(cross_entropy)(*each) for each in zip(samples, targets, strict=True)]
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-9)

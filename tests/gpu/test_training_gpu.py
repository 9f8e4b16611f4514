"""Training on a GPU: loss scaling, captured steps, streams, threads, processes, a second GPU."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
from cupy_losses import (
    binary_cross_entropy,
    check_values,
    cross_entropy,
    l1_loss,
    mse_loss,
    nn,
    triplet_margin_loss,
    value_and_grad,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

ROOT = Path(cupy_losses.__file__).parents[1]
two_gpus = pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
Tensor = torch.Tensor
SLEEP = 100_000_000  # cycles, during which what comes after is queued


class Network(torch.nn.Module):
    """A network of two tasks that computes its loss."""

    def __init__(self, library: Any = nn) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 11)
        )
        self.of_classes = library.CrossEntropyLoss(label_smoothing=0.1)
        self.of_values = library.MSELoss()

    def forward(self, features: Tensor, classes: Tensor, values: Tensor) -> Tensor:
        """The sum of the losses."""
        output = self.layers(features)
        total: Tensor = self.of_classes(output[:, :10], classes)
        return total + 0.5 * self.of_values(output[:, 10], values)


Batch = tuple[Tensor, ...]


def batches(count: int, size: int = 256, device: str = "cuda") -> list[Batch]:
    """Features, classes and values."""
    generator = torch.Generator().manual_seed(1)
    rules = torch.randn(16, 10, generator=generator)
    made = []
    for _ in range(count):
        features = torch.randn(size, 16, generator=generator)
        hidden = features @ rules
        batch = features, hidden.argmax(dim=1), hidden.sum(dim=1)
        made.append(tuple(x.to(device) for x in batch))
    return made


def optimizer_of(network: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.01)


def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = network(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for x, y in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_loss_scaler_with_autocast() -> None:
    """The curve and the scales of torch's losses; a step whose gradients overflow is left out."""

    def train(library: Any) -> list[list[Any]]:
        network = Network(library).cuda()
        weight = network.layers[0].get_parameter("weight")
        optimizer = optimizer_of(network)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_interval=4)
        losses, scales, moved = [], [], []
        for number, batch in enumerate(batches(12)):
            if number == 6:
                batch[2][0] = float("inf")
            before = weight.detach().clone()
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = network(*batch)
            assert loss.dtype == torch.float32
            scaled: Any = scaler.scale(loss)
            scaled.backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
            moved.append(not torch.equal(before, weight))
        return [losses, scales, moved]

    losses, *others = train(nn)
    expected, *others_of_torch = train(torch.nn)
    assert losses == pytest.approx(expected, rel=1e-2)
    assert others == others_of_torch
    assert not others[1][6]


def test_graphed_callables() -> None:
    """torch captures the forward and the backward pass of a network that ends with our losses."""
    first, *rest = batches(6)
    network = Network().cuda()
    eager = copy.deepcopy(network)
    graphed: Any = torch.cuda.make_graphed_callables(network, tuple(x.clone() for x in first))
    assert_same_weights(network, eager)
    optimizer, eager_optimizer = optimizer_of(network), optimizer_of(eager)
    for batch in rest:
        loss = step(graphed, optimizer, batch)
        torch.testing.assert_close(loss, step(eager, eager_optimizer, batch))
    assert_same_weights(network, eager)


def test_a_captured_step_beside_eager_calls() -> None:
    """Replays train as eager steps do, while the same losses run on another stream."""
    given = batches(9)
    network, eager = (Network().cuda() for _ in range(2))
    optimizer, eager_optimizer = optimizer_of(network), optimizer_of(eager)
    static = tuple(x.clone() for x in given[0])
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(network, optimizer, static)
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(3):
        step(eager, eager_optimizer, given[0])
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured = network(*static)
        captured.backward()
        optimizer.step()
    x, y = torch.rand(2, 100_003, device="cuda")
    x.requires_grad_()
    expected = mse_loss(x, y)
    (slope,) = torch.autograd.grad(0.5 * expected, x)
    other.wait_stream(torch.cuda.current_stream())
    results = []
    for batch in given[1:]:
        for into, source in zip(static, batch, strict=True):
            into.copy_(source)
        graph.replay()
        with torch.cuda.stream(other):
            value = mse_loss(x, y)
            results.append((value.detach(), *torch.autograd.grad(0.5 * value, x)))
        torch.testing.assert_close(captured.detach(), step(eager, eager_optimizer, batch))
    torch.cuda.synchronize()
    assert_same_weights(network, eager)
    for value, gradient in results:
        assert torch.equal(value, expected)
        assert torch.equal(gradient, slope)


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[[str], list[Tensor]]]] = {
    "mse": (mse_loss, lambda device: [normal(300_007, device=device) for _ in range(2)]),
    "classes": (
        cross_entropy,
        lambda device: [normal(999, 1000, device=device), classes(999, 1000, device)],
    ),
    "triplets": (
        triplet_margin_loss,
        lambda device: [normal(500, 77, device=device, seed=k) for k in range(3)],
    ),
}


def normal(*shape: int, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


def classes(rows: int, count: int, device: str) -> Tensor:
    return torch.randint(count, (rows,), generator=torch.Generator().manual_seed(2)).to(device)


def results(loss: Callable[..., Tensor], operands: list[Tensor], factor: float) -> list[Tensor]:
    """The loss, and the gradient of the first operand."""
    first = operands[0].detach().requires_grad_()
    value = loss(first, *operands[1:])
    return [value.detach(), *torch.autograd.grad(factor * value, first)]


def overwrite_what_is_free(like: list[Tensor]) -> list[Tensor]:
    """Take memory of such sizes from the pool of the current stream, and fill it."""
    return [
        torch.full_like(x, float("nan") if x.is_floating_point() else 3)
        for _ in range(8)
        for x in like
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_memory_that_is_freed_while_a_kernel_waits(name: str) -> None:
    """Operands of one stream are used on another and freed at once, as record_stream allows."""
    loss, make = LOSSES[name]
    operands = make("cuda")
    expected = results(loss, operands, 0.5)
    copies = [x.clone() for x in operands]
    like = [torch.empty_like(x, device="meta") for x in copies]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        got = results(loss, copies, 0.5)
        for x in copies:
            x.record_stream(side)
    del copies, x
    kept = overwrite_what_is_free([torch.empty_like(x, device="cuda") for x in like])
    torch.cuda.synchronize()
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    del kept


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_call_frees_is_of_its_own_stream(name: str) -> None:
    """Temporary operands and what a call needs for itself are no other stream's while it waits."""
    loss, make = LOSSES[name]
    operands = make("cuda")
    expected = results(loss, operands, 3.0)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        got = [results(loss, [operands[0] * 1, *operands[1:]], 3.0) for _ in range(3)]
    kept = overwrite_what_is_free(operands)
    torch.cuda.synchronize()
    for each in got:
        for one, other in zip(each, expected, strict=True):
            assert torch.equal(one, other)
    del kept


def test_a_backward_pass_from_another_stream() -> None:
    """It runs on the stream of the forward pass; what it wrote is ready where it was asked for."""
    loss, make = LOSSES["mse"]
    operands = make("cuda")
    expected = results(loss, operands, 0.5)[1]
    leaf = operands[0].detach().requires_grad_()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        value = loss(leaf, operands[1])
    torch.cuda.current_stream().wait_stream(side)
    (gradient,) = torch.autograd.grad(0.5 * value, leaf)
    copied = gradient.clone()
    del value
    with torch.cuda.stream(side):
        kept = overwrite_what_is_free(operands)
    torch.cuda.synchronize()
    assert torch.equal(copied, expected)
    del kept


def test_threads_that_train_on_streams_of_their_own() -> None:
    """Each as if it were alone."""
    given = batches(20)
    alone = Network().cuda()
    optimizer = optimizer_of(alone)
    for batch in given:
        step(alone, optimizer, batch)
    networks = [Network().cuda() for _ in range(4)]
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work(network: torch.nn.Module) -> None:
        try:
            torch.cuda.synchronize()  # cuBLAS warns in a thread that has no context yet
            optimizer = optimizer_of(network)
            with torch.cuda.stream(torch.cuda.Stream()):
                for batch in given:
                    step(network, optimizer, batch)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(network,)) for network in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for network in networks:
        assert_same_weights(network, alone)


FORKED = """
import os
import sys

import numpy as np
import torch

import cupy_losses
import cupy_losses.nn

def step(device):
    x = torch.full((1000,), 3.0, device=device, requires_grad=True)
    loss = cupy_losses.mse_loss(x, torch.zeros(1000, device=device))
    loss.backward()
    return [loss.item(), round(1000 * x.grad[0].item(), 3)]

assert float(cupy_losses.mse_loss(np.full(3, 3.0), np.zeros(3))) == 9.0
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    code = 1
    try:
        code = int(step("cuda") != [9.0, 6.0])
    finally:
        sys.stderr.flush()
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
assert step("cuda") == [9.0, 6.0]
"""


def test_a_process_that_forks_before_it_uses_cuda() -> None:
    """Imports, and losses on the host, leave CUDA alone."""
    subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, check=True)


@pytest.fixture
def first_device() -> Iterator[None]:
    """The first GPU is the current one, before and after."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


@two_gpus
@pytest.mark.usefixtures("first_device")
@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("name", LOSSES)
def test_tensors_of_the_second_gpu(name: str, factor: float) -> None:
    """The bits of the first one, forward and backward, eager and by the operator."""
    loss, make = LOSSES[name]
    expected = results(loss, make("cuda:0"), factor)
    first, *others = operands = make("cuda:1")
    for _ in range(2):  # the second backward pass has been anticipated
        got = results(loss, operands, factor)
        for one, other in zip(got, expected, strict=True):
            assert one.device == torch.device("cuda:1")
            assert torch.equal(one.cpu(), other.cpu())
    slope = torch.func.grad(lambda x: factor * loss(x, *others))(first)
    assert slope.device == torch.device("cuda:1")
    torch.testing.assert_close(slope.cpu(), expected[1].cpu())


@two_gpus
@pytest.mark.usefixtures("first_device")
@pytest.mark.parametrize("compiled", [False, True])
def test_acceleration_on_the_second_gpu(compiled: bool) -> None:
    x, y = (normal(1000, device="cuda:1", seed=k) for k in range(2))
    function: Any = torch.nn.functional.mse_loss
    expected = results(function, [x, y], 1.0)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    with cupy_losses.accelerate() as acceleration:
        got = results(function, [x, y], 1.0)
    torch.testing.assert_close(got, expected)
    assert [line.reason for line in acceleration.report().lines] == [""]


@two_gpus
@pytest.mark.usefixtures("first_device")
def test_cupy_arrays_of_the_second_gpu() -> None:
    import cupy

    hosts = [np.random.default_rng(k).normal(size=300_007).astype(np.float32) for k in range(2)]
    both = value_and_grad(mse_loss)
    expected = both(*map(cupy.asarray, hosts))
    with cupy.cuda.Device(1):
        arrays = [cupy.asarray(host) for host in hosts]
    got = both(*arrays)
    assert cupy.cuda.Device().id == 0
    for one, other in zip(got, expected, strict=True):
        assert one.device.id == 1
        assert np.array_equal(cupy.asnumpy(one), cupy.asnumpy(other))


@two_gpus
@pytest.mark.usefixtures("first_device")
def test_sums_of_losses_on_the_second_gpu() -> None:
    """What CuPy adds up there, too, in order after the losses; values are checked there."""
    import cupy

    hosts = [np.random.default_rng(k).normal(size=30_000_007).astype(np.float32) for k in range(2)]
    both = value_and_grad(lambda x, y: 0.5 * mse_loss(x, y) + 3 * l1_loss(x, y) + 1.0)
    expected = both(*map(cupy.asarray, hosts))
    with cupy.cuda.Device(1):
        arrays = [cupy.asarray(host) for host in hosts]
        unlikely = cupy.full(7, 2.0, cupy.float32)
    got = both(*arrays)
    assert cupy.cuda.Device().id == 0
    for one, other in zip(got, expected, strict=True):
        assert one.device.id == 1
        assert np.array_equal(cupy.asnumpy(one), cupy.asnumpy(other))
    with check_values(), pytest.raises(ValueError, match="is 2"):
        binary_cross_entropy(unlikely, unlikely)


@two_gpus
@pytest.mark.usefixtures("first_device")
@pytest.mark.parametrize("name", LOSSES)
def test_operands_of_two_gpus(name: str) -> None:
    """An error before anything is launched; the next call works."""
    import cupy

    loss, make = LOSSES[name]
    first, *others = make("cuda:0")
    moved = [x.to("cuda:1") for x in others]
    expected = loss(first, *others)
    with pytest.raises(ValueError, match="same device"):
        loss(first, *moved)
    with pytest.raises(ValueError, match="same device"):
        loss(first.to("cuda:1"), *others)
    arrays = [cupy.from_dlpack(x) for x in (first, *moved)]
    with pytest.raises(ValueError, match="same device"):
        loss(*arrays)
    assert torch.equal(loss(first, *others), expected)

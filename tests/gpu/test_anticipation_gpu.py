"""Gradients that anticipate grad_output, on a GPU: their bits never depend on the guess."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cupy_losses import cross_entropy, huber_loss, mse_loss
from cupy_losses._core.loss import Request
from cupy_losses._device import anticipation, engine

pytestmark = pytest.mark.gpu

SIZE = 300_007
FACTORS = (1.0, 0.3, 0.3, 65536.0, 65536.0, -0.0, 0.0, 1e-3, float("inf"), float("nan"), 0.3)

Loss = Callable[[Any], Any]


def problem(name: str, dtype: Any = torch.float32, ignored: bool = True) -> tuple[Loss, Any]:
    """A loss of one operand, and the operand; a row of classes may be ignored."""
    generator = torch.Generator("cuda").manual_seed(3)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    if name == "mse":
        target = normal(SIZE)
        return lambda x: mse_loss(x, target), normal(SIZE).requires_grad_()
    if name == "weighted":
        target, weight = normal(SIZE), normal(SIZE).abs()
        where = target > 0
        return (
            lambda x: mse_loss(x, target, weight=weight, where=where),
            normal(SIZE).requires_grad_(),
        )
    shape = {"few classes": (9001, 10), "rows": (999, 1000), "long": (2, 300_000)}[name]
    labels = torch.randint(shape[1], shape[:1], generator=generator, device="cuda")
    if ignored:
        labels[0] = -100
    return lambda x: cross_entropy(x, labels), normal(*shape).requires_grad_()


PROBLEMS = ("mse", "weighted", "few classes", "rows", "long")


def factor_like(value: Any, factor: float) -> Any:
    """A grad_output; 65536 is inf in float16."""
    return torch.tensor(factor, device=value.device).to(value.dtype)


def expected(loss: Loss, input: Any, factor: float) -> Any:
    """The gradient by a request of its own: the second backward pass of a graph asks for that."""
    value = loss(input)
    grad_output = factor_like(value, factor)
    torch.autograd.grad(value, input, grad_output, retain_graph=True)
    return torch.autograd.grad(value, input, grad_output)[0]


def same(got: Any, wanted: Any) -> bool:
    """Whether all elements have the same bits, all NaN being alike."""
    as_bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    one, other = (torch.where(x.isnan(), torch.full_like(x, 7.0), x) for x in (got, wanted))
    return torch.equal(one.view(as_bits), other.view(as_bits))


def backward(value: Any, input: Any, factor: float) -> Any:
    return torch.autograd.grad(value, input, factor_like(value, factor))[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_bits_are_those_of_a_vjp(name: str, dtype: Any) -> None:
    loss, input = problem(name, dtype)
    for factor in FACTORS:
        wanted = expected(loss, input, factor)
        for _ in range(2):
            assert same(backward(loss(input), input, factor), wanted), factor


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_anticipated_gradient_is_written_once(name: str) -> None:
    """What is written into the gradient between the passes stays, as nothing is computed anew."""
    loss, input = problem(name, ignored=name != "few classes")  # of which no row is anticipated
    for factor, is_anticipated in ((0.11, False), (0.11, True), (0.12, False), (0.12, True)):
        value = loss(input)
        gradient = value.grad_fn.ready[0][0]
        gradient.fill_(77)
        got = backward(value, input, factor)
        assert got.data_ptr() == gradient.data_ptr()
        assert bool((got == 77).all()) == is_anticipated


def test_two_losses_in_turn() -> None:
    loss, input = problem("mse")
    wanted = [expected(loss, input, factor) for factor in (0.3, 0.7)]
    for _ in range(4):
        first, second = loss(input), loss(input)
        assert same(backward(first, input, 0.3), wanted[0])
        assert same(backward(second, input, 0.7), wanted[1])
    first, second = loss(input), loss(input)
    assert same(first.grad_fn.ready[0][0], wanted[0])
    assert same(second.grad_fn.ready[0][0], wanted[1])


def test_gradient_accumulation() -> None:
    loss, input = problem("rows")
    part = expected(loss, input, 0.25)
    for _ in range(3):
        input.grad = None
        for _ in range(4):
            (loss(input) * 0.25).backward()
        assert same(input.grad, ((part + part) + part) + part)


def test_a_loss_scaler_with_float16() -> None:
    """Under autocast the loss is float32, so that its grad_output may be 65536."""
    input = torch.full((4096,), 1e-3, dtype=torch.float16, device="cuda", requires_grad=True)
    exact = 65536 * 2 * input.detach().double() / 4096
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            value = mse_loss(input, torch.zeros_like(input))
        (gradient,) = torch.autograd.grad(value * 65536, input)
        assert torch.equal(gradient, exact.half())


def test_a_loss_without_backward() -> None:
    loss, input = problem("mse")
    backward(loss(input), input, 0.5)
    for _ in range(3 * anticipation.SLOTS):
        loss(input)
    gc.collect()
    value = loss(input)
    assert same(value.grad_fn.ready[0][0], expected(loss, input, 0.5))


@pytest.mark.parametrize("create_graph", [False, True])
def test_retained_graphs(create_graph: bool) -> None:
    loss, input = problem("rows")
    wanted = {factor: expected(loss, input, factor) for factor in (1.0, 0.3)}
    value = loss(input)
    for factor in (0.3, 1.0, 0.3):
        grad_output = factor_like(value, factor)
        (got,) = torch.autograd.grad(
            value, input, grad_output, retain_graph=True, create_graph=create_graph
        )
        assert same(got.detach(), wanted[factor])
        got.detach().zero_()


def test_threads_and_streams() -> None:
    """Each with grad_outputs of its own, on streams of its own and on one that all share."""
    loss, input = problem("mse")
    factors = (0.3, 0.5, 0.7, 3.0)
    wanted = {factor: expected(loss, input, factor) for factor in factors}
    shared = torch.cuda.Stream()
    failures: list[Any] = []

    def work(number: int) -> None:
        leaf = input.detach().requires_grad_()
        own = torch.cuda.Stream()
        for turn in range(60):
            factor = factors[(number + turn // (number + 1)) % len(factors)]
            with torch.cuda.stream(shared if turn % 3 == 0 else own):
                got = backward(loss(leaf), leaf, factor)
                if not same(got, wanted[factor]):
                    failures.append((number, turn))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_backward_on_another_stream_than_the_guess_came_from() -> None:
    """A slow backward pass on one stream; a call on another stream does not see its guess."""
    loss, input = problem("mse")
    wanted = expected(loss, input, 0.3)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for turn in range(20):
        with torch.cuda.stream(streams[turn % 2]):
            if turn % 2:
                torch.cuda._sleep(1_000_000)
            results.append(backward(loss(input), input, 0.3 if turn % 4 < 2 else 0.5))
    torch.cuda.synchronize()
    halves = expected(loss, input, 0.5)
    for turn, got in enumerate(results):
        assert same(got, wanted if turn % 4 < 2 else halves)


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", ["mse", "weighted", "rows"])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_graph(name: str, is_warm: bool) -> None:
    """Replays with grad_outputs that change, next to eager calls of the same plan."""
    loss, input = problem(name)
    grad_output = torch.ones((), device="cuda")
    wanted = {factor: expected(loss, input, factor) for factor in (1.0, 0.3, 0.5)}
    if is_warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                torch.autograd.grad(loss(input), input, grad_output)
        torch.cuda.current_stream().wait_stream(side)
    else:  # kernels are loaded, but the plan that captures has no slots
        engine._plans.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(loss(input), input, grad_output)
    engine._plans.clear()  # what the graph uses outlives its plan
    gc.collect()
    others = [torch.full((64,), 7.0, device="cuda", dtype=torch.float64) for _ in range(100)]
    other = torch.cuda.Stream()
    for factor in (0.3, 0.3, 1.0, 0.5, 0.5, 0.5, 0.3):
        grad_output.fill_(factor)
        with torch.cuda.stream(other):
            eager = backward(loss(input), input, 0.7)
        graph.replay()
        assert same(gradient, wanted[factor])
    torch.cuda.synchronize()
    assert same(eager, expected(loss, input, 0.7))
    assert all(bool((x == 7.0).all()) for x in others)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_replays_anticipate_what_came_before() -> None:
    loss, input = problem("mse")
    grad_output = torch.full((), 0.3, device="cuda")
    for _ in range(2):
        torch.autograd.grad(loss(input), input, grad_output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(input)
        written = value.grad_fn.ready[0][0]
        before = written.clone()  # what the forward pass wrote
        torch.autograd.grad(value, input, grad_output)
    wanted = {factor: expected(loss, input, factor) for factor in (0.3, 0.5)}
    previous = None
    for factor in (0.3, 0.3, 0.5, 0.5, 0.3):
        grad_output.fill_(factor)
        graph.replay()
        if previous is not None:
            assert same(before, wanted[previous])
        previous = factor


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_graphs_of_each_pass() -> None:
    """One graph of the forward pass, another of the backward pass."""
    loss, input = problem("mse")
    wanted = {factor: expected(loss, input, factor) for factor in (1.0, 0.3, 0.5)}
    graphed = torch.cuda.make_graphed_callables(loss, (input.detach().clone().requires_grad_(),))
    for factor in (1.0, 0.3, 0.3, 0.5, 0.3):
        value = graphed(input)
        assert same(backward(value, input, factor), wanted[factor])


def test_a_second_replay_of_the_backward_pass() -> None:
    """With another grad_output, and then with the one that the forward pass has anticipated."""
    loss, input = problem("mse")
    wanted = {factor: expected(loss, input, factor) for factor in (1.0, 2.0)}
    sample = input.detach().clone().requires_grad_()
    graphed: Any = torch.cuda.make_graphed_callables(loss, (sample,))
    for factors in ((2.0, 1.0), (2.0, 1.0), (1.0, 2.0, 1.0)):
        value = graphed(input)
        for factor in factors:
            given = factor_like(value, factor)
            (found,) = torch.autograd.grad(value, input, given, retain_graph=True)
            assert same(found, wanted[factor])


def test_operands_that_a_hook_moves() -> None:
    loss, input = problem("mse")
    wanted = expected(loss, input, 0.3)
    for _ in range(2):
        with torch.autograd.graph.save_on_cpu():
            value = loss(input)
        assert same(backward(value, input, 0.3), wanted)


def test_a_forward_pass_leaves_what_a_vjp_gives() -> None:
    """The library's own requests: of the guess of the plan, and of grad_output."""
    loss, input = problem("mse")
    backward(loss(input), input, 0.3)
    value = loss(input)
    library, call, wanted = value.grad_fn.state
    operands = value.grad_fn.saved_tensors
    request = Request(value=False, wanted=wanted, vjp=True)
    (vjp,) = library.run(call, request, (factor_like(value, 0.3), *operands))
    assert same(value.grad_fn.ready[0][0], vjp)


def test_peak_memory_with_any_grad_output() -> None:
    size = 1 << 26
    input = torch.randn(size, device="cuda", requires_grad=True)
    target = torch.randn(size, device="cuda")
    for loss in (mse_loss, huber_loss):
        for factor in (0.5, 0.5, 3.0):
            input.grad = None
            gc.collect()  # what other tests have left
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            (loss(input, target) * factor).backward()
            peak = torch.cuda.max_memory_allocated() - before
            assert 4 * size <= peak <= 4 * size + (1 << 20)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_two_devices() -> None:
    loss, input = problem("mse")
    wanted = expected(loss, input, 0.3).cpu()
    target = torch.randn(SIZE, device="cuda:1")
    leaf = torch.randn(SIZE, device="cuda:1", requires_grad=True)
    for _ in range(3):
        got = backward(mse_loss(leaf, target), leaf, 0.3)
        assert got.device == leaf.device
        assert same(backward(loss(input), input, 0.3).cpu(), wanted)
    assert same(got, expected(lambda x: mse_loss(x, target), leaf, 0.3))

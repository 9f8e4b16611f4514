"""The operator that is recorded where torch traces, and what cannot be recorded."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch._higher_order_ops.map import map as map_of_torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functionalize, grad, hessian, jacfwd, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import cupy_losses
import cupy_losses.nn.functional as F
from cupy_losses import (
    cross_entropy,
    huber_loss,
    log_cosh_loss,
    mse_loss,
    nn,
    pointwise_loss,
    row_loss,
    value_and_grad,
)
from cupy_losses._core.types import Reduction
from cupy_losses._libraries.torch import TorchCpu
from cupy_losses._torch import dynamo

from ..tables.examples import of_elements, of_rows
from ..tables.losses import LOSSES
from ..tables.rows import ROWS, RowCase, tversky_loss
from ..tools.levels import first

# torch's own, when forward mode is first used, and where its compiler looks at tensors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
Tensor = torch.Tensor
evaluate = torch.ops.cupy_losses.evaluate.default


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)(*args)


def tables() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2)]


def recorded(function: Callable[..., Any], *tensors: Tensor) -> list[tuple[Any, ...]]:
    """The arguments of the operators that make_fx records, without the tensors."""
    nodes = make_fx(function)(*tensors).graph.nodes
    return [node.args[:-1] for node in nodes if node.target is evaluate]


CASES = [LOSSES[0], LOSSES[3], ROWS[0], ROWS[-1]]


@pytest.mark.parametrize("case", first(CASES))
def test_opcheck(case: Any) -> None:
    """torch's own checks, on the requests of the loss, of its gradients and of their gradients."""
    calls: list[tuple[Any, ...]] = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is evaluate:
                own = [t.detach().requires_grad_(t.is_floating_point()) for t in args[-1]]
                calls.append((*args[:-1], own))
            return function(*args, **(kwargs or {}))

    example = of_rows(case) if isinstance(case, RowCase) else of_elements(case)
    with Watched():
        value = example.results(case.loss, reduction="none")[0]
        assert value.shape
    assert len(calls) == 2
    for call in calls:
        torch.library.opcheck(evaluate, call)


def test_one_graph_serves_all_shapes() -> None:
    counters.clear()
    torch._dynamo.reset()
    loss = torch.compile(mse_loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in (4, 5), (7, 9), (30, 3):
        x = torch.randn(shape, requires_grad=True)
        loss(x, torch.zeros(shape)).backward()
        torch.testing.assert_close(x.grad, 2 * x.detach() / x.numel())
    assert counters["stats"]["unique_graphs"] == 1


def test_a_compiled_step_evaluates_each_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for the loss and one for its gradient."""
    requests = []
    run = TorchCpu.run_here

    def counting(self: TorchCpu, call: Any, request: Any, operands: Any) -> Any:
        requests.append((request.value, request.wanted))
        return run(self, call, request, operands)

    monkeypatch.setattr(TorchCpu, "run_here", counting)
    x, y = tables()
    compiled(lambda x: 2 * mse_loss(x, y) + 1, x.requires_grad_()).backward()
    assert requests == [(True, ()), (False, (0,))]


FIRST_CALL = """
import torch
from cupy_losses import mse_loss
loss = torch.compile(mse_loss, fullgraph=True, backend="eager")
assert loss(torch.ones(3), torch.zeros(3)) == 1
"""
BROKEN = """
import torch
from cupy_losses import check_values, mse_loss
def loss(x, y):
    with check_values():
        return mse_loss(x, y)
assert torch.compile(loss, backend="eager")(torch.ones(3), torch.zeros(3)) == 1
"""
COMPILED_ONCE = """
import torch
from torch._dynamo.testing import CompileCounter
from cupy_losses import mse_loss
counter = CompileCounter()
loss = torch.compile(mse_loss, fullgraph=True, backend=counter)
for function in loss, mse_loss, loss:
    assert function(torch.ones(3), torch.zeros(3)) == 1
assert counter.frame_count == 1
"""
TORCH_LATER = "import cupy_losses"
PROGRAMS = [
    order + program
    for program in (FIRST_CALL, BROKEN, COMPILED_ONCE)
    for order in (TORCH_LATER, "")
]


@pytest.mark.parametrize("program", first(PROGRAMS, 3, ids=lambda p: str(len(p))))
def test_the_first_call_of_a_program_may_be_compiled(program: str) -> None:
    """torch is imported after this package, or before it."""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_functions_and_modules_of_torch() -> None:
    x, y = tables()
    target = torch.tensor([0, 1, 2, 3])
    weight = torch.rand(5, dtype=torch.float64)
    assert compiled(lambda x: F.mse_loss(x, y, None, None, "sum"), x) == F.mse_loss(
        x, y, reduction="sum"
    )
    for module, given in (
        (nn.HuberLoss(delta=0.3), y),
        (nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1), target),
    ):
        assert compiled(module, x, given) == module(x, given)
    partial = functools.partial(huber_loss, reduction="sum", delta=0.25)
    assert compiled(partial, x, y) == partial(x, y)


@pytest.mark.parametrize("outside", [False, True])
def test_autocast(outside: bool) -> None:
    """A loss of half precision is float32 in a graph too, whenever the graph runs."""
    x, y = (t.to(torch.bfloat16) for t in tables())
    context = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)

    def loss(x: Tensor) -> Tensor:
        if outside:
            return mse_loss(x, y)
        with context():
            return mse_loss(x, y)

    def run(function: Callable[..., Any]) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        if outside:
            with context():
                value = function(leaf)
        else:
            value = function(leaf)
        return [value, *torch.autograd.grad(value, leaf)]

    for got, expected in zip(run(lambda x: compiled(loss, x)), run(loss), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
    assert run(loss)[0].dtype == torch.float32


def cauchy(scale: float = 1.0) -> Callable[..., Any]:
    return pointwise_loss(
        "cauchy",
        f"{scale} * log1p((input - target) * (input - target))",
        numpy=lambda input, target: scale * np.log1p((input - target) ** 2),
    )


@pytest.mark.parametrize("loss", [cauchy(), tversky_loss], ids=str)
def test_losses_of_users(loss: Callable[..., Any]) -> None:
    x, y = tables()
    assert compiled(lambda x: loss(x, y), x) == loss(x, y)
    assert compiled(loss, x, y) == loss(x, y)  # no function, but an object that is called


@row_loss
def masked_square(mask: Any, input: Any, label: Any) -> Any:
    return np.sum(np.where(mask, (input - label) ** 2, 0.0)) / (1 + np.sum(mask))


def test_integers_of_a_loss_over_rows() -> None:
    """In a graph, and as samples of torch.vmap."""
    x = tables()[0]
    mask, label = x > 0, (4 * x).to(torch.int16)
    assert compiled(lambda x: masked_square(mask, x, label), x) == masked_square(mask, x, label)
    found = vmap(grad(masked_square, 1), in_dims=(None, 0, None))(mask, torch.stack([x, -x]), label)
    expected = [grad(masked_square, 1)(mask, x, label) for x in (x, -x)]
    torch.testing.assert_close(found, torch.stack(expected))


def test_a_graph_of_a_loss_that_is_not_defined() -> None:
    """As of a program that another process has saved: the formula must be the same."""
    x, y = tables()
    loss = cauchy()
    ((asked,),) = recorded(loss, x, y)
    assert evaluate(asked, [x, y])[0] == loss(x, y)
    other = re.sub("'cauchy[0-9a-f]{64}'", f"'cauchy{64 * '0'}'", asked)
    assert other != asked
    with pytest.raises(ValueError, match="no loss of the name 'cauchy' with the formula"):
        evaluate(other, [x, y])


@pytest.mark.parametrize("text", ["", "{}", "[]", "mse_loss", "{'loss': 1}", "{'loss': []}"])
def test_a_text_that_no_loss_has_written(text: str) -> None:
    with pytest.raises(ValueError, match="takes a text that cupy_losses has written, got"):
        evaluate(text, tables())


def batch(*sizes: int) -> tuple[Tensor, Tensor]:
    """Logits of 4 classes, and these."""
    return torch.zeros(*sizes, 4), torch.arange(math.prod(sizes)).reshape(sizes) % 4


def with_check(function: Callable[..., Any], *tensors: Tensor) -> Any:
    with cupy_losses.check_values():
        return function(*tensors)


# A transform, its operands, and where it finds a class of 7 that the last element has.
CHECKED: dict[str, tuple[Callable[..., Any], tuple[Tensor, Tensor], str]] = {
    "grad": (grad(cross_entropy), batch(3), "target[2]"),
    "hessian": (jacfwd(grad(cross_entropy)), batch(3), "target[2]"),
    "jvp": (
        lambda x, y: jvp(lambda x: cross_entropy(x, y), (x,), (x,)),
        batch(3),
        "target[2]",
    ),
    "vmap": (vmap(cross_entropy), batch(2, 3), "target[2] of sample 1"),
    "vmap of rows": (vmap(cross_entropy), batch(3), "target of sample 2"),
    "vmap of an axis behind": (
        lambda x, y: vmap(cross_entropy, (None, 1))(x[0], y.T),
        batch(2, 3),
        "target[2] of sample 1",
    ),
    "vmap of a gradient": (vmap(grad(cross_entropy)), batch(2, 3), "target[2] of sample 1"),
    "vmap of vmap": (
        vmap(vmap(cross_entropy, (0, 1)), (0, 2)),
        (batch(2, 5, 3)[0], batch(2, 5, 3)[1].permute(2, 1, 0)),
        "target[2] of sample 1, 4",
    ),
    "value_and_grad": (vmap(value_and_grad(cross_entropy)), batch(2, 3), "target[2] of sample 1"),
    "functionalize": (functionalize(cross_entropy), batch(3), "target[2]"),
    "recorded": (
        lambda x, y: make_fx(lambda x, y: cross_entropy(x, y))(x, y)(x, y),
        batch(3),
        "target[2]",
    ),
    "recorded gradient": (
        lambda x, y: make_fx(lambda x, y: grad(cross_entropy)(x, y))(x, y)(x, y),
        batch(3),
        "target[2]",
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_check_values(name: str) -> None:
    """Inside what is transformed or recorded, the values are those of the arguments."""
    function, (x, y), place = CHECKED[name]
    torch.testing.assert_close(with_check(function, x, y), function(x, y))
    bad = y.clone()
    bad[(-1,) * y.dim()] = 7
    with pytest.raises(ValueError, match=f"but {re.escape(place)} is 7"):
        with_check(function, x, bad)


@pytest.mark.parametrize("function", [cross_entropy, F.cross_entropy], ids=["own", "nn"])
def test_check_values_around_what_is_compiled(function: Callable[..., Any]) -> None:
    """Whether a graph was made outside of the block or inside of one, and again outside of it."""
    compiled_once = torch.compile(lambda x, y: function(x, y), backend="aot_eager")
    x, y = batch(3)
    bad = y.clone()
    bad[2] = 7
    for _ in range(2):
        assert compiled_once(x, bad).isnan()
        with pytest.raises(ValueError, match=r"but target\[2\] is 7"):
            with_check(compiled_once, x, bad)
        assert with_check(compiled_once, x, y) == function(x, y)
    whole = torch.compile(lambda x, y: function(x, y), backend="aot_eager", fullgraph=True)
    assert whole(x, bad).isnan()
    with pytest.raises(Unsupported, match="a loss whose operands check_values reads, is not avail"):
        with_check(whole, x, bad)


def test_check_values_records_nothing() -> None:
    x, y = batch(3)

    def nodes() -> list[str]:
        graph = make_fx(lambda x, y: cross_entropy(x, y))(x, y).graph
        return [str(node.target) for node in graph.nodes]

    assert with_check(nodes) == nodes()


def test_check_values_without_values() -> None:
    """A tensor without memory inside a transform."""
    with pytest.raises(NotImplementedError, match="check_values reads the operands"):
        with_check(
            make_fx(lambda x, y: grad(cross_entropy)(x, y), tracing_mode="symbolic"), *batch(3)
        )


decorator = row_loss(name="own")


def of_itself(x: Tensor) -> Tensor:
    return mse_loss(x, x)


def of_numpy_numbers(x: Tensor) -> Any:
    """By name and by position; torch.compile makes arrays of them."""
    by_position: Any = None, -100, None, "mean", np.float32(0.1)
    own: Any = {"ignore_index": np.int64(1), "label_smoothing": np.float64(0.1)}
    classes = torch.arange(4)
    return (
        huber_loss(x, 2 * x, delta=np.float64(0.5), scale=np.float32(0.25))
        + cross_entropy(x, classes, **own)
        + F.cross_entropy(x, classes, None, *by_position)
    )


def in_check_values(x: Tensor) -> Any:
    with cupy_losses.check_values():
        return compiled(lambda x: cupy_losses.binary_cross_entropy(x, x), x.sigmoid())


def in_a_block(x: Tensor) -> Any:
    with cupy_losses.check_values():
        return cupy_losses.binary_cross_entropy(x.sigmoid(), x.sigmoid())


def accelerated(x: Tensor) -> Any:
    with cupy_losses.accelerate():
        return torch.nn.functional.mse_loss(x, 2 * x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: compiled(lambda x: cauchy()(x, x), x), "pointwise_loss, whose function"),
        (lambda x: compiled(lambda x: row_loss("own", np.sum)(x), x), "row_loss, whose function"),
        (lambda x: compiled(lambda x: decorator(np.sum)(x), x), "row_loss, whose function"),
        (lambda x: compiled(lambda x: value_and_grad(mse_loss)(x, x), x), "value_and_grad, which"),
        (lambda x: compiled(value_and_grad(mse_loss), x, x), "value_and_grad, which"),
        (
            lambda x: compiled(lambda x: cupy_losses.jvp(mse_loss, (x, x), (x, None)), x),
            "jvp, which",
        ),
        (
            lambda x: compiled(lambda x: cupy_losses.hvp(mse_loss, (x, x), (x, None)), x),
            "hvp, which",
        ),
        (lambda x: compiled(cupy_losses.grad_and_hess(mse_loss), x, x), "grad_and_hess, which"),
        (
            lambda x: compiled(value_and_grad(of_itself), x),
            "value_and_grad, which",
        ),
        (lambda x: compiled(of_numpy_numbers, x), "a NumPy array or number, which"),
        (in_check_values, "a loss whose operands check_values reads, is not available"),
        (lambda x: compiled(in_a_block, x), "check_values, which is to head"),
        (lambda x: compiled(accelerated, x), "accelerate, which is to be called"),
        (
            lambda x: compiled(
                lambda x: cross_entropy(x, torch.zeros(4).long(), overwrite_input=True), x
            ),
            "input is not overwritten inside",
        ),
        (lambda x: compiled(lambda x: mse_loss(x, x[:3]), x), r"target of shape \(3, 5\) does not"),
        (
            lambda x: compiled(lambda x: mse_loss(x, x, reduction="bad"), x),  # type: ignore[arg-type]
            "reduction must be",
        ),
        (lambda x: jacfwd(jacfwd(jacfwd(lambda y: log_cosh_loss(y, x))))(x), "third derivatives"),
        (
            lambda x: grad(grad(grad(lambda s: log_cosh_loss(s * x, x))))(
                torch.tensor(2.0, dtype=torch.float64)
            ),
            "third derivatives",
        ),
    ],
)
def test_what_is_not_available_says_so(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        function(tables()[0])


own_square = value_and_grad(lambda x: 3 * mse_loss(x, torch.ones(4, 5)))


def of_arrays() -> Any:
    return mse_loss(np.ones(3), np.zeros(3)), mse_loss(np.arange(3.0), np.zeros(3), reduction="sum")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: cross_entropy(x * 1, torch.tensor([0, 1, 2, 3]), overwrite_input=True),
        lambda x: value_and_grad(mse_loss)(x, 2 * x),
        lambda x: own_square(x),
        own_square,
        lambda x: cupy_losses.grad(mse_loss)(x, 2 * x),
        lambda x: cupy_losses.jvp(mse_loss, (x, 2 * x), (x, None)),
        lambda x: cupy_losses.vjp(mse_loss, (x, 2 * x), x.sum()),
        lambda x: cupy_losses.hvp(log_cosh_loss, (x, 2 * x), (x, None)),
        lambda x: cupy_losses.grad_and_hess(log_cosh_loss)(x, 2 * x),
        lambda x: (of_arrays(), x + 1)[0],
        of_numpy_numbers,
        lambda x: cauchy()(x, 2 * x),
        lambda x: row_loss("squares", lambda input: np.sum(input * input))(x),
        in_a_block,
        accelerated,
    ],
)
def test_what_is_no_node_breaks_the_graph(function: Callable[..., Any]) -> None:
    """It runs as ever there. What has NumPy arrays for results keeps them."""
    torch._dynamo.reset()
    got = torch.compile(function, backend="aot_eager")(tables()[0])
    expected = function(tables()[0])
    assert type(got) is type(expected)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mse_loss", "cross_entropy"])
def test_second_derivatives_of_a_view_are_compiled(name: str) -> None:
    """One that begins behind its memory, as its tangent does not."""
    x = torch.randn(9, dtype=torch.float64)[1:].view(2, 4)
    loss = functools.partial(getattr(cupy_losses, name), target=torch.rand_like(x))
    torch._dynamo.reset()
    both = torch.compile(hessian(loss), backend="aot_eager")(x)
    torch.testing.assert_close(both, torch.autograd.functional.hessian(loss, x))


def test_check_values_where_the_caller_is_compiled() -> None:
    torch._dynamo.reset()
    x, y = batch(3)
    loss = torch.compile(lambda x, y: cross_entropy(x, y), backend="aot_eager")
    torch.testing.assert_close(with_check(loss, x, y), cross_entropy(x, y))
    y[2] = 7
    with pytest.raises(ValueError, match=r"but target\[2\] is 7"):
        with_check(loss, x, y)


def conditional(x: Tensor, y: Tensor) -> Any:
    return torch.cond(x.sum() > 0, F.mse_loss, lambda x, y: 2 * F.l1_loss(x, y), (x, y))


def repeated(x: Tensor, y: Tensor) -> Any:
    start = torch.tensor(0), torch.tensor(0.0, dtype=x.dtype)
    return torch.while_loop(lambda k, _: k < 3, lambda k, s: (k + 1, s + F.mse_loss(x, y)), start)


def mapped(x: Tensor, y: Tensor) -> Any:
    loss: Any = lambda row: F.mse_loss(row, y[0])  # noqa: E731
    return map_of_torch(loss, x)


# torch 2.10 says so of control flow with its own losses too.
@pytest.mark.filterwarnings("ignore:You are calling torch.compile inside torch.export")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("function", [conditional, repeated, mapped])
def test_control_flow_is_exported(function: Callable[..., Any], strict: bool) -> None:
    """torch.export compiles the functions that control flow calls."""

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return function(x, y)

    x, y = tables()
    program = torch.export.export(Module(), (x, y), strict=strict)
    for operands in ((x, y), (-y, x)):
        torch.testing.assert_close(program.module()(*operands), function(*operands))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: mse_loss(x, y, weight=y * y, reduction="sum"),
        lambda x, y: 3 * cross_entropy(x, torch.arange(4), weight=y[0].abs()),
        lambda x, y: log_cosh_loss(x, y),
    ],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_compiled_autograd(loss: Callable[..., Tensor], is_compiled: bool) -> None:
    """With gradients by weights too, which an eager loss has by operators."""
    operands = [t.requires_grad_() for t in tables()]
    expected = torch.autograd.grad(loss(*operands), operands)
    torch._dynamo.reset()
    forward = torch.compile(loss, backend="aot_eager") if is_compiled else loss
    backward_compiled(forward(*operands), fullgraph=is_compiled)
    for operand, gradient in zip(operands, expected, strict=True):
        torch.testing.assert_close(operand.grad, gradient)
    if not is_compiled:
        with pytest.raises(Exception, match="the forward pass is to be compiled too"):
            backward_compiled(forward(*operands), fullgraph=True)


def backward_compiled(value: Tensor, fullgraph: bool) -> None:
    compiler = torch.compile(backend="aot_eager", fullgraph=fullgraph)
    with torch._dynamo.compiled_autograd._enable(compiler):
        value.backward()


def branching(x: Tensor) -> Tensor:
    """torch.compile breaks its graph, which it can not do inside a transform."""
    return log_cosh_loss(x, 2 * x) if x.sum() > 0 else log_cosh_loss(x, 3 * x)


def speaking(x: Tensor) -> Tensor:
    """The same, inside torch.vmap."""
    print(end="")
    return log_cosh_loss(x, 2 * x)


def backward(again: bool) -> Callable[[Tensor], Tensor]:
    """A backward pass, of a loss or of its gradient, that were not compiled."""
    leaf = tables()[1].requires_grad_()
    value = cross_entropy(3 * leaf, torch.tensor([0, 1, 2, 3]))
    if again:
        (value,) = torch.autograd.grad(value, leaf, create_graph=True)
    value = value.square().sum()

    def run(x: Tensor) -> Tensor:
        leaf.grad = None
        value.backward(retain_graph=True)
        return x.sum() + torch.as_tensor(leaf.grad)

    return run


@pytest.mark.parametrize(
    "function",
    [
        grad(branching),
        lambda x: jvp(branching, (x,), (x,)),
        lambda x: grad(lambda x: grad(branching)(x).sum())(x),
        vmap(speaking),
        vmap(grad(speaking)),
        jacfwd(grad(speaking)),
        backward(again=False),
        backward(again=True),
    ],
)
def test_the_compiler_reads_no_code_that_torch_calls(function: Callable[..., Any]) -> None:
    """Kernels and backward passes, where the code around them was not compiled."""
    names: list[str] = []

    def seen(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names.extend(str(node.stack_trace) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    x = tables()[0]
    got = torch.compile(function, backend=seen)(x)
    torch.testing.assert_close(got, function(x))
    assert not [name for name in names if "_torch" in name or "_host" in name]


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_vmap_of_no_samples(reduction: str) -> None:
    """Empty, in the shapes and dtypes of torch's, whose gradients fail."""
    x, y = torch.rand(0, 5, 3), torch.rand(5, 0, 3, dtype=torch.float64)
    losses: list[tuple[str, Tensor, int]] = [("mse_loss", y, 1)]
    losses.append(("cross_entropy", torch.zeros(0, 5, dtype=torch.int64), 0))
    for name, target, dim in losses:
        got, expected = (
            vmap(functools.partial(getattr(module, name), reduction=reduction), (0, dim))(x, target)
            for module in (cupy_losses, torch.nn.functional)
        )
        torch.testing.assert_close(got, expected)
        loss = getattr(cupy_losses, name)
        assert vmap(grad(loss), (0, dim))(x, target).shape == x.shape


def test_fake_tensors_with_others() -> None:
    """They have no memory to share, wherever they say that they are."""
    with FakeTensorMode():
        fake, of_gpu = torch.empty(4), torch.empty(4, device="cuda")
    value = mse_loss(of_gpu, of_gpu)
    assert (value.device.type, value.dtype, value.shape) == ("cuda", torch.float32, ())
    with pytest.raises(TypeError, match="input must be a tensor as the others are, got ndarray"):
        mse_loss(np.zeros(4), fake)
    with pytest.raises(TypeError, match="^the tangent of target must be a tensor as the others"):
        cupy_losses.jvp(mse_loss, (fake, fake), (None, np.zeros(4)))
    with pytest.raises(TypeError, match="^grad_output must be a tensor as the others"):
        cupy_losses.vjp(mse_loss, (fake, fake), np.zeros(()))
    with pytest.raises(ValueError, match="same device, got input on cuda:0 and target on cpu"):
        mse_loss(of_gpu, fake)


def test_constants_are_not_recorded() -> None:
    """Nor are negation bits lost."""
    x, y = tables()
    graph = make_fx(lambda x: mse_loss(x, torch._neg_view(y)))(x)
    assert graph(2 * x) == mse_loss(2 * x, -y)


def test_sizes_stay_open_under_vmap() -> None:
    """The denominator of a mean is no constant of a graph."""
    for loss in (
        lambda x, y: mse_loss(x, y),
        lambda x, y: cupy_losses.multilabel_soft_margin_loss(x, y),
        lambda x, y: cupy_losses.kl_div(x, y, reduction="batchmean"),
    ):
        small, large = (torch.rand(2, 3, n, dtype=torch.float64) for n in (5, 9))
        graph = make_fx(vmap(loss), tracing_mode="symbolic")(small, 0.5 * small)
        torch.testing.assert_close(graph(large, 0.5 * large), vmap(loss)(large, 0.5 * large))


def by_rows(x: Tensor, y: Tensor) -> Tensor:
    return mse_loss(x, y, reduction="sum", scale=1 / x.shape[0])


def test_a_scale_made_of_sizes_stays_open() -> None:
    """In what records a program by running it, as in what torch.compile reads."""

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return by_rows(x, y)

    x, y = tables()
    rows = torch.export.Dim("rows", min=2)
    shapes = {"x": {0: rows}, "y": {0: rows}}
    torch._dynamo.reset()
    for function in (
        make_fx(by_rows, tracing_mode="symbolic")(x, y),
        torch.export.export(Module(), (x, y), dynamic_shapes=shapes, strict=False).module(),
        torch.export.export(Module(), (x, y), dynamic_shapes=shapes, strict=True).module(),
        torch.compile(by_rows, backend="aot_eager", fullgraph=True, dynamic=True),
    ):
        for n in (4, 3):
            torch.testing.assert_close(function(x[:n], y[:n]), by_rows(x[:n], y[:n]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: huber_loss(x, y, delta=1 / x.shape[0]),
        lambda x, y: F.huber_loss(x, y, "mean", 1 / x.shape[0]),
        lambda x, y: huber_loss(x, y, delta=0.5, reduction="none", scale=x.shape[0] / 4),
        lambda x, y: pointwise_loss("own", lambda x, y, c=1.0: (x - y) / c)(x, y, c=x.shape[0]),
        lambda x, y: F.cross_entropy(x, 0 * x[:, 0].long(), ignore_index=x.shape[0] - 3),
        lambda x, y: F.triplet_margin_loss(x, y, y + x, swap=x.shape[0] > 2),
        lambda x, y: mse_loss(x, y) + float(mse_loss(np.ones(3), np.zeros(3), scale=x.shape[0])),
    ],
)
def test_other_numbers_made_of_sizes_are_constants(function: Callable[..., Tensor]) -> None:
    x, y = tables()
    graph = make_fx(function, tracing_mode="symbolic")(x, y)
    torch.testing.assert_close(graph(2 * x, y), function(2 * x, y))


def test_bad_numbers_made_of_sizes() -> None:
    x, _ = tables()
    numbers: Any = [1]
    with pytest.raises(ValueError, match="^delta must be > 0 and at most .*, got -4$"):
        make_fx(lambda x: huber_loss(x, x, delta=-x.shape[0]), tracing_mode="symbolic")(x)
    with pytest.raises(TypeError, match="^target must be a NumPy, CuPy or dense torch array"):
        make_fx(lambda x: mse_loss(x, numbers, scale=x.shape[0]), tracing_mode="symbolic")(x)


def test_tracing_ahead_of_dispatch() -> None:
    x, y = tables()
    graph = make_fx(lambda x: mse_loss(x, y), pre_dispatch=True)(x)
    assert graph(2 * x) == mse_loss(2 * x, y)


def test_value_and_grad_is_recorded_and_transformed() -> None:
    x, y = tables()
    both = value_and_grad(mse_loss)
    value, gradient = make_fx(lambda x: both(x, y))(x)(2 * x)
    assert value == mse_loss(2 * x, y)
    assert torch.equal(gradient, both(2 * x, y)[1])
    torch.testing.assert_close(vmap(both)(x, y)[1], vmap(grad(mse_loss))(x, y))
    slopes = grad(lambda x: both(x, y)[1].square().sum())(x)
    torch.testing.assert_close(slopes, 8 * (x - y) / x.numel() ** 2)


def test_second_derivatives_are_recorded() -> None:
    """A request of gradients alone."""
    x, y = tables()

    def product(x: Tensor) -> Tensor:
        return cupy_losses.hvp(log_cosh_loss, (x, y), (y, None))

    assert torch.equal(make_fx(product)(x)(2 * x), product(2 * x))
    assert len(recorded(product, x)) == 1


def test_counts_are_handed_out_where_derivatives_follow() -> None:
    """Beside the value, for the request of the gradient; not where nothing is differentiated."""
    logits, _ = tables()
    target = torch.tensor([0, -100, 2, 3])
    both = value_and_grad(cross_entropy)
    for function in (lambda x: both(x, target), grad(lambda x: cross_entropy(x, target))):
        value, gradient = recorded(function, logits)
        assert "'counted': true" in value[0]
        assert "'denominator': true" in gradient[0]
    (value,) = recorded(lambda x: cross_entropy(x, target), logits)
    assert "counted" not in value[0]


def test_dual_tensors_meet_graphs() -> None:
    """A tangent is not lost in what was recorded without one, nor by a backward pass."""
    x, y = tables()
    step = 2 * ((x - y) * y).sum() / x.numel()
    graphs = [
        make_fx(lambda x, y: mse_loss(x, y))(x, y),
        torch.jit.trace(lambda x, y: mse_loss(x, y), (x, y)),
        torch.compile(mse_loss, backend="aot_eager"),
    ]
    for graph in graphs:
        with forward_ad.dual_level():
            dual = graph(forward_ad.make_dual(x, y), y)
            torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, step)
    leaf = x.clone().requires_grad_()
    each = mse_loss(leaf, y, reduction="none")
    with forward_ad.dual_level():
        grad_output = forward_ad.make_dual(torch.ones_like(y), y)
        (gradient,) = torch.autograd.grad(each, leaf, grad_output)
        tangent = forward_ad.unpack_dual(gradient).tangent
        torch.testing.assert_close(tangent, 2 * (x - y) * y)


def twice_along(loss: Callable[[Tensor], Any], x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The derivative along one tangent of the derivative along another."""
    tangent: Tensor = jvp(lambda x: jvp(loss, (x,), (first,))[1], (x,), (second,))[1]
    return tangent


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("autocast", [False, True])
def test_forward_mode_twice_in_half_precision(reduction: Reduction, autocast: bool) -> None:
    """What is added up is out of the range of float16, the sum is not."""
    x = torch.zeros(1 << 16, dtype=torch.float16)
    options: dict[str, Any] = {} if reduction == "none" else {"scale": 2.0**-10}
    with torch.autocast("cpu", enabled=autocast, dtype=torch.bfloat16):
        got = twice_along(
            lambda y: mse_loss(y, x, reduction=reduction, **options), x, x + 1, x + 0.5
        )
    assert got.dtype == (torch.float32 if autocast else torch.float16)
    assert torch.equal(got.unique(), got.new_tensor([options.get("scale", 1.0)]))


def test_forward_mode_twice_by_scale_and_by_tangents() -> None:
    """The scale varies, and so do the tangents of the inner derivative."""
    x, y = tables()

    def twice(x: Tensor, scale: Tensor) -> Tensor:
        inner: Tensor = jvp(lambda z: log_cosh_loss(z, y, scale=scale), (x,), (x * x,))[1]
        return inner

    scale = torch.tensor(0.3, dtype=torch.float64)
    got = jvp(twice, (x, scale), (y, scale))[1]
    step = 1e-5
    ends = [twice(x + end * y, scale + end * scale) for end in (step, -step)]
    torch.testing.assert_close(got, (ends[0] - ends[1]) / (2 * step), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_vmap_over_backward_passes(reduction: Reduction) -> None:
    """Of a graph that was made outside, as torch.vmap's own examples do; and of its gradient."""
    x, y = tables()
    leaf = x.clone().requires_grad_()
    value = log_cosh_loss(leaf, y, reduction=reduction)
    (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    for output in (value, gradient):

        def backward(grad_output: Tensor, output: Tensor = output) -> Tensor:
            return torch.autograd.grad(output, leaf, grad_output, retain_graph=True)[0]

        grads = torch.linspace(-1, 1, 3 * output.numel(), dtype=x.dtype).view(3, *output.shape)
        torch.testing.assert_close(vmap(backward)(grads), torch.stack(list(map(backward, grads))))


def test_arrays_of_numpy_do_not_hide_what_is_traced() -> None:
    x, y = tables()
    array = y.numpy()
    for run in (lambda f: make_fx(f)(x), lambda f: jvp(f, (x,), (x,)), lambda f: vmap(f)(x)):
        with pytest.raises(TypeError, match="let the first argument be a tensor too"):
            run(lambda x: torch.as_tensor(mse_loss(array, x)))
    with pytest.raises(Exception, match="a NumPy array or number, which torch would make a tensor"):
        compiled(mse_loss, array, array)


def test_losses_of_users_with_one_formula_and_two_of_numpy() -> None:
    """As of one name with a constant that differs: each graph has its own."""
    x, y = tables()
    square = "(input - target) * (input - target)"

    def made(factor: float) -> Callable[..., Any]:
        return pointwise_loss(
            "scaled", square, numpy=lambda input, target: factor * (input - target) ** 2
        )

    once, twice = made(1.0), made(2.0)
    for loss in (once, twice):
        assert compiled(loss, x, y) == loss(x, y)
        assert make_fx(loss)(y, x)(x, y) == loss(x, y)
    assert twice(x, y) == 2 * once(x, y)


SAVED = """
import sys
import torch, {package}
program = torch.export.load(sys.argv[1]).module()
assert program(torch.ones(3), torch.zeros(3)) == 1
"""


@pytest.mark.parametrize("package", first(["cupy_losses.nn", "cupy_losses"]))
def test_a_saved_program_is_loaded_by_another(package: str, tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return mse_loss(x, y)

    file = tmp_path / "mse.pt2"
    torch.export.save(torch.export.export(Module(), (torch.ones(3), torch.ones(3))), file)
    program = SAVED.format(package=package)
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_vmap_ignores_the_index_alone(dtype: torch.dtype) -> None:
    """Not what equals it in a narrower dtype; a class out of range counts as in eager mode."""
    logits = torch.linspace(-1, 1, 3 * 200, dtype=torch.float64).view(3, 200)
    weight = torch.linspace(0.5, 2, 200, dtype=torch.float64)
    weight[0] = torch.nan  # of no target
    classes = torch.tensor([156, 3, 199]).to(dtype)
    targets = [classes, classes] if dtype == torch.uint8 else [classes, -100 * (classes == 3) + 5]
    if dtype == torch.int64:
        targets.append(torch.tensor([4, 200, 7]))
    for target in targets:
        for loss in (
            functools.partial(cupy_losses.nll_loss, target=target),
            functools.partial(cupy_losses.nll_loss, target=target, weight=weight),
        ):
            got, expected = vmap(loss)(logits[None])[0], loss(logits)
            torch.testing.assert_close(got, expected, equal_nan=True)
            got = vmap(grad(loss))(logits[None])[0]
            torch.testing.assert_close(got, grad(loss)(logits), equal_nan=True)


def test_vmap_does_not_read_weights_under_a_mask() -> None:
    zero, mask = torch.zeros(2), torch.tensor([False, True])
    weight = torch.tensor([torch.nan, 1.0])
    loss = functools.partial(mse_loss, target=zero, weight=weight, where=mask)
    assert vmap(loss)(torch.ones(1, 2)).tolist() == [1]
    assert vmap(grad(loss))(torch.ones(1, 2)).tolist() == [[0, 2]]


def test_vmap_adds_up_more_than_float32_has() -> None:
    each = vmap(mse_loss)(torch.full((1, 1000), 1.2e18), torch.zeros(1, 1000))
    torch.testing.assert_close(each, torch.tensor([1.44e36]))


def test_vmap_evaluates_all_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without copies of what samples share; class weights that differ take a call each."""
    calls: list[list[tuple[int, ...]]] = []
    run = TorchCpu.run_here

    def counting(self: TorchCpu, call: Any, request: Any, operands: Any) -> Any:
        calls.append([t.stride() for t in operands])
        return run(self, call, request, operands)

    monkeypatch.setattr(TorchCpu, "run_here", counting)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    target, weight = torch.arange(6) % 5, torch.rand(3, 5, dtype=torch.float64)
    vmap(mse_loss, in_dims=(0, None))(x, x[0])
    assert calls == [[(30, 5, 1), (0, 5, 1)]]
    calls.clear()
    vmap(grad(cross_entropy), in_dims=(0, None))(x, target)
    assert [strides[-1] for strides in calls] == [(1, 0)] * len(calls)
    assert len(calls) == 2  # the losses, their gradients
    calls.clear()
    vmap(lambda x, w: cross_entropy(x, target, weight=w))(x, weight)
    assert len(calls) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_vmap_of_half_precision(dtype: torch.dtype) -> None:
    """Losses are added up in float32, and gradients are rounded once."""
    x, y = (torch.randn(3, 2000, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    x, y = x.to(dtype), y.to(dtype)
    assert vmap(mse_loss)(x, y).dtype == dtype
    for function in (mse_loss, grad(mse_loss)):
        each = torch.stack([function(a, b) for a, b in zip(x, y, strict=True)])
        torch.testing.assert_close(vmap(function)(x, y), each, rtol=2e-7, atol=1e-12)


def test_vmap_where_nothing_is_left() -> None:
    """A mean is NaN and its gradient 0; so it is of ignored rows, and of no elements."""
    x = torch.ones(3, 4)
    none = torch.zeros(4, dtype=torch.bool)
    masked = functools.partial(mse_loss, target=torch.zeros(4), where=none)
    ignored = functools.partial(cross_entropy, target=torch.tensor(-100))
    for loss in (masked, ignored):
        assert vmap(loss)(x).isnan().all()
        assert (vmap(grad(loss))(x) == 0).all()
        assert (vmap(lambda x, loss=loss: jvp(loss, (x,), (x,))[1])(x) == 0).all()
    assert vmap(mse_loss)(x[:, :0], x[:, :0]).isnan().all()


def test_derivatives_of_a_vmap_where_nothing_is_left() -> None:
    """They are 0 in a sample of which nothing is left, whatever is differentiated outside."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    left = torch.tensor([[True, True], [False, False]])

    def masked(x: Tensor) -> Tensor:
        return vmap(lambda x, where: mse_loss(x, 0 * x, where=where))(x, left)

    scores, target = torch.zeros(2, 2, 3), torch.tensor([[0, 1], [-100, -100]])
    torch.testing.assert_close(jvp(masked, (x,), (x,))[1], torch.tensor([5.0, 0.0]))
    torch.testing.assert_close(jacfwd(masked)(x)[1], torch.zeros(2, 2))
    torch.testing.assert_close(
        jvp(lambda x: vmap(cross_entropy)(x, target), (scores,), (scores,))[1], torch.zeros(2)
    )
    leaf, ones = x.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(masked(leaf), leaf, ones, create_graph=True)
    (of_ones,) = torch.autograd.grad(gradient.sum(), ones)
    torch.testing.assert_close(of_ones, torch.tensor([3.0, 0.0]))
    weight = torch.tensor([[1.0, 1.0], [0.0, 0.0]], requires_grad=True)
    each = vmap(lambda x, t, w: cross_entropy(x, t, sample_weight=w))(scores, target, weight)
    assert each.isnan().tolist() == [False, True]
    (of_weight,) = torch.autograd.grad(each, weight, torch.ones(2))
    torch.testing.assert_close(of_weight, torch.zeros(2, 2))


def test_batched_grads_of_differentiable_gradients() -> None:
    """A Hessian by torch.autograd.functional, vectorised."""
    x, y = tables()
    for loss in (log_cosh_loss, mse_loss):
        of_target = functools.partial(loss, target=y)
        hessian = functools.partial(torch.autograd.functional.hessian, of_target, x)
        torch.testing.assert_close(hessian(vectorize=True), hessian())


def test_a_torch_without_the_mark_of_code_disables_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dynamo, "_frames", None)

    def is_compiling() -> bool:
        return torch.compiler.is_compiling()

    skipped = dynamo.disable_compile(is_compiling)
    assert not torch.compile(lambda x: x if skipped() else -x, backend="eager")(torch.ones(1)) > 0


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_are_factors_of_what_they_are_along(reduction: Reduction) -> None:
    """They are differentiated by it, and by the grad_output; by the operands they are third."""
    x, y = tables()
    target, leaf = torch.tensor([1, -100, 0, 4]), x.requires_grad_()
    for loss in (
        functools.partial(log_cosh_loss, target=y, weight=y.abs().requires_grad_()),
        functools.partial(cross_entropy, target=target),
        functools.partial(cupy_losses.multilabel_soft_margin_loss, target=(y > 0).double()),
    ):

        def second(
            grad_output: Tensor, along: Tensor, loss: Callable[..., Tensor] = loss
        ) -> Tensor:
            value = loss(leaf, reduction=reduction)
            (slope,) = torch.autograd.grad(value, leaf, grad_output, create_graph=True)
            return torch.autograd.grad(slope, leaf, along, create_graph=True)[0]

        grad_output = torch.rand_like(loss(leaf, reduction=reduction)).requires_grad_()
        factors = grad_output, torch.rand_like(leaf).requires_grad_()
        assert torch.autograd.gradcheck(second, factors)
        assert torch.autograd.gradgradcheck(second, factors)
        with pytest.raises(NotImplementedError, match="third derivatives"):
            torch.autograd.grad(second(*factors).sum(), leaf)


def test_products_with_hessians() -> None:
    """By torch.autograd.functional, which differentiates by what it multiplies; by transforms."""
    x, y = tables()
    functional = torch.autograd.functional

    def loss(x: Tensor) -> Tensor:
        return log_cosh_loss(x, y, reduction="none").exp().sum()

    def along(x: Tensor) -> Tensor:
        derivative: Tensor = functional.jvp(loss, x, y, create_graph=True)[1]
        return derivative

    def product(y: Tensor) -> Tensor:
        found: Tensor = torch.func.vjp(grad(loss), x)[1](y)[0]
        return found

    expected = torch.einsum("ijkl,kl", functional.hessian(loss, x), y)
    leaf = x.clone().requires_grad_()
    for found in (
        functional.hvp(loss, x, y)[1],
        torch.autograd.grad(along(leaf), leaf)[0],
        jvp(product, (x,), (y,))[1],
        torch.func.vjp(product, x)[1](y)[0],
        functional.vhp(loss, x, y)[1],
    ):
        torch.testing.assert_close(found, expected)


def test_negated_views_in_forward_mode() -> None:
    """As the imaginary part of a conjugate is one."""
    x, y = tables()
    imaginary = torch.complex(y, -x).conj().imag
    assert imaginary.is_neg()
    for twice in (torch.func.hessian, lambda loss: jacfwd(jacfwd(loss))):
        found, expected = (twice(lambda a: log_cosh_loss(a, y))(a) for a in (imaginary, x))
        torch.testing.assert_close(found, expected)
    of_elements = functools.partial(mse_loss, x, y)
    of_rows = functools.partial(cross_entropy, x, torch.arange(4), label_smoothing=0.1)
    for loss, weights in ((of_elements, (imaginary, x)), (of_rows, (imaginary[0], x[0]))):
        found, expected = (jacfwd(lambda w, of=loss: of(weight=w))(weight) for weight in weights)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_vectorized_forward_mode_of_an_expanded_view(reduction: Reduction, axis: int) -> None:
    """torch gives a tangent the strides of what it is of: the batch must not be behind."""
    functional = torch.autograd.functional
    target = torch.tensor([0, 1, 2])
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    results = []
    for module in (F, torch.nn.functional):

        def loss(x: Any, module: Any = module) -> Any:
            logits = x.narrow(axis, 0, 1).expand(3, 4)
            return module.cross_entropy(logits, target, reduction=reduction, label_smoothing=0.1)

        found = [functional.jacobian(loss, x, vectorize=True, strategy="forward-mode")]
        if reduction != "none":
            mode: Any = {"outer_jacobian_strategy": "forward-mode"}
            found.append(functional.hessian(loss, x, vectorize=True, **mode))
        results.append(found)
    torch.testing.assert_close(*results)


def test_the_number_of_an_argument_may_be_of_numpy() -> None:
    """In the text of an operator it is one of Python."""
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    both = cupy_losses.grad_and_hess(mse_loss, np.int64(0))  # type: ignore[arg-type]
    for found, expected in zip(torch.func.vmap(both)(x, y), both(x, y), strict=True):
        torch.testing.assert_close(found, expected)

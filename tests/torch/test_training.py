"""What programs of torch do around a loss: training, hooks, checkpoints, modes, threads."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import cupy_losses
from cupy_losses import cross_entropy, mse_loss, nn
from cupy_losses._core.types import Reduction

from ..tables.examples import Example
from ..tools.levels import case
from .modes import EXAMPLES

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides",
    "ignore:The .grad attribute of a Tensor",  # torch.compile looks at it
)

Tensor = torch.Tensor
ROOT = Path(cupy_losses.__file__).parents[1]
# Where the losses of a network come from.
SOURCES = ("torch", "modules", "accelerated", "compiled")


def xy() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 4, 3, generator=generator)
    return x.requires_grad_(), y


def slope(x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    """The gradient of mse_loss."""
    return factor * 2 * (x.detach() - y) / x.numel()


def step_of(source: str, of_loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    if source != "compiled":
        return of_loss
    torch._dynamo.reset()
    return torch.compile(of_loss, fullgraph=True, backend="aot_eager")


def train(source: str, steps: int) -> list[float]:
    """The loss curve of a small network of two tasks."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5))
    library = nn if source == "modules" else torch.nn
    of_classes = library.CrossEntropyLoss(label_smoothing=0.1)
    of_values = library.SmoothL1Loss(beta=0.5)
    features = torch.randn(32, 6)
    target, values = features[:, :4].argmax(dim=1), features.sum(dim=1)

    def loss_of(features: Tensor) -> Tensor:
        output = network(features)
        total: Tensor = of_classes(output[:, :4], target) + of_values(output[:, 4], values)
        return total

    step = step_of(source, loss_of)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    curve = []
    for _ in range(steps):
        loss = step(features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


@pytest.mark.usefixtures("on_gpu")
def test_curves(evaluations: list[str]) -> None:
    """One curve, whatever computes the losses."""
    steps = 100
    curve = train("torch", steps)
    assert curve[-1] < curve[0] / 2
    assert evaluations == []
    for source in SOURCES[1:]:
        if source == "modules":
            got = train(source, steps)
        else:
            with cupy_losses.accelerate():
                got = train(source, steps)
        assert got == pytest.approx(curve, rel=1e-4)
        assert set(evaluations) == {"cross_entropy, smoothed", "smooth_l1_loss"}
        assert len(evaluations) >= 2 * steps
        evaluations.clear()


def example(name: str = "multitask_torch") -> types.ModuleType:
    """A new copy of an example."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example_with(source: str) -> Any:
    """The example with losses from another place."""
    module: Any = example()
    if source == "modules":
        replaced = {name: getattr(nn, name) for name in nn.__all__}
        module.nn = types.SimpleNamespace(**vars(torch.nn) | replaced)
        functions = {name: getattr(nn.functional, name) for name in nn.functional.__all__}
        module.F = types.SimpleNamespace(**vars(torch.nn.functional) | functions)
    elif source == "compiled":
        make = module.Criterion
        module.Criterion = lambda: step_of(source, make())
    return module


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("source", "steps"),
    [case(s, n, default=n == 30, id=f"{s}-{n}") for s in SOURCES[1:] for n in (30, 300)],
)
def test_the_example_of_several_tasks(source: str, steps: int, evaluations: list[str]) -> None:
    """Eight losses, functions and modules, some with weights."""
    expected = example().train(steps, 64, "cpu")
    assert evaluations == []
    module = example_with(source)
    if source == "modules":
        curve = module.train(steps, 64, "cpu")
    else:
        with cupy_losses.accelerate():
            curve = module.train(steps, 64, "cpu")
    assert curve == pytest.approx(expected, rel=1e-3)
    assert len(set(evaluations)) == 8


def test_the_example_of_a_transformer(on_gpu: None, evaluations: list[str]) -> None:
    """Under autocast, with positions that are not asked for; it learns the grammar."""
    size = "--batch 8 --length 16 --vocabulary 64 --width 32 --layers 1 --rate 0.01 --device cpu"
    arguments = ["--steps", "60", *size.split()]
    expected = example("transformer_torch").main(arguments)
    assert evaluations == []
    with cupy_losses.accelerate():
        curve = example("transformer_torch").main(arguments)
    assert curve == pytest.approx(expected, rel=0.05)  # logits of bfloat16, as are torch's
    assert set(evaluations) == {"cross_entropy"}
    assert curve[-1] < 0.8 * curve[0]


OF_EACH = list({example.name: example for example in EXAMPLES}.values())


def backward(example: Example) -> list[Tensor]:
    return example.results(getattr(cupy_losses, example.name), **example.options)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("example", OF_EACH, ids=str)
def test_deterministic_algorithms(example: Example) -> None:
    """The same bits, although torch fills new memory with NaN."""
    assert torch.empty(3).isnan().all()
    got = backward(example)
    torch.use_deterministic_algorithms(False)
    for x, y in zip(got, backward(example), strict=True):
        assert torch.equal(x, y)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode() -> None:
    """It names the loss that has a NaN gradient, and where it was called; others are as ever."""
    x, y = xy()
    with torch.autograd.detect_anomaly():
        (gradient,) = torch.autograd.grad(mse_loss(x, y), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        infinite = mse_loss(x * float("inf"), y * float("inf"))
        with (
            pytest.warns(UserWarning, match="infinite = mse_loss"),
            pytest.raises(RuntimeError, match="'_LossBackward' returned nan values"),
        ):
            infinite.backward()
    torch.testing.assert_close(gradient, slope(x, y))
    torch.testing.assert_close(second, torch.full_like(x, 2 / x.numel()))


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_hooks_of_saved_tensors(factor: float) -> None:
    """They see the operands; what they unpack is what is differentiated at."""
    x, y = xy()
    packed, moved = [], y.detach() + 1

    def pack(tensor: Tensor) -> np.ndarray:
        packed.append(tensor)
        return tensor.detach().numpy().copy()

    with saved_tensors_hooks(pack, torch.from_numpy):
        loss = mse_loss(x, y)
    assert [torch.equal(a, b) for a, b in zip(packed, (x, y), strict=True)] == [True, True]
    torch.testing.assert_close(torch.autograd.grad(factor * loss, x)[0], slope(x, y, factor))
    with save_on_cpu():
        loss = mse_loss(x, y)
    torch.testing.assert_close(torch.autograd.grad(factor * loss, x)[0], slope(x, y, factor))
    with saved_tensors_hooks(lambda t: t, lambda t: moved if torch.equal(t, y) else t):
        loss = mse_loss(x, y)
    torch.autograd.grad(loss, x, retain_graph=True)  # what the forward pass wrote
    torch.testing.assert_close(torch.autograd.grad(factor * loss, x)[0], slope(x, moved, factor))


def fails(_: Any) -> Tensor:
    raise ZeroDivisionError


def test_a_hook_that_fails() -> None:
    x, y = xy()
    with saved_tensors_hooks(fails, fails), pytest.raises(ZeroDivisionError):
        mse_loss(x, y)
    with saved_tensors_hooks(lambda t: t, fails):
        loss = mse_loss(x, y)
    with pytest.raises(ZeroDivisionError):
        loss.backward()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints(use_reentrant: bool, evaluations: list[str]) -> None:
    """The loss is computed again in the backward pass, with the same gradient."""
    x, y = xy()
    factor = torch.tensor(3.0, requires_grad=True)

    def loss_of(x: Tensor, factor: Tensor) -> Tensor:
        return factor * mse_loss(x.sin(), y)

    loss = checkpoint(loss_of, x, factor, use_reentrant=use_reentrant)
    assert len(evaluations) == 1
    loss.backward()
    assert len(evaluations) >= 2
    assert x.grad is not None
    torch.testing.assert_close(x.grad, slope(x.sin(), y, 3.0) * x.detach().cos())
    torch.testing.assert_close(factor.grad, mse_loss(x.sin(), y).detach())


def test_gradient_accumulation() -> None:
    """torch adds to the first gradient in place: it is nothing that is needed again."""
    x, y = xy()
    losses = [mse_loss(x, y), mse_loss(x, y + 1), 0.5 * mse_loss(x, y)]
    for loss in losses:
        loss.backward(retain_graph=True)
    expected = slope(x, y) + slope(x, y + 1) + slope(x, y, 0.5)
    torch.testing.assert_close(x.grad, expected)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(x.grad, 2 * expected)


def test_inference_mode() -> None:
    """Values alone; what comes of it is as torch's."""
    x, y = xy()
    expected = mse_loss(x, y).detach()
    with torch.inference_mode():
        loss = mse_loss(x, y)
        made = x * 1
    assert loss.is_inference()
    assert not loss.requires_grad
    torch.testing.assert_close(loss.clone(), expected)
    for function in (mse_loss, torch.nn.functional.mse_loss):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            function(x, made)


class Named(Tensor):
    """A class that is told of every function, as all subclasses are."""

    called: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.called.append(function)
        return super().__torch_function__(function, kinds, args, kwargs or {})


class Wrapper(Tensor):
    """A tensor without memory, which has another one and hands every operator to it."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> Any:
        wrapper: Any = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=requires_grad
        )
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_map(lambda x: x.inner if isinstance(x, cls) else x, (args, kwargs or {}))
        result = function(*given[0], **given[1])
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, result)


def test_subclasses() -> None:
    """The operator reaches them, and results have their class."""
    x, y = xy()
    named = x.detach().as_subclass(Named).requires_grad_()
    loss = mse_loss(named, y)
    assert isinstance(loss, Named)
    assert torch.ops.cupy_losses.evaluate.default in Named.called
    torch.testing.assert_close(torch.autograd.grad(loss, named)[0].as_subclass(Tensor), slope(x, y))


@pytest.mark.parametrize("example", OF_EACH, ids=str)
def test_wrappers(example: Example) -> None:
    """Values and gradients of every loss; the options are plain tensors beside them."""
    expected = backward(example)
    wrapped = [Wrapper(x.detach(), x.requires_grad) for x in example.operands]
    got = backward(Example(example.name, wrapped, example.options))
    for x, y in zip(got, expected, strict=True):
        assert isinstance(x, Wrapper)
        torch.testing.assert_close(x.inner, y)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_wrappers_as_grad_outputs(reduction: Reduction) -> None:
    """What the loss is multiplied by may be of a class of its own, where the operands are not."""
    x, y = xy()
    loss = mse_loss(x, y, reduction=reduction)
    given = torch.full_like(loss, 2.0)
    expected = torch.autograd.grad(loss, x, given, retain_graph=True)
    got = torch.autograd.grad(loss, x, Wrapper(given), retain_graph=True)[0]
    assert isinstance(got, Wrapper)
    torch.testing.assert_close((got.inner,), expected)

    (first,) = torch.autograd.grad(loss, x, given, create_graph=True)
    expected = torch.autograd.grad(first, x, y, retain_graph=True)
    got = torch.autograd.grad(first, x, Wrapper(y))[0]
    assert isinstance(got, Wrapper)
    torch.testing.assert_close((got.inner,), expected)


def test_a_gradient_in_place_of_the_input_takes_plain_grad_outputs() -> None:
    """Another one can not multiply it in place."""
    x, _ = xy()
    classes, given = torch.tensor([0, 2, 1, 1]), torch.tensor(2.0)
    loss = cross_entropy(1 * x, classes, overwrite_input=True)
    message = "takes no grad_output that is batched or of a class of its own"
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.grad(loss, x, Wrapper(given), retain_graph=True)
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.grad(loss, x, given.expand(3), is_grads_batched=True, retain_graph=True)
    expected = torch.autograd.grad(cross_entropy(x, classes), x, given)
    torch.testing.assert_close(torch.autograd.grad(loss, x, given), expected)


def test_distributed_tensors() -> None:
    """What torch says of the operator does not help: not all operands are to be made such."""
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        x, y = xy()
        mesh = init_device_mesh("cpu", (2,))
        shared = DTensor.from_local(x, mesh, [Replicate()])
        for name, call in (
            ("input", lambda: mse_loss(shared, y)),
            ("input", lambda: cupy_losses.value_and_grad(mse_loss)(shared, shared)),
            ("target", lambda: mse_loss(x, shared)),
            ("where", lambda: mse_loss(x, y, where=shared > 0)),
        ):
            with pytest.raises(NotImplementedError, match=f"^{name} is a DTensor: pass its full_"):
                call()
        mse_loss(shared.to_local(), y).backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, slope(x, y))
    finally:
        torch.distributed.destroy_process_group()


class Cut(torch.autograd.Function):
    """What has no gradient, though autograd asks for one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> None:
        return None


@pytest.mark.parametrize(
    ("function", "create_graph"),
    [
        *itertools.product((cross_entropy, torch.nn.functional.cross_entropy), (False, True)),
        (functools.partial(cross_entropy, overwrite_input=True), False),
    ],
)
def test_a_grad_output_that_is_none(function: Callable[..., Tensor], create_graph: bool) -> None:
    """There is no gradient then, as of torch's losses, which is not one of zeros."""
    x, _ = xy()
    loss = Cut.apply(function(1 * x, torch.tensor([0, 2, 1, 1])))
    found = torch.autograd.grad(loss, x, allow_unused=True, create_graph=create_graph)
    assert found[0] is None


def test_integers_have_no_gradient() -> None:
    """torch refuses to ask for one; beside them the floating operand alone has one."""
    x, _ = xy()
    whole = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="floating point"):
        whole.requires_grad_()
    with pytest.raises(RuntimeError, match="floating point"):
        cross_entropy(x, whole[:, 0].requires_grad_())
    assert not mse_loss(x.detach(), whole).requires_grad
    torch.testing.assert_close(torch.autograd.grad(mse_loss(x, whole), x)[0], slope(x, whole))


# The first call of the program is in a child; the parent's comes later.
FORKED = """
import multiprocessing
import os
import numpy as np
import torch
import cupy_losses

def step(number):
    x = torch.full((4,), float(number), requires_grad=True)
    loss = cupy_losses.mse_loss(x, torch.zeros(4))
    loss.backward()
    array = cupy_losses.mse_loss(np.full(4, float(number)), np.zeros(4))
    return [loss.item(), x.grad[0].item(), float(array)]

child = os.fork()
if child == 0:
    os._exit(step(2.0) != [4.0, 1.0, 4.0])
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(step, [2.0, 4.0]) == [[4.0, 1.0, 4.0], [16.0, 2.0, 16.0]]
assert step(3.0) == [9.0, 1.5, 9.0]
child = os.fork()
if child == 0:
    with torch.no_grad():
        os._exit(cupy_losses.mse_loss(torch.ones(3), torch.zeros(3)).item() != 1.0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_forked_processes() -> None:
    """Before the first call, and after it."""
    subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, check=True)


def test_threads() -> None:
    """Each with losses of its own, in the order of its own."""
    expected = [backward(example) for example in OF_EACH]
    failures: list[Any] = []
    together = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            together.wait()
            for k in np.random.default_rng(seed).permutation(len(OF_EACH)):
                name, operands, options, _ = vars(OF_EACH[k]).values()
                leaves = [x.detach().requires_grad_(x.requires_grad) for x in operands]
                got = backward(Example(name, leaves, options))
                if not all(map(torch.equal, got, expected[k])):
                    failures.append(name)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

"""`cupy_losses.accelerate` where torch traces, compiles, transforms or watches what runs."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import mse_loss as imported_before
from torch.utils._python_dispatch import TorchDispatchMode

import cupy_losses
from cupy_losses import nn
from cupy_losses._acceleration import rules

from ..tables.examples import Example
from ..tools.levels import case, first
from .test_accelerate import EXAMPLES, VERSION, assert_off, expected_reasons, reasons, xy
from .test_nn import city_block

pytestmark = [
    pytest.mark.usefixtures("on_gpu"),
    pytest.mark.filterwarnings(
        "ignore:reduction.*mean. divides",
        "ignore:Using a target size",
        "ignore:.*torch.jit",
        "ignore:The .grad attribute of a Tensor",  # tracers look at it
    ),
]

F: Any = torch.nn.functional
Tensor = torch.Tensor
OURS = "cupy_losses.evaluate.default"
# One of each loss.
OF_EACH = list({example.name: example for example in reversed(EXAMPLES)}.values())


@pytest.fixture(autouse=True)
def _is_off() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert_off()


class Graphs:
    """A backend of torch.compile: what it compiled, and what ran since it was asked last."""

    def __init__(self) -> None:
        self.compiled = 0
        self._ran: list[str] = []
        self.backend = aot_autograd(fw_compiler=self._kept, bw_compiler=self._kept)

    def _kept(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

        def run(*args: Any) -> Any:
            self._ran += names
            return graph(*args)

        return make_boxed_func(run)

    def ran(self) -> set[str]:
        """The operators of losses."""
        names, self._ran = self._ran, []
        return {name for name in names if "loss" in name}


def step(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    value = function(*tensors)
    leaves = [x for x in tensors if x.requires_grad]
    gradients = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
    return [value.detach(), *gradients]


def two(a: Tensor, b: Tensor) -> Tensor:
    """A function of torch and a module of torch."""
    return F.mse_loss(a.tanh(), b) + torch.nn.BCEWithLogitsLoss()(a, b)


def is_forgotten(example: Example) -> bool:
    """Whether torch's function loses its weight where a mode sees it, as in torch.compile."""
    return VERSION >= (2, 11) and example.name == "l1_loss" and "weight" in example.options


@pytest.mark.parametrize("dynamic", first([False, True]))
@pytest.mark.parametrize("example", first([e for e in EXAMPLES if not is_forgotten(e)], 3))
def test_compiled(example: Example, dynamic: bool) -> None:
    """The operator computes the loss and its gradients, in one graph, with torch's results."""
    options = example.options | {"reduction": "mean"}

    def loss(*operands: Tensor) -> Tensor:
        return getattr(F, example.name)(*operands, **options)

    graphs = Graphs()
    expected = step(loss, *example.operands)
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend=graphs.backend)
    with cupy_losses.accelerate() as acceleration:
        for _ in range(3):
            torch.testing.assert_close(step(compiled, *example.operands), expected)
    if expected_reasons(example) == {"": 1}:
        assert graphs.ran() == {OURS}
        # With a number that is dynamic at first, torch.compile begins anew.
        assert reasons(acceleration) in ([{"": 1}, {"": 2}] if dynamic else [{"": 1}])
    assert graphs.compiled == 2


@pytest.mark.skipif(VERSION < (2, 11), reason="torch 2.10 does not")
def test_torch_forgets_a_weight() -> None:
    """docs/deviations.md says so. Where this fails, torch is mended: remove both."""
    (example,) = filter(is_forgotten, EXAMPLES)
    eager = example.results(F.l1_loss, **example.options)
    compiled = torch.compile(F.l1_loss, fullgraph=True, backend="aot_eager")
    assert not torch.allclose(eager[0], example.results(compiled, **example.options)[0])


@pytest.mark.parametrize("first_on", [False, True])
def test_compiled_functions_follow(first_on: bool) -> None:
    """Where acceleration is on, by us; where it is off, by torch; each is compiled once."""
    a, b = xy()
    expected, graphs = step(two, a, b), Graphs()
    compiled = torch.compile(two, fullgraph=True, backend=graphs.backend)
    for on in (first_on, not first_on, first_on, not first_on):
        if on:
            with cupy_losses.accelerate():
                got = step(compiled, a, b)
            assert graphs.ran() == {OURS}
        else:
            got = step(compiled, a, b)
            assert OURS not in graphs.ran()
        torch.testing.assert_close(got, expected)
    assert graphs.compiled == 4


FIRST_COMPILED = """
import torch
import cupy_losses
from cupy_losses._acceleration import rules
rules.place_problem = lambda tensor: ""  # CPU tensors count as tensors on a GPU
x, y = torch.ones(3), torch.zeros(3)
with cupy_losses.accelerate() as acceleration:
    loss = torch.compile(torch.nn.functional.mse_loss, fullgraph=True, backend="aot_eager")
    assert loss(x, y) == 1
line, = acceleration.report().lines
assert (line.function, line.calls, line.traced) == ("mse_loss", 1, True)
"""


def test_a_process_may_compile_first_where_acceleration_is_on() -> None:
    """torch.compile looks at all functions of torch then."""
    subprocess.run([sys.executable, "-c", FIRST_COMPILED], check=True)


def test_nesting() -> None:
    """The inner one ends, and what was compiled in it stays as it is, until the outer one ends."""
    a, b = xy()
    graphs = Graphs()
    compiled = torch.compile(two, fullgraph=True, backend=graphs.backend)
    with cupy_losses.accelerate() as outer:
        with cupy_losses.accelerate() as inner:
            step(compiled, a, b)
        step(compiled, a, b)
        assert graphs.ran() == {OURS}
        assert graphs.compiled == 2
    assert reasons(outer) == reasons(inner) == {"": 2}


def test_a_backward_pass_after_the_end() -> None:
    a, b = xy()
    expected = torch.autograd.grad(two(a, b), a)
    compiled = torch.compile(two, fullgraph=True, backend="aot_eager")
    with cupy_losses.accelerate():
        value, eager = compiled(a, b), two(a, b)
    for loss in (value, eager):
        torch.testing.assert_close(torch.autograd.grad(loss, a), expected)


def test_a_function_itself_is_compiled() -> None:
    """One of torch, also by a name that was imported before."""
    a, b = xy()
    expected = step(imported_before, a, b)
    graphs = Graphs()
    compiled = torch.compile(imported_before, fullgraph=True, backend=graphs.backend)
    with cupy_losses.accelerate():
        torch.testing.assert_close(step(compiled, a, b), expected)
    assert graphs.ran() == {OURS}
    torch.testing.assert_close(step(compiled, a, b), expected)
    assert OURS not in graphs.ran()


def with_a_break(a: Tensor, b: Tensor) -> Tensor:
    """torch.compile gives this function up, and compiles those that it calls."""
    with torch.enable_grad():
        torch._dynamo.graph_break()
        return F.mse_loss(a, b)


@torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator]
def not_compiled(a: Tensor, b: Tensor) -> Tensor:
    return F.mse_loss(a, b)


@pytest.mark.parametrize("function", [with_a_break, not_compiled])
def test_functions_that_are_not_compiled_whole(function: Callable[..., Tensor]) -> None:
    a, b = xy()
    expected = step(function, a, b)
    compiled = torch.compile(lambda a, b: function(a, b) * 1, backend="aot_eager")
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(step(compiled, a, b), expected)
    assert reasons(acceleration) == {"": 1}


IGNORED: Any = np.int64(1)


def with_a_numpy_number(a: Tensor, b: Tensor) -> Tensor:
    """torch.compile makes a tensor of the number, of which its backend cannot make one again."""
    return F.cross_entropy(a, b.argmax(1), ignore_index=IGNORED)


def test_functions_that_the_backend_does_not_compile() -> None:
    """torch.compile gives them up, and then reads what they call: nothing of this package."""
    a, b = (x.detach() for x in xy())
    expected = with_a_numpy_number(a, b)
    compiled = torch.compile(with_a_numpy_number, backend="aot_eager")
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(compiled(a, b), expected)
    assert reasons(acceleration) == {"": 1}


def branching(a: Tensor) -> Tensor:
    """torch.compile cannot break its graph inside a transform, and gives the transform up."""
    return F.mse_loss(a, 2 * a) if a.sum() > 0 else F.mse_loss(a, 3 * a)


def speaking(a: Tensor) -> Tensor:
    print(end="")
    return F.mse_loss(a, 2 * a)


@pytest.mark.parametrize("function", [grad(branching), vmap(speaking), vmap(grad(speaking))])
def test_transforms_that_are_not_compiled(function: Callable[..., Tensor]) -> None:
    a = xy()[1]
    expected = function(a)
    compiled = torch.compile(function, backend="aot_eager")
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(compiled(a), expected)
    assert reasons(acceleration) == {"": 1}


def test_decorated_functions() -> None:
    """functools.wraps copies attributes of the function: the body is compiled all the same."""
    a, b = xy()
    with cupy_losses.accelerate():

        @functools.wraps(F.mse_loss)
        def doubled(*args: Any) -> Tensor:
            return 2 * F.mse_loss(*args)

        unrecorded = torch.no_grad()(F.mse_loss)
        for function, expected in ((doubled, 2 * F.mse_loss(a, b)), (unrecorded, F.mse_loss(a, b))):
            compiled = torch.compile(lambda *args, f=function: f(*args), backend="aot_eager")
            found = compiled(a, b)
            torch.testing.assert_close(found.detach(), expected.detach())
            assert found.requires_grad == (function is doubled)


def test_what_torch_compiles_itself() -> None:
    """A distance function of one's own, and a dtype; both in one graph, with torch's results."""
    a, b = xy()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        distant = F.triplet_margin_with_distance_loss(a, b, b + 1, distance_function=city_block)
        return distant + F.huber_loss(a.detach(), b.double())

    graphs = Graphs()
    expected = step(loss, a, b)
    compiled = torch.compile(loss, fullgraph=True, backend=graphs.backend)
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(step(compiled, a, b), expected)
    assert OURS not in graphs.ran()
    assert reasons(acceleration) == {rules.OTHER_DTYPES: 1}


def test_deprecated_arguments_and_autocast() -> None:
    a, b = xy()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.mse_loss(a.bfloat16(), b, size_average=False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, graphs = step(loss, a, b), Graphs()
        with cupy_losses.accelerate():
            compiled = torch.compile(loss, fullgraph=True, backend=graphs.backend)
            torch.testing.assert_close(step(compiled, a, b), expected, rtol=1e-2, atol=1e-2)
    assert graphs.ran() == {OURS}


def test_a_default_device() -> None:
    """It is a mode, to which torch hands its own function."""
    a, b = xy()
    expected, graphs = step(two, a, b), Graphs()
    compiled = torch.compile(two, fullgraph=True, backend=graphs.backend)
    with cupy_losses.accelerate(), torch.device("cpu"):
        torch.testing.assert_close(step(compiled, a, b), expected)
    assert graphs.ran() == {OURS}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_what_is_compiled_on_disk(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, evaluations: list[str]
) -> None:
    """The cache of compiled programs has none of torch's losses for ours, nor the other way."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    a, b = xy()
    expected = step(two, a, b)
    for on in (False, True, False, True):
        torch._dynamo.reset()
        compiled = torch.compile(two, fullgraph=True)
        acceleration = cupy_losses.accelerate() if on else None
        try:
            torch.testing.assert_close(step(compiled, a, b), expected)
        finally:
            if acceleration is not None:
                acceleration.close()
        assert len(evaluations) == (4 if on else 0)
        evaluations.clear()


def of_first(example: Example) -> Callable[[Tensor], Tensor]:
    """The loss as a function of its first operand, as a number."""
    rest = [x.detach() for x in example.operands[1:]]
    function = getattr(F, example.name)
    return lambda x: function(x, *rest, **example.options).sum()


def tangent(x: Tensor) -> Tensor:
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view_as(x)


# Of each transform, what torch's autograd gives for a function and a point.
TRANSFORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "grad": (lambda f, x: grad(f)(x), torch.autograd.functional.jacobian),
    "vmap(grad)": (
        lambda f, x: vmap(grad(f))(torch.stack([x, x / 2])),
        lambda f, x: torch.stack([torch.autograd.functional.jacobian(f, y) for y in (x, x / 2)]),
    ),
    "jvp": (
        lambda f, x: jvp(f, (x,), (tangent(x),))[1],
        lambda f, x: (torch.autograd.functional.jacobian(f, x) * tangent(x)).sum(),
    ),
    "dual numbers": (
        lambda f, x: of_dual_numbers(f, x),
        lambda f, x: (torch.autograd.functional.jacobian(f, x) * tangent(x)).sum(),
    ),
    "hessian": (lambda f, x: hessian(f)(x), torch.autograd.functional.hessian),
}
# Of these torch has no second derivative.
WITHOUT_HESSIAN = {"multi_margin_loss", "multilabel_margin_loss"}


def of_dual_numbers(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent(x)))).tangent


@pytest.mark.parametrize(
    ("example", "name"),
    [
        case(example, name, default=(k + n) % 3 == 0, id=f"{example}-{name}")
        for k, example in enumerate(OF_EACH)
        for n, name in enumerate(TRANSFORMS)
        if name != "hessian" or example.name not in WITHOUT_HESSIAN
    ],
)
def test_transforms(example: Example, name: str) -> None:
    transform, by_autograd = TRANSFORMS[name]
    function, point = of_first(example), example.operands[0].detach()
    expected = by_autograd(function, point)
    with cupy_losses.accelerate() as acceleration:
        got = transform(function, point)
    torch.testing.assert_close(got, expected)
    assert reasons(acceleration) == expected_reasons(example)


def test_compiled_transforms() -> None:
    a, b = (x.detach() for x in xy())
    expected, graphs = vmap(grad(F.mse_loss))(a, b), Graphs()
    compiled = torch.compile(vmap(grad(F.mse_loss)), fullgraph=True, backend=graphs.backend)
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(compiled(a, b), expected)
    assert graphs.ran() == {OURS}
    assert reasons(acceleration) == {"": 1}


class Module(torch.nn.Module):
    """One to export."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return two(a, b)


def traced_by_jit(a: Tensor, b: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=torch.jit._trace.TracerWarning)
        return torch.jit.trace(two, (a, b), check_trace=False)


# What records two losses, how often it does, and how the graph is shown.
RECORDERS: dict[str, tuple[Callable[..., Any], int]] = {
    "make_fx": (lambda a, b: make_fx(two)(a, b), 1),
    "symbolic make_fx": (lambda a, b: make_fx(two, tracing_mode="symbolic")(a, b), 1),
    "export": (lambda a, b: torch.export.export(Module(), (a, b)).module(), 1),
    "strict export": (lambda a, b: torch.export.export(Module(), (a, b), strict=True).module(), 2),
    "jit.trace": (traced_by_jit, 1),
}


@pytest.mark.parametrize("name", RECORDERS)
def test_recorded(name: str) -> None:
    """The graph has the operator twice, nothing of torch's losses, and survives the end."""
    a, b = xy()
    record, times = RECORDERS[name]
    with cupy_losses.accelerate() as acceleration:
        graph = record(a * 2, b / 2)
    gc.collect()
    assert str(graph.graph).count("cupy_losses") == 2
    assert "aten.mse_loss" not in str(graph.graph).replace("::", ".")
    torch.testing.assert_close(step(graph, a, b), step(two, a, b))
    assert reasons(acceleration) == {"": 2 * times}


def test_modes() -> None:
    """FakeTensors have the right shape; a mode sees the operator."""
    a, b = (x.detach() for x in xy())
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **kwargs or {})

    fakes = FakeTensorMode()
    with cupy_losses.accelerate() as acceleration:
        with Mode():
            value = F.mse_loss(a, b)
        with fakes:
            fake = F.mse_loss(*map(fakes.from_tensor, (a, b)), reduction="none")
    assert seen == [OURS]
    assert fake.shape == a.shape
    torch.testing.assert_close(value, F.mse_loss(a, b))
    assert reasons(acceleration) == {"": 2}


def test_the_report_keeps_traced_calls_apart() -> None:
    a, b = xy()
    compiled = torch.compile(F.mse_loss, fullgraph=True, backend="aot_eager")
    dynamic = torch.compile(F.l1_loss, fullgraph=True, backend="aot_eager", dynamic=True)
    with cupy_losses.accelerate() as acceleration:
        for _ in range(3):
            F.mse_loss(a, b)
            compiled(a, b)
            dynamic(a, b)
        vmap(F.huber_loss)(a, b.double())
    assert str(acceleration.report(measure=True)).splitlines()[2:-2] == [
        "function    dtype    elements  calls  computed by",
        "huber_loss  float32  2 to 3        1  torch, traced or transformed: dtypes of which torch "
        "makes another dtype, or an error",
        "l1_loss     float32                1  cupy_losses, traced or transformed",
        "mse_loss    float32  8 to 15       3  cupy_losses",
        "mse_loss    float32  8 to 15       1  cupy_losses, traced or transformed",
    ]


def test_modules_of_this_package_beside_those_of_torch() -> None:
    """In one graph they are the same operator."""
    a, b = xy()
    ours, theirs = nn.MSELoss(), torch.nn.MSELoss()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return ours(a, b) - theirs(a, b)

    with cupy_losses.accelerate():
        value, slope = step(torch.compile(loss, fullgraph=True, backend="aot_eager"), a, b)
    assert not value.any()
    assert not slope.any()

"""`cupy_losses.accelerate`: torch's own losses, on CPU tensors that count as tensors on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import pickle
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import mse_loss as imported_before
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cupy_losses
from cupy_losses import nn
from cupy_losses._acceleration import measurement, replacement, rules, tallies
from cupy_losses._acceleration import report as reports
from cupy_losses._acceleration.replacement import FUNCTIONS, Replaced
from cupy_losses._acceleration.switch import Acceleration
from cupy_losses._api.public import is_loss
from cupy_losses._device import driver

from ..tables.examples import Example
from ..tools import forks
from ..tools.levels import case, covering
from . import test_nn as of_nn
from .test_nn import NAMES, REDUCTIONS, city_block
from .test_nn import parameters as parameters_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides",
    "ignore:Using a target size",
    "ignore:.*is broadcast",
    "ignore:`?torch.jit",
)

# mypy would refuse the calls that are wrong on purpose.
F: Any = torch.nn.functional
BY_NAME: dict[str, Replaced] = {function.name: function for function in FUNCTIONS}
BEFORE = {name: getattr(F, name) for name in NAMES}
CODES = {name: function.__code__ for name, function in BEFORE.items()}


@pytest.fixture(autouse=True)
def _is_off() -> Iterator[None]:
    yield
    assert_off()


def assert_off() -> None:
    """torch's functions are as torch made them."""
    for name, function in BEFORE.items():
        assert getattr(F, name) is function
        assert function.__code__ is CODES[name]
        assert vars(function) == {}


def reasons(acceleration: Acceleration) -> dict[str, int]:
    """The calls by the reason why torch computed; "" where this package did."""
    counted: dict[str, int] = {}
    for line in acceleration.report().lines:
        counted[line.reason] = counted.get(line.reason, 0) + line.calls
    return counted


def xy() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4, 3, generator=generator).requires_grad_(), torch.rand(
        4, 3, generator=generator
    )


def without_gradient_by_target(example: Example) -> Example:
    """The example, where torch alone computes a gradient by the target."""
    names = [*parameters_of(example.name)]
    alone = example.name in rules.NO_GRADIENT_BY_TARGET
    operands = [
        x.detach() if alone and name == "target" else x
        for name, x in zip(names, example.operands, strict=False)
    ]
    return dataclasses.replace(example, operands=operands)


EXAMPLES = [without_gradient_by_target(example) for example in of_nn.EXAMPLES]
OF_MODULES = [without_gradient_by_target(example) for example in of_nn.OF_MODULES]


def expected_reasons(example: Example) -> dict[str, int]:
    if example.options.get("distance_function") is not None:
        return {rules.DISTANCE: 1}
    return {rules.REFUSED if example.options.get("p") == 0 else "": 1}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("example", "reduction"), covering(3, EXAMPLES, REDUCTIONS))
def test_functions(example: Example, reduction: str) -> None:
    """torch's values and gradients, computed by this package."""
    function = getattr(F, example.name)
    options = example.options | {"reduction": reduction}
    expected = example.results(function, **options)
    with cupy_losses.accelerate() as acceleration:
        got = example.results(function, **options)
    torch.testing.assert_close(got, expected)
    wanted = expected_reasons(example)
    assert reasons(acceleration) == wanted
    assert (type(got[0].grad_fn).__name__ == "_LossBackward") == (wanted == {"": 1})


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("example", "reduction"), covering(3, OF_MODULES, REDUCTIONS))
def test_modules(example: Example, reduction: str) -> None:
    """Those of torch call the functions; one makes a distance function where it has none."""
    module = getattr(torch.nn, nn.class_name(example.name))(
        **example.options | {"reduction": reduction}
    )
    expected = example.results(module)
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(example.results(module), expected)
    distance = hasattr(module, "distance_function")
    assert reasons(acceleration) == ({rules.DISTANCE: 1} if distance else expected_reasons(example))


def test_all_functions_are_replaced() -> None:
    assert sorted(BY_NAME) == sorted(NAMES)


@pytest.mark.usefixtures("on_gpu")
def test_names_that_were_imported_before() -> None:
    x, y = xy()
    with cupy_losses.accelerate() as acceleration:
        assert type(imported_before(x, y).grad_fn).__name__ == "_LossBackward"
        torch.distributions.Bernoulli(logits=x).log_prob(y.round())
    assert reasons(acceleration) == {"": 2}
    assert type(imported_before(x, y).grad_fn).__name__ == "MseLossBackward0"


@pytest.mark.parametrize("name", NAMES)
def test_what_others_see_of_a_function(name: str) -> None:
    """All but its code is as before, while acceleration is on."""

    def seen() -> list[Any]:
        function = getattr(F, name)
        attributes = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__")
        facts = [getattr(function, attribute) for attribute in attributes]
        facts += [function.__kwdefaults__, function.__annotations__, inspect.signature(function)]
        return [*facts, inspect.getfullargspec(function), torch.overrides.resolve_name(function)]

    before = seen()
    with cupy_losses.accelerate():
        assert seen() == before
        assert pickle.loads(pickle.dumps(getattr(F, name))) is BEFORE[name]
        assert getattr(F, name).__code__ is not CODES[name]
        assert "by_torch(tally, " in inspect.getsource(getattr(F, name))
    assert seen() == before


def test_a_plain_call_switches_on_until_it_is_closed() -> None:
    acceleration = cupy_losses.accelerate()
    assert F.mse_loss.__code__ is not CODES["mse_loss"]
    assert repr(acceleration) == "<acceleration, on: report() says what was computed>"
    acceleration.close()
    acceleration.close()  # once is enough
    assert repr(acceleration) == "<acceleration, closed: report() says what was computed>"
    assert_off()
    with pytest.raises(RuntimeError, match="is closed"), acceleration:
        pass


def test_nesting() -> None:
    x, y = xy()
    with cupy_losses.accelerate() as outer:
        F.mse_loss(x, y)
        with cupy_losses.accelerate() as inner:
            F.mse_loss(x, y)
        inner.close()
        assert F.mse_loss.__code__ is not CODES["mse_loss"]
        F.mse_loss(x, y)
    assert (outer.report().calls, inner.report().calls) == (3, 1)


def test_an_acceleration_has_one_block() -> None:
    """The end of a second one would end the first."""
    with cupy_losses.accelerate() as acceleration:
        with pytest.raises(RuntimeError, match="has its block"), acceleration:
            pass
        assert F.mse_loss.__code__ is not CODES["mse_loss"]


def test_every_loss_that_torch_has_is_replaced() -> None:
    ours = [name for name in cupy_losses.__all__ if is_loss(getattr(cupy_losses, name))]
    assert sorted(BY_NAME) == sorted(name for name in ours if hasattr(F, name))


def test_an_error_inside_the_block() -> None:
    with pytest.raises(ZeroDivisionError), cupy_losses.accelerate():
        raise ZeroDivisionError
    assert_off()


@pytest.mark.parametrize("step", ["replace", "restore"])
def test_an_interrupt_while_functions_are_switched(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch has all its functions back, and the next acceleration is like any other."""
    own = getattr(Replaced, step)

    def interrupted(function: Replaced) -> None:
        own(function)
        if function is FUNCTIONS[3]:
            monkeypatch.undo()
            raise KeyboardInterrupt

    accelerations = []

    def switch_on_and_off() -> None:
        accelerations.append(cupy_losses.accelerate())
        accelerations[0].close()

    monkeypatch.setattr(Replaced, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        switch_on_and_off()
    assert_off()
    for acceleration in accelerations:
        acceleration.close()  # once is enough
    with cupy_losses.accelerate():
        assert all(BEFORE[name].__code__ is not CODES[name] for name in NAMES)
    assert_off()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_switches() -> None:
    """The new process, which has no such thread, switches and counts itself."""
    forks.while_held(
        "import torch\n"
        "from cupy_losses import accelerate\n"
        "from cupy_losses._acceleration import replacement, tallies",
        "replacement._switching, tallies._lock",
        "with accelerate():\n    torch.nn.functional.mse_loss(torch.ones(2), torch.ones(2))",
    )


@pytest.mark.usefixtures("on_gpu")
def test_threads() -> None:
    """One leaves while others are inside; every call is counted, and computed by this package."""
    x, y = xy()
    calls, threads = 300, 4
    inside, left = threading.Barrier(threads), threading.Event()
    names: set[str] = set()

    def work(number: int) -> None:
        try:
            with cupy_losses.accelerate():
                inside.wait()
                if number == 0:
                    return
                left.wait()  # which is set when the first thread ends, whatever happens to it
                names.update(type(F.mse_loss(x, y).grad_fn).__name__ for _ in range(calls))
        except BaseException:
            inside.abort()  # nobody waits for this thread
            raise

    with cupy_losses.accelerate() as all_of_them:
        started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        started[0].join()
        left.set()
        for thread in started:
            thread.join()
    assert names == {"_LossBackward"}
    assert reasons(all_of_them) == {"": calls * (threads - 1)}


@pytest.mark.usefixtures("on_gpu")
def test_threads_that_switch_while_others_call() -> None:
    """No call fails, whichever code it begins with."""
    x, y = xy()
    expected, done, failures = F.mse_loss(x, y), threading.Event(), []

    def call() -> None:
        while not done.is_set():
            try:
                torch.testing.assert_close(F.mse_loss(x, y), expected)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with cupy_losses.accelerate():
            pass
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_functions_of_someone_else_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is put in place meanwhile, and code that is."""

    def theirs(input: Any, target: Any, size_average: Any, reduce: Any, reduction: Any) -> str:
        return "theirs"

    with cupy_losses.accelerate():
        monkeypatch.setattr(F, "l1_loss", theirs)
        F.smooth_l1_loss.__code__ = theirs.__code__
    assert F.l1_loss is theirs
    assert F.smooth_l1_loss.__code__ is theirs.__code__
    monkeypatch.undo()
    F.smooth_l1_loss.__code__ = CODES["smooth_l1_loss"]


def test_functions_of_someone_else_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_losses._acceleration import replacement

    monkeypatch.setattr(F, "mse_loss", functools.wraps(F.mse_loss)(lambda *args: None))
    names = {function.name for function in replacement._functions()}
    assert names == set(NAMES) - {"mse_loss"}


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("no target", lambda: F.mse_loss(torch.ones(3))),
    ("unknown", lambda: F.mse_loss(torch.ones(3), torch.ones(3), where=1)),
    ("reduction", lambda: F.mse_loss(torch.ones(3), torch.ones(3), reduction="average")),
    ("shapes", lambda: F.mse_loss(torch.ones(3), torch.ones(4))),
    ("negative beta", lambda: F.smooth_l1_loss(torch.ones(3), torch.ones(3), beta=-1.0)),
    ("delta 0", lambda: F.huber_loss(torch.ones(3), torch.ones(3), delta=0.0)),
    ("weights", lambda: F.cross_entropy(torch.ones(2, 3), torch.ones(2).long(), torch.ones(4))),
    ("classes", lambda: F.cross_entropy(torch.ones(2, 3), torch.ones(3).long())),
    ("dtypes", lambda: F.nll_loss(torch.ones(2, 3), torch.ones(2))),
    (
        "smoothing",
        lambda: F.cross_entropy(
            torch.ones(2, 3), torch.ones(2).long(), None, None, -100, None, "mean", 2.0
        ),
    ),
    ("no tensors", lambda: F.mse_loss([1.0], [2.0])),
    ("None", lambda: F.mse_loss(None, torch.ones(3))),
    ("margin", lambda: F.triplet_margin_loss(*[torch.ones(2, 3)] * 3, margin=-1.0)),
    ("variance", lambda: F.gaussian_nll_loss(*[torch.ones(2, 3)] * 2, -1.0)),
    ("integers", lambda: F.l1_loss(torch.ones(3).long(), torch.ones(3).bool())),
]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in BAD])
def test_errors_are_those_of_torch(call: Callable[[], Any]) -> None:
    """Type and message."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as of_torch:  # noqa: PT011
            call()
        with cupy_losses.accelerate(), pytest.raises(of_torch.type) as caught:
            call()
    assert str(caught.value) == str(of_torch.value)


def test_errors_of_values_are_those_of_this_package(on_gpu: None) -> None:
    """Where the user asks for them."""
    with (
        cupy_losses.accelerate(),
        cupy_losses.check_values(),
        pytest.raises(ValueError, match=r"target must be in \[0, 2\]"),
    ):
        F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 7]))


@pytest.mark.parametrize("name", [name for name in NAMES if "reduce" in parameters_of(name)])
def test_deprecated_arguments(name: str, on_gpu: None) -> None:
    """They are translated, with torch's one warning."""
    example = next(example for example in EXAMPLES if example.name == name)
    with pytest.warns(UserWarning, match="size_average and reduce"):
        expected = example.results(getattr(F, name), **example.options, size_average=False)
    with cupy_losses.accelerate() as acceleration:
        with pytest.warns(UserWarning, match="size_average and reduce") as caught:
            got = example.results(getattr(F, name), **example.options, size_average=False)
        torch.testing.assert_close(got, expected)
    assert reasons(acceleration) == {"": 1}
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("old", [{"size_average": True}, {"reduce": False}])
@pytest.mark.parametrize("traced", [False, True])
def test_deprecated_arguments_beside_batchmean(
    old: dict[str, Any], traced: bool, on_gpu: None
) -> None:
    """torch does as they say, and divides by the batch size as well."""
    operands = torch.rand(4, 3), torch.rand(4, 3)
    call = functools.partial(F.kl_div, **old, reduction="batchmean")
    expected = call(*operands)
    with cupy_losses.accelerate() as acceleration:
        got = make_fx(call)(*operands)(*operands) if traced else call(*operands)
    assert torch.equal(got, expected)
    assert reasons(acceleration) == {rules.REFUSED: 1}


@pytest.mark.usefixtures("on_gpu")
def test_warnings_are_at_the_call() -> None:
    with cupy_losses.accelerate(), pytest.warns(UserWarning, match="'batchmean'") as caught:
        F.kl_div(*xy())
    assert caught[0].filename == __file__


class Subclass(torch.Tensor):
    """Calls the function again, without a turn of its own."""


class Handler(torch.Tensor):
    """Looks a function up by its identity."""

    handled = {F.mse_loss: "handled"}  # noqa: RUF012

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.handled[function]


class Mode(torch.overrides.TorchFunctionMode):
    """Sees the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(
        self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(function)
        return function(*args, **kwargs or {})


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def sum_of_samples(y: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(F.kl_div)(y, y).sum()


def with_a_dual_target() -> None:
    with torch.autograd.forward_ad.dual_level():
        F.kl_div(x(), torch.autograd.forward_ad.make_dual(x(), x()))


def under_autocast(call: Callable[[], Any]) -> Callable[[], Any]:
    def autocast() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            call()

    return autocast


def x() -> torch.Tensor:
    return torch.rand(4, 3)


def classes() -> torch.Tensor:
    return torch.zeros(4, dtype=torch.int64)


def grad() -> torch.Tensor:
    return x().requires_grad_()


def exported() -> None:
    class Module(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            positive = a[a > 0.5]
            return F.mse_loss(positive, 2 * positive)

    torch.export.export(Module(), (x(),))


def cubic(a: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(a**3, a)


# By reason: calls that torch computes, each for this one.
BY_TORCH: dict[str, list[Callable[[], Any]]] = {
    rules.UNKNOWN: [exported],
    rules.DERIVATIVES: [
        lambda: torch.func.grad(torch.func.hessian(cubic))(torch.tensor(2.0)),
        lambda: torch.func.jacfwd(torch.func.jacfwd(cubic))(x()),
    ],
    rules.NO_TENSOR: [
        lambda: F.mse_loss([1.0], x()),
        lambda: F.mse_loss(1.0, x()),
        lambda: F.mse_loss(x(), None),
    ],
    rules.SUBCLASS: [
        lambda: F.mse_loss(x().as_subclass(Subclass), x()),
        lambda: F.mse_loss(x(), x(), weight=x().as_subclass(Subclass)),
    ],
    rules.LAYOUT: [
        lambda: F.mse_loss(torch.eye(3).to_sparse(), torch.eye(3)),
        lambda: F.mse_loss(nested(), nested()),
    ],
    rules.EMPTY: [
        lambda: F.mse_loss(torch.ones(0), torch.ones(0)),
        lambda: F.cross_entropy(torch.ones(4, 0), torch.ones(4, 0)),
        lambda: torch.func.vmap(F.mse_loss)(torch.ones(0, 3), torch.ones(0, 3)),
    ],
    rules.GRADIENT: [
        lambda: F.binary_cross_entropy(x(), x(), grad()),
        lambda: F.binary_cross_entropy_with_logits(x(), x(), pos_weight=grad()),
        lambda: F.cross_entropy(x(), classes(), torch.rand(3).requires_grad_()),
        lambda: F.kl_div(x(), grad()),
        lambda: F.poisson_nll_loss(x(), grad(), full=True),
        lambda: F.hinge_embedding_loss(x(), grad()),
        lambda: F.soft_margin_loss(x(), grad()),
        lambda: torch.func.grad(F.kl_div, argnums=1)(x(), x()),
        lambda: torch.func.jvp(lambda y: F.kl_div(y, y), (x(),), (x(),)),
        lambda: torch.func.grad(sum_of_samples)(x()),
        lambda: torch.func.jvp(sum_of_samples, (x(),), (x(),)),
        with_a_dual_target,
    ],
    rules.OTHER_DTYPES: [
        lambda: F.huber_loss(x(), x().double()),
        lambda: F.mse_loss(x().long(), x()),
        lambda: F.l1_loss(x(), x().bool()),
        lambda: F.cross_entropy(x(), classes().int()),
        lambda: F.cross_entropy(x(), classes(), torch.rand(3).double()),
        lambda: F.l1_loss(x() + 1j, x()),
        lambda: F.binary_cross_entropy_with_logits(x(), x().bfloat16()),
        lambda: F.margin_ranking_loss(x(), x().double(), x()),
    ],
    rules.SHAPES: [
        lambda: F.mse_loss(x(), x(), weight=torch.rand(3)),
        lambda: F.margin_ranking_loss(x(), x(), torch.ones(3)),
        lambda: F.soft_margin_loss(x(), torch.ones(2, 4, 3)),
        lambda: F.multi_margin_loss(torch.rand(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64)),
        lambda: F.triplet_margin_loss(x(), x()[:, :1], x()),
        lambda: F.cross_entropy(torch.rand(3), torch.zeros(1, dtype=torch.int64)),
        lambda: F.nll_loss(torch.rand(3), torch.zeros(1, dtype=torch.int64)),
    ],
    rules.AUTOCAST: [
        under_autocast(lambda: F.binary_cross_entropy(x(), x())),
        under_autocast(lambda: F.multilabel_soft_margin_loss(x().bfloat16(), x().bfloat16())),
        under_autocast(lambda: F.mse_loss(*[x().bfloat16()] * 2, weight=x().bfloat16())),
    ],
    rules.DISTANCE: [
        lambda: F.triplet_margin_with_distance_loss(x(), x(), x(), distance_function=city_block),
        lambda: torch.nn.TripletMarginWithDistanceLoss()(x(), x(), x()),
    ],
    rules.REFUSED: [
        lambda: F.huber_loss(x(), x(), delta=torch.tensor(1.0)),
        lambda: F.huber_loss(x(), x(), delta=1e37),
        lambda: F.gaussian_nll_loss(x(), x(), x(), 1),
        lambda: F.triplet_margin_loss(x(), x(), x(), p=-1.0),
        lambda: F.triplet_margin_loss(grad(), x(), x(), p=0),
        lambda: F.cosine_embedding_loss(*[torch.tensor(1.0)] * 3),
        lambda: F.mse_loss(x(), x(), reduction="average"),
        lambda: torch.func.grad(lambda a: F.huber_loss(a, x(), delta=torch.tensor(1.0)))(x()),
        lambda: torch.func.vmap(lambda a: F.mse_loss(a, a, reduction="average"))(x()),
    ],
}
CASES = [
    pytest.param(reason, call, id=f"{reason}-{number}")
    for reason, calls in BY_TORCH.items()
    for number, call in enumerate(calls)
]


@pytest.mark.parametrize(("reason", "call"), CASES)
def test_reasons(reason: str, call: Callable[[], Any], on_gpu: None) -> None:
    """What torch computes, once each; an error is the one that torch has."""

    def error() -> tuple[Any, ...]:
        try:
            call()
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            return type(error), str(error)
        return ()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = error()
        with cupy_losses.accelerate() as acceleration:
            assert error() == expected
    assert reasons(acceleration) == {reason: 1}


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("name", "operands", "options"),
    [
        ("mse_loss", lambda: (grad(), x()), {"weight": grad}),
        ("huber_loss", lambda: (grad(), x()), {"weight": grad}),
        ("multilabel_soft_margin_loss", lambda: (grad(), x()), {"weight": grad}),
        ("cross_entropy", lambda: (grad(), x()), {"weight": lambda: grad()[0].detach()}),
        ("cosine_embedding_loss", lambda: (grad(), x(), torch.ones(1).requires_grad_()), {}),
        ("multi_margin_loss", lambda: (grad()[0], torch.zeros(1, dtype=torch.int64)), {}),
        ("multilabel_margin_loss", lambda: (grad()[0, 0], torch.tensor([0])), {}),
        ("triplet_margin_loss", lambda: (grad()[0, 0], x()[1, 0], x()[2, 0]), {}),
    ],
)
def test_gradients_and_shapes_of_torch(
    name: str, operands: Callable[[], Any], options: dict[str, Callable[[], Any]]
) -> None:
    """Weights and targets that require grad, arrays of shape (): where torch has a result."""
    given = operands()
    taken = {key: make().detach().requires_grad_() for key, make in options.items()}
    leaves = [t for t in (*given, *taken.values()) if t.requires_grad]

    def results() -> list[Any]:
        value = getattr(F, name)(*given, **taken)
        return [value, *torch.autograd.grad(value, leaves, allow_unused=True)]

    expected = results()
    with cupy_losses.accelerate() as acceleration:
        got = results()
    torch.testing.assert_close(got, expected)
    assert reasons(acceleration) == {"": 1}


def test_every_reason_has_a_case() -> None:
    assert {*BY_TORCH, rules.ON_NO_GPU, rules.DEVICE, rules.NO_GPU} == set(rules.REASONS)


def test_tensors_elsewhere() -> None:
    """Nothing is replaced here, where tensors are on the CPU."""
    with cupy_losses.accelerate() as acceleration:
        assert type(F.mse_loss(grad(), x()).grad_fn).__name__ == "MseLossBackward0"
        F.mse_loss(x().to("meta"), x().to("meta"))
    assert reasons(acceleration) == {rules.ON_NO_GPU: 2}


def test_tensors_in_two_places(on_gpu: None) -> None:
    with cupy_losses.accelerate() as acceleration, pytest.raises(RuntimeError):
        F.cross_entropy(x(), classes().to("meta"))
    assert reasons(acceleration) == {rules.DEVICE: 1}


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has a GPU that CuPy does not find: a warning says so, once."""

    def missing() -> None:
        raise driver.MissingGPUError("CUDA arrays need CuPy")

    monkeypatch.setattr(driver, "require_gpu", missing)
    rules.gpu_is_there.cache_clear()
    with pytest.warns(UserWarning, match="torch computes all losses itself: CUDA arrays need CuPy"):
        assert not rules.gpu_is_there()
    assert not rules.gpu_is_there()
    tensor: Any = types.SimpleNamespace(is_cuda=True)
    assert rules.place_problem(tensor) == rules.NO_GPU
    rules.gpu_is_there.cache_clear()
    monkeypatch.setattr(rules, "place_problem", lambda tensor: rules.NO_GPU)
    with cupy_losses.accelerate() as acceleration:
        F.mse_loss(*xy())
    assert reasons(acceleration) == {rules.NO_GPU: 1}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_no_value_is_read_to_decide(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the device meta have none."""
    monkeypatch.setattr(rules, "place_problem", lambda tensor: "")
    replaced = BY_NAME[example.name]
    names = [*parameters_of(example.name)]
    given = dict(zip(names, example.operands, strict=False)) | example.options
    taken = {name: given.get(name) for name in replaced._tensors}
    taken |= {name: t.to("meta") for name, t in taken.items() if isinstance(t, torch.Tensor)}
    taken.pop("distance_function", None)
    assert rules.decide(example.name, replaced.prepare, taken) == ("", "")


def test_subclasses_and_modes_see_torchs_function(on_gpu: None) -> None:
    """The very object, by which they may look up what they do instead."""
    a, b = xy()
    with cupy_losses.accelerate() as acceleration:
        assert F.mse_loss(b.as_subclass(Handler), b) == "handled"
        with Mode() as mode:
            loss = F.mse_loss(a, b)
        with torch.device("cpu"):
            F.mse_loss(a, b)
        node = [*torch.fx.symbolic_trace(torch.nn.MSELoss()).graph.nodes][2]
    assert mode.seen == [BEFORE["mse_loss"]]
    assert type(loss.grad_fn).__name__ == "_LossBackward"
    assert node.target is BEFORE["mse_loss"]
    assert reasons(acceleration) == {"": 2}


def test_torchscript(on_gpu: None) -> None:
    """It compiles torch's functions, from wherever they are called."""
    a, b = xy()
    with cupy_losses.accelerate() as acceleration:
        compiled = torch.jit.script(torch.nn.CrossEntropyLoss()), torch.jit.script(F.l1_loss)
        for loss in compiled:
            assert "_Loss" not in type(loss(a, b).grad_fn).__name__
    assert acceleration.report().calls == 0


def test_checkpoint(on_gpu: None) -> None:
    """The loss is computed anew in the backward pass, in a thread of autograd."""
    a, b = xy()
    (slope,) = torch.autograd.grad(F.mse_loss(a.tanh(), b), a)
    with cupy_losses.accelerate() as acceleration:
        loss = checkpoint(lambda a: F.mse_loss(a.tanh(), b), a, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(loss, a)[0], slope)
    assert reasons(acceleration) == {"": 2}


def test_second_derivatives(on_gpu: None) -> None:
    a, b = xy()
    with cupy_losses.accelerate():
        assert torch.autograd.gradgradcheck(F.mse_loss, (a.double(), b.double()))


SHAPES: dict[int, list[tuple[tuple[int, ...], ...]]] = {
    2: [
        ((4, 3), (4, 3)),
        ((4, 3), (3,)),
        ((3,), (4, 3)),
        ((4, 1), (4, 3)),
        ((4, 3), ()),
        ((), ()),
        ((2, 3, 4), (2, 3, 4)),
        ((2, 3), (4, 3)),
    ],
    3: [
        ((4, 3),) * 3,
        ((4, 3), (4, 3), (4,)),
        ((4, 3), (4, 3), (1,)),
        ((4, 3), (4, 3), ()),
        ((3,), (3,), ()),
        ((3,),) * 3,
        ((),) * 3,
        ((4, 3), (1, 3), (4, 3)),
        ((4, 1), (4, 3), (4, 3)),
        ((4, 3), (3,), (4, 3)),
        ((2, 4, 3),) * 3,
        ((4, 3), (4, 3), (4, 1)),
    ],
}
SHAPES_OF_CLASSES: list[tuple[tuple[int, ...], ...]] = [
    ((4, 3), (4,)),
    ((3,), ()),
    ((4, 3, 2), (4, 2)),
    ((4, 3), (4, 3)),
    ((4, 3), ()),
    ((3,), (3,)),
    ((3,), (1,)),
    ((1, 3), (1,)),
    ((2, 3, 4), (2, 3, 4)),
]


def test_limits(on_gpu: None) -> None:
    """What docs/accelerate.md says of changes before the backward pass, and third derivatives."""
    for on in (False, True):
        logits = x().requires_grad_() * 1
        acceleration = cupy_losses.accelerate() if on else contextlib.nullcontext()
        with acceleration:
            loss = F.cross_entropy(logits, classes())
            logits += 1
            with pytest.raises(RuntimeError, match="inplace") if on else contextlib.nullcontext():
                loss.backward()
            leaf = grad()
            value: Any = F.poisson_nll_loss(leaf, x()).sum()
            for _ in range(2):
                (value,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
            with pytest.raises(NotImplementedError) if on else contextlib.nullcontext():
                torch.autograd.grad(value.sum(), leaf)


# What half of the draws have.
USUAL: dict[str, tuple[tuple[int, ...], ...]] = {
    "cosine_embedding_loss": ((4, 3), (4, 3), (4,)),
    "multilabel_margin_loss": ((4, 3), (4, 3)),
}
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
Tensors = dict[str, torch.Tensor]


class Draws:
    """Arguments of a function of torch: any dtypes, shapes, weights, flags."""

    def __init__(self, name: str, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._name = name
        self._operands = BY_NAME[name]._operands
        self._of_classes = name in rules._OF_CLASSES

    def _one_of(self, values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=self._generator))]

    def _chance(self, probability: float) -> bool:
        return float(torch.rand((), generator=self._generator)) < probability

    def _tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if dtype in (*FLOATING, torch.complex64):
            tensor = (0.1 + 0.8 * torch.rand(shape, generator=self._generator)).to(dtype)
            return tensor.requires_grad_(dtype in FLOATING and self._chance(0.3))
        return torch.randint(2, shape, generator=self._generator).to(dtype)

    def arguments(self) -> tuple[Tensors, dict[str, Any]]:
        """Tensors by name, and other arguments."""
        shapes = SHAPES_OF_CLASSES if self._of_classes else SHAPES[len(self._operands)]
        usual = USUAL.get(self._name, shapes[0])
        chosen = usual if self._chance(0.5) else self._one_of(shapes)
        dtypes = [self._one_of(FLOATING)] * len(chosen)
        if self._of_classes:
            dtypes[1] = torch.int64
        if self._chance(0.4):
            changed = self._one_of(range(len(dtypes)))
            dtypes[changed] = self._one_of(FLOATING + OTHERS)
        tensors = {
            name: self._tensor(shape, dtype)
            for name, shape, dtype in zip(self._operands, chosen, dtypes, strict=True)
        }
        for name in ("weight", "pos_weight"):
            if name in parameters_of(self._name) and self._chance(0.4):
                shape = self._one_of([chosen[0], chosen[0][-1:], (), (3,), (4, 1), (2, 3)])
                dtype = dtypes[0] if self._chance(0.8) else self._one_of(FLOATING + OTHERS)
                tensors[name] = self._tensor(shape, dtype)
        return tensors, {"reduction": self._one_of(REDUCTIONS)}


Outcome = tuple[Any, ...]


def outcome(function: Callable[..., Any], tensors: Tensors, options: dict[str, Any]) -> Outcome:
    """The error, or the value and the gradients."""
    try:
        value = function(**tensors, **options)
    except Exception as error:
        return type(error), str(error)
    if not value.requires_grad:
        return value, []
    leaves = [x for x in tensors.values() if x.requires_grad]
    try:
        return value, torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    except Exception as error:
        return value.dtype, type(error), str(error)


VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
# Errors on the CPU alone; and of mse_loss of two dtypes, whose backward pass torch 2.11 lacks.
ONLY_THERE = "not implemented for" + "|Found dtype .* but expected" * (VERSION < (2, 12))


def is_at_the_margin(name: str, tensors: Tensors) -> bool:
    """Whether torch's derivative is another one than before 2.14, and than ours."""
    if name != "margin_ranking_loss" or VERSION < (2, 14):
        return False
    input1, input2, _ = tensors.values()
    return bool((input1 == input2).any())


class Through(TorchDispatchMode):
    """A mode that watches, and changes nothing."""

    def __torch_dispatch__(
        self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **kwargs or {})


WATCHED = {"alone": contextlib.nullcontext, "watched": Through}
DRAWN = [
    case(name, autocast, watched, 60, default=watched == "alone" or k % 4 == autocast, id=label)
    for k, name in enumerate(NAMES)
    for autocast in (False, True)
    for watched in WATCHED
    for label in [f"{name}-{autocast}-{watched}"]
]
MANY_DRAWN = [
    case(name, autocast, watched, 1000, default=False, id=f"{name}-{autocast}-{watched}-many")
    for name in NAMES
    for autocast in (False, True)
    for watched in WATCHED
]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("name", "autocast", "watched", "draws"), DRAWN + MANY_DRAWN)
def test_all_arguments_give_what_torch_gives(
    name: str, autocast: bool, watched: str, draws: int
) -> None:
    """Values, dtypes, gradients, which gradients there are, errors with their messages."""
    drawn, replaced = Draws(name, seed=draws), BY_NAME[name]
    with (
        cupy_losses.accelerate() as acceleration,
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        warnings.catch_warnings(),
        WATCHED[watched](),
    ):
        warnings.simplefilter("ignore")
        for _ in range(draws):
            tensors, options = drawn.arguments()
            expected = outcome(replaced.torch, tensors, options)
            if re.search(ONLY_THERE, str(expected[-1])) or is_at_the_margin(name, tensors):
                continue
            got = outcome(getattr(F, name), tensors, options)
            half = any(x.dtype in FLOATING[:2] for x in tensors.values())
            rtol, atol = (0.03, 0.03) if half else (1e-4, 1e-5)
            if isinstance(expected[0], torch.Tensor):
                torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
            else:
                assert got == expected, (tensors, options)
    counted = reasons(acceleration)
    if name != "binary_cross_entropy" or not autocast:
        assert counted[""] > 0.1 * sum(counted.values())


@pytest.fixture
def _autocast_elsewhere() -> Iterator[None]:
    """Autocast is on, on a device where no operand is."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.usefixtures("on_gpu", "_autocast_elsewhere")
def test_autocast_of_another_device() -> None:
    """It changes no dtype and no error of torch's, nor what the next call with it decides."""
    half, single, classes = torch.rand(4, 5).half(), torch.rand(4, 5), torch.arange(4)
    for function, args, options in (
        (F.huber_loss, (half, single), {}),
        (F.binary_cross_entropy_with_logits, (single, half), {}),
        (F.cross_entropy, (half, classes), {"weight": torch.ones(5)}),
        (F.binary_cross_entropy, (single, single), {}),
    ):

        def call(function: Any = function, args: Any = args, options: Any = options) -> Any:
            try:
                return function(*args, **options).dtype
            except RuntimeError as error:
                return str(error)

        expected = call()
        with cupy_losses.accelerate() as acceleration:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                call()
            before = reasons(acceleration)
            assert call() == expected, function
        reason = "" if function is F.binary_cross_entropy else rules.OTHER_DTYPES
        assert reasons(acceleration)[reason] == before.get(reason, 0) + 1


def test_report(on_gpu: None) -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    with cupy_losses.accelerate() as acceleration:
        for _ in range(3):
            F.mse_loss(x, y)
        F.mse_loss(x.double(), y.double())
        F.huber_loss(x, y, delta=torch.tensor(1.0))
    F.mse_loss(x, y)
    report = acceleration.report(measure=True)
    assert (report.calls, report.ours, report.saved) == (5, 4, None)
    assert str(report).splitlines() == [
        "cupy_losses computed 4 of 5 calls of torch's losses.",
        "",
        "function    dtype    elements  calls  computed by",
        "huber_loss  float32  4 to 7        1  torch: an argument that cupy_losses does not take "
        "(delta must be a real number, got Tensor: pass float(delta))",
        "mse_loss    float32  4 to 7        3  cupy_losses",
        "mse_loss    float64  4 to 7        1  cupy_losses",
        "",
        "Time saved: nothing was measured.",
    ]


@pytest.mark.parametrize(
    "tensor", [torch.empty(3).expand(4, 3), torch.arange(9).as_strided((3, 4), (1, 2))]
)
def test_operands_are_drawn_whose_elements_share_memory(tensor: torch.Tensor) -> None:
    """As those of the first call of a line may do, which is measured again."""
    first = torch.empty(4, 3)
    layouts = {"input": replacement._layout(first), "target": replacement._layout(tensor)}
    drawn = measurement._arguments(tallies.Sample(layouts, autocast=False))["target"]
    assert (drawn.shape, drawn.stride(), drawn.dtype) == (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )
    assert ((drawn >= 0) & (drawn < 3)).all()


def test_report_of_measured_times() -> None:
    """A figure comes of measured times alone, of those calls that were measured."""
    measured, other, by_torch = (
        tallies.Tally(tallies.Kind(*kind))
        for kind in (
            ("mse_loss", "float32", 20, ""),
            ("l1_loss", "float32", 20, ""),
            ("l1_loss", "", -1, rules.SUBCLASS),
        )
    )
    calls = {measured: 1000, other: 10, by_torch: 5}
    report = reports.Report.of(calls, {measured: reports.Times(torch=50e-6, ours=20e-6)})
    assert report.saved == pytest.approx(0.03)
    text = str(report)
    assert "2^20 to 2^21   1000  cupy_losses, 20.0 µs a call; torch takes 50.0 µs" in text
    assert text.endswith(
        "Time saved: about 0.03 s, from measured times of calls like the first of a line, 1000 of "
        "1010 calls."
    )
    assert str(reports.Report.of({measured: 0}, {})).splitlines()[2] == "There were none."

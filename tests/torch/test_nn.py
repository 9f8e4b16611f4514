"""`cupy_losses.nn`: the functions and the modules of torch, on its own calls of both."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
import cupy_losses.nn.functional as F
from cupy_losses import nn
from cupy_losses._api.public import is_loss
from cupy_losses._core.types import Reduction

from ..tables.examples import Example, of_elements, of_rows
from ..tables.losses import LOSSES, OF_TORCH, Case
from ..tables.rows import ROWS
from ..tools.levels import covering

pytestmark = pytest.mark.filterwarnings("ignore:reduction.*mean. divides")  # kl_div's

REDUCTIONS = ("none", "mean", "sum")
DEPRECATED = {"size_average", "reduce"}
ALL = [name for name in cupy_losses.__all__ if is_loss(getattr(cupy_losses, name))]
NAMES = [name for name in ALL if hasattr(torch.nn.functional, name)]


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """Those of torch's function."""
    return dict(inspect.signature(getattr(torch.nn.functional, name)).parameters)


def city_block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A distance of one's own."""
    return (x - y).abs().sum(dim=-1)


def examples() -> Iterable[Example]:
    """All of the tests' tables that torch has, each option of torch's functions once at least."""
    pointwise = [of_elements(case) for case in OF_TORCH]
    yield from pointwise
    weight = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for example in pointwise:
        if "weight" in parameters(example.name):
            yield Example(example.name, example.operands, example.options | {"weight": weight})
        if "pos_weight" in parameters(example.name):
            options = {"weight": weight, "pos_weight": 1 + weight[0]}
            yield Example(example.name, example.operands, options)
        if example.name == "gaussian_nll_loss":
            yield Example(example.name, example.operands, {"eps": 0.5})
    over_rows = [of_rows(case) for case in ROWS if case.of_torch]
    yield from over_rows
    triplet = next(example for example in over_rows if example.name == "triplet_margin_loss")
    of_distances: list[dict[str, Any]] = [
        {"margin": 0.5},
        {"distance_function": city_block, "swap": True},
    ]
    for options in of_distances:
        yield Example("triplet_margin_with_distance_loss", triplet.operands, options)


EXAMPLES = list(examples())


def test_examples_have_every_loss_and_option() -> None:
    given = {(example.name, option) for example in EXAMPLES for option in example.options}
    for name in NAMES:
        options = {k for k, p in parameters(name).items() if p.default is not p.empty}
        for option in options - DEPRECATED - {"reduction"}:
            assert (name, option) in given, (name, option)


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    """torch's, of which this package has everything that is not deprecated."""
    function, of_torch = getattr(F, name), getattr(torch.nn.functional, name)
    ours, theirs = inspect.signature(function), inspect.signature(of_torch)
    assert list(ours.parameters.items()) == list(theirs.parameters.items())
    own = inspect.signature(getattr(cupy_losses, name)).parameters
    assert set(theirs.parameters) - set(own) <= DEPRECATED
    for option, parameter in theirs.parameters.items():
        if option in own:
            assert own[option].default == parameter.default, option
    assert f"`torch.nn.functional.{name}`" in function.__doc__
    summary = getattr(cupy_losses, name).__doc__.partition("\n")[0]
    assert function.__doc__.startswith(summary)


def in_order(name: str, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Options by position as far as torch's function takes them so, the others by name."""
    own = [p for p in parameters(name).values() if p.default is not p.empty]
    positional = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = {p.name: options[p.name] for p in own if p not in positional and p.name in options}
    return [options.get(p.name, p.default) for p in positional], named


@pytest.mark.parametrize(("example", "reduction"), covering(3, EXAMPLES, REDUCTIONS))
def test_functions(example: Example, reduction: str) -> None:
    """Values and gradients by name, by position, and with operands by name."""
    function, of_torch = (getattr(module, example.name) for module in (F, torch.nn.functional))
    options = example.options | {"reduction": reduction}
    expected = example.results(of_torch, **options)
    torch.testing.assert_close(example.results(function, **options), expected)
    args, kwargs = in_order(example.name, options)
    torch.testing.assert_close(example.results(function, *args, **kwargs), expected)
    operands = dict(zip(parameters(example.name), example.operands, strict=False))
    value = function(**operands, **options)
    assert type(value.grad_fn).__name__ == "_LossBackward"
    torch.testing.assert_close(value, expected[0])


@pytest.mark.parametrize("name", NAMES)
def test_operands_alone(name: str) -> None:
    """All defaults are those of torch."""
    example = next(example for example in EXAMPLES if example.name == name)
    results = [example.results(getattr(module, name)) for module in (F, torch.nn.functional)]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("log_target", [False, True])
def test_batchmean(log_target: bool) -> None:
    """The reduction that is of `kl_div` alone."""
    example = next(example for example in EXAMPLES if example.name == "kl_div")
    options: dict[str, Any] = {"reduction": "batchmean", "log_target": log_target}
    expected = example.results(torch.nn.functional.kl_div, **options)
    for loss in (F.kl_div, nn.KLDivLoss(**options)):
        given = options if loss is F.kl_div else {}
        torch.testing.assert_close(example.results(loss, **given), expected)


OLD = [(a, b) for a in (None, False, True) for b in (None, False, True) if (a, b) != (None, None)]


OF_OLD = [name for name in NAMES if "reduce" in parameters(name)]


@pytest.mark.parametrize(("name", "old"), covering(8, OF_OLD, OLD))
def test_deprecated_reductions(name: str, old: tuple[bool | None, bool | None]) -> None:
    """`size_average` and `reduce`, by name and by position, win over `reduction`; they warn."""
    example = next(example for example in EXAMPLES if example.name == name)
    given = {k: v for k, v in zip(("size_average", "reduce"), old, strict=True) if v is not None}
    options = example.options | given | {"reduction": "sum"}
    args, kwargs = in_order(name, options)
    results = []
    for module, by_name in ((torch.nn.functional, True), (F, True), (F, False)):
        function = functools.partial(example.results, getattr(module, name))
        positional, named = ((), options) if by_name else (args, kwargs)
        with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
            results.append(function(*positional, **named))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("x",), {}, "target"),
        (("x", "x", None, None, "sum", None, None), {}, "too many positional arguments"),
        (("x", "x", None, None, "sum"), {"reduction": "sum"}, "reduction"),
        (("x", "x"), {"input": "x"}, "input"),
        (("x", "x"), {"where": None}, "where"),
        (("x", "x", True), {"where": None}, "where"),
    ],
)
def test_bad_calls(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    """Those that torch does not take either."""
    for function in (torch.nn.functional.mse_loss, F.mse_loss):
        with pytest.raises(TypeError, match=message if function is F.mse_loss else "mse_loss"):
            function(*args, **kwargs)


def test_what_torch_takes() -> None:
    """And this package does not, as docs/deviations.md says; a warning more of `kl_div`."""
    x, one = torch.ones(3), torch.tensor(1.0)
    with pytest.raises(TypeError, match="delta must be a real number"):
        F.huber_loss(x, x, delta=one)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delta must be a real number, got True"):
        F.huber_loss(x, x, delta=True)
    with pytest.raises(ValueError, match="margin must be .*, got nan"):
        F.hinge_embedding_loss(x, x, margin=math.nan)
    with pytest.raises(TypeError, match="full must be True or False"):
        F.gaussian_nll_loss(x, x, x, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 'elementwise_mean'"):
        F.mse_loss(x, x, reduction="elementwise_mean")
    for old in {"size_average": False}, {"reduce": True}:
        with pytest.raises(ValueError, match="must be None with reduction 'batchmean'"):
            F.kl_div(x, x, **old, reduction="batchmean")
    with pytest.warns(UserWarning, match="size_average"):  # which decides, of other losses
        total = F.mse_loss(x, 3 * x, size_average=False, reduction="batchmean")
    assert total == 12
    with pytest.warns(UserWarning, match="size_average|reduction") as caught:
        F.kl_div(x, x, size_average=True)
    assert [str(warning.message).split()[0] for warning in caught] == ["size_average", "reduction"]
    assert caught[1].filename == __file__


def test_modules_are_not_compiled_by_torchscript() -> None:
    with pytest.raises(torch.jit.frontend.NotSupportedError):
        torch.jit.script(nn.MSELoss())


class Losses(torch.nn.Module):
    """Losses of all kinds, as modules and as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.CrossEntropyLoss(weight=torch.rand(5), label_smoothing=0.1)
        self.own, self.vectors = nn.LogCoshLoss(), nn.TripletMarginLoss(p=1.0)

    def forward(self, x: torch.Tensor, y: torch.Tensor, target: torch.Tensor) -> Any:
        of_modules = self.classes(x, target) + self.own(x, y) + self.vectors(x, y, -y)
        return of_modules + F.mse_loss(x, y, None, None, "sum") + F.huber_loss(x, y, delta=0.3)


X, Y = torch.linspace(-1, 2, 3), torch.linspace(0, 1, 3)


def test_symbolic_trace() -> None:
    """A graph of torch.fx calls the losses, and nothing else of this package."""
    module = Losses()
    graph = torch.fx.symbolic_trace(module)
    names = ["cross_entropy", "log_cosh_loss", "triplet_margin_loss", "mse_loss", "huber_loss"]
    called = [node.target for node in graph.graph.nodes if is_loss(node.target)]
    assert called == [getattr(cupy_losses, name) for name in names]
    operands = *torch.randn(2, 4, 5), torch.tensor([0, 4, -100, 1])
    for again in (graph, copy.deepcopy(graph), torch.fx.symbolic_trace(graph)):
        assert torch.equal(again(*operands), module(*operands))
    loaded = pickle.loads(pickle.dumps(torch.fx.symbolic_trace(lambda x, y: F.l1_loss(x, y))))
    assert torch.equal(loaded(X, Y), F.l1_loss(X, Y))


@pytest.mark.parametrize("name", [name for name in nn.__all__ if name != "functional"])
def test_symbolic_trace_of_a_module(name: str) -> None:
    """A module alone is traced as one of torch's is: a node for its loss, its arguments' names."""
    module = getattr(nn, name)
    graph = torch.fx.symbolic_trace(module())
    (_,) = (node for node in graph.graph.nodes if is_loss(node.target))
    parameters = inspect.signature(module.forward).parameters
    arguments = [node.target for node in graph.graph.nodes if node.op == "placeholder"]
    assert ["self", *arguments] == [*parameters]


square = cupy_losses.pointwise_loss("square", lambda x, y: (x - y) ** 2)


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda x, y: cupy_losses.mse_loss(x, y), (X, Y)),
        (lambda x, y: cupy_losses.mse_loss(target=y, input=x), (X, Y)),
        (lambda x, y: cupy_losses.mse_loss(torch.ones(3), y, weight=x * x, scale=x.sum()), (X, Y)),
        (lambda x, beta: F.smooth_l1_loss(torch.ones(3), torch.zeros(3), beta=beta), (X, 0.5)),
        (lambda x, y: square(x, y), (X, Y)),
    ],
)
def test_symbolic_trace_of_functions(function: Callable[..., Any], operands: Any) -> None:
    """Any argument may be one that torch.fx traces. The call leaves nothing else in the graph."""
    graph = torch.fx.symbolic_trace(function)
    assert all(node.users for node in graph.graph.nodes if node.op.startswith("call"))
    for again in (graph, pickle.loads(pickle.dumps(graph))):
        assert torch.equal(again(*operands), function(*operands))


def test_what_symbolic_trace_does_not_record() -> None:
    with pytest.raises(TypeError, match="records calls of losses, and of nothing else"):
        torch.fx.symbolic_trace(lambda x: cupy_losses.value_and_grad(cupy_losses.mse_loss)(x, x))


def test_functions_of_this_package() -> None:
    """One import has all losses; those that torch does not have are the same functions."""
    assert F.__all__ == ALL
    for name in ALL:
        function = getattr(F, name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert (function is getattr(cupy_losses, name)) == (name not in NAMES)


def test_other_libraries_of_arrays() -> None:
    """NumPy arrays, and `value_and_grad` of a function that calls one of these."""
    x: Any = np.array([1.0, 3.0])  # the signatures are torch's, of tensors
    zero: Any = np.zeros(2)
    assert F.mse_loss(x, zero, None, None, "sum") == 10
    value, gradient = cupy_losses.value_and_grad(F.mse_loss)(x, zero)
    assert (float(value), gradient.tolist()) == (5.0, [1.0, 3.0])


def of_torch(module: type[torch.nn.Module]) -> bool:
    """Whether it is a subclass of one of torch's losses."""
    return module.__mro__[1].__module__.startswith("torch.nn.modules.loss")


def test_modules_of_torch() -> None:
    """All are there but these."""
    theirs = set(torch.nn.modules.loss.__all__)
    ours = {name for name in nn.__all__ if name != "functional" and of_torch(getattr(nn, name))}
    assert theirs - ours == {"CTCLoss", "LinearCrossEntropyLoss", "NLLLoss2d"} & theirs
    for name in ours:
        assert issubclass(getattr(nn, name), getattr(torch.nn, name))


def twice(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module after each of the round trips that modules make."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    return [module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), saved]


def has_module(example: Example) -> bool:
    """Whether the options are arguments of torch's module; weights are not of all."""
    module = getattr(torch.nn, nn.class_name(example.name))
    return set(example.options) <= set(inspect.signature(module).parameters)


OF_MODULES = [example for example in EXAMPLES if has_module(example)]
WEIGHTED = [example for example in OF_MODULES if "weight" in example.options]


@pytest.mark.parametrize(("example", "reduction"), covering(3, OF_MODULES, REDUCTIONS))
def test_subclasses_of_torch(example: Example, reduction: str) -> None:
    """Arguments, `repr`, buffers, round trips; values and gradients of the forward pass."""
    name = nn.class_name(example.name)
    ours, theirs = getattr(nn, name), getattr(torch.nn, name)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    assert f"`torch.nn.{name}`" in ours.__doc__
    options = example.options | {"reduction": reduction}
    expected = theirs(**options)
    results = example.results(expected)
    for module in twice(ours(**options)):
        assert type(module) is ours
        assert repr(module) == repr(expected)
        torch.testing.assert_close(module.state_dict(), expected.state_dict())
        got = example.results(module)
        assert type(got[0].grad_fn).__name__ == "_LossBackward"
        torch.testing.assert_close(got, results)
    operands = list(inspect.signature(theirs.forward).parameters)[1:]
    by_name = dict(zip(operands, example.operands, strict=True))
    torch.testing.assert_close(ours(**options)(**by_name), results[0])


@pytest.mark.parametrize("example", WEIGHTED, ids=str)
def test_weights_are_buffers(example: Example) -> None:
    """They are loaded, and moved with the module."""
    ours = getattr(nn, nn.class_name(example.name))
    given = example.options | {"weight": example.options["weight"].float()}
    other = ours(**(given | {"weight": torch.zeros_like(given["weight"])}))
    module = ours(**given)
    other.load_state_dict(module.state_dict())
    assert other.to(torch.float64).weight.dtype == torch.float64
    torch.testing.assert_close(example.results(other), example.results(module.double()))


def test_deprecated_reductions_of_modules() -> None:
    with pytest.warns(UserWarning, match="please use reduction='sum'"):
        module = nn.MSELoss(size_average=False)
    assert module.reduction == "sum"


def test_modules_take_operands_alone() -> None:
    """As torch's: an option of the function is none of the forward pass."""
    x = torch.ones(3)
    for module in (nn.MSELoss(), torch.nn.MSELoss()):
        for args, kwargs in (((x, x, False), {}), ((x, x), {"weight": x}), ((x,), {})):
            with pytest.raises(TypeError):
                module(*args, **kwargs)


@pytest.mark.parametrize("name", ALL)
def test_every_loss_has_a_module(name: str) -> None:
    """By a name that follows from its own, with a docstring and a place to be pickled from."""
    module = getattr(nn, nn.class_name(name))
    assert issubclass(module, torch.nn.Module)
    assert module.__name__ in nn.__all__
    assert pickle.loads(pickle.dumps(module)) is module
    assert "Formula:" in module.__doc__


OWN = [case for case in LOSSES if case.function is None and not case.of_torch]


@pytest.mark.parametrize("case", OWN, ids=str)
def test_modules_of_this_package(case: Case) -> None:
    """A loss that torch does not have: options to the module, arrays to its forward pass."""
    own = getattr(nn, nn.class_name(case.name))
    assert not of_torch(own)
    example = of_elements(case)
    generator = torch.Generator().manual_seed(0)
    arrays = {
        "weight": torch.rand(4, 5, generator=generator),
        "where": torch.rand(4, 5, generator=generator) < 0.5,
    }
    for reduction in REDUCTIONS:
        options = case.parameters | {"reduction": reduction}
        expected = example.results(case.loss, **arrays, **options)
        for module in twice(own(**options)):
            assert not module.state_dict()
            shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
            assert repr(module) == f"{own.__name__}({shown})"
            torch.testing.assert_close(example.results(module, **arrays), expected)
    torch.testing.assert_close(example.results(own()), example.results(case.loss))
    parameters = dict(inspect.signature(case.loss).parameters)
    del parameters["scale"]
    of_init, of_forward = (dict(inspect.signature(part).parameters) for part in (own, own.forward))
    assert of_forward.pop("self")
    assert {**of_init, **of_forward} == parameters
    assert list(of_forward) == [*list(parameters)[: len(example.operands)], "weight", "where"]
    for given in ({"colour": 1}, {"weight": arrays["weight"]}):
        with pytest.raises(TypeError, match=rf"{own.__name__} takes \(.*'{next(iter(given))}'"):
            own(**given)


OF_ALL = [*OF_MODULES, *map(of_elements, OWN)]


def test_examples_have_every_module() -> None:
    assert {nn.class_name(example.name) for example in OF_ALL} == {*nn.__all__} - {"functional"}


@pytest.mark.parametrize(("example", "are_default"), covering(2, OF_ALL, (False, True)))
def test_modules_that_are_made_where_they_are_compiled(example: Example, are_default: bool) -> None:
    """With options, buffers among them, and without; called by position and by name."""
    module = getattr(nn, nn.class_name(example.name))
    options = {} if are_default else example.options | {"reduction": "sum"}
    names = list(inspect.signature(module.forward).parameters)[1:]

    def by_position(*operands: torch.Tensor, **options: Any) -> torch.Tensor:
        return module(**options)(*operands)

    def by_name(*operands: torch.Tensor, **options: Any) -> torch.Tensor:
        return module(**options)(**dict(zip(names, operands, strict=False)))

    expected = example.results(module(**options))
    for function in (by_position, by_name):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        got = example.results(compiled, **options)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def weighted_rows(
    input: Any,
    target: Any,
    margin: float = 1.0,
    *,
    weight: Any = None,
    reduction: Reduction = "mean",
) -> Any:
    """A loss of rows that torch might not have."""
    return cupy_losses.multi_margin_loss(
        input, target, margin=margin, weight=weight, reduction=reduction
    )


def test_a_weight_of_classes_is_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no mask, the weight is of classes."""
    monkeypatch.setattr(F, "weighted_rows", weighted_rows, raising=False)
    module_type = nn.module_of("weighted_rows", "WeightedRowsLoss")
    input, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    weight = torch.tensor([1.0, 2.0, 3.0])
    module = module_type(0.5, weight=weight)
    assert repr(module) == "WeightedRowsLoss(margin=0.5, reduction='mean')"
    assert list(module.state_dict()) == ["weight"]
    expected = weighted_rows(input, target, 0.5, weight=weight)
    torch.testing.assert_close(module(input, target), expected)
    assert not module_type().state_dict()
    torch.testing.assert_close(module_type()(input, target), weighted_rows(input, target))


def test_arguments_of_this_package_alone() -> None:
    """The function is named, and where the argument is one."""
    logits, classes = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(
        TypeError,
        match=r"^cross_entropy\(\) .*'z_loss': z_loss is .* of cupy_losses.cross_entropy$",
    ):
        F.cross_entropy(logits, classes, z_loss=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^cross_entropy\(\) got an unexpected .*'loss_z'$"):
        F.cross_entropy(logits, classes, loss_z=1.0)  # type: ignore[call-arg]


def test_the_rest_of_torch_is_named() -> None:
    """Other attributes are absent, as `hasattr` and `inspect` expect."""
    with pytest.raises(AttributeError, match="has losses alone, and Linear is torch.nn.Linear"):
        getattr(nn, "Linear")  # noqa: B009  for type checkers it is absent
    with pytest.raises(AttributeError, match="not have this loss: CTCLoss is torch.nn.CTCLoss"):
        getattr(nn, "CTCLoss")  # noqa: B009
    with pytest.raises(AttributeError, match=r"loss: ctc_loss is torch.nn.functional.ctc_loss"):
        getattr(F, "ctc_loss")  # noqa: B009
    with pytest.raises(AttributeError, match=r"alone, and relu is torch.nn.functional.relu"):
        getattr(F, "relu")  # noqa: B009
    with pytest.raises(AttributeError, match="module 'cupy_losses.nn' has no attribute 'MSELos'"):
        getattr(nn, "MSELos")  # noqa: B009
    assert not hasattr(nn, "Linear")
    assert not hasattr(F, "__wrapped__")
    assert inspect.getmodule(nn.MSELoss) is nn

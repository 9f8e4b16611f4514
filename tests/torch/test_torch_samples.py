"""torch's own tests of its losses: their samples, errors and references, with our losses.

torch ships them in `torch.testing._internal`: of functions in OpInfo, of modules in ModuleInfo, and
a list of either. What differs is in `DEVIATIONS`, and must differ; see docs/deviations.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import cupy_losses
import cupy_losses.nn.functional as F
from cupy_losses import nn

from ..tools.levels import case
from ..tools.requirements import missing
from .test_nn import NAMES

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides",
    "ignore:Using a target size",
    "ignore:.*is broadcast",
    # From numba-cuda, which torch imports with its samples where it is installed.
    "ignore:The 'generic' unit for NumPy timedelta",
)

Tensor = torch.Tensor
LOW = (torch.float32, torch.bfloat16, torch.float16)
MODULES = [name for name in nn.__all__ if hasattr(torch.nn, name) and name != "functional"]
# torch has samples of the function alone.
WITHOUT_MODULE_SAMPLES = {"TripletMarginLoss", "TripletMarginWithDistanceLoss"}

# Of others torch has no samples of bad arguments.
WITH_BAD_SAMPLES = [
    "huber_loss",
    "l1_loss",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "gaussian_nll_loss",
    "poisson_nll_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


class Sample(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def map(self, function: Callable[[Tensor], Tensor]) -> Sample:
        """The same with other tensors."""
        mapped: Sample = tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, self)
        return mapped

    @property
    def leaves(self) -> list[Tensor]:
        """What is differentiated by."""
        return [x for x in tree_leaves(self) if isinstance(x, Tensor) and x.requires_grad]

    def __str__(self) -> str:
        shown = self.map(lambda x: f"{x.dtype}{[*x.shape]}")  # type: ignore[arg-type, return-value]
        return f"{shown.args} {shown.kwargs}"


class Deviation(NamedTuple):
    """Samples of a loss of which torch has another result.

    Attributes:
        loss: The name of the loss.
        applies: Whether a sample is one of them.
        without: The sample without what makes it one.
        dtypes: Of which torch has such samples.

    """

    loss: str
    applies: Callable[[Sample], bool]
    without: Callable[[Sample], Sample]
    dtypes: tuple[torch.dtype, ...] = (torch.float64, *LOW)


def detached(number: int) -> Callable[[Sample], Sample]:
    """Samples without a gradient by an argument."""
    return lambda s: s._replace(args=(*s.args[:number], s.args[number].detach()))


DEVIATIONS = (
    # From the formula it is 0; torch has None.
    Deviation("hinge_embedding_loss", lambda s: s.args[1].requires_grad, detached(1)),
    # What is masked is not differentiated; torch has NaN where the target is 0.
    Deviation(
        "poisson_nll_loss",
        lambda s: s.kwargs.get("full", False) and bool((s.args[1] == 0).any()),
        detached(1),
        (torch.bfloat16,),
    ),
)


@functools.cache
def databases() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """What torch has of functions, of modules, and of either; imported here, as it takes long."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_nn import get_new_module_tests
    except ModuleNotFoundError as error:
        missing(f"torch's own tests need expecttest, which the extra test brings: {error}")
    operators = {op.name.rpartition(".")[2]: op for op in op_db if op.name.startswith("nn.")}
    modules = {module.name.rpartition(".")[2]: module for module in module_db}
    return operators, modules, get_new_module_tests()


def samples_of(name: str, dtype: torch.dtype = torch.float64) -> list[Sample]:
    """torch's samples of a function."""
    torch.manual_seed(0)
    found = databases()[0][name].sample_inputs("cpu", dtype, requires_grad=True)
    return [Sample((s.input, *s.args), dict(s.kwargs)) for s in found]


def bad_samples_of(name: str) -> list[Sample]:
    """Those of which it raises."""
    operator = databases()[0][name]
    if operator.error_inputs_func is None:
        return []
    found = [error.sample_input for error in operator.error_inputs("cpu")]
    return [Sample((s.input, *s.args), dict(s.kwargs)) for s in found]


def results(function: Callable[..., Tensor], sample: Sample) -> list[Tensor | None]:
    """The value, and its gradients, None where there is none."""
    value = function(*sample.args, **sample.kwargs)
    if not value.requires_grad:
        return [value]
    grad_output = torch.linspace(1, 2, value.numel(), dtype=value.dtype).view_as(value)
    gradients = torch.autograd.grad(value, sample.leaves, grad_output, allow_unused=True)
    return [value.detach(), *gradients]


def outcome(function: Callable[..., Tensor], sample: Sample) -> Any:
    """The results, or the error."""
    try:
        return results(function, sample)
    except Exception as error:
        return type(error), str(error)


Outcomes = tuple[Any, Any]


def agree(outcomes: Outcomes) -> bool:
    """Whether two outcomes are the same results."""
    try:
        torch.testing.assert_close(*outcomes, equal_nan=True)
    except (AssertionError, TypeError):
        return False
    return True


def are_rounded(outcomes: Outcomes) -> bool:
    """Whether results are others, of float64, rounded."""
    got, exact = outcomes
    if [isinstance(x, Tensor) for x in got] != [isinstance(x, Tensor) for x in exact]:
        return False
    for x, y in zip(got, exact, strict=True):
        if x is None:
            continue
        precision, rounded = torch.finfo(x.dtype).eps, y.to(x.dtype)
        size = float(rounded[rounded.isfinite()].abs().max()) if rounded.numel() else 0.0
        tolerances = {"rtol": 4 * precision, "atol": 2 * precision * size}
        if not torch.allclose(x, rounded, equal_nan=True, **tolerances):
            return False
    return True


def check(
    name: str,
    dtype: torch.dtype,
    both: Callable[[Sample], Outcomes],
    is_right: Callable[[Outcomes], bool],
) -> None:
    """All samples are right but those that deviate, which are right without what makes them."""
    deviated = set()
    for sample in samples_of(name, dtype):
        given = sample
        for deviation in DEVIATIONS:
            if deviation.loss == name and deviation.applies(sample):
                assert not is_right(both(sample)), sample
                deviated.add(deviation)
                given = deviation.without(sample)
        assert is_right(both(given)), given
    assert deviated == {d for d in DEVIATIONS if d.loss == name and dtype in d.dtypes}


def test_torch_has_samples_of_every_loss() -> None:
    operators, modules, _ = databases()
    assert set(NAMES) <= set(operators)
    assert set(MODULES) - set(modules) == WITHOUT_MODULE_SAMPLES


@pytest.mark.parametrize("name", NAMES)
def test_functions(name: str) -> None:
    """Values and gradients, of float64."""
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)
    check(name, torch.float64, lambda s: (outcome(ours, s), results(theirs, s)), agree)


@pytest.mark.parametrize("name", WITH_BAD_SAMPLES)
def test_errors(name: str) -> None:
    """Bad arguments are errors here too."""
    samples = bad_samples_of(name)
    assert samples
    for sample in samples:
        with pytest.raises((TypeError, ValueError)):
            getattr(F, name)(*sample.args, **sample.kwargs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    """torch's dtypes and shapes, with the values and gradients of float64, rounded."""
    operator = databases()[0][name]
    ours, theirs = getattr(F, name), getattr(torch.nn.functional, name)

    def both(sample: Sample) -> Outcomes:
        return outcome(ours, sample), results(theirs, sample.map(widened))

    check(name, dtype, both, are_rounded)
    if dtype not in operator.supported_dtypes("cpu"):
        return  # there are torch's results of float64 alone
    for sample in samples_of(name, dtype):
        got, expected = outcome(ours, sample), theirs(*sample.args, **sample.kwargs)
        if isinstance(got, list):
            assert (got[0].dtype, got[0].shape) == (expected.dtype, expected.shape), sample


def widened(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def without_deviation(name: str, sample: Sample) -> Sample:
    for deviation in DEVIATIONS:
        if deviation.loss == name and deviation.applies(sample):
            return deviation.without(sample)
    return sample


@pytest.mark.parametrize(
    ("name", "count"),
    [
        case(name, count, default=count == 1 and k % 2 == 0, id=f"{name}-{count}")
        for k, name in enumerate(NAMES)
        for count in (1, 4)
    ],
)
def test_second_derivatives(name: str, count: int) -> None:
    """Of torch's smallest samples, by finite differences."""
    samples = [without_deviation(name, sample) for sample in samples_of(name)]
    for sample in sorted(samples, key=lambda s: sum(x.numel() for x in s.leaves))[:count]:
        assert sample.leaves
        check_second_derivatives(getattr(F, name), sample)


def check_second_derivatives(function: Callable[..., Tensor], sample: Sample) -> None:
    places = [x for x in tree_leaves(sample) if isinstance(x, Tensor)]

    def of_leaves(*leaves: Tensor) -> Tensor:
        given = dict(zip(map(id, sample.leaves), leaves, strict=True))
        replaced = sample.map(lambda x: given.get(id(x), x))
        return function(*replaced.args, **replaced.kwargs)

    assert len({*map(id, places)}) == len(places)
    assert torch.autograd.gradgradcheck(of_leaves, sample.leaves)


@pytest.mark.parametrize(
    "name",
    [
        case(name, default=name != "CrossEntropyLoss", id=name)  # which has a hundred samples
        for name in MODULES
        if name not in WITHOUT_MODULE_SAMPLES
    ],
)
def test_modules(name: str) -> None:
    """torch's results, and those of torch's reference functions."""
    for constructor, sample, reference in module_samples(name):
        ours, theirs = (
            getattr(library, name)(*constructor.args, **constructor.kwargs).double()
            for library in (nn, torch.nn)
        )
        got = results(ours, sample)
        assert agree((got, results(theirs, sample))), (constructor, sample)
        if reference is not None:
            plain = sample.map(Tensor.detach)
            assert agree((got[0], reference(theirs, *plain.args, **plain.kwargs))), sample


def module_samples(name: str) -> Iterator[tuple[Sample, Sample, Any]]:
    """torch's arguments of a module, of its forward pass, and what must come."""
    info = databases()[1][name]
    torch.manual_seed(0)
    for given in info.module_inputs_func(
        info, "cpu", torch.float64, requires_grad=True, training=True
    ):
        constructor = Sample(given.constructor_input.args, given.constructor_input.kwargs)
        forward = Sample(given.forward_input.args, given.forward_input.kwargs)
        yield constructor, forward, given.reference_fn


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("name", [case(x, default=k % 3 == 0, id=x) for k, x in enumerate(NAMES)])
def test_accelerated_functions(name: str) -> None:
    """Where torch has another result, it computes: there are no deviations, of errors neither."""
    function = getattr(torch.nn.functional, name)
    for sample in [*samples_of(name), *bad_samples_of(name)]:
        expected = outcome(function, sample)
        with cupy_losses.accelerate():
            got = outcome(function, sample)
        assert agree((got, expected)) or got == expected, sample


def list_of_losses() -> list[dict[str, Any]]:
    """The entries of the list that are losses: functions of one tensor, with their references."""
    named = [(entry, entry.get("fullname", "").lower()) for entry in databases()[2]]
    losses = [entry for entry, name in named if "loss" in name or "bce" in name]
    return [entry for entry in losses if {"input_fn", "reference_fn"} <= set(entry)]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_accelerated_list() -> None:
    """As the references have it; nearly all computed by this package."""
    losses, computed = list_of_losses(), 0
    torch.manual_seed(0)
    for entry in losses:
        function, input = entry["constructor"](), entry["input_fn"]()
        if input.is_complex():
            continue
        input = input.double()
        with cupy_losses.accelerate() as acceleration:
            value = function(input)
        computed += acceleration.report().ours
        torch.testing.assert_close(value, entry["reference_fn"](input, None, function))
    assert len(losses) - 5 < computed > 30

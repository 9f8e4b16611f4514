"""NaN in one operand after another: losses and gradients are NaN where torch's are.

On the emulator and on the host. Where torch does not have a loss, or does not differentiate it by
an operand, both have to agree with one another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cupy_losses import cross_entropy, hvp, jvp, mse_loss, value_and_grad

from .. import emulator
from ..emulator import installed
from ..tables.arrays import DTYPES
from ..tables.losses import LOSSES, Case
from ..tables.rows import ROWS, RowCase
from ..tools import levels

pytestmark = pytest.mark.filterwarnings("ignore:.*mean. divides")  # kl_div's

Host = Any
REDUCTIONS = ("none", "mean", "sum")
# Those that choose by comparing: by default they run on the emulator too.
CHOOSING = (
    "hinge_embedding_loss(margin=1",
    "margin_ranking_loss",
    "smooth_l1_loss",
    "poisson_nll_loss(full=1",
    "cosine_embedding_loss(margin=0.25",
    "multi_margin_loss()",
    "triplet_margin_loss(p=1.0, swap=True",
    "triplet_margin_loss(p=2.0, swap=True",
    "triplet_margin_loss(p=inf, swap=False",
)


class Problem(NamedTuple):
    """A loss of operands, some of which are differentiated, and torch's function if it has one."""

    name: str
    loss: Callable[..., Any]
    of_torch: Callable[..., Any] | None
    operands: list[Host]
    wanted: tuple[int, ...]
    options: dict[str, Any]
    of_table: Callable[[list[Host]], Host]  # the losses, of the operands

    def with_nan(self) -> Iterator[Problem]:
        """The same with some NaN in one operand of numbers after another."""
        for k, x in enumerate(self.operands):
            if x.dtype.kind == "f":
                poisoned = x.copy()
                poisoned[([1, 3],) if x.ndim == 1 else ([1, 3], ..., [2, 0])] = np.nan
                yield self._replace(
                    operands=[*self.operands[:k], poisoned, *self.operands[k + 1 :]]
                )


def of_elements(case: Case) -> Problem:
    """A pointwise loss by all operands."""
    operands = case.draw(np.random.default_rng(3), (6, 5), np.float32)
    # torch ends with an error where a probability is NaN.
    has_torch = case.of_torch and case.name != "binary_cross_entropy"
    function = case.torch if has_torch else None
    wanted = tuple(range(len(operands)))
    return Problem(
        str(case),
        case.loss,
        function,
        operands,
        wanted,
        case.parameters,
        lambda operands: case.value(*(x.astype(np.longdouble) for x in operands)),
    )


def of_rows(case: RowCase) -> Problem:
    """A loss over rows."""
    drawn = case.draw(np.random.default_rng(3), (4, 5, 3) if case.classes else (6, 5), np.float32)
    options = case.parameters | {
        name: x for name, x in drawn.items() if name not in case.positional
    }
    operands = [drawn[name] for name in case.positional]
    wanted = tuple(case.positional.index(name) for name in case.differentiable)
    return Problem(
        str(case),
        case.loss,
        case.torch,
        operands,
        wanted,
        options,
        lambda operands: case.value(drawn | dict(zip(case.positional, operands, strict=True))),
    )


def is_nan(x: Any) -> Host:
    """Where numbers are NaN."""
    return np.isnan(np.asarray(x, np.float64))


def ours(problem: Problem, put: Callable[[Host], Any], get: Callable[[Any], Host]) -> list[Host]:
    """Where the losses and the gradients are NaN, on some library."""
    arrays = [put(x) for x in problem.operands]
    options = {k: put(x) if isinstance(x, np.ndarray) else x for k, x in problem.options.items()}
    found = [problem.loss(*arrays, reduction="none", **options)]
    for reduction in ("mean", "sum"):
        function = value_and_grad(problem.loss, problem.wanted)
        value, gradients = function(*arrays, reduction=reduction, **options)
        found += [value, *gradients]
    return [is_nan(get(x)) for x in found]


def theirs(problem: Problem) -> list[Host | None]:
    """The same of torch; None where it does not differentiate."""
    assert problem.of_torch is not None
    leaves = [torch.from_numpy(x.copy()) for x in problem.operands]
    # By their targets torch refuses to differentiate these.
    wanted = [0] if problem.name.startswith("soft_margin") else problem.wanted
    for k in wanted:
        leaves[k].requires_grad_()
    options = {
        k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        for k, x in problem.options.items()
    }
    found: list[Host | None] = [
        is_nan(problem.of_torch(*leaves, reduction="none", **options).detach())
    ]
    for reduction in ("mean", "sum"):
        value = problem.of_torch(*leaves, reduction=reduction, **options)
        slopes = torch.autograd.grad(value, [leaves[k] for k in wanted], allow_unused=True)
        found.append(is_nan(value.detach()))
        found += [None if slope is None else is_nan(slope) for slope in slopes]
        found += [None] * (len(problem.wanted) - len(wanted))
    return found


def as_promised(problem: Problem) -> list[Host | None]:
    """What torch has, but for gradients where docs/deviations.md says that ours are finite."""
    found, target = theirs(problem), problem.operands[1]
    if problem.name.startswith("cross_entropy(") and target.dtype.kind == "i":
        finite = np.expand_dims(target == problem.options.get("ignore_index", -100), 1)
    elif problem.name.startswith("poisson_nll_loss(full=1"):
        finite = target == 0
    else:
        return found
    gradients = (*range(2, 2 + len(problem.wanted)), *range(3 + len(problem.wanted), len(found)))
    return [x & ~finite if k in gradients and x is not None else x for k, x in enumerate(found)]


PROBLEMS = [
    *map(of_elements, LOSSES),
    *(of_rows(case) for case in ROWS if not {"where", "sample_weight"} & set(case.draws)),
]


def check(found: Sequence[Host], expected: Sequence[Host | None]) -> None:
    """Compare."""
    for got, wanted in zip(found, expected, strict=True):
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_on_the_host(problem: Problem) -> None:
    assert problem.wanted
    for poisoned in problem.with_nan():
        found = ours(poisoned, np.asarray, np.asarray)
        if poisoned.of_torch is not None:
            check(found, as_promised(poisoned))
        else:
            np.testing.assert_array_equal(found[0], is_nan(poisoned.of_table(poisoned.operands)))
            assert found[0].any()


@pytest.mark.parametrize(
    "problem",
    [
        levels.case(problem, default=problem.name.startswith(CHOOSING), id=problem.name)
        for problem in PROBLEMS
    ],
)
def test_on_a_device(problem: Problem) -> None:
    emulator.require()
    with installed(seed=1) as device:
        for poisoned in problem.with_nan():
            found = device.together(ours, poisoned, device.asarray, lambda x: x.get())
            check(found, ours(poisoned, np.asarray, np.asarray))
            if poisoned.of_torch is not None:
                check(found, as_promised(poisoned))


@pytest.mark.parametrize("columns", [2, 5, 21, 210])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinite_scores(dtype: str, columns: int) -> None:
    """A row of -inf has no loss; infinite ones of the target and of another class."""
    emulator.require()
    scores = np.zeros((5, columns), DTYPES.get(dtype, np.float32))
    scores[0] = scores[1, 1:] = scores[3, 0] = scores[4, 0] = -np.inf
    scores[2, 0] = scores[4, 1] = np.inf
    target = np.zeros(5, np.int64)
    wide = torch.tensor(scores.astype(np.float64))
    factors = (0.0, 0.0), (0.25, 0.0), (0.0, 0.5)

    def losses(*arrays: Any) -> list[Any]:
        return [
            cross_entropy(*arrays, label_smoothing=smoothing, z_loss=z_loss, reduction="none")
            for smoothing, z_loss in factors
        ]

    with installed(seed=1) as device:
        results = device.together(losses, device.asarray(scores), device.asarray(target))
    for (smoothing, z_loss), result in zip(factors, results, strict=True):
        options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": "none"}
        expected = F.cross_entropy(wide, torch.tensor(target), **options).numpy()
        found = result.get()
        if z_loss:
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        else:
            np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("columns", levels.first([5, 21, 210]))
@pytest.mark.parametrize("dtype", levels.first(["float32", "bfloat16"]))
def test_tangents_of_infinite_losses(dtype: str, columns: int) -> None:
    """They are finite where a class that counts is impossible: what is constant has no slope."""
    emulator.require()
    rng = np.random.default_rng(17)
    scores, along = rng.standard_normal((2, 5, columns)).astype(DTYPES[dtype])
    scores[::2, 1] = -np.inf
    classes = rng.integers(2, columns, 5)
    probabilities = rng.dirichlet(np.ones(columns), 5).astype(DTYPES[dtype])
    weight = rng.uniform(0.5, 2, columns).astype(DTYPES[dtype])
    wide, tangent = (torch.tensor(x.astype(np.float64)) for x in (scores, along))
    weights = torch.tensor(weight.astype(np.float64))
    for target, smoothing in (classes, 0.25), (probabilities, 0.0), (probabilities, 0.25):
        y = torch.tensor(target if target is classes else target.astype(np.float64))
        options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": "none"}
        loss = functools.partial(F.cross_entropy, target=y, weight=weights, **options)
        expected = [x.numpy() for x in torch.func.jvp(loss, (wide,), (tangent,))]
        assert np.isinf(expected[0][::2]).all()
        with installed(seed=1) as device:
            arrays = [device.asarray(x) for x in (scores, target, weight, along)]
            loss = functools.partial(cross_entropy, weight=arrays[2], **options)
            found = [x.get() for x in device.together(jvp, loss, arrays[:2], (arrays[3], None))]
        on_host = functools.partial(cross_entropy, weight=weight, **options)
        for results in found, jvp(on_host, (scores, target), (along, None)):
            for result, wanted in zip(results, expected, strict=True):
                unit = float(np.finfo(np.float32).eps) if dtype == "float32" else 2.0**-8
                got = result.astype(np.float64)
                np.testing.assert_allclose(got, wanted, rtol=8 * unit, atol=8 * unit)


@pytest.mark.parametrize("columns", levels.first([5, 21, 210]))
@pytest.mark.parametrize("smoothing", levels.first([0.25, 0.0]))
def test_tangents_of_probabilities(smoothing: float, columns: int) -> None:
    """A derivative along one is NaN only where the formula has the NaN, as in torch."""
    emulator.require()
    rng = np.random.default_rng(19)
    scores, along = rng.standard_normal((2, 5, columns)).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(columns), 5).astype(np.float32)
    weight = rng.uniform(0.5, 2, columns).astype(np.float32)
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": "sum"}
    wide = torch.tensor(weight.astype(np.float64))
    of_torch = functools.partial(F.cross_entropy, weight=wide, **options)

    def derivatives(operands: list[Host], along: Host, weight: Host) -> list[Any]:
        loss = functools.partial(cross_entropy, weight=weight, **options)
        found = [hvp(loss, operands, (None, along), argnum) for argnum in (0, 1)]
        return [*found, jvp(loss, operands, (None, along))[1]]

    for poisoned in (0, 1):
        operands = [scores.copy(), probabilities.copy()]
        operands[poisoned][::2, 3] = np.nan
        x, y, tangent = (torch.tensor(z.astype(np.float64)) for z in (*operands, along))
        functions = [functools.partial(torch.func.grad(of_torch, argnum), x) for argnum in (0, 1)]
        functions.append(functools.partial(of_torch, x))
        expected = [torch.func.jvp(f, (y,), (tangent,))[1].numpy() for f in functions]
        assert [bool(np.isnan(z).any()) for z in expected] == [poisoned == 0, False, poisoned == 0]
        with installed(seed=1) as device:
            arrays = [device.asarray(z) for z in (*operands, along, weight)]
            found = [z.get() for z in device.together(derivatives, arrays[:2], *arrays[2:])]
        for results in found, derivatives(operands, along, weight):
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, wanted, rtol=2e-6, atol=2e-6)


def test_second_derivatives_of_operands_that_are_not_finite() -> None:
    """As the documents say: NaN on a device, and on the host what does not depend on them."""
    x, along = np.array([np.inf, np.nan, 1.0], np.float32), np.ones(3, np.float32)
    target = np.zeros(3, np.float32)
    on_host = hvp(mse_loss, (x, target), (along, None), reduction="sum")
    np.testing.assert_array_equal(on_host, [2.0, 2.0, 2.0])
    with installed(seed=1) as device:
        arrays = device.asarray(x), device.asarray(target)
        found = hvp(mse_loss, arrays, (device.asarray(along), None), reduction="sum").get()
    np.testing.assert_array_equal(found, [np.nan, np.nan, 2.0])

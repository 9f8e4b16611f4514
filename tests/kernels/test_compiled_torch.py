"""The launches of a step that torch.compile has compiled, beside those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from cupy_losses import cross_entropy, mse_loss, multi_margin_loss, nll_loss
from cupy_losses._api.public import prepare_of
from cupy_losses._libraries import registry
from cupy_losses._libraries.torch import TorchCpu
from cupy_losses._torch import autograd

from .. import emulator
from ..emulator import installed
from ..tools.levels import covering
from .test_anticipation_torch import Emulated

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
Tensor = torch.Tensor
COLUMNS = 16


class Case(NamedTuple):
    """A loss of rows or elements, and what says how much each of these counts."""

    loss: Callable[..., Any]
    options: Callable[[int], dict[str, Tensor]]  # of so many rows
    compiled: int = 2  # how many launches a compiled step has


CASES = {
    "ignored rows": Case(cross_entropy, lambda n: {}),
    "ignored rows of nll_loss": Case(nll_loss, lambda n: {}),
    "a mask of rows": Case(cross_entropy, lambda n: {"where": torch.ones(n) > 0}),
    "a mask of rows that has none": Case(multi_margin_loss, lambda n: {"where": torch.ones(n) > 0}),
    "a mask of elements": Case(mse_loss, lambda n: {"where": torch.ones(n, COLUMNS) > 0}),
    # The order of a sum of weights matters: the derivatives have their own, as in eager mode.
    "weights of rows": Case(cross_entropy, lambda n: {"sample_weight": torch.ones(n)}, compiled=3),
    "weights of classes": Case(
        cross_entropy, lambda n: {"weight": torch.ones(COLUMNS)}, compiled=3
    ),
    "weights of elements": Case(mse_loss, lambda n: {"weight": torch.ones(n, COLUMNS)}, compiled=3),
    "a number that is known": Case(mse_loss, lambda n: {}),
}


@pytest.mark.parametrize(("name", "rows"), covering(2, CASES, ((1 << 14) - 1, (1 << 14) + 1)))
def test_a_compiled_step_has_no_more_launches(name: str, rows: int) -> None:
    """On both sides of the number of elements from which eager mode counts rows ahead."""
    emulator.require()
    case = CASES[name]
    input = torch.zeros(rows, COLUMNS, requires_grad=True)
    target = torch.zeros(rows, COLUMNS) if case.loss is mse_loss else torch.zeros(rows).long()
    options = case.options(rows)
    launches = []
    torch._dynamo.reset()
    with installed(run_kernels=False) as device:
        library = Emulated(device)
        registry._instances[TorchCpu] = library

        def eager(input: Tensor, target: Tensor) -> Tensor:
            call, operands = prepare_of(case.loss)(input, target, **options)
            return autograd.evaluate(library, call, operands)

        def loss(input: Tensor, target: Tensor) -> Any:
            return case.loss(input, target, **options)

        for step in eager, torch.compile(loss, fullgraph=True, backend="aot_eager"):
            value = step(input, target)
            torch.autograd.grad(value, input, torch.ones(()))
            launches.append(len(device.launches))
            device.launches.clear()
    assert launches[1] == case.compiled <= launches[0]

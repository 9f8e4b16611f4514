"""torch.autocast: result dtypes, and operands that are read as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cupy_losses import cross_entropy
from cupy_losses._libraries.numpy import on_host
from cupy_losses.nn import functional

from ..tables.examples import Example
from ..tools.levels import covering
from .modes import EXAMPLES, Given, differentiable
from .test_nn import EXAMPLES as OF_TORCH

pytestmark = pytest.mark.filterwarnings("ignore:reduction.*mean. divides", "ignore:Using a target")
# In torch a composition of operations of half precision on the CPU.
HALF_IN_TORCH = {
    "gaussian_nll_loss",
    "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
}


def halved(value: Any, dtype: torch.dtype) -> Any:
    """A tensor in a dtype; indices and what is no tensor as they are."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value


@pytest.mark.parametrize(
    ("example", "dtype"), covering(2, EXAMPLES, (torch.float16, torch.bfloat16))
)
def test_no_copies(example: Example, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A float32 loss of the tensors as they are: none of them is copied."""
    read: list[Any] = []

    def watched(call: Any, request: Any, arrays: Any, autocast: bool) -> Any:
        read.append([array.ctypes.data for array in arrays[request.extra :]])
        return on_host(call, request, arrays, autocast)

    monkeypatch.setattr("cupy_losses._libraries.torch.on_host", watched)
    given = Given(example, "mean")
    tensors = [halved(t.detach(), dtype) for t in differentiable(given)]
    pairs = zip(tensors, example.operands, strict=False)
    leaves = [t.requires_grad_() for t, of in pairs if of.requires_grad]
    with torch.autocast("cpu", torch.bfloat16):
        value = given.loss(*tensors)
    gradients = torch.autograd.grad(3.0 * value, leaves)
    assert value.dtype == torch.float32
    assert [g.dtype for g in gradients] == [dtype] * len(leaves)
    mine = {t.data_ptr() for t in tensors}
    assert len(read) == 2  # forward, and backward for another grad_output than 1
    assert all(address in mine for addresses in read for address in addresses)
    without = given.loss(*tensors)
    assert without.dtype == dtype
    torch.testing.assert_close(without, value.to(dtype))


@pytest.mark.parametrize("example", OF_TORCH, ids=str)
def test_result_dtypes(example: Example) -> None:
    """They are torch's, but where torch leaves a loss in half precision."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        operands = [halved(x.detach(), dtype) for x in example.operands]
        options = {k: halved(o, dtype) for k, o in example.options.items()}
        with torch.autocast("cpu", torch.bfloat16):
            got = getattr(functional, example.name)(*operands, **options).dtype
            expected = getattr(F, example.name)(*operands, **options).dtype
        weighted = "weight" in options and example.name in ("l1_loss", "mse_loss")
        own = example.options.get("distance_function") is not None
        if dtype == torch.bfloat16 and (weighted or own or example.name in HALF_IN_TORCH):
            assert (got, expected) == (torch.float32, torch.bfloat16)
        else:
            assert got == expected


class _Autocast(torch.nn.Module):
    """A program that switches autocast on, and off again inside."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[Any, Any]:
        with torch.autocast("cpu", torch.bfloat16):
            scores = x @ torch.eye(4)
            loss = cross_entropy(scores, target)
            with torch.autocast("cpu", enabled=False):
                return loss, cross_entropy(scores, target)


@pytest.mark.parametrize("strict", [False, True])
def test_autocast_in_an_exported_program(strict: bool) -> None:
    """A strict export records autocast as operations, while the state of torch stays as it was."""
    x, target = torch.linspace(-2, 3, 12).reshape(3, 4), torch.tensor([0, 1, 2])
    program = torch.export.export(_Autocast(), (x, target), strict=strict).module()
    for found, eager in zip(program(x, target), _Autocast()(x, target), strict=True):
        assert found.dtype == eager.dtype
        assert torch.equal(found, eager)

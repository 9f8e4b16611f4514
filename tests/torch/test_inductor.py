"""The code that torch.compile generates for the losses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.exc import InductorError
from torch._inductor.utils import run_and_get_code

import cupy_losses
from cupy_losses import cross_entropy, mse_loss

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
Loss = Callable[..., Tensor]
AT_ONCE = "cupy_losses_evaluate("
BY_DISPATCHER = "torch.ops.cupy_losses.evaluate"


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def values(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x, y = torch.randn(2, count, 5, generator=generator)
    return x.requires_grad_(), y


def logits(count: int = 6) -> tuple[Tensor, Tensor]:
    x, _ = values(count)
    return x, torch.arange(count) % 5


def step(loss: Loss, x: Tensor, target: Tensor) -> list[Tensor]:
    value = loss(x, target)
    return [value.detach(), *torch.autograd.grad(value, x)]


def assert_as_eager(loss: Loss, compiled: Loss, x: Tensor, target: Tensor) -> None:
    for got, expected in zip(step(compiled, x, target), step(loss, x, target), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()


def calls(codes: list[str], text: str) -> int:
    """How many lines of generated code call what a text names."""
    return sum(f"= {text}" in line for code in codes for line in code.splitlines())


@pytest.mark.parametrize(("loss", "make"), [(mse_loss, values), (cross_entropy, logits)])
def test_the_loss_is_called_at_once(loss: Loss, make: Callable[[], Any]) -> None:
    """Once for the loss and once for its gradient, with the bits of eager mode."""
    compiled = torch.compile(loss, fullgraph=True)
    _, codes = run_and_get_code(step, compiled, *make())
    assert calls(codes, AT_ONCE) == 2
    assert calls(codes, BY_DISPATCHER) == 0
    assert_as_eager(loss, compiled, *make())


def test_open_shapes() -> None:
    """No layout is part of the code."""
    compiled = torch.compile(mse_loss, fullgraph=True, dynamic=True)
    _, codes = run_and_get_code(step, compiled, *values())
    assert calls(codes, AT_ONCE) == 2
    assert "float32" not in "".join(line for code in codes for line in code if AT_ONCE in line)
    for count in (6, 3, 8):
        assert_as_eager(mse_loss, compiled, *values(count))


@pytest.mark.exhaustive
def test_operands_that_are_computed() -> None:
    """Beside what the compiler fuses, in other memory orders too."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return 3 * mse_loss(x.exp().t(), y.t() + 1).sqrt()

    compiled = torch.compile(loss, fullgraph=True)
    x, y = values()
    for got, expected in zip(step(compiled, x, y), step(loss, x, y), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_and_autocast(dtype: torch.dtype) -> None:
    """Code of one dtype and mode is not that of another."""
    compiled = torch.compile(mse_loss, fullgraph=True)
    x, y = (t.detach().to(dtype) for t in values())
    for enabled in (False, True, False):
        with torch.autocast("cpu", enabled=enabled):
            got, expected = compiled(x, y), mse_loss(x, y)
        assert torch.equal(got, expected)
        assert got.dtype == expected.dtype


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_a_library_in_cpp(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return mse_loss(x, y)

    exported = torch.export.export(Module(), (torch.ones(3), torch.zeros(3)))
    file = str(tmp_path / "mse.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=file)
    program = torch._inductor.aoti_load_package(file)
    assert program(torch.full((3,), 2.0), torch.zeros(3)) == 4


def test_code_in_cpp() -> None:
    """torch itself would end the process."""
    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.raises(InductorError, match="leave out cpp_wrapper"),
    ):
        torch.compile(mse_loss, fullgraph=True)(*values())


KEPT = """
import sys
import torch, cupy_losses
from torch._dynamo.utils import counters
x = torch.full((3,), 2.0, requires_grad=True)
torch.compile(cupy_losses.mse_loss, fullgraph=True)(x, torch.zeros(3)).backward()
assert torch.equal(x.grad, torch.full((3,), 4 / 3))
found = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
assert bool(found) == (sys.argv[1] == "second"), counters
"""


@pytest.mark.exhaustive
def test_code_on_disk_serves_another_process() -> None:
    for number in ("first", "second"):
        subprocess.run([sys.executable, "-c", KEPT, number], check=True)


@pytest.mark.exhaustive
def test_accelerated_losses(evaluations: list[str], on_gpu: None) -> None:
    compiled = torch.compile(torch.nn.functional.mse_loss, fullgraph=True)
    with cupy_losses.accelerate():
        _, codes = run_and_get_code(step, compiled, *values())
    assert calls(codes, AT_ONCE) == 2
    assert evaluations == ["mse_loss"] * 2


@pytest.mark.exhaustive
def test_a_loss_that_is_compiled_twice(evaluations: list[str]) -> None:
    """Two calls in one graph are two, also where their text is one."""
    compiled = torch.compile(lambda x, y: mse_loss(x, y) + mse_loss(x, y + 1), fullgraph=True)
    x, y = values()
    got = compiled(x.detach(), y)
    assert evaluations == ["mse_loss"] * 2
    torch.testing.assert_close(got, mse_loss(x, y) + mse_loss(x, y + 1))

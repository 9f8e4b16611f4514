"""`cupy_losses.accelerate` on a GPU: what is computed where, without a wait, and how fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cupy_losses
from cupy_losses._acceleration import rules
from cupy_losses._acceleration.switch import Acceleration

from ..tables.examples import Example
from ..torch.test_accelerate import EXAMPLES
from .waiting import without_waiting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:reduction.*mean. divides"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

F: Any = torch.nn.functional
ROOT = Path(cupy_losses.__file__).parents[1]
# All but what is left to torch: a distance of one's own, and p=0, of which torch has no gradient.
TAKEN = [
    x for x in EXAMPLES if x.options.get("distance_function") is None and x.options.get("p") != 0
]


def on_gpu(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().cuda().requires_grad_(x.requires_grad)


def moved(example: Example) -> Example:
    options = {name: on_gpu(x) for name, x in example.options.items()}
    return Example(example.name, [on_gpu(x) for x in example.operands], options)


def assert_all_ours(acceleration: Acceleration) -> None:
    report = acceleration.report()
    assert report.calls > 0
    assert [line for line in report.lines if line.reason] == []


@pytest.mark.parametrize("example", TAKEN, ids=str)
def test_functions(example: Example) -> None:
    """torch's values and gradients on the CPU: on a GPU, a gradient of torch's is wrong."""
    function = getattr(F, example.name)
    expected = [x.cuda() for x in example.results(function, **example.options)]
    example = moved(example)
    with cupy_losses.accelerate() as acceleration:
        got = example.results(function, **example.options)
    torch.testing.assert_close(got, expected)
    assert_all_ours(acceleration)


@pytest.mark.parametrize("example", TAKEN, ids=str)
def test_nothing_waits_for_the_gpu(example: Example) -> None:
    """Neither the first call with such tensors, which decides and compiles, nor the next ones."""
    example = moved(example)
    function = getattr(F, example.name)
    with cupy_losses.accelerate() as acceleration:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(2):
                function(*example.operands, **example.options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with without_waiting(1_000_000_000):
            function(*example.operands, **example.options)
    assert_all_ours(acceleration)


def test_autocast() -> None:
    """Half precision beside float32, as mixed-precision training has it."""
    torch.manual_seed(0)
    logits = torch.randn(64, 10, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    classes, weight = torch.arange(64, device="cuda") % 10, torch.rand(10, device="cuda")
    values = torch.rand(64, 10, device="cuda")

    def results() -> list[torch.Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            losses = (
                F.cross_entropy(logits, classes, weight),
                F.binary_cross_entropy_with_logits(logits, values),
                F.mse_loss(logits, values),
            )
        # Of each loss: in a sum of several, rounded in turn, an element may almost vanish.
        return [*losses, *(torch.autograd.grad(loss, logits)[0] for loss in losses)]

    expected = results()
    with cupy_losses.accelerate() as acceleration:
        torch.testing.assert_close(results(), expected, rtol=1e-2, atol=1e-4)
    assert_all_ours(acceleration)


def test_a_cpu_tensor_beside_cuda_tensors() -> None:
    """A weight of shape () may be on the CPU for torch, where it multiplies."""
    x = torch.rand(4, 3, device="cuda")
    weight = torch.tensor(2.0)
    expected = F.binary_cross_entropy_with_logits(x, x, weight=weight)
    with cupy_losses.accelerate() as acceleration:
        got = F.binary_cross_entropy_with_logits(x, x, weight=weight)
    torch.testing.assert_close(got, expected)
    assert [line.reason for line in acceleration.report().lines] == [rules.DEVICE]


def test_in_a_cuda_graph() -> None:
    x, y = (torch.rand(1000, device="cuda") for _ in range(2))
    with cupy_losses.accelerate() as acceleration:
        F.mse_loss(x, y)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = F.mse_loss(x, y)
        x.zero_()
        graph.replay()
    torch.testing.assert_close(loss, F.mse_loss(x, y))
    assert_all_ours(acceleration)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("example", TAKEN[::5], ids=str)
def test_compiled(example: Example, backend: str) -> None:
    """Values and gradients of a compiled step, by the operator."""
    function = getattr(F, example.name)
    expected = [x.cuda() for x in example.results(function, **example.options)]
    example = moved(example)

    def loss(*operands: Any) -> Any:
        return function(*operands, **example.options)

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    with cupy_losses.accelerate() as acceleration:
        for _ in range(2):
            torch.testing.assert_close(example.results(compiled), expected)
    assert_all_ours(acceleration)
    assert (acceleration.report().calls, acceleration.report().lines[0].traced) == (1, True)


def test_a_transform_does_not_wait_for_the_gpu() -> None:
    x, y = torch.rand(2, 50, 300, device="cuda")
    transformed = torch.func.vmap(torch.func.grad(F.mse_loss))
    expected = transformed(x, y)
    with cupy_losses.accelerate() as acceleration:
        transformed(x, y)  # compiles
        with without_waiting():
            got = transformed(x, y)
    torch.testing.assert_close(got, expected)
    assert_all_ours(acceleration)


def test_report_of_measured_times() -> None:
    """Both times and their difference, which is whatever other work leaves of the GPU."""
    x = torch.rand(2**26, device="cuda", requires_grad=True)
    y = torch.rand(2**26, device="cuda")
    with cupy_losses.accelerate() as acceleration:
        F.mse_loss(x, y).backward()
    assert acceleration.report().saved is None
    report = acceleration.report(measure=True)
    (line,) = report.lines
    assert line.times is not None
    assert line.times.ours > 0
    assert line.times.torch > 0
    assert report.saved == line.times.torch - line.times.ours
    assert "Time saved: about" in str(report)


def test_the_example_is_as_fast() -> None:
    """Losses of a large batch: the program's own clock says no more with acceleration."""
    example = str(ROOT / "examples" / "multitask_torch.py")
    arguments = [example, "--steps", "100", "--size", "65536"]
    seconds, curves = [], []
    for command in ([], ["-m", "cupy_losses", "accelerate"]):
        result = subprocess.run(
            [sys.executable, *command, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        curves.append([float(loss) for loss in re.findall(r"step \d+: (.+)", result.stdout)])
        seconds += [float(taken) for taken in re.findall(r"(\S+) s on cuda", result.stderr)]
    assert curves[1] == pytest.approx(curves[0], rel=1e-2)
    # The first calls compile or load kernels, and two runs differ by a little.
    assert seconds[1] < 1.1 * seconds[0] + 5

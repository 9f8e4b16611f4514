"""Losses over rows have the same bits whatever a caller or a device can vary.

The order of summation is to depend on the shape and the dtypes alone. Each test varies one thing
that does not belong to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cupy_losses import cross_entropy, value_and_grad
from cupy_losses._device import driver, strided_tiling

from ..emulator.cupy_lookalike import forget

pytestmark = pytest.mark.gpu

Bits = dict[str, Any]
Shape = tuple[int, ...]


# Lanes of a warp; a block; the blocks of a cluster, of a large one; two launches.
SHAPES = [(20_000, 16), (5000, 333), (5000, 1000), (40, 20_000), (40, 200_000), (3, 1_100_000)]
# The same where rows begin anywhere in a vector.
ODD = [(5000, 2003), (40, 20_001), (3, 300_001), (3, 1_100_001)]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that gives the planner other answers to its questions about the device."""

    def forget_plans() -> None:
        torch.cuda.synchronize()
        forget()

    def answer(**answers: Any) -> None:
        for name, value in answers.items():
            monkeypatch.setattr(driver, name, lambda device, value=value: value)
        forget_plans()

    yield answer
    monkeypatch.undo()
    forget_plans()


def logits(shape: Shape, dtype: Any) -> tuple[Any, Any]:
    """Logits and classes."""
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    x = (3 * torch.randn(shape, device="cuda", generator=generator)).to(dtype)
    return x, torch.randint(0, shape[1], (shape[0], *shape[2:]), device="cuda", generator=generator)


def placed(x: Any, skipped: int) -> Any:
    """A copy that begins so many elements after an aligned address."""
    whole = torch.zeros(x.numel() + skipped, dtype=x.dtype, device="cuda")
    view = whole[skipped:].view(x.shape)
    view.copy_(x)
    assert view.data_ptr() % 16 == skipped * x.element_size() % 16
    return view


def results(x: Any, target: Any) -> Bits:
    """All that is computed of cross entropy."""
    value, gradient = value_and_grad(cross_entropy)(x, target)
    return {
        "losses": cross_entropy(x, target, reduction="none"),
        "mean": cross_entropy(x, target),
        "value beside the gradient": value,
        "gradient": gradient,
    }


def changed(before: Bits, after: Bits) -> dict[str, int]:
    """How many elements are not the same."""
    counts = {name: int((before[name] != after[name]).sum()) for name in before}
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *ODD, (20_000, 21), (20_000, 40)], ids=str)
def test_whatever_the_address(shape: Shape, dtype: Any) -> None:
    """Views that begin inside a vector against an aligned copy of them."""
    x, target = logits(shape, dtype)
    aligned = results(placed(x, 0), target)
    found = [changed(aligned, results(placed(x, skipped), target)) for skipped in (1, 2, 3)]
    assert found == [{}, {}, {}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *ODD, (400, 200_000)], ids=str)
def test_with_and_without_clusters(shape: Shape, dtype: Any, answering: Any) -> None:
    """Whatever the device of this test has."""
    x, target = logits(shape, dtype)
    before = results(x, target)
    for largest in (1, driver.PORTABLE_CLUSTER):
        answering(largest_cluster=largest)
        assert changed(before, results(x, target)) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, *ODD, (400, 15_000), (400, 200_000)], ids=str)
def test_whatever_the_size_of_shared_memory(shape: Shape, dtype: Any, answering: Any) -> None:
    """As of a device with little, which every device has."""
    x, target = logits(shape, dtype)
    before = results(x, target)
    answering(shared_memory=64 << 10)
    assert changed(before, results(x, target)) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize(
    "shape",
    [(8, 2, 512, 512), (2, 3, 1023, 1365), (8, 12, 256, 256), (2, 21, 513, 513), (200, 24, 45, 45)],
    ids=str,
)
def test_in_tiles_of_classes_ahead_of_pixels_or_not(
    shape: Shape, skipped: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loss and each gradient; the sum of losses is added up in other groups, in double."""
    x, target = logits(shape, dtype)
    target.ravel()[::7] = -100
    found = results(placed(x, skipped), target)
    monkeypatch.setattr(strided_tiling, "COLUMNS", {})
    forget()
    other = results(placed(x, skipped), target)
    monkeypatch.undo()
    forget()
    assert changed(other, found) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whatever_the_stream_and_the_order_in_which_blocks_end(shape: Shape, dtype: Any) -> None:
    """Several streams at a time, so that the blocks of each wait for those of the others."""
    x, target = logits(shape, dtype)
    expected = results(x, target)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for turn in range(20):
        with torch.cuda.stream(streams[turn % 4]):
            found.append(results(x, target))
    torch.cuda.synchronize()
    assert [changed(expected, other) for other in found] == [{}] * 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whether_a_gradient_is_wanted_or_not(shape: Shape, dtype: Any) -> None:
    x, target = logits(shape, dtype)
    for skipped in (0, 1):
        found = results(placed(x, skipped), target)
        assert torch.equal(found["value beside the gradient"], found["mean"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [12, 21, 40, 333, 1000, 1001, 2003, 20_001])
def test_whatever_other_rows_there_are(columns: int, dtype: Any) -> None:
    """Rows alone against the same ones among others; their gradients are those of the sum."""
    x, target = logits((300, columns), dtype)
    both = value_and_grad(cross_entropy)
    losses, gradient = (
        cross_entropy(x, target, reduction="none"),
        both(x, target, reduction="sum")[1],
    )
    for k in range(len(x)):
        row, classes = x[k : k + 1].clone(), target[k : k + 1].clone()
        assert torch.equal(cross_entropy(row, classes, reduction="none")[0], losses[k])
        assert torch.equal(both(row, classes, reduction="sum")[1][0], gradient[k])

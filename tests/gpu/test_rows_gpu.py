"""Losses over rows on a GPU: rows of every length, the ways to divide them, graphs, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cupy_losses import (
    cross_entropy,
    multilabel_margin_loss,
    triplet_margin_loss,
    value_and_grad,
)

from ..tables.arrays import ulps
from ..tables.rows import multilabel_margin

pytestmark = pytest.mark.gpu

# Lanes, a block, blocks of a cluster, of a large one, two launches; rows that begin anywhere in a
# vector.
SHAPES = [(10_007, 2), (1000, 100), (999, 257), (300, 4096), (700, 9001), (300, 50_257)]
SHAPES += [(270, 128_256), (12, 300_001), (1, 3_000_000)]


def check_cross_entropy(x: torch.Tensor, target: torch.Tensor) -> None:
    """The loss, with its gradient and without, and the gradient, beside torch's in float64."""
    wide = x.double().requires_grad_()
    exact = F.cross_entropy(wide, target)
    (exact_gradient,) = torch.autograd.grad(exact, wide)
    value, gradient = value_and_grad(cross_entropy)(x, target)
    assert torch.equal(value, cross_entropy(x, target))
    half = x.dtype == torch.bfloat16
    torch.testing.assert_close(value.double(), exact, rtol=4e-3 if half else 3e-7, atol=0)
    bound = (2.0**-8 if half else 1e-6) * exact_gradient.abs().max()
    assert ((gradient.double() - exact_gradient).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape: tuple[int, int], dtype: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    x = (3 * torch.randn(shape, device="cuda", generator=generator)).to(dtype)
    target = torch.randint(0, shape[1], shape[:1], device="cuda", generator=generator)
    if shape[0] > 1:
        target[::7] = -100
    check_cross_entropy(x, target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pixels", [1024, 1026, 1089], ids=str)
@pytest.mark.parametrize("classes", [3, 12, 21, 48, 80, 150, 1000])
def test_classes_ahead_of_pixels(classes: int, pixels: int, dtype: Any) -> None:
    """Gradients that begin at sectors of memory, within them, and tiles of two images."""
    generator = torch.Generator("cuda").manual_seed(classes + pixels)
    x = (3 * torch.randn(4, classes, pixels, device="cuda", generator=generator)).to(dtype)
    target = torch.randint(0, classes, (4, pixels), device="cuda", generator=generator)
    target[:, ::7] = -100
    check_cross_entropy(x, target)


@pytest.mark.parametrize("scale", [1, 8, 30, 1e4])
@pytest.mark.parametrize("columns", [2, 3, 8, 10, 32, 100, 1000, 4096, 50_257, 128_256, 1_000_000])
def test_every_loss_is_exact(columns: int, scale: float) -> None:
    """In units of the last place of itself, however small beside the logits."""
    generator = torch.Generator("cuda").manual_seed(columns)
    shape = max(3_000_000 // columns, 20), columns

    def uniform(*shape: int) -> Any:
        return torch.rand(shape, device="cuda", generator=generator)

    x = scale * torch.randn(shape, device="cuda", generator=generator)
    x = x.clamp(-1e4, 1e4)
    target = (columns * uniform(shape[0])).long().clamp(max=columns - 1)
    target = torch.where(uniform(shape[0]) < 0.8, x.argmax(dim=1), target)
    weight = 0.5 + uniform(columns)
    likely = torch.zeros(shape, device="cuda").scatter_(1, target[:, None], 1)
    mixed = uniform(*shape)

    # log_softmax, negative: without cancellation where one element is the largest by far.
    wide = x.double()
    top, first = wide.max(dim=1, keepdim=True)
    others = (wide - top).exp().scatter(1, first, 0).sum(dim=1, keepdim=True)
    surprise = top - wide + torch.log1p(others)
    exact = surprise.gather(1, target[:, None])[:, 0]
    lse = (top + torch.log1p(others))[:, 0]
    smooth = float(np.float32(0.1))

    for expected, bound, y, options in (
        (exact, 2, target, {}),
        (exact * weight[target].double(), 4, target, {"weight": weight}),
        (exact + 0.25 * lse**2, 4, target, {"z_loss": 0.25}),
        ((1 - smooth) * exact + smooth * surprise.mean(1), 5, target, {"label_smoothing": 0.1}),
        (exact, 4, likely, {}),
        ((mixed.double() * surprise).sum(1), 4, mixed, {}),
    ):
        losses = cross_entropy(x, y, reduction="none", **options)
        tiny = expected < 2.0**-100  # where rounding errors are subnormal numbers, hence 0
        assert (losses[tiny] <= 2.0**-99).all()
        error = ulps(losses[~tiny].cpu().numpy(), expected[~tiny].cpu().numpy())
        assert error <= bound, (options, y.dtype)


def test_the_gradient_takes_the_memory_of_the_input() -> None:
    x = torch.randn(300, 70_000, device="cuda").requires_grad_()
    target = torch.randint(0, 70_000, (300,), device="cuda")
    (expected,) = torch.autograd.grad(cross_entropy(x * 1, target), x)
    torch.cuda.synchronize()
    logits = x * 1
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = cross_entropy(logits, target, overwrite_input=True)
    assert torch.cuda.max_memory_allocated() - before < 1 << 20
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.equal(gradient, expected)


def test_a_graph_replays() -> None:
    x = torch.randn(300, 5000, device="cuda")
    target = torch.randint(0, 5000, (300,), device="cuda")
    both = value_and_grad(cross_entropy)
    both(x, target)  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = both(x, target)
    for _ in range(2):
        x.copy_(torch.randn(300, 5000, device="cuda"))
        graph.replay()
        again = both(x, target)
        assert torch.equal(value, again[0])
        assert torch.equal(gradient, again[1])


def test_memory_is_the_gradient_and_a_few_numbers_a_row() -> None:
    x = torch.randn(4096, 8192, device="cuda").requires_grad_()
    target = torch.randint(0, 8192, (4096,), device="cuda")
    cross_entropy(x, target).backward()
    x.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    cross_entropy(x, target).backward()
    extra = torch.cuda.max_memory_allocated() - before - x.numel() * 4
    assert 0 <= extra < 64 * len(x) + (2 << 20)


def test_triplets() -> None:
    arrays = [torch.randn(500, 5000, device="cuda").requires_grad_() for _ in range(3)]
    a, p, n = arrays
    exact = F.triplet_margin_loss(a.double(), p.double(), n.double(), swap=True)
    loss = triplet_margin_loss(a, p, n, swap=True)
    torch.testing.assert_close(loss.double(), exact, rtol=3e-6, atol=0)
    for got, expected in zip(
        torch.autograd.grad(loss, arrays), torch.autograd.grad(exact, arrays), strict=True
    ):
        assert ((got - expected).abs() <= 2e-6 * expected.abs().max()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(3000, 20), (500, 80), (200, 1000), (40, 20_000), (2, 300_001)])
def test_labels(shape: tuple[int, int], dtype: Any) -> None:
    """As torch on a CPU: on a GPU it loses the gradients of some labels (2.11)."""
    rows, columns = shape
    generator = torch.Generator().manual_seed(rows + columns)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    labels = torch.randint(0, columns, shape, generator=generator)
    labels[torch.arange(rows), torch.arange(rows) % 12] = -1
    labels[1, 0] = -1
    labels[rows // 2, :4] = torch.tensor([3, 5, 3, -1])  # one of them twice
    wide = x.clone().double().requires_grad_()
    exact = multilabel_margin(wide.detach().numpy().astype(np.longdouble), labels.numpy())[0].mean()
    (added_up,) = torch.autograd.grad(F.multilabel_margin_loss(wide, labels), wide)
    counts = (added_up * x.numel()).round()  # without the errors of adding up
    value, gradient = value_and_grad(multilabel_margin_loss)(x.cuda(), labels.cuda())
    single = dtype == torch.float32
    assert abs(value.item() - exact) <= (3e-7 if single else 1e-15) * exact
    # In float32 elements at the margin may be on its other side.
    error = (gradient.cpu().double() * x.numel() - counts).abs()
    assert (error <= (1e-6 if single else 1e-15) * counts.abs() + (1.1 if single else 0)).all()

"""Shapes that torch takes beside those that it documents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import hessian, jacfwd, jacrev, vmap

import cupy_losses

from ..tables.arrays import Library
from ..tables.shapes import ODD, Shapes, of_shapes

Tensor = torch.Tensor
REDUCTIONS = ("none", "mean", "sum")
every_shape = pytest.mark.parametrize(("name", "shapes"), ODD)


def results(loss: Callable[..., Any], operands: list[Tensor], twice: bool) -> list[Any]:
    """The loss, its gradients, and gradients of these where they are wanted."""
    leaves = [t.clone().requires_grad_() for t in operands if t.is_floating_point()]
    given = leaves + [t for t in operands if not t.is_floating_point()]
    value = loss(*given)
    total = (value * value + value).sum()
    first = torch.autograd.grad(total, leaves, create_graph=twice, allow_unused=True)
    of_first = [slope for slope in first if slope is not None and slope.requires_grad]
    if not twice or not of_first:
        return [value, *first]
    norm = torch.stack([(slope * slope).sum() for slope in of_first]).sum()
    return [value, *first, *torch.autograd.grad(norm, leaves, allow_unused=True)]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@every_shape
def test_as_torch(name: str, shapes: Shapes, reduction: str, torch_library: Library) -> None:
    """Values, shapes and gradients; torch has no second derivatives of the margins of classes."""
    operands = [torch_library.array(x) for x in of_shapes(name, shapes)]
    twice = name in ("cosine_embedding_loss", "triplet_margin_loss")
    pair = [
        results(lambda *x, f=f: f(*x, reduction=reduction), operands, twice)
        for f in (getattr(cupy_losses, name), getattr(F, name))
    ]
    for got, expected in zip(*pair, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@every_shape
def test_samples(name: str, shapes: Shapes, reduction: str) -> None:
    """A batch of them, transformed."""
    first, *others = map(torch.from_numpy, of_shapes(name, shapes))

    def loss(x: Tensor) -> Any:
        return getattr(cupy_losses, name)(x, *others, reduction=reduction)

    batch = torch.stack([first, 1.5 * first, -first])
    for transform in (lambda f: f, jacfwd, hessian):
        expected = torch.stack([transform(loss)(x) for x in batch])
        torch.testing.assert_close(vmap(transform(loss))(batch), expected)
    torch.testing.assert_close(jacfwd(jacfwd(loss))(first), jacfwd(jacrev(loss))(first))


@every_shape
def test_compiled(name: str, shapes: Shapes) -> None:
    operands = [torch.from_numpy(x) for x in of_shapes(name, shapes)]
    loss = getattr(cupy_losses, name)

    def of_rows(*given: Tensor) -> Any:
        return loss(*given, reduction="none")

    torch._dynamo.reset()
    compiled = torch.compile(of_rows, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        results(compiled, operands, twice=False), results(of_rows, operands, twice=False)
    )


@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_one_class_in_an_axis_of_its_own(name: str, torch_library: Library) -> None:
    """Its loss is of shape (), as torch's, which fails in the backward pass."""
    input, target = torch_library.array(np.arange(3.0)), torch_library.array(np.ones(1, int))
    loss = getattr(cupy_losses, name)
    for reduction in REDUCTIONS:
        expected = getattr(F, name)(input, target, reduction=reduction)
        torch.testing.assert_close(loss(input, target, reduction=reduction), expected)
    weight = torch_library.array(np.arange(1.0, 4.0)).requires_grad_()

    def of_class(target: Tensor, options: dict[str, Any], input: Tensor) -> Any:
        return loss(input, target, weight=weight, **options)

    for options in ({}, {"label_smoothing": 0.1})[: 1 + (name == "cross_entropy")]:
        pair = [
            results(functools.partial(of_class, of_one, options), [input], twice=False)
            for of_one in (target, target[0])
        ]
        torch.testing.assert_close(*pair)

"""Losses over rows: references, torch's semantics, bad input, gradients in the input's memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import check_values, cross_entropy, nll_loss, value_and_grad
from cupy_losses._core.types import Reduction

from ..tables.arrays import DTYPES, Library
from ..tables.rows import BY_NAME, ROWS, RowCase
from ..tools import levels

REDUCTIONS = ("none", "mean", "sum")
OF_TORCH = [case for case in ROWS if case.of_torch]


def to_library(library: Library, operands: dict[str, Any]) -> dict[str, Any]:
    return {name: library.array(x) for name, x in operands.items()}


def assert_close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def gradients_of(value: Any, leaves: Any, create_graph: bool = False) -> Any:
    return torch.autograd.grad(
        value, leaves, create_graph=create_graph, materialize_grads=True, allow_unused=True
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_values_and_gradients(
    case: RowCase, dtype: str, library: Library, rng: np.random.Generator
) -> None:
    """The loss and, through value_and_grad, its gradients."""
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-11}[dtype]
    shape = (4, 7, 3) if case.classes else (6, 7)
    operands = case.draw(rng, shape, DTYPES[dtype])
    arrays = to_library(library, operands)
    each = library.host(case.call(arrays, reduction="none"))
    assert each.dtype == DTYPES[dtype]

    def close(got: Any, expected: Any, tolerance: float) -> None:
        """In units of the largest number that is expected."""
        wanted = np.asarray(expected, np.float64)
        largest = tolerance * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, tolerance, largest)

    close(each, case.value(operands), tolerance)
    slopes = case.slopes(operands)
    numbers = [case.positional.index(name) for name in case.differentiable]
    for reduction in ("mean", "sum"):
        both = value_and_grad(case.loss, numbers)
        value, gradients = case.call(arrays, both, reduction=reduction)
        reference = float(case.reduced(operands, reduction))
        close(library.host(value), reference, tolerance)
        for name, gradient in zip(case.differentiable, gradients, strict=True):
            found = library.host(gradient)
            assert found.dtype == DTYPES[dtype]
            expected = slopes[name] / case.divisor(operands, reduction)
            close(found, expected, 2 * tolerance)


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_strides(case: RowCase, library: Library, rng: np.random.Generator) -> None:
    """Views of any strides give what copies of them give."""
    contiguous = case.draw(rng, (6, 5), np.float64)
    spread = {}
    for name, x in contiguous.items():
        wide = np.zeros([2 * n for n in x.shape][::-1], x.dtype).T
        view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
        view[...] = x
        spread[name] = view
    expected, got = (
        case.call(to_library(library, operands), value_and_grad(case.loss))
        for operands in (contiguous, spread)
    )
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(library.host(b), library.host(a), 1e-12, 1e-15)


@pytest.mark.parametrize(("case", "reduction"), levels.covering(3, ROWS, REDUCTIONS))
def test_derivatives_are_those_of_the_loss(
    case: RowCase, reduction: str, torch_library: Library
) -> None:
    """First and second derivatives by finite differences."""
    operands = to_library(torch_library, case.draw(np.random.default_rng(6), (3, 4), np.float64))
    leaves = [operands[name].requires_grad_() for name in case.differentiable]

    def loss(*given: Any) -> Any:
        moved = operands | dict(zip(case.differentiable, given, strict=True))
        return case.call(moved, reduction=reduction)

    assert torch.autograd.gradcheck(loss, leaves)
    assert torch.autograd.gradgradcheck(loss, leaves)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", OF_TORCH, ids=str)
def test_as_torch(case: RowCase, reduction: str, torch_library: Library) -> None:
    """The loss, its gradients and those of their squares; torch has not all of the last."""
    rng = np.random.default_rng(3)
    shapes: list[tuple[int, ...]] = [(4, 5), (5,), (3, 1)]
    if "margin_loss" not in case.name or case.name == "triplet_margin_loss":
        shapes += [(0, 4), (2, 5, 3, 2)] if case.name != "cosine_embedding_loss" else [(0, 4)]
    for shape in shapes:
        operands = to_library(torch_library, case.draw(rng, shape, np.float64))
        leaves = [operands[name].requires_grad_() for name in case.differentiable]
        results = []
        for function in (case.loss, case.torch):
            value = case.call(operands, function, reduction=reduction)
            if not value.requires_grad:  # torch's of the norm 0
                results.append([value, *map(torch.zeros_like, leaves)])
                continue
            first = gradients_of((value * value + value).sum(), leaves, case.twice_of_torch)
            results.append([value, *first])
            square = torch.stack([(g * g).sum() for g in first]).sum()
            if case.twice_of_torch and square.requires_grad:
                results[-1] += gradients_of(square, leaves)
        assert len(results[0]) >= len(results[1]) > len(leaves)  # torch has not all derivatives
        for got, expected in zip(*results, strict=False):
            assert got.dtype == expected.dtype
            assert_close(got, expected)


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_margin_loss"])
def test_no_rows(torch_library: Library, name: str) -> None:
    """Where torch gives what is in memory: a mean of NaN, a sum of 0."""
    input = torch_library.array(np.zeros((0, 4))).requires_grad_()
    shape = (0,) if name == "multi_margin_loss" else (0, 4)
    target = torch_library.array(np.zeros(shape, np.int64))
    loss = getattr(cupy_losses, name)
    assert loss(input, target).isnan()
    assert loss(input, target, reduction="sum") == 0
    assert loss(input, target, reduction="none").shape == (0,)
    assert gradients_of(loss(input, target), input)[0].shape == (0, 4)


INF, NAN = math.inf, math.nan
LOGITS = [
    [1.0, INF, 0.0],
    [1.0, -INF, 0.0],
    [-INF, -INF, -INF],
    [INF, INF, 0.0],
    [0.0, NAN, 1.0],
    [1e4, -1e4, 0.0],
    [-1e4, 1e4, 9999.0],
    [0.0, 0.0, 0.0],
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("probabilities", [False, True])
def test_special_logits(
    torch_library: Library, weighted: bool, smoothing: float, probabilities: bool
) -> None:
    """Infinities, NaN and large numbers, at the target and beside it."""
    weight = torch_library.array(np.array([0.5, 0.0, 2.0])) if weighted else None
    options: dict[str, Any] = {"weight": weight, "label_smoothing": smoothing, "reduction": "none"}
    for column in range(3):
        of_column = np.arange(3) == column
        target = torch_library.array(
            np.where(of_column, 0.5, np.full((len(LOGITS), 3), 0.25))
            if probabilities
            else np.full((len(LOGITS),), column)
        )
        results = []
        for function in (cross_entropy, F.cross_entropy):
            input = torch_library.array(np.array(LOGITS)).requires_grad_()
            value = function(input, target, **options)
            results.append((value, *gradients_of(value.sum(), input)))
        assert_close(results[0], results[1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_all_rows_ignored(
    torch_library: Library, name: str, reduction: str, weighted: bool
) -> None:
    weight = torch_library.array(np.ones(3)) if weighted else None
    target = torch_library.array(np.full(4, -100))
    input = torch_library.array(np.ones((4, 3))).requires_grad_()
    value, expected = (
        getattr(module, name)(input, target, weight=weight, reduction=reduction)
        for module in (cupy_losses, F)
    )
    assert_close(value, expected)
    (gradient,) = gradients_of(value.sum(), input, True)
    assert gradient.tolist() == [[0.0] * 3] * 4
    assert gradients_of(gradient.sum(), input)[0].tolist() == [[0.0] * 3] * 4


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_rows_may_be_nan(torch_library: Library, smoothing: float) -> None:
    """Their gradients are 0, where torch's are NaN; nll_loss has that in torch too."""
    rows = np.array([[1.0, 2.0, 3.0], [np.nan] * 3, [np.inf, 1.0, 2.0]])
    input = torch_library.array(rows).requires_grad_()
    target = torch_library.array(np.array([0, -100, -100]))
    ours, torchs = (
        module.cross_entropy(input, target, label_smoothing=smoothing)
        for module in (cupy_losses, F)
    )
    assert_close(ours, torchs)
    first, expected = (gradients_of(loss, input, True)[0] for loss in (ours, torchs))
    assert_close(first[0], expected[0])
    assert (first[1:] == 0).all()
    assert expected[1:].isnan().all()
    assert (gradients_of(first.sum(), input)[0][1:] == 0).all()
    slopes = [gradients_of(m.nll_loss(input, target), input) for m in (cupy_losses, F)]
    assert_close(*slopes)


@pytest.mark.parametrize("p", [1, 2])
def test_ties_of_margins(torch_library: Library, p: int) -> None:
    """At the margin, torch's derivatives."""
    input = torch_library.array(np.array([[1.0, 0.0, -1.0], [0.0, 0.0, 2.0]])).requires_grad_()
    classes = torch_library.array(np.array([0, 1]))
    labels = torch_library.array(np.array([[0, 0, -1], [1, -1, 2]]))
    ours, torchs = (
        (
            gradients_of(module.multi_margin_loss(input, classes, p=p), input),
            gradients_of(module.multilabel_margin_loss(input, labels), input),
        )
        for module in (cupy_losses, F)
    )
    assert_close(ours, torchs)


Triplet = tuple[list[float], list[float], list[float]]


def assert_triplets_as_torch(library: Library, rows: Sequence[Triplet], **options: Any) -> None:
    """The losses of rows of anchor, positive and negative, and their gradients."""
    leaves = [
        library.array(np.array(column)).requires_grad_() for column in zip(*rows, strict=True)
    ]
    results = []
    for module in (cupy_losses, F):
        value = module.triplet_margin_loss(*leaves, eps=0.0, reduction="none", **options)
        found = (
            gradients_of(value.sum(), leaves)
            if value.requires_grad
            else map(torch.zeros_like, leaves)
        )
        results.append((value, *found))
    assert_close(results[0], results[1])


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_ties_of_distances(torch_library: Library, p: float, swap: bool) -> None:
    """Distances of 0, equal ones, equal components."""
    rows = [
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        ([0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 0.0]),
        ([1.0, 2.0, 0.0], [-1.0, 2.0, 0.0], [0.0, 1.0, 0.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    ]
    # No loss is at the margin, where the derivatives of torch 2.14 are others than before.
    assert_triplets_as_torch(torch_library, rows, p=p, swap=swap, margin=2.25)


@pytest.mark.parametrize(
    ("name", "operands", "options", "expected"),
    [
        ("margin_ranking_loss", ([1.0], [1.0], [1.0]), {}, [[-1.0], [1.0]]),
        ("hinge_embedding_loss", ([1.0], [-1.0]), {}, [[-1.0]]),
        ("cosine_embedding_loss", ([[1.0, 0.0]], [[0.0, 2.0]], [-1.0]), {}, [[[0, 1]], [[0.5, 0]]]),
        (
            "triplet_margin_loss",
            ([[0.0, 0.0]], [[1.0, 0.0]], [[0.0, 2.0]]),
            {"eps": 0.0},
            [[[-1.0, 1.0]], [[1.0, 0.0]], [[0.0, -1.0]]],
        ),
    ],
)
def test_at_the_margin(
    torch_library: Library, name: str, operands: Any, options: dict[str, Any], expected: Any
) -> None:
    """Where the loss begins to rise, the derivatives are those of the side on which it rises."""
    arrays = [torch_library.array(np.array(x)) for x in operands]
    leaves = [x.requires_grad_() for x in arrays[: len(expected)]]
    value = getattr(cupy_losses, name)(*arrays, **options)
    assert value == 0
    for found, of_rising in zip(gradients_of(value, leaves), expected, strict=True):
        wanted = torch_library.array(np.array(of_rising, np.float64))
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
def test_distances_of_infinite_components(torch_library: Library, p: float) -> None:
    """One is infinite, or more than one; it is near, or far."""
    rows = [
        ([0.0, 0.0, 0.0], [1.0, INF, 2.0], [1.0, 1.0, 1.0]),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, INF, 2.0]),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-INF, INF, 2.0]),
    ]
    assert_triplets_as_torch(torch_library, rows, p=p)


def test_second_derivative_where_elements_agree(torch_library: Library) -> None:
    rng = np.random.default_rng(1)
    hosts, along = rng.standard_normal((2, 3, 4, 5))
    hosts[1:, :, :2] = hosts[0, :, :2]
    tangents = [torch_library.array(x) for x in along]
    options: dict[str, Any] = {"eps": 0.0, "margin": 9.0}
    results = []
    for module in (cupy_losses, F):
        leaves = [torch_library.array(x).requires_grad_() for x in hosts]
        first = gradients_of(module.triplet_margin_loss(*leaves, **options), leaves, True)
        slope = sum((x * tangent).sum() for x, tangent in zip(first, tangents, strict=True))
        results.append(gradients_of(slope, leaves))
    assert_close(results[0], results[1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["cosine_embedding_loss", "triplet_margin_loss"])
def test_vectors_broadcast(torch_library: Library, name: str, reduction: str) -> None:
    rng = np.random.default_rng(1)
    operands = [
        torch_library.array(rng.standard_normal(shape)).requires_grad_()
        for shape in ((4, 3), (1, 3), (4, 3))
    ]
    if name == "cosine_embedding_loss":
        operands[2] = torch_library.array(np.array([1.0, -1.0, 1.0, -1.0]))
    leaves = [operand for operand in operands if operand.requires_grad]
    results = []
    for module in (cupy_losses, F):
        value = getattr(module, name)(*operands, reduction=reduction)
        first = gradients_of((value**2).sum(), leaves, True)
        square = torch.stack([(g * g).sum() for g in first]).sum()
        results.append((value, *first, *gradients_of(square, leaves)))
    assert_close(results[0], results[1])


def test_mixed_dtypes(torch_library: Library) -> None:
    """The numbers decide on the dtype, not the weight; each gradient has that of its operand."""
    half = torch_library.array(np.ones((2, 3), np.float16)).requires_grad_()
    single = torch_library.array(np.full((2, 3), 0.5, np.float32)).requires_grad_()
    weight = torch_library.array(np.ones(3))
    value = cross_entropy(half, single, weight=weight)
    assert value.dtype == torch.float32
    assert [g.dtype for g in gradients_of(value, (half, single))] == [half.dtype, single.dtype]
    target = torch_library.array(np.array([0, 1]))
    assert cross_entropy(half, target, weight=weight).dtype == torch.float16


def test_autocast(torch_library: Library) -> None:
    """Half precision gives a float32 loss, as torch's."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input = torch_library.array(np.ones((2, 3), np.float32)).bfloat16()
    target = torch_library.array(np.array([0, 1]))
    with torch.autocast(device, torch.bfloat16):
        assert cross_entropy(input, target).dtype == torch.float32
    assert cross_entropy(input, target).dtype == torch.bfloat16


def city_block(x: Any, y: Any) -> Any:
    return abs(x - y).sum(-1)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("distance", [None, city_block])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_distance_function(
    torch_library: Library, reduction: str, distance: Any, swap: bool
) -> None:
    rng = np.random.default_rng(2)
    leaves = [torch_library.array(rng.standard_normal((5, 3))).requires_grad_() for _ in range(3)]
    options = {"distance_function": distance, "swap": swap, "reduction": reduction, "margin": 0.5}
    results = []
    for module in (cupy_losses, F):
        value = module.triplet_margin_with_distance_loss(*leaves, **options)
        results.append((value, *gradients_of(value.sum(), leaves)))
    assert_close(results[0], results[1])


def test_distance_function_of_any_library(library: Library) -> None:
    rng = np.random.default_rng(2)
    hosts = [rng.standard_normal((5, 3)) for _ in range(3)]
    arrays = [library.array(x) for x in hosts]
    loss: Any = cupy_losses.triplet_margin_with_distance_loss
    for swap in (False, True):
        got = library.host(loss(*arrays, distance_function=city_block, swap=swap))
        expected = cupy_losses.triplet_margin_loss(*hosts, p=1.0, eps=0.0, swap=swap)
        np.testing.assert_allclose(got, expected, 1e-12)
    for got, wanted in zip(
        value_and_grad(loss)(*arrays),
        value_and_grad(cupy_losses.triplet_margin_loss)(*arrays),
        strict=True,
    ):
        np.testing.assert_array_equal(library.host(got), library.host(wanted))
    with pytest.raises(TypeError, match="distance_function must be None to take a gradient"):
        value_and_grad(loss)(*arrays, distance_function=city_block)
    with pytest.raises(TypeError, match="distance_function must be a function"):
        loss(*arrays, distance_function=2)
    with pytest.raises(TypeError, match="distance_function must return an array .*, got float"):
        loss(*arrays, distance_function=lambda a, b: 1.0)
    integers = [library.array(x.astype(int)) for x in hosts]
    message = r"distance_function\(anchor, positive\), .* must be floating, got .* int64"
    with pytest.raises(TypeError, match=message):
        loss(*integers, distance_function=city_block)
    with pytest.raises(ValueError, match="margin must be > 0"):
        loss(*arrays, distance_function=city_block, margin=0)


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_index_dtypes(library: Library, dtype: str) -> None:
    input = library.array(np.arange(12.0).reshape(3, 4) % 5)
    target = np.array([3, 0, 2])
    expected = cross_entropy(input, library.array(target))
    with check_values():
        got = cross_entropy(input, library.array(target.astype(dtype)))
    np.testing.assert_array_equal(library.host(got), library.host(expected))


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss", "multi_margin_loss"])
@pytest.mark.parametrize("bad", [4, -1, 2**40, -(2**40)])
def test_index_out_of_range(library: Library, name: str, bad: int) -> None:
    """NaN for that row and for its gradient, the others as ever."""
    loss = getattr(cupy_losses, name)
    input = library.array(np.arange(12.0).reshape(3, 4))
    target = library.array(np.array([1, bad, 3]))
    expected = library.host(loss(input, library.array(np.array([1, 2, 3])), reduction="none"))
    each = library.host(loss(input, target, reduction="none"))
    np.testing.assert_array_equal(each, np.where([False, True, False], np.nan, expected))
    for reduction in ("sum", "mean"):
        value, gradient = value_and_grad(loss)(input, target, reduction=reduction)
        assert np.isnan(library.host(value))
        assert np.isnan(library.host(gradient)[1]).all()
    assert not np.isnan(
        library.host(value_and_grad(loss)(input, target, reduction="sum")[1])[[0, 2]]
    ).any()
    if name != "multi_margin_loss":
        ignored = loss(input, target, reduction="sum", ignore_index=bad)
        np.testing.assert_allclose(library.host(ignored), expected[[0, 2]].sum())


def test_label_out_of_range(library: Library) -> None:
    input = library.array(np.zeros((2, 3)))
    labels = library.array(np.array([[0, 3, -1], [0, -1, 3]]))
    value, gradient = value_and_grad(cupy_losses.multilabel_margin_loss)(input, labels)
    assert np.isnan(library.host(value))
    assert np.isnan(library.host(gradient)).all(axis=1).tolist() == [True, False]


def test_check_values(library: Library) -> None:
    input = library.array(np.full((2, 3), 0.5))

    def array(*values: Any) -> Any:
        return library.array(np.array(values))

    with check_values():
        with pytest.raises(
            ValueError, match=r"target must be in \[0, 2\] or -100, but target\[1\] is 3"
        ):
            cross_entropy(input, array(-100, 3))
        nll_loss(input, array(7, 2), ignore_index=7)
        with pytest.raises(
            ValueError, match=r"target must be in \[0, 2\], but target\[0\] is -100"
        ):
            cupy_losses.multi_margin_loss(input, array(-100, 2))
        with pytest.raises(
            ValueError, match=r"target must be in \[-1, 2\], but target\[1, 2\] is 4"
        ):
            cupy_losses.multilabel_margin_loss(input, array([0, 1, -1], [0, -1, 4]))
        with pytest.raises(ValueError, match=r"target must be -1 or 1, but target\[1\] is 0"):
            cupy_losses.cosine_embedding_loss(input, input, array(1, 0))
        with pytest.raises(
            ValueError, match=r"target must be in \[0, 1\], but target\[0, 1\] is 1.5"
        ):
            cross_entropy(input, array([0.0, 1.5, 0.0], [0.0, 0.0, 1.0]))
        cross_entropy(library.array(np.zeros((2, 3, 4))), library.array(np.full((2, 4), 2)))


@pytest.mark.parametrize("bad", [[1.0, 2.0], 1.0, None, "text", object()])
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_no_array(case: RowCase, library: Library, bad: Any, rng: np.random.Generator) -> None:
    arrays = to_library(library, case.draw(rng, (2, 3), np.float32))
    for name in arrays:
        if name not in BY_NAME or bad is not None:
            with pytest.raises(TypeError, match=f"{name} must be a"):
                case.call(arrays | {name: bad})


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_reductions(case: RowCase, library: Library, rng: np.random.Generator) -> None:
    arrays = to_library(library, case.draw(rng, (2, 3), np.float32))
    for bad in ("average", "batchmean", None):
        with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum'"):
            case.call(arrays, reduction=bad)


def test_shapes(library: Library) -> None:
    def ones(*shape: int) -> Any:
        return library.array(np.ones(shape, np.float32))

    def index(*shape: int) -> Any:
        return library.array(np.ones(shape, np.int64))

    for input, target, message in (
        (ones(2, 3), index(3), r"target must have shape \(2,\) beside input of shape \(2, 3\)"),
        (
            ones(2, 3),
            index(2, 3),
            r"target must .*; probabilities must have a floating dtype; pass",
        ),
        (ones(2, 3, 4), index(2, 3), r"target must have shape \(2, 4\)"),
        (ones(3), index(2), r"target must have shape \(\)"),
        (ones(1, 3), index(), r"target must have shape \(1,\)"),
        (ones(2, 3), ones(2), r"target must .*\(2,\); classes must have an integer dtype: pass"),
        (ones(), index(), "input must have at least one dimension"),
    ):
        with pytest.raises(ValueError, match=message):
            cross_entropy(input, target)
        with check_values(), pytest.raises(ValueError, match=message):
            cross_entropy(input, target)
    for weight in (ones(2), ones(), ones(2, 3)):
        with pytest.raises(ValueError, match=r"weight must have shape \(3,\)"):
            cross_entropy(ones(2, 3), index(2), weight=weight)
    with pytest.raises(ValueError, match="input1 must have at least one dimension"):
        cupy_losses.cosine_embedding_loss(ones(), ones(), ones())
    with pytest.raises(ValueError, match="input2 must have as many dimensions as input1"):
        cupy_losses.cosine_embedding_loss(ones(2, 3), ones(3), ones(2))
    with pytest.raises(ValueError, match=r"target must have shape \(2,\)"):
        cupy_losses.cosine_embedding_loss(ones(2, 3), ones(2, 3), ones())
    with pytest.raises(ValueError, match=r"target must have shape \(2,\)"):
        cupy_losses.multi_margin_loss(ones(2, 3), index(1))
    with pytest.raises(ValueError, match="positive of shape .* does not broadcast"):
        cupy_losses.triplet_margin_loss(ones(2, 3), ones(2, 4), ones(2, 3))


def test_dtypes(library: Library) -> None:
    ones = library.array(np.ones((2, 3), np.float32))
    index = library.array(np.zeros(2, np.int64))
    flags = library.array(np.ones((2, 3), np.bool_))
    with pytest.raises(TypeError, match="got bool; probabilities must have a floating dtype$"):
        cross_entropy(ones, flags)
    with pytest.raises(TypeError, match="input must have a floating dtype .* got int64"):
        cross_entropy(library.array(np.ones((2, 3), np.int64)), index)
    with pytest.raises(TypeError, match="target must have an integer dtype, got float32"):
        nll_loss(ones, library.array(np.zeros(2, np.float32)))
    with pytest.raises(TypeError, match="target must have an integer dtype, got bool"):
        cross_entropy(ones, library.array(np.zeros(2, bool)))
    with pytest.raises(ValueError, match="ignore_index is not supported where target"):
        cross_entropy(ones, ones, ignore_index=0)
    with pytest.raises(TypeError, match="target must be floating to differentiate by it"):
        value_and_grad(cross_entropy, 1)(ones, index)
    signs = library.array(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="the loss is not differentiated by target"):
        value_and_grad(cupy_losses.cosine_embedding_loss, 2)(ones, ones, signs)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("cross_entropy", {"label_smoothing": 1.5}, ValueError, "label_smoothing must be >= 0 and"),
        ("cross_entropy", {"label_smoothing": -0.1}, ValueError, "label_smoothing must be >= 0"),
        ("cross_entropy", {"label_smoothing": "a"}, TypeError, "label_smoothing must be a real"),
        ("cross_entropy", {"z_loss": -1.0}, ValueError, "z_loss must be >= 0"),
        ("cross_entropy", {"z_loss": math.nan}, ValueError, "z_loss must be >= 0"),
        ("cross_entropy", {"ignore_index": 1.0}, TypeError, "ignore_index must be an integer"),
        ("nll_loss", {"ignore_index": True}, TypeError, "ignore_index must be an integer"),
        ("multi_margin_loss", {"p": 3}, ValueError, "p must be 1 or 2, got 3"),
        ("multi_margin_loss", {"margin": None}, TypeError, "margin must be a real number"),
        ("triplet_margin_loss", {"margin": 0.0}, ValueError, "margin must be > 0"),
        ("triplet_margin_loss", {"p": -1.0}, ValueError, "p must be >= 0"),
        ("triplet_margin_loss", {"p": "2"}, TypeError, "p must be a real number"),
        ("triplet_margin_loss", {"eps": None}, TypeError, "eps must be a real number"),
        ("cosine_embedding_loss", {"margin": "0"}, TypeError, "margin must be a real number"),
    ],
)
def test_options(name: str, options: Any, error: Any, message: str, library: Library) -> None:
    case = next(case for case in ROWS if case.name == name)
    operands = case.draw(np.random.default_rng(0), (2, 3), np.float32)
    with pytest.raises(error, match=message):
        case.loss(*(library.array(operands[name]) for name in case.positional), **options)


@pytest.mark.parametrize("loss", [F.cosine_embedding_loss, cupy_losses.cosine_embedding_loss])
def test_signs_that_require_grad(loss: Any) -> None:
    """torch's graph does not lead to them."""
    x, y, sign = (torch.randn(n, dtype=torch.float64) for n in ((4, 3), (4, 3), 4))
    for tensor in (x, y, sign.sign_()):
        tensor.requires_grad_()
    assert not loss(x.detach(), y.detach(), sign).requires_grad
    value = loss(x, y, sign)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    for output in (value, slope.sum()):
        slopes = torch.autograd.grad(output, (y, sign), allow_unused=True, retain_graph=True)
        assert slopes[0] is not None
        assert slopes[1] is None
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(output, sign, retain_graph=True)
    tangents = torch.ones_like(x), torch.ones_like(y), torch.ones_like(sign)
    along_all = torch.func.jvp(loss, (x, y, sign), tangents)[1]
    assert along_all == torch.func.jvp(lambda x, y: loss(x, y, sign), (x, y), tangents[:2])[1]
    assert (torch.func.grad(loss, 2)(x, y, sign) == 0).all()
    torch._dynamo.reset()
    torch.compile(loss, backend="aot_eager")(x, y, sign).backward()
    assert sign.grad is None
    assert x.grad is not None


def logits_and_target(library: Library, dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, 5)).astype(DTYPES[dtype])
    return library.array(logits), library.array(np.arange(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_overwritten(library: Library, dtype: str, reduction: Reduction) -> None:
    input, target = logits_and_target(library, dtype)
    both = value_and_grad(cross_entropy)
    expected = [library.host(x).copy() for x in both(input, target, reduction=reduction)]
    before = library.host(input).copy()
    cross_entropy(input, target, reduction=reduction, overwrite_input=True)
    np.testing.assert_array_equal(library.host(input), before)
    value, gradient = both(input, target, reduction=reduction, overwrite_input=True)
    assert gradient is input
    np.testing.assert_array_equal(library.host(value), expected[0])
    np.testing.assert_array_equal(library.host(input), expected[1])


def test_overwritten_beside_a_gradient_by_target(library: Library) -> None:
    rng = np.random.default_rng(0)
    input, target = (library.array(rng.random((4, 5, 3))) for _ in range(2))
    both = value_and_grad(cross_entropy, (0, 1))
    expected = [library.host(x).copy() for x in both(input, target)[1]]
    _, gradients = both(input, target, overwrite_input=True)
    for got, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(library.host(got), wanted)
    np.testing.assert_array_equal(library.host(input), expected[0])


# Of memory of 8 × 8 elements, 4 rows of 5 classes.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: x.flatten()[:20].view(4, 5),
    "transposed": lambda x: x.flatten()[:20].view(5, 4).T,
    "some columns": lambda x: x[:4, :5],
    "the last columns": lambda x: x[:4, 3:],
    "every second row": lambda x: x[::2, :5],
    "from the second element": lambda x: x.flatten()[1:21].view(4, 5),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1.0, 3.0])
@pytest.mark.parametrize("view", VIEWS)
def test_overwritten_by_autograd(
    torch_library: Library, dtype: torch.dtype, factor: float, view: str
) -> None:
    _, target = logits_and_target(torch_library)
    values = np.random.default_rng(1).standard_normal((8, 8))
    features = torch_library.array(values).to(dtype).requires_grad_()
    gradients = []
    for overwrite in (False, True):
        memory = features * 2
        before = memory.detach().clone()
        logits = VIEWS[view](memory)
        loss = cross_entropy(logits, target, overwrite_input=overwrite)
        gradients += gradients_of(factor * loss, features)
        if overwrite:
            torch.testing.assert_close(2 * logits.detach(), VIEWS[view](gradients[0]))
            for x in memory, before:
                VIEWS[view](x.detach()).zero_()
            assert torch.equal(memory, before)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_overwritten_gradients_are_rounded_once(torch_library: Library) -> None:
    """A factor of more bits than the gradients is not rounded before it multiplies them."""
    _, target = logits_and_target(torch_library)
    values = np.random.default_rng(1).standard_normal((8, 8))
    features = torch_library.array(values).to(torch.bfloat16).requires_grad_()
    for view in VIEWS.values():
        gradients = []
        for factor in (1.0, 1.00390625):  # 1 + 2^-8
            with torch.autocast(features.device.type, dtype=torch.bfloat16):
                loss = cross_entropy(view(features * 1), target, overwrite_input=True)
            assert loss.dtype == torch.float32
            gradients += gradients_of(factor * loss, features)
        expected = gradients[0].float() * 1.00390625
        assert torch.equal(gradients[1], expected.to(torch.bfloat16))


def test_overwritten_beside_a_target_that_requires_grad(torch_library: Library) -> None:
    rng = np.random.default_rng(0)
    leaves = [torch_library.array(rng.random((4, 5))).clone().requires_grad_() for _ in range(2)]
    expected = gradients_of(cross_entropy(*leaves), leaves)
    for k in (0, 1):
        torch.testing.assert_close(
            gradients_of(cross_entropy(leaves[0] * 1, leaves[1], overwrite_input=True), leaves[k]),
            expected[k : k + 1],
        )
    input = leaves[0].detach()
    loss = cross_entropy(input, leaves[1], overwrite_input=True)
    torch.testing.assert_close(gradients_of(loss, leaves[1]), expected[1:])
    assert torch.equal(input, leaves[0])


def test_misuse_of_overwritten_input(torch_library: Library) -> None:
    values, target = logits_and_target(torch_library)
    leaf = values.clone().requires_grad_()

    def overwrite(input: Any, **options: Any) -> Any:
        return cross_entropy(input, target, overwrite_input=True, **options)

    for bad in (leaf, leaf.view(4, 5), leaf[:, :]):
        with pytest.raises(ValueError, match="input must not be a leaf that requires grad"):
            overwrite(bad)
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'sum' to overwrite input"):
        overwrite(leaf * 1, reduction="none")
    with pytest.raises(ValueError, match="can not be overwritten by a gradient of float16"):
        overwrite(leaf.half())
    with pytest.raises(ValueError, match="input must not overlap itself to be overwritten"):
        overwrite((leaf[:1] * 1).expand(4, 5))
    with torch.no_grad():
        overwrite(leaf)
    overwrite(leaf.detach(), reduction="none")
    assert torch.equal(leaf, values)


def test_other_uses_of_overwritten_values(torch_library: Library) -> None:
    values, target = logits_and_target(torch_library)
    leaf = values.clone().requires_grad_()

    def overwrite(input: Any) -> Any:
        return cross_entropy(input, target, overwrite_input=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        overwrite(leaf.exp()).backward()  # whose derivative is computed from the values
    logits = leaf * 1
    other = (logits * logits).sum()
    overwrite(logits)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()
    logits = leaf * 1
    loss = overwrite(logits)
    logits.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="it has no second derivatives"):
        torch.autograd.grad(overwrite(leaf * 1), leaf, create_graph=True)
    loss = overwrite(leaf * 1)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass only"):
        loss.backward()
    logits = leaf * 1
    other = (logits * logits).sum()
    value_and_grad(cross_entropy)(logits, target, overwrite_input=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_what_can_not_be_overwritten() -> None:
    target = np.zeros(4, np.int64)
    fixed = np.zeros((4, 3))
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="input must be writeable"):
        value_and_grad(cross_entropy)(fixed, target, overwrite_input=True)
    for view in (np.broadcast_to(np.zeros(3), (4, 3)), np.broadcast_to(np.zeros((4, 1)), (4, 3))):
        with pytest.raises(ValueError, match="input must not overlap itself"):
            value_and_grad(cross_entropy)(view, target, overwrite_input=True)


@pytest.mark.parametrize("shape", [(3, 70_000), (40_000, 5), (2, 5, 30_000), (2, 70_000, 2)])
def test_chunks_of_rows(shape: tuple[int, ...]) -> None:
    """More rows than one chunk has, rows longer than a chunk."""
    rng = np.random.default_rng(0)
    input = torch.from_numpy(rng.standard_normal(shape)).requires_grad_()
    target = torch.from_numpy(rng.integers(0, shape[1], shape[:1] + shape[2:]))
    expected = F.cross_entropy(input, target)
    (slope,) = gradients_of(expected, input)
    value, gradient = value_and_grad(cross_entropy)(input, target)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, slope)
    each = cross_entropy(input, target, reduction="none")
    torch.testing.assert_close(each.mean(), expected)


def test_gradients_lie_as_the_operands() -> None:
    input = np.zeros((4, 5, 3)).transpose(2, 1, 0)
    gradient = value_and_grad(cross_entropy)(input, np.zeros((3, 4), np.int64))[1]
    assert gradient.strides == input.strides

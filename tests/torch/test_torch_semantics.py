"""Edge cases as torch has them: kinks, infinities, NaN, signed zeros, dtypes, empty arrays."""

from __future__ import annotations

import functools
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
import cupy_losses.nn.functional as F
from cupy_losses._libraries import torch as library

from ..tables.arrays import Library
from ..tables.losses import (
    LOSSES,
    OF_TORCH,
    SIMPLE,
    Case,
    Draw,
    count,
    logit,
    normal,
    positive,
    probability,
    sign,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*mean. divides")  # kl_div's

VALUES = [0.0, -0.0, 0.3, 0.7, 1.0, -1.0, 1.5, -0.3, 1e30, 1e-30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("case", SIMPLE, ids=str)
def test_special_values(case: Case, library: Library) -> None:
    """Every pair of special values: the loss and both gradients as torch's."""
    pairs = np.array(list(itertools.product(VALUES, VALUES)), np.float32)
    input, target = pairs[:, 0].copy(), pairs[:, 1].copy()
    leaves = [torch.from_numpy(x).clone().requires_grad_() for x in (input, target)]
    expected = case.torch(*leaves, reduction="none", **case.parameters)
    slopes = torch.autograd.grad(expected.sum(), leaves)
    got = case.loss(
        library.array(input), library.array(target), reduction="none", **case.parameters
    )
    np.testing.assert_allclose(library.host(got), expected.detach().numpy(), rtol=3e-7)
    gradients = cupy_losses.grad(case.loss, (0, 1))(
        library.array(input), library.array(target), reduction="sum", **case.parameters
    )
    for gradient, slope in zip(gradients, slopes, strict=True):
        host, wanted = library.host(gradient), slope.numpy()
        np.testing.assert_allclose(host, wanted, rtol=3e-7)


# What an operand of each kind may be at the ends of its range.
EXTREMES: dict[Draw, list[float]] = {
    normal: [0.0, -0.0, 0.75, -1.5, 80.0, -80.0, 1e4, -1e4],
    logit: [0.0, -0.0, 0.75, -1.5, 30.0, -30.0, 100.0, -100.0, 1e4, -1e4],
    probability: [0.0, 1.0, 0.25, 1e-30, 1 - 2.0**-24],
    positive: [0.0, 1e-30, 1e-7, 1e-6, 0.25, 1.0, 1e4],
    sign: [1.0, -1.0],
    count: [0.0, 1.0, 2.0, 1000.0],
}


@pytest.mark.parametrize("case", [c for c in OF_TORCH if c not in SIMPLE], ids=str)
def test_extremes(case: Case, library: Library) -> None:
    """Finite where torch is finite, and as torch's float64: the loss and all gradients."""
    rows = np.array(list(itertools.product(*(EXTREMES[draw] for draw in case.draws))), np.float32)
    hosts = [column.copy() for column in rows.T]
    leaves = [torch.from_numpy(x).double().requires_grad_() for x in hosts]
    if case.name == "soft_margin_loss":  # torch has no gradient by target
        leaves[1].requires_grad_(False)
    elementwise = {"reduction": "none", **case.parameters}
    expected = case.torch(*leaves, **elementwise)
    differentiable = [leaf for leaf in leaves if leaf.requires_grad]
    slopes = torch.autograd.grad(expected.sum(), differentiable, allow_unused=True)
    arrays = [library.array(host) for host in hosts]
    with np.errstate(all="ignore"):
        scales = case.scale(*hosts), *case.slopes_and_scales(*hosts)[1]
    got = [case.loss(*arrays, **elementwise)]
    got += cupy_losses.grad(case.loss, tuple(range(len(differentiable))))(
        *arrays, **{**case.parameters, "reduction": "sum"}
    )
    assert len(got) >= 2
    for ours, theirs, scale in zip(got, (expected, *slopes), scales[: len(got)], strict=True):
        host = library.host(ours)
        if theirs is None:  # not differentiated by torch
            assert (host == 0).all()
            continue
        wanted = theirs.detach().numpy()
        if case.rows:
            scale = scale.max() if wanted.ndim == 0 else scale / len(scale)
        finite = np.isfinite(wanted) & (abs(wanted) < 3e38)
        scale = np.broadcast_to(np.where(np.isfinite(scale), scale, 0), wanted.shape)
        limit = 4 * 2.0**-23 * np.maximum(abs(wanted), scale)
        limit += 2.0**-50 * np.max(abs(rows), axis=1 if wanted.ndim else None)  # torch's error
        assert (abs(host[finite] - wanted[finite]) <= limit[finite]).all()


@pytest.mark.parametrize("case", SIMPLE, ids=str)
def test_infinite_sums(case: Case, library: Library) -> None:
    """An infinity or NaN anywhere decides, and rounding errors do not turn inf into NaN."""
    for special in (math.inf, -math.inf, math.nan):
        input = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
        input[4321] = special
        for reduction in ("mean", "sum"):
            result = case.loss(
                library.array(input),
                library.array(np.zeros_like(input)),
                reduction=reduction,
                **case.parameters,
            )
            got = library.host(result)
            assert math.isnan(got) if math.isnan(special) else got == math.inf


@pytest.mark.parametrize("case", LOSSES, ids=str)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
def test_empty(case: Case, library: Library, shape: tuple[int, ...]) -> None:
    empty = [library.array(np.zeros(shape, np.float32))] * len(case.draws)
    parameters = case.parameters
    assert math.isnan(library.host(case.loss(*empty, reduction="mean", **parameters)))
    total = library.host(case.loss(*empty, reduction="sum", **parameters))
    assert total == 0 or (case.rows and shape[-1] == 0)  # nothing over no labels
    of_each = shape[:-1] if case.rows else shape
    assert tuple(case.loss(*empty, reduction="none", **parameters).shape) == of_each
    gradient = cupy_losses.grad(case.loss)(*empty, reduction="sum", **parameters)
    assert tuple(gradient.shape) == shape


NO_ELEMENTS = [(0,), (0, 0), (2, 0), (0, 3), (2, 0, 0), (0, 2, 0), (2, 0, 3)]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", NO_ELEMENTS)
def test_rows_without_labels(shape: tuple[int, ...], reduction: str, library: Library) -> None:
    """The mean of one is NaN, the sum of no such means is 0."""
    name = "multilabel_soft_margin_loss"
    of_torch = torch.zeros(shape, dtype=torch.float64)
    expected = getattr(torch.nn.functional, name)(of_torch, of_torch, reduction=reduction)
    own = library.array(np.zeros(shape))
    got = library.host(getattr(cupy_losses, name)(own, own, reduction=reduction))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", NO_ELEMENTS)
def test_samples_of_rows_without_labels(shape: tuple[int, ...], reduction: str) -> None:
    name = "multilabel_soft_margin_loss"
    batch = torch.zeros(3, *shape)
    pair = []
    for module in (cupy_losses, torch.nn.functional):
        loss = functools.partial(getattr(module, name), reduction=reduction)
        pair.append(torch.func.vmap(loss)(batch, batch))
    torch.testing.assert_close(*pair, equal_nan=True)
    summed = functools.partial(cupy_losses.multilabel_soft_margin_loss, reduction="sum")
    gradients = torch.func.vmap(torch.func.grad(summed))(batch, batch)
    assert gradients.shape == batch.shape


@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_gradient_of_what_is_broadcast_to_nothing_is_zero(library: Library) -> None:
    empty, one = library.array(np.zeros((0, 3), np.float32)), library.array(np.ones(3, np.float32))
    gradient = cupy_losses.grad(cupy_losses.mse_loss, 1)(empty, one, reduction="sum")
    np.testing.assert_array_equal(library.host(gradient), np.zeros(3))


_DTYPES = ["float16", "bfloat16", "float32", "float64", "int64", "int8", "uint8", "bool"]


@pytest.mark.parametrize(("input", "target"), [*itertools.product(_DTYPES, _DTYPES)])
@pytest.mark.filterwarnings("ignore:.*is broadcast", "ignore:Using a target size")
def test_result_dtypes(torch_library: Library, input: str, target: str) -> None:
    """torch's promotion, in which 0-d arrays count as much as others."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    a = torch.ones(3, device=device).to(getattr(torch, input))
    b = torch.ones(3, device=device).to(getattr(torch, target))
    if not (a.is_floating_point() or b.is_floating_point()):
        with pytest.raises(TypeError, match="floating"):
            cupy_losses.mse_loss(a, b)
        return
    assert cupy_losses.mse_loss(a, b).dtype == torch.result_type(a, b)
    scalar = b[0].clone()
    expected = torch.nn.functional.mse_loss(a, scalar).dtype
    assert cupy_losses.mse_loss(a, scalar).dtype == expected


# Which operand has the dtype of torch's loss where that does not promote; None where it raises.
DTYPE_OF: dict[str, int | None] = {
    "huber_loss": 0,
    "soft_margin_loss": 0,
    "hinge_embedding_loss": 0,
    "binary_cross_entropy_with_logits": 1,
    "binary_cross_entropy": None,
}
# Those of torch for which an array of shape () does not count, and those for which it does.
BESIDE_NUMBERS = ("kl_div", "poisson_nll_loss", "gaussian_nll_loss", "multilabel_soft_margin_loss")
PROMOTING = ("mse_loss", "l1_loss", "smooth_l1_loss")


@pytest.mark.parametrize("name", [*DTYPE_OF, *BESIDE_NUMBERS, *PROMOTING])
@pytest.mark.parametrize(("input", "target"), [*itertools.permutations(_DTYPES[:4], 2)])
@pytest.mark.filterwarnings("ignore:.*mean. divides", "ignore:.*target size", "ignore:.*broadcast")
@pytest.mark.filterwarnings("ignore:reduction")
def test_dtypes_that_differ(name: str, input: str, target: str) -> None:
    """Ours promote, and torch's do where docs/deviations.md does not say otherwise."""
    first, second = (torch.ones(2, 3).to(getattr(torch, x)) for x in (input, target))
    variance = [first] * (name == "gaussian_nll_loss")
    ours, torchs = getattr(F, name), getattr(torch.nn.functional, name)
    promoted = torch.result_type(first, second)
    assert ours(first, second, *variance).dtype == promoted
    place = DTYPE_OF.get(name, -1)
    if place is None:
        with pytest.raises(RuntimeError):
            torchs(first, second)
        return
    expected = promoted if place < 0 else (first, second)[place].dtype
    assert torchs(first, second, *variance).dtype == expected
    if place < 0:
        number = second[0, 0]
        assert ours(first, number, *variance).dtype == promoted
        expected = first.dtype if name in BESIDE_NUMBERS else promoted
        assert torchs(first, number, *variance).dtype == expected


# The integer inputs beside floating targets that torch's losses refuse.
REFUSED_INPUTS = {
    **dict.fromkeys(
        (
            "huber_loss",
            "soft_margin_loss",
            "hinge_embedding_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "kl_div",
            "multilabel_soft_margin_loss",
        ),
        ("int64", "bool"),
    ),
    **dict.fromkeys(("l1_loss", "gaussian_nll_loss", "margin_ranking_loss"), ("bool",)),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*REFUSED_INPUTS, "mse_loss", "smooth_l1_loss"])
@pytest.mark.filterwarnings("ignore:reduction")
def test_integer_inputs(name: str, dtype: str) -> None:
    """They are numbers here, and errors in torch where docs/deviations.md says so."""
    target = torch.tensor([1.0, 0.5, 0.25]).to(getattr(torch, dtype))
    for own in ("int64", "bool"):
        input = torch.tensor([1, 0, 1]).to(getattr(torch, own))
        inputs = [input] * (2 if name == "margin_ranking_loss" else 1)
        others = [target] * (2 if name == "gaussian_nll_loss" else 1)
        ours, torchs = getattr(F, name), getattr(torch.nn.functional, name)
        numbers = [x.to(target.dtype) for x in inputs]
        assert torch.equal(ours(*inputs, *others), ours(*numbers, *others))
        if own in REFUSED_INPUTS.get(name, ()):
            with pytest.raises(RuntimeError):
                torchs(*inputs, *others)
        else:
            torchs(*inputs, *others)


def test_integer_inputs_do_not_decide() -> None:
    """Those of poisson_nll_loss do in torch, as docs/deviations.md says."""
    for target in (torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.bfloat16)):
        for input in (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)):
            assert F.poisson_nll_loss(input, target).dtype == target.dtype
            assert torch.nn.functional.poisson_nll_loss(input, target).dtype == torch.float32


def test_smoothing_of_classes_that_weigh_nothing() -> None:
    """Ours is infinite where another class weighs something, as docs/deviations.md says."""
    input, target = torch.zeros(2, 3), torch.tensor([0, 0])
    options: dict[str, Any] = {"weight": torch.tensor([0.0, 1.0, 1.0]), "label_smoothing": 0.1}
    assert F.cross_entropy(input, target, **options) == math.inf
    assert torch.nn.functional.cross_entropy(input, target, **options).isnan()
    options["weight"] = torch.zeros(3)
    assert F.cross_entropy(input, target, **options).isnan()


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("binary_cross_entropy", "weight"),
        ("binary_cross_entropy_with_logits", "weight"),
        ("binary_cross_entropy_with_logits", "pos_weight"),
    ],
)
def test_a_weight_of_a_wider_dtype(name: str, option: str) -> None:
    """Ours promote, as docs/deviations.md says."""
    input, target = torch.full((2, 3), 0.5).bfloat16(), torch.ones(2, 3).bfloat16()
    options = {option: torch.full((3,), 0.5)}
    assert getattr(F, name)(input, target, **options).dtype == torch.float32
    assert getattr(torch.nn.functional, name)(input, target, **options).dtype == torch.bfloat16


def test_one_class_beside_several() -> None:
    """Ours is the mean over the classes, as docs/deviations.md says."""
    input, target = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    ours = F.multilabel_soft_margin_loss(input, target)
    assert torch.equal(ours, F.multilabel_soft_margin_loss(input.expand(2, 3), target))
    torch.testing.assert_close(
        torch.nn.functional.multilabel_soft_margin_loss(input, target), 3 * ours
    )


def test_vectors_of_one_element_beside_longer_ones() -> None:
    """Ours are broadcast before distances are taken, as docs/deviations.md says."""
    shapes = (4, 1), (4, 1), (4, 3)
    anchor, positive, negative = map(torch.full, shapes, (0.0, 0.9, 0.5))
    for name in ("triplet_margin_loss", "triplet_margin_with_distance_loss"):
        ours, torchs = getattr(F, name), getattr(torch.nn.functional, name)
        expected = torchs(anchor.expand(4, 3), positive.expand(4, 3), negative)
        torch.testing.assert_close(ours(anchor, positive, negative), expected)
        assert not torch.allclose(torchs(anchor, positive, negative), expected)


def test_infinite_logits() -> None:
    """Ours is the limit, as docs/deviations.md says."""
    input, target = torch.tensor([-torch.inf, torch.inf]), torch.tensor([0.5, 0.5])
    for name, expected in ((F, torch.inf), (torch.nn.functional, torch.nan)):
        losses = name.binary_cross_entropy_with_logits(input, target, reduction="none")
        torch.testing.assert_close(losses[0], torch.tensor(expected), equal_nan=True)
        assert losses[1] == torch.inf


def test_what_is_added_to_a_squared_length() -> None:
    """1e-12 in float64 too, as docs/deviations.md says."""
    x, target = torch.tensor([[1e-5]], dtype=torch.float64), torch.ones(1)
    for name, epsilon in ((F, 1e-12), (torch.nn.functional, float(np.float32(1e-12)))):
        loss = name.cosine_embedding_loss(x, x, target).item()
        assert loss == pytest.approx(epsilon / (1e-10 + epsilon), rel=1e-12)


def test_a_hinge_beside_an_infinite_input() -> None:
    """The gradient by its target is 0 where the loss is, as docs/deviations.md says."""
    inputs = torch.tensor([torch.inf]), torch.zeros(1)
    for name, expected in ((F, 0.0), (torch.nn.functional, torch.nan)):
        target = torch.ones(1, requires_grad=True)
        name.margin_ranking_loss(*inputs, target).backward()
        torch.testing.assert_close(target.grad, torch.tensor([expected]), equal_nan=True)


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_integer_target(case: Case, library: Library) -> None:
    *others, _ = case.draw(np.random.default_rng(0), 17, np.float32)
    options = {"reduction": "mean", **case.parameters}
    for dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
        target = (np.arange(17) % 2).astype(dtype)
        arrays = [library.array(other) for other in others]
        got = case.loss(*arrays, library.array(target), **options)
        expected = case.loss(*arrays, library.array(target.astype(np.float32)), **options)
        assert library.host(got) == library.host(expected)


def test_autocast(torch_library: Library) -> None:
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input = torch.randn(100, device=device).bfloat16().requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        result = cupy_losses.mse_loss(input, torch.zeros_like(input))
        expected = torch.nn.functional.mse_loss(input, torch.zeros_like(input))
    assert result.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(result, expected)
    result.backward()
    assert input.grad is not None
    assert input.grad.dtype == torch.bfloat16


def test_large_float16_errors_do_not_overflow(library: Library) -> None:
    """300 squared is no float16: the mean of such errors and small ones is."""
    input = np.zeros(64, np.float16)
    input[0] = 300
    got = cupy_losses.mse_loss(library.array(input), library.array(np.zeros_like(input)))
    assert library.host(got) == np.float16(300 * 300 / 64)


def test_negative_bit_is_resolved(torch_library: Library) -> None:
    """The imaginary part of a conjugate is a view that is negated when read."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    complex_ = torch.tensor([1 + 2j, 3 - 1j], device=device)
    imaginary = complex_.conj().imag
    assert imaginary.is_neg()
    assert cupy_losses.mse_loss(imaginary, torch.zeros(2, device=device)).item() == 2.5


def test_second_derivatives_of_saturated_probabilities(torch_library: Library) -> None:
    """Those of the first one, whose divisor is at least 1e-12, in either order."""
    p, y = np.meshgrid([0.0, 1e-30, 1e-13, 0.3, 1.0], [0.0, 0.3, 1.0])
    leaves = [torch_library.array(x).requires_grad_() for x in (p, y)]
    each = cupy_losses.binary_cross_entropy(*leaves, reduction="none")
    slopes = torch.autograd.grad(each.sum(), leaves, create_graph=True)
    seconds = [torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in slopes]
    mixed = -1 / np.maximum(p * (1 - p), 1e-12)
    for got in seconds[0][1], seconds[1][0]:
        np.testing.assert_allclose(torch_library.host(got), mixed)
    twice = torch_library.host(seconds[0][0])
    np.testing.assert_allclose(np.delete(twice, 3, axis=1), 1e12)
    np.testing.assert_allclose(twice[:, 3], y[:, 3] / 0.3**2 + (1 - y[:, 3]) / 0.7**2)


def test_zeros_without_memory(torch_library: Library) -> None:
    """Those of forward-mode AD, as operands, weights, scales, grad_outputs and tangents."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"

    def zeros(*shape: int) -> Any:
        return torch._efficientzerotensor(shape, device=device)

    x, classes = torch.rand(3, 4, device=device), torch.tensor([0, 2, 1], device=device)
    for loss, shape in (
        (lambda t: cupy_losses.mse_loss(t, x), (3, 4)),
        (lambda t: cupy_losses.mse_loss(x, t, weight=1 + t), (3, 4)),
        (lambda t: cupy_losses.mse_loss(x, x + 1, weight=t, reduction="none"), (3, 4)),
        (lambda t: cupy_losses.mse_loss(x, x + 1, scale=t), ()),
        (lambda t: cupy_losses.cross_entropy(t, classes), (3, 4)),
        (lambda t: cupy_losses.cross_entropy(x, classes, weight=t, reduction="sum"), (4,)),
    ):
        pairs = []
        for zero in (zeros(*shape), torch.zeros(shape, device=device)):
            leaf = x.clone().requires_grad_()
            each = cupy_losses.mse_loss(leaf, x + 1, reduction="none")
            (slope,) = torch.autograd.grad(each, leaf, zero.expand(3, 4), create_graph=True)
            (second,) = torch.autograd.grad(slope, leaf, zero.expand(3, 4))
            leaf = zero.clone().requires_grad_()
            by_leaf = torch.autograd.grad(loss(leaf).sum(), leaf)
            pairs.append([loss(zero), slope, second, *by_leaf])
        torch.testing.assert_close(*pairs)
    reduced = cupy_losses.mse_loss(x.requires_grad_(), x.detach() + 1)
    assert not torch.autograd.grad(reduced, x, zeros())[0].any()
    if device == "cpu":
        assert cupy_losses.mse_loss(np.ones((3, 4)), zeros(3, 4)) == 1
    with pytest.raises(ValueError, match="input must not be .* zeros without memory"):
        cupy_losses.value_and_grad(cupy_losses.cross_entropy)(
            zeros(3, 4), classes, overwrite_input=True
        )


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_masked_elements_count_for_nothing(case: Case, library: Library) -> None:
    """Even if they are NaN: the same loss and gradient as of the elements that are left."""
    rng = np.random.default_rng(3)
    hosts, where = case.draw(rng, (40, 9), np.float32), rng.random((40, 9)) < 0.6
    weight = rng.random((40, 9)).astype(np.float32)
    broken = [np.where(where, host, np.float32(np.nan)) for host in (*hosts, weight)]
    arrays = [library.array(host) for host in broken]
    mask = library.array(where)
    argnums = tuple(range(len(hosts)))
    for reduction, weighted in itertools.product(("mean", "sum"), (False, True)):
        options = {"reduction": reduction, **case.parameters}
        extra = {"weight": arrays[-1]} if weighted else {}
        value, gradients = cupy_losses.value_and_grad(case.loss, argnums)(
            *arrays[:-1], where=mask, **options, **extra
        )
        left = [host[where] for host in (*hosts, weight)]
        extra = {"weight": left[-1]} if weighted else {}
        expected, slopes = cupy_losses.value_and_grad(case.loss, argnums)(
            *left[:-1], **options, **extra
        )
        factor = 1.0
        if case.rows and reduction == "sum":
            factor = left[0].size / 9  # one row of all that are left
        close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-7)
        close(library.host(value), factor * expected)
        for gradient, slope in zip(gradients, slopes, strict=True):
            host = library.host(gradient)
            close(host[where], factor * slope)
            assert (host[~where] == 0).all()
    each = library.host(case.loss(*arrays[:-1], where=mask, reduction="none", **case.parameters))
    assert np.isfinite(each).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_everything_masked(library: Library, weighted: bool) -> None:
    """A mean of nothing is NaN; the gradients are 0, that of a broadcast operand too."""
    input, target = library.array(np.ones((3, 4), np.float32)), library.array(np.ones((3, 1), "f4"))
    options = {"where": library.array(np.zeros(4, bool))}
    if weighted:
        options["weight"] = library.array(np.ones((3, 4), np.float32))
    value, gradients = cupy_losses.value_and_grad(cupy_losses.hinge_loss, (0, 1))(
        input, target, **options
    )
    assert math.isnan(library.host(value))
    assert all((library.host(gradient) == 0).all() for gradient in gradients)
    assert library.host(cupy_losses.hinge_loss(input, target, reduction="sum", **options)) == 0


def test_masked_nan_in_backward(torch_library: Library) -> None:
    """Neither a NaN operand nor a NaN grad_output reaches a masked element."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input = torch.tensor([1.0, math.nan, 3.0], device=device, requires_grad=True)
    where = torch.tensor([True, False, True], device=device)
    zero = torch.zeros(3, device=device)
    each = cupy_losses.mse_loss(input, zero, where=where, reduction="none")
    each.backward(torch.tensor([1.0, math.nan, 1.0], device=device))
    assert input.grad is not None
    assert input.grad.tolist() == [2.0, 0.0, 6.0]
    (gradient,) = torch.autograd.grad(
        cupy_losses.mse_loss(input, zero, where=where), input, create_graph=True
    )
    (second,) = torch.autograd.grad(gradient.sum(), input)
    assert second.tolist() == [1.0, 0.0, 1.0]


def test_kl_div_reductions(torch_library: Library) -> None:
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input, target = torch.randn(4, 5, device=device), torch.rand(4, 5, device=device)
    got = cupy_losses.kl_div(input, target, reduction="batchmean")
    torch.testing.assert_close(
        got, torch.nn.functional.kl_div(input, target, reduction="batchmean")
    )
    leaf = input.clone().requires_grad_()
    cupy_losses.kl_div(leaf, target, reduction="batchmean").backward()
    torch.testing.assert_close(leaf.grad, -target / 4)


def test_kl_div_mean_warns(library: Library) -> None:
    ones = library.array(np.ones(3, np.float32))
    with pytest.warns(UserWarning, match="'batchmean' divides") as caught:
        cupy_losses.kl_div(ones, ones)
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="'batchmean'"):
        cupy_losses.kl_div(ones, ones, reduction="average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'none', 'mean' or 'sum', got 'batchmean'"):
        cupy_losses.mse_loss(ones, ones, reduction="batchmean")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(4, 5), (4, 1), (1, 5), (4,)])
@pytest.mark.parametrize("full", [False, True])
def test_gaussian_nll_variances(torch_library: Library, shape: tuple[int, ...], full: bool) -> None:
    """Every shape of variance that torch takes, with values below eps; a number too."""
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input, target = (torch.randn(4, 5, device=device).requires_grad_() for _ in range(2))
    var = torch.rand(shape, device=device)
    var.view(-1)[0] = 0.0
    var.requires_grad_()
    operands = input, target, var
    got = cupy_losses.gaussian_nll_loss(*operands, full, eps=1e-3)
    expected = torch.nn.functional.gaussian_nll_loss(*operands, full, eps=1e-3)
    torch.testing.assert_close(got, expected)
    pairs = [torch.autograd.grad(loss, operands) for loss in (got, expected)]
    torch.testing.assert_close(*pairs)
    got = cupy_losses.gaussian_nll_loss(input, target, 0.7, full)
    torch.testing.assert_close(got, torch.nn.functional.gaussian_nll_loss(input, target, 0.7, full))


def test_gaussian_nll_errors(library: Library) -> None:
    ones = library.array(np.ones((4, 5), np.float32))
    with pytest.raises(ValueError, match=r"var must have the shape of input"):
        cupy_losses.gaussian_nll_loss(ones, ones, library.array(np.ones((5,), np.float32)))
    with pytest.raises(ValueError, match="var must be >= 0"):
        cupy_losses.gaussian_nll_loss(ones, ones, -1.0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pos_weight(torch_library: Library, reduction: str, weighted: bool) -> None:
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    generator = torch.Generator().manual_seed(0)
    input, target, weight = (torch.rand(6, 4, generator=generator).to(device) for _ in range(3))
    pos_weight = torch.rand(4, generator=generator).to(device)
    operands = [(5 * input).requires_grad_(), target.requires_grad_()]
    options: dict[str, Any] = {"weight": weight} if weighted else {}
    options |= {"pos_weight": pos_weight, "reduction": reduction}
    results = []
    for module in (cupy_losses, torch.nn.functional):
        loss = module.binary_cross_entropy_with_logits(*operands, **options)
        results.append((loss, torch.autograd.grad((loss * loss).sum(), operands)))
    torch.testing.assert_close(*results)
    differentiable = [x.detach().double().requires_grad_() for x in (*operands, pos_weight)]
    del options["pos_weight"]
    assert torch.autograd.gradcheck(  # torch has no gradient by pos_weight
        lambda x, y, p: cupy_losses.binary_cross_entropy_with_logits(x, y, pos_weight=p, **options),
        differentiable,
    )


@pytest.mark.parametrize("shape", [(3, 7), (7,), (2, 3, 700), (3, 1)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_multilabel_rows(
    torch_library: Library, shape: tuple[int, ...], reduction: str, weighted: bool
) -> None:
    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    input = torch.randn(shape, device=device).requires_grad_()
    target = (torch.rand(shape, device=device) < 0.5).float()
    options = {"weight": torch.rand(shape, device=device)} if weighted else {}
    results = []
    for module in (cupy_losses, torch.nn.functional):
        loss = module.multilabel_soft_margin_loss(input, target, reduction=reduction, **options)
        (first,) = torch.autograd.grad((loss * loss).sum(), input, create_graph=True)
        results.append((loss, first, torch.autograd.grad((first * first).sum(), input)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "name",
    ["binary_cross_entropy", "binary_cross_entropy_with_logits", "sigmoid_focal_loss"],
)
def test_sizes_must_agree(library: Library, name: str) -> None:
    """The message has no shape but theirs, and says what to pass where the elements are as many."""
    ones, row, column = (
        library.array(np.ones(shape, np.float32)) for shape in ((3, 4), (4,), (4, 1))
    )
    loss = getattr(cupy_losses, name)
    begin, advice = (
        r"^target must have the shape of input, ",
        r": pass target.reshape\(input.shape\)$",
    )
    for operands, message in (
        ((ones, row), r"\(3, 4\), got \(4,\)$"),
        ((row, ones), r"\(4,\), got \(3, 4\)$"),
        ((column, row), rf"\(4, 1\), got \(4,\){advice}"),
        ((row, column), rf"\(4,\), got \(4, 1\){advice}"),
    ):
        with pytest.raises(ValueError, match=f"{begin}{message}"):
            loss(*operands)


def test_a_weight_that_is_too_large_is_named(library: Library) -> None:
    ones, row = (library.array(np.ones(shape, np.float32)) for shape in ((3, 4), (4,)))
    for name in ("weight", "pos_weight"):
        with pytest.raises(
            ValueError, match=rf"^{name} of shape \(3, 4\) does not broadcast to \(4,\)"
        ):
            cupy_losses.binary_cross_entropy_with_logits(row, row, **{name: ones})
    # torch makes more rows, as docs/deviations.md says.
    with pytest.raises(ValueError, match=r"^weight of shape \(3, 4\) does not broadcast to \(4,\)"):
        cupy_losses.multilabel_soft_margin_loss(row, row, weight=ones)


def test_focal_loss_of_any_gamma(library: Library) -> None:
    """gamma = 0 is the cross entropy, 2 takes a way of its own."""
    rng = np.random.default_rng(0)
    hosts = [3 * rng.standard_normal(50).astype(np.float32), (rng.random(50) < 0.5).astype("f4")]
    x, y = map(library.array, hosts)
    for got, expected in (
        (
            cupy_losses.sigmoid_focal_loss(x, y, alpha=-1, gamma=0),
            cupy_losses.binary_cross_entropy_with_logits(x, y, reduction="none"),
        ),
        (
            cupy_losses.sigmoid_focal_loss(x, y, gamma=2),
            cupy_losses.sigmoid_focal_loss(x, y, gamma=2 * (1 + 2.0**-23)),
        ),
    ):
        np.testing.assert_allclose(library.host(got), library.host(expected), rtol=1e-5)


def test_a_copy_is_kept_for_the_stream_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but the exporter has the copy of a tensor that is negated when it is read."""
    kept: list[tuple[Any, Any]] = []
    waiting = SimpleNamespace(wait_event=lambda event: None, record_event=lambda: None)
    monkeypatch.setattr(library, "_current_stream", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: waiting)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: waiting)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *given: kept.append(given))
    x = torch.ones(3)
    negated = torch.complex(x, x).conj().imag
    assert negated.is_neg()
    for tensor, copies in ((x, 0), (negated, 1)):
        library.Exporter(tensor).located(tensor.get_device(), 8)
        assert len(kept) == copies
    assert kept[0][0].tolist() == [-1.0] * 3
    assert kept[0][1] is waiting

"""Gradients: value_and_grad on every library, autograd on torch, first and second order."""

from __future__ import annotations

import functools
import gc
import itertools
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
from cupy_losses import (
    gaussian_nll_loss,
    grad,
    mse_loss,
    smooth_l1_loss,
    triplet_margin_loss,
    value_and_grad,
    vjp,
)
from cupy_losses._core.dtypes import dtype_name
from cupy_losses._core.types import Reduction

from .. import emulator
from ..tables.arrays import DTYPES, Library, ulps
from ..tables.losses import LOSSES, Case, count, sign
from ..tools import levels
from .test_values import SIZES, exact

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*mean. divides",  # kl_div's
    "ignore:.* is broadcast with",
)

Tensor = torch.Tensor
REDUCTIONS = ("none", "mean", "sum")


def gradient_bound(case: Case, dtype: str, on_host: bool = False) -> float:
    """The promised error of a gradient, in ulps."""
    if dtype in ("float16", "bfloat16"):
        return 1
    if case.exact:
        return 3
    return 16 if dtype == "float64" and not on_host else case.ulps


def device(library: Library) -> str:
    """torch's device for a library of tensors."""
    return "cuda" if library.name == "torch cuda" else "cpu"


@pytest.mark.parametrize(("case", "size", "dtype"), levels.covering(16, LOSSES, SIZES, DTYPES))
def test_value_and_grad(
    case: Case, library: Library, size: int, dtype: str, rng: np.random.Generator
) -> None:
    hosts = case.draw(rng, size, DTYPES[dtype])
    weight, where = rng.random(size).astype(DTYPES[dtype]), rng.random(size) < 0.7
    where[0] = True
    arrays = [library.array(host) for host in hosts]
    slopes, scales = case.slopes_and_scales(*hosts)
    argnums = tuple(range(len(hosts)))
    for reduction, (given, mask) in itertools.product(
        ("mean", "sum"), ((None, None), (weight, None), (None, where), (weight, where))
    ):
        extra = {"weight": given, "where": mask}
        options = {name: library.array(host) for name, host in extra.items() if host is not None}
        options |= {"reduction": reduction, **case.parameters}
        value, gradients = value_and_grad(case.loss, argnums)(*arrays, **options)
        alone = case.loss(*arrays, **options)
        assert library.host(value).tobytes() == library.host(alone).tobytes()
        factor = np.ones(size, np.longdouble) if given is None else exact(given)
        divisor = case.divisor(slopes[0], reduction, None if given is None else factor, mask)
        if mask is not None:
            factor = np.where(mask, factor, 0)
        for got, slope, scale in zip(gradients, slopes, scales, strict=True):
            largest = None if case.exact else scale * factor / divisor
            error = ulps(library.host(got), slope * factor / divisor, largest)
            # A weight is one more factor.
            most = gradient_bound(case, dtype, library.on_host) + (given is not None)
            assert error <= most, reduction


@pytest.mark.parametrize("case", [case for case in LOSSES if not case.same_shape], ids=str)
def test_gradient_of_a_broadcast_operand_is_summed(
    case: Case, library: Library, rng: np.random.Generator
) -> None:
    """Each axis alone, several, all; short and long repeats; one and two stages of summation."""
    shapes = [
        ((37, 3), (3,)),
        ((3, 70), (3, 1)),
        ((5, 4, 6), (4, 1)),
        ((1, 6), (5, 1)),
        ((70, 90), ()),
    ]
    shapes += [((3000, 11), (11,)), ((2, 30000), (2, 1)), ((300, 2, 40), (2, 40))]
    if len(case.draws) > 2:  # torch wants the same number of dimensions, or of the shape of input
        shapes = [pair for pair in shapes if len(pair[0]) == len(pair[1])][:-1]
    for pair in shapes:
        hosts = case.draw(rng, pair, np.float32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is broadcast")
            _, gradients = value_and_grad(case.loss, (0, 1))(
                *map(library.array, hosts), reduction="sum", **case.parameters
            )
        slopes, scales = case.slopes_and_scales(*hosts)
        divisor = case.divisor(slopes[0], "sum")
        parts = gradients, hosts[:2], slopes[:2], scales[:2]
        for got, host, slope, scale in zip(*parts, strict=True):
            own = (1,) * (slope.ndim - host.ndim) + host.shape
            axes = tuple(d for d, length in enumerate(own) if length == 1)
            reference = slope.sum(axis=axes, keepdims=True).reshape(host.shape) / divisor
            terms = abs(slope) if case.exact else np.broadcast_to(scale, slope.shape)
            magnitude = terms.sum(axis=axes, keepdims=True).reshape(host.shape) / divisor
            error = abs(exact(library.host(got)) - reference)
            limit = 3 if case.exact else 8
            assert (error <= limit * 2.0**-24 * np.maximum(magnitude, 2.0**-20)).all()


def test_argnums_and_partial(library: Library) -> None:
    input, target = (library.array(np.array(x, np.float32)) for x in ([0.0, 3.0], [1.0, 1.0]))
    value, by_target = value_and_grad(mse_loss, argnums=1)(input, target)
    np.testing.assert_array_equal(library.host(by_target), [1.0, -2.0])
    assert float(library.host(value)) == 2.5
    np.testing.assert_array_equal(library.host(grad(mse_loss, -1)(input, target)), [1.0, -2.0])
    half = functools.partial(smooth_l1_loss, beta=0.5)
    (single,) = value_and_grad(half, (0,))(input, target)[1]
    np.testing.assert_array_equal(library.host(single), [-0.5, 0.5])


def out_of_order(array: Callable[[Any], Any]) -> list[tuple[np.dtype[Any], Any, Any]]:
    """Dtypes of operands, gradients by them in the order of argnums, and each of these alone."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.random((6, 4)).astype(dtype) for dtype in ("f4", "f8", "f4"))
    cases: list[tuple[Any, list[Any]]] = [
        (mse_loss, [a, b]),
        (mse_loss, [a, b[:1]]),
        (triplet_margin_loss, [a, b, c]),
    ]
    found = []
    for loss, hosts in cases:
        arrays = [array(x) for x in hosts]
        for argnums in itertools.permutations(range(len(hosts))):
            one = array(np.ones((), np.float64))
            for gradients in (
                value_and_grad(loss, argnums)(*arrays)[1],
                grad(loss, argnums)(*arrays),
                vjp(loss, arrays, one, argnums),
            ):
                for k, gradient in zip(argnums, gradients, strict=True):
                    found.append((hosts[k].dtype, gradient, grad(loss, k)(*arrays)))
    return found


def test_argnums_in_any_order(library: Library) -> None:
    for dtype, gradient, alone in out_of_order(library.array):
        assert library.host(gradient).dtype == dtype
        np.testing.assert_allclose(library.host(gradient), library.host(alone), rtol=1e-6)


def test_argnums_in_any_order_on_a_device() -> None:
    emulator.require()
    with emulator.installed(seed=1) as device:
        found = device.together(out_of_order, device.asarray)
    for dtype, gradient, alone in found:
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient.get(), alone.get(), rtol=1e-6)


def test_a_variance_without_its_last_axis(library: Library) -> None:
    """Has one of length 1, as its gradient."""
    x, y, var = (library.array(np.full(shape, 2.0)) for shape in ((3, 2), (3, 2), (3,)))
    gradient = grad(gaussian_nll_loss, 2)(x, y, var)
    assert library.host(gradient).shape == (3, 1)


def test_transform_errors() -> None:
    x = np.ones(3, np.float32)

    with pytest.raises(ValueError, match="each argument once"):
        grad(mse_loss, (0, -2))(x, x)
    with pytest.raises(TypeError, match="argnums"):
        grad(mse_loss, True)(x, x)
    with pytest.raises(ValueError, match="argnums"):
        value_and_grad(mse_loss, 2)(x, x)
    with pytest.raises(ValueError, match="reduction"):
        grad(mse_loss)(x, x, reduction="none")
    with pytest.raises(TypeError, match="target must be floating"):
        grad(mse_loss, 1)(x, np.ones(3, np.int64))


def pair(library: Library, *shapes: tuple[int, ...], dtype: Any = torch.float64) -> list[Tensor]:
    """Random leaves away from the kinks."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5)
        .to(dtype)
        .to(device(library))
        .requires_grad_()
        for shape in shapes
    ]


def leaves(
    library: Library, case: Case, shapes: Any, dtype: Any = torch.float64, seed: int = 1
) -> list[Tensor]:
    """Random operands of a loss, away from its kinks."""
    hosts = case.draw(np.random.default_rng(seed), shapes)
    tensors = [torch.from_numpy(host).to(dtype).to(device(library)) for host in hosts]
    return [tensor.requires_grad_() for tensor in tensors]


DISCRETE = (count, sign)  # what no derivative by is compared with differences


def shapes_of(case: Case) -> list[tuple[tuple[int, ...], ...]]:
    """Shapes of the first two operands that a loss takes: equal ones, or some that broadcast."""
    shapes: list[tuple[tuple[int, ...], ...]] = [((3, 4), (3, 4))]
    if not case.same_shape and len(case.draws) == 2:
        shapes += [((3, 4), (4,)), ((3, 1), (1, 4))]
    return shapes if case.rows else [*shapes, ((), ())]


@pytest.mark.parametrize(
    ("case", "shapes", "reduction", "extra"),
    [
        levels.case(case, *others, default=(number + turn) % 7 == 0, id=f"{case}-{others}")
        for number, case in enumerate(LOSSES)
        for turn, others in enumerate(
            itertools.product(shapes_of(case), REDUCTIONS, ["", "weight", "where"])
        )
    ],
)
@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_gradcheck(
    case: Case, torch_library: Library, reduction: str, shapes: Any, extra: str
) -> None:
    """First and second derivatives, by all operands, against differences."""
    operands = [
        operand if draw not in DISCRETE else operand.detach()
        for operand, draw in zip(leaves(torch_library, case, shapes), case.draws, strict=True)
    ]
    shape = torch.broadcast_shapes(*shapes)
    options: dict[str, Tensor] = {}
    if extra == "weight":
        options["weight"] = torch.linspace(0.5, 2, max(1, int(np.prod(shape))), dtype=torch.float64)
    if extra == "where":
        options["where"] = torch.arange(max(1, int(np.prod(shape)))) % 3 != 1
    options = {k: v.reshape(shape).to(device(torch_library)) for k, v in options.items()}

    def loss(*operands: Tensor) -> Tensor:
        return case.loss(*operands, reduction=reduction, **case.parameters, **options)

    assert torch.autograd.gradcheck(loss, operands)
    assert torch.autograd.gradgradcheck(loss, operands)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_backward_with_any_grad_output(
    case: Case, torch_library: Library, reduction: str, dtype: Any
) -> None:
    """A scaled loss, as in mixed-precision training, in one call and accumulated."""
    operands = leaves(torch_library, case, (37, 8), dtype)
    result = case.loss(*operands, reduction=reduction, **case.parameters)
    got = torch.autograd.grad(result, operands, torch.full_like(result, 4096.0))
    hosts = [torch_library.host(x) for x in operands]
    slopes, scales = case.slopes_and_scales(*hosts)
    factor = 4096 / case.divisor(slopes[0], reduction)
    name = dtype_name(dtype)
    for gradient, slope, scale in zip(got, slopes, scales, strict=True):
        largest = None if case.exact else factor * scale
        host = torch_library.host(gradient)
        most = gradient_bound(case, name, torch_library.on_host)
        assert ulps(host, factor * slope, largest) <= most


def test_scaling_does_not_lose_what_underflows_in_float16(torch_library: Library) -> None:
    """1/N times a small error underflows; scaled by 32768 it must not."""
    input = torch.full((4096,), 1e-3, dtype=torch.float16, device=device(torch_library))
    input.requires_grad_()
    loss = mse_loss(input, torch.zeros_like(input), reduction="mean").float()
    (loss * 32768).backward()
    assert input.grad is not None
    expected = 32768 * 2 * input.detach().double() / 4096
    torch.testing.assert_close(input.grad.double(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_backward_twice_gives_new_memory(case: Case, torch_library: Library) -> None:
    operands = leaves(torch_library, case, 50)
    input = operands[0]
    result = case.loss(*operands, reduction="mean", **case.parameters)
    first = torch.autograd.grad(result, input, retain_graph=True)[0]
    kept = first.clone()
    second = torch.autograd.grad(2 * result, input, retain_graph=True)[0]
    assert first.data_ptr() != second.data_ptr()
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    torch.testing.assert_close(second, 2 * kept)
    first.zero_()
    third = torch.autograd.grad(result, input)[0]
    torch.testing.assert_close(third, kept)


@pytest.mark.parametrize("which", [0, 1])
def test_modified_input_raises(torch_library: Library, which: int) -> None:
    operands = pair(torch_library, (5,), (5,))
    result = mse_loss(*operands)
    with torch.no_grad():
        operands[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_only_what_requires_grad_gets_one(torch_library: Library) -> None:
    input, target = pair(torch_library, (5,), (5,))
    mse_loss(input, target.detach()).backward()
    assert input.grad is not None
    assert target.grad is None
    mse_loss(input.detach(), target).backward()
    assert target.grad is not None
    with torch.no_grad():
        assert not mse_loss(input, target).requires_grad


def test_gradient_penalty(torch_library: Library) -> None:
    """A second derivative where grad_output itself requires no grad."""
    input, target = pair(torch_library, (6,), (6,))
    (gradient,) = torch.autograd.grad(mse_loss(input, target), input, create_graph=True)
    gradient.pow(2).sum().backward()
    assert input.grad is not None
    assert target.grad is not None
    expected = 2 * (2 / 6) ** 2 * (input - target).detach()
    torch.testing.assert_close(input.grad, expected)
    torch.testing.assert_close(target.grad, -expected)


def test_third_derivatives_raise(torch_library: Library) -> None:
    input, target = pair(torch_library, (6,), (6,))
    (first,) = torch.autograd.grad(mse_loss(input, target), input, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(3).sum(), input, create_graph=True)
    with pytest.raises(NotImplementedError, match="third derivatives"):
        second.sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradient_of_the_weight(torch_library: Library, reduction: Reduction) -> None:
    input, target, weight = pair(torch_library, (4, 3), (4, 3), (4, 3))

    def loss(weight: Tensor) -> Tensor:
        return mse_loss(input.detach(), target.detach(), weight=weight, reduction=reduction)

    assert torch.autograd.gradcheck(loss, weight)
    assert torch.autograd.gradgradcheck(loss, weight)
    result = cupy_losses.huber_loss(input.detach(), target.detach(), weight=weight)
    result.backward()
    assert weight.grad is not None


@pytest.fixture
def held(torch_library: Library) -> Iterator[Callable[[], int]]:
    """A function that tells how many bytes of arrays are alive: NumPy's on the host."""
    tracemalloc.start()

    def count() -> int:
        gc.collect()
        on_device = torch_library.name == "torch cuda"
        return torch.cuda.memory_allocated() if on_device else tracemalloc.get_traced_memory()[0]

    yield count
    tracemalloc.stop()


def test_nothing_large_is_kept(torch_library: Library, held: Callable[[], int]) -> None:
    """Without grad only the loss stays alive; with it the inputs and one gradient."""
    size = 100_000
    input, target = pair(torch_library, (size,), (size,))
    mse_loss(input, target.detach()).backward()  # what is imported and compiled for the first time
    input.grad = None
    before, array = held(), 8 * size
    kept = mse_loss(input.detach(), target.detach())
    assert held() - before < array / 4
    assert kept.numel() == 1
    result = mse_loss(input, target.detach())
    assert array <= held() - before < 1.25 * array
    result.backward()
    assert input.grad is not None
    assert array <= held() - before < 1.25 * array
    input.grad = None
    assert held() - before < array / 4


def test_forward_and_backward_agree_on_values(torch_library: Library) -> None:
    """The loss has the same bits with and without a gradient to compute."""
    for case in LOSSES:
        operands = leaves(torch_library, case, 10_007, torch.float32)
        options = {"reduction": "mean", **case.parameters}
        with_grad = case.loss(*operands, **options).detach()
        without = case.loss(*(x.detach() for x in operands), **options)
        assert with_grad.item() == without.item()


def test_mixed_dtypes_give_each_gradient_its_own(torch_library: Library) -> None:
    input, target = pair(torch_library, (64,), (64,))
    low = input.detach().bfloat16().requires_grad_()
    result = mse_loss(low, target)
    assert result.dtype == torch.float64
    result.backward()
    assert low.grad is not None
    assert low.grad.dtype == torch.bfloat16
    assert target.grad is not None
    assert target.grad.dtype == torch.float64


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_backward_of_nothing(torch_library: Library, reduction: Reduction) -> None:
    """No elements, and an operand that is broadcast to none."""
    where = device(torch_library)
    input = torch.zeros(0, 3, device=where, requires_grad=True)
    target = torch.ones(1, 3, device=where, requires_grad=True)
    result = mse_loss(input, target, reduction=reduction)
    result.backward(torch.ones_like(result))
    assert input.grad is not None
    assert input.grad.shape == (0, 3)
    assert target.grad is not None
    assert target.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_grad_output_with_a_negative_bit(torch_library: Library, reduction: Reduction) -> None:
    input = torch.tensor([1.0, 2.0], device=device(torch_library), requires_grad=True)
    zero = torch.zeros(2, device=device(torch_library))
    for loss in (mse_loss, torch.nn.functional.mse_loss):
        result = loss(input, zero, reduction=reduction)
        turned = torch.complex(torch.zeros_like(result), result).conj() * 1j
        turned.real.sum().backward()
    assert input.grad is not None
    scale = 2.0 if reduction == "mean" else 4.0
    assert input.grad.tolist() == [scale, 2 * scale]


def test_double_backward_under_autocast(torch_library: Library) -> None:
    """The sum of 10^5 losses is no float16, nor is the derivative by grad_output."""
    where = device(torch_library)
    input = torch.ones(1000, 100, dtype=torch.float16, device=where, requires_grad=True)
    with torch.autocast(where, dtype=torch.float16 if where == "cuda" else torch.bfloat16):
        loss = mse_loss(input, torch.zeros_like(input), reduction="sum")
    grad_output = torch.ones_like(loss).requires_grad_()
    (gradient,) = torch.autograd.grad(loss, input, grad_output, create_graph=True)
    (second,) = torch.autograd.grad(gradient.float().sum(), grad_output)
    assert second.item() == 200_000


def test_other_kinds_of_differentiation(torch_library: Library) -> None:
    """tests/torch/test_modes.py has them all, on the host."""
    input = torch.tensor([1.0, 2.0, 4.0], device=device(torch_library))
    zero = torch.zeros_like(input)
    with torch.autograd.forward_ad.dual_level():
        dual = mse_loss(torch.autograd.forward_ad.make_dual(input, input), zero)
        assert torch.autograd.forward_ad.unpack_dual(dual).tangent.item() == 14
    assert torch.func.vmap(mse_loss)(input, zero).tolist() == [1, 4, 16]
    torch.testing.assert_close(torch.func.grad(mse_loss)(input, zero), 2 * input / 3)
    each = torch.func.vmap(torch.func.grad(mse_loss))(input, zero)
    torch.testing.assert_close(each, 2 * input)

"""Edge cases as torch has them: kinks, infinities, NaN, signed zeros, dtypes, empty arrays."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import cupy_losses

from .arrays import Library
from .losses import LOSSES, Case

VALUES = [0.0, -0.0, 0.3, 0.7, 1.0, -1.0, 1.5, -0.3, 1e30, 1e-30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("case", LOSSES, ids=str)
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


@pytest.mark.parametrize("case", LOSSES, ids=str)
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
    empty = library.array(np.zeros(shape, np.float32))
    assert math.isnan(library.host(case.loss(empty, empty, **case.parameters)))
    assert library.host(case.loss(empty, empty, reduction="sum", **case.parameters)) == 0
    assert tuple(case.loss(empty, empty, reduction="none", **case.parameters).shape) == shape
    gradient = cupy_losses.grad(case.loss)(empty, empty, **case.parameters)
    assert tuple(gradient.shape) == shape


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


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_integer_target(case: Case, library: Library) -> None:
    input = np.linspace(-2, 2, 17, dtype=np.float32)
    for dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
        target = (np.arange(17) % 2).astype(dtype)
        got = case.loss(library.array(input), library.array(target), **case.parameters)
        float_target = library.array(target.astype(np.float32))
        expected = case.loss(library.array(input), float_target, **case.parameters)
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

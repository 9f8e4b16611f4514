"""Derivatives along tangents and second derivatives, of arrays of every library."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupy_losses.nn.functional
from cupy_losses import (
    binary_cross_entropy,
    charbonnier_loss,
    cross_entropy,
    gaussian_nll_loss,
    grad,
    grad_and_hess,
    huber_loss,
    hvp,
    jvp,
    kl_div,
    log_cosh_loss,
    mse_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    pointwise_loss,
    value_and_grad,
    vjp,
)

from .. import emulator
from ..tables.arrays import Library
from ..tables.losses import LOSSES, Case
from ..tools import levels

pytestmark = pytest.mark.filterwarnings("ignore:reduction 'mean'")  # that of kl_div

ELEMENTWISE = [case for case in LOSSES if case.name != "multilabel_soft_margin_loss"]
STEP = np.longdouble(1e-7)


def hosts_of(case: Case, rng: np.random.Generator, size: int = 100) -> list[Any]:
    hosts: list[Any] = list(case.draw(rng, size, np.dtype(np.float64)))
    return hosts


def curvatures(case: Case, hosts: Any, tangents: Any) -> Any:
    """The derivative of the slope by the first operand along tangents, by differences."""
    sides = []
    for sign in (1, -1):
        moved = [
            x.astype(np.longdouble) + (0 if t is None else sign * STEP * t)
            for x, t in zip(hosts, tangents, strict=True)
        ]
        sides.append(case.slopes(*moved)[0])
    return (sides[0] - sides[1]) / (2 * STEP)


@pytest.mark.parametrize("case", levels.first(ELEMENTWISE, 4), ids=str)
def test_gradient_and_hessian(case: Case, library: Library, rng: np.random.Generator) -> None:
    """Those of each element's loss; weighted, and 0 where a mask leaves elements out."""
    hosts = hosts_of(case, rng)
    arrays = [library.array(host) for host in hosts]
    slope = case.slopes(*(x.astype(np.longdouble) for x in hosts))[0]
    ones = [np.ones_like(hosts[0]), *[None] * (len(hosts) - 1)]
    curvature = curvatures(case, hosts, ones)
    weight, where = rng.random(100), rng.random(100) < 0.7
    both = grad_and_hess(functools.partial(case.loss, **case.parameters))
    chosen = {"weight": library.array(weight), "where": library.array(where)}
    options: dict[str, Any]
    for options, factor in (({}, np.ones(100)), (chosen, weight * where)):
        gradient, hessian = (library.host(x) for x in both(*arrays, **options))
        assert gradient.dtype == hessian.dtype == np.float64
        np.testing.assert_allclose(gradient, slope * factor, rtol=1e-11, atol=1e-13)
        largest = np.abs(curvature).max()
        np.testing.assert_allclose(hessian, curvature * factor, rtol=1e-6, atol=1e-7 * largest)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", levels.first(ELEMENTWISE, 4), ids=str)
def test_along_tangents(
    case: Case, library: Library, reduction: str, rng: np.random.Generator
) -> None:
    """Of one operand and of all of them."""
    hosts = hosts_of(case, rng)
    arrays = [library.array(host) for host in hosts]
    wide = [x.astype(np.longdouble) for x in hosts]
    slopes, options = case.slopes(*wide), {"reduction": reduction, **case.parameters}
    divisor = case.divisor(slopes[0], reduction, None, None) if reduction != "none" else 1
    whole = [rng.standard_normal(100) for _ in hosts]
    for directions in (whole, [whole[0], *[None] * (len(hosts) - 1)]):
        tangents = [None if t is None else library.array(t) for t in directions]
        value, derivative = jvp(case.loss, arrays, tangents, **options)
        assert np.array_equal(library.host(value), library.host(case.loss(*arrays, **options)))
        pairs = zip(slopes, directions, strict=True)
        each = sum(slope * t for slope, t in pairs if t is not None)
        expected = each if reduction == "none" else each.sum() / divisor
        np.testing.assert_allclose(
            library.host(derivative), expected, rtol=1e-10, atol=1e-10 * np.abs(each).max()
        )
        if reduction == "none":
            continue
        product = library.host(hvp(case.loss, arrays, tangents, **options))
        exact = curvatures(case, hosts, directions) / divisor
        np.testing.assert_allclose(product, exact, rtol=1e-6, atol=1e-7 * np.abs(exact).max())


def test_losses_of_rows(library: Library, rng: np.random.Generator) -> None:
    """Of cross_entropy, as torch.func has them."""
    logits, tangent = rng.standard_normal((2, 6, 5))
    classes = rng.integers(0, 5, 6)
    x, t, y = (torch.from_numpy(a) for a in (logits, tangent, classes))
    pair: Any = torch.func.jvp(lambda x: F.cross_entropy(x, y), (x,), (t,))
    gradient = torch.func.grad(lambda x: F.cross_entropy(x, y))
    _, product = torch.func.jvp(gradient, (x,), (t,))[:2]
    primals = library.array(logits), library.array(classes)
    got = jvp(cross_entropy, primals, (library.array(tangent), None))
    np.testing.assert_allclose([float(library.host(v)) for v in got], pair)
    along = hvp(cross_entropy, primals, (library.array(tangent), None))
    np.testing.assert_allclose(library.host(along), product.numpy(), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("case", levels.first(ELEMENTWISE, 4), ids=str)
def test_times_a_cotangent(case: Case, library: Library, rng: np.random.Generator) -> None:
    """Of each element's loss, by all operands; of a mean, a number."""
    hosts = hosts_of(case, rng)
    arrays = [library.array(host) for host in hosts]
    slopes = case.slopes(*(x.astype(np.longdouble) for x in hosts))
    cotangent, numbers = rng.standard_normal(100), range(len(hosts))
    options = {"reduction": "none", **case.parameters}
    gradients = vjp(case.loss, arrays, library.array(cotangent), [*numbers], **options)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(library.host(gradient), cotangent * slope, 1e-11, 1e-13)
    three = library.array(np.array(3.0))
    options["reduction"] = "mean"
    got = vjp(case.loss, arrays, three, **options)
    expected = 3 * library.host(value_and_grad(case.loss)(*arrays, **options)[1])
    np.testing.assert_allclose(library.host(got), expected, 1e-12, 1e-15)


def test_rows_times_a_cotangent(library: Library, rng: np.random.Generator) -> None:
    """As torch has them; rows that a mask leaves out have gradient 0 whatever the cotangent is."""
    logits, classes, cotangent = rng.standard_normal((6, 5)), rng.integers(0, 5, 6), np.arange(6.0)
    x, y = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(classes)
    each = F.cross_entropy(x, y, reduction="none")
    (expected,) = torch.autograd.grad(each, x, torch.from_numpy(cotangent))
    primals, where = (library.array(logits), library.array(classes)), cotangent > 1
    got = vjp(cross_entropy, primals, library.array(cotangent), reduction="none")
    np.testing.assert_allclose(library.host(got), expected.numpy(), 1e-12, 1e-15)
    infinite = library.array(np.where(where, cotangent, np.inf))
    options = {"reduction": "none", "where": library.array(where)}
    got = vjp(cross_entropy, primals, infinite, **options)
    np.testing.assert_allclose(library.host(got), expected.numpy() * where[:, None], 1e-12, 1e-15)


def test_means_of_rows_times_a_cotangent(library: Library, rng: np.random.Generator) -> None:
    logits, cotangent = rng.standard_normal((6, 5)), rng.standard_normal(6)
    labels = rng.integers(0, 2, (6, 5)).astype(float)
    x = torch.from_numpy(logits).requires_grad_()
    each = F.multilabel_soft_margin_loss(x, torch.from_numpy(labels), reduction="none")
    (expected,) = torch.autograd.grad(each, x, torch.from_numpy(cotangent))
    primals = library.array(logits), library.array(labels)
    loss = functools.partial(multilabel_soft_margin_loss, reduction="none")
    got = vjp(loss, primals, library.array(cotangent))
    np.testing.assert_allclose(library.host(got), expected.numpy(), 1e-12, 1e-15)


FAR = np.array([-40, -20, -10, -3, -1, -0.25, 2.0**-10, 0.5, 1, 2, 5, 9, 15, 30])
NEAR = np.full(FAR.shape, 2.0**-7)
PROBABILITIES = np.repeat(np.float64(np.array([1e-5, 0.3, 0.5, 0.7, 1 - 1e-5], "f4")), 3)
LABELS = np.tile([0.0, 0.25, 1.0], 5)
# Losses of an operand x and of another one y; these; the second derivatives by x twice and by both,
# which are small beside what the rule of a product or a quotient would subtract.
SMALL: list[Any] = [
    pytest.param(
        functools.partial(charbonnier_loss, eps=2.0**-10),
        (FAR, NEAR),
        lambda x, y: 2.0**-20 / np.hypot(x - y, 2.0**-10) ** 3,
        lambda x, y: -(2.0**-20) / np.hypot(x - y, 2.0**-10) ** 3,
        id="charbonnier_loss",
    ),
    pytest.param(
        log_cosh_loss,
        (FAR, NEAR),
        lambda x, y: np.cosh(x - y) ** -2,
        lambda x, y: -(np.cosh(x - y) ** -2),
        id="log_cosh_loss",
    ),
    pytest.param(
        pointwise_loss("hypotenuse", lambda input, target: np.hypot(input, target)),
        (FAR, NEAR),
        lambda x, y: y**2 / np.hypot(x, y) ** 3,
        lambda x, y: -x * y / np.hypot(x, y) ** 3,
        id="hypot",
    ),
    pytest.param(
        pointwise_loss("tangent", lambda input, target: np.tanh(input - target)),
        (FAR, NEAR),
        lambda x, y: -2 * np.tanh(x - y) / np.cosh(x - y) ** 2,
        lambda x, y: 2 * np.tanh(x - y) / np.cosh(x - y) ** 2,
        id="tanh",
    ),
    pytest.param(
        binary_cross_entropy,
        (PROBABILITIES, LABELS),
        lambda p, y: y / p**2 + (1 - y) / (1 - p) ** 2,
        lambda p, y: -1 / (p * (1 - p)),
        id="binary_cross_entropy",
    ),
]


def small_seconds(loss: Any, operands: list[Any], one: Any) -> list[Any]:
    """The second derivatives by x twice, from `grad_and_hess` and along a tangent, and by both."""
    along, across = (
        hvp(loss, operands, tangents, reduction="sum") for tangents in ((one, None), (None, one))
    )
    return [grad_and_hess(loss)(*operands)[1], along, across]


@pytest.mark.parametrize(("loss", "hosts", "twice", "mixed"), SMALL)
def test_small_second_derivatives(
    loss: Any, hosts: Any, twice: Any, mixed: Any, library: Library
) -> None:
    """To the last digits, of autograd too."""
    expected = [twice(*hosts), twice(*hosts), mixed(*hosts)]
    arrays = [library.array(host) for host in hosts]
    got = small_seconds(loss, arrays, library.array(np.ones(hosts[0].shape)))
    if library.is_torch:
        for array in arrays:
            array.requires_grad_()
        total = loss(*arrays, reduction="sum")
        (first,) = torch.autograd.grad(total, arrays[:1], create_graph=True)
        got += torch.autograd.grad(first.sum(), arrays)
        expected += expected[1:]
    for result, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(library.host(result), wanted, rtol=1e-13)


@pytest.mark.parametrize(("loss", "hosts", "twice", "mixed"), SMALL)
def test_small_second_derivatives_of_float32(loss: Any, hosts: Any, twice: Any, mixed: Any) -> None:
    emulator.require()
    with emulator.installed(seed=1) as device:
        *arrays, one = (
            device.asarray(host.astype(np.float32)) for host in (*hosts, np.ones(hosts[0].shape))
        )
        got = device.together(small_seconds, loss, arrays, one)
    expected = [twice(*hosts), twice(*hosts), mixed(*hosts)]
    for result, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(result.get(), wanted, rtol=2e-6)


def test_a_loss_of_a_user(library: Library) -> None:
    loss = pointwise_loss(
        "quartic", "pow(input - target, 4) * c", parameters={"c": 1.0}, numpy=_quartic
    )
    x, y = library.array(np.array([1.0, 2.0])), library.array(np.zeros(2))
    gradient, hessian = grad_and_hess(loss)(x, y, c=0.5)
    assert library.host(gradient).tolist() == [2.0, 16.0]
    assert library.host(hessian).tolist() == [6.0, 24.0]
    by_target, _ = grad_and_hess(loss, 1)(x, y)
    assert library.host(by_target).tolist() == [-4.0, -32.0]


def test_dtypes_of_both(library: Library) -> None:
    """The gradient is the value of a pass, and has the dtype of the loss."""
    x, y = library.array(np.ones(2, np.float32)), library.array(np.zeros(2))
    both = grad_and_hess(mse_loss)(x, y)
    assert [str(library.host(found).dtype) for found in both] == ["float64", "float32"]
    both = grad_and_hess(mse_loss)(x, library.array(np.zeros(2, np.float32)))
    assert [str(library.host(found).dtype) for found in both] == ["float32", "float32"]


def _quartic(input: Any, target: Any, c: float) -> Any:
    return np.power(input - target, 4) * c


def test_other_operands_broadcast(library: Library) -> None:
    x, y = library.array(np.arange(6.0).reshape(2, 3)), library.array(np.zeros(()))
    gradient, hessian = grad_and_hess(mse_loss)(x, y)
    assert library.host(gradient).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert library.host(hessian).tolist() == [[2] * 3] * 2


def test_passes() -> None:
    """One launch for gradient and Hessian together, and for a product with the Hessian."""
    emulator.require()
    with emulator.installed(seed=1) as device:
        x, y = (device.asarray(host) for host in np.ones((2, 100), np.float32))
        for function, launches in (
            (lambda: grad_and_hess(huber_loss)(x, y), 1),
            (lambda: hvp(huber_loss, (x, y), (x, None)), 1),
            (lambda: jvp(huber_loss, (x, y), (x, None)), 2),
            (lambda: vjp(huber_loss, (x, y), x, reduction="none"), 1),
            (lambda: vjp(huber_loss, (x, y), device.asarray(np.float32(2.0)), (0, 1)), 1),
        ):
            before = len(device.launches)
            function()
            assert len(device.launches) - before == launches


def test_half_precision(library: Library) -> None:
    """The dtype of the operand."""
    x = library.array(np.linspace(-2, 2, 9, dtype=np.float16))
    gradient, hessian = grad_and_hess(huber_loss)(x, x)
    assert library.host(gradient).dtype == library.host(hessian).dtype == np.float16
    assert library.host(hessian).tolist() == [1.0] * 9


def test_gradients_are_those_of_the_transforms(library: Library) -> None:
    """The same bits as `value_and_grad` of the sum."""
    x = library.array(np.linspace(-3, 3, 50, dtype=np.float32))
    y = library.array(np.zeros(50, np.float32))
    gradient, _ = grad_and_hess(huber_loss)(x, y)
    expected = value_and_grad(huber_loss)(x, y, reduction="sum")[1]
    assert np.array_equal(library.host(gradient), library.host(expected))


X = np.ones(3)
NO_ARRAY: Any = 1.0


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            lambda: jvp(mse_loss, (X, X), (X,)),
            ValueError,
            "must be 2 tangents, of input, target, None for an operand that does not vary, got 1",
        ),
        (lambda: jvp(mse_loss, (X, X), (None, None)), ValueError, "tangent of some operand"),
        (lambda: jvp(mse_loss, (X, X), (X[:1], None)), ValueError, r"input must have shape \(3,\)"),
        (
            lambda: jvp(mse_loss, (X, X), (None, [1.0] * 3)),  # type: ignore[arg-type]
            TypeError,
            r"the tangent of target must be an array as target is, got list: pass "
            r"np.asarray\(tangent\)$",
        ),
        (
            lambda: vjp(mse_loss, (X, X), 1.0),  # type: ignore[call-overload]
            TypeError,
            r"the cotangent must be an array as input is, got float: pass np.asarray\(cotangent\)$",
        ),
        (
            lambda: vjp(mse_loss, (torch.ones(2), torch.ones(2)), 1.0),  # type: ignore[call-overload]
            TypeError,
            r"got float: pass torch.as_tensor\(cotangent\)$",
        ),
        (
            lambda: jvp(mse_loss, (X, X), (X.astype(int), None)),
            TypeError,
            "the tangent of input must be floating, got int64",
        ),
        (
            lambda: jvp(cross_entropy, (np.ones((2, 3)), np.zeros(2, int)), (None, np.zeros(2))),
            TypeError,
            "target must be floating",
        ),
        (lambda: hvp(mse_loss, (X, X), (X, None), reduction="none"), ValueError, "reduction must"),
        (
            lambda: grad(kl_div)(X, X, reduction="none"),
            ValueError,
            "reduction must be 'mean', 'sum' or 'batchmean' to take a gradient, got 'none'",
        ),
        (lambda: grad(mse_loss)(X, X, reduction="none"), ValueError, "vjp .*, grad_and_hess gives"),
        (
            lambda: hvp(mse_loss, (X, X), (X, None), 2),
            ValueError,
            "argnum must be in -2 … 1 for the operands input, target, got 2",
        ),
        (
            lambda: grad(gaussian_nll_loss, 2)(X, X, 0.5),  # no operand, but a number
            ValueError,
            "argnums must be in -2 … 1 for the operands input, target, got 2",
        ),
        (
            lambda: grad_and_hess(mse_loss, 2)(X, X),
            ValueError,
            "argnum must be in -2 … 1 for the operands input, target, got 2",
        ),
        (
            lambda: jvp(mse_loss, [torch.ones(3)] * 2, (X, None)),
            TypeError,
            "the tangent of input must be a torch array as input is, got ndarray",
        ),
        (lambda: hvp(mse_loss, (X, X), (X, None), True), TypeError, "argnum must be an integer"),
        (
            lambda: vjp(mse_loss, (X, X), X),
            ValueError,
            r"cotangent must have shape \(\), got \(3,\)",
        ),
        (
            lambda: vjp(mse_loss, (X, X), NO_ARRAY),
            TypeError,
            "the cotangent must be an array as input is, got float",
        ),
        (
            lambda: vjp(mse_loss, (X, X), X.astype(int), reduction="none"),
            TypeError,
            "the cotangent must be floating, got int64",
        ),
        (
            lambda: vjp(mse_loss, (X, X), X, (0, 2)),
            ValueError,
            "argnums must be in -2 … 1 for the operands input, target, got 2$",
        ),
        (lambda: vjp(mse_loss, (X, X), X, (0, -2)), ValueError, "must name each argument once"),
        (
            lambda: vjp(mse_loss, [torch.ones(3)] * 2, X, reduction="none"),
            TypeError,
            "the cotangent must be a torch array as input is, got ndarray",
        ),
        (lambda: grad_and_hess(mse_loss, "input"), TypeError, "argnum must be an integer"),  # type: ignore[arg-type]
        (lambda: jvp(np.sum, (X,), (X,)), TypeError, "must be a loss function of cupy_losses"),
        (lambda: grad_and_hess(np.sum), TypeError, "must be a loss function of cupy_losses"),
        (
            lambda: grad_and_hess(nll_loss)(np.ones((2, 3)), np.zeros(2, int)),
            TypeError,
            "nll_loss is a loss of whole rows",
        ),
        (
            lambda: grad_and_hess(multilabel_soft_margin_loss)(np.ones((2, 3)), np.ones((2, 3))),
            TypeError,
            "multilabel_soft_margin_loss is a loss of whole rows",
        ),
        (
            lambda: grad_and_hess(mse_loss)(X, X, reduction="sum"),
            TypeError,
            "of each element: leave out reduction",
        ),
        (
            lambda: value_and_grad(lambda x: jvp(mse_loss, (x, X), (X, None))[1])(X),
            TypeError,
            "^value_and_grad does not differentiate a derivative: hvp and grad_and_hess give",
        ),
        (
            lambda: value_and_grad(lambda x: grad_and_hess(mse_loss)(x, X)[0])(X),
            TypeError,
            "^value_and_grad does not differentiate a derivative: hvp and grad_and_hess give",
        ),
        (
            lambda: grad(grad(mse_loss))(X, X),
            TypeError,
            "^grad does not differentiate a derivative: hvp and grad_and_hess give",
        ),
        (
            lambda: grad(lambda x: mse_loss(2.0 * x, X))(X),
            TypeError,
            "^grad of a function differentiates sums of losses",
        ),
        (lambda: grad_and_hess(mse_loss)(X, X, scale=2.0), TypeError, "leave out scale"),
        (
            lambda: grad_and_hess(functools.partial(mse_loss, reduction="mean"))(X, X),
            TypeError,
            "of each element: leave out reduction",
        ),
        (
            lambda: jvp(cupy_losses.nn.functional.huber_loss, (X, X), (X, X)),
            TypeError,
            "of cupy_losses, got <function huber_loss at .*>: pass cupy_losses.huber_loss$",
        ),
        (
            lambda: value_and_grad(F.mse_loss),
            TypeError,
            "loss must not be a function of torch: pass cupy_losses.mse_loss$",
        ),
        (
            lambda: hvp(functools.partial(mse_loss, X), (X,), (X,)),
            TypeError,
            "must be a functools.partial by keyword, got positional arguments$",
        ),
        (
            lambda: jvp(mse_loss, X[:2], (X, X)),  # type: ignore[arg-type]
            TypeError,
            "primals must be a tuple or a list of arrays, got ndarray",
        ),
        (
            lambda: jvp(mse_loss, (X, X), X[:2]),  # type: ignore[arg-type]
            TypeError,
            "tangents must be a tuple or a list of arrays, got ndarray",
        ),
        (
            lambda: grad_and_hess(mse_loss)(X, np.ones((2, 3))),
            ValueError,
            r"must broadcast to the shape of input, \(3,\)",
        ),
    ],
)
def test_errors(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        function()


def test_a_parameter_by_the_name_of_an_argument() -> None:
    y = X + 1
    own = pointwise_loss("named", lambda input, target, loss=1.0: loss * (input - target) ** 2)
    for function in (
        lambda factor: jvp(own, (X, y), (X, None), loss=factor)[1],
        lambda factor: vjp(own, (X, y), np.ones(()), loss=factor),
        lambda factor: hvp(own, (X, y), (X, None), loss=factor),
    ):
        np.testing.assert_allclose(function(3.0), 3 * function(1.0))


def test_derivatives_of_two_devices() -> None:
    emulator.require()
    with emulator.installed(count=2) as device:
        x, y = (device.asarray(np.ones(3, np.float32)) for _ in range(2))
        import cupy

        with cupy.cuda.Device(1):
            one, along = device.asarray(np.float32(1)), device.asarray(np.ones(3, np.float32))
        for call, name in (
            (lambda: vjp(mse_loss, (x, y), one), "grad_output on cuda:1, input on cuda:0"),
            (lambda: jvp(mse_loss, (x, y), (None, along)), "the tangent of target on cuda:1"),
            (lambda: hvp(mse_loss, (x, y), (along, None)), "the tangent of input on cuda:1"),
        ):
            with pytest.raises(ValueError, match=f"must be on the same device, got {name}"):
                call()

"""Formulas of rows: on the host, on devices, and what cannot be one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    cosine_embedding_loss,
    grad,
    hvp,
    jvp,
    pointwise_loss,
    row_loss,
    value_and_grad,
)
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import FORWARD, Request
from cupy_losses._core.shapes import ArraySpec
from cupy_losses._device import driver, precompile
from cupy_losses._libraries.registry import resolve
from cupy_losses._verification import verify

from .. import emulator
from ..emulator import installed
from ..tables.arrays import Library
from ..tools import levels, requirements

Array = Any


def cosine(input: Any, target: Any, eps: float = 1e-6) -> Any:
    squares = [np.sum(x * x) + eps for x in (input, target)]
    return 1 - np.sum(input * target) / np.sqrt(squares[0] * squares[1])


def cosine_of_torch(x: Any, y: Any, eps: float = 1e-6) -> Any:
    return 1 - (x * y).sum(-1) / torch.sqrt(((x * x).sum(-1) + eps) * ((y * y).sum(-1) + eps))


def taken_names(max: Any, term: Any, T: float = 2.0, *, loss: float = 0.5) -> Any:
    """Names that mean something else in C++, and sums of which one decides."""
    near = np.sum(np.abs(max - term)) / T
    return np.where(near > np.mean(max) * loss, near, near * near) + loss


def taken_names_of_torch(x: Any, y: Any, T: float = 2.0, loss: float = 0.5) -> Any:
    near = abs(x - y).sum(-1) / T
    return torch.where(near > x.mean(-1) * loss, near, near * near) + loss


def eight_sums(x: Any, y: Any) -> Any:
    """As many as there may be; the last one is that of a count."""
    first = [np.sum(x**k) / k for k in (1, 2, 3)] + [np.sum(x * y**k) for k in (1, 2, 3)]
    return functools.reduce(lambda a, b: a * b + b, first) / np.sum(y * y) + np.sum(x > y)


def eight_sums_of_torch(x: Any, y: Any) -> Any:
    first = [(x**k).sum(-1) / k for k in (1, 2, 3)] + [(x * y**k).sum(-1) for k in (1, 2, 3)]
    both = functools.reduce(lambda a, b: a * b + b, first) / (y * y).sum(-1)
    return both + (x > y).double().sum(-1)


def poly_cross_entropy(input: Any, target: Any, epsilon: float = 1.0) -> Any:
    log_p = np.sum(target * input) - np.sum(target) * np.logaddexp.reduce(input)
    return epsilon * (1 - np.exp(log_p)) - log_p


def poly_cross_entropy_of_torch(x: Any, y: Any, epsilon: float = 1.0) -> Any:
    log_p = (y * x).sum(-1) - y.sum(-1) * x.logsumexp(-1)
    return epsilon * (1 - torch.exp(log_p)) - log_p


def four_logs(x: Any, y: Any) -> Any:
    """As many sums of exponentials as there may be."""
    return functools.reduce(lambda a, b: a * b + a, (np.logaddexp.reduce(x * y / k) for k in K))


def four_logs_of_torch(x: Any, y: Any) -> Any:
    return functools.reduce(lambda a, b: a * b + a, ((x * y / k).logsumexp(-1) for k in K))


K = range(1, 5)


@dataclass(frozen=True)
class Written:
    """A formula, and the same in torch along the last axis."""

    name: str
    formula: Callable[..., Any]
    of_torch: Callable[..., Any]

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def loss(self) -> Any:
        return row_loss(self.name, self.formula)

    @property
    def operands(self) -> list[Array]:
        rng = np.random.default_rng(5)
        kinds = inspect.signature(self.formula).parameters.values()
        return [rng.normal(0, 1, (3, 7)) for kind in kinds if kind.default is kind.empty]


TABLE = [
    Written("eight_sums", eight_sums, eight_sums_of_torch),
    Written("cosine", cosine, cosine_of_torch),
    Written("taken_names", taken_names, taken_names_of_torch),
    Written(
        "unbiased",
        lambda x, c=1.0: (np.sum(x * x) - np.sum(x) ** 2 / np.size(x)) / (np.size(x) - c),
        lambda x, c=1.0: x.var(-1),
    ),
    Written("poly_cross_entropy", poly_cross_entropy, poly_cross_entropy_of_torch),
    Written("four_logs", four_logs, four_logs_of_torch),
    Written("unused", lambda x, y: np.mean(np.exp(x)), lambda x, y: x.exp().mean(-1) + 0 * y[:, 0]),
]


@pytest.mark.parametrize("written", TABLE, ids=str)
def test_against_torch(written: Written) -> None:
    """Values, gradients and second derivatives on the host."""
    x = [torch.tensor(operand, requires_grad=True) for operand in written.operands]
    expected = written.of_torch(*x)
    each = written.loss(*written.operands, reduction="none")
    np.testing.assert_allclose(each, expected.detach(), rtol=1e-12)
    slopes = torch.autograd.grad(expected.sum(), x)
    gradients = grad(written.loss, range(len(x)))(*written.operands, reduction="sum")
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=1e-11, atol=1e-12)
    assert torch.autograd.gradcheck(written.loss, x)
    assert torch.autograd.gradgradcheck(functools.partial(written.loss, reduction="sum"), x)


@pytest.mark.parametrize("written", levels.first(TABLE, 2))
@pytest.mark.parametrize("dtype", levels.first(["f8", "f4"]))
def test_on_the_emulator(written: Written, dtype: str) -> None:
    """The kernels give what the host gives, second derivatives included."""
    emulator.require()
    hosts = [operand.astype(dtype) for operand in written.operands]
    seconds = [host.astype("f8") for host in hosts]
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == "f4" else {"rtol": 1e-11, "atol": 1e-11}
    request = Request(wanted=tuple(range(len(hosts))), tangents=(0,))
    both, along = value_and_grad(written.loss, range(len(hosts))), hosts[0] + 1
    with installed() as device:
        arrays, tangent = [device.asarray(host) for host in hosts], device.asarray(along)
        call, given = prepare_of(written.loss)(*arrays)
        library, operands = resolve(call, given)

        def passes() -> tuple[Any, Any, Any]:
            results = library.run(call, request, (tangent, *operands))
            return written.loss(*arrays), both(*arrays), results

        found = device.together(passes)
        of_host = call.loss.on_host(call, request, [along.astype("f8"), *seconds], False)
        compare(found, (written.loss(*seconds), both(*seconds), of_host), tolerance)


def compare(found: Any, expected: Any, tolerance: Any) -> None:
    """The same numbers, in whatever nesting."""
    if isinstance(found, tuple | list):
        for a, b in zip(found, expected, strict=True):
            compare(a, b, tolerance)
        return
    np.testing.assert_allclose(found.get(), expected, **tolerance)


def test_with_all_arguments(library: Library) -> None:
    """Masks, weights, axes, scale and broadcasting, against the built-in loss of the formula."""

    def formula(input1: Any, input2: Any) -> Any:
        squares = [np.sum(x * x) + 1e-12 for x in (input1, input2)]
        return 1 - np.sum(input1 * input2) / np.sqrt(squares[0] * squares[1])

    rng = np.random.default_rng(0)
    loss = row_loss("own_cosine", formula)
    x, y = (library.array(rng.normal(0, 1, shape)) for shape in ((4, 6, 3), (1, 6, 3)))
    where, weight = library.array(rng.random((4, 3)) < 0.7), library.array(rng.random((4, 3)))
    ones = library.array(np.ones((4, 3)))
    for options in (
        {},
        {"reduction": "sum", "scale": 0.5},
        {"where": where, "sample_weight": weight, "scale": 3.0},
    ):
        found = value_and_grad(loss, (0, 1))(x, y, axis=1, **options)
        expected = value_and_grad(cosine_embedding_loss, (0, 1))(x, y, ones, axis=1, **options)
        np.testing.assert_allclose(library.host(found[0]), library.host(expected[0]), rtol=1e-13)
        for ours, theirs in zip(found[1], expected[1], strict=True):
            np.testing.assert_allclose(library.host(ours), library.host(theirs), atol=1e-14)
    assert loss(x, y, axis=1, reduction="none").shape == (4, 3)


@pytest.mark.parametrize("length", [1, 3, 100])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum", "scale": 0.5}])
def test_gradients_share_nothing(library: Library, length: int, options: dict[str, Any]) -> None:
    """Neither with an operand, which is the derivative by another one, nor with each other."""
    rng = np.random.default_rng(1)
    hosts = rng.normal(0, 1, (2, 4, length))
    part = options.get("scale", 1 / 4)
    x, y = map(library.array, hosts.copy())
    by_x, by_y = grad(row_loss("product", lambda x, y: np.sum(x * y)), (0, 1))(x, y, **options)
    np.testing.assert_array_equal(library.host(x), hosts[0])
    np.testing.assert_array_equal(library.host(y), hosts[1])
    np.testing.assert_allclose(library.host(by_x), hosts[1] * part, rtol=1e-15)
    np.testing.assert_allclose(library.host(by_y), hosts[0] * part, rtol=1e-15)
    both = row_loss("both", lambda x, y: np.sum(x + y) ** 2)
    slope = 2 * part * np.broadcast_to(hosts.sum((0, 2))[:, None], (4, length))
    for gradient in grad(both, (0, 1))(x, y, **options):
        np.testing.assert_allclose(library.host(gradient), slope, rtol=1e-13)


def test_an_infinite_derivative_reaches_what_depends_on_it_alone(library: Library) -> None:
    """That of the root of the sum of x is no NaN for y, whose sum has a slope of 1."""
    loss = row_loss("root", lambda x, y: np.sqrt(np.sum(x)) + np.sum(y))
    zeros = library.array(np.zeros((2, 3)))
    value, (by_x, by_y) = value_and_grad(loss, (0, 1))(zeros, zeros)
    assert library.host(value) == 0
    assert np.isinf(library.host(by_x)).all()
    np.testing.assert_array_equal(library.host(by_y), np.full((2, 3), 0.5))


CONDITIONED = row_loss(
    "conditioned",
    lambda x, y: np.where(np.sum(np.sqrt(x)) > 0.5, np.mean(x), 0.0) + np.sum(np.sign(x * y)),
)


def conditioned_by(array: Callable[[Any], Array]) -> tuple[Array, ...]:
    """Its gradients where a root has an infinite slope, and where a sign is NaN."""
    operands = np.array([[0.0, 1.0, 4.0]]), np.array([[2.0, np.nan, 2.0]])
    gradients: tuple[Array, ...] = grad(CONDITIONED, (0, 1))(*map(array, operands))
    return gradients


def test_a_sum_that_only_decides_has_no_derivative(library: Library) -> None:
    by_x, by_y = map(library.host, conditioned_by(library.array))
    np.testing.assert_array_equal(by_x, np.full((1, 3), 1 / 3))
    np.testing.assert_array_equal(by_y, np.zeros((1, 3)))


def test_a_sum_that_only_decides_has_none_on_the_emulator() -> None:
    emulator.require()
    with installed() as device:
        by_x, by_y = (array.get() for array in conditioned_by(device.asarray))
    np.testing.assert_array_equal(by_x, np.full((1, 3), 1 / 3))
    np.testing.assert_array_equal(by_y, np.zeros((1, 3)))


INFINITE = row_loss("log_sum_exp", lambda x: np.logaddexp.reduce(x))
EXPONENTS = np.array(
    [[-np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0], [-1e9, -1e9], [1e30, 0.0], [90.0, 89.0]],
)
LOGS = [-np.inf, np.inf, np.nan, -1e9 + np.log(2), 1e30, 90 + np.log1p(np.exp(-1))]


def test_an_operand_may_have_the_name_of_an_argument_of_others(library: Library) -> None:
    """`weight`, which losses of rows of a user do not take, is an operand as others are."""
    input, weight = library.array(np.array([[1.0, 2.0, 4.0]])), library.array(np.ones((4, 3)))
    each = row_loss("weighted", lambda input, weight: np.sum(weight * input))
    np.testing.assert_array_equal(library.host(each(input, weight, reduction="none")), [7.0] * 4)
    alone = row_loss("alone", lambda weight: np.sum(weight))
    np.testing.assert_array_equal(library.host(alone(weight, reduction="none")), [3.0] * 4)


def test_sums_of_exponentials_do_not_overflow(library: Library) -> None:
    found = library.host(INFINITE(library.array(EXPONENTS), reduction="none"))
    np.testing.assert_allclose(found, LOGS, rtol=1e-15)
    gradient = library.host(grad(INFINITE)(library.array(EXPONENTS), reduction="sum"))
    np.testing.assert_allclose(gradient[3:5], [[0.5, 0.5], [1.0, 0.0]])


@pytest.mark.parametrize("base", [0.0, 1e4, -1e17, np.finfo("f8").min, np.finfo("f8").max])
@pytest.mark.parametrize("length", [2, 8])
def test_parts_of_sums_of_exponentials_are_those_of_small_terms(base: float, length: int) -> None:
    """Beside the terms the log of their sum has no digits left, but their distances have all."""
    x = np.full((2, length), base)
    given = np.arange(2.0 * length).reshape(2, length)
    part = np.full((2, length), 1 / length)
    gradient = grad(INFINITE)(x, reduction="sum")
    np.testing.assert_allclose(gradient, part, rtol=1e-15)
    slope = jvp(INFINITE, (x,), (given,), reduction="none")[1]
    np.testing.assert_allclose(slope, (part * given).sum(-1), rtol=1e-14)
    second = hvp(INFINITE, (x,), (given,), reduction="sum")
    along = part * (given - given.mean(-1, keepdims=True))
    np.testing.assert_allclose(second, along, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("length", [2, 40, 4100])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_sums_of_exponentials_do_not_overflow_on_the_emulator(dtype: str, length: int) -> None:
    emulator.require()
    rows = np.full((len(EXPONENTS), length), -np.inf)
    rows[:, -2:] = EXPONENTS
    with installed() as device:
        x = device.asarray(rows.astype(dtype))
        each, gradient = device.together(
            lambda: (INFINITE(x, reduction="none"), grad(INFINITE)(x, reduction="sum"))
        )
    np.testing.assert_allclose(each.get(), LOGS, rtol=1e-6)
    np.testing.assert_allclose(gradient.get()[3:5, -2:], [[0.5, 0.5], [1.0, 0.0]])


def test_empty_rows_and_rows_of_nothing(library: Library) -> None:
    loss = row_loss("mean_of_squares", lambda x: np.mean(x * x))
    assert np.isnan(library.host(loss(library.array(np.zeros((0, 3))))))
    nothing = library.array(np.zeros((2, 0)))
    assert np.isnan(library.host(loss(nothing, reduction="none"))).all()
    assert library.host(row_loss("sum", lambda x: np.sum(x) + 1)(nothing)) == 1
    assert library.host(INFINITE(nothing)) == -np.inf


def test_derivatives_of_a_quotient_by_zero(library: Library) -> None:
    """By no elements or a hyper-parameter of 0: what the value is divided by, and no error."""
    squares = row_loss("squares", lambda x, y: np.mean((x - y) ** 2))
    nothing = library.array(np.zeros((3, 0)))
    value, gradient = value_and_grad(squares)(nothing, nothing)
    assert np.isnan(library.host(value))
    assert library.host(gradient).shape == (3, 0)
    assert library.host(hvp(squares, (nothing, nothing), (nothing, None))).shape == (3, 0)
    product = row_loss("product", lambda x, y, t=1.0: np.sum(x * y) / t)
    ones = library.array(np.ones((2, 3)))
    for found in value_and_grad(product)(ones, ones, t=0.0):
        assert np.isposinf(library.host(found)).all()
    # On a device NaN: no change of the sum, times infinity.
    second = library.host(hvp(product, (ones, ones), (None, ones), t=0.0))
    assert not np.isfinite(second).any()


INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

# A mask, numbers to differentiate by, and labels: a mask alone decides on which elements count.
MASKED = row_loss(
    "masked",
    lambda mask, x, label: (
        np.sum(np.where(mask, (x - label) ** 2, 0.0)) / (1 + np.sum(mask)) + np.mean(x * label)
    ),
)


def masked_of_torch(mask: Any, x: Any, label: Any) -> Any:
    squares = torch.where(mask != 0, (x - label) ** 2, 0.0).sum(-1)
    return squares / (1 + mask.sum(-1)) + (x * label).mean(-1)


def masked_operands(mask: str, label: str) -> list[Array]:
    rng = np.random.default_rng(7)
    drawn = rng.integers(0, 2, (3, 7)), rng.normal(0, 1, (3, 7)), rng.integers(0, 100, (3, 7))
    return [x.astype(dtype) for x, dtype in zip(drawn, (mask, "f8", label), strict=True)]


@pytest.mark.parametrize("label", INTEGERS)
@pytest.mark.parametrize("mask", ["bool", "uint8"])
def test_integers_against_torch(mask: str, label: str, torch_library: Library) -> None:
    """Values, and what autograd makes of them: integers are constants."""
    mask_of, x, label_of = map(torch_library.array, masked_operands(mask, label))
    wide = [operand.double() for operand in (mask_of, label_of)]
    leaf = x.clone().requires_grad_()
    for reduction in ("none", "mean", "sum"):
        loss = MASKED(mask_of, leaf, label_of, reduction=reduction)
        expected = masked_of_torch(wide[0], leaf, wide[1])
        if reduction != "none":
            expected = getattr(expected, reduction)()
        torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
        slopes = [torch.autograd.grad(each.sum(), leaf)[0] for each in (loss, expected)]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(lambda x: MASKED(mask_of, x, label_of), leaf)
    assert torch.autograd.gradgradcheck(lambda x: MASKED(mask_of, x, label_of), leaf)


def test_integers_are_numbers(library: Library) -> None:
    """Those of the floating dtype, on which they do not decide; a GPU adds in another order."""
    most_ulps = 2 if library.name in ("cupy", "torch cuda") else 0
    hosts = masked_operands("bool", "int16")
    where, weight = library.array(np.array([True, False, True])), library.array(np.ones(3))
    for dtype in ("f2", "f4", "f8"):
        hosts[1] = hosts[1].astype(dtype)
        for options in ({}, {"reduction": "none"}, {"where": where, "sample_weight": weight}):
            arrays = [library.array(host) for host in hosts]
            floating = [library.array(host.astype(dtype)) for host in hosts]
            found, expected = MASKED(*arrays, **options), MASKED(*floating, **options)
            assert found.dtype == expected.dtype == floating[0].dtype
            found, expected = library.host(found), library.host(expected)
            np.testing.assert_array_max_ulp(found, expected, most_ulps)
        one, other = (grad(MASKED, 1)(*operands) for operands in (arrays, floating))
        np.testing.assert_array_equal(library.host(one), library.host(other))


def test_integers_broadcast_and_lie_along_an_axis(library: Library) -> None:
    """A mask of the elements that all rows share, and a label for each row."""
    mask, x, label = masked_operands("bool", "int64")
    parts = mask[:1], x, label[:, :1]
    whole = [np.broadcast_to(part, x.shape) for part in parts]
    for axis in (1, 0):
        found, expected = (
            value_and_grad(MASKED, 1)(*(library.array(h) for h in hosts), axis=axis)
            for hosts in (parts, whole)
        )
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(library.host(ours), library.host(theirs))
    turned = [library.array(np.ascontiguousarray(part.T)) for part in parts]
    along = library.host(MASKED(*turned, axis=0))
    np.testing.assert_allclose(along, MASKED(*parts), rtol=1e-14)


def test_integers_that_are_refused(library: Library) -> None:
    mask, x, label = map(library.array, masked_operands("bool", "int64"))
    with pytest.raises(TypeError, match="mask must be floating to differentiate by it, got bool"):
        grad(MASKED)(mask, x, label)
    with pytest.raises(TypeError, match="label must be floating to differentiate by it, got int64"):
        value_and_grad(MASKED, (1, 2))(mask, x, label)
    with pytest.raises(TypeError, match=r"at least one of mask, x, label must be floating, got ma"):
        MASKED(mask, label, label)
    with pytest.raises(TypeError, match=r"x must have a real dtype \(float16, .*, got complex128"):
        MASKED(mask, library.array(np.ones((3, 7), complex)), label)
    with pytest.raises(TypeError, match="where must have dtype bool, got int64"):
        MASKED(mask, x, label, where=library.array(np.ones(3, np.int64)))


SHAPES = {
    "tiles": ArraySpec("float64", (64, 8), (8, 1)),
    "rows": ArraySpec("float64", (64, 1001), (1001, 1)),
    "strided": ArraySpec("float64", (64, 1001), (1, 64)),
    "side_by_side": ArraySpec("float64", (64, 5001), (1, 64)),
    "pairs": ArraySpec("float16", (64, 5001), (1, 64)),
    "splits": ArraySpec("float64", (1, 2**20), (2**20, 1)),
}


@pytest.mark.parametrize("name", levels.first(["eight_sums", "four_logs"]))
@pytest.mark.parametrize("kernel", levels.first(SHAPES))
def test_the_kernels_have_room_for_the_most_sums(kernel: str, name: str) -> None:
    """Second derivatives of eight sums in float64: what is kept of a row has a fixed size."""
    requirements.nvrtc()
    loss = next(written.loss for written in TABLE if written.name == name)
    call = prepare_of(loss)(np.ones((2, 2)), np.ones((2, 2)), reduction="none")[0]
    operands = (SHAPES[kernel],) * 3
    request = Request(wanted=(0, 1), tangents=(0,))
    precompile.compile_kernels(call, request, operands, driver.architectures()[-1])


def test_a_state_without_room_does_not_compile() -> None:
    """The host says how many bytes a state has, and the kernel checks it."""
    requirements.nvrtc()
    loss = next(written.loss for written in TABLE if written.name == "eight_sums")
    call = prepare_of(loss)(np.ones((2, 2)), np.ones((2, 2)), reduction="none")[0]
    one_sum: dict[str, Any] = {"sums": 1}
    loss_of_one = dataclasses.replace(call.loss, **one_sum)
    few = call._replace(loss=loss_of_one)
    operands = (SHAPES["strided"],) * 2
    with pytest.raises(ValueError, match="more than there is room for"):
        precompile.compile_kernels(few, FORWARD, operands, driver.architectures()[-1])


def test_source_and_signature() -> None:
    loss = row_loss("dice", lambda x, c=1.0: np.sum(x * x) / (np.mean(x) + c))
    for line in (
        "static constexpr int OPERANDS = 1, SUMS = 2;",
        "Parameter<T> c;",
        "return x * x;",
        "return _sum1 / (_sum2 / _length + c);",
    ):
        assert f"  {line}\n" in loss.source
    assert [*inspect.signature(loss).parameters] == [
        *("x", "reduction", "scale", "where", "sample_weight", "axis", "c")
    ]
    ones = np.ones((2, 3))
    with pytest.raises(TypeError, match=r"dice\(\) got an unexpected keyword argument 'weight'"):
        loss(ones, weight=ones)
    with pytest.raises(TypeError, match="axis must be an integer"):
        loss(ones, axis=1.5)  # type: ignore[call-overload]


@row_loss
def module_level(input: Any, target: Any) -> Any:
    """A loss that pickle finds by its name."""
    return np.sum(np.abs(input - target))


def test_copies_and_pickles() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert module_level.__doc__ == "A loss that pickle finds by its name."
    loss = row_loss("own", lambda x, y, c=2.0: c * np.mean(x * y))
    assert copy.deepcopy([loss])[0] is loss
    other = pickle.loads(pickle.dumps(loss))
    assert other is not loss
    x, y = np.random.default_rng(0).random((2, 3, 4))
    assert other(x, y) == loss(x, y)
    assert prepare_of(other)(x, y)[0] == prepare_of(loss)(x, y)[0]
    same = row_loss("own", lambda x, y, c=2.0: c * np.mean(x * y))
    another = row_loss("own", lambda x, y, c=2.0: c * np.mean(x + y))
    assert prepare_of(same)(x, y)[0] == prepare_of(loss)(x, y)[0]
    assert prepare_of(another)(x, y)[0] != prepare_of(loss)(x, y)[0]


UNTRACEABLE: list[tuple[Any, str]] = [
    (lambda x: x, "the loss of a row is one number: return one made of np.sum, np.mean or np.loga"),
    (lambda x: 1.0, "the loss of a row is one number"),
    (lambda x: np.size(x), "the loss of a row is one number"),
    (lambda x: np.sum(x) * x, r"an element meets a sum, .* an operand of shape \(…, 1\)"),
    (lambda x: np.sum(x - np.mean(x)), "an element meets a sum, or np.size, here"),
    (lambda x: np.sum(x / np.size(x)), "an element meets a sum, or np.size, here"),
    (lambda x: np.sum(np.mean(x)), "an element meets a sum"),
    (lambda x: np.max(x), "np.max is not what a row accumulates: write np.sum, np.mean or np.loga"),
    (lambda x: x.max(), r"\.max\(\) is not what a row accumulates"),
    (lambda x: np.add.reduce(x), "np.add.reduce is not what a row accumulates: write np.sum"),
    (lambda x: x.sum(), r"a value of a formula has no methods: write np.sum\(x\)"),
    (lambda x: np.sum(x, axis=-1), "and nothing else in a formula: the axis is an argument of the"),
    (lambda x: np.mean(x, -1), "np.mean takes the elements of a row and nothing else"),
    (lambda x, m: np.sum(x, where=m), r"np.where\(mask, x, 0.0\) leaves out elements"),
    (lambda x, c=1.0: np.sum(c), "np.sum is of the elements of a row, and what it got here is the"),
    (lambda x, c=1.0: np.sum(x) / np.size(c), "np.size is of the elements of a row"),
    (lambda x: np.sum(x) / np.size(np.sum(x)), "an element meets a sum"),
    (lambda x: np.sum(x) / len(x), r"no parts of a row and no order .*, but .* np.size\(x\)"),
    (lambda x: np.sum(x) / x.shape[-1], r"np.size\(x\): it has no .shape"),
    (lambda x: np.sum(x[1:] - x[:-1]), "no order of its elements"),
    (lambda x: np.logaddexp.reduce(x, axis=-1), "np.logaddexp.reduce takes the elements of a row"),
    (lambda x: torch.logsumexp(x, -1), r"write np.logaddexp.reduce\(x\), in a loss over rows"),
    (lambda x: np.logaddexp.reduce(x - np.mean(x)), "an element meets a sum, or np.size, here"),
    (lambda x: np.logaddexp.accumulate(x), "np.logaddexp.accumulate is not what a row accumulates"),
    (lambda x, y: x @ y, r"@ is no function of a formula: write np.sum\(a \* b\)"),
    (lambda x, y: np.dot(x, y), r"np.dot is no function of a formula: write np.sum\(a \* b\)"),
    (lambda x: np.linalg.norm(x), r"norm is no .*: write np.sqrt\(np.sum\(x \* x\)\)"),
    (
        lambda x: np.var(x),
        r"np.var is no .*: write np.mean\(\(x - m\) \*\* 2\) .* the mean as an op",
    ),
    (lambda x: np.sum(np.ones_like(x)), r"write 1.0, or np.size\(x\) for the sum of it"),
    (
        lambda x: np.sum(np.diff(x)),
        "np.diff is no function .* size, sqrt, square, sum, tanh, where\n",
    ),
    (lambda x: np.sum(x) ** np.mean(x), "the exponent of a power must be a constant"),
    (lambda x: sum(np.sum(x**k) for k in range(1, 10)), "at most 8 different sums, not 9"),
    (
        lambda x: np.sum(x) + sum(np.logaddexp.reduce(k * x) for k in K),
        "not 9, of which each np.logaddexp.reduce is two",
    ),
    (lambda x: (np.sum(x), np.sum(x)), "it must return one number, got tuple"),
]


@pytest.mark.parametrize(("formula", "message"), UNTRACEABLE)
def test_what_cannot_be_traced(formula: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"(?s)^the formula of mine cannot be traced.*{message}"):
        row_loss("mine", formula)


def test_what_is_no_formula() -> None:
    with pytest.raises(TypeError, match="a function in Python: a text is of one element alone"):
        row_loss("mine", "x * x")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="formula must be a function or a string, got int"):
        row_loss("mine", 3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="a formula of rows has up to 8 arrays, got 9"):
        row_loss("mine", lambda a, b, c, d, e, f, g, h, i: np.sum(a))
    with pytest.raises(ValueError, match="the name 'axis' is taken"):
        row_loss("mine", lambda axis: np.sum(axis))
    with pytest.raises(TypeError, match="cosine_embedding_loss is a loss of arrays already"):
        row_loss("mine", cosine_embedding_loss)
    with pytest.raises(TypeError, match="np.sum is over several elements"):
        pointwise_loss("mine", lambda x: np.sum(x))


def test_check() -> None:
    """Derivatives by each element of rows of two, or of one's own."""
    requirements.nvrtc()
    sound = row_loss("sound", lambda x, y: np.mean(np.logaddexp(0, x) - x * y), check=True)
    report = sound.check()
    assert report, report
    poor = row_loss("poor", lambda x: np.log(1 + np.sum(np.exp(x))))
    report = poor.check()
    assert "its derivative by x[0] is nan" in str(report)
    assert "write np.log1p(x) for np.log(1 + x)" in report.advice
    assert poor.check(np.random.default_rng(0).random((9, 3)))
    with pytest.raises(ValueError, match=r"last axis has up to 4 elements, got \(2, 5\)"):
        poor.check(np.ones((2, 5)))
    with pytest.raises(ValueError, match="arrays of one shape"):
        sound.check(np.ones((2, 3)), np.ones((3, 2)))


@pytest.mark.exhaustive  # compiles four kernels for each dtype
def test_kernels_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.require()
    monkeypatch.setattr(verify, "compile_for_all", lambda call: "compiled")
    loss = row_loss("sound", lambda x, y, c=2.0: np.mean(np.log1p((x - y) ** 2)) + c)
    with installed():
        report = loss.check()
    assert report, report
    assert "on the GPU" in report.checked[1]


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    report = row_loss("sound", lambda x, y: np.mean(np.log1p((x - y) ** 2))).check()
    assert report, report
    assert "on the GPU" in report.checked[1]

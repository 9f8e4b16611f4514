"""`value_and_grad` of functions that add losses up."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import pickle
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    binary_cross_entropy_with_logits,
    check_values,
    cross_entropy,
    grad,
    grad_and_hess,
    huber_loss,
    hvp,
    l1_loss,
    mse_loss,
    nll_loss,
    triplet_margin_with_distance_loss,
    value_and_grad,
)
from cupy_losses._libraries.numpy import NumpyLibrary

from ..tables.arrays import DTYPES, Library

Array = Any


def draw(library: Library, *shapes: tuple[int, ...], dtype: Any = np.float64) -> list[Array]:
    """Random arrays."""
    rng = np.random.default_rng(0)
    return [library.array(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def by_hand(x: Array, y: Array) -> tuple[Array, Array]:
    """The value and the gradient of what `elastic` computes, in NumPy."""
    d = x - y
    value = 0.5 * np.mean(d * d) + 2 * np.mean(abs(d)) / 4 - np.mean(x * x) + 3
    gradient = (d + 0.5 * np.sign(d) - 2 * x) / x.size
    return value, gradient


def elastic(x: Array, y: Array, zero: Array) -> Array:
    """A weighted sum with a regulariser."""
    return 0.5 * mse_loss(x, y) + 2 * l1_loss(x, y) / 4 - mse_loss(x, zero) + 3


def test_what_is_printed_inside() -> None:
    """Of a loss its value, of an argument what is known of it."""
    shown: list[str] = []

    def watched(input: Any, target: Any) -> Any:
        loss = 2 * mse_loss(input, target) + 1.0
        shown.extend((str(loss), repr(input)))
        return loss

    grad(watched)(np.ones(2), np.zeros(2))
    value_and_grad(watched)(torch.ones(2), torch.zeros(2))
    assert shown == [
        "<sum of losses inside grad: 3.0>",
        "<argument 0 of grad: shape (2,), float64>",
        "<sum of losses inside value_and_grad: 3.0>",
        "<argument 0 of value_and_grad: shape (2,), float32>",
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_and_multiples(library: Library, dtype: Any) -> None:
    x, y = draw(library, (7, 5), (7, 5), dtype=dtype)
    zero = library.array(np.zeros((7, 5), dtype))
    value, gradient = value_and_grad(elastic)(x, y, zero)
    wanted = by_hand(library.host(x).astype(float), library.host(y).astype(float))
    bound = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(library.host(value), wanted[0], rtol=bound)
    np.testing.assert_allclose(library.host(gradient), wanted[1], rtol=bound, atol=bound)
    assert value.dtype == x.dtype
    assert gradient.dtype == x.dtype
    assert type(value) is type(x)
    np.testing.assert_array_equal(library.host(grad(elastic)(x, y, zero)), library.host(gradient))


def test_several_arguments_of_several_losses(library: Library) -> None:
    x, y, z = draw(library, (6,), (6,), (6,))

    def total(x: Array, y: Array, *, z: Array) -> Array:
        return mse_loss(x, y) + huber_loss(y, z, delta=0.5) + mse_loss(x, x)

    value, (by_x, by_y) = value_and_grad(total, (0, -1))(x, y, z=z)
    first, by_first = value_and_grad(mse_loss, (0, 1))(x, y)
    second, by_second = value_and_grad(huber_loss)(y, z, delta=0.5)
    host = library.host
    np.testing.assert_allclose(host(value), host(first) + host(second))
    np.testing.assert_allclose(host(by_x), host(by_first[0]))
    np.testing.assert_allclose(host(by_y), host(by_first[1]) + host(by_second))


def test_each_loss_is_computed_once(library: Library) -> None:
    """A loss that is added to itself counts twice and is one pass."""
    x, y = draw(library, (9,), (9,))

    def twice(x: Array) -> Array:
        loss = mse_loss(x, y)
        return loss + loss

    value, gradient = value_and_grad(twice)(x)
    np.testing.assert_allclose(library.host(value), 2 * library.host(mse_loss(x, y)))
    one = value_and_grad(mse_loss)(x, y)[1]
    np.testing.assert_allclose(library.host(gradient), 2 * library.host(one))


def test_built_in_sum_wrappers_and_partials(library: Library) -> None:
    x, y = draw(library, (4, 3), (4, 3))

    @functools.wraps(mse_loss)
    def tenfold(*arguments: Any) -> Any:
        return 10 * mse_loss(*arguments)

    expected = library.host(grad(mse_loss)(x, y))
    np.testing.assert_allclose(library.host(grad(tenfold)(x, y)), 10 * expected)
    of_list = grad(lambda x: sum([mse_loss(x, y), mse_loss(x, y)]))(x)
    np.testing.assert_allclose(library.host(of_list), 2 * expected)
    of_target = grad(functools.partial(mse_loss, x))(y)
    np.testing.assert_allclose(library.host(of_target), -expected)


def test_constants_of_the_library(library: Library) -> None:
    """A weight that is on the device stays there."""
    x, y = draw(library, (5,), (5,))
    weight = library.array(np.asarray(0.25))
    value, gradient = value_and_grad(lambda x: weight * mse_loss(x, y) + weight)(x)
    np.testing.assert_allclose(library.host(value), library.host(mse_loss(x, y)) / 4 + 0.25)
    np.testing.assert_allclose(
        library.host(gradient), library.host(grad(mse_loss)(x, y)) / 4, rtol=1e-12
    )


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy])
def test_constants_of_another_library(array: Callable[[Any], Any]) -> None:
    """A tensor, an array of shape (), a NumPy scalar and a number are the same constant."""
    x, y = array(np.linspace(-1, 1, 5)), array(np.zeros(5))

    def weighted(x: Any, weight: Any) -> Any:
        return weight * mse_loss(x, y) / weight + weight

    results = []
    weights: list[Any] = [0.25]
    weights += [np.array(0.25, dtype) for dtype in DTYPES.values()]
    weights += [weight[()] for weight in weights[1:]]
    weights += [torch.tensor(0.25, dtype=getattr(torch, dtype)) for dtype in DTYPES]
    for weight in weights:
        value, gradient = value_and_grad(weighted)(x, weight)
        assert type(value) is type(x)
        assert value.dtype == gradient.dtype == x.dtype
        results.append([float(value), *gradient.tolist()])
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("weight", [np.bool_(True), np.array(True), torch.tensor(True)])
def test_a_constant_that_is_true(array: Callable[[Any], Any], weight: Any) -> None:
    x, y = array(np.linspace(-1, 1, 5)), array(np.zeros(5))
    value, gradient = value_and_grad(lambda x: weight * mse_loss(x, y) + weight)(x)
    expected, slopes = value_and_grad(mse_loss)(x, y)
    assert float(value) == float(expected) + 1
    assert gradient.tolist() == slopes.tolist()


X, Y = np.linspace(-1, 1, 12).reshape(4, 3), np.ones((4, 3))
CLASSES = np.arange(4) % 3

REFUSED: dict[str, tuple[type[Exception], str, Callable[..., Any]]] = {
    "arithmetic": (
        TypeError,
        r"argument 0 is used in \*\*: torch's autograd",
        lambda x: mse_loss(x, Y) + (x**2).mean(),
    ),
    "another argument of a loss": (TypeError, r"used in \*:", lambda x: mse_loss(2 * x, Y)),
    "a method": (TypeError, "argument 0 is used in .mean: ", lambda x: mse_loss(x, Y) * x.mean()),
    "a NumPy function": (TypeError, "used in np.exp:", lambda x: mse_loss(np.exp(x), Y)),
    "a conversion": (TypeError, r"used in float\(\)", lambda x: mse_loss(x, Y) * float(x)),
    "an index": (TypeError, "used in an index", lambda x: mse_loss(x[0], Y[0])),
    "a comparison": (TypeError, "used in a comparison", lambda x: mse_loss(x, Y) if x > 0 else 0),
    "an array of elements": (
        TypeError,
        "the product with ndarray, which is no real constant",
        lambda x: mse_loss(x, Y) * Y,
    ),
    "a product of losses": (
        TypeError,
        "the product with another loss",
        lambda x: mse_loss(x, Y) * l1_loss(x, Y),
    ),
    "a method of a loss": (TypeError, "a loss is used in .item:", lambda x: mse_loss(x, Y).item()),
    "a branch on a loss": (TypeError, "a branch", lambda x: 1.0 if mse_loss(x, Y) else 0.0),
    "a comparison of losses": (TypeError, "a comparison", lambda x: mse_loss(x, Y) == 3.0),
    "an order of losses": (TypeError, "a comparison", lambda x: max(mse_loss(x, Y), 0.0)),
    "a number over a loss": (TypeError, "a loss is used in /:", lambda x: 1 / mse_loss(x, Y)),
    "a NumPy function of a loss": (TypeError, "in np.sqrt:", lambda x: np.sqrt(mse_loss(x, Y))),
    "a loss after an array": (TypeError, "product with ndarray", lambda x: Y * mse_loss(x, Y)),
    "an argument as a factor": (TypeError, "with an argument", lambda x: mse_loss(x, Y) * x),
    "a power of a loss": (TypeError, r"a loss is used in \*\*:", lambda x: mse_loss(x, Y) ** 2),
    "a loss as a number": (
        TypeError,
        r"a loss is used in float\(\)",
        lambda x: float(mse_loss(x, Y)),
    ),
    "no reduction": (ValueError, "reduction", lambda x: mse_loss(x, Y, reduction="none")),
    "no loss": (TypeError, "must return a sum", lambda x: 3.0),
    "a loss of constants": (TypeError, "must return a sum", lambda x: mse_loss(X, Y)),
    "a branch": (ValueError, "no loss of argument 0", lambda x, y: mse_loss(y, Y)),
    "overwriting": (
        ValueError,
        "overwrite_input",
        lambda x: cross_entropy(x, CLASSES, overwrite_input=True),
    ),
    "a second derivative": (TypeError, "create_graph", lambda x: value_and_grad(mse_loss)(x, Y)),
    "a weight of the mean": (
        ValueError,
        "the loss is differentiated by weight by torch's autograd alone$",
        lambda x: mse_loss(X, Y, weight=x),
    ),
    "a weight of classes": (
        ValueError,
        "the loss is differentiated by weight by torch's autograd alone$",
        lambda x: cross_entropy(X, CLASSES, weight=x),
    ),
    "a target of classes": (
        ValueError,
        "the loss is not differentiated by target$",
        lambda x: nll_loss(X, x),
    ),
    "a complex summand": (
        TypeError,
        "the sum with complex128, which",
        lambda x: mse_loss(x, Y) + np.array(1j),
    ),
    "a complex scalar": (
        TypeError,
        "the difference with complex64, which",
        lambda x: mse_loss(x, Y) - np.complex64(1j),
    ),
    "a complex factor": (
        TypeError,
        "the product with complex128, which",
        lambda x: mse_loss(x, Y) * np.array(1j),
    ),
    "a complex tensor": (
        TypeError,
        "the quotient with complex64, which",
        lambda x: mse_loss(x, Y) / torch.tensor(1j),
    ),
    "arrays of two libraries": (
        TypeError,
        "here losses of numpy and torch arrays are added: the first operand of a loss decides",
        lambda x: mse_loss(x, Y) + mse_loss(torch.from_numpy(Y), x),
    ),
    "arrays of two libraries, the other way round": (
        TypeError,
        "here losses of torch and numpy arrays are added",
        lambda x: mse_loss(torch.from_numpy(Y), x) - 2 * mse_loss(x, Y),
    ),
    "a text": (TypeError, "the sum with str", lambda x: mse_loss(x, Y) + np.array("a")),
    "a distance of one's own": (
        TypeError,
        "argument 0 is used in -:",
        lambda x: triplet_margin_with_distance_loss(
            x, X, Y, distance_function=lambda a, b: abs(a - b).sum(axis=-1)
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_differentiated_raises(case: str) -> None:
    error, message, function = REFUSED[case]
    numbers = (0, 1) if case == "a branch" else 0
    with pytest.raises(error, match=message):
        value_and_grad(function, numbers)(*([X, Y] if case == "a branch" else [X]))


def test_what_a_loss_does_not_take_raises() -> None:
    """The function that was called is named, not the one that prepares its calls."""
    function: Any = value_and_grad(triplet_margin_with_distance_loss)
    for name in ("p", "axis", "norm"):
        message = rf"^triplet_margin_with_distance_loss\(\) .* '{name}': it takes anchor, positive"
        with pytest.raises(TypeError, match=message):
            function(X, X, Y, **{name: 2})
    with pytest.raises(TypeError, match="margin must be a real number"):
        function(X, X, Y, margin="1")
    with pytest.raises(TypeError, match="got .* 'argnums': .*; hvp and grad_and_hess take argnum"):
        hvp(mse_loss, (X, Y), (X, None), argnums=0)


def test_arguments_are_checked() -> None:
    for loss, name in ((mse_loss(X, Y), "ndarray"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"loss must be a function, got {name}"):
            value_and_grad(loss)  # type: ignore[call-overload]
    for argnums in ("input", None, 0.0, True, (0, "target"), [1.0]):
        with pytest.raises(TypeError, match="argnums must be an integer or a sequence"):
            value_and_grad(mse_loss, argnums)  # type: ignore[arg-type]
    by_position = "arguments that are passed by position, of which there are"
    with pytest.raises(ValueError, match=f"argnums must be of {by_position} 3, got 3$"):
        value_and_grad(elastic, 3)(X, Y, Y)
    with pytest.raises(ValueError, match=f"argnums must be of {by_position} 1, got -2$"):
        value_and_grad(elastic, -2)(X, y=Y, zero=Y)
    with pytest.raises(ValueError, match=f"argnums must be of {by_position} 0, got 0$"):
        value_and_grad(elastic)(x=X, y=Y, zero=Y)
    for same in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="argnums must name each argument once"):
            value_and_grad(lambda x, y: 3 * mse_loss(x, y), same)(X, Y)
    with pytest.raises(TypeError, match="argument 0 must be a floating array"):
        value_and_grad(elastic)(CLASSES, Y, Y)


def test_shapes_can_be_asked_for_and_values_are_checked() -> None:
    def mean_of_sums(x: Array) -> Array:
        assert x.ndim == 2
        assert x.dtype == np.float64
        return binary_cross_entropy_with_logits(x, Y, reduction="sum") / x.shape[0]

    with check_values():
        value, _ = value_and_grad(mean_of_sums)(X)
        with pytest.raises(ValueError, match="target must be in"):
            value_and_grad(lambda x: binary_cross_entropy_with_logits(x, 2 * Y))(X)
    expected = binary_cross_entropy_with_logits(X, Y, reduction="sum") / 4
    np.testing.assert_allclose(value, expected)


def test_calls_inside_calls_do_not_mix() -> None:
    """A gradient inside a function is a constant of its own arguments alone."""

    def through_the_gradient(x: Array) -> Array:
        value, _ = value_and_grad(lambda y: mse_loss(y, x))(Y)
        return mse_loss(x, Y) + value

    with pytest.raises(TypeError, match="of another call is used"):
        value_and_grad(through_the_gradient)(X)

    def beside(x: Array) -> Array:
        value, _ = value_and_grad(lambda y: 2 * mse_loss(y, X))(Y)
        return mse_loss(x, Y) + value

    np.testing.assert_array_equal(grad(beside)(X), grad(mse_loss)(X, Y))


def test_what_is_kept_cannot_be_used_again() -> None:
    kept: list[Any] = []

    def keeping(x: Array) -> Array:
        kept.extend([x, mse_loss(x, Y)])
        return kept[1]

    _, gradient = value_and_grad(keeping)(X)
    before = gradient.copy()
    for function in (
        lambda x: kept[1] + l1_loss(x, Y),
        lambda x: l1_loss(kept[0], Y),
        lambda x: kept[1],
    ):
        with pytest.raises(TypeError, match="of another call"):
            value_and_grad(function)(X)
    np.testing.assert_array_equal(gradient, before)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_beyond_half_precision(library: Library, dtype: str) -> None:
    x = library.array(np.full(4, 0.06).astype(DTYPES[dtype]))
    zero = library.array(np.zeros(4, DTYPES[dtype]))
    value, gradient = value_and_grad(lambda x: 65536 * 2 * mse_loss(x, zero) + 0.5)(x)
    assert value.dtype == gradient.dtype == x.dtype
    exact = float(library.host(x)[0])
    one = float(library.host(mse_loss(x, zero)))
    np.testing.assert_allclose(float(library.host(value)), 131072 * one + 0.5, rtol=1e-2)
    np.testing.assert_allclose(
        library.host(gradient).astype(float), 131072 * 2 * exact / 4, rtol=1e-2
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_overflow_is_infinite_without_a_warning(dtype: str) -> None:
    x = np.full(3, 200.0).astype(DTYPES[dtype])
    zero = np.zeros(3, DTYPES[dtype])

    def squares(x: Array) -> Array:
        return 1e38 * mse_loss(x, zero) + 1e38 * mse_loss(x, x) + 1e38

    with np.errstate(all="raise"):
        value, gradient = value_and_grad(squares)(x)
    assert np.isposinf(value.astype(float))
    assert np.isposinf(gradient.astype(float)).all()


def test_a_wider_constant_does_not_decide_on_the_dtype(library: Library) -> None:
    x, y = draw(library, (5,), (5,), dtype=np.float32)
    wide = library.array(np.asarray(2.0))
    value, gradient = value_and_grad(lambda x: wide * mse_loss(x, y) + wide)(x)
    assert value.dtype == gradient.dtype == x.dtype


@pytest.mark.parametrize("two", [np.float32(2.0), np.asarray(2.0)])
def test_numbers_of_numpy_come_first(two: Any) -> None:
    """Each operator takes them on the left, as Python's numbers."""
    functions = [lambda x, c: c * mse_loss(x, Y) + 3.0, lambda x, c: c - mse_loss(x, Y) / c]
    functions.append(lambda x, c: c + np.add(mse_loss(x, Y), c))
    for function in functions:
        value, gradient = value_and_grad(function)(X, two)
        expected, slope = value_and_grad(function)(X, 2.0)
        np.testing.assert_allclose(value, expected, rtol=1e-15)
        np.testing.assert_array_equal(gradient, slope)
    with pytest.raises(TypeError, match="a loss is used in /:"):
        value_and_grad(lambda x: two / mse_loss(x, Y))(X)
    with pytest.raises(TypeError, match="a loss is used in np.greater:"):
        value_and_grad(lambda x: np.greater(mse_loss(x, Y), two))(X)


def test_constants_are_as_wide_as_they_come() -> None:
    """One of float32 makes no other one float32, and a quotient by 0 is infinite."""
    x, y = np.array([1.0, 3.0]), np.zeros(2)
    value, gradient = value_and_grad(lambda a: np.float32(2) * mse_loss(a, y) + 0.1)(x)
    assert value == 2 * 5.0 + 0.1
    np.testing.assert_array_equal(gradient, 2 * x)
    for zero in (0.0, 0, Fraction(0)):
        value, gradient = value_and_grad(lambda a, zero=zero: mse_loss(a, y) / zero)(x)
        assert value == np.inf
        assert np.isposinf(gradient).all()


def test_an_infinite_factor(library: Library) -> None:
    """A loss times one is infinite, also where it is an array; so is what is added to it."""
    x, y = library.array(np.array([1.0, 3.0])), library.array(np.zeros(2))
    for infinite in (math.inf, library.array(np.asarray(math.inf))):
        for added in (0.0, 1.0):
            value, gradient = value_and_grad(
                lambda x, by=infinite, one=added: by * (mse_loss(x, y) + one)
            )(x)
            assert library.host(value) == math.inf
            assert np.isposinf(library.host(gradient)).all()


def test_what_a_transform_makes_has_the_signature_of_its_loss() -> None:
    partial = functools.partial(huber_loss, delta=2.0)
    for transform in (value_and_grad, grad, grad_and_hess):
        for loss in (huber_loss, partial):
            made = pickle.loads(pickle.dumps(transform(loss)))
            assert made.__name__ == "huber_loss"
            assert inspect.signature(made) == inspect.signature(loss)
    signature = inspect.signature(value_and_grad(elastic))
    assert signature == inspect.signature(elastic)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_no_array_gets_lost(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """A library keeps what its operators make and drop, on the device of what they work on."""
    kept: list[Array] = []
    inside: list[Array] = []

    @contextlib.contextmanager
    def on_device_of(library: Any, array: Array) -> Iterator[None]:
        inside.append(array)
        yield
        inside.pop()

    def keeping(library: Any, array: Array) -> Array:
        kept.append(array)
        return array

    class Watched(np.ndarray):
        """Arrays that work on their device alone."""

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            assert inside
            plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
            out = options.pop("out", ())
            if out:
                options["out"] = tuple(x.view(np.ndarray) for x in out)
            made = getattr(ufunc, method)(*plain, **options)
            return out[0] if out else np.asarray(made).view(Watched)

    run = NumpyLibrary.run

    def running(library: Any, *arguments: Any) -> list[Array]:
        results: list[Any] = run(library, *arguments)
        made.extend(x.view(Watched) for x in results)
        return made[-len(results) :]

    made: list[Array] = []
    monkeypatch.setattr(NumpyLibrary, "run", running)
    monkeypatch.setattr(NumpyLibrary, "kept", keeping)
    monkeypatch.setattr(NumpyLibrary, "on_device_of", on_device_of)
    x, y = np.random.default_rng(0).standard_normal((2, 7)).astype(dtype)
    value, gradient = value_and_grad(elastic)(x, y, np.zeros(7, dtype))
    expected = by_hand(x.astype(float), y.astype(float))
    np.testing.assert_allclose(float(value), expected[0], rtol=4 * np.finfo(dtype).eps)
    rtol = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.asarray(gradient), expected[1], rtol=rtol, atol=rtol)
    given_back = [id(value), id(gradient)]
    known = {id(array) for array in kept} | {id(array.base) for array in kept}
    lost = [x for x in made if id(x) not in known and id(x) not in given_back]
    assert lost == []
    monkeypatch.setattr(NumpyLibrary, "run", run)
    before = len(kept)
    grad(mse_loss)(x, y)
    assert [array.shape for array in kept[before:]] == [()]

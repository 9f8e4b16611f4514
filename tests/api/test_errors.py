"""Bad input: a clear error that names the argument, before anything is computed."""

from __future__ import annotations

import fractions
import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    binary_cross_entropy,
    check_values,
    cross_entropy,
    hinge_loss,
    huber_loss,
    hvp,
    l1_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    nll_loss,
    pointwise_loss,
    poisson_nll_loss,
    quantile_loss,
    smooth_l1_loss,
    value_and_grad,
)

from ..tables.arrays import Library
from ..tables.losses import LOSSES, Case


@pytest.fixture
def ones(library: Library) -> Any:
    return library.array(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("bad", [[1.0, 2.0], 1.0, None, "text", object()])
@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_no_array(case: Case, ones: Any, bad: Any) -> None:
    names = list(inspect.signature(case.loss).parameters)[: len(case.draws)]
    options = {"reduction": "sum", **case.parameters}
    for k, name in enumerate(names):
        if name == "var" and isinstance(bad, float):
            continue
        arrays = [ones] * len(names)
        arrays[k] = bad
        with pytest.raises(TypeError, match=f"{name} must be a"):
            case.loss(*arrays, **options)
    for name in ("weight", "where"):
        if bad is not None:
            with pytest.raises(TypeError, match=f"{name} must be a"):
                case.loss(*[ones] * len(names), **{name: bad}, **options)


def test_masks(library: Library, ones: Any) -> None:
    with pytest.raises(TypeError, match="where must have dtype bool, got int32"):
        mse_loss(ones, ones, where=library.array(np.ones((2, 3), np.int32)))
    with pytest.raises(ValueError, match=r"where of shape \(4,\) does not broadcast to \(2, 3\)"):
        mse_loss(ones, ones, where=library.array(np.ones(4, bool)))


def test_shapes(library: Library, ones: Any) -> None:
    with pytest.raises(ValueError, match=r"target of shape \(4,\) does not broadcast with input"):
        mse_loss(ones, library.array(np.ones(4, np.float32)))
    with pytest.raises(ValueError, match=r"weight of shape \(4,\) does not broadcast to \(2, 3\)"):
        mse_loss(ones, ones, weight=library.array(np.ones(4, np.float32)))
    with pytest.raises(ValueError, match=r"weight of shape \(5, 2, 3\) does not broadcast to"):
        mse_loss(ones, ones, weight=library.array(np.ones((5, 2, 3), np.float32)))


@pytest.mark.parametrize(
    ("shape", "advice"),
    [((2,), r"pass {}\[:, None\] if it lies along axis 0"), ((3, 3), "")],
)
@pytest.mark.parametrize("name", ["weight", "where"])
def test_what_lies_along_the_first_axis(
    library: Library, ones: Any, name: str, shape: tuple[int, ...], advice: str
) -> None:
    """What to index where the shape is that of the first axes."""
    array = library.array(np.ones(shape, bool if name == "where" else np.float32))
    with pytest.raises(ValueError, match=f"does not broadcast to .*{advice.format(name)}$"):
        mse_loss(ones, ones, **{name: array})
    many, along = (library.array(np.ones(s, np.float32)) for s in ((2, 3, 4), (2, 3)))
    with pytest.raises(ValueError, match=r"pass weight\[:, :, None\] if it lies along the first 2"):
        mse_loss(many, many, weight=along)


def test_numbers_become_an_array_of_the_first_library(library: Library, ones: Any) -> None:
    made = {"torch": "torch.as_tensor", "cupy": "cupy.asarray"}.get(
        type(ones).__module__.partition(".")[0], "np.asarray"
    )
    with pytest.raises(TypeError, match=rf"got list: pass {made}\(weight"):
        mse_loss(ones, ones, weight=[1.0, 2.0, 3.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got float: pass np.asarray\(input\)"):
        mse_loss(1.0, ones)


def test_arguments_by_keyword(ones: Any) -> None:
    with pytest.raises(
        TypeError,
        match=r"huber_loss\(\) takes 2 positional arguments but 3 were .*"
        "delta, .* are passed by keyword",
    ):
        huber_loss(ones, ones, 1.0)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="3 positional arguments but 4 .* are passed by keyword"):
        value_and_grad(quantile_loss)(ones, ones, 0.5, "sum")  # type: ignore[call-arg]


def test_an_unknown_keyword_is_told_what_there_is(ones: Any) -> None:
    """Also beside an operand that is missing, which is then the one that was meant."""
    expected = r"it takes input, target, reduction, scale, delta, weight, where$"
    with pytest.raises(TypeError, match=rf"huber_loss\(\) got .* argument 'beta': {expected}"):
        huber_loss(ones, ones, beta=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"own\(\) got .* argument 'targt': it takes input, target"):
        own(input=ones, targt=ones)
    with pytest.raises(TypeError, match=r"own\(\) got multiple values for argument 'input'"):
        own(ones, ones, input=ones)


own = pointwise_loss("own", lambda input, target, c=1.0: c * (input - target))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, number: huber_loss(x, x, delta=number),
        lambda x, number: mse_loss(x, x, scale=number),
        lambda x, number: mse_loss(x, x, reduction=number),
        lambda x, number: nll_loss(x, x[:, 0], ignore_index=number),
        lambda x, number: value_and_grad(mse_loss, number)(x, x),
        lambda x, number: own(x, x, c=number),
        lambda x, number: pointwise_loss("other", lambda input, c=number: c * input),
        lambda x, number: pointwise_loss("other", lambda input: number * input),
    ],
)
def test_numbers_of_many_digits(call: Any) -> None:
    """Python does not write out all of them itself, from 4300 on."""
    for number, bits in ((10**400, 1329), (-(10**5000), 16610)):
        with pytest.raises((TypeError, ValueError), match=rf"got an integer of {bits} bits"):
            call(np.ones((2, 3)), number)
    with pytest.raises(ValueError, match="delta must be > 0 .*, got a fraction of 1329 bits$"):
        huber_loss(np.ones(3), np.ones(3), delta=fractions.Fraction(10**400, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"delta must be > 0 .*, got {10**77}$"):
        huber_loss(np.ones(3), np.ones(3), delta=10**77)


def test_classes_along_another_axis(library: Library) -> None:
    logits = library.array(np.ones((2, 5, 11), np.float32))
    classes = {n: library.array(np.zeros((2, n), np.int64)) for n in (5, 11)}
    with pytest.raises(
        ValueError, match=r"got \(2, 5\); classes lie along axis 1: pass axis=-1 if"
    ):
        cross_entropy(logits, classes[5])
    assert library.host(cross_entropy(logits, classes[5], axis=-1)) > 0
    weight = library.array(np.ones(11, np.float32))
    with pytest.raises(ValueError, match=r"weight must .* got \(11,\); classes lie along axis 1: "):
        nll_loss(logits, classes[11], weight=weight)
    with pytest.raises(ValueError, match=r"got \(2, 7\)$"):
        cross_entropy(logits, library.array(np.zeros((2, 7), np.int64)))


def test_targets_that_are_no_classes(library: Library, ones: Any) -> None:
    """One-hot, floating, and texts."""
    one_hot = library.array(np.ones((2, 3), np.int64))
    with pytest.raises(
        ValueError, match=r"floating dtype; pass target.argmax\(1\) if it is one-hot"
    ):
        cross_entropy(ones, one_hot)
    with pytest.raises(
        ValueError, match=r"got \(2, 3\); pass target.argmax\(-1\) if it is one-hot"
    ):
        multi_margin_loss(ones, one_hot)
    for shape, column in (((3, 2), (3, 1)), ((3, 2, 4), (3, 1, 4))):
        input, target = library.array(np.ones(shape)), library.array(np.zeros(column, np.int64))
        with pytest.raises(ValueError, match=r"got \(3, 1.*\); pass target.squeeze\(1\)$"):
            cross_entropy(input, target)
    with pytest.raises(TypeError, match=r"got float32; pass target.argmax\(1\) if it is one-hot"):
        nll_loss(ones, ones)
    floating = library.array(np.ones(2, np.float32))
    advice = r"pass target.astype\(int\), or target.long\(\) of torch"
    with pytest.raises(TypeError, match=f"an integer dtype, got float32: {advice}"):
        nll_loss(ones, floating)
    with pytest.raises(ValueError, match=f"classes must have an integer dtype: {advice}"):
        cross_entropy(ones, floating)
    texts = np.array(["cat", "dog"])
    with pytest.raises(
        TypeError, match=r"got str\d*: pass np.unique\(target, return_inverse=True\)"
    ):
        cross_entropy(np.ones((2, 3)), texts)
    with pytest.raises(TypeError, match=r"got str\d*: pass indices of classes, and -1 behind"):
        multilabel_margin_loss(np.ones(2), texts)


@pytest.mark.parametrize("loss", [nll_loss, multi_margin_loss])
def test_a_class_that_is_one_floating_number(loss: Any, library: Library) -> None:
    """It is not one-hot."""
    one = library.array(np.ones((), np.float32))
    with pytest.raises(TypeError, match=r"dtype, got float32: pass target.astype\(int\), or "):
        loss(one, one)


def test_one_weight_for_all_is_a_scale(library: Library, ones: Any) -> None:
    classes = library.array(np.zeros(2, np.int64))
    for name in ("weight", "sample_weight"):
        half: Any = {name: 0.5}
        with pytest.raises(TypeError, match=rf"^{name} must .* got float: pass scale=0.5, which"):
            cross_entropy(ones, classes, **half)
    with pytest.raises(TypeError, match="got int: pass scale=2, which multiplies the whole loss$"):
        mse_loss(ones, ones, weight=2)  # type: ignore[arg-type]
    number = library.array(np.full((), 0.5, np.float32))
    with pytest.raises(ValueError, match=r"got \(\); scale multiplies the whole loss by a number$"):
        cross_entropy(ones, classes, weight=number)


def test_masks_of_rows(library: Library, ones: Any) -> None:
    classes, mask = library.array(np.zeros(2, np.int64)), library.array(np.ones(2, np.int32))
    with pytest.raises(TypeError, match="where must have dtype bool, got int32: pass where != 0$"):
        cross_entropy(ones, classes, where=mask)


def test_categories_of_pandas() -> None:
    """Their codes are classes; stand-ins, which have what pandas' have."""
    of_pandas = {"codes": np.zeros(2, np.int8), "categories": ["a"], "to_numpy": lambda self: None}
    categorical = type("Categorical", (), of_pandas)()
    series = type("Series", (), {"cat": categorical, "to_numpy": lambda self: None})()
    for target, advice in ((categorical, r"\.codes"), (series, r"\.cat\.codes\.to_numpy\(\)")):
        with pytest.raises(TypeError, match=rf"pass target{advice}$"):
            cross_entropy(np.ones((2, 3)), target)


def test_dtypes(library: Library, ones: Any) -> None:
    with pytest.raises(TypeError, match="target must have a real dtype .* got complex64"):
        mse_loss(ones, library.array(np.ones((2, 3), np.complex64)))
    integers = library.array(np.ones((2, 3), np.int32))
    with pytest.raises(TypeError, match="at least one of input, target must be floating"):
        mse_loss(integers, integers)


@pytest.mark.parametrize("bad", ["average", "", None, 3, "Mean"])
def test_reduction(ones: Any, bad: Any) -> None:
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum'"):
        mse_loss(ones, ones, reduction=bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, -math.inf, math.inf])
def test_beta(ones: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="beta must be >= 0 and at most 1.3e.36"):
        smooth_l1_loss(ones, ones, beta=bad)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_scale(ones: Any, bad: float) -> None:
    with pytest.raises(ValueError, match=r"scale must be >= -1.3e\+36 and at most 1.3e\+36"):
        mse_loss(ones, ones, scale=bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_delta(ones: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="delta must be > 0 and at most 1.3e.36"):
        huber_loss(ones, ones, delta=bad)


@pytest.mark.parametrize("bad", ["1", None, [1.0], True, 1j, torch.tensor(1.0)])
def test_parameter_types(ones: Any, bad: Any) -> None:
    with pytest.raises(TypeError, match="beta must be a real number"):
        smooth_l1_loss(ones, ones, beta=bad)
    with pytest.raises(TypeError, match="delta must be a real number"):
        huber_loss(ones, ones, delta=bad)


def test_an_error_leaves_nothing_behind(library: Library, ones: Any) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="beta"):
            smooth_l1_loss(ones, ones, beta=-1)
        assert library.host(smooth_l1_loss(ones, ones)) == 0


def test_masked_arrays_are_no_arrays() -> None:
    masked = np.ma.masked_array(np.ones(3), [True, False, False])
    with pytest.raises(TypeError, match="target must be a"):
        mse_loss(np.ones(3), masked)


def test_numpy_numbers_are_parameters(library: Library) -> None:
    """A scalar of any dtype is worth its value, whatever was called before."""
    input = library.array(np.array([0.05, 0.1, 0.2], np.float32))
    target = library.array(np.zeros(3, np.float32))
    scalars: list[Any] = [np.float16(0.3), np.float32(0.3), np.int64(1), 1]
    for scalar in scalars:
        got = library.host(smooth_l1_loss(input, target, beta=scalar))
        assert got == library.host(smooth_l1_loss(input, target, beta=float(scalar)))
        d = np.array([0.05, 0.1, 0.2], np.float32).astype(np.float64)
        np.testing.assert_allclose(got, np.mean(d * d / 2 / float(scalar)), rtol=2e-7)


@pytest.mark.gpu
def test_host_and_device_do_not_mix() -> None:
    import cupy

    host, device = np.ones(3, np.float32), cupy.ones(3, np.float32)
    for pair in ((host, device), (device, host), (torch.ones(3), device)):
        with pytest.raises(
            ValueError, match="on the host.*on the device|on the device.*on the host"
        ):
            mse_loss(*pair)
    cuda = torch.ones(3, device="cuda")
    for mixed in ((cuda, torch.ones(3)), (torch.ones(3), cuda)):
        with pytest.raises(ValueError, match="same device"):
            l1_loss(*mixed)


def test_torch_layouts_and_devices() -> None:
    dense = torch.ones(2, 3)
    sparse, meta = dense.to_sparse(), dense.to("meta")
    for _ in range(2):  # met for the first time, and known as a type of array
        with pytest.raises(TypeError, match="input must be a .*dense torch array"):
            mse_loss(sparse, dense)
        with pytest.raises(TypeError, match="target must be a .*dense torch array"):
            mse_loss(dense, sparse)
        for arrays in (meta, dense), (dense, meta):
            with pytest.raises(ValueError, match="on the same device, got input on"):
                mse_loss(*arrays)
        mse_loss(dense, dense)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "uint1"])
def test_dtypes_of_torch_alone(dtype: str) -> None:
    """NumPy can not share them, but what is wrong is the dtype."""
    other, zeros = torch.zeros(3, dtype=getattr(torch, dtype)), torch.zeros(3)
    expected = f"must have a real dtype .*, got {dtype}$"
    with pytest.raises(TypeError, match=f"^input {expected}"):
        mse_loss(other, zeros)
    with pytest.raises(TypeError, match=f"^target {expected}"):
        mse_loss(zeros, other)
    with pytest.raises(
        TypeError, match=f"^where must have dtype bool, got {dtype}: pass where != 0$"
    ):
        mse_loss(zeros, zeros, where=other)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    for arrays, name in ((nested, torch.ones(2)), "input"), ((torch.ones(2), nested), "target"):
        message = f"{name} must be a dense torch array .*: it is nested. Pad it, and pass where="
        with pytest.raises(TypeError, match=message):
            mse_loss(*arrays)


@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_numpy_with_torch_on_the_host() -> None:
    array, tensor = np.ones(3, np.float32), torch.zeros(3)
    assert type(mse_loss(array, tensor)) is np.ndarray
    assert type(mse_loss(tensor, array)) is torch.Tensor
    for scalar in np.float32(2), np.float64(2), np.int64(2), np.bool_(True):
        loss = mse_loss(tensor, scalar)
        assert type(loss) is torch.Tensor
        assert loss == mse_loss(array - 1, scalar) == float(scalar) ** 2
    with pytest.raises(ValueError, match="target requires grad"):
        mse_loss(array, tensor.requires_grad_())


def test_subclasses_of_numpy_arrays() -> None:
    """Arrays as others are: operators of their own are not those of a formula."""

    class Matrix(np.ndarray[Any, Any]):
        def __mul__(self, other: Any) -> Any:
            return self @ other

    product = pointwise_loss("mine", "x * y", operands=["x", "y"], numpy=lambda x, y: x * y)
    x, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0], [1.0, 1.0]])
    for kind in np.ndarray, Matrix:
        own = x.view(kind)
        value, gradient = value_and_grad(product)(own, y.view(kind))
        assert float(value) == 2.375
        assert type(gradient) is np.ndarray
        np.testing.assert_array_equal(gradient, y / 4)
        np.testing.assert_array_equal(hvp(product, (own, y), (None, own)), x / 4)


def test_mapped_files(tmp_path: Path) -> None:
    """Read where they are, and overwritten there."""
    x, target = np.random.default_rng(0).standard_normal((5, 4)), np.arange(5) % 4
    mapped = np.memmap(tmp_path / "x", x.dtype, "w+", shape=x.shape)
    mapped[:] = x
    value, gradient = value_and_grad(cross_entropy)(mapped, target)
    np.testing.assert_array_equal(mapped, x)
    again, in_place = value_and_grad(cross_entropy)(mapped, target, overwrite_input=True)
    assert value == again
    assert np.shares_memory(in_place, mapped)
    for found in (in_place, mapped):
        np.testing.assert_array_equal(found, gradient)
    read_only = np.memmap(tmp_path / "x", x.dtype, "r", shape=x.shape)
    with pytest.raises(ValueError, match="input must be writeable"):
        value_and_grad(cross_entropy)(read_only, target, overwrite_input=True)


def test_dlpack_object_on_the_host() -> None:
    class Exporter:
        """An array of some other library."""

        def __init__(self) -> None:
            self._array = np.full(3, 2.0, np.float32)

        def __dlpack__(self, **options: Any) -> Any:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    assert mse_loss(Exporter(), Exporter()) == 0
    assert mse_loss(np.zeros(3, np.float32), Exporter()) == 4


def test_an_error_of_the_device_stays_what_it_is() -> None:
    """Such as a lack of memory, after which a caller may try again with less."""

    class OutOfMemoryError(RuntimeError):
        pass

    class Exporter:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def __dlpack__(self, **options: Any) -> Any:
            raise self._error

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    x = np.zeros(3, np.float32)
    with pytest.raises(OutOfMemoryError):
        mse_loss(x, Exporter(OutOfMemoryError("out of memory")))
    for error in (RuntimeError("why"), NotImplementedError("why"), BufferError("why")):
        with pytest.raises(TypeError, match="target cannot be shared as a numpy array: why"):
            mse_loss(x, Exporter(error))


def test_check_values(library: Library) -> None:
    input = library.array(np.array([[0.5, 0.25], [1.0, 1.5]], np.float32))
    label = library.array(np.array([0.0, 1.0], np.float32))
    labels = library.array(np.array([[0.0, 1.0], [1.0, 0.0]], np.float32))
    signs = library.array(np.array([1, 0], np.int32))
    where = library.array(np.array([[True, True], [True, False]]))
    assert np.isnan(library.host(binary_cross_entropy(input, labels)))
    with check_values():
        with pytest.raises(
            ValueError, match=r"input must be in \[0, 1\], but input\[1, 1\] is 1.5"
        ):
            binary_cross_entropy(input, labels)
        assert np.isfinite(library.host(binary_cross_entropy(input, labels, where=where)))
        with pytest.raises(ValueError, match=r"target must be -1 or 1, but target\[1\] is 0"):
            value_and_grad(hinge_loss)(input, signs)
        with pytest.raises(ValueError, match=r"target must be at least 0, but target is -1"):
            poisson_nll_loss(input, library.array(np.array(-1.0, np.float32)))
        assert np.isfinite(library.host(poisson_nll_loss(input, label)))
    binary_cross_entropy(input, labels)


@pytest.mark.parametrize("shape", [(200_003,), (2, 100_003), (1003, 201), (2, 3, 70_001)])
@pytest.mark.parametrize("masked", [False, True])
def test_check_values_of_several_chunks(shape: tuple[int, ...], masked: bool) -> None:
    """Names the first element of the whole, whatever the mask leaves out before it."""
    input, where = np.full(shape, 0.5), np.full(shape, True)
    last = tuple(length - 1 for length in shape)
    input[(0,) * len(shape)] = 0.5 if not masked else 2.0
    where[(0,) * len(shape)] = False
    input[last] = 1.5
    named = rf"input\[{', '.join(map(str, last))}\] is 1.5"
    with check_values(), pytest.raises(ValueError, match=named):
        binary_cross_entropy(input, np.ones(shape[-1:]), where=where if masked else None)


def test_check_values_says_that_it_heads_a_block() -> None:
    assert "ContextManager" in str(inspect.signature(check_values))
    check_values()  # and checks nothing by itself
    assert np.isnan(binary_cross_entropy(np.array([1.5]), np.ones(1)))

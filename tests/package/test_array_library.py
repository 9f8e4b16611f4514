"""A library of arrays is one class that registers itself, as CONTRIBUTING says."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading
import weakref
from array import array as buffer
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
import torch

from cupy_losses import (
    check_values,
    cross_entropy,
    embedding,
    grad_and_hess,
    jvp,
    kl_div,
    margin_ranking_loss,
    mse_loss,
    triplet_margin_with_distance_loss,
    value_and_grad,
    vjp,
)
from cupy_losses._core.loss import FORWARD, Call, Request
from cupy_losses._libraries import registry
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import ArrayLibrary, register

from .. import conftest, emulator
from ..tables import foreign
from ..tools import requirements


class Holder:
    """An array of another library."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


class Frozen(Holder):
    """One that cannot be written to, of a library of its own."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.values.flags.writeable = False


@pytest.fixture(autouse=True)
def _frozen_library() -> Iterator[None]:
    """The library, registered for one test."""

    @register
    class FrozenLibrary(ArrayLibrary):
        name = "frozen"
        on_host = True

        @classmethod
        def types(cls) -> tuple[type, ...]:
            return (Frozen,)

        @classmethod
        def owns(cls, array: Any) -> bool:
            return isinstance(array, Frozen)

        def adopt(self, array: Any) -> Any:
            return array if isinstance(array, Frozen) else Frozen(np.asarray(array))

        def one(self, like: Any) -> Any:
            return Frozen(np.ones((), like.dtype))

        def plain(self, operands: Sequence[Any]) -> Sequence[Any]:
            return [operand.values for operand in operands]

        def evaluate(self, call: Call, operands: Sequence[Any]) -> Any:
            return self.run(call, FORWARD, operands)[0]

        def run(self, call: Call, request: Request, operands: Sequence[Any]) -> list[Any]:
            results = on_host(call, request, self.plain(operands))
            return [None if result is None else Frozen(result) for result in results]

    yield
    registry._classes.remove(FrozenLibrary)
    registry._library_of.pop(Frozen, None)


# For type checkers an array of any library, as one that shares no memory is none.
frozen: Any = Frozen
X, Y = np.linspace(0.1, 0.9, 6).reshape(2, 3), np.full((2, 3), 0.5)


def test_losses_and_gradients() -> None:
    for _ in range(2):  # the second time its type is known
        value = mse_loss(frozen(X), frozen(Y))
        assert isinstance(value, Frozen)
        np.testing.assert_array_equal(value.values, mse_loss(X, Y))
        both = value_and_grad(mse_loss)(frozen(X), frozen(Y))
        for got, expected in zip(both, value_and_grad(mse_loss)(X, Y), strict=True):
            assert isinstance(got, Frozen)
            np.testing.assert_array_equal(got.values, expected)


def test_other_libraries_beside_it() -> None:
    for weight in (np.ones(3), frozen(np.ones(3)), np.ones(3)):
        value = cross_entropy(frozen(X), np.array([0, 2]), weight=weight)
        assert isinstance(value, Frozen)
        np.testing.assert_array_equal(value.values, cross_entropy(X, np.array([0, 2])))


def test_a_scalar_of_numpy_beside_it() -> None:
    for _ in range(2):
        value = kl_div(frozen(X[0, 0]), np.float64(0.5), reduction="sum")
        assert isinstance(value, Frozen)
        np.testing.assert_array_equal(
            value.values, kl_div(X[0, 0], np.float64(0.5), reduction="sum")
        )


def test_an_array_that_no_other_library_can_share_is_named() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="target cannot be shared as a numpy array"):
            mse_loss(X, frozen(Y))


def test_values_are_checked() -> None:
    with check_values(), pytest.raises(ValueError, match=r"target must be at least 0.*is -1"):
        kl_div(frozen(X), frozen(-np.ones((2, 3))), reduction="sum")


def test_unknown_arrays_are_named() -> None:
    class Stranger:
        shape = (3,)

    with pytest.raises(TypeError, match="target must be .* got Stranger"):
        mse_loss(frozen(X), Stranger())  # type: ignore[arg-type]


class Shared(Holder):
    """An array that is shared by DLPack alone, of a library with `from_dlpack`."""

    requires_grad = False

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class Named(Shared):
    """One that names its namespace, as the array API demands."""

    def __array_namespace__(self) -> Any:
        return NAMESPACE


def named_from_dlpack(array: Any) -> Named:
    return Named(np.from_dlpack(array))


NAMESPACE = SimpleNamespace(from_dlpack=named_from_dlpack)


def shared_from_dlpack(array: Any) -> Shared:
    """Of a library whose arrays have at least one dimension."""
    if not array.shape:
        raise IndexError("list assignment index out of range")
    return Shared(np.from_dlpack(array))


@pytest.fixture
def _of_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library of `Shared`, which is found by the module of the class."""
    monkeypatch.setattr(Shared, "__module__", "shared.arrays")
    monkeypatch.setitem(sys.modules, "shared", SimpleNamespace(from_dlpack=shared_from_dlpack))
    monkeypatch.setattr(registry, "_returning_to", {})


@pytest.mark.usefixtures("_of_dlpack")
@pytest.mark.parametrize(("kind", "shape"), [(Shared, (1,)), (Named, ())])
def test_results_go_back_to_a_library_of_dlpack(kind: Any, shape: tuple[int, ...]) -> None:
    value, gradient = value_and_grad(mse_loss)(kind(X), kind(Y))
    assert type(mse_loss(kind(X), Y)) is type(value) is type(gradient) is kind
    assert value.shape == shape
    np.testing.assert_array_equal(value.values.reshape(()), mse_loss(X, Y))
    np.testing.assert_array_equal(gradient.values, value_and_grad(mse_loss)(X, Y)[1])
    first, second = grad_and_hess(mse_loss)(kind(X), kind(Y))
    np.testing.assert_array_equal(first.values, 2 * (X - Y))
    np.testing.assert_array_equal(second.values, np.full((2, 3), 2.0))
    assert type(mse_loss(X, kind(Y))) is np.ndarray
    assert type(cross_entropy(kind(X), torch.tensor([0, 2]))) is kind
    with check_values(), pytest.raises(ValueError, match=r"target must be at least 0.*is -1"):
        kl_div(kind(X), kind(-np.ones((2, 3))), reduction="sum")


def test_tangents_of_a_library_of_dlpack() -> None:
    """They and the primals may be its arrays or those of the library that computes."""

    def plain(array: Any) -> Any:
        return getattr(array, "values", array)

    x: Any
    y: Any
    tangent: Any
    expected = jvp(mse_loss, (X, Y), (None, X))[1]
    for x, y, tangent in itertools.product((X, Named(X)), (Y, Named(Y)), (X, Named(X))):
        value, derivative = jvp(mse_loss, (x, y), (None, tangent))
        assert isinstance(x, Named) == isinstance(value, Named) == isinstance(derivative, Named)
        np.testing.assert_array_equal(plain(derivative), expected)
        found = vjp(mse_loss, (x, y), tangent, reduction="none")
        np.testing.assert_allclose(plain(found), 2 * (X - Y) * X)
    message = "the tangent of input must be a numpy array as input is, got Tensor"
    with pytest.raises(TypeError, match=message):
        jvp(mse_loss, (x, Y), (torch.from_numpy(X), None))


@pytest.mark.usefixtures("_of_dlpack")
@pytest.mark.parametrize("takes_results", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_arrays_of_dlpack_are_not_overwritten(
    on_device: bool, takes_results: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing says that they are immutable, as on a device."""
    x: Any = Shared(X)
    if not takes_results:
        monkeypatch.setitem(sys.modules, "shared", SimpleNamespace())
        assert isinstance(mse_loss(x, Y), np.ndarray)
    target: Any = np.array([0, 2])
    with contextlib.ExitStack() as stack:
        if on_device:
            emulator.require()
            device = stack.enter_context(emulator.installed())
            target = device.asarray(target)
            monkeypatch.setattr(Shared, "__dlpack_device__", lambda self: (2, 0))
            monkeypatch.setattr(
                sys.modules["cupy"], "from_dlpack", lambda array: device.asarray(array.values)
            )
        with pytest.raises(ValueError, match="input must be writeable to be overwritten, and arr"):
            value_and_grad(cross_entropy)(x, target, overwrite_input=True)
    np.testing.assert_array_equal(x.values, X)


@pytest.mark.usefixtures("_of_dlpack")
def test_arrays_of_dlpack_that_cannot_be_shared() -> None:
    class Recorded(Shared):
        requires_grad = True

    with pytest.raises(ValueError, match="requires grad.*pass input with requires_grad=False"):
        mse_loss(Recorded(X), Y)

    class Closed(Shared):
        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("Unsupported dtype in DLTensor.")

        def __array__(self) -> Any:
            return self.values

    for arrays in (Closed(X), Y), (Y, Closed(X)):
        name = "input" if arrays[1] is Y else "target"
        message = rf"{name} cannot be shared as .* Unsup.*Tensor\b[^.]*: pass np.asarray\({name}\)"
        with pytest.raises(TypeError, match=message):
            mse_loss(*arrays)


class Series:
    def to_numpy(self) -> Any:
        raise AssertionError("must not be converted")


class Sparse:
    shape = (2,)

    def toarray(self) -> Any:
        raise AssertionError("must not be converted")


class Elsewhere:
    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("must not be asked")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (12, 0)


class JitTracer:
    shape = (3,)


JAGGED = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("array", "instead"),
    [
        ([1.0, 2.0], r"list: pass (np.asarray|torch.as_tensor)\(target\)"),
        (2.0, r"float: pass (np.asarray|torch.as_tensor)\(target\)"),
        (np.ma.masked_array([1.0]), r": pass target.data, and where=~target.mask"),
        (Series(), r"Series: pass target.to_numpy\(\)"),
        (JAGGED, "NestedTensor .*, which is nested: pad target, and pass where= for what counts$"),
        (Sparse(), r"Sparse: pass target.toarray\(\)$"),
        (memoryview(b"12"), r"memoryview: pass (np.asarray|torch.as_tensor)\(target\)"),
        (buffer("d", [1.0]), r"array: pass (np.asarray|torch.as_tensor)\(target\)"),
        (Elsewhere(), r"Elsewhere \(DLPack device type 12\)$"),
        (JitTracer(), "JitTracer, which is traced: call the loss outside of jit and grad"),
        (None, "got NoneType$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_to_pass_instead(array: Any, instead: str) -> None:
    for library in (np.ones(2), torch.ones(2)):
        with pytest.raises(TypeError, match=f"target must be a NumPy, CuPy or .*{instead}"):
            mse_loss(library, array)


@pytest.mark.filterwarnings("ignore:Exporting an unversioned DLPack capsule")
def test_what_to_pass_instead_of_nulls_and_bits() -> None:
    """Arrow has no memory for them that NumPy could share."""
    numbers, bits = pyarrow.array([1.0, None]), pyarrow.array([True, False])
    advice = r"cannot be shared as .*: pass {}\.to_numpy\(zero_copy_only=False\)$"
    with pytest.raises(TypeError, match=advice.format("target")):
        mse_loss(np.ones(2), numbers)
    with pytest.raises(TypeError, match=advice.format("where")):
        mse_loss(np.ones(2), np.ones(2), where=bits)
    own = (array.to_numpy(zero_copy_only=False) for array in (numbers, bits))
    np.testing.assert_array_equal(mse_loss(np.ones(2), next(own), where=next(own)), 0)


def test_sparse_tensors() -> None:
    sparse = torch.ones(2).to_sparse()
    with pytest.raises(TypeError, match=r"input .*to_dense\(\)"):
        mse_loss(sparse, sparse)
    with pytest.raises(TypeError, match=r"target .*: pass target.to_dense\(\)$"):
        mse_loss(np.ones(2), sparse)


def test_a_masked_mask() -> None:
    where: Any = np.ma.masked_array([True, False])
    with pytest.raises(TypeError, match=r"where must be a .*: pass where.filled\(False\)$"):
        mse_loss(np.ones(2), np.ones(2), where=where)


def test_arrays_of_the_cuda_array_interface() -> None:
    """Numba's device arrays are shared by it alone: results are CuPy arrays."""
    emulator.require()
    x = np.linspace(0, 1, 40, dtype=np.float32)

    class DeviceArray:
        __cuda_array_interface__ = x.__array_interface__

        def __array__(self, *_: Any, **__: Any) -> Any:
            return x  # what stands for CuPy reads

    with emulator.installed() as device:
        value = mse_loss(DeviceArray(), device.asarray(np.zeros_like(x)))
        assert type(value) is emulator.ndarray
        np.testing.assert_allclose(value.get(), np.mean(x * x), rtol=1e-6)


@pytest.mark.usefixtures("forgotten")
def test_bfloat16_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(
        ModuleNotFoundError, match="bfloat16 needs ml_dtypes: pip install ml_dtypes"
    ):
        mse_loss(x, x)


@pytest.mark.exhaustive  # 250 MB of packages
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("array", [foreign.jax_array, foreign.warp_array])
def test_libraries_of_dlpack(array: Any) -> None:
    x, y = X.astype(np.float32), Y.astype(np.float32)
    kind = type(array(x))
    for loss in (mse_loss, kl_div):
        value, gradients = value_and_grad(loss, (0, 1))(array(x), array(y), reduction="sum")
        expected = value_and_grad(loss, (0, 1))(x, y, reduction="sum")
        results = zip((value, *gradients), (expected[0], *expected[1]), strict=True)
        for got, wanted in results:
            assert type(got) is kind
            np.testing.assert_array_equal(np.asarray(got).reshape(wanted.shape), wanted)
    classes = np.array([2, 0])
    for target in (classes, array(classes)):
        value = cross_entropy(array(x), target)
        assert type(value) is kind
        assert np.asarray(value).item() == cross_entropy(x, classes)
    assert type(mse_loss(x, array(y))) is np.ndarray
    assert type(mse_loss(torch.from_numpy(x), array(y))) is torch.Tensor
    first, second = grad_and_hess(mse_loss)(array(x), y)
    np.testing.assert_array_equal(np.asarray(first), 2 * (x - y))
    np.testing.assert_array_equal(np.asarray(second), np.full((2, 3), 2))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_functions_of_losses_of_jax() -> None:
    def task(x: Any, y: Any) -> Any:
        return mse_loss(x, y) + 0.5 * kl_div(x, y, reduction="sum")

    x, y = (array.astype(np.float32) for array in (X, Y))
    value, gradient = value_and_grad(task)(foreign.jax_array(x), foreign.jax_array(y))
    expected = value_and_grad(task)(x, y)
    assert type(gradient) is type(foreign.jax_array(x))
    np.testing.assert_allclose(np.asarray(value), expected[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(gradient), expected[1], rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_distances_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay arrays of JAX: NumPy's functions would copy them to the host."""
    x, y = (array.astype(np.float32) for array in (X, Y))
    weight = np.array([0.5, 2.0], np.float32)
    compared: list[type] = []

    def distance(x: Any, y: Any) -> Any:
        return abs(x - y).sum(-1)

    def ranking(far: Any, near: Any, *others: Any, **options: Any) -> Any:
        compared.extend([type(far), type(near)])
        return margin_ranking_loss(far, near, *others, **options)

    monkeypatch.setattr(embedding, "margin_ranking_loss", ranking)
    results = []
    for make in (np.asarray, foreign.jax_array):
        anchor, positive, negative, own = (make(a) for a in (x, y, x * y, weight))
        loss = triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=distance, swap=True, sample_weight=own
        )
        assert compared[-2:] == [type(anchor)] * 2
        results.append(np.asarray(loss))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_jax_says_what_to_do() -> None:
    jax = requirements.imported("jax", "arrays")
    x = foreign.jax_array(X)
    for transformed in (jax.jit(mse_loss), jax.grad(mse_loss)):
        with pytest.raises(TypeError, match="Tracer, which is traced: call the loss outside"):
            transformed(x, x)
    half = x.astype(requirements.imported("jax.numpy", "arrays").bfloat16)
    with pytest.raises(
        TypeError, match=r"input cannot be shared.*, got bfloat16: pass np\.asarray"
    ):
        mse_loss(half, half)
    assert mse_loss(np.asarray(half), np.asarray(half)) == 0
    with pytest.raises(ValueError, match="input must be writeable to be overwritten"):
        value_and_grad(cross_entropy)(x, np.array([0, 1]), overwrite_input=True)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_warp_arrays_that_are_recorded() -> None:
    x = foreign.warp_array(X)
    x.requires_grad = True
    with pytest.raises(ValueError, match="requires grad.*pass input with requires_grad=False"):
        mse_loss(x, X)
    x.requires_grad = False
    assert np.asarray(mse_loss(x, X)).item() == 0


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), ""),
        (("jax",), ""),
        (("jax", "warp"), "need warp with CUDA"),
        (("warp", "numba"), "need warp and numba with CUDA"),
    ],
)
def test_tests_of_libraries_without_cuda_are_left_out(
    names: tuple[str, ...], reason: str, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = request.node
    assert conftest.lacking(item) == ""
    item.add_marker(pytest.mark.gpu(*names))
    monkeypatch.setattr(foreign, "finds_gpu", lambda name: name == "jax")
    for problem, found in ((lambda: "", reason), (lambda: "none", "need a GPU (none)")):
        monkeypatch.setattr(conftest, "gpu_problem", problem)
        assert conftest.lacking(item) == found


@pytest.mark.parametrize("name", ["jax", "numba", "warp"])
def test_a_library_that_is_not_there_finds_no_gpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, f"{name}.cuda"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not foreign.finds_gpu.__wrapped__(name)


def test_types_that_are_gone_are_not_kept() -> None:
    """Such as those that are defined in each call of a function; tables have bounds."""
    gone: list[weakref.ref[type]] = []

    def met() -> None:
        class View(np.ndarray[Any, Any]): ...

        class Tensor(torch.Tensor): ...

        class Returned(Shared):
            def __array_namespace__(self) -> Any:
                return SimpleNamespace(from_dlpack=lambda array: Returned(np.from_dlpack(array)))

        class Stranger: ...

        target: Any = Stranger()
        assert mse_loss(X.view(View), Y) == mse_loss(X, Y)
        assert mse_loss(torch.tensor(X).as_subclass(Tensor), torch.tensor(Y)) == mse_loss(X, Y)
        assert mse_loss(cast("Any", Returned(X)), Y).values == mse_loss(X, Y)
        with pytest.raises(TypeError, match="got Stranger"):
            mse_loss(X, target)
        gone.extend(map(weakref.ref, (View, Tensor, Returned, Stranger)))

    for _ in range(registry._MOST + 1):
        met()
    gc.collect()
    assert [kind() for kind in gone[:4]] == [None] * 4


def test_threads_that_come_first_get_one_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_instances", {})
    barrier = threading.Barrier(2)

    class Slow:
        def __init__(self) -> None:
            barrier.wait(60)

    kinds: list[Any] = [Slow, Slow]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(registry.instance, kinds)
    assert one is other

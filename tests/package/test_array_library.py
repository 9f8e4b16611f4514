"""A library of arrays is one class that registers itself, as CONTRIBUTING says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from cupy_losses import check_values, cross_entropy, kl_div, mse_loss, value_and_grad
from cupy_losses._core.loss import FORWARD, Call, Request
from cupy_losses._libraries import registry
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import ArrayLibrary, register


class Frozen:
    """An array that cannot be written to, of a library of its own."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self.values.flags.writeable = False

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


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

"""Denominators that a loss hands out beside its value, for its derivatives, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from cupy_losses import cross_entropy, mse_loss, multilabel_margin_loss
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import FORWARD, Request
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from ..emulator import Device
from ..tools import levels
from .test_anticipation import pair, scores

FLOAT32 = np.dtype(np.float32)
COUNTED = Request(counted=True)
GRADIENT = Request(value=False, wanted=(0,), vjp=True)


class Case(NamedTuple):
    """A call whose mean is divided by a number of elements or rows, and the kernel of its value."""

    kernel: str
    loss: Any
    arrays: list[Any]
    left: int
    options: dict[str, Any] = {}  # noqa: RUF012
    default: bool = False

    def __str__(self) -> str:
        return " ".join((self.kernel, str(self.left), *self.options))


def cases() -> Iterator[Case]:
    """Every schedule, and what is left out by a mask, by an index or by both."""
    input, target = pair(FLOAT32)
    for where in target > -1, np.zeros(target.shape, np.bool_):
        count = int(where.sum())
        yield Case("pointwise", mse_loss, [input, target], count, {"where": where}, bool(count))
    table = [input[:4900].reshape(70, 70), np.asfortranarray(target[:4900].reshape(70, 70))]
    yield Case("tiled", mse_loss, table, 7 * 70, {"where": np.arange(70)[:, None] < 7})
    strided, classes = scores(FLOAT32, 140, 21)
    for kernel, arrays in (
        ("rows", scores(FLOAT32)),
        ("rows", scores(FLOAT32, 40, 520)),
        ("rows", scores(FLOAT32, 2, 16_640)),  # a cluster
        ("split_rows", scores(FLOAT32, 2, 266_240)),
        ("row_tiles", scores(FLOAT32, 300, 10)),
        ("strided_rows", [np.asfortranarray(strided), classes]),
    ):
        counts = arrays[1] >= 0
        default = kernel != "split_rows"
        yield Case(kernel, cross_entropy, arrays, int(counts.sum()), default=default)
        where = np.arange(len(counts)) % 3 > 0
        yield Case(kernel, cross_entropy, arrays, int((counts & where).sum()), {"where": where})
    labels = np.tile(np.array([3, 1, -1, 0]), (9, 1))
    arrays, where = [input[:36].reshape(9, 4), labels], np.arange(9) < 5
    yield Case("multilabel_margin", multilabel_margin_loss, arrays, 5, {"where": where}, True)


CASES = [levels.case(case, default=case.default, id=str(case)) for case in cases()]


@pytest.mark.parametrize("case", CASES)
def test_every_kernel(device: Device, case: Case) -> None:
    """The value has the bits that it has alone, the gradient those of a pass that counts itself."""
    call, hosts = prepare_of(case.loss)(*case.arrays, **case.options)
    own = [device.asarray(host) for host in hosts]
    library, _ = resolve(call, own)

    def results(request: Request, *leading: Any) -> tuple[list[Any], int]:
        """Those of a request, and how many kernels it launched."""
        device.launches.clear()
        given = library.run(call, request, [*leading, *own])
        return [None if x is None else x.get() for x in given], len(device.launches)

    (value, count), launches = results(COUNTED)
    assert device.launches[-1].name.startswith(f"{case.kernel}<")
    (alone,), of_value = results(FORWARD)
    np.testing.assert_array_equal(value, alone)
    assert (count, count.dtype, count.shape) == (case.left, np.float64, ())
    assert launches == of_value
    request = GRADIENT._replace(wanted=(call.extra,))
    grad_output = device.asarray(np.asarray(0.7, np.float32))
    (gradient,), counting = results(request, grad_output)
    given = request._replace(denominator=True)
    (divided,), launches = results(given, device.asarray(count), grad_output)
    np.testing.assert_array_equal(divided, gradient)
    assert launches == counting - 1
    on_the_host: list[Any] = on_host(call, COUNTED, hosts)
    assert on_the_host[1] == case.left
    np.testing.assert_allclose(value, on_the_host[0], rtol=1e-6)


def test_no_elements(device: Device) -> None:
    for loss, *hosts in (
        (mse_loss, np.zeros((0, 3)), np.zeros((0, 3))),
        (cross_entropy, np.zeros((0, 3)), np.zeros(0, np.int64)),
    ):
        where = np.zeros(0 if loss is cross_entropy else (0, 3), np.bool_)
        call, own = prepare_of(loss)(*map(device.asarray, hosts), where=device.asarray(where))
        value, count = resolve(call, own)[0].run(call, COUNTED, own)
        assert np.isnan(value.get())  # type: ignore[union-attr]
        assert count.get() == 0  # type: ignore[union-attr]
    assert not device.launches

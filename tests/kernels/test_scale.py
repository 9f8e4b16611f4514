"""The scale of a reduced loss in every kernel, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from cupy_losses import cross_entropy, mse_loss, multilabel_margin_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from ..emulator import Device
from ..tables.arrays import DTYPES
from ..tools import levels
from .test_anticipation import COLUMNS, Calls, pair, scores

FLOAT32 = np.dtype(np.float32)


class Case(NamedTuple):
    """A call whose value and gradients a kernel computes, among others."""

    kernel: str
    loss: Any
    arrays: list[Any]
    options: dict[str, Any] = {}  # noqa: RUF012
    wanted: tuple[int, ...] = (0,)
    default: bool = False
    dtypes: tuple[str, ...] = ("float32",)  # of scales, each of which is a kernel more

    def __str__(self) -> str:
        return " ".join((self.kernel, *self.options))


def cases() -> Iterator[Case]:
    """Every schedule, and each kind of denominator."""
    input, target = pair(FLOAT32)
    weight, where = np.abs(target) + np.float32(0.5), target > -1
    yield Case("pointwise", mse_loss, [input, target], default=True)
    of_data = {"weight": weight, "where": where}
    yield Case("pointwise", mse_loss, [input, target], of_data, default=True)
    of_sum = {"reduction": "sum"}
    yield Case("pointwise", mse_loss, [input, target], of_sum, (0, 1), dtypes=(*DTYPES,))
    table = input[:4900].reshape(70, 70)
    yield Case("broadcast_sum", mse_loss, [table, target[:70]], wanted=(0, 1))
    long = np.resize(input, (5000, 3))
    yield Case("broadcast_sum", mse_loss, [long, target[:3]], wanted=(1,))
    yield Case("tiled", mse_loss, [table, np.asfortranarray(target[:4900].reshape(70, 70))])
    yield Case("row_tiles", cross_entropy, scores(FLOAT32, 300, 10))
    yield Case("rows", cross_entropy, scores(FLOAT32), default=True)
    of_classes = {"weight": np.linspace(0.5, 2, COLUMNS).astype(np.float32)}
    yield Case("rows", cross_entropy, scores(FLOAT32), of_classes)
    yield Case("split_rows", cross_entropy, scores(FLOAT32, 2, 266_240))
    yield Case("rows", cross_entropy, scores(FLOAT32, 2, 16_640))  # a cluster
    yield Case("rows", cross_entropy, scores(FLOAT32, 40, 520))
    strided, classes = scores(FLOAT32, 140, 21)
    yield Case("strided_rows", cross_entropy, [np.asfortranarray(strided), classes])
    labels = np.tile(np.array([3, 1, -1, 0]), (9, 1))
    yield Case("multilabel_margin", multilabel_margin_loss, [input[:36].reshape(9, 4), labels])


CASES = [levels.case(case, default=case.default, id=str(case)) for case in cases()]


def results(device: Device, case: Case, scale: Any) -> list[Any]:
    """The value and the gradients, from copies in the memory of the device."""

    def on_device(array: Any) -> Any:
        return device.asarray(array) if isinstance(array, np.ndarray) else array

    options = {name: on_device(option) for name, option in case.options.items()}
    arrays = map(on_device, case.arrays)
    both = value_and_grad(case.loss, case.wanted)
    value, gradients = both(*arrays, **options, scale=on_device(scale))
    return [value.get(), *(gradient.get() for gradient in gradients)]


def launched(device: Device) -> list[str]:
    """The kernels that have been launched since this was asked."""
    names = [launch.name for launch in device.launches]
    device.launches.clear()
    return names


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_every_kernel(device: Device, case: Case) -> None:
    """As many launches as without a scale, of the same kernels where it is a number."""
    unscaled = results(device, case, 1.0)
    kernels = launched(device)
    assert any(name.startswith(f"{case.kernel}<") for name in kernels)
    dtypes = [DTYPES[name] for name in case.dtypes]
    for scale in (-4.0, *(np.asarray(-4.0, dtype) for dtype in dtypes)):
        for result, plain in zip(results(device, case, scale), unscaled, strict=True):
            assert (result == -4 * plain).all()
        names = launched(device)
        assert len(names) == len(kernels)
        assert names == kernels or isinstance(scale, np.ndarray)
    for scale in (0.3, *(np.asarray(0.3, dtype) for dtype in dtypes)):
        expected, gradients = value_and_grad(case.loss, case.wanted)(
            *case.arrays, **case.options, scale=scale
        )
        value, *slopes = results(device, case, scale)
        np.testing.assert_allclose(value, expected, rtol=2e-7)
        for slope, gradient in zip(slopes, gradients, strict=True):
            bound = 1e-6 * np.abs(gradient).max()
            np.testing.assert_allclose(slope, gradient, rtol=1e-6, atol=bound)
    for result in results(device, case, np.asarray(0.0, np.float32)):
        assert (result == 0).all()


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_an_infinite_scale_does_not_reach_what_is_left_out(device: Device, scale: float) -> None:
    where = np.arange(5001) % 3 > 0
    masked = Case("pointwise", mse_loss, pair(FLOAT32), {"where": where})
    logits, target = scores(FLOAT32)
    for case, counts in (
        (masked, where),
        (Case("rows", cross_entropy, [logits, target]), target >= 0),
    ):
        given = np.asarray(scale, np.float32)
        on_host, (gradient,) = value_and_grad(case.loss, (0,))(
            *case.arrays, **case.options, scale=given
        )
        value, slopes = results(device, case, given)
        for result, slope in ((value, slopes), (on_host, gradient)):
            assert not np.isfinite(result)
            assert (slope[~counts] == 0).all()
            assert not np.isfinite(slope[counts]).any()


def test_float16_is_rounded_once(device: Device) -> None:
    """The loss itself would overflow, its gradient underflow."""
    hosts = [np.linspace(0, 1e-3, 4096).astype(np.float16), np.zeros(4096, np.float16)]
    for scale in (32768.0, 30000.0, np.asarray(30000.0, np.float16)):
        _, gradient = results(device, Case("pointwise", mse_loss, hosts), scale)
        exact = 2 * hosts[0].astype(np.float64) * float(scale) / 4096
        unit = np.maximum(np.spacing(exact.astype(np.float16)).astype(np.float64), 2.0**-24)
        assert (abs(gradient.astype(np.float64) - exact) <= 0.501 * unit).all()
    large = [np.full(4096, 200, np.float16), np.zeros(4096, np.float16)]
    value, _ = results(device, Case("pointwise", mse_loss, large), 0.3)
    assert value == np.float16(12000)


@pytest.mark.parametrize("where", [False, True])
def test_every_request(device: Device, where: bool) -> None:
    """Of autograd: a VJP, a JVP, second derivatives; with a denominator from outside."""
    hosts = [host[:300] for host in pair(FLOAT32)]
    options = {"where": hosts[1] > -1} if where else {}
    call, own = prepare_of(mse_loss)(*hosts, **options, scale=np.asarray(0.3, np.float32))
    k = call.extra
    tangent, grad_output, denominator = hosts[1] + 1, np.asarray(0.7, np.float32), np.asarray(9.0)
    requests: list[tuple[Request, list[Any]]] = [
        (Request(value=False, wanted=(k,), vjp=True), [grad_output]),
        (Request(tangents=(k,)), [tangent]),
        (Request(value=False, wanted=(k,), vjp=True, tangents=(k,)), [grad_output, tangent]),
        (Request(wanted=(k,), denominator=True), [denominator]),
    ]

    def results_of(request: Request, leading: list[Any]) -> list[Any]:
        arrays = [device.asarray(np.asarray(x)) for x in (*leading, *own)]
        library, _ = resolve(call, arrays[len(leading) :])
        return [x.get() for x in library.run(call, request, arrays) if x is not None]

    every = device.together(lambda: [results_of(*each) for each in requests])
    for (request, leading), found in zip(requests, every, strict=True):
        expected: list[Any] = on_host(call, request, [*leading, *own])
        for result, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-6)


def test_float64_is_rounded_once(device: Device) -> None:
    """The product of the scale, grad_output and 1 / N is not rounded by itself."""
    rng = np.random.default_rng(5)
    host = 2.0 ** rng.integers(-3, 4, 3)  # whose products are exact
    for scale, factor in rng.uniform(0.1, 1, (20, 2)):
        calls = Calls(device, mse_loss, (host, np.zeros(3)), scale=float(scale))
        _, (gradient,), waiting = calls.forward()
        calls.backward([gradient], waiting, float(factor), np.float64)
        for got, x in zip(gradient.get(), host, strict=True):
            exact = Fraction(2 * x) * Fraction(scale) * Fraction(factor) / 3
            assert abs(Fraction(float(got)) - exact) <= Fraction(np.spacing(got)) * Fraction(
                51, 100
            )

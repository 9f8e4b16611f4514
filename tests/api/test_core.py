"""Losses as objects, what requests allocate, and the pair of a sum and its denominator."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, mse_loss, pointwise_loss, smooth_l1_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core import loss as loss_module
from cupy_losses._core.cache import keep
from cupy_losses._core.loss import FORWARD, Request, loss_of_key, losses
from cupy_losses._device import engine
from cupy_losses._host.arrays import spec
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve
from cupy_losses._torch import autograd

from .. import emulator
from ..emulator import installed
from ..tables.arrays import Library
from ..tables.losses import LOSSES, Case
from ..tables.rows import ROWS, RowCase


def call_of(case: Case | RowCase, **options: Any) -> tuple[Any, list[Any]]:
    """A call of a case of the tables, and its operands."""
    rng = np.random.default_rng(3)
    prepare = prepare_of(case.loss)
    if isinstance(case, Case):
        drawn = case.draw(rng, (5, 4))
        call, operands = prepare(*drawn, **case.parameters, **options)
    else:
        call, operands = case.call(case.draw(rng, (5, 4), np.float64), prepare, **options)
    return call, list(operands)


CASES = [*LOSSES, *ROWS]


def test_losses_are_listed_pickled_and_told_by_name() -> None:
    assert len(losses()) > 50
    for name, loss in losses().items():
        assert loss.name == name
        assert pickle.loads(pickle.dumps(loss)) is loss
        assert hash(loss) == hash(pickle.loads(pickle.dumps(loss)))
    with pytest.raises(ValueError, match="already"):
        type(losses()["mse_loss"])(name="mse_loss", struct="X", formula=None)


def formula(input: Any, target: Any) -> Any:
    """A formula that pickle finds by its name."""
    return (input - target) ** 4


def test_losses_of_a_user_are_pickled_with_their_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = pointwise_loss("quartic", "pow(input - target, 4)", numpy=formula)
    other = pointwise_loss("quartic", "pow(input - target, 3)", numpy=formula)
    loss, changed = (prepare_of(f)(np.ones(2), np.ones(2))[0].loss for f in (made, other))
    copy = pickle.loads(pickle.dumps(loss))
    assert copy is not loss
    assert copy == loss
    assert copy.key == loss.key
    assert changed != loss
    assert "quartic" not in losses()
    monkeypatch.setattr(loss_module, "_OF_USERS", {})  # as in another process
    elsewhere = pickle.loads(pickle.dumps(loss))
    assert loss_of_key(loss.key) is elsewhere
    assert copy.formula(np.array(3.0), np.array(1.0)) == 16.0


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.filterwarnings("ignore:.*is broadcast", "ignore:.*mean. divides")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_outputs_are_known_without_a_device(case: Any, reduction: str) -> None:
    """Dtypes, shapes and strides of all that a request makes."""
    call, operands = call_of(case, reduction=reduction)
    library, arrays = resolve(call, operands)
    wanted = tuple(
        k for k in range(len(operands)) if not call.loss.refusal(call, k) and k >= call.extra
    )
    wanted = tuple(k for k in wanted if operands[k].dtype.kind == "f")
    for request in (FORWARD, Request(wanted=wanted), Request(wanted=wanted, early=True)):
        expected = call.loss.outputs(call, request, [spec(array) for array in arrays])
        results = library.run(call, request, arrays)
        assert len(results) == len(expected) > 0
        for result, output in zip(results, expected, strict=True):
            assert (result is None) == (output is None)
            if result is not None and output is not None:
                made = spec(result)
                assert (made.dtype, made.shape) == (output.dtype, output.shape)
                if 1 not in made.shape:
                    assert made.strides == output.strides


PAIRS = [
    (mse_loss, {}),
    (mse_loss, {"weight": 1}),
    (mse_loss, {"where": 1}),
    (mse_loss, {"weight": 1, "where": 1}),
    (mse_loss, {"reduction": "sum"}),
    (cross_entropy, {}),
    (cross_entropy, {"weight": 1}),
    (mse_loss, {"weight": 1, "scale": 0.3}),
]


def pair_problem(loss: Any, options: dict[str, Any], n: int) -> tuple[list[Any], dict[str, Any]]:
    """Operands in float32 and options of a call."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    given = dict(options)
    if loss is cross_entropy:
        target: Any = np.where(rng.random(n) < 0.3, -100, rng.integers(0, 6, n))
        if "weight" in given:
            given["weight"] = rng.random(6).astype(np.float32)
        return [x, target], given
    target = rng.standard_normal((n, 6)).astype(np.float32)
    if "weight" in given:
        given["weight"] = rng.random((n, 6)).astype(np.float32)
    if "where" in given:
        given["where"] = rng.random((n, 6)) < 0.5
    return [x, target], given


def pair_of(call: Any, operands: Any) -> Any:
    """The sum, its rounding error and the denominator."""
    (pair,) = on_host(call, Request(pair=True), operands)
    return pair


@pytest.mark.parametrize("place", ["host", "emulator"])
@pytest.mark.parametrize(
    ("loss", "options"), PAIRS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_parts_of_the_data_add_up(loss: Any, options: dict[str, Any], place: str) -> None:
    """Pairs of two parts, which the host has, give the loss of the whole.

    With their denominator the host and a device give the value and the gradient of each part.
    """
    if place == "emulator":
        emulator.require()
    arrays, given = pair_problem(loss, options, 50)
    whole, gradient = value_and_grad(loss)(*arrays, **given)

    def parts() -> list[Any]:
        made = []
        for rows in (slice(0, 17), slice(17, 50)):
            own = {
                k: v[rows] if getattr(v, "shape", ())[:1] == (50,) else v for k, v in given.items()
            }
            made.append(prepare_of(loss)(*(array[rows] for array in arrays), **own))
        return made

    def evaluate(call: Any, request: Request, operands: Any, denominator: Any) -> Any:
        if place == "host":
            library, _ = resolve(call, operands)
            return library.run(call, request, (np.asarray(denominator), *operands))
        with installed(multiprocessors=2) as device:
            own = [device.asarray(np.asarray(operand)) for operand in operands]
            library, _ = resolve(call, own)
            leading = device.asarray(np.asarray(denominator))
            results: list[Any] = library.run(call, request, (leading, *own))
            return [result.get() for result in results]

    pairs = [pair_of(call, operands) for call, operands in parts()]
    assert all(pair.dtype == np.float64 and pair.shape == (3,) for pair in pairs)
    total = sum(pair[0] + pair[1] for pair in pairs)
    denominator = 1.0 if options.get("reduction") == "sum" else sum(pair[2] for pair in pairs)
    scale = options.get("scale", 1.0)  # which a pair has not
    np.testing.assert_allclose(total * scale / denominator, whole, rtol=1e-6)

    values, gradients = [], []
    for call, operands in parts():
        request = Request(wanted=(call.extra,), denominator=True)
        value, part = evaluate(call, request, operands, denominator)
        values.append(value)
        gradients.append(part)
    np.testing.assert_allclose(sum(np.float64(value) for value in values), whole, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate(gradients), gradient, rtol=1e-5, atol=1e-7)


def test_nothing_adds_nothing() -> None:
    """The pair of no elements."""
    call, operands = prepare_of(mse_loss)(np.zeros((0, 3)), np.zeros((0, 3)))
    assert pair_of(call, operands).tolist() == [0.0, 0.0, 0.0]


def test_hyper_parameters_make_no_plans() -> None:
    """One that changes every step is an argument of the same launch."""
    emulator.require()
    x = np.linspace(-2, 2, 300).astype(np.float32)
    with installed() as device:
        a, b = device.asarray(x), device.asarray(np.zeros(300, np.float32))
        for beta in (0.5, 0.25, 1.5, 0.5):
            value, gradient = value_and_grad(smooth_l1_loss)(a, b, beta=beta)
            expected = value_and_grad(smooth_l1_loss)(x, np.zeros(300, np.float32), beta=beta)
            np.testing.assert_allclose(value.get(), expected[0], rtol=1e-6)
            np.testing.assert_allclose(gradient.get(), expected[1], rtol=1e-5)
        assert len(engine._plans) == 1
        for scale in (2.0, 0.5, 0.5, 1.0):
            value, _ = value_and_grad(smooth_l1_loss)(a, b, scale=scale)
            scaled = smooth_l1_loss(x, np.zeros(300, np.float32), scale=scale)
            np.testing.assert_allclose(value.get(), scaled, rtol=1e-6)
        assert len(engine._plans) == 1
        drawn = np.random.default_rng(0).standard_normal((4, 3))
        logits = device.asarray(drawn.astype(np.float32))
        classes = device.asarray(np.array([0, 1, 2, 1]))
        seen = set()
        for smoothing, ignored in ((0.1, -100), (0.3, -100), (0.3, 1)):
            options: dict[str, Any] = {"label_smoothing": smoothing, "ignore_index": ignored}
            got = float(cross_entropy(logits, classes, **options))
            host = cross_entropy(logits.get(), classes.get(), **options)
            np.testing.assert_allclose(got, host, rtol=1e-6)
            seen.add(got)
        assert len(seen) == 3
        assert len(engine._plans) == 2


def test_plans_are_of_a_library() -> None:
    """Two may describe their arrays alike; a plan allocates with the one that it was made for."""
    emulator.require()
    with installed() as device:
        x = device.asarray(np.ones(3, np.float32))
        call, operands = prepare_of(mse_loss)(x, x)
        found, arrays = resolve(call, operands)
        cupy: Any = found
        other = copy.copy(cupy)
        plans = [engine.planned(library, call, FORWARD, arrays)[0] for library in (cupy, other)]
        assert plans[0] is not plans[1]
        assert engine.planned(cupy, call, FORWARD, arrays)[0] is plans[0]


def test_hyper_parameters_fill_no_cache_of_autograd() -> None:
    library = Library("torch")
    x = library.array(np.ones(5)).requires_grad_()
    smooth_l1_loss(x, x.detach(), beta=0.75)
    before = len(autograd._requests)
    for beta in np.linspace(0.1, 0.9, 20):
        smooth_l1_loss(x, x.detach(), beta=float(beta)).backward()
    assert len(autograd._requests) == before


def test_tables_are_bounded() -> None:
    """A program that makes ever new kinds of calls does not fill the memory."""
    table: dict[int, str] = {}
    sizes = []
    for key in range(5):
        assert keep(table, key, str(key), most=2) == table[key] == str(key)
        sizes.append(len(table))
    assert sizes == [1, 2, 1, 2, 1]

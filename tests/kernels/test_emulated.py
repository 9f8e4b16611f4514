"""Every kernel on the emulator, through the public functions, every access watched.

The specialisations are collected first, in a dry run that launches nothing, and compiled in one
go; then each runs at the sizes and layouts where kernels go wrong, at several seeds of the
scheduler, and is compared with the float64 reference.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    log_cosh_loss,
    mse_loss,
    pointwise_loss,
    poisson_nll_loss,
    value_and_grad,
)
from cupy_losses._api.public import prepare_of
from cupy_losses._core.dtypes import numpy_dtype
from cupy_losses._core.loss import Request
from cupy_losses._device import element_launches, workspace
from cupy_losses._libraries.cupy import CupyLibrary
from cupy_losses._libraries.registry import resolve

from .. import emulator
from ..api.test_gradients import gradient_bound
from ..api.test_values import bound, exact
from ..emulator import Device, EmulatorError, installed, precompile
from ..emulator.compiler import cache_folder
from ..tables.arrays import DTYPES, Host, ulps
from ..tables.losses import FORMULAS, SIMPLE, Case, every_function
from ..tools import levels
from ..tools.planting import plant

FIRST_SEED = 1
SEEDS = levels.first((FIRST_SEED, 0, 2))  # 0 runs threads in order


@dataclass(frozen=True)
class Layout:
    """A way for input and target to lie in memory, and the shapes to try it at."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    def arrays(
        self, device: Device, case: Case, shape: tuple[int, ...], dtypes: Sequence[Any]
    ) -> list[Any]:
        """The operands of a loss in device memory."""
        rng = np.random.default_rng(len(shape) + sum(shape))
        hosts = case.draw(rng, shape)
        if dtypes[1].kind in "iu":
            hosts[1] = rng.integers(-3, 3, shape).astype(dtypes[1])
        dtypes = [*dtypes, *[dtypes[0]] * (len(hosts) - 2)]
        hosts = [host.astype(dtype) for host, dtype in zip(hosts, dtypes, strict=True)]
        a, b, *more = hosts
        if self.name == "misaligned":
            return [device.asarray(x, misalignment=x.itemsize * k) for k, x in enumerate(hosts, 1)]
        if self.name == "transposed":
            a, b = (np.ascontiguousarray(x.T).T for x in hosts)
        if self.name == "one transposed":
            a = np.ascontiguousarray(a.T).T
        if self.name == "sliced":
            a, b = (np.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, 3),))[..., :-3] for x in hosts)
        if self.name == "backwards":
            a, b = a[::-1], b[..., ::-1]
        if self.name == "row":
            b = np.ascontiguousarray(b[0])
        if self.name == "column":
            b = np.ascontiguousarray(b[:, :1])
        if self.name == "scalar":
            b = np.asarray(b[0, 0])
        if self.name == "both broadcast":
            a, b = np.ascontiguousarray(a[:1]), np.ascontiguousarray(b[:, :1])
        return [device.asarray(x) for x in (a, b, *more)]


# A vector is 4 elements of float32, 8 in half precision; a block has 512 of them; a tile 2048.
FLAT = tuple((n,) for n in (1, 3, 4, 5, 8, 9, 2047, 2049, 4097, 16_385))
TABLES = ((1, 1), (3, 5), (7, 64), (65, 129))
LAYOUTS = [
    Layout("dense", (*FLAT, ())),
    Layout("misaligned", ((5,), (2049,), (9001,))),
    Layout("transposed", TABLES),
    Layout("one transposed", (*TABLES, (3, 4, 5))),
    Layout("sliced", (*TABLES, (2, 3, 40), (2, 3, 7))),
    Layout("backwards", TABLES),
    Layout("row", (*TABLES, (2100, 3))),
    Layout("column", (*TABLES, (3, 2100))),
    Layout("scalar", (*TABLES, (70, 90))),
    Layout("both broadcast", TABLES),
]

PAIRS = {name: (dtype, dtype) for name, dtype in DTYPES.items()}
PAIRS["float16 with float32"] = (DTYPES["float16"], DTYPES["float32"])
PAIRS["float32 with int64"] = (DTYPES["float32"], np.dtype(np.int64))
FEW_LAYOUTS = ("dense", "sliced", "column")  # for all dtypes; the two that matter most get all

# The layouts do not depend on the formula: one that is not as simple as these is run on the dense
# one, and on one where a gradient is a sum. Nor do masks: two kinds of means, one of rows.
MASKED = ("mse_loss", "huber_loss", "multilabel_soft_margin_loss")
CASES = [
    (case, pair, layout)
    for case, pair, layout in itertools.product(FORMULAS, PAIRS, LAYOUTS)
    if (
        pair in ("float32", "bfloat16") or layout.name in FEW_LAYOUTS
        if case in SIMPLE
        else (pair in ("float32", "bfloat16") and layout.name == "dense")
        or (pair == "float32" and layout.name == "column" and not case.same_shape)
    )
]


def by_default(case: Case, pair: str, layout: Layout) -> bool:
    """Every formula on dense float32; every dtype and every layout with one simple formula."""
    if (pair, layout.name) == ("float32", "dense"):
        return True
    simple = [formula for formula in FORMULAS if formula in SIMPLE]
    number = LAYOUTS.index(layout)
    turn = list(PAIRS).index(pair) + number
    wanted = layout.name == "dense" or pair == ("float32", "bfloat16")[number % 2]
    return wanted and case == simple[turn % len(simple)]


def is_weighted(case: Case, pair: str, layout: Layout, seed: int) -> bool:
    """Whether a test has weights and masks, which make as many kernels again.

    With the first seed, the only one that is not exhaustive, a simple formula has them alone.
    """
    simple = case in SIMPLE and pair in ("float32", "bfloat16") and layout.name in FEW_LAYOUTS
    return simple or seed != FIRST_SEED


def exercise(
    device: Device, case: Case, pair: str, layout: Layout, shape: Any, weighted: bool
) -> Iterator[Any]:
    """Yield (result, reference, its unit, bound) of everything that is computed of some arrays."""
    dtypes = PAIRS[pair]
    if case.rows and shape == ():
        return
    arrays = layout.arrays(device, case, shape, dtypes)
    hosts = [array.get() for array in arrays]
    floating = [k for k, host in enumerate(hosts) if host.dtype.kind not in "iu"]
    each, scale = case.value(*map(exact, hosts)), case.scale(*hosts)
    slopes, slope_scales = case.slopes_and_scales(*hosts)
    rng = np.random.default_rng(0)
    weight_host, mask = rng.random(each.shape).astype(dtypes[0]), rng.random(each.shape) < 0.7
    mask.flat[0] = True
    weight, where = device.asarray(weight_host), device.asarray(mask)
    extras: list[dict[str, Any]] = [{}, {"weight": weight}] if weighted else [{}]
    if weighted and pair == "float32" and case.name in MASKED and layout.name in FEW_LAYOUTS:
        extras += [{"where": where}, {"weight": weight, "where": where}]
    for extra in extras:
        factor = exact(weight_host) if "weight" in extra else None
        given = factor, mask if "where" in extra else None
        options = {**case.parameters, **extra}
        for reduction in ("none", "mean"):
            result = case.loss(*arrays, reduction=reduction, **options)
            limit = bound(case, each.size, dtypes[0].name)
            if reduction == "none" and case.exact:
                limit = 3
            largest = None if case.exact else case.reduce(scale, reduction, *given)
            yield result, case.reduce(each, reduction, *given), largest, limit
        options["reduction"] = "mean"
        every = tuple(floating)
        # One gradient alone is a kernel more: with a formula that is not simple, exhaustive.
        for argnums in ((0,), every) if weighted and len(every) > 1 else (every,):
            value, gradients = value_and_grad(case.loss, argnums)(*arrays, **options)
            largest = None if case.exact else case.reduce(scale, "mean", *given)
            limit = bound(case, each.size, dtypes[0].name)
            yield value, case.reduce(each, "mean", *given), largest, limit
            divisor = case.divisor(each, "mean", *given)
            share = np.where(given[1], 1, 0) if given[1] is not None else 1
            share = share * (1 if factor is None else factor) / divisor
            for k, gradient in zip(argnums, gradients, strict=True):
                full, largest = slopes[k] * share, slope_scales[k] * share
                # A weight is one more factor.
                most = gradient_bound(case, hosts[k].dtype.name) + (factor is not None)
                of_sum = case.exact and hosts[k].size != each.size
                unit = _summed(np.broadcast_to(largest, each.shape), hosts[k].shape)
                yield (
                    gradient,
                    _summed(full, hosts[k].shape),
                    None if case.exact else unit,
                    None if of_sum else most,
                )


def _summed(full: Host, shape: tuple[int, ...]) -> Host:
    """A gradient summed over the axes along which the operand was broadcast."""
    own = (1,) * (full.ndim - len(shape)) + shape
    axes = tuple(d for d, length in enumerate(own) if length == 1)
    return np.asarray(full.sum(axis=axes, keepdims=True)).reshape(shape)


@pytest.fixture(scope="session")
def compiled_kernels(request: pytest.FixtureRequest) -> None:
    """Compile all that the selected tests of this file run, once for all processes."""
    emulator.require()
    specialisations: dict[str, dict[str, Any]] = {}
    orders: dict[str, dict[str, Any]] = {}
    for item in request.session.items:
        if not isinstance(item, pytest.Function):
            continue
        if item.function in (test_every_specialisation, test_second_order):
            # But for weights, the seeds run the same kernels.
            parameters: Any = item.callspec.params
            given = {k: v for k, v in parameters.items() if k != "seed"}
            if item.function is test_second_order:
                orders[str(given)] = given
            else:
                given["weighted"] = is_weighted(**given, seed=parameters["seed"])
                specialisations[str(given)] = given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with installed(run_kernels=False) as device:
            for given in specialisations.values():
                for shape in given["layout"].shapes:
                    list(exercise(device, shape=shape, **given))
            for given in orders.values():
                list(second_order(device, **given))
            jobs = list(dict.fromkeys(device.jobs()))
    with (cache_folder() / "precompile.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        precompile(jobs)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.filterwarnings("ignore:.*is broadcast", "ignore:.*mean. divides")
@pytest.mark.parametrize(
    ("case", "pair", "layout"),
    [
        levels.case(
            case,
            pair,
            layout,
            default=by_default(case, pair, layout),
            id=f"{case}-{pair}-{layout.name}".replace(" ", "_"),
        )
        for case, pair, layout in CASES
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_specialisation(case: Case, pair: str, layout: Layout, seed: int) -> None:
    for shape in layout.shapes:
        with installed(seed=seed, multiprocessors=2, concurrent=3) as device:
            results = exercise(
                device, case, pair, layout, shape, is_weighted(case, pair, layout, seed)
            )
            for result, reference, largest, limit in results:
                got, wanted = result.get(), np.asarray(reference)
                if limit is not None:
                    assert ulps(got, wanted, largest) <= limit
                else:  # a sum, whose terms may cancel
                    unit = 2.0 ** -{"float16": 10, "bfloat16": 7}.get(got.dtype.name, 22)
                    np.testing.assert_allclose(exact(got), wanted, rtol=unit, atol=unit / 4)


@pytest.mark.filterwarnings("ignore:.*mean. divides")
@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float16"]))
@pytest.mark.parametrize("case", levels.first([f for f in FORMULAS if f not in SIMPLE], 2))
def test_float32_losses_of_half_precision(
    case: Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As autocast has them: within 2^-16 of the largest term."""
    monkeypatch.setattr(CupyLibrary, "autocast", lambda library: True)
    hosts = case.draw(np.random.default_rng(3), (40, 65), DTYPES[dtype])
    wide = [exact(host) for host in hosts]
    each, scale = case.value(*wide), case.scale(*wide)
    with installed(seed=1) as device:
        arrays = list(map(device.asarray, hosts))
        for reduction in ("none", "mean"):
            losses = case.loss(*arrays, reduction=reduction, **case.parameters).get()
            assert losses.dtype == np.float32
            error = abs(losses - case.reduce(each, reduction))
            assert (error <= 2.0**-16 * case.reduce(scale, reduction)).all()


@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float16"]))
def test_every_function_in_half_precision(dtype: str) -> None:
    loss = pointwise_loss(every_function)
    rng = np.random.default_rng(11)
    input, target = (rng.standard_normal(200).astype(DTYPES[dtype]) for _ in "ab")
    wide = input.astype(np.float64), target.astype(np.float64)
    slopes = value_and_grad(loss, (0, 1))(*wide, reduction="sum")[1]
    with installed(seed=1) as device:
        arrays = device.asarray(input), device.asarray(target)
        each = loss(*arrays, reduction="none")
        gradients = value_and_grad(loss, (0, 1))(*arrays, reduction="sum")[1]
        found = [result.get() for result in (each, *gradients)]
    for got, wanted in zip(found, (every_function(*wide), *slopes), strict=True):
        unit = float(abs(wanted).max()) * 2.0 ** -(8 if dtype == "bfloat16" else 11)
        np.testing.assert_allclose(exact(got), wanted, rtol=0, atol=unit)


@pytest.mark.parametrize(
    ("dtypes", "approximate"),
    [
        (("bfloat16", "bfloat16"), True),
        (("float16", "bool"), True),
        (("bfloat16", "float16"), False),
        (("bfloat16", "float32"), False),
        (("float32", "float32"), False),
    ],
)
def test_only_half_precision_is_approximate(dtypes: tuple[str, str], approximate: bool) -> None:
    """Where the operands promote to float32, so does the arithmetic."""
    with installed(run_kernels=False) as device:
        input, target = (device.asarray(np.ones(8, numpy_dtype(dtype))) for dtype in dtypes)
        log_cosh_loss(input, target)
        (launch,) = device.launches
        assert ("Approximate" in launch.name) == approximate


# Chained and second-order passes, which only autograd asks for.
SECOND = list(itertools.product(("float32", "float64"), ("mean", "none", "sum")))


def second_order(device: Device, case: Case, pair: str, reduction: str) -> Iterator[Any]:
    """Yield (result, reference) of backward and double backward, against the host backend."""
    rng = np.random.default_rng(5)
    column = (33, 65) if case.same_shape else (33, 1)  # one gradient is direct, one a sum
    hosts = case.draw(rng, ((33, 65), column), PAIRS[pair][0])
    shape = () if reduction != "none" else (33, 1) if case.rows else (33, 65)
    grad_output = np.asarray(rng.standard_normal(shape)).astype(hosts[0].dtype)
    tangents = [rng.standard_normal(host.shape).astype(host.dtype) for host in hosts]
    every = tuple(range(len(hosts)))
    prepare = prepare_of(case.loss)
    for request, extra in (
        (Request(value=False, wanted=every, vjp=True), [grad_output]),
        (Request(tangents=every), tangents),
        (
            Request(value=False, wanted=every, vjp=True, tangents=every),
            [grad_output, *tangents],
        ),
    ):
        call, given = prepare(*hosts, reduction=reduction, **case.parameters)
        host_backend, _ = resolve(call, given)
        references = host_backend.run(call, request, (*extra, *hosts))
        arrays = [device.asarray(host) for host in (*extra, *hosts)]
        backend, _ = resolve(call, arrays[-len(hosts) :])
        yield from zip(backend.run(call, request, arrays), references, strict=True)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.filterwarnings("ignore:.*is broadcast", "ignore:.*mean. divides")
@pytest.mark.parametrize(
    ("case", "pair", "reduction"),
    [
        levels.case(
            case,
            *second,
            default=(number + turn) % len(SECOND) == 0,
            id="-".join(map(str, (case, *second))),
        )
        for number, case in enumerate(FORMULAS)
        for turn, second in enumerate(SECOND)
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_second_order(case: Case, pair: str, reduction: str, seed: int) -> None:
    unit = 2.0 ** -(22 if pair == "float32" else 50)
    with installed(seed=seed) as device:
        for result, reference in second_order(device, case, pair, reduction):
            largest = max(float(abs(reference).max()), 1e-30)
            np.testing.assert_allclose(
                result.get(), reference, rtol=8 * unit, atol=8 * unit * largest
            )


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("pair", ["float32", "bfloat16", "float64"])
def test_same_bits_whatever_the_grid_and_the_schedule(pair: str) -> None:
    rng = np.random.default_rng(7)
    hosts = [rng.standard_normal(50_000).astype(PAIRS[pair][0]) for _ in range(3)]
    bits = set()
    for multiprocessors, blocks, concurrent, seed in (
        (1, 1, 1, 0),
        (1, 2, 2, 1),
        (3, 1, 3, 2),
        (2, 2, 2, 3),
        (132, 2, 7, 4),
    ):
        with installed(
            multiprocessors=multiprocessors,
            blocks_per_multiprocessor=blocks,
            concurrent=concurrent,
            seed=seed,
            check=False,
        ) as device:
            input, target, weight = map(device.asarray, hosts)
            value, gradient = value_and_grad(mse_loss)(input, target, weight=weight)
            plain = mse_loss(input, target)
            results = [value, gradient, plain, mse_loss(input, target, weight=weight)]
            bits.add(tuple(result.get().tobytes() for result in results))
    assert len(bits) == 1


@pytest.mark.parametrize(
    "right",
    [
        "device_fence();\n  return atomicInc(counter, all - 1);",  # of a block that arrives
        "if (last) device_fence();",  # of the last one
        "__threadfence();\n#endif",  # what both are here
        "",
    ],
)
def test_a_missing_fence_is_found(right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.require()
    if right:
        wrong = re.sub(r"(__thread|device_)fence\(\);", ";", right)
        plant(monkeypatch, "kernels/pointwise.cu", right, wrong)
    ones = np.ones(9001, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        input, target = device.asarray(ones), device.asarray(0 * ones)
        if right:
            with pytest.raises(EmulatorError, match="race on global"):
                mse_loss(input, target)
        else:
            assert mse_loss(input, target).get() == 1


# What an offset cut to 32 bits, signed or not, does not reach: elements beyond 2^31 and 2^32.
BEYOND = 1 << 32
TILE = 512 * 4 * 8  # elements of half precision


@pytest.mark.quick
def test_strides_beyond_32_bits() -> None:
    """A few elements that lie gigabytes apart."""
    emulator.require()
    with installed(seed=1) as device:
        base = device.sparse((5 << 30,), np.float16)
        input = base[:: 1 << 20]
        input.host_view[...] = np.arange(input.size) % 7
        zero = device.asarray(np.zeros(input.size, np.float16))
        expected = np.mean((np.arange(input.size) % 7) ** 2.0)
        value, gradient = value_and_grad(mse_loss)(input, zero)
        assert value.get() == np.float16(expected)
        wanted = 2 * (np.arange(input.size) % 7) / input.size
        np.testing.assert_array_equal(gradient.get(), wanted.astype(np.float16))


def check_elements_beyond_32_bits() -> None:
    """Run the blocks of a dense loss over sparse memory that have the tiles from 2^32 on.

    They are told by their partial sums and by their gradients. Where nothing is added up, a tile is
    a quarter as large, and each is the work of a block.
    """
    # Tile 2^18, which is full, belongs to block 0 of 4096, the next one, which is not, to block 1.
    size = BEYOND + TILE + 8 + 5
    marks = {BEYOND + 77: 2.0, BEYOND + TILE - 1: 3.0, size - 9: 4.0, size - 1: 5.0}
    of_marks = sorted({4 * mark // TILE for mark in marks})
    with installed(
        multiprocessors=2048,
        blocks_per_multiprocessor=2,
        choose=lambda name, blocks: of_marks if "EACH_VALUE" in name else [0, 1],
    ) as device:
        input, target = (device.sparse((size,), np.float16) for _ in range(2))
        for element, mark in marks.items():
            input.host_view[element] = mark
        mse_loss(input, target, reduction="sum")
        assert [launch.grid for launch in device.launches] == [(4096, 1, 1)]
        (begin,) = workspace._of_streams.values()
        partials = (ctypes.c_double * 2).from_address(begin + workspace.COUNTER_BYTES)
        assert [*partials] == [4.0 + 9.0, 16.0 + 25.0]
        _, gradient = value_and_grad(mse_loss)(input, target, reduction="sum")
        each = mse_loss(input, target, reduction="none")
        for element, mark in marks.items():
            assert gradient[element].item() == 2 * mark
            assert each[element].item() == mark**2
        for result in (gradient, each):
            assert np.count_nonzero(result[BEYOND:].host_view) == len(marks)


def test_more_than_2_to_the_32_elements() -> None:
    emulator.require()
    check_elements_beyond_32_bits()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return tile * TILE.elements()", "return int(tile) * TILE.elements()"),
        ("return tile * TILE.elements()", "return unsigned(tile) * TILE.elements()"),
        ("(operand + at.offset[K])", "(operand + int(at.offset[K]))"),
        ("(operand + at.offset[K])", "(operand + unsigned(at.offset[K]))"),
        ("values + element,", "values + unsigned(element),"),
        ("(pointers) + element,", "(pointers) + unsigned(element),"),
    ],
)
def test_offsets_cut_to_32_bits_are_found(
    right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.require()
    plant(monkeypatch, "kernels/pointwise.cu", right, wrong)
    with pytest.raises((AssertionError, EmulatorError)):
        check_elements_beyond_32_bits()


@pytest.mark.parametrize(("least", "blocks"), [(1, 5), (1 << 20, 2)])
def test_each_tile_is_a_block_of_large_arrays(
    least: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is added up; of small ones there are as many as run at once."""
    emulator.require()
    monkeypatch.setattr(element_launches, "STREAMED_BYTES", least)
    x, y = np.random.default_rng(3).standard_normal((2, 9000)).astype(np.float32)
    with installed(multiprocessors=1, blocks_per_multiprocessor=2, seed=1) as device:
        each = mse_loss(device.asarray(x), device.asarray(y), reduction="none")
        np.testing.assert_array_equal(each.get(), (x - y) ** 2)
        assert [launch.grid[0] for launch in device.launches] == [blocks]


def test_the_eps_of_a_poisson_loss_is_rounded() -> None:
    """What the page on precision says of it: at most 2^-24 times the target near an input of 1."""
    x, target = np.ones(1, np.float32), np.full(1, 3e4, np.float32)
    exact = poisson_nll_loss(x, target, log_input=False, reduction="sum")
    with installed(seed=1) as device:
        operands = device.asarray(x), device.asarray(target)
        found = poisson_nll_loss(*operands, log_input=False, reduction="sum").get()
    assert 1e-4 < abs(found - exact) <= 2.0**-24 * 3e4


def test_masks_that_lie_otherwise() -> None:
    """The results lie as the operands of the loss do."""
    emulator.require()
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 40, 70)).astype(np.float32)
    where = rng.random((70, 40)) < 0.7
    with installed(seed=1) as device:
        input, target = device.asarray(a).T, device.asarray(b).T
        mask = device.asarray(where)
        each = mse_loss(input, target, reduction="none", where=mask)
        value, gradient = value_and_grad(mse_loss)(input, target, where=mask)
        assert each.strides == gradient.strides == input.strides
        np.testing.assert_array_equal(each.get(), np.where(where, (a - b).T ** 2, 0))
        np.testing.assert_allclose(value.get(), each.get()[where].mean(), rtol=1e-6)
        expected = np.where(where, 2 * (a - b).T / where.sum(), 0)
        np.testing.assert_allclose(gradient.get(), expected, rtol=1e-6)


@pytest.mark.quick
def test_integer_weights_and_odd_arrays() -> None:
    emulator.require()
    rng = np.random.default_rng(8)
    hosts = [rng.standard_normal(300).astype(np.float32) for _ in range(2)]
    with installed(seed=1) as device:
        input, target = map(device.asarray, hosts)
        for weight in (rng.random(300) < 0.5, rng.integers(0, 4, 300)):
            value, gradient = value_and_grad(mse_loss)(input, target, weight=device.asarray(weight))
            expected = value_and_grad(mse_loss)(*hosts, weight=weight)
            np.testing.assert_allclose(value.get(), expected[0], rtol=2e-7)
            np.testing.assert_allclose(gradient.get(), expected[1], rtol=1e-6)
        with pytest.raises(TypeError, match="^input must have the machine's byte order"):
            mse_loss(device.asarray(hosts[0].astype(">f4")), target)
        packed = np.zeros(300, np.dtype([("x", np.float32), ("y", np.int8)]))["x"]
        with pytest.raises(TypeError, match="^target must have .* strides of whole elements"):
            mse_loss(input, device.asarray(packed))

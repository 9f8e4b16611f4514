"""The calls that `tests.tools.mutation` runs on each mutant, compared with the host backend.

A battery reaches every line of the kernels it is for, with as few specialisations as that takes:
each is compiled anew for each mutant.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    cosine_embedding_loss,
    cross_entropy,
    grad,
    huber_loss,
    l1_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    nll_loss,
    row_loss,
    smooth_l1_loss,
    triplet_margin_loss,
    value_and_grad,
)
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device import (
    denominators_schedule,
    element_launches,
    plan_multilabel,
    plan_rows,
    row_arrays,
    row_gathering_schedule,
    row_striding,
    row_team,
    row_tiling_schedule,
    strided_tiling,
)
from cupy_losses._device.scale import scale_launch
from cupy_losses._libraries.registry import resolve

from ..emulator import Device
from ..emulator.cupy_lookalike import forget
from ..kernels import test_numbers
from ..tables.arrays import BFLOAT16, DTYPES, ulps
from ..tables.rows import losses_of_all_sizes, surprise

DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def close(result: Any, reference: Any, roundings: float = 4) -> None:
    """Raise unless two results agree as far as their dtype and a few roundings allow."""
    got, wanted = (np.asarray(x, np.longdouble) for x in (result.get(), reference))
    unit = roundings * 2.0 ** -DIGITS[result.dtype.name]
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    np.testing.assert_allclose(got, wanted, rtol=unit, atol=unit * largest)


def compare(
    device: Device,
    loss: Any,
    hosts: Sequence[Any],
    arrays: Sequence[Any] | None = None,
    wanted: tuple[int, ...] = (0, 1),
    roundings: float = 4,
    shifted: bool = False,
    **options: Any,
) -> None:
    """The value of a call, alone and with gradients by the operands in `wanted`."""
    arrays = arrays or [device.asarray(x, misalignment=shifted * x.itemsize) for x in hosts]
    on_device = {
        name: device.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    close(loss(*arrays, **on_device), loss(*hosts, **options), roundings)
    if options.get("reduction") != "none":
        both = value_and_grad(loss, wanted)
        value, gradients = both(*arrays, **on_device)
        reference, expected = both(*hosts, **options)
        close(value, reference, roundings)
        for gradient, slope in zip(gradients, expected, strict=True):
            close(gradient, slope, roundings)


def compare_pass(
    device: Device,
    loss: Any,
    hosts: Sequence[Any],
    request: Request,
    leading: Sequence[Any],
    roundings: float = 4,
    shifted: bool = False,
    **options: Any,
) -> None:
    """A pass that autograd asks for; `leading` are grad_output and tangents."""
    call, ordered = prepare_of(loss)(*hosts, **options)
    references = resolve(call, ordered)[0].run(call, request, (*leading, *ordered))
    arrays = [device.asarray(x, misalignment=shifted * x.itemsize) for x in (*leading, *ordered)]
    results = resolve(call, arrays[len(leading) :])[0].run(call, request, arrays)
    for result, reference in zip(results, references, strict=True):
        close(result, reference, roundings)


def pointwise(device: Device) -> None:
    """Calls that reach every kernel of pointwise losses and every branch of it."""
    rng = np.random.default_rng(3)

    def pair(*shape: int, dtype: Any = np.float32) -> list[Any]:
        return [(2 * rng.standard_normal(shape)).astype(dtype) for _ in range(2)]

    def compare_target(input: Any, target: Any) -> None:
        got = grad(mse_loss, 1)(device.asarray(input), device.asarray(target), reduction="sum")
        close(got, grad(mse_loss, 1)(input, target, reduction="sum"))

    for size in (1, 5, 2049, 9001):
        compare(device, smooth_l1_loss, pair(size), beta=0.7)
    compare(device, l1_loss, pair(100))
    compare(device, mse_loss, [pair(4099, dtype=np.float16)[0], pair(4099)[1]])
    _exact_division(device)
    for k in (0, 1):
        one = pair(100)
        close(grad(mse_loss, k)(*map(device.asarray, one)), grad(mse_loss, k)(*one))
    compare(device, mse_loss, pair(9001), weight=rng.random(9001).astype(np.float32))
    signs = np.tile(np.array([1, -1, 0], np.float32), 3000)
    compare(device, mse_loss, pair(9000), weight=signs)  # weights that add up to 0
    compare(device, huber_loss, pair(9001), reduction="none", delta=0.6)
    for dtype in (np.float16, BFLOAT16, np.float64):
        compare(device, huber_loss, pair(4099, dtype=dtype), delta=0.6)
    table = pair(65, 36)
    compare(device, mse_loss, [table[0], table[1][0].copy()])  # a row: no vector crosses rows
    compare(
        device, mse_loss, [table[0][:, :1].copy(), table[1]], reduction="sum"
    )  # input is broadcast
    compare(
        device, mse_loss, [table[0][:, :35], table[1][:, :1]], reduction="sum"
    )  # vectors that cross
    compare(device, smooth_l1_loss, [table[0], np.asarray(table[1][0, 0])], beta=0.7)
    long = pair(3, 9000)
    compare(
        device, smooth_l1_loss, [long[0], long[1][:, :1].copy()], beta=0.7
    )  # sums in two stages
    # Large terms that cancel: what remains was kept as a rounding error. By lanes, by blocks.
    terms = np.tile(np.array([1e8, 1.25, -1e8, 0.5], np.float32), 512)
    for columns in (np.repeat(terms[:, None], 3, axis=1), np.repeat(terms[None], 3, axis=0)):
        repeated = columns[:1] * 0 if columns.shape[1] == 3 else columns[:, :1] * 0
        compare_target(columns, repeated)
    _broadcast(device)
    odd = pair(515)
    shifted = [device.asarray(x, misalignment=4 * k) for k, x in enumerate(odd, 1)]
    compare(device, mse_loss, odd, shifted)
    _backward_passes(device, pair(33, 20))
    _scale(device)
    _anticipation(device, mse_loss, pair(9001))
    _anticipation(device, mse_loss, pair(9001), where=rng.random(9001) < 0.6)
    _anticipation(device, mse_loss, pair(100))  # one block
    where = rng.random(9001) < 0.6
    broken = [np.where(where, x, np.float32(np.nan)) for x in pair(9001)]
    compare(device, mse_loss, broken, where=where)
    compare(
        device,
        huber_loss,
        broken,
        where=where,
        weight=rng.random(9001).astype(np.float32),
        delta=0.6,
    )
    compare(device, mse_loss, pair(100), where=np.zeros(100, bool))
    _tiles(device, pair)
    for scale in (0.3, *(np.asarray(0.3, dtype) for dtype in DTYPES.values())):
        compare(device, mse_loss, pair(100), scale=scale)
    kernels = test_numbers.module()
    for which in range(len(test_numbers.EXPRESSIONS)):
        test_numbers.check_derivatives(kernels, which)
    for (case, x), real in itertools.product(test_numbers.EDGES, test_numbers.TOLERANCES):
        test_numbers.check_edge(kernels, case, x, real)
    test_numbers.check_seam(kernels)
    test_numbers.check_bound(kernels)
    for which in range(len(test_numbers.APPROXIMATED)):
        test_numbers.check_approximated(kernels, which)
    test_numbers.check_infinite(kernels)
    test_numbers.check_overflow(kernels)
    test_numbers.check_not_finite(kernels)
    test_numbers.check_sums(kernels)
    for case, real in itertools.product(test_numbers.CASES, test_numbers.TOLERANCES):
        test_numbers.check_formula(kernels, case, real)


def _broadcast(device: Device) -> None:
    """Every kind of sums, and vectors that cross the ends of rows, of numbers that add exactly."""
    rng = np.random.default_rng(7)

    def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        return np.asarray(rng.integers(-8, 9, shape)).astype(dtype)

    for shape, of_target in (
        *(
            ((700, 3), (700, 1)),
            ((40, 200), (40, 1)),
            ((30, 5, 13), (5, 1)),
            ((9, 5, 7), (9, 1, 7)),
            ((71, 6), (6,)),
            ((71, 6), (71, 1)),
        ),
        *(((300, 21), (21,)), ((20, 1500), (1500,)), ((3, 5, 7, 3), (5, 1, 3))),
    ):
        compare(device, mse_loss, [numbers(shape), numbers(of_target)], reduction="sum")
    for of_target in ((40,), (90, 1)):
        halves = [numbers(shape, BFLOAT16) for shape in ((90, 40), of_target)]
        compare(device, mse_loss, halves, reduction="sum")


def _tiles(device: Device, pair: Callable[..., list[Any]]) -> None:
    """Operands whose memory orders differ."""

    def against(shape: tuple[int, ...], order: tuple[int, ...], **options: Any) -> None:
        input, target = pair(*shape)
        back = np.argsort(order)
        target = np.ascontiguousarray(target.transpose(order)).transpose(back)
        compare(device, mse_loss, [input, target], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(element_launches, "MAX_SEGMENTS", 2)  # several tiles each
        forget()
        against((80, 240), (1, 0))
        against((65, 129), (1, 0))  # one element after the other
        against((3, 3, 700), (0, 2, 1))  # accesses that cross rows, and columns
        against((2, 700, 3), (0, 2, 1))
        where = np.random.default_rng(6).random((40, 136)) < 0.6
        compare(device, mse_loss, [x.T for x in pair(136, 40)], where=where)  # two are transposed
    forget()


def _backward_passes(device: Device, hosts: list[Any]) -> None:
    rng = np.random.default_rng(4)
    grad_output = np.asarray(1.7, np.float32)
    tangents = [rng.standard_normal(host.shape).astype(np.float32) for host in hosts]
    hosts[0][:, 0] = hosts[1][:, 0] + [0.75, -0.75, 0] * 11  # the kinks
    chained = Request(value=False, wanted=(0, 1), vjp=True, tangents=(0, 1))
    passes: list[tuple[Any, dict[str, Any], Request, list[Any]]] = [
        (
            smooth_l1_loss,
            {"beta": 0.75},
            Request(value=False, wanted=(0, 1), vjp=True),
            [grad_output],
        ),
        (smooth_l1_loss, {"beta": 0.75}, Request(tangents=(0, 1)), tangents),
        (smooth_l1_loss, {"beta": 0.75}, Request(tangents=(0,)), tangents[:1]),
        (smooth_l1_loss, {"beta": 0.75}, Request(tangents=(1,)), tangents[1:]),
        (smooth_l1_loss, {"beta": 0.75}, chained, [grad_output, *tangents]),
        (huber_loss, {"delta": 0.75}, chained, [grad_output, *tangents]),
    ]
    for loss, options, request, extra in passes:
        compare_pass(device, loss, hosts, request, extra, **options)


def _exact_division(device: Device) -> None:
    """A gradient whose only rounding is the division by N has almost no error."""
    host = np.arange(-500, 500, dtype=np.float32)
    zeros = np.zeros_like(host)
    got = grad(mse_loss)(device.asarray(host), device.asarray(zeros)).get()
    assert np.mean(got == (2 * host.astype(np.float64) / host.size).astype(np.float32)) > 0.99


def _anticipation(device: Device, loss: Any, hosts: Sequence[Any], **options: Any) -> None:
    """Gradients that are written ahead; what is anticipated is not written a second time."""
    call, ordered = prepare_of(loss)(*hosts, **options)
    arrays = [device.asarray(x) for x in ordered]
    library = resolve(call, arrays)[0]
    wanted = (call.extra,)
    vjp = Request(value=False, wanted=wanted, vjp=True)
    for factor, is_anticipated in ((1.0, True), (2.5, False), (2.5, True), (0.25, False)):
        grad_output = np.asarray(factor, np.float32)
        (reference,) = resolve(call, ordered)[0].run(call, vjp, (grad_output, *ordered))
        results: list[Any] = library.run(call, Request(wanted=wanted, early=True), arrays)
        _, gradient, waiting = results
        if is_anticipated:
            close(gradient, reference)
            gradient[...] = 0
        assert waiting.finish(arrays, device.asarray(grad_output))
        close(gradient, np.zeros_like(reference) if is_anticipated else reference)
        del waiting, results  # the next call takes its slot


def _scale(device: Device) -> None:
    host = np.random.default_rng(5).standard_normal(4101).astype(np.float32)
    for factor in (1.0, 2.5):
        gradient = device.asarray(host, writable=True)
        scalar = device.asarray(np.asarray(factor, np.float32))
        launch = scale_launch("float32", "float32", host.size, 0)
        launch.start(0, (), 1.0, (gradient.data.ptr, scalar.data.ptr))
        close(gradient, factor * host)


def tiles(device: Device) -> None:
    """Calls that reach every branch of kernels/row_tiles.cu."""
    _row_tiles(device, np.random.default_rng(9))


def denominators(device: Device) -> None:
    """Calls that reach every branch of kernels/denominators.cu."""
    rng = np.random.default_rng(29)
    x, target = _scores(rng, 331, 5), rng.integers(0, 5, 331)
    target[[0, 5, 64, -1]] = -100
    with (
        _planned(module=plan_rows, FEW_ELEMENTS=0),
        _planned(module=denominators_schedule, THREADS=32, ROWS=2, SEGMENTS=3),
    ):
        for options in (
            {},
            {"weight": _weight(rng, 5)},
            {"where": np.arange(331) % 5 != 0},
            {"weight": _weight(rng, 5), "sample_weight": _weight(rng, 331)},
        ):
            compare(device, cross_entropy, (x, target), wanted=(0,), **options)
        compare(device, cross_entropy, (x[:9], target[:9]), wanted=(0,))
        _anticipation(device, cross_entropy, (x[1:9], target[1:9] % 5))
        _anticipation(device, cross_entropy, (x, np.abs(target) % 5))
        _anticipation(device, cross_entropy, (x[:300], target[:300]))


def gathered(device: Device) -> None:
    """Calls that reach every branch of kernels/gathered_rows.cu."""
    rng = np.random.default_rng(13)

    def check(rows: int, columns: int, dtype: Any = np.float32, **options: Any) -> None:
        target = rng.integers(0, columns, rows)
        target[[0, -2]] = -100
        hosts = -np.abs(_scores(rng, rows, columns, dtype=dtype)), target  # no sum cancels
        compare(device, nll_loss, hosts, wanted=(0,), **options)
        astray = target.copy()
        astray[[1, -1]] = columns, -1
        compare(device, nll_loss, (hosts[0], astray), wanted=(0,), **options)

    for rows, columns in (600, 2), (513, 3), (300, 5), (256, 64), (270, 1001), (270, 2050):
        check(rows, columns)
        check(rows, columns, reduction="sum")
        check(rows, columns, reduction="none")
    with _planned(module=row_gathering_schedule, STAGED_ROWS=0, SEGMENTS=1):
        forget()
        check(800, 2)
        check(513, 3)
        check(701, 5, BFLOAT16)
    forget()
    # Classes ahead of pixels.
    for shape in (3, 5, 40), (2, 21, 300), (3, 300, 16), (2, 130, 8), (3, 300, 104), (2, 140, 9):
        target = rng.integers(0, shape[1], shape[::2])
        target[0, :2], target[1, 3] = (-100, shape[1]), -1
        hosts = -np.abs(_scores(rng, *shape)), target
        compare(device, nll_loss, hosts, wanted=(0,), reduction="sum")
        compare(device, nll_loss, hosts, wanted=(0,))
        _anticipation(device, nll_loss, (hosts[0], np.abs(target) % shape[1]))
    check(300, 3, BFLOAT16, reduction="sum")
    check(300, 21, BFLOAT16, reduction="sum")
    check(300, 5, np.float64)
    check(300, 5, weight=_weight(rng, 5), ignore_index=3)
    with _planned(module=row_gathering_schedule, THREADS=32, FEW_BYTES=300, SEGMENTS=2):
        check(100, 17)
        check(100, 17, reduction="none")
    x, target = _scores(rng, 300, 12), rng.integers(0, 12, 300)
    _row_passes(device, nll_loss, (x, target), 1)
    _anticipation(device, nll_loss, (x, target))
    with _planned(module=row_gathering_schedule, THREADS=32, FEW_BYTES=300):
        _anticipation(device, nll_loss, (x, target))


def strided(device: Device) -> None:
    """Calls that reach every branch of kernels/strided_rows.cu."""
    rng = np.random.default_rng(11)

    def draw(shape: tuple[int, int, int], dtype: Any = np.float32) -> tuple[Any, Any]:
        x = _scores(rng, shape[0] * shape[1], shape[2], dtype=dtype).reshape(shape)
        return x, rng.integers(0, shape[1], shape[::2])

    def check(hosts: Sequence[Any], **options: Any) -> None:
        arrays = [device.asarray(host) for host in hosts]
        compare(device, cross_entropy, hosts, arrays, (0,), 16, **options)

    for shape in (2, 11, 65), (1, 16, 128), (1, 21, 129), (2, 150, 65), (1, 1103, 17), (2, 1056, 8):
        hosts = draw(shape)
        check(hosts)
        hosts[0][0, 0, 3:6] += 200  # the powers of all others are 0
        hosts[1][0, :3] = shape[1], -1, -100
        hosts[1][-1, -1] = -100
        check(hosts, reduction="none")
        check(hosts)
    for shape in (2, 21, 130), (3, 21, 129), (1, 90, 66), (1, 1100, 34):
        hosts = draw(shape, BFLOAT16)
        hosts[0][0, :3] *= 100
        check(hosts)
        hosts[1][0, 1:4] = -100, shape[1], -100
        check(hosts, reduction="none")
        check(hosts)
    check(draw((1, 33, 40), np.float64))
    _few_strided(check, draw)
    x, target = draw((1, 21, 33))
    backwards = device.asarray(np.ascontiguousarray(x[:, ::-1]))[:, ::-1]
    compare(device, cross_entropy, (x, target), [backwards, device.asarray(target)], (0,), 16)
    # Gradients through shared memory; tiles that reach into the next image, one with a row alone.
    for shape, dtype in (
        ((2, 13, 1279), np.float32),
        ((1, 13, 1026), BFLOAT16),
        ((1, 13, 1031), np.float64),
    ):
        hosts = draw(shape, dtype)
        check(hosts)
        hosts[1][0, :3] = shape[1], -1, -100
        check(hosts, ignore_index=3)
    scores, probabilities = draw((2, 13, 1031))[0], rng.random((2, 13, 1031)).astype(np.float32)
    arrays = [device.asarray(scores), device.asarray(probabilities)]
    compare(device, cross_entropy, (scores, probabilities), arrays, (0, 1), 16)
    # Tiles that overlap, so that gradients are whole sectors.
    with _planned(module=row_arrays, LONG_STRETCH=64):
        hosts = draw((2, 230, 131))
        check(hosts)
        hosts[1][0, :3] = 230, -1, -100
        check(hosts)
    # Sections of long rows: in many blocks; several of a thread; all in one launch, of many
    # threads and of one.
    for few_tiles, threads, enough in (64, 1 << 18, 1), (64, 4096, 1), (0, 1, 1 << 18), (0, 1, 1):
        with _planned(
            module=row_striding,
            LEAST_BATCHES=1,
            SHARE_WORDS=8,
            MOST_SHARES=8,
            MANY_THREADS=8,
            FEW_TILES=few_tiles,
            SPLIT_THREADS=threads,
            ENOUGH_THREADS=enough,
        ):
            check(draw((2, 460, 40)))
            check(draw((2, 460, 117)))  # tiles that overlap, the last one of nearly all its rows
            check(draw((1, 784, 20)))  # 49 sections
            check(draw((1, 1800, 10), BFLOAT16))
            check(draw((1, 530, 64), BFLOAT16))  # a whole tile of pairs
    check(draw((1, 260, 256), BFLOAT16))  # a whole tile
    with _planned(module=row_striding, SEGMENTS=2):
        check(draw((1, 13, 128 * 4 + 1)))  # one row in the last tile
        with _planned(module=row_arrays, LONG_STRETCH=64):
            check(draw((2, 230, 131)))
    # Several segments of one block, where gradients are computed anew.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "blocks_per_multiprocessor", 1)
        forget()
        _anticipation(device, cross_entropy, draw((1, 13, 128 * 7)))
        _anticipation(device, cross_entropy, draw((1, 260, 300)))
        _anticipation(device, cross_entropy, draw((1, 1100, 40)))
        with _planned(module=row_striding, LEAST_BATCHES=1, SHARE_WORDS=8, MOST_SHARES=8):
            _anticipation(device, cross_entropy, draw((2, 460, 80)))
    forget()
    weighted = {"weight": _weight(rng, 21), "label_smoothing": 0.3}
    check(draw((1, 21, 40)), **weighted)
    # Probabilities with classes last, element by element and by accesses of several.
    for shape in (2, 21, 36), (1, 140, 33), (2, 22, 36):
        scores, probabilities = draw(shape)[0], rng.random(shape).astype(np.float32)
        hosts = scores, probabilities
        last = device.asarray(np.ascontiguousarray(probabilities.transpose(0, 2, 1)))
        arrays = [device.asarray(scores), last.transpose(0, 2, 1)]
        compare(device, cross_entropy, hosts, arrays, (0, 1), 16)
    half = scores.astype(np.float16), probabilities
    compare(device, cross_entropy, half, [device.asarray(half[0]), arrays[1]], (0, 1), 16)
    flat = [np.asfortranarray(x[0].T) for x in hosts]
    _row_passes(device, cross_entropy, flat, 2)
    _anticipation(device, cross_entropy, draw((1, 14, 100)))


def _few_strided(check: Callable[..., None], draw: Callable[..., Any]) -> None:
    """Rows of few elements: alone and in pairs that are one access or not, tiles in turn."""
    with _planned(module=row_striding, SEGMENTS=2, SEGMENTS_OF_HALVES=2):
        for shape, dtype in (
            ((2, 2, 900), np.float32),
            ((2, 4, 633), np.float32),
            ((1, 8, 601), np.float32),
            ((3, 11, 301), np.float32),
            ((2, 3, 1026), BFLOAT16),
            ((2, 6, 777), BFLOAT16),
            ((2, 5, 133), BFLOAT16),
            ((2, 2, 500), np.float64),
        ):
            hosts = draw(shape, dtype)
            check(hosts)
            hosts[1][0, 1:4] = -100, shape[1], -100
            check(hosts, reduction="none")
            with _planned(module=row_arrays, LONG_STRETCH=64):
                check(hosts, ignore_index=1)


def strided_tiles(device: Device) -> None:
    """Calls that reach every branch of kernels/strided_tiles.cu."""
    rng = np.random.default_rng(17)

    def check(
        shape: tuple[int, int, int], dtype: Any = np.float32, begin: int = 0, **options: Any
    ) -> None:
        x = _scores(rng, shape[0] * shape[1], shape[2], dtype=dtype).reshape(shape)
        target = rng.integers(0, shape[1], shape[::2])
        target[0, 40:43] = -100, shape[1], -1
        logits = device.asarray(x, misalignment=begin * x.itemsize)
        apart = device.asarray(np.repeat(target, 2, axis=1))[:, ::2]
        for classes, reduction in (device.asarray(target), "mean"), (apart, "none"):
            compare(
                device,
                cross_entropy,
                (x, target),
                [logits, classes],
                (0,),
                16,
                reduction=reduction,
                **options,
            )

    with _planned(
        module=strided_tiling,
        THREADS=64,
        COMPUTING=32,
        MOST_ROWS=64,
        LEAST_BYTES=0,
        FEW_ROWS=64,
        LEAST_TILES=1,
        FULL=0.0,
        SEGMENTS=4,
        COLUMNS={(size, wanted): (2, 64) for size in (2, 4) for wanted in (False, True)},
    ):
        check((2, 21, 201))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device, "blocks_per_multiprocessor", 1)
            forget()
            check((1, 17, 515))  # several tiles of a segment, and segments of a block
        check((3, 3, 163), BFLOAT16)
        check((3, 3, 163), BFLOAT16, begin=3)
        check((1, 40, 131), begin=1)  # more columns than threads that copy
        check((2, 21, 209), label_smoothing=0.3, where=rng.random((2, 209)) < 0.9)
        x, target = _scores(rng, 22, 201).reshape(2, 11, 201), rng.integers(0, 11, (2, 201))
        compare(device, cross_entropy, (x, target), None, (0,), 16, reduction="sum")
        logits = _scores(rng, 18, 100).reshape(1, 18, 100)
        _anticipation(device, cross_entropy, (logits, rng.integers(0, 18, (1, 100))))


def multilabel(device: Device) -> None:
    """Calls that reach every branch of kernels/multilabel_margin.cu and of its loss."""
    rng = np.random.default_rng(10)

    def draw(rows: int, columns: int, most: int) -> tuple[Any, Any]:
        """Up to so many labels, some twice; in a short first row nothing ends the list."""
        x, labels = _scores(rng, rows, columns), rng.integers(0, columns, (rows, columns))
        x[::2] = np.round(x[::2])  # at the margin
        ends = rng.integers(0, 1 + min(most, columns - 1), rows)
        ends[-2:] = min(most, columns - 1)
        first = int(columns < 200)
        labels[first:][np.arange(columns) == ends[first:, None]] = -1
        labels[-1, : ends[-1]] = rng.permutation(columns)[: ends[-1]]
        return x, labels

    check = functools.partial(
        compare, device, multilabel_margin_loss, wanted=(0,), roundings=16, shifted=True
    )
    for rows, columns, most in (150, 3, 3), (70, 7, 7), (20, 50, 9), (5, 150, 70), (3, 1050, 12):
        hosts = draw(rows, columns, most)
        check(hosts)
        check(hosts, reduction="none")
        hosts[1][1, -1] = columns  # beyond the end of the list, or in it
        hosts[1][3 % rows, 0] = columns
        check(hosts, reduction="none")
        check(hosts)
    _row_passes(device, multilabel_margin_loss, draw(9, 50, 20), 1, 256)
    _row_passes(device, multilabel_margin_loss, draw(9, 3, 3), 1, 256)
    _anticipation(device, multilabel_margin_loss, draw(100, 12, 6))
    for factor in 1e9, 1e34:  # larger than what is scaled, by far too
        check((np.float32(factor) * _scores(rng, 9, 50), draw(9, 50, 20)[1]))
    x, labels = draw(9, 50, 20)
    check((x.astype(np.float64), labels))
    for columns in 3, 50:
        x, labels = draw(20, columns, 20)
        where = np.arange(20) % 3 > 0
        x[~where] = np.where(np.arange(columns) % 2, np.inf, np.nan)
        labels[0, 0] = columns  # of a row that is left out
        both = {"where": where, "sample_weight": _weight(rng, 20)}
        check((x, labels), **both)
        check((x, labels), **both, reduction="none")
    across = [np.asfortranarray(host) for host in draw(40, 50, 20)]
    check(across)
    check(across, [device.asarray(host) for host in across], reduction="none")
    for columns in 4, 8, 64:  # vectors
        hosts = draw(70, columns, 9)
        check(hosts, [device.asarray(host) for host in hosts])
    with _planned(
        module=plan_multilabel, WINDOW=1 << 10, WINDOW_ACROSS=1 << 6, WORKING_THREADS=512
    ):
        check(draw(2, 5000, 20))
        check(draw(3, 5000, 5))
        check([np.asfortranarray(host) for host in draw(40, 150, 20)])
        check(draw(300, 12, 12))  # several segments of a block


def rows(device: Device, first: str = "") -> None:
    """Calls that reach every kernel of losses of rows and every branch of it.

    Those for the struct `first` of losses/ come first: they find most of its mutants.
    """
    for structs, calls in sorted(ROW_CALLS, key=lambda item: first not in item[0].split()):
        calls(device, np.random.default_rng(len(structs)))
    rng = np.random.default_rng(8)
    _anticipation(device, cross_entropy, [_scores(rng, 300, 10), rng.integers(0, 10, 300)])


@contextlib.contextmanager
def _planned(tiled: bool = True, module: ModuleType = row_team, **constants: Any) -> Iterator[None]:
    """Let rows be divided as those of other lengths are."""
    with pytest.MonkeyPatch.context() as patch:
        if not tiled:
            patch.setattr(row_tiling_schedule, "row_tile", lambda *arguments, **options: None)
        for name, value in constants.items():
            patch.setattr(module, name, value)
        forget()
        yield
    forget()


def _scores(rng: Any, *shape: int, dtype: Any = np.float32) -> Any:
    return (3 * rng.standard_normal(shape)).astype(dtype)


def _weight(rng: Any, columns: int) -> Any:
    return rng.uniform(0.5, 2, columns).astype(np.float32)


def _row_passes(
    device: Device,
    loss: Any,
    hosts: Sequence[Any],
    directions: int,
    roundings: float = 16,
    **options: Any,
) -> None:
    """The derivatives along the first operands, and the second backward pass by them."""
    rng = np.random.default_rng(7)
    first = sum(name in options for name in ("where", "weight", "sample_weight"))
    wanted = tuple(range(first, first + directions))
    tangents = [rng.standard_normal(x.shape).astype(x.dtype) for x in hosts[:directions]]
    along = Request(tangents=wanted)
    compare_pass(device, loss, hosts, along, tangents, roundings, True, **options)
    twice = Request(value=False, wanted=wanted, vjp=True, tangents=wanted)
    leading = rng.standard_normal(len(hosts[0])).astype(hosts[0].dtype), *tangents
    options["reduction"] = "none"
    compare_pass(device, loss, hosts, twice, leading, roundings, True, **options)


# Rows of 12 elements that are shifted are read one by one, which compiles fast, by two threads.


def _cross_entropy(device: Device, rng: Any) -> None:
    x, target = _scores(rng, 300, 12), rng.integers(0, 12, 300)
    everything = {
        "weight": _weight(rng, 12),
        "ignore_index": 3,
        "label_smoothing": 0.3,
        "z_loss": 0.1,
    }
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    check((x, target), shifted=True, **everything)
    check((x, target), shifted=True, **everything, scale=0.3)
    astray = target.copy()
    astray[[0, 1, 2, 270]] = 12, -1, -100, 99
    check((x, astray), reduction="none")
    check((x, astray), reduction="none", weight=everything["weight"])
    check((x, astray))
    none = np.full(300, -100)
    check((x, none))
    check((x, np.where(np.arange(300) == 7, target, none)))
    for some in target[:20], np.full(20, everything["ignore_index"]):
        _row_passes(device, cross_entropy, (x[:20], some), 1, **everything)
    for columns, options in (
        (2, {}),
        (12, {}),
        (12, {"z_loss": 0.1}),
        (12, {"label_smoothing": 0.3}),
    ):
        likely = np.where(np.arange(20) % 2, target[:20] % columns, x[:20, :columns].argmax(axis=1))
        _row_passes(device, cross_entropy, (x[:20, :columns], likely), 1, 32, **options)


def _exact_losses(device: Device, rng: Any) -> None:
    """Losses that are small beside the logits, and those that are infinite or NaN."""
    for columns, scale in itertools.product((2, 3, 10, 40, 1040), (8, 1e4)):
        x, target, exact = losses_of_all_sizes(rng, 20 + 2000 // columns, columns, scale)
        one_hot = np.eye(columns, dtype=np.float32)[target]
        for y in target, one_hot:
            with _planned(tiled=False):
                losses = cross_entropy(device.asarray(x), device.asarray(y), reduction="none")
            np.testing.assert_array_less(ulps(losses.get(), exact), 2.5)
    for rows, columns, scale in (300, 3, 8.0), (300, 40, 8.0), (10, 1040, 0.01):
        x, target, _ = losses_of_all_sizes(rng, rows, columns, scale)
        wide = x.astype(np.float64) + 1e-9 * rng.standard_normal(x.shape)
        losses = cross_entropy(device.asarray(wide), device.asarray(target), reduction="none")
        exact = surprise(wide.astype(np.longdouble), target)
        np.testing.assert_array_less(ulps(losses.get(), exact), 4.5)
    special = [-np.inf, np.inf, np.nan, 1.0, 2.0, -3e38, 3e38]
    for columns, drawn in itertools.product((2, 3, 40), (special, special[:1] + special[3:])):
        x = rng.choice(drawn, (100, columns)).astype(np.float32)
        x[0] = -np.inf
        hosts = x, rng.integers(0, columns, 100)
        arrays = [device.asarray(host) for host in hosts]
        losses = cross_entropy(*arrays, reduction="none").get()
        np.testing.assert_allclose(losses, cross_entropy(*hosts, reduction="none"), rtol=1e-5)


def _cross_entropy_of_probabilities(device: Device, rng: Any) -> None:
    x, target = _scores(rng, 70, 12), rng.dirichlet(np.ones(12), 70).astype(np.float32)
    everything = {"weight": _weight(rng, 12), "label_smoothing": 0.3, "z_loss": 0.1}
    compare(device, cross_entropy, (x, target), roundings=16, shifted=True, **everything)
    with _planned(tiled=False):
        compare(device, cross_entropy, (x.astype(np.float16), target), roundings=16)
    _row_passes(device, cross_entropy, (x[:20], target[:20]), 2, **everything)


def _negative_log_likelihood(device: Device, rng: Any) -> None:
    x, target, weight = _scores(rng, 300, 12), rng.integers(0, 12, 300), _weight(rng, 12)
    options = {"weight": weight, "ignore_index": 3}
    compare(device, nll_loss, (x, target), wanted=(0,), **options)
    _row_passes(device, nll_loss, (x[:20], target[:20]), 1, **options)


def _groups(device: Device, rng: Any) -> None:
    """The values of many blocks, of one row or more, are added up by groups of blocks."""
    for shape in (129, 1040), (2048, 200):  # 129 blocks, 64 blocks
        hosts = _scores(rng, *shape), rng.integers(0, shape[1], shape[0])
        arrays = [device.asarray(x) for x in hosts]
        weight = _weight(rng, shape[1])
        mean = cross_entropy(*arrays, weight=device.asarray(weight))
        close(mean, cross_entropy(*hosts, weight=weight), 16)
        close(cross_entropy(*arrays, reduction="sum"), cross_entropy(*hosts, reduction="sum"), 16)
    # Of what cancels the errors remain.
    values = np.tile([[1e16], [-1e16], [1.0], [0.5]], (64, 2))
    total = nll_loss(device.asarray(-values), device.asarray(np.arange(256) % 2), reduction="sum")
    close(total, np.float64(96.0))


def _segments(device: Device, rng: Any) -> None:
    """Several rows of one block, and rows that wait in registers, for several turns."""
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    with _planned(WORKING_THREADS=512):
        check((_scores(rng, 150, 520), rng.integers(0, 520, 150)))
    with _planned(THREADS_OF_HELD=512):
        check((_scores(rng, 1100, 2), rng.integers(0, 2, 1100)))
        check((_scores(rng, 1100, 8), rng.integers(0, 8, 1100)))


def _multi_margin(device: Device, rng: Any) -> None:
    x, target = _scores(rng, 70, 12), rng.integers(0, 12, 70)
    squared = {"p": 2, "margin": 0.5, "weight": _weight(rng, 12)}
    check = functools.partial(compare, device, multi_margin_loss, wanted=(0,), roundings=16)
    check((x, target), shifted=True, **squared)
    x[:, ::2] = np.round(x[:, ::2])  # at the margin
    check((x, target), shifted=True)
    _row_passes(device, multi_margin_loss, (x[:20], target[:20]), 1, **squared)
    # Tangents that cancel: what remains was kept as a rounding error. They are the same for the
    # elements that a thread adds up in a batch: four vectors each in two batches of 256 threads.
    x, target = np.ones((2, 8192), np.float32), np.array([8180, 8191])
    column = np.arange(8192)
    terms = np.array([1e8, 1.25, -1e8, 0.5], np.float32)[(column // 4 + column // 4096) % 4]
    tangent = np.tile(terms, (2, 1))
    tangent[:, target] = 0
    along = Request(tangents=(0,))
    compare_pass(device, multi_margin_loss, (x, target), along, [tangent], reduction="none")


def _samples(device: Device, rng: Any) -> None:
    """Masks and weights of rows, NaN in what is left out, a class that is out of range."""
    x, target, where = _scores(rng, 70, 12), rng.integers(0, 12, 70), rng.random(70) < 0.7
    x[~where] = np.nan
    sample, of_classes = _weight(rng, 70), {"weight": _weight(rng, 12), "ignore_index": 3}
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    check((x, target), where=where, sample_weight=sample, **of_classes)
    check((x, target), where=where)
    check((np.nan_to_num(x), target), sample_weight=sample)
    astray = target.copy()
    astray[where.argmax()] = 40
    check((x, astray), where=where, sample_weight=sample)
    both = {"where": where[:20], "sample_weight": sample[:20]}
    _row_passes(device, cross_entropy, (x[:20], target[:20]), 1, **both)
    vectors = x, _scores(rng, 70, 12), np.ones(70, np.float32)
    compare(device, cosine_embedding_loss, vectors, roundings=16, where=where, sample_weight=sample)


def _cosine_embedding(device: Device, rng: Any) -> None:
    pair = [rng.standard_normal((33, 12)).astype(np.float32) for _ in range(2)]
    hosts = *pair, rng.choice(np.array([1, -1, 0], np.int32), 33)
    pair[0][0], pair[1][0], hosts[2][0] = np.arange(12) == 1, np.arange(12) == 2, -1
    for margin in 0.1, 0.0:  # which the first row is at
        compare(device, cosine_embedding_loss, hosts, roundings=16, shifted=True, margin=margin)
    _row_passes(device, cosine_embedding_loss, hosts, 2, 32, margin=0.1)
    short = 1e-6 * pair[0], 1e-6 * pair[1], hosts[2]
    compare(device, cosine_embedding_loss, short, roundings=16, shifted=True, reduction="none")


def _triplet_margin(device: Device, rng: Any) -> None:
    three = [rng.standard_normal((20, 12)).astype(np.float32) for _ in range(3)]
    three[0][0], three[1][1] = three[1][0], three[2][1]
    three[2][0] = three[0][0] + 0.01 * three[2][0]  # as far from the one as from the other
    three[0][3] = three[1][3] = 0
    three[2][3] = -1.0 * (np.arange(12) == 1)  # at the margin, without eps
    three[0][5], three[1][5], three[2][5] = 0, 2 * (np.arange(12) % 4 == 1), 0.5  # equal ones
    check = functools.partial(
        compare, device, triplet_margin_loss, three, wanted=(0, 1, 2), roundings=32, shifted=True
    )
    check(p=2.0, swap=True)
    check(p=2.0, swap=True, eps=0.0)
    check(p=np.inf, swap=True)
    check(p=3.0, swap=True, eps=0.01, margin=0.5)
    check(p=1.0, eps=0.0)
    check(p=0.0, eps=0.0)
    check(p=1.5, eps=0.0)
    check(p=0.5, eps=0.0)
    for p in 2.0, 1.5, np.inf:
        _row_passes(device, triplet_margin_loss, three, 3, 64, p=p, swap=True, eps=0.0)
    # Side by side, in several sections.
    three = [np.asfortranarray(rng.standard_normal((20, 40)).astype(np.float32)) for _ in range(3)]
    arrays = [device.asarray(x) for x in three]
    for p in 2.0, np.inf:
        compare(device, triplet_margin_loss, three, arrays, (0, 1, 2), 32, p=p)


def _ranks(device: Device, rng: Any) -> None:
    """Rows that several blocks share, or one block in several parts."""
    x, target = _scores(rng, 5, 2000)[:, :1998], rng.integers(0, 1998, 5)
    x[0, 1997], target[:2] = 9, (1997, -100)  # in the last vector, which is not full; in none
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    smoothed = {"label_smoothing": 0.2, "weight": _weight(rng, 1998)}
    with _planned(CACHE_BYTES=1 << 10, WORKING_THREADS=256):
        check((x, target))
        check((x, target), **smoothed)
    with _planned(CACHE_BYTES=1 << 10, WORKING_THREADS=256, MANY_ROWS=1):
        check((x, target), **smoothed)
    # A rest of three slots behind batches of four, in which the row ends.
    with _planned(BATCH_BYTES=64):
        check((_scores(rng, 2, 5600), rng.integers(0, 5600, 2)))
    # Two groups of rows that are summed one by one, and one row more.
    many = _scores(rng, 129, 300), rng.integers(0, 300, 129)
    with _planned(CACHE_BYTES=1 << 8, WORKING_THREADS=256, MANY_ROWS=1):
        check(many)


def _two_launches(device: Device, rng: Any) -> None:
    """Rows that blocks all over the device share; their gradients may take their memory."""
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    with _planned(CACHE_LIMIT=1 << 10, SPLIT_BLOCK=64, SPLIT_VECTORS=1):
        x, target = _scores(rng, 3, 8501), rng.integers(0, 8501, 3)
        check((x, target))
        both = value_and_grad(functools.partial(cross_entropy, overwrite_input=True), (0,))
        arrays = device.asarray(x, writable=True), device.asarray(target)
        for result, reference in zip(both(*arrays)[1], both(x.copy(), target)[1], strict=True):
            close(result, reference, 16)
        check((_scores(rng, 3, 4096), target % 4096))  # nothing but full batches


def _layouts(device: Device, rng: Any) -> None:
    x, target = _scores(rng, 300, 53), rng.integers(0, 53, 300)
    check = functools.partial(compare, device, cross_entropy, wanted=(0,), roundings=16)
    check((x[:21, :50], target[:21] % 50))  # rows begin inside vectors
    with _planned(THREADS_OF_SEVERAL=512):  # neighbours are in other rows
        check((np.asfortranarray(x[:, :30]), target % 30))
    check((np.ascontiguousarray(x[:40, :32]), target[:40] % 32))  # nothing but full batches
    check((_scores(rng, 5, 600), target[:5]), reduction="none")  # a warp for each row
    x[np.arange(9), 5 * np.arange(9) + 3] = 300  # powers are infinite unless these are noticed
    with _planned(tiled=False):
        for dtype in np.float16, BFLOAT16, np.float64:
            check((x[:9].astype(dtype), target[:9]))


def _begin_anywhere(device: Device, hosts: Sequence[Any]) -> list[Any]:
    """In device memory, each at another place of 16 bytes."""
    return [
        device.asarray(x, misalignment=(12 + 4 * k) // x.itemsize % 4 * x.itemsize)
        for k, x in enumerate(hosts)
    ]


def _row_tiles(device: Device, rng: Any) -> None:
    """Tiles of whole rows, which one thread or more work on."""

    def draw(rows: int, columns: int, dtype: Any = np.float32) -> tuple[Any, Any]:
        return _scores(rng, rows, columns, dtype=dtype), rng.integers(0, columns, rows)

    def astray(hosts: tuple[Any, Any]) -> tuple[Any, Any]:
        target = hosts[1].copy()
        target[[0, 2, -2]], target[[1, 5, -1]] = (hosts[0].shape[1], -1, 99999), -100
        return hosts[0], target

    def check(hosts: Sequence[Any], **options: Any) -> None:
        arrays = _begin_anywhere(device, hosts)
        compare(device, cross_entropy, hosts, arrays, (0,), 16, **options)

    check(draw(769, 9))  # one row more than two tiles
    with _planned(module=row_tiling_schedule, TILE_SEGMENTS=2):
        check(draw(2000, 9))  # three tiles of a segment, two places of which are the same memory
    check(draw(150, 47), ignore_index=3)
    check(astray(draw(150, 21)))
    check(astray(draw(150, 21)), reduction="none")
    for rows, columns in (65, 101), (33, 333), (9, 1001):
        check(draw(rows, columns))
        hosts = astray(draw(rows, columns))
        check(hosts, reduction="none")
        check(hosts)
        check(draw(rows - 1, columns))  # nothing but full tiles
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "blocks_per_multiprocessor", 1)
        forget()
        check(draw(150, 101))  # several segments of one block
        check(draw(150, 101), reduction="none")
        check(draw(1600, 11))
        hosts = draw(1600, 13)
        compare(device, cross_entropy, hosts, wanted=(0,), roundings=16)  # stored by the engine
    forget()
    for columns in 21, 22, 32, 64, 149, 150:  # units of two; of eight, in parts
        hosts = draw(150, columns, BFLOAT16)
        hosts[0][:3] *= 100
        check(hosts)
        compare(device, cross_entropy, hosts, wanted=(0,), roundings=16)
    check(draw(9, 13, np.float64))
    _sums_of_tiles(device)
    _numbers_of_tiles(device, draw(150, 13))
    for columns in 11, 105:
        _anticipation(device, cross_entropy, draw(100, columns))
        hosts = draw(200, columns)
        both = value_and_grad(functools.partial(cross_entropy, overwrite_input=True), (0,))
        for by in (0, 4):
            input = device.asarray(hosts[0], writable=True, misalignment=by)
            results = both(input, device.asarray(hosts[1]))[1]
            for result, reference in zip(results, both(*hosts)[1], strict=True):
                close(result, reference, 16)
        weighted = {"weight": _weight(rng, columns), "label_smoothing": 0.3}
        check(draw(40, columns), **weighted)
        # Derivatives along tangents cancel in the mean of some, but not of these.
        of_these = np.random.default_rng(columns)
        hosts = _scores(of_these, 40, columns), of_these.integers(0, columns, 40)
        _row_passes(device, cross_entropy, hosts, 1, **weighted)
    hosts = draw(20, 22, BFLOAT16)
    weight = _weight(rng, 22).astype(BFLOAT16)
    _row_passes(device, cross_entropy, hosts, 1, weight=weight)
    _several_operands(device, rng)
    _operands_apart(device, rng)
    for columns, dtype in (20, BFLOAT16), (40, BFLOAT16), (20, np.float32), (60, np.float32):
        hosts = draw(150, columns, dtype)  # in vectors, or parts of them
        check(hosts)
        compare(device, cross_entropy, hosts, wanted=(0,), roundings=16)
    for columns in 20, 22:
        check(draw(150, columns), weight=_weight(rng, columns), label_smoothing=0.3)


def _several_operands(device: Device, _: Any) -> None:
    """Tiles of several operands, with gradients of each."""
    rng = np.random.default_rng(2)  # derivatives along tangents cancel in no mean of these
    for columns, dtype in (10, np.float32), (22, BFLOAT16), (101, np.float32):
        three = [_scores(rng, 40, columns, dtype=dtype) for _ in range(3)]
        two = *three[:2], rng.choice(np.array([1, -1], np.int32), 40)
        arrays = [device.asarray(x, misalignment=k * x.itemsize) for k, x in enumerate(two)]
        compare(device, cosine_embedding_loss, two, arrays, roundings=16, margin=0.1)
        if dtype == np.float32:
            _row_passes(device, cosine_embedding_loss, two, 2, 32, margin=0.1)
            arrays = _begin_anywhere(device, three)
            compare(device, triplet_margin_loss, three, arrays, (0, 1, 2), 32, swap=True)


def _operands_apart(device: Device, rng: Any) -> None:
    """Tiles of rows whose elements lie apart in the second operand, wherever columns begin."""
    for rows, columns, dtype in (136, 47, np.float32), (150, 101, np.float32), (151, 31, BFLOAT16):
        hosts = [_scores(rng, rows, columns, dtype=dtype) for _ in range(2)]
        sign = rng.choice(np.array([1, -1], np.int32), rows)
        for misaligned in (0, 1):
            by = misaligned * hosts[1].itemsize
            apart = device.asarray(np.asfortranarray(hosts[1]), misalignment=by)
            arrays = [device.asarray(hosts[0]), apart, device.asarray(sign)]
            three = *hosts, sign
            compare(device, cosine_embedding_loss, three, arrays, roundings=16, margin=0.1)
    images = _scores(rng, 9, 5 * 21).reshape(3, 15, 21)
    target = np.ascontiguousarray(np.moveaxis(rng.random(images.shape).astype("f4"), 2, 1))
    arrays = [device.asarray(images).transpose(0, 2, 1), device.asarray(target)]
    compare(device, cross_entropy, (np.moveaxis(images, 2, 1), target), arrays, (0, 1), 32)


def _sums_of_tiles(device: Device) -> None:
    """Large losses that cancel: what remains was kept as a rounding error."""
    for dtype, large in (np.float64, 1e16), (np.float32, 1e8):
        x = np.zeros((400, 13), dtype)
        x[:, 2:] = -np.inf
        x[:, 1] = -np.tile([large, 1001], 200)
        x[200::2, 0], x[200::2, 1] = x[200::2, 1], 0  # in other tiles
        target = np.ones(400, np.int64)
        target[200::2] = 0
        weight = np.ones(13, dtype)
        weight[0] = -1
        arrays = [device.asarray(host) for host in (x, target, weight)]
        total = cross_entropy(*arrays[:2], weight=arrays[2], reduction="sum")
        close(total, np.asarray(200200.0))


def _numbers_of_tiles(device: Device, hosts: tuple[Any, Any]) -> None:
    """Targets that are no part of a tile: every other one, and the same for all rows."""
    x, target = hosts
    both = value_and_grad(cross_entropy)
    apart = np.repeat(target, 2)
    apart[1::2] = -1
    alike = np.full(len(x), 5)
    one = np.broadcast_to(np.array(5), len(x))
    cases = (device.asarray(apart)[::2], target), (device.asarray(one), alike)
    for on_device, on_host in cases:
        results = both(device.asarray(x), on_device)
        for result, reference in zip(results, both(x, on_host), strict=True):
            close(result, reference, 16)


def _sums_of_ones_own(device: Device, rng: Any) -> None:
    """Sums and the log of a sum of exponentials, of two operands; infinite exponents."""

    def formula(x: Any, y: Any, c: Any = 0.5) -> Any:
        cosine = np.sum(x * y) / np.sqrt(np.sum(x * x) * np.sum(y * y))
        return np.logaddexp.reduce(c * x) * cosine + np.mean(y)

    loss = row_loss("of_ones_own", formula)
    for rows, columns in (150, 12), (40, 70), (3, 700):
        hosts = [_scores(rng, rows, columns) for _ in range(2)]
        compare(device, loss, hosts, roundings=16, shifted=columns == 12)
    hosts = [_scores(rng, 70, 9, dtype=np.float64) for _ in range(2)]
    _row_passes(device, loss, hosts, 2, 256)
    hosts = [np.full((4, 3), x, np.float32) for x in (1, 2)]
    for row, (number, top) in enumerate(((np.inf, np.inf), (-np.inf, -np.inf), (1e30, 3.0))):
        hosts[0][row] = number, top, top
    largest = row_loss("largest", lambda x: np.logaddexp.reduce(x))
    compare(device, largest, hosts[:1], wanted=(0,), reduction="none")
    compare(device, largest, [hosts[0][2:]], wanted=(0,))


Calls = Callable[[Device, Any], None]
ROW_CALLS: list[tuple[str, Calls]] = [
    ("CrossEntropy Softmax", _cross_entropy),
    ("RunningSum PlainSum ExactTerms FastTerms SumsOfPlaces Rounded", _exact_losses),
    ("Team RowOf", _layouts),
    ("Share", _ranks),
    ("Phase", _two_launches),
    ("Reduction", _groups),
    ("step HELD", _segments),
    ("NegativeLogLikelihood", _negative_log_likelihood),
    ("MultiMargin", _multi_margin),
    ("CosineEmbedding", _cosine_embedding),
    ("CrossEntropyOfProbabilities", _cross_entropy_of_probabilities),
    ("TripletMargin Norm", _triplet_margin),
    ("LargestInWarp", _row_tiles),
    ("Sampled Sample SampleAhead", _samples),
    ("Accumulated OfSums", _sums_of_ones_own),
]

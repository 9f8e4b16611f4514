"""Gradients that anticipate grad_output, on the emulator: one launch compares, and mends."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cupy_losses import cross_entropy, huber_loss, mse_loss, multi_margin_loss, nll_loss
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._device import anticipation, engine, plan_rows
from cupy_losses._device.anticipation import Slots
from cupy_losses._device.launch import Launch
from cupy_losses._device.library import PER_THREAD_STREAM
from cupy_losses._libraries.registry import resolve

from ..emulator import Device
from ..tables.arrays import DTYPES
from ..tools import levels

COLUMNS = 256  # of rows that kernels/rows.cu works on in every dtype
FACTORS = [0.5, 0.3, -0.0, 0.0, 65536.0, 1e-30, np.inf, -np.inf, np.nan, 1.0]


@pytest.fixture
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted ahead, as those of large arrays are."""
    monkeypatch.setattr(plan_rows, "FEW_ELEMENTS", 0)


class Calls:
    """Calls of a loss on the same arrays, as the bridge to autograd makes them."""

    def __init__(self, device: Device, loss: Any, hosts: Any, wanted: Any = (0,), **options: Any):
        self.device = device
        given: Any = [device.asarray(host) for host in hosts]
        options = {
            name: device.asarray(option) if isinstance(option, np.ndarray) else option
            for name, option in options.items()
        }
        self.call, given = prepare_of(loss)(*given, **options)
        self.library, self.operands = resolve(self.call, given)
        self.wanted = tuple(k + self.call.extra for k in wanted)
        self.factors = FACTORS if hosts[0].dtype in (np.float32, np.float16) else FACTORS[:4]

    def forward(self) -> tuple[Any, list[Any], Any]:
        """The value, the gradients and what waits for grad_output."""
        request = Request(wanted=self.wanted, early=True)
        value, *gradients, waiting = self.library.run(self.call, request, self.operands)
        return value, gradients, waiting

    def grad_output(self, factor: float, dtype: Any) -> Any:
        with np.errstate(over="ignore"):
            return self.device.asarray(np.asarray(factor, dtype))

    def value(self) -> Any:
        """The loss alone."""
        return self.library.run(self.call, Request(), self.operands)[0]

    def value_and_gradients(self) -> list[Any]:
        """Of one request, which has no backward pass."""
        results: list[Any] = self.library.run(self.call, Request(wanted=self.wanted), self.operands)
        return results

    def vjp(self, factor: float, dtype: Any) -> list[Any]:
        """The gradients from grad_output, by a request of their own."""
        request = Request(value=False, wanted=self.wanted, vjp=True)
        operands = (self.grad_output(factor, dtype), *self.operands)
        results: list[Any] = self.library.run(self.call, request, operands)
        return [result.get() for result in results]

    def backward(self, gradients: list[Any], waiting: Any, factor: float, dtype: Any) -> int:
        """Finish a call; how many kernels were launched."""
        before = len(self.device.launches)
        assert waiting.finish(self.operands, self.grad_output(factor, dtype))
        return len(self.device.launches) - before


def pair(dtype: Any, size: int = 5001) -> list[Any]:
    rng = np.random.default_rng(6)
    return [rng.standard_normal(size).astype(dtype) for _ in range(2)]


def scores(dtype: Any, rows: int = 7, columns: int = COLUMNS) -> list[Any]:
    rng = np.random.default_rng(7)
    target = rng.integers(0, columns, rows)
    target[1] = -100
    return [rng.standard_normal((rows, columns)).astype(dtype), target]


def same(got: Any, wanted: Any) -> bool:
    """Whether two arrays have the same bits, all NaN being alike."""
    one, other = (np.where(np.isnan(x), x.dtype.type(7), x) for x in (got, wanted))
    return bool(one.tobytes() == other.tobytes())


def cases(device: Device, dtype: Any) -> Iterator[Calls]:
    """Plans of one launch and of several, with each kind of denominator."""
    input, target = pair(dtype)
    weight, where = np.abs(target) + dtype.type(0.5), target > -1
    yield Calls(device, mse_loss, (input, target), (0, 1))
    yield Calls(device, mse_loss, (input, target), scale=np.asarray(0.3, dtype))
    yield Calls(device, mse_loss, (input[:9], target[:9]), reduction="sum", scale=0.3)
    if dtype == np.float64:
        return
    yield Calls(device, huber_loss, (input[:9], target[:9]), (0,), reduction="sum")
    yield Calls(device, mse_loss, (input, target), (0,), weight=weight, where=where)
    yield Calls(device, cross_entropy, scores(dtype))
    yield Calls(device, cross_entropy, scores(dtype), scale=np.asarray(0.3, dtype))
    weight = np.linspace(0.5, 2, COLUMNS).astype(dtype)
    yield Calls(device, cross_entropy, scores(dtype), weight=weight)
    yield Calls(device, nll_loss, scores(dtype))
    input, target = scores(dtype)
    yield Calls(device, multi_margin_loss, (input, abs(target) % COLUMNS))
    if dtype == np.float32:
        # Two launches, a cluster, tiles; rows side by side in two launches.
        every = [scores(dtype, *shape) for shape in ((2, 16_640), (33, 16_640), (70, 64))]
        input, target = scores(dtype, 40, 300)
        for operands in (*every, [np.asfortranarray(input), target]):
            calls = Calls(device, cross_entropy, operands)
            calls.factors = FACTORS[:1]
            yield calls


def prepared(device: Device, dtype: Any, *, vjp: bool) -> list[Calls]:
    """The calls of all plans. The kernels of both passes, and of `vjp`, are compiled."""
    every = list(cases(device, dtype))

    def passes() -> None:
        for calls in every:
            if vjp:
                calls.vjp(1.0, dtype)
            _, gradients, waiting = calls.forward()
            calls.backward(gradients, waiting, 1.0, dtype)

    device.prepare(passes)
    return every


@pytest.mark.usefixtures("_counting")
@pytest.mark.parametrize("name", levels.first(sorted(DTYPES)))
def test_bits_do_not_depend_on_what_was_anticipated(device: Device, name: str) -> None:
    """Each grad_output after each other one: the bits are those of its own pass."""
    dtype = DTYPES[name]
    for calls in prepared(device, dtype, vjp=True):
        value = None
        for factor in calls.factors:
            wanted = calls.vjp(factor, dtype)
            for is_anticipated in (False, True):
                got, gradients, waiting = calls.forward()
                assert value is None or got.get() == value
                value = got.get()
                written = [gradient.get() for gradient in gradients]
                if is_anticipated:
                    assert all(map(same, written, wanted))
                assert calls.backward(gradients, waiting, factor, dtype) == 1
                assert all(map(same, (x.get() for x in gradients), wanted))
                del waiting


@pytest.mark.usefixtures("_counting")
@pytest.mark.parametrize("name", levels.first(["float16", "float32"]))
def test_nothing_is_written_where_grad_output_was_anticipated(device: Device, name: str) -> None:
    dtype = DTYPES[name]
    for calls in prepared(device, dtype, vjp=False):
        for factor in (1.0, *calls.factors[1:2], *calls.factors[-2:-1]):
            for is_anticipated in (factor == 1.0, True):
                _, gradients, waiting = calls.forward()
                for gradient in gradients:
                    gradient[...] = 77
                calls.backward(gradients, waiting, factor, dtype)
                assert all((x.get() == 77).all() for x in gradients) == is_anticipated
                del waiting


@pytest.mark.parametrize("factor", [0.3, 3.0, 1e-3])
def test_the_gradient_is_rounded_once(device: Device, factor: float) -> None:
    """Of d = input - target, which is exact, 2 d grad_output / N has one rounding, or almost."""
    host = np.arange(-500, 500, dtype=np.float32)
    calls = Calls(device, mse_loss, (host, np.zeros_like(host)))
    for _ in range(2):
        _, (gradient,), waiting = calls.forward()
        calls.backward([gradient], waiting, factor, np.float32)
        exact = 2 * host.astype(np.float64) * np.float32(factor) / host.size
        assert np.mean(gradient.get() == exact.astype(np.float32)) > 0.99
        del waiting


def test_float16_is_rounded_once_below_its_normal_numbers(device: Device) -> None:
    """A gradient of 1/N underflows; that of a scaled loss does not."""
    input = np.linspace(0, 1e-3, 4096).astype(np.float16)
    calls = Calls(device, mse_loss, (input, np.zeros_like(input)))
    for factor in (1.0, 1.0, 32768.0, 32768.0, 0.25):
        _, (gradient,), waiting = calls.forward()
        calls.backward([gradient], waiting, factor, np.float16)
        exact = 2 * input.astype(np.float64) * factor / 4096
        unit = np.maximum(np.spacing(exact.astype(np.float16)).astype(np.float64), 2.0**-24)
        assert (abs(gradient.get().astype(np.float64) - exact) <= 0.501 * unit).all()
        del waiting


def test_a_nan_does_not_reach_what_the_mask_leaves_out(device: Device) -> None:
    input, target = pair(np.float32, 100)
    where = np.arange(100) % 3 > 0
    calls = Calls(device, mse_loss, (input, target), (0,), where=where)
    for factor, _ in itertools.product((np.nan, np.inf), range(2)):
        _, (gradient,), waiting = calls.forward()
        calls.backward([gradient], waiting, factor, np.float32)
        assert (gradient.get()[~where] == 0).all()
        assert not np.isfinite(gradient.get()[where]).any()
        del waiting


@pytest.fixture(params=[False, True], ids=["few", "large"])
def is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether arrays count as large."""
    if request.param:
        monkeypatch.setattr(plan_rows, "FEW_ELEMENTS", 0)
    return bool(request.param)


@pytest.fixture(params=levels.first([(70, 21), (70, COLUMNS), (2, 5, 35), (2, 90, 35)]))
def logits(request: pytest.FixtureRequest) -> Any:
    """Logits, the classes of all rows, and those of a part of them."""
    rng, shape = np.random.default_rng(9), request.param
    whole = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    part = np.where(rng.random(whole.shape) < 0.3, -100, whole)
    return rng.standard_normal(shape).astype(np.float32), whole, part


def test_the_number_of_rows_is_anticipated(device: Device, logits: Any, is_large: bool) -> None:
    """All; in large arrays if all were there in the last call. The bits are right in any case."""
    input, whole, part = logits
    calls = Calls(device, cross_entropy, (input, whole))
    count = np.count_nonzero(part != -100)
    guess, was_whole = 1.0, False
    for target, factor in zip(
        (whole, whole, part, part, whole, part), (0.5, 2, 0.5, 2, 0.5, 2), strict=True
    ):
        calls.operands = calls.operands[0], device.asarray(target)
        wanted, unscaled = calls.vjp(factor, np.float32)[0], calls.vjp(1.0, np.float32)[0]
        before = len(device.launches)
        value, (gradient,), waiting = calls.forward()
        assert len(device.launches) - before == 1 + is_large
        assert value.get() == cross_entropy(*calls.operands).get()
        was_anticipated = target is part and (was_whole or not is_large)
        ratio = gradient.get()[unscaled != 0] / unscaled[unscaled != 0]
        expected = guess * (count / whole.size if was_anticipated else 1.0)
        np.testing.assert_allclose(ratio, expected, rtol=1e-5)
        assert calls.backward([gradient], waiting, factor, np.float32) == 1
        assert same(gradient.get(), wanted)
        guess, was_whole = factor, target is whole
        del waiting


def test_value_and_gradients_anticipate_the_number_of_rows(
    device: Device, logits: Any, is_large: bool
) -> None:
    """Value and gradients of one call have the bits of two, whatever the last call had."""
    input, whole, part = logits
    options: dict[str, Any]
    for options in ({}, {"scale": np.asarray(0.3, np.float32)}):
        calls = Calls(device, cross_entropy, (input, whole), **options)
        for target in (whole, whole, part, part, np.full_like(whole, -100), whole, part):
            calls.operands = calls.operands[0], device.asarray(target), *calls.operands[2:]
            before = len(device.launches)
            value, gradient = calls.value_and_gradients()
            assert len(device.launches) - before == 2 + is_large
            assert same(value.get(), calls.value().get())
            assert same(gradient.get(), calls.vjp(1.0, np.float32)[0])


def test_an_overwritten_operand_has_its_rows_counted_ahead(device: Device) -> None:
    """Its gradient can not be computed anew."""
    input, target = scores(np.float32)
    calls = Calls(device, cross_entropy, (input, target), overwrite_input=True)
    calls.operands = device.asarray(input, writable=True), calls.operands[1]
    expected = Calls(device, cross_entropy, (input, target)).vjp(1.0, np.float32)[0]
    _, gradient = calls.value_and_gradients()
    assert same(gradient.get(), expected)


def test_value_and_gradients_in_a_graph(device: Device) -> None:
    """A captured call keeps its slot, so that no later call changes what a replay reads."""
    calls = Calls(device, cross_entropy, scores(np.float32))
    expected = calls.vjp(1.0, np.float32)[0]

    before = len(anticipation._of_graphs)
    device.capturing = True
    for _ in range(2):
        _, gradient = calls.value_and_gradients()
        assert same(gradient.get(), expected)
    device.capturing = False
    assert len(anticipation._of_graphs) == before + 2


def test_memory_of_graphs_is_kept_once(device: Device) -> None:
    """Not once more for each call that is captured with a slot of it."""
    calls = Calls(device, cross_entropy, scores(np.float32))
    calls.value_and_gradients()
    before = len(anticipation._of_graphs)
    device.capturing = True
    for _ in range(3):
        calls.value_and_gradients()
    device.capturing = False
    assert len(anticipation._of_graphs) == before + 1


def anticipated(calls: Calls) -> tuple[float, Any, Any]:
    """What a call anticipates; the call."""
    _, (gradient,), waiting = calls.forward()
    ratio = gradient.get() / calls.vjp(1.0, np.float32)[0]
    return float(np.median(ratio)), gradient, waiting


def test_each_waiting_call_has_its_own_guess(device: Device) -> None:
    """0.5 of one call and 0.25 of another, whichever comes back first."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    for turn in range(4):
        first, second = anticipated(calls), anticipated(calls)
        assert (first[0], second[0]) == ((1.0, 1.0) if turn == 0 else (0.5, 0.25))
        order = [(first, 0.5), (second, 0.25)]
        for (_, gradient, waiting), factor in order if turn % 2 else order[::-1]:
            calls.backward([gradient], waiting, factor, np.float32)
        del first, second, order, waiting, gradient


def test_a_call_keeps_what_it_anticipated(device: Device) -> None:
    """Backward passes of later calls do not change it."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    _, gradient, waiting = anticipated(calls)
    for factor in (0.5, 0.25):
        _, other, later = anticipated(calls)
        calls.backward([other], later, factor, np.float32)
        del later
    gradient[...] = 77
    calls.backward([gradient], waiting, 1.0, np.float32)
    assert (gradient.get() == 77).all()


def test_a_call_without_backward_gives_its_slot_back(device: Device) -> None:
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    _, gradient, waiting = anticipated(calls)
    calls.backward([gradient], waiting, 0.5, np.float32)
    del waiting
    for _ in range(3 * anticipation.SLOTS):
        calls.forward()
    gc.collect()
    assert anticipated(calls)[0] == 0.5


def test_more_calls_wait_than_a_block_has_slots(device: Device) -> None:
    calls = Calls(device, mse_loss, pair(np.float32, 10))
    factors = [float(2.0**-k) for k in range(2 * anticipation.SLOTS + 3)]
    for turn in range(3):  # from the second on their order is that of addresses
        waiting = [calls.forward() for _ in factors]
        for (_, gradients, call), factor in zip(waiting, factors, strict=True):
            gradients[0][...] = 77
            calls.backward(gradients, call, factor, np.float32)
            is_anticipated = (gradients[0].get() == 77).all()
            assert turn == 1 or is_anticipated == (turn == 2 or factor == 1.0)
        del waiting, call


def test_another_stream_has_guesses_of_its_own(device: Device) -> None:
    """And a backward pass on another stream than the forward pass computes elsewhere."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    for stream, factor in ((0, 0.5), (16, 0.25), (0, 0.5), (16, 0.25)):
        device.stream = stream
        _, gradient, waiting = anticipated(calls)
        calls.backward([gradient], waiting, factor, np.float32)
        del waiting
    guess, _, waiting = anticipated(calls)
    assert guess == 0.25
    device.stream = 0
    assert not waiting.finish(calls.operands, calls.grad_output(1.0, np.float32))
    assert anticipated(calls)[0] == 0.5


def test_threads_whose_streams_have_one_handle(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another thread launches may come between the launches of a call."""
    queue: list[Callable[[], None]] | None = None
    start, kept = Launch.start, []

    def started(launch: Launch, *arguments: Any) -> None:
        if queue is None:
            start(launch, *arguments)
        else:
            queue.append(functools.partial(start, launch, *arguments))

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        def keeping(*args: Any) -> Any:
            kept.append(function(*args))  # as CuPy's memory pool does while launches wait
            return kept[-1]

        return keeping

    monkeypatch.setattr(Launch, "start", started)
    monkeypatch.setattr(Slots, "take", keep(Slots.take))
    device.stream = PER_THREAD_STREAM
    input, whole = scores(np.float32)
    part = np.where(np.arange(len(whole)) % 2, whole, -100)
    calls = [Calls(device, cross_entropy, (input, target)) for target in (part, whole)]
    library: Any = type(calls[0].library)
    monkeypatch.setattr(library, "scratch", keep(library.scratch))
    expected = [own.vjp(1.0, np.float32)[0] for own in calls]
    found, queues = [], []
    for own in calls:
        queue = []
        found.append(own.value_and_gradients())
        queues.append(queue)
    queue = None
    for of_both in zip(*queues, strict=True):
        for launch in of_both:
            launch()
    for (_, gradient), wanted in zip(found, expected, strict=True):
        assert same(gradient.get(), wanted)
    *_, waiting = calls[0].forward()
    assert not waiting.finish(calls[0].operands, calls[0].grad_output(1.0, np.float32))


def test_operands_that_a_hook_moved(device: Device) -> None:
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    _, _, waiting = calls.forward()
    moved = [device.asarray(x.get()) for x in calls.operands]
    assert not waiting.finish(moved, calls.grad_output(1.0, np.float32))


def test_operands_that_a_hook_made_contiguous(device: Device) -> None:
    """At the address of the original, which was freed meanwhile."""
    table = np.random.default_rng(8).standard_normal((9, 12)).astype(np.float32)
    calls = Calls(device, mse_loss, (table.T, table.T), scale=np.asarray(0.3, np.float32))
    _, _, waiting = calls.forward()
    *tables, scale = calls.operands
    copies = [*(x.T.reshape(12, 9) for x in tables), scale]
    assert [x.data.ptr for x in copies] == [x.data.ptr for x in calls.operands]
    assert not waiting.finish(copies, calls.grad_output(1.0, np.float32))
    assert waiting.finish(calls.operands, calls.grad_output(1.0, np.float32))


@pytest.mark.parametrize("is_warm", [False, True])
def test_capture_in_a_graph(device: Device, is_warm: bool) -> None:
    """A captured call keeps its slot to itself, whatever becomes of its plan."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    if is_warm:
        _, gradient, waiting = anticipated(calls)
        calls.backward([gradient], waiting, 0.5, np.float32)
        del waiting
    device.capturing = True
    guess, gradient, captured = anticipated(calls)
    assert guess == 1.0
    own = captured._addresses[-1]
    calls.backward([gradient], captured, 0.25, np.float32)
    captured = None
    other = calls.forward()[2]
    assert other._addresses[-1] != own or not is_warm
    device.capturing = False
    assert not other.finish(calls.operands, calls.grad_output(1.0, np.float32))
    del other
    guess, _, eager = anticipated(calls)
    assert guess == (0.5 if is_warm else 1.0)
    assert eager._addresses[-1] != own or not is_warm
    device.capturing = True
    assert not eager.finish(calls.operands, calls.grad_output(1.0, np.float32))
    slots = eager._again.slots
    device.capturing = False
    if is_warm:
        assert anticipation._of_graphs[id(slots._memory)] is slots._memory


def test_a_backward_pass_in_a_graph_that_is_replayed_twice(device: Device) -> None:
    """Each replay gives the gradients for its own grad_output, also that which was anticipated."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    device.capturing = True
    _, (gradient,), captured = calls.forward()
    for factor in (1.0, 2.0, 1.0, 3.0, 3.0):
        calls.backward([gradient], captured, factor, np.float32)
        device.capturing = False
        assert same(gradient.get(), calls.vjp(factor, np.float32)[0])
        device.capturing = True


def test_a_grad_output_elsewhere(device: Device) -> None:
    """On the host, or another device is current: the gradients are computed by another call."""
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    _, _, waiting = calls.forward()
    grad_output = calls.grad_output(2.0, np.float32)
    library: Any = calls.library
    for name, elsewhere in (("device", lambda array: -1), ("current_device", lambda: 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, name, elsewhere)
            assert not waiting.finish(calls.operands, grad_output)
    assert waiting.finish(calls.operands, grad_output)


def test_a_plan_that_is_forgotten_serves_the_calls_that_wait(device: Device) -> None:
    calls = Calls(device, mse_loss, pair(np.float32, 100))
    _, gradient, waiting = anticipated(calls)
    engine._plans.clear()
    gc.collect()
    calls.backward([gradient], waiting, 0.5, np.float32)
    assert same(gradient.get(), calls.vjp(0.5, np.float32)[0])


def test_gradients_that_wait_for_grad_output(device: Device) -> None:
    """Of each element, and of operands that are broadcast: nothing is written, nothing waits."""
    input, target = pair(np.float32, 100)
    each = Calls(device, mse_loss, (input, target), reduction="none").forward()
    assert each[1:] == ([None], None)
    empty = Calls(device, mse_loss, (input[:0], target[:0])).forward()
    assert empty[1][0].shape == (0,)
    assert empty[2] is None
    column = Calls(device, mse_loss, (input.reshape(10, 10), target[:10]), (0, 1))
    with pytest.warns(UserWarning, match="broadcast"):
        _, gradients, waiting = column.forward()
    assert gradients[1] is None
    column.backward(gradients[:1], waiting, 0.5, np.float32)
    assert same(gradients[0].get(), column.vjp(0.5, np.float32)[0])


def test_a_call_that_gets_no_slot() -> None:
    """Its error is the only one: nothing more is raised when it is collected."""

    def fail(*_: Any) -> Any:
        raise MemoryError

    again: Any = SimpleNamespace(slots=SimpleNamespace(take=fail))
    with pytest.raises(MemoryError):
        anticipation.Waiting(again, ((), 1.0), [], [], 0, False, None, [])
    gc.collect()

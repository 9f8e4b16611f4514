"""What only a GPU can show: streams, graphs, threads, memory, determinism, 64-bit offsets."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    grad,
    grad_and_hess,
    huber_loss,
    l1_loss,
    mse_loss,
    pointwise_loss,
    smooth_l1_loss,
    value_and_grad,
)
from cupy_losses._device import compiler, engine

from ..tables.losses import FORMULAS, LOSSES, Case
from .waiting import without_waiting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*mean. divides"),  # kl_div's
]

MANY_SEGMENTS = 300_007


def tensors(size: int = MANY_SEGMENTS, dtype: Any = torch.float32) -> tuple[Any, Any]:
    generator = torch.Generator("cuda").manual_seed(2)
    return tuple(  # type: ignore[return-value]
        torch.randn(size, generator=generator, device="cuda").to(dtype) for _ in range(2)
    )


def drawn(case: Case, size: int, dtype: Any) -> list[Any]:
    """Operands of a loss."""
    hosts = case.draw(np.random.default_rng(2), size)
    return [torch.from_numpy(host).to(dtype).cuda() for host in hosts]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", FORMULAS, ids=str)
def test_float32_losses_of_half_precision(case: Case, dtype: torch.dtype) -> None:
    """As the hardware approximates functions: within 2^-16 of the largest term."""
    operands = drawn(case, MANY_SEGMENTS, dtype)
    hosts = [x.double().cpu().numpy().astype(np.longdouble) for x in operands]
    each, scale = case.value(*hosts), case.scale(*hosts)
    for reduction in ("none", "mean"):
        with torch.autocast("cuda"):
            losses = case.loss(*operands, reduction=reduction, **case.parameters)
        assert losses.dtype == torch.float32
        error = abs(losses.double().cpu().numpy() - case.reduce(each, reduction))
        assert (error <= 2.0**-16 * case.reduce(scale, reduction)).all()


def test_equal_numbers_of_half_precision_have_the_quotient_1() -> None:
    """So that the root or the logarithm of what is left to 1 is no NaN."""
    distance = pointwise_loss("distance_of_quotient", lambda x, y: (x / y - 1.0) * 1e9)
    bits = torch.arange(0x7FFF, dtype=torch.int16, device="cuda")
    x = bits.view(torch.bfloat16)
    x = x[(x >= 2.0**-100) & (x <= 2.0**125)]
    assert len(x) > 28_000
    assert bool((distance(x, x, reduction="none") == 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_same_bits_over_runs_and_streams(case: Case, dtype: Any) -> None:
    operands = drawn(case, MANY_SEGMENTS, dtype)
    both = functools.partial(value_and_grad(case.loss), reduction="mean", **case.parameters)
    value, gradient = both(*operands)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for stream in itertools.islice(itertools.cycle(streams), 100):
        with torch.cuda.stream(stream):
            results.append(both(*operands))
    torch.cuda.synchronize()
    assert all(torch.equal(v, value) and torch.equal(g, gradient) for v, g in results)


@pytest.fixture
def any_grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that fixes the number of resident blocks."""
    compiled = compiler.kernels

    def set_blocks(blocks: int) -> None:
        def kernels(wanted: Sequence[compiler.Specialisation]) -> list[compiler.Kernel]:
            return [kernel._replace(resident_blocks=blocks) for kernel in compiled(wanted)]

        engine._plans.clear()
        monkeypatch.setattr(compiler, "kernels", kernels)

    yield set_blocks
    engine._plans.clear()


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_same_bits_with_any_grid(case: Case, any_grid: Any) -> None:
    operands = drawn(case, 5_000_011, torch.float32)
    options = {"reduction": "mean", **case.parameters}
    weight, where = torch.rand_like(operands[0]), torch.rand_like(operands[0]) < 0.5
    values = set()
    for blocks in (1, 2, 7, 132, 133, 1056):
        any_grid(blocks)
        plain = case.loss(*operands, **options)
        weighted = case.loss(*operands, weight=weight, where=where, **options)
        values.add((plain.item(), weighted.item()))
    assert len(values) == 1


def test_no_host_synchronisation() -> None:
    """Every call returns while the device is still busy with something else."""
    import cupy

    input, target = tensors()
    leaf = input.clone().requires_grad_()
    arrays = cupy.from_dlpack(input), cupy.from_dlpack(target)

    def everything() -> None:
        mse_loss(input, target)
        mse_loss(leaf, target).mul(3).backward()
        mse_loss(input, target, weight=target)
        smooth_l1_loss(input, target, reduction="none")
        value_and_grad(huber_loss, (0, 1))(*arrays)

    for _ in range(3):  # also loads all of torch's kernels that take part
        everything()
    with without_waiting():
        everything()


def test_runs_on_the_current_stream() -> None:
    """Input written late on a side stream is seen, in forward and backward."""
    import cupy

    size = 1 << 20
    for library in ("torch", "cupy"):
        side = torch.cuda.Stream()
        input = torch.zeros(size, device="cuda")
        target = torch.zeros(size, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            input.fill_(2.0)
            if library == "torch":
                leaf = input.requires_grad_()
                result = mse_loss(leaf, target)
                result.mul(0.5).backward()
                gradient = leaf.grad
            else:
                external = cupy.cuda.Stream.from_external(side)
                with external:
                    arrays = [_view(x) for x in (input, target)]
                    value, gradient = value_and_grad(mse_loss)(*arrays)
                    result = torch.utils.dlpack.from_dlpack(value)
                    gradient = torch.utils.dlpack.from_dlpack(gradient) / 2
        side.synchronize()
        assert result.item() == 4.0
        torch.testing.assert_close(gradient, torch.full_like(target, 2.0 / size), rtol=1e-6, atol=0)


def _view(tensor: Any) -> Any:
    """A CuPy array over a tensor's memory, without any synchronisation."""
    import cupy

    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor)
    return cupy.ndarray(tuple(tensor.shape), np.float32, cupy.cuda.MemoryPointer(memory, 0))


@pytest.mark.parametrize("size", [1000, MANY_SEGMENTS])
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_torch_graph(size: int) -> None:
    """Captured forward and backward replay on new data, next to eager calls on other streams."""
    input, target = tensors(size)
    input.requires_grad_()
    task = torch.ones((), device="cuda")  # the weight of a task, which each replay reads
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(smooth_l1_loss(input, target, weight=target.abs()), input)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = smooth_l1_loss(input, target, weight=target.abs(), scale=task)
        (gradient,) = torch.autograd.grad(loss, input)
    for scale in (1.0, 0.5, 3.0):
        with torch.no_grad():
            input.copy_(scale * torch.randn_like(target))
        task.fill_(0.3 * scale)
        leaf = input.detach().clone().requires_grad_()
        graph.replay()
        expected = smooth_l1_loss(leaf, target, weight=target.abs(), scale=task)
        expected.backward()
        assert torch.equal(loss, expected)
        assert torch.equal(gradient, leaf.grad)


def test_cupy_graph() -> None:
    import cupy

    input, target = (cupy.from_dlpack(x).copy() for x in tensors())
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        value = mse_loss(input, target)
        stream.synchronize()
        del value
        stream.begin_capture()
        value = mse_loss(input, target)
        graph = stream.end_capture()
        others = [cupy.full(1 << k, cupy.nan, cupy.float32) for k in range(4, 20)]
        for scale in (1, 2):
            input *= scale
            graph.launch(stream)
            for other in others:  # what the pool hands out again is not the graph's memory
                other.fill(cupy.nan)
            stream.synchronize()
            assert float(value) == float(mse_loss(input, target))


@pytest.mark.parametrize(
    "function",
    [
        grad(mse_loss),
        grad_and_hess(mse_loss),
        value_and_grad(lambda x, y: 0.5 * mse_loss(x, y) + 3 * l1_loss(x, y) + 1.0),
    ],
    ids=["grad", "grad_and_hess", "sum"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_a_captured_call_of_cupy_drops(function: Any, dtype: str) -> None:
    """Arrays that the caller does not see are no one else's, as replays write to them."""
    import cupy

    input, target = (cupy.from_dlpack(x).astype(dtype) for x in tensors(5000))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()

    def results() -> list[Any]:
        found = function(input, target)
        return list(found) if isinstance(found, tuple) else [found]

    with stream:
        expected = results()
        stream.synchronize()
        stream.begin_capture()
        got = results()
        graph = stream.end_capture()
        sizes = [1 << k for k in range(12)] + [5000]
        others = [cupy.full(n, 7, kind) for n in sizes for kind in ("f4", "f2") for _ in range(8)]
        graph.launch(stream)
        stream.synchronize()
        for one, other in zip(got, expected, strict=True):
            assert (one == other).all()
        assert all((other == 7).all() for other in others)


def test_concurrent_calls_do_not_share_workspace() -> None:
    """The same loss on two streams and from several threads at once."""
    input, target = tensors(3_000_001)
    expected = mse_loss(input, target).item()
    results: list[float] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results.extend(mse_loss(input, target).item() for _ in range(50))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 200


def test_a_thread_that_never_used_cuda() -> None:
    import cupy

    input, target = (cupy.from_dlpack(x) for x in tensors(100))
    expected, results = float(mse_loss(input, target)), []
    thread = threading.Thread(target=lambda: results.append(float(mse_loss(input, target))))
    thread.start()
    thread.join()
    assert results == [expected]


def test_peak_memory_is_the_gradient() -> None:
    size = 1 << 26
    input, target = tensors(size)
    input.requires_grad_()
    mse_loss(input, target).backward()
    input.grad = None
    torch.cuda.synchronize()
    for loss in (mse_loss, smooth_l1_loss, huber_loss):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = loss(input, target)
        result.backward()
        peak = torch.cuda.max_memory_allocated() - before
        assert 4 * size <= peak <= 4 * size + (1 << 20)
        input.grad = None
        del result
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = loss(input.detach(), target)
        assert torch.cuda.max_memory_allocated() - before <= 1 << 20
        assert torch.cuda.memory_allocated() - before <= 1024
        del kept


def test_inputs_are_not_written() -> None:
    input, target = tensors()
    before = input.clone(), target.clone()
    value_and_grad(mse_loss, (0, 1))(input, target)
    assert torch.equal(input, before[0])
    assert torch.equal(target, before[1])


def test_mixed_libraries() -> None:
    import cupy

    input, target = tensors(1000)
    array = cupy.from_dlpack(target)
    expected = mse_loss(input, target)
    first = mse_loss(input, array)
    assert isinstance(first, torch.Tensor)
    second = mse_loss(cupy.from_dlpack(input), target)
    assert isinstance(second, cupy.ndarray)
    assert first.item() == float(second) == expected.item()
    with pytest.raises(ValueError, match="target requires grad"):
        mse_loss(array, input.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_tensors_as_they_lie_beside_cupy_arrays(dtype: torch.dtype) -> None:
    import cupy

    table = torch.arange(-60, 60, device="cuda").reshape(10, 12).to(dtype)
    for view in (table, table.T, table[1:, ::3], table[:, :1], table[0], table[3, 3], table[:0]):
        zeros = cupy.zeros(tuple(view.shape), cupy.float64)
        each = mse_loss(zeros, view, reduction="none")
        assert torch.equal(torch.utils.dlpack.from_dlpack(each), view.double() ** 2)


def test_a_negated_view_beside_a_cupy_array() -> None:
    import cupy

    view = torch.complex(torch.zeros(5), torch.arange(5.0)).cuda().conj().imag
    assert view.is_neg()
    each = mse_loss(cupy.ones(5, cupy.float32), view, reduction="none")
    assert each.get().tolist() == [1.0, 4.0, 9.0, 16.0, 25.0]


def test_any_dlpack_object() -> None:
    import cupy

    class Exporter:
        """An array of some other library."""

        def __init__(self, array: Any) -> None:
            self._array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._array.__dlpack_device__()

    array = cupy.arange(10, dtype=cupy.float32)
    result = mse_loss(Exporter(array), Exporter(cupy.zeros(10, cupy.float32)))
    assert isinstance(result, cupy.ndarray)
    assert float(result) == 28.5


def test_bfloat16_in_cupy() -> None:
    import cupy
    import ml_dtypes

    host = np.random.default_rng(0).standard_normal(1000).astype(ml_dtypes.bfloat16)
    value, gradient = value_and_grad(mse_loss)(cupy.asarray(host), cupy.zeros(1000, host.dtype))
    assert value.dtype == gradient.dtype == ml_dtypes.bfloat16
    expected = value_and_grad(mse_loss)(host, np.zeros(1000, host.dtype))[0]
    assert value.get() == expected


def test_out_of_memory_leaves_the_next_call_working() -> None:
    input, target = tensors(1 << 20)
    huge = input[:1].expand(1 << 24).view(-1, 1).expand(1 << 24, 1 << 14)
    with pytest.raises(torch.OutOfMemoryError):
        mse_loss(huge, huge, reduction="none")
    assert mse_loss(input, target).item() > 0


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_second_device() -> None:
    import cupy

    input, target = (x.to("cuda:1").requires_grad_() for x in tensors())
    result = mse_loss(input, target)
    result.backward()
    assert result.device == input.grad.device == torch.device("cuda:1")
    reference = mse_loss(input.detach().to("cuda:0"), target.detach().to("cuda:0"))
    assert result.item() == reference.item()
    array = cupy.from_dlpack(input.detach())
    assert float(mse_loss(array, array)) == 0
    with pytest.raises(ValueError, match="same device"):
        mse_loss(input.detach(), target.detach().to("cuda:0"))


@pytest.mark.parametrize("first", ["null", "side"])
def test_a_tensor_of_another_stream_is_waited_for(first: str) -> None:
    """Beside a CuPy array, whose stream may be CuPy's null stream."""
    import cupy

    x, other = cupy.zeros(1 << 20, cupy.float32), torch.cuda.Stream()
    stream = cupy.cuda.Stream.null if first == "null" else cupy.cuda.Stream(non_blocking=True)
    mse_loss(x, torch.zeros(1 << 20, device="cuda"))  # compiles
    torch.cuda.synchronize()
    with stream, torch.cuda.stream(other):
        tensor = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(200_000_000)
        tensor.fill_(1)
        loss = mse_loss(x, tensor)
    torch.cuda.synchronize()
    assert float(loss) == 1


def test_a_new_stream_while_another_thread_captures() -> None:
    """Its first call allocates memory, as torch does: the capture allows that in other threads."""
    input, target = tensors(100_000)
    expected = mse_loss(input, target).item()
    for _ in range(3):
        results: list[torch.Tensor] = []

        def work(results: list[torch.Tensor] = results) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                results.append(mse_loss(input, target))

        graph, thread = torch.cuda.CUDAGraph(), threading.Thread(target=work)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = mse_loss(input, target)
            thread.start()
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
        assert [captured.item(), *(result.item() for result in results)] == [expected] * 2

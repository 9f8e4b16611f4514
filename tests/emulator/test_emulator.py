"""The emulator finds what it is there to find, raises no false alarm, and runs the package."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import cupy_losses
from cupy_losses._device import compiler, driver, engine

from .. import emulator
from . import Device, EmulatorError, Job, Kernel, Module, Schedule, installed

Host = npt.NDArray[Any]

SEEDS = range(4)


@pytest.fixture(autouse=True)
def _emulator() -> None:
    emulator.require()


class Idiom(NamedTuple):
    """A kernel of idioms.cu, what it computes when it is right, and what is said when it is not.

    The last of its arguments is the result.
    """

    name: str
    arguments: Sequence[Any]
    result: npt.ArrayLike
    alarm: str
    blocks: int = 1
    dynamic_bytes: int = 0


NUMBERS = np.arange(64, dtype=np.int32)
ONES = np.ones(64, np.int32)
OUT = np.zeros(64, np.int32)
PARTIAL = np.zeros(64 * 5, np.int32)
COUNTER = np.zeros(1, np.uint32)
OUTS = np.zeros(3 * 64, np.int32)
INCREASED = np.concatenate([NUMBERS, NUMBERS + 1, NUMBERS + 2])
PADDED = np.where(NUMBERS % 2, NUMBERS, NUMBERS[::-1]) + 1

IDIOMS = [
    Idiom("exchange_in_block", [NUMBERS, OUT], NUMBERS[::-1], "race on shared"),
    Idiom("exchange_in_warp", [NUMBERS, OUT], NUMBERS ^ 1, "race on shared"),
    Idiom("reuse_tile", [NUMBERS, OUT], 3 * NUMBERS[::-1] + 3, "race on shared"),
    Idiom("flag_in_block", [OUT[:1]], [7], "race on shared"),
    Idiom("release_to_last_block", [PARTIAL, COUNTER, OUT], 5 * NUMBERS, "race on global", 5),
    Idiom("acquire_in_last_block", [PARTIAL, COUNTER, OUT], 5 * NUMBERS, "race on global", 5),
    Idiom("fence_for_device", [PARTIAL, COUNTER, OUT], 5 * NUMBERS, "race on global", 5),
    Idiom("chain_of_blocks", [OUT[:4], OUT[:1], OUT[:4]], [5, 6, 7, 8], "race on global", 4),
    Idiom("scatter", [np.tile(NUMBERS % 4, 2), OUT[:4]], [32] * 4, "race on global", 2),
    Idiom("barrier_for_some", [OUT], ONES, "have returned|deadlock"),
    Idiom("two_barriers", [OUT], ONES, "divergent barrier"),
    Idiom("warp_waits_for_barrier", [OUT], ONES, "deadlock"),
    Idiom("masks_of_halves", [NUMBERS, OUT[:4]], [120, 31, 632, 63], "mask 0xffffffff"),
    Idiom("lane_not_in_mask", [OUT], ONES, "calling lane is not in the mask"),
    Idiom("lane_has_returned", [OUT], 32 * ONES, "returned"),
    Idiom("read_tail", [NUMBERS[:61], OUT[:61]], NUMBERS[:61], "out-of-bounds read of 4 bytes"),
    Idiom("write_tail", [OUT[:61]], ONES[:61], "out-of-bounds write .* 244 bytes from the start"),
    Idiom("uninitialised_shared", [OUT], ONES, "uninitialised shared"),
    Idiom("padding_of_shared", [NUMBERS, OUT], PADDED, "uninitialised shared"),
    Idiom("hint_for_store", [NUMBERS, OUT], NUMBERS, "for device memory finds shared"),
    Idiom("hint_for_load", [NUMBERS, OUT], NUMBERS, "for device memory finds shared"),
    Idiom("hint_for_local", [NUMBERS, OUT], NUMBERS, "for device memory finds local"),
    Idiom("dynamic_shared", [OUT], ONES, "beyond the 256 bytes of dynamic", 1, 256),
    Idiom("aligned", [NUMBERS, OUT], 4 * ONES, "misaligned address"),
    Idiom("aligned_atomic", [OUT[:2]], [0, 64], "misaligned atomic"),
    Idiom("write_through_const", [NUMBERS, OUT], NUMBERS, "write to read-only memory"),
    Idiom("null_pointer", [None, OUT], ONES, "null pointer|out-of-bounds read"),
    Idiom("index_of_32_bits", [OUT], 65536 + NUMBERS, "signed integer overflow"),
    Idiom("local_array", [OUT], NUMBERS % 4 + 1, "array index out of bounds"),
    Idiom("shift", [OUT], 1 << NUMBERS % 31, "shift by too many bits"),
    Idiom("trap", [OUT], ONES, "__trap"),
    Idiom("wait_for_copy", [NUMBERS, OUT], NUMBERS, "not waited for before a read"),
    Idiom("barrier_after_copies", [NUMBERS, OUT], NUMBERS[::-1], "race on shared"),
    Idiom("wait_ahead_of_barrier", [NUMBERS, OUT], NUMBERS[::-1], "race on shared"),
    Idiom("wait_for_the_right_group", [NUMBERS, OUT], 3 * NUMBERS, "not waited for before a read"),
    Idiom("read_the_right_slot", [NUMBERS, OUT], NUMBERS, "not waited for before a read"),
    Idiom("end_the_group", [NUMBERS, OUT], NUMBERS, "not waited for before a read"),
    Idiom("write_behind_copy", [NUMBERS, OUT], ONES, "not waited for before a write"),
    Idiom("copy_behind_read", [NUMBERS, OUT], 63 - 2 * NUMBERS, "before the write of a copy"),
    Idiom("write_source_of_copy", [NUMBERS, OUT], NUMBERS, "not waited for before a write"),
    Idiom("copy_not_waited_for", [NUMBERS, OUT], ONES, "never waited for"),
    Idiom("aligned_copy", [NUMBERS, OUT[:1]], [4], "misaligned copy of 16 bytes"),
    Idiom("copy_tail", [NUMBERS[:61], OUT[:61]], NUMBERS[:61], "out-of-bounds read of 4 bytes"),
    Idiom("barrier_has_begun", [NUMBERS, OUTS], INCREASED, "race on shared|no barrier has begun"),
    Idiom("expect_all_bytes", [NUMBERS, OUTS], INCREASED, "no end in sight"),
    Idiom("wait_for_bytes", [NUMBERS, OUTS], INCREASED, "race on shared"),
    Idiom("fence_for_bulk_copies", [NUMBERS, OUTS], INCREASED, "no fence for bulk copies"),
    Idiom("wait_for_writers", [NUMBERS, OUTS], INCREASED, "race on shared"),
    Idiom(
        "wait_for_store", [NUMBERS, OUTS], INCREASED, "not waited for before the write of a copy"
    ),
    Idiom("wait_for_last_store", [NUMBERS, OUTS], INCREASED, "never waited for"),
    Idiom("read_what_is_stored", [OUT], 7 * ONES, "not waited for before a read"),
    Idiom("wait_for_the_right_phase", [OUT], ONES, "one more thread"),
    Idiom("loop_over_memory", [ONES, OUT], 64 * ONES, "no end in sight after 100000 steps"),
    Idiom("loop_over_warp", [OUT], 64 * ONES, "no end in sight after 100000 steps"),
]
CONVERSIONS = ["round_to_half", "round_to_bfloat16"]
OTHERS = [*CONVERSIONS, "collectives", "atomics", "intrinsics", "rounded_as_written"]


@pytest.fixture(scope="module")
def idioms(source: str) -> Module:
    """All kernels of idioms.cu."""
    names = [f"{idiom.name}<{ok}>" for idiom in IDIOMS for ok in ("true", "false")]
    return Module(source, [*names, *OTHERS])


@pytest.fixture(scope="module")
def source() -> str:
    emulator.require()
    return (Path(emulator.__file__).parent / "idioms.cu").read_text(encoding="utf-8")


def run_idiom(kernel: Kernel, idiom: Idiom, seed: int) -> Host:
    """The result of a kernel, on fresh copies of the arguments."""
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in idiom.arguments]
    kernel(
        (idiom.blocks,),
        (64,),
        arguments,
        shared_bytes=idiom.dynamic_bytes,
        schedule=Schedule(seed, concurrent=idiom.blocks, most_steps=100_000),
    )
    result: Host = arguments[-1]
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
def test_no_alarm_and_right_result(idioms: Module, idiom: Idiom, seed: int) -> None:
    result = run_idiom(idioms.get_function(f"{idiom.name}<true>"), idiom, seed)
    np.testing.assert_array_equal(result, np.broadcast_to(idiom.result, result.shape))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
def test_alarm(idioms: Module, idiom: Idiom, seed: int) -> None:
    with pytest.raises(EmulatorError, match=idiom.alarm):
        run_idiom(idioms.get_function(f"{idiom.name}<false>"), idiom, seed)


def test_blocks_keep_their_shared_memory(idioms: Module) -> None:
    """Whenever the others come and go."""
    idiom = next(idiom for idiom in IDIOMS if idiom.name == "release_to_last_block")
    kernel = idioms.get_function("release_to_last_block<true>")
    for seed in range(1, 300):
        np.testing.assert_array_equal(run_idiom(kernel, idiom, seed), idiom.result)


def test_copies_are_late_without_checks(source: str) -> None:
    """What is read before the wait is what was there before the copy."""
    module = Module(source, ["wait_for_copy<true>", "wait_for_copy<false>"], check=False)
    right, early = np.zeros((2, 64), np.int32)
    module.get_function("wait_for_copy<true>")((1,), (64,), [NUMBERS, right])
    module.get_function("wait_for_copy<false>")((1,), (64,), [NUMBERS, early])
    np.testing.assert_array_equal(right, NUMBERS)
    assert (early != NUMBERS).all()


def test_alarm_names_the_line(idioms: Module, source: str) -> None:
    lines = source.splitlines()
    number = next(k for k, line in enumerate(lines, 1) if "OK ? 61 : 62" in line)
    idiom = next(idiom for idiom in IDIOMS if idiom.name == "write_tail")
    with pytest.raises(EmulatorError, match=rf"kernel\.cu:{number}\b.*thread \(61,0,0\)"):
        run_idiom(idioms.get_function("write_tail<false>"), idiom, 0)


def test_endless_wait_is_found(idioms: Module) -> None:
    # Block 1 waits for block 0, which does not run.
    kernel = idioms.get_function("chain_of_blocks<true>")
    arguments = [np.zeros(4, np.int32), np.zeros(1, np.int32), np.zeros(4, np.int32)]
    with pytest.raises(EmulatorError, match="no end in sight"):
        kernel((2,), (1,), arguments, schedule=Schedule(blocks=[1]))


@pytest.mark.parametrize(
    ("arguments", "alarm"),
    [
        ([NUMBERS], "takes 2 arguments, 1 given"),
        ([np.int32(1), OUT], "int32 given, the kernel takes c8"),
        ([NUMBERS, 1.0], "float64 given, the kernel takes p8"),
    ],
)
def test_arguments_that_do_not_fit(idioms: Module, arguments: list[Any], alarm: str) -> None:
    with pytest.raises(EmulatorError, match=alarm):
        idioms.get_function("read_tail<true>")((1,), (64,), arguments)


def test_source_that_does_not_compile() -> None:
    with pytest.raises(emulator.CompileError, match=r"kernel\.cu:2:.*nonsense"):
        Module("\n__global__ void k() { nonsense; }", ["k"]).build()


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives(idioms: Module, seed: int) -> None:
    x = np.arange(64, dtype=np.int32)
    got = np.zeros((16, 64), np.int32)
    idioms.get_function("collectives")((1,), (64,), [x, got], schedule=Schedule(seed))
    lane, first = x % 32, x // 32 * 32
    halves = x.reshape(2, 32)
    bits = 1 << np.arange(32, dtype=np.int64)

    def of_warp(values: npt.ArrayLike) -> Host:
        return np.repeat(values, 32)

    expected = [
        first + 5,
        np.where(lane < 3, x, x - 3),
        np.where(x % 16 >= 13, x, x + 3),
        x ^ 9,
        of_warp((halves > 20) @ bits),
        of_warp((halves > 20).all(1)),
        of_warp((halves > 20).any(1)),
        np.array([(halves[t // 32] % 3 == t % 3) @ bits for t in range(64)]),
        of_warp(halves.sum(1)),
        of_warp((-halves).min(1)),
        of_warp((-halves).max(1)),
        of_warp([0, -63]),
        of_warp(np.bitwise_or.reduce(halves, 1)),
        np.full(64, 43),
        np.zeros(64),
        np.ones(64),
    ]
    np.testing.assert_array_equal(got, np.array(expected).astype(np.int64).astype(np.int32))


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics(idioms: Module, seed: int) -> None:
    got, wrapping = np.zeros(9, np.int32), np.zeros(2, np.uint32)
    got[6] = -1
    idioms.get_function("atomics")((1,), (64,), [got, wrapping], schedule=Schedule(seed))
    np.testing.assert_array_equal(got, [2016, -2016, 63, -63, 255, 0, 1, 1, 1])
    np.testing.assert_array_equal(wrapping, [64 % 10, -64 % 10])


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("round_to_half", np.float16), ("round_to_bfloat16", ml_dtypes.bfloat16)]
)
def test_rounding(idioms: Module, kernel: str, dtype: type, rng: np.random.Generator) -> None:
    # Half of the numbers lie half-way between two that the dtype has, or next to that.
    with np.errstate(all="ignore"):
        start: Host = rng.integers(0, 2**16, 4000).astype(np.uint16).view(dtype)
        grid = start.astype(np.float64)
        following = np.nextafter(start, np.asarray(np.inf, dtype)).astype(np.float64)
        middle = (grid + following) / 2
        middle = middle * rng.choice([1, 1 + 2.0**-22, 1 - 2.0**-22], middle.size)
        special = [0.0, -0.0, np.inf, -np.inf, 65504, 65519.99, 65520, 1e9, -1e9, 1e-8, 3.4e38]
        doubles = np.concatenate([grid, middle, special])
        doubles = doubles[~np.isnan(doubles)]
        floats = doubles.astype(np.float32)
        n = len(doubles)
        got: list[Host] = [np.zeros(n, dtype), np.zeros(n, dtype)]
        blocks = -(-n // 256)
        storage = [array.view(np.uint16) for array in got]
        idioms.get_function(kernel)((blocks,), (256,), [n, floats, doubles, *storage])
        np.testing.assert_array_equal(got[0], floats.astype(dtype))
        if dtype is np.float16:  # ml_dtypes rounds doubles twice
            np.testing.assert_array_equal(got[1], doubles.astype(dtype))


def test_intrinsics(idioms: Module) -> None:
    x = np.float64(np.float32(0.7))
    got = np.zeros(20)
    idioms.get_function("intrinsics")((1,), (1,), [np.float32(x), got])
    expected = [
        *(np.exp(x), np.log(x), np.log2(x), x**x, 1 / x, x**-0.5, x**-0.5, np.log1p(x)),
        *(np.expm1(x), np.tanh(x), 2 * x, 2 * x, x * x, x * x + x, 0.7580363, 1.0, x),
        *(np.cos(np.pi * x), 1.0, x),
    ]
    np.testing.assert_allclose(got, expected, rtol=3e-7)


def test_intrinsics_are_rounded_as_written(idioms: Module) -> None:
    x, product = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-11)  # x * x is product + 2^-24
    got = np.ones(2, np.float32)
    idioms.get_function("rounded_as_written")((1,), (1,), [x, x, -product, got])
    np.testing.assert_array_equal(got, [0, 0])


SCALE = """
template <class Index>
__global__ void scale(long long n, float factor, const float* x, float* y) {
  const Index i = Index(blockIdx.x) * Index(blockDim.x) + Index(threadIdx.x);
  if (i < n) y[i] = factor * x[i];
}
"""


class Arguments:
    """Arguments as the driver takes them: addresses of their bytes, each at a multiple of 8."""

    def __init__(self, *arguments: bytes) -> None:
        padded = [raw + bytes(-len(raw) % 8) for raw in arguments]
        self.buffer = np.frombuffer(b"".join(padded), np.uint8)
        starts = np.cumsum([0, *map(len, padded[:-1])]).astype(np.uint64)
        self.addresses = np.uint64(self.buffer.ctypes.data) + starts
        self.table = int(self.addresses.ctypes.data)


@pytest.fixture
def device() -> Iterator[Device]:
    """An installed device."""
    with installed() as device:
        yield device


def scale(
    device: Device, *arguments: bytes, blocks: int = 1, threads: int = 32, index: str = "long long"
) -> None:
    """Launch it with the bytes of its arguments."""
    packed = Arguments(*arguments)
    function = device.load(Job(SCALE, f"scale<{index}>"))
    device.launch(function, (blocks, 1, 1), (threads, 1, 1), 0, 0, packed.table)


def raw(value: Any) -> bytes:
    """The bytes of an argument."""
    return np.asarray(value).tobytes()


def address(array: emulator.ndarray, offset: int = 0) -> bytes:
    """A pointer as an argument."""
    return raw(np.uint64(array.data.ptr + offset))


def test_launch_through_the_driver(device: Device) -> None:
    x = device.asarray(np.arange(5, dtype=np.float32))
    y = emulator.ndarray(5, np.float32)
    scale(device, raw(5), raw(np.float32(2)), address(x), address(y))
    np.testing.assert_array_equal(y.get(), [0, 2, 4, 6, 8])
    assert device.launches[0].grid == (1, 1, 1)


def test_device_memory_holds_no_objects(device: Device) -> None:
    with pytest.raises(TypeError, match="holds no objects, got array"):
        device.asarray(np.array(None))


def test_launch_arguments_are_checked(device: Device) -> None:
    x = device.asarray(np.arange(5, dtype=np.float32))
    y = emulator.ndarray(5, np.float32)
    n, factor, to, at = raw(5), raw(np.float32(2)), address(x), address(y)
    wrong = {
        "takes 4 arguments, 3 given": [n, factor, to],
        "takes 4 arguments, 5 given": [n, factor, to, at, at],
        "argument 0 has 16 bytes, not 8": [n + n, factor, to, at],
        "argument 2, .* not aligned to 4 bytes": [n, factor, address(x, 2), at],
        "argument 3, .* read-only memory": [n, factor, to, to],
        "argument 2, .* points to no array": [n, factor, address(x, 20), at],
        "argument 3, .* points to no array": [n, factor, to, raw(np.uint64(4096))],
        "out-of-bounds read": [raw(6), factor, to, at],
    }
    for alarm, arguments in wrong.items():
        with pytest.raises(EmulatorError, match=alarm):
            scale(device, *arguments)


def test_without_checks_margins_are_watched(device: Device) -> None:
    device.check = False
    x = device.asarray(np.arange(5, dtype=np.float32))
    y = emulator.ndarray(4, np.float32)
    with pytest.raises(EmulatorError, match="beside an array"):
        scale(device, raw(5), raw(np.float32(2)), address(x), address(y))


def test_freed_memory_is_out_of_reach(device: Device) -> None:
    x = device.asarray(np.arange(5, dtype=np.float32))
    freed = address(emulator.ndarray(5, np.float32))
    with pytest.raises(EmulatorError, match="points to no array"):
        scale(device, raw(5), raw(np.float32(2)), address(x), freed)


def test_chosen_blocks_of_more_elements_than_32_bits_count(device: Device) -> None:
    n = 2**31 + 5
    blocks = -(-n // 1024)
    x = device.sparse((n,), np.float32)
    y = device.sparse((n,), np.float32, writable=True)
    x.host_view[[0, -1]] = 3, 5
    device.choose = lambda name, total: [0, total - 1]
    arguments = raw(n), raw(np.float32(2)), address(x), address(y)
    scale(device, *arguments, blocks=blocks, threads=1024)
    assert [y[0].item(), y[-1].item()] == [6, 10]
    with pytest.raises(EmulatorError, match="signed integer overflow"):
        scale(device, *arguments, blocks=blocks, threads=1024, index="int")


def test_fresh_memory_is_poisoned() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        assert np.isnan(emulator.ndarray(3, dtype).get()).all()


@pytest.mark.parametrize("misalignment", [0, 2, 8])
def test_asarray_keeps_strides_and_takes_misalignment(device: Device, misalignment: int) -> None:
    host = np.arange(24, dtype=np.float16).reshape(4, 6)[::-1, ::2].T
    array = device.asarray(host, misalignment=misalignment)
    assert (array.shape, array.strides) == (host.shape, host.strides)
    assert array.data.mem.address % 512 == misalignment
    np.testing.assert_array_equal(array.get(), host)
    np.testing.assert_array_equal(array.T[1:, ::2].get(), host.T[1:, ::2])
    assert array[0, 1].shape == ()
    assert float(array[0, 1]) == host[0, 1]


LAYOUTS = ["dense", "transposed", "sliced", "misaligned"]


def operand(device: Device, host: Host, layout: str) -> Any:
    """`host` in device memory, laid out as asked."""
    if layout == "transposed":
        return device.asarray(np.ascontiguousarray(host.T).T)
    if layout == "sliced":
        wide = np.full((*host.shape[:-1], 2 * host.shape[-1]), np.nan, host.dtype)
        wide[..., ::2] = host
        return device.asarray(wide[..., ::2])
    return device.asarray(host, misalignment=host.itemsize if layout == "misaligned" else 0)


def expected(loss: str, x: Host, y: Host) -> tuple[Any, Any]:
    """Mean and gradient, in higher precision."""
    d = x.astype(np.longdouble) - y.astype(np.longdouble)
    if loss == "mse_loss":
        return np.mean(d * d), 2 * d / d.size
    values = np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5)
    return np.mean(values), np.clip(d, -1, 1) / d.size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss"])
def test_losses(
    loss: str, dtype: type, layout: str, device: Device, rng: np.random.Generator
) -> None:
    function = getattr(cupy_losses, loss)
    unit = float(np.finfo(dtype).eps)
    smallest = float(np.finfo(dtype).smallest_subnormal)
    for shape in ((1, 1), (7, 3), (64, 600)):
        x, y = rng.standard_normal((2, *shape)).astype(dtype)
        value, gradient = expected(loss, x, y)
        arrays = [operand(device, host, layout) for host in (x, y)]
        got, slope = cupy_losses.value_and_grad(function)(*arrays)
        np.testing.assert_allclose(float(function(*arrays)), value, rtol=2 * unit)
        np.testing.assert_allclose(float(got), value, rtol=2 * unit)
        np.testing.assert_allclose(slope.get(), gradient, rtol=2 * unit, atol=smallest)


def test_bits_do_not_depend_on_the_schedule(rng: np.random.Generator) -> None:
    x, y = (rng.standard_normal(100003).astype(np.float32) for _ in range(2))
    bits = set()
    grids = set()
    for multiprocessors, seed, concurrent, check in [
        (1, 0, 1, True),
        (2, 1, 2, True),
        (3, 2, 6, True),
        (3, 3, 3, True),
        (100, 4, 8, False),
    ]:
        device = Device(
            multiprocessors=multiprocessors, seed=seed, concurrent=concurrent, check=check
        )
        with installed(device):
            arrays = device.asarray(x), device.asarray(y)
            value, slope = cupy_losses.value_and_grad(cupy_losses.smooth_l1_loss)(*arrays)
            bits.add((value.get().tobytes(), slope.get().tobytes()))
            grids.add(device.launches[-1].grid)
    assert len(bits) == 1
    assert len(grids) > 2


@pytest.mark.parametrize(
    "fields",
    [{"shared_memory": 16 << 10}, {"compute_capability": "80"}, {"cache_bytes": 1 << 10}],
    ids=str,
)
def test_the_package_asks_each_device_anew(fields: dict[str, Any]) -> None:
    """What was kept of another device would make all devices alike."""
    asked: list[tuple[Any, ...]] = []
    for more in ({}, fields, {}):
        with installed(run_kernels=False, **{"shared_memory": 24 << 10, **more}):
            answers = driver.shared_memory, driver.largest_cluster, driver.cache_bytes
            asked.append(tuple(answer(0) for answer in answers))
    assert asked[0] == asked[2] == (24 << 10, 16, 1 << 20)
    assert asked[1] != asked[0]


def test_plans_are_of_the_device() -> None:
    launches = []
    for shared_memory in (32 << 10, 16 << 10):
        with installed(run_kernels=False, shared_memory=shared_memory) as device:
            x, target = np.zeros((3, 5000), np.float32), np.zeros(3, np.int64)
            cupy_losses.cross_entropy(device.asarray(x), device.asarray(target))
            launches.append(device.launches)
    assert launches[0] != launches[1]


DECLARED = """
template <int BYTES>
__global__ void declared(unsigned char* to) {
  __shared__ unsigned char all[BYTES];
  all[BYTES - 1 - threadIdx.x] = 7;
  to[threadIdx.x] = all[BYTES - 1 - threadIdx.x];
}
"""


def test_more_shared_memory_than_a_kernel_may_declare() -> None:
    """But for a little that the linker may have added."""
    emulator.require()
    names = [f"declared<{(48 << 10) + more}>" for more in (0, 256)]
    most, too_much = (Module(DECLARED, [name]).get_function(name) for name in names)
    result = np.zeros(32, np.uint8)
    most((1,), (32,), [result])
    assert (result == 7).all()
    with pytest.raises(EmulatorError, match="bytes of shared memory, 0 of them dynamic"):
        too_much((1,), (32,), [result])


def test_more_shared_memory_than_the_device_has(device: Device) -> None:
    function = device.load(Job(SCALE, "scale<int>"))
    with pytest.raises(RuntimeError, match="bytes of shared memory"):
        device.launch(function, (1, 1, 1), (32, 1, 1), device.shared_memory + 1, 0, 0)


def test_arguments_of_the_package_are_checked(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "cupy_losses._device.element_launches.head_of_results"
    monkeypatch.setattr(wrong, lambda segments, divisor: bytes(24))
    x = device.asarray(np.ones(4, np.float32))
    with pytest.raises(EmulatorError, match="argument 4 has 72 bytes, not 64"):
        cupy_losses.mse_loss(x, x)


def test_each_thread_gets_a_context(device: Device) -> None:
    x = device.asarray(np.ones(4, np.float32))
    results = [float(cupy_losses.mse_loss(x, x))]
    thread = threading.Thread(target=lambda: results.append(float(cupy_losses.mse_loss(x, x))))
    thread.start()
    thread.join()
    assert results == [0.0, 0.0]


def test_a_new_thread_makes_a_plan_of_loaded_kernels(device: Device) -> None:
    x = device.asarray(np.ones(4, np.float32))
    results = [float(cupy_losses.mse_loss(x, x))]
    compiler._kernels.clear()
    engine._plans.clear()
    thread = threading.Thread(target=lambda: results.append(float(cupy_losses.mse_loss(x, x))))
    thread.start()
    thread.join()
    assert results == [0.0, 0.0]


def test_kernels_that_are_compiled_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One library has them; each launch counts once, and none is left out."""
    monkeypatch.setenv("CUPY_LOSSES_EMULATOR_CACHE", str(tmp_path))
    numbers, target = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, 3, 1])
    with installed() as device:
        x, classes = device.asarray(numbers), device.asarray(target)

        def passes(reduction: Any) -> list[Any]:
            each = cupy_losses.cross_entropy(x, classes, reduction="none")
            return [each, cupy_losses.cross_entropy(x, classes, reduction=reduction)]

        each, summed = device.together(passes, reduction="sum")
        assert len(device.launches) == len(device.jobs()) == 2
        libraries = [job.module().library.stat().st_ino for job in device.jobs()]
        assert len(set(libraries)) == 1
        np.testing.assert_allclose(float(summed), each.get().sum(), 1e-6)
        expected = cupy_losses.cross_entropy(numbers, target, reduction="none")
        np.testing.assert_allclose(each.get(), expected, 1e-6)


def test_kernels_that_threads_load_are_others() -> None:
    with installed(run_kernels=False) as device:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as threads:
                pointers = [*threads.map(device.load, [Job(SCALE, "scale<int>")] * 4000)]
        finally:
            sys.setswitchinterval(interval)
    assert len(set(pointers)) == len(pointers) == len(device.loaded)


def test_devices(device: Device) -> None:
    import cupy

    device.count = 2
    with cupy.cuda.Device(1):
        x = device.asarray(np.full(4, 3, np.float32))
    assert x.data.device_id == 1
    loss = cupy_losses.mse_loss(x, x)
    assert loss.data.device_id == 1
    assert float(loss) == 0.0
    assert cupy.cuda.runtime.getDevice() == 0


def test_dlpack(device: Device) -> None:
    class Foreign:
        def __init__(self, array: Any) -> None:
            self.__dlpack__ = array.__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    x = device.asarray(np.full(4, 3, np.float32))
    assert float(cupy_losses.mse_loss(Foreign(x), Foreign(x))) == 0.0


def test_kernels_can_be_collected_and_compiled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_LOSSES_EMULATOR_CACHE", str(tmp_path))
    with installed(run_kernels=False) as device:
        x = device.asarray(np.ones(4, np.float32))
        cupy_losses.mse_loss(x, x)
        cupy_losses.grad(cupy_losses.mse_loss)(x, x)
    jobs = device.jobs()
    assert len(jobs) == 2
    emulator.precompile(jobs, workers=1)
    modules = [job.module() for job in jobs]
    assert all(module.library.exists() for module in modules)
    for job, module in zip(jobs, modules, strict=True):
        assert module.get_function(job.name).parameters[-1].is_pointer

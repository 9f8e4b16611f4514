"""Operands whose memory orders differ, on the emulator: which kernel runs, and what it computes.

Every case runs the losses of one formula at all reductions, with and without gradients, against the
reference of the table. test_emulated.py has what does not depend on the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cupy_losses import mse_loss, value_and_grad
from cupy_losses._core.shapes import ArraySpec, broadcast_strides, coalesce, memory_order
from cupy_losses._device import element_launches, tiling
from cupy_losses._device.element_schedule import MAX_SEGMENTS
from cupy_losses._device.tiling import Tiling, tiling_of

from ..emulator import Device, installed
from ..tables.arrays import DTYPES, Host, ulps
from ..tables.losses import SIMPLE, Case
from ..tools import levels, static_checks
from ..tools.mutation_batteries import compare, compare_pass
from .test_emulated import PAIRS, Layout, exercise

pytestmark = pytest.mark.usefixtures("needs_emulator")

Order = tuple[int, ...]


def laid_out(host: Host, order: Order) -> Host:
    """A copy whose memory runs along these axes, slowest first."""
    back = np.argsort(order)
    return np.ascontiguousarray(host.transpose(order)).transpose(back)


@dataclass(frozen=True)
class Orders(Layout):
    """The axes of input and target, slowest first, each in turn the first operand."""

    orders: tuple[Order, Order]

    def arrays(
        self, device: Device, case: Case, shape: tuple[int, ...], dtypes: Sequence[Any]
    ) -> list[Any]:
        rng = np.random.default_rng(sum(shape))
        hosts = case.draw(rng, shape)
        if dtypes[1].kind in "iu":
            hosts[1] = rng.integers(-3, 3, shape)
        hosts = [host.astype(dtype) for host, dtype in zip(hosts, dtypes, strict=True)]
        hosts = [laid_out(host, order) for host, order in zip(hosts, self.orders, strict=True)]
        if self.name == "backwards":
            hosts = [hosts[0][::-1], hosts[1][..., ::-1]]
        if self.name == "sliced":  # along its own fastest axis, an odd number of elements apart
            hosts[1] = np.pad(hosts[1].T, ((0, 0), (0, 3)))[:, :-3].T
        shift = self.name == "misaligned"
        return [
            device.asarray(host, misalignment=shift * host.itemsize * k)
            for k, host in enumerate(hosts, 1)
        ]


def orders(name: str, shape: tuple[int, ...], first: Order, second: Order) -> Orders:
    return Orders(name, (shape,), (first, second))


MATRIX, CHANNELS_FIRST, CHANNELS_LAST = (0, 1), (0, 1, 2, 3), (0, 2, 3, 1)
PROBLEMS = [
    orders("transposed", (96, 136), MATRIX, (1, 0)),
    orders("odd", (65, 129), (1, 0), MATRIX),
    orders("misaligned", (40, 136), MATRIX, (1, 0)),
    orders("backwards", (40, 136), MATRIX, (1, 0)),
    orders("sliced", (40, 136), MATRIX, (1, 0)),
    orders("three channels last", (2, 3, 36, 31), CHANNELS_FIRST, CHANNELS_LAST),
    orders("three channels first", (2, 3, 36, 31), CHANNELS_LAST, CHANNELS_FIRST),
    orders("channels", (2, 96, 4, 7), CHANNELS_FIRST, CHANNELS_LAST),
    orders("odd channels", (1, 21, 20, 13), CHANNELS_LAST, CHANNELS_FIRST),
    orders("few channels", (2, 12, 13, 20), CHANNELS_LAST, CHANNELS_FIRST),
    orders("cycled", (7, 40, 44), (0, 1, 2), (2, 0, 1)),
    orders("swapped", (2, 40, 3, 44), (0, 1, 2, 3), (0, 3, 2, 1)),
    orders("five axes", (3, 2, 33, 3, 36), (1, 0, 2, 3, 4), (4, 0, 3, 1, 2)),
    orders("other orders", (36, 33, 2, 3), (2, 1, 3, 0), (0, 3, 2, 1)),
]


def kernels(device: Device) -> set[str]:
    """The files of the kernels that were launched."""
    return {launch.name.partition("<")[0] for launch in device.launches}


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        levels.case(pair, problem, default=(k + n) % 12 == 0, id=f"{pair}-{problem.name}")
        for (k, pair), (n, problem) in itertools.product(enumerate(PAIRS), enumerate(PROBLEMS))
    ],
)
def test_every_order(pair: str, problem: Orders) -> None:
    (shape,) = problem.shapes
    case = SIMPLE[1]
    with installed(seed=1, concurrent=3) as device:
        for result, reference, largest, limit in exercise(
            device, case, pair, problem, shape, weighted=False
        ):
            assert limit is not None
            assert ulps(result.get(), np.asarray(reference), largest) <= limit
        assert kernels(device) == {"tiled"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("case", SIMPLE, ids=str)
@pytest.mark.parametrize("seed", [0, 2])
def test_every_order_with_weights_and_masks(case: Case, problem: Orders, seed: int) -> None:
    (shape,) = problem.shapes
    with installed(seed=seed) as device:
        for result, reference, largest, limit in exercise(
            device, case, "float32", problem, shape, weighted=True
        ):
            assert limit is not None
            assert ulps(result.get(), np.asarray(reference), largest) <= limit
        assert "tiled" in kernels(device)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
@pytest.mark.parametrize("shape", [(4, 5, 40, 41), (41, 3, 2, 40), (40, 40, 5, 3)], ids=str)
def test_every_permutation(order: Order, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    hosts = [rng.standard_normal(shape).astype(np.float32) for _ in "ab"]
    hosts[1] = laid_out(hosts[1], order)
    with installed(seed=1) as device:
        compare(device, mse_loss, hosts)


# Weight and mask in all orders, and with axes of length 1.
EXTRA = [
    ("weight", (33, 80), (1, 0)),
    ("weight", (33, 80), (0, 1)),
    ("weight", (1, 80), (0, 1)),
    ("weight", (33, 1), (0, 1)),
    ("where", (33, 80), (1, 0)),
    ("where", (33, 80), (0, 1)),
    ("where", (1, 80), (0, 1)),
    ("where", (33, 1), (0, 1)),
]


@pytest.mark.parametrize(
    ("name", "shape", "order"), [levels.case(*e, default=k in (0, 6)) for k, e in enumerate(EXTRA)]
)
def test_weights_and_masks(name: str, shape: tuple[int, ...], order: Order) -> None:
    rng = np.random.default_rng(2)
    hosts = [rng.standard_normal((33, 80)).astype(np.float32) for _ in "ab"]
    hosts[1] = laid_out(hosts[1], (1, 0))
    extra = rng.random(shape).astype(np.float32) if name == "weight" else rng.random(shape) < 0.7
    options: dict[str, Any] = {name: laid_out(extra, order)}
    with installed(seed=1) as device:
        compare(device, mse_loss, hosts, **options)
        assert "tiled" in kernels(device)


def test_broadcast_operands() -> None:
    """One that is broadcast along one dimension of the tiles, among two of different orders."""
    rng = np.random.default_rng(3)
    input, target = (rng.standard_normal((2, 12, 20, 9)).astype(np.float32) for _ in "ab")
    with installed(seed=1) as device:
        for shape in ((12, 1, 1), (20, 9), (2, 1, 1, 9)):
            weight = rng.random(shape).astype(np.float32)
            compare(device, mse_loss, [input, laid_out(target, CHANNELS_LAST)], weight=weight)
        assert "tiled" in kernels(device)


@pytest.mark.exhaustive
def test_second_derivatives() -> None:
    rng = np.random.default_rng(4)
    hosts = [rng.standard_normal((33, 80)).astype(np.float32) for _ in "ab"]
    hosts[1] = laid_out(hosts[1], (1, 0))
    grad_output, *tangents = rng.standard_normal((3, 33, 80)).astype(np.float32)
    request = static_checks.SECOND
    with installed(seed=1) as device:
        compare_pass(device, mse_loss, hosts, request, [grad_output, *tangents], reduction="none")
        assert kernels(device) == {"tiled"}


def test_same_bits_whatever_the_grid_and_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_launches, "MAX_SEGMENTS", 7)  # several tiles each
    rng = np.random.default_rng(5)
    hosts = [rng.standard_normal((200, 300)).astype(np.float32) for _ in "ab"]
    hosts[1] = laid_out(hosts[1], (1, 0))
    bits = set()
    for multiprocessors, concurrent, seed in ((1, 1, 0), (1, 2, 1), (3, 3, 2), (132, 7, 4)):
        with installed(
            multiprocessors=multiprocessors, concurrent=concurrent, seed=seed, check=False
        ) as device:
            arrays = [device.asarray(host) for host in hosts]
            value, (gradient,) = value_and_grad(mse_loss, (0,))(*arrays)
            results = value, gradient, mse_loss(*arrays)
            assert results[0].get().tobytes() == results[2].get().tobytes()
            bits.add(tuple(result.get().tobytes() for result in results))
    assert len(bits) == 1


def test_more_than_2_to_the_32_elements() -> None:
    """The last segment alone, over sparse memory: its last tile has offsets beyond 32 bits."""
    shape = 2**17, 2**15 + 8
    with installed(
        multiprocessors=2048,
        blocks_per_multiprocessor=2,
        choose=lambda name, blocks: [blocks - 1],
        check=False,
    ) as device:
        input = device.sparse(shape, np.float16)
        target = device.sparse(shape[::-1], np.float16).T
        tiles = tiles_of(input.host_view, target.host_view, width=8)
        assert tiles is not None
        # The tile that the last segment has last, from its end backwards.
        last = (tiles.tiles // MAX_SEGMENTS) * MAX_SEGMENTS - 1
        row, column = divmod(last, -(-tiles.space.shape[1] // tiles.columns))
        place = (row + 1) * tiles.rows - 1, (column + 1) * tiles.columns - 1
        assert np.ravel_multi_index(place, shape) > 2**32 - 2**25
        input.host_view[place] = 5
        target.host_view[place] = 2
        _, gradients = value_and_grad(mse_loss, (0, 1))(input, target, reduction="sum")
        assert [gradient[place].item() for gradient in gradients] == [6.0, -6.0]
        assert kernels(device) == {"tiled"}


def tiles_of(*hosts: Host, width: int = 4) -> Tiling | None:
    """The tiles of operands that are aligned."""
    operands = [
        ArraySpec(
            host.dtype.name, host.shape, tuple(step // host.itemsize for step in host.strides)
        )
        for host in hosts
    ]
    shape = np.broadcast_shapes(*(host.shape for host in hosts))
    strides = [broadcast_strides(operand, shape) for operand in operands]
    space = coalesce(memory_order(shape, strides), shape, strides)
    return tiling_of(operands, [0] * len(operands), space, width)


def test_what_is_coalesced_is_not_tiled() -> None:
    """Dense, alike, sliced, backwards, broadcast; and tiles that would be too small."""
    base = np.zeros((64, 64, 64), np.float32)
    row, column = base[:1, :1], base[:, :1, :1]
    for pair in (
        (base, base),
        (base.T, base.T),
        (base, base[::-1, :, ::-1]),
        (base[..., 1:], base[..., :-1]),
        (base[..., ::2], base[:, :, :32]),
        (base, row),
        (base, column),
        (base, base.transpose(1, 0, 2)),  # other rows, each of them dense
        (row[0, 0], base[:, 0, 0]),
        (base[:, :3, :3], base[:, :3, :3].transpose(0, 2, 1)),
        (base[:, :2], base[:, :, :2].transpose(0, 2, 1)),
        (base[0, :9, :9], base[0, :9, :9].T),
    ):
        assert tiles_of(*pair) is None


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_tiles_read_whole_lines(dtype: str) -> None:
    """Of either order, if a dimension is long enough; and they fill the threads of a block."""
    for rows, columns in itertools.product((3, 21, 96, 100, 333, 16384), repeat=2):
        base = np.lib.stride_tricks.as_strided(np.zeros(1, DTYPES[dtype]), (rows, columns), (0, 0))
        size = base.itemsize
        orders = (columns * size, size), (size, rows * size)
        pair = [np.lib.stride_tricks.as_strided(base, base.shape, step) for step in orders]
        tiles = tiles_of(*pair, width=16 // size)
        if tiles is None:
            assert rows * columns < 2 * tiling.SMALLEST_TILE
            continue
        assert tiles.staged == (1,)
        for extent, length in ((tiles.rows, rows), (tiles.columns, columns)):
            assert extent == length or extent * size >= tiling.LINE_BYTES / 2
        present = rows * columns / (tiles.tiles * tiles.rows * tiles.columns)
        assert present >= 0.5 if rows * columns < 10**5 else present > 0.75

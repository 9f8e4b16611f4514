"""The kernels of losses over rows on the emulator, through the public functions.

Every case of the table on dense rows; a few on all the layouts and ways to divide a row among
threads, blocks and launches. Values and first derivatives are compared with the table's references,
second derivatives with the host backend, which has tests against torch of its own.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import (
    cross_entropy,
    hvp,
    jvp,
    triplet_margin_loss,
    value_and_grad,
)
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request, losses
from cupy_losses._core.rows import RowFormula
from cupy_losses._device import driver, row_schedule, row_team, row_tiling_schedule, sources
from cupy_losses._device.row_memory import RowMemory
from cupy_losses._device.row_team import RowTeam
from cupy_losses._libraries.cupy import CupyLibrary
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import resolve

from .. import emulator
from ..emulator import Device, EmulatorError, installed
from ..tables.arrays import DTYPES, ulps
from ..tables.rows import ROWS, SAMPLED, Operands, RowCase, losses_of_all_sizes, surprise
from ..tables.shapes import ODD, Shapes, of_shapes
from ..tools import levels
from ..tools.planting import plant
from ..tools.static_checks import parameters

pytestmark = pytest.mark.usefixtures("needs_emulator")

SHAPE = (37, 16)
CROSS_ENTROPY, SMOOTHED, PROBABILITIES, NLL, MULTILABEL, TRIPLET = (
    next(case for case in ROWS if str(case).startswith(start))
    for start in (
        "cross_entropy(weight, ignore_index=-100",
        "cross_entropy(weight, label_smoothing=0.3",
        "cross_entropy of probabilities(weight)",
        "nll_loss(weight, ignore",
        "multilabel_margin_loss",
        "triplet_margin_loss(p=2.0, swap=True",
    )
)
# One for each structure of what a row accumulates.
STRUCTURES = [
    CROSS_ENTROPY,
    SMOOTHED,
    PROBABILITIES,
    NLL,
    *(case for case in ROWS if str(case).startswith("multi_margin_loss(weight")),
    *(case for case in ROWS if str(case).startswith("cosine_embedding_loss(margin=0.25")),
    TRIPLET,
    *(case for case in ROWS if str(case).startswith("triplet_margin_loss(p=1.5")),
    *(case for case in ROWS if str(case).startswith("triplet_margin_loss(p=inf, swap=True")),
]

# Those that run by default where each takes long; what they accumulate, the others do in part.
FEW = [CROSS_ENTROPY, PROBABILITIES, STRUCTURES[4], STRUCTURES[5], TRIPLET]

# With masks and weights of rows: of classes, along axis 0 and with labels.
OF_CLASSES, ACROSS, OF_LABELS = SAMPLED[0], SAMPLED[2], SAMPLED[9]


def exhaustive(*axes: Iterable[Any]) -> list[Any]:
    """The product of several parameters, none of which runs by default."""
    return [
        levels.case(*values, default=False, id="-".join(map(str, values)))
        for values in itertools.product(*axes)
    ]


def on_device(device: Device, operands: Operands, layout: str = "dense") -> Operands:
    """Operands in device memory, those of elements in a layout."""
    shape = next(iter(operands.values())).shape
    arrays = {}
    for number, (name, x) in enumerate(operands.items()):
        misalignment = 0
        if x.shape == shape and name != "weight":
            if layout == "transposed" or (layout == "two orders" and number > 0):
                x = np.asfortranarray(x)
            elif layout == "sliced":
                x = np.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, 3),))[..., :-3]
            elif layout == "backwards":
                x = x[::-1, ..., ::-1]
            elif layout == "misaligned":
                misalignment = x.itemsize * (1 + number)
        arrays[name] = device.asarray(x, misalignment=misalignment)
    return arrays


def values_of(operands: Operands, layout: str) -> Operands:
    """What the arrays of `on_device` hold."""
    if layout != "backwards":
        return operands
    shape = next(iter(operands.values())).shape
    return {
        name: x[::-1, ..., ::-1] if x.shape == shape and name != "weight" else x
        for name, x in operands.items()
    }


def close(result: Any, expected: Any, tolerance: float) -> None:
    """Compare, in units of the largest element expected."""
    got, expected = result.get().astype(np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    unit = max(np.abs(expected).max(initial=0.0), 1e-3)
    assert np.abs(got - expected).max(initial=0.0) <= tolerance * unit


def passes(case: RowCase, arrays: Operands) -> tuple[Any, Any, Any]:
    """The loss of each row, the mean, and the mean with all gradients."""
    both = value_and_grad(case.loss, [case.positional.index(name) for name in case.differentiable])
    return case.call(arrays, reduction="none"), case.call(arrays), case.call(arrays, both)


def exercise(
    device: Device, case: RowCase, operands: Operands, layout: str = "dense", dtype: str = "float32"
) -> list[bytes]:
    """Check the values and the gradients of a case; their bits."""
    tolerance = {"float32": 2e-6, "float64": 1e-13, "bfloat16": 1.2e-2, "float16": 2e-3}[dtype]
    arrays, held = on_device(device, operands, layout), values_of(operands, layout)
    each, mean, (value, gradients) = device.together(passes, case, arrays)
    close(each, case.value(held), 4 * tolerance)
    assert value.get().tobytes() == mean.get().tobytes(), "the same bits with a gradient as without"
    close(mean, case.reduced(held, "mean"), 4 * tolerance)
    slopes, divisor = case.slopes(held), case.divisor(held, "mean")
    for name, gradient in zip(case.differentiable, gradients, strict=True):
        close(gradient, slopes[name] / divisor, 4 * tolerance)
    return [x.get().tobytes() for x in (each, mean, *gradients)]


def without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of any length be those of kernels/rows.cu."""
    monkeypatch.setattr(row_tiling_schedule, "row_tile", lambda *arguments, **options: None)


@pytest.mark.parametrize(
    "case",
    [levels.case(case, default=case in (*FEW, MULTILABEL, ACROSS), id=str(case)) for case in ROWS],
)
def test_every_loss(case: RowCase) -> None:
    operands = case.draw(np.random.default_rng(3), SHAPE, np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        first = exercise(device, case, operands)
    with installed(
        multiprocessors=1,
        blocks_per_multiprocessor=1,
        seed=2,
        compute_capability="80",
        cache_bytes=50 << 20,
    ) as device:
        assert exercise(device, case, operands) == first, "the same bits on any device"


@pytest.mark.parametrize("at_once", [256, 100])
def test_segments_in_one_group_and_in_several(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 150 segments, several by each thread, or in groups of 64, 64 and 22."""
    if at_once != row_schedule.MOST_AT_ONCE:
        number = f"MOST_AT_ONCE = {row_schedule.MOST_AT_ONCE};"
        plant(monkeypatch, "kernels/rows.cu", number, f"MOST_AT_ONCE = {at_once};")
        monkeypatch.setattr(row_schedule, "MOST_AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    x, target = rng.standard_normal((150, 2600)).astype(np.float32), rng.integers(0, 2600, 150)
    bits = set()
    for multiprocessors in (200, 3):
        with installed(multiprocessors=multiprocessors, seed=1) as device:
            value = cross_entropy(device.asarray(x), device.asarray(target)).get()
            assert max(launch.grid[0] for launch in device.launches) > 100 or multiprocessors == 3
            bits.add(value.tobytes())
        np.testing.assert_allclose(value, cross_entropy(x.astype(float), target), rtol=2e-7)
    assert len(bits) == 1


@pytest.mark.parametrize(
    "case",
    [levels.case(case, default=case in (CROSS_ENTROPY, TRIPLET), id=str(case)) for case in ROWS],
    ids=str,
)
def test_every_loss_whatever_the_size_of_shared_memory(case: RowCase) -> None:
    operands = case.draw(np.random.default_rng(3), SHAPE, np.float32)
    bits = []
    # Rows that lie side by side need as much as every device has.
    sizes = (96, 64) if case.axis(SHAPE) == 0 else (32, 24)
    for shared_memory in [size << 10 for size in sizes]:
        with installed(check=False, seed=1, shared_memory=shared_memory) as device:
            arrays = on_device(device, operands)
            numbers = [case.positional.index(name) for name in case.differentiable]
            value, gradients = case.call(arrays, value_and_grad(case.loss, numbers))
            each = case.call(arrays, reduction="none")
            bits.append([x.get().tobytes() for x in (each, value, *gradients)])
    assert bits[0] == bits[1]


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        *levels.covering(
            3,
            [CROSS_ENTROPY, PROBABILITIES, TRIPLET],
            ["transposed", "sliced", "backwards", "misaligned"],
        ),
        *exhaustive([OF_CLASSES, OF_LABELS], ["transposed", "sliced", "misaligned"]),
    ],
)
def test_layouts(case: RowCase, layout: str) -> None:
    operands = case.draw(np.random.default_rng(4), (21, 50), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, layout)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *levels.covering(2, [CROSS_ENTROPY, TRIPLET], ["float64", "bfloat16", "float16"]),
        *exhaustive([OF_CLASSES, ACROSS, OF_LABELS], ["float64", "bfloat16"]),
    ],
)
def test_dtypes(case: RowCase, dtype: str) -> None:
    operands = case.draw(np.random.default_rng(5), (9, 70), DTYPES[dtype])
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, dtype=dtype)


@pytest.mark.parametrize(
    ("case", "columns", "dtype"),
    [
        levels.case(CROSS_ENTROPY, 131, "float64", default=True),
        *exhaustive([CROSS_ENTROPY, TRIPLET], [11], ["float32", "bfloat16"]),
        levels.case(TRIPLET, 131, "float64", default=False),
    ],
)
def test_rows_that_begin_inside_vectors_of_two(
    case: RowCase, columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second element of the vector in which a row begins is its first one."""
    without_tiles(monkeypatch)
    operands = case.draw(np.random.default_rng(20), (5, columns), DTYPES[dtype])
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, dtype=dtype)
        assert any(team["width"] == 2 for team in teams(device))


@pytest.mark.parametrize(
    ("case", "dtype", "columns", "layout"),
    [
        levels.case(*values, default=values[0] is CROSS_ENTROPY and k % 5 == 0)
        for k, values in enumerate(
            itertools.product(
                [CROSS_ENTROPY, STRUCTURES[4]],
                ["float32", "bfloat16"],
                [223, 501, 1203, 2501],
                ["dense", "misaligned", "sliced"],
            )
        )
    ],
)
def test_the_last_slot_of_a_row_is_padded(
    case: RowCase, dtype: str, columns: int, layout: str
) -> None:
    """Rows of a part of a warp and of a whole one, in one batch and in several; of half precision
    those of one warp begin at odd places and at even ones."""
    operands = case.draw(np.random.default_rng(21), (9, columns), DTYPES.get(dtype, dtype))
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, layout, dtype)
        of_rows = [*teams(device), *teams(device, "TileTeam")]
        assert 1 < max(team["threads_per_row"] for team in of_rows) <= 32


@pytest.mark.quick
@pytest.mark.parametrize("columns", [8, 40, 1001])
def test_ignored_rows_beside_the_weights_of_elements(columns: int) -> None:
    """Their gradients are written without the weights, which no element of theirs was read with."""
    emulator.require()
    rng = np.random.default_rng(columns)
    input, weight = rng.standard_normal((7, columns), np.float32), rng.random(columns, np.float32)
    target = np.array([0, -100, 3, -100, 5, -100, -100])
    gradient_of = value_and_grad(functools.partial(cross_entropy, label_smoothing=0.1))
    expected = gradient_of(input, target, weight=weight)
    for tiled in (True, False):
        with pytest.MonkeyPatch.context() as patch, installed(seed=1) as device:
            if not tiled:
                patch.setattr(row_tiling_schedule, "row_tile", lambda *_, **__: None)
            found = gradient_of(
                *map(device.asarray, (input, target)), weight=device.asarray(weight)
            )
            np.testing.assert_allclose(found[0].get(), expected[0], rtol=1e-6)
            np.testing.assert_allclose(found[1].get(), expected[1], rtol=1e-5, atol=1e-8)


def test_losses_that_hide_elements_say_so() -> None:
    text = sources.source("kernels/rows.cu")
    rules = {"true": True, "false": False}
    for loss in losses().values():
        behind = isinstance(loss, RowFormula) and text.partition(f"struct {loss.struct} ")[2]
        if isinstance(loss, RowFormula) and behind:
            of_struct = behind.partition("\n};")[0]
            found = re.search(r"HIDES = (!?\w+);", of_struct)
            assert found or of_struct.startswith(": OfRow {"), loss.name
            rule = found[1] if found else "false"  # of OfRow
            hides = not loss.options[0] if rule == "!SMOOTHED" else rules[rule]
            assert loss.hides == hides, loss.name


@pytest.mark.parametrize(
    "shape",
    levels.first([(5,), (2, 70, 3, 5), (300, 2), (2, 1500), (1, 1), (4, 3, 2), (1, 4100)], 2),
)
def test_shapes(shape: tuple[int, ...]) -> None:
    operands = CROSS_ENTROPY.draw(np.random.default_rng(6), shape, np.float32)
    operands["target"] = np.maximum(operands["target"], 0)
    with installed(multiprocessors=3, seed=2) as device:
        exercise(device, CROSS_ENTROPY, operands)


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        *levels.covering(2, [CROSS_ENTROPY, SMOOTHED], ["dense", "sliced"]),
        *exhaustive([TRIPLET, OF_CLASSES, SAMPLED[13]], ["dense", "sliced"]),
    ],
)
def test_rows_divided_among_blocks(
    case: RowCase, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a cluster, by the alternative that needs none.

    Only kernels for more blocks than every architecture has are allowed that many.
    """
    without_tiles(monkeypatch)
    for rank_bytes in (1 << 10, 2 << 10):
        monkeypatch.setattr(row_team, "CACHE_BYTES", rank_bytes)
        operands = case.draw(np.random.default_rng(7), (5, 2000), np.float32)
        with installed(multiprocessors=3, seed=1) as device:
            exercise_few_columns(device, case, operands, layout)
            own = [name for name in names(device) if name.startswith("rows<")]
            of = {name: parameters(name, "Team") for name in own}
            clusters = {name: team["ranks"] for name, team in of.items() if team["cluster"]}
            assert clusters
            large = {name for name, ranks in clusters.items() if ranks > driver.PORTABLE_CLUSTER}
            assert large == device.in_large_clusters


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("case", "layout"),
    levels.covering(2, [*FEW, OF_CLASSES], ["dense", "transposed"]),
)
def test_rows_in_registers(case: RowCase, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than blocks have threads: several turns, of an odd and of an even number.

    Those that lie apart are the work of kernels/strided_rows.cu.
    """
    without_tiles(monkeypatch)
    monkeypatch.setattr(row_team, "THREADS_OF_HELD", 512)
    operands = case.draw(np.random.default_rng(9), (1100, 2), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise(device, case, operands, layout)
        if layout == "dense":
            assert any(team["rows_ahead"] for team in teams(device))
        else:
            assert any(team["ahead"] for team in teams(device, "StridedTeam"))


@pytest.mark.parametrize(
    ("name", "operands"), [levels.case(*odd, default=k % 4 == 3) for k, odd in enumerate(ODD)]
)
def test_odd_shapes(name: str, operands: Shapes) -> None:
    """As the host has them; on the CPU tests/torch compares with torch."""
    arrays = of_shapes(name, operands)
    loss = getattr(cupy_losses, name)
    wanted = [k for k, x in enumerate(arrays) if x.dtype.kind == "f"]
    if name == "cosine_embedding_loss":
        wanted.pop()
    value, gradients = value_and_grad(loss, wanted)(*arrays)
    with installed(multiprocessors=2) as device:
        given = [device.asarray(x) for x in arrays]
        close(loss(*given, reduction="none"), loss(*arrays, reduction="none"), 1e-13)
        got, slopes = value_and_grad(loss, wanted)(*given)
        close(got, value, 1e-13)
        for slope, expected in zip(slopes, gradients, strict=True):
            close(slope, expected, 1e-13)


@pytest.mark.quick
def test_stretches_of_a_warp_are_apart_where_they_would_wait() -> None:
    """Those of 223 halves are a multiple of 32 words apart, those of 333 are not."""

    def team(columns: int, size: int, step: int) -> RowTeam:
        memory = RowMemory(100, columns, size, (size,), 1, (step,), 0, precise=False, hides=True)
        return row_team.row_team(memory, False, 0)

    with installed():
        waiting, dense = team(223, 2, 223), team(333, 2, 333)
        strided, aligned = team(223, 2, 231), team(1000, 2, 1000)
    assert waiting.shifts
    assert waiting.apart in range(16, 128, 16)
    assert waiting.shared_bytes(16) - waiting.places * 16 == waiting.stretches * waiting.apart
    assert dense.shifts
    assert strided.shifts
    assert not aligned.shifts
    assert [team.apart for team in (dense, strided, aligned)] == [0, 0, 0]


@pytest.mark.quick
def test_threads_of_heavy_losses_have_more_registers() -> None:
    """With gradients those of one operand alone; rows of few vectors have enough."""

    def threads(columns: int, sizes: tuple[int, ...], gradients: bool, hides: bool) -> int:
        memory = RowMemory(
            1000, columns, sizes[0], sizes, 1, (columns,), 0, precise=True, hides=hides
        )
        team = row_team.row_team(memory, gradients, -90)
        vector_bytes = memory.width * memory.element_bytes
        return team.threads_of_multiprocessor(memory, vector_bytes, gradients)

    for columns in (1000, 1001, 50257):
        assert threads(columns, (4,), False, hides=False) == row_team.THREADS_OF_HEAVY
        assert threads(columns, (4, 4), False, hides=False) == row_team.THREADS_OF_HEAVY
        assert threads(columns, (4,), True, hides=False) == row_team.THREADS_OF_HEAVY
        assert threads(columns, (4,), False, hides=True) > row_team.THREADS_OF_HEAVY
    assert threads(128, (4,), False, hides=False) > row_team.THREADS_OF_HEAVY
    assert threads(50257, (4, 4), True, hides=False) > row_team.THREADS_OF_HEAVY
    assert threads(32000, (2,), False, hides=True) == row_team.THREADS_OF_HALVES
    assert threads(4096, (2,), False, hides=True) > row_team.THREADS_OF_HALVES


@pytest.mark.quick
def test_the_rows_of_a_warp_fit_into_the_memory_of_every_device() -> None:
    """So that a block has whole warps, also where its memory is the least that there is."""
    smallest = -min(driver.SHARED_MEMORY, key=lambda device: driver.SHARED_MEMORY[device])
    for size, arrays, columns in itertools.product((2, 4, 8), (1, 2, 3, 8), range(2, 6000, 13)):
        for precise, hides in itertools.product((False, True), (False, True)):
            sizes = (size,) * arrays
            memory = RowMemory(
                1000,
                columns,
                size,
                sizes,
                1,
                (columns,),
                0,
                precise=precise,
                hides=hides,
            )
            team = row_team.row_team(memory, True, smallest)
            assert team.threads % 32 == 0


@pytest.mark.quick
@pytest.mark.parametrize("rows", [1, 100, 100_000])
@pytest.mark.parametrize("sizes", [(2,), (4,), (4, 4, 4)])
def test_with_gradients_longer_rows_are_read_twice(sizes: tuple[int, ...], rows: int) -> None:
    """Longer than docs/how.md says: those that neither a block nor a cluster keeps."""
    longest = dict.fromkeys((70, 80, 86, 87, 89), 64) | {75: 56, 90: 1728, 100: 1728, 103: 1728}
    longest |= dict.fromkeys((110, 120, 121), 512)  # KiB
    assert longest.keys() == driver.SHARED_MEMORY.keys()

    def splits(architecture: int, kib: int, more: int = 0) -> int:
        columns = (kib << 10) // sum(sizes) // 8 * 8 + more  # whole vectors
        steps = (columns,)
        memory = RowMemory(rows, columns, sizes[0], sizes, 1, steps, 0, precise=False, hides=True)
        return row_team.row_team(memory, True, -architecture).splits

    for architecture, kib in longest.items():
        assert not splits(architecture, 48 if architecture == 75 else kib), architecture
        assert splits(architecture, kib, 8), architecture


def test_rows_of_no_elements() -> None:
    empty = np.zeros((5, 0), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [device.asarray(empty) for _ in range(3)]
        each = triplet_margin_loss(*arrays, reduction="none").get()
        value, gradient = value_and_grad(triplet_margin_loss)(*arrays)
        assert gradient.shape == (5, 0)
        value = value.get()
    np.testing.assert_array_equal(each, triplet_margin_loss(*3 * [empty], reduction="none"))
    np.testing.assert_array_equal(value, triplet_margin_loss(*3 * [empty]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "columns"), [(150, 520), (3000, 12), (40, 1100)])
def test_several_groups_of_a_block(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tiles(monkeypatch)
    monkeypatch.setattr(row_team, "WORKING_THREADS", 512)
    monkeypatch.setattr(row_team, "THREADS_OF_SEVERAL", 512)
    operands = CROSS_ENTROPY.draw(np.random.default_rng(10), (rows, columns), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise_few_columns(device, CROSS_ENTROPY, operands)
        of_rows = [launch for launch in device.launches if launch.name.startswith("rows<")]
        assert of_rows
        for launch in of_rows:
            team = parameters(launch.name, "Team")
            assert launch.grid[0] * (team["threads"] // team["threads_per_row"]) < rows


@pytest.mark.parametrize(
    "case", levels.first([SMOOTHED, CROSS_ENTROPY, TRIPLET, OF_CLASSES, SAMPLED[13]])
)
def test_rows_in_two_launches(case: RowCase, monkeypatch: pytest.MonkeyPatch) -> None:
    without_tiles(monkeypatch)
    monkeypatch.setattr(row_team, "CACHE_LIMIT", 1 << 10)
    monkeypatch.setattr(row_team, "SPLIT_VECTORS", 1)
    operands = case.draw(np.random.default_rng(8), (2, 9001), np.float32)
    with installed(multiprocessors=3, seed=1) as device:
        exercise_few_columns(device, case, operands)
        assert any("SPLIT" in name for name in names(device))
        assert any("MERGE" in name for name in names(device))


def names(device: Device) -> list[str]:
    """The kernels that were launched."""
    return [launch.name for launch in device.launches]


def of_more_rows(
    layout: Callable[..., tuple[str, bytes]],
) -> Callable[..., tuple[str, bytes]]:
    """RowGeometry.layout with the types of more rows and elements than 32 bits count."""

    def wide(*arguments: Any) -> tuple[str, bytes]:
        name, fields = layout(*arguments)
        narrow = "unsigned, int, unsigned>"
        assert name.endswith(narrow)
        return name.removesuffix(narrow) + "unsigned long long, int, long long>", fields

    return wide


def teams(device: Device, kind: str = "Team") -> list[dict[str, int]]:
    """Those of a kind that have run, of kernels/rows.cu and kernels/split_rows.cu most often."""
    return [parameters(name, kind) for name in names(device) if f" {kind}{{" in name]


def exercise_few_columns(
    device: Device, case: RowCase, operands: Operands, layout: str = "dense"
) -> None:
    """As `exercise`, with the gradient of a few columns of long rows."""
    arrays = on_device(device, operands, layout)
    each, mean, (value, gradients) = device.together(passes, case, arrays)
    close(each, case.value(operands), 8e-6)
    assert value.get().tobytes() == mean.get().tobytes()
    last = operands[case.positional[0]].shape[1] - 1
    columns = [*(column for column in (0, 1, 511, 512, 1023) if column < last), last]
    slopes, divisor = case.slopes(operands, columns), case.divisor(operands, "mean")
    for name, gradient in zip(case.differentiable, gradients, strict=True):
        expected = np.asarray(slopes[name] / divisor, np.float64)
        got = gradient.get()[:, columns].astype(np.float64)
        assert np.abs(got - expected).max() <= 8e-6 * max(np.abs(expected).max(), 1e-3)


@pytest.mark.parametrize(
    ("case", "reduction", "columns"),
    [
        levels.case(case, *other, default=case in FEW and (n + k) % 4 == 0, id=f"{case}-{n}-{k}")
        for n, case in enumerate([*STRUCTURES, *SAMPLED])
        for k, other in enumerate(itertools.product(["mean", "none"], [2, 11]))
    ],
)
def test_backward_and_double_backward(case: RowCase, reduction: str, columns: int) -> None:
    rng = np.random.default_rng(9)
    operands = case.draw(rng, (6, columns), np.float32)
    call, ordered = case.call(operands, prepare_of(case.loss), reduction=reduction)
    wanted = tuple(call.names.index(name) for name in case.differentiable)
    rows = case.rows_of((6, columns)) if reduction == "none" else ()
    scale = rng.standard_normal(rows).astype(np.float32)
    tangents = [rng.standard_normal((6, columns)).astype(np.float32) for _ in wanted]
    passes = [
        (Request(value=False, wanted=wanted, vjp=True), (scale,)),
        (Request(tangents=wanted), tangents),
        (
            Request(value=False, wanted=wanted, vjp=True, tangents=wanted),
            (scale, *tangents),
        ),
    ]
    with installed(multiprocessors=3, seed=1) as device:

        def results_of(request: Request, leading: Any) -> Any:
            arrays = [device.asarray(np.asarray(x)) for x in (*leading, *ordered)]
            backend, own = resolve(call, arrays[len(leading) :])
            return backend.run(call, request, [*arrays[: len(leading)], *own])

        every = device.together(lambda: [results_of(*each) for each in passes])
    for (request, leading), results in zip(passes, every, strict=True):
        expected = on_host(call, request, [*leading, *ordered])
        for result, value in zip(results, expected, strict=True):
            assert result is not None
            assert value is not None
            close(result, value, 2e-5)


def test_double_backward_of_rows_that_end_inside_a_batch() -> None:
    """What is absent has no tangent: -inf times 0 would be NaN."""
    rng = np.random.default_rng(21)
    x, tangent = rng.standard_normal((2, 2, 1500)).astype(np.float32)
    call, ordered = prepare_of(cross_entropy)(x, np.array([1, 1499]))
    request = Request(tangents=(0,))
    (expected,) = on_host(call, request, [tangent, *ordered])
    with installed(check=False, seed=1) as device:
        arrays = [device.asarray(np.asarray(a)) for a in (tangent, *ordered)]
        backend, own = resolve(call, arrays[1:])
        (result,) = backend.run(call, request, [arrays[0], *own])
    assert expected is not None
    close(result, expected, 2e-5)


@pytest.mark.parametrize("layout", levels.first(["dense", "transposed"]))
def test_launches_of_masks_and_weights(layout: str) -> None:
    """One, and one that sums what gradients of a mean are divided by; nothing is as large."""
    operands = OF_CLASSES.draw(np.random.default_rng(11), SHAPE, np.float32)
    both = value_and_grad(cross_entropy)
    with installed(multiprocessors=3, seed=1) as device:
        arrays = on_device(device, operands, layout)
        for function, options, launches in (
            (None, {"reduction": "none"}, 1),
            (None, {}, 1),
            (both, {"reduction": "sum"}, 1),
            (both, {}, 2),
        ):
            before = len(device.launches)
            OF_CLASSES.call(arrays, function, **options)
            assert len(device.launches) - before == launches


@pytest.mark.quick
def test_rows_of_no_use() -> None:
    """An index out of range gives NaN to its row alone; an ignored row gives nothing."""
    x = np.random.default_rng(10).standard_normal((5, 9)).astype(np.float32)
    target = np.array([3, 9, -1, -100, 8])
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x), device.asarray(target)
        each = cross_entropy(*arrays, reduction="none").get()
        assert np.isnan(each[[1, 2]]).all()
        assert each[3] == 0
        assert np.isfinite(each[[0, 4]]).all()
        value, gradient = value_and_grad(cross_entropy)(*arrays)
        for nan, slope in ((value.get(), gradient.get()), value_and_grad(cross_entropy)(x, target)):
            assert np.isnan(nan)
            assert np.isnan(slope[[1, 2]]).all()
            assert not slope[3].any()
            assert np.isfinite(slope[[0, 4]]).all()
        nothing = device.asarray(np.full(5, -100))
        value, gradient = value_and_grad(cross_entropy)(arrays[0], nothing)
        assert np.isnan(value.get())
        assert not gradient.get().any()


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        levels.case(33, 3000, default=True),
        *(levels.case(*s, default=False) for s in ((600, 2), (33, 40))),
    ],
)
def test_the_gradient_takes_the_memory_of_the_input(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "largest_cluster", lambda device: 1)
    monkeypatch.setattr(row_team, "CACHE_BYTES", 4 << 10)
    x = np.random.default_rng(11).standard_normal((rows, columns)).astype(np.float32)
    target = np.arange(rows) % columns
    expected = value_and_grad(cross_entropy)(x, target)
    with installed(multiprocessors=3, seed=1) as device:
        logits = device.asarray(x, writable=True)
        both = value_and_grad(functools.partial(cross_entropy, overwrite_input=True))
        value, gradient = both(logits, device.asarray(target))
        assert gradient is logits
        np.testing.assert_allclose(value.get(), expected[0], rtol=1e-6)
        np.testing.assert_allclose(logits.get(), expected[1], rtol=1e-5, atol=1e-9)
        assert any("MERGE" in name for name in names(device)) == (columns == 3000)


@pytest.mark.parametrize(
    ("columns", "divided", "scale"),
    levels.covering(6, [2, 3, 5, 10, 33, 130], ["", "ranks", "launches", "apart"], [1, 8, 30, 1e4]),
)
def test_every_loss_is_exact(
    columns: int, divided: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In units of the last place of itself, however small beside the logits."""
    if divided in ("ranks", "launches"):
        without_tiles(monkeypatch)
    if divided == "ranks":
        monkeypatch.setattr(row_team, "CACHE_BYTES", 1 << 8)
    if divided == "launches":
        monkeypatch.setattr(row_team, "CACHE_LIMIT", 1)
        monkeypatch.setattr(row_team, "SPLIT_BLOCK", 64)
        monkeypatch.setattr(row_team, "SPLIT_VECTORS", 1)
    rows = 12 if divided in ("ranks", "launches") else 1500 // columns
    x, target, exact = losses_of_all_sizes(np.random.default_rng(16), rows, columns, scale)
    one_hot = np.eye(columns, dtype=np.float32)[target]
    mixed = np.random.default_rng(17).random(x.shape, np.float32)
    of_mixed = cross_entropy(x.astype(np.float64), mixed.astype(np.float64), reduction="none")
    with installed(multiprocessors=3, seed=1) as device:
        for y, expected, bound in (target, exact, 2), (one_hot, exact, 4), (mixed, of_mixed, 4):
            arrays = [device.asarray(a) for a in (x, y)]
            if divided == "apart":
                arrays = [device.asarray(np.asfortranarray(a).T).transpose() for a in (x, y)]
            losses = cross_entropy(*arrays, reduction="none")
            assert ulps(losses.get(), expected) <= bound
        if divided == "apart":
            assert any("strided_rows<" in name for name in names(device))
        if divided == "launches":
            assert any("SPLIT" in name for name in names(device)) == (columns > 2)
        if divided == "ranks":
            assert any(team["ranks"] > 1 for team in teams(device)) == (columns >= 33)
    assert ulps(cross_entropy(x, target, reduction="none"), exact) <= 1  # on the host
    assert ulps(cross_entropy(x, one_hot, reduction="none"), exact) <= 1


@pytest.mark.parametrize("columns", [5, 21, 223, 1001])
def test_float32_losses_of_half_precision(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As autocast has them: a relative error of 2^-16, however small they are beside the logits."""
    monkeypatch.setattr(CupyLibrary, "autocast", lambda library: True)
    rng = np.random.default_rng(20)
    for scale in 1, 8, 30, 1e4:
        x, target, _ = losses_of_all_sizes(rng, 6000 // columns, columns, scale)
        half = x.astype(DTYPES["bfloat16"])
        exact = surprise(half.astype(np.longdouble), target)
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(half), device.asarray(target)
            losses = cross_entropy(*arrays, reduction="none").get()
        assert losses.dtype == np.float32
        expected = np.where(exact < 2.0**-126, 0, exact).astype(np.float64)
        np.testing.assert_allclose(losses, expected, rtol=2.0**-16, atol=2.0**-125)


@pytest.mark.parametrize("columns", [3, 21, 223, 1001])
@pytest.mark.parametrize("apart", levels.first([False, True]))
def test_float32_losses_of_half_precision_with_smoothing(
    columns: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits are added as they are: however large they are beside their distances."""
    monkeypatch.setattr(CupyLibrary, "autocast", lambda library: True)
    rng = np.random.default_rng(21)
    rows = 3000 // columns
    target = rng.integers(0, columns, rows)
    for scale, offset, smoothing in (1, 0, 0.1), (30, 0, 1e-3), (1, 1e3, 1.0), (0, 1e4, 0.1):
        x = rng.standard_normal((rows, columns)) * scale + offset
        x[::3, 0] = -1e3
        half = x.astype(DTYPES["bfloat16"])
        loss = functools.partial(cross_entropy, label_smoothing=smoothing, reduction="none")
        with installed(multiprocessors=3, seed=1) as device:
            array = device.asarray(np.asfortranarray(half).T).transpose() if apart else None
            losses = loss(array if apart else device.asarray(half), device.asarray(target)).get()
        assert losses.dtype == np.float32
        expected = loss(half.astype(np.float64), target)
        np.testing.assert_allclose(losses, expected, rtol=2.0**-16)


def test_logits_whose_sum_is_too_large_for_smoothing() -> None:
    """In bfloat16, where a row adds up to more than float32 holds."""
    target = np.zeros(4, np.int64)
    for columns, expected in (16, np.log(16)), (64, -np.inf):
        x = np.full((4, columns), 1e37).astype(DTYPES["bfloat16"])
        with installed(multiprocessors=3, seed=1) as device:
            loss = cross_entropy(device.asarray(x), device.asarray(target), label_smoothing=0.1)
        np.testing.assert_allclose(loss.get().astype(np.float64), expected, rtol=2.0**-8)


SPECIAL = [-np.inf, np.inf, np.nan, 1.0, 2.0, -3e38, 3e38]


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 40])
def test_special_logits(columns: int) -> None:
    """Losses and gradients are infinite, NaN and 0 where torch's are."""
    rng = np.random.default_rng(18)
    for drawn in SPECIAL, SPECIAL[:1] + SPECIAL[3:]:
        x = rng.choice(drawn, (300, columns))
        x = np.concatenate([x, np.full((2, columns), -np.inf)]).astype(np.float32)
        x[-1, 0] = 1
        target = rng.integers(0, columns, len(x))
        wanted = torch.tensor(x, requires_grad=True)
        expected = F.cross_entropy(wanted, torch.tensor(target), reduction="none")
        expected.sum().backward()
        with installed(multiprocessors=3, seed=1) as device:
            arrays = device.asarray(x), device.asarray(target)
            each = cross_entropy(*arrays, reduction="none")
            _, gradient = value_and_grad(cross_entropy)(*arrays, reduction="sum")
        np.testing.assert_allclose(each.get(), expected.detach().numpy(), rtol=1e-5)
        assert wanted.grad is not None
        np.testing.assert_allclose(gradient.get(), wanted.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_infinite_logits() -> None:
    """As torch has them: NaN where +inf is among them, and no more than that."""
    x = np.random.default_rng(12).standard_normal((4, 6)).astype(np.float32)
    x[0, 2], x[1, 3], x[2, :] = -np.inf, np.inf, -np.inf
    x[3, :] = np.finfo(np.float32).min
    target = np.array([1, 1, 0, 5])
    with installed(multiprocessors=3, seed=1) as device:
        each = cross_entropy(device.asarray(x), device.asarray(target), reduction="none").get()
        assert np.isnan(each[[1, 2]]).all()
        rest = np.delete(x[0], 2).astype(np.float64)
        np.testing.assert_allclose(each[0], np.log(np.exp(rest).sum()) - x[0, 1], rtol=1e-6)
        np.testing.assert_allclose(each[3], np.log(6), rtol=1e-6)


@pytest.mark.parametrize(("value", "ties"), [(7, 3), (13, 5), (11, 6), (15, 7)])
def test_ties_of_the_infinite_norm_share_the_gradient(value: int, ties: int) -> None:
    anchor, negative = np.zeros((2, 1, 12), np.float32)
    anchor[0, :ties] = negative[0, :ties] = value
    negative[0, 11] = 0.5
    loss = functools.partial(triplet_margin_loss, p=np.inf, eps=0.0)
    with installed(multiprocessors=3, seed=1) as device:
        operands = [device.asarray(x) for x in (anchor, np.zeros_like(anchor), negative)]
        result, gradient = value_and_grad(loss)(*operands)
    assert float(result.get()) == value + 0.5
    np.testing.assert_allclose(gradient.get()[0, :ties], 1 / ties, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_differences_of_0_have_no_slope_along_a_tangent(dtype: str) -> None:
    """Of a norm with p below 1, as in the gradient: infinity times 0 would be NaN."""
    drawn = np.random.default_rng(20).standard_normal((4, 3, 5)).astype(dtype)
    anchor, positive, negative, tangent = drawn
    positive[1, 2], negative[2, 0] = anchor[1, 2], anchor[2, 0]
    of = functools.partial(triplet_margin_loss, p=0.5, eps=0.0, margin=100.0)
    operands, along = (anchor, positive, negative), (tangent, None, None)
    expected = jvp(of, operands, along, reduction="none")[1], hvp(of, operands, along)
    with installed(multiprocessors=3, seed=1) as device:
        arrays = tuple(map(device.asarray, operands))
        tangents = device.asarray(tangent), None, None
        found = device.together(
            lambda: (jvp(of, arrays, tangents, reduction="none")[1], hvp(of, arrays, tangents))
        )
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.get(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [11, 64, 70])
def test_derivatives_of_probabilities_that_are_0(columns: int) -> None:
    rng = np.random.default_rng(12)
    x = (3 * rng.standard_normal((4, columns))).astype(np.float32)
    one_hot = np.eye(columns, dtype=np.float32)[[1, 5, 2, 0]]
    tangents = rng.standard_normal((2, 4, columns)).astype(np.float32)
    call, _ = prepare_of(cross_entropy)(x, one_hot)
    request = Request(tangents=(0, 1))
    (expected,) = on_host(call, request, [*tangents, x, one_hot])
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [device.asarray(a) for a in (*tangents, x, one_hot)]
        backend, own = resolve(call, arrays[2:])
        (result,) = backend.run(call, request, [*arrays[:2], *own])
    assert result is not None
    assert expected is not None
    np.testing.assert_allclose(result.get(), expected, rtol=1e-5)


@pytest.mark.parametrize("columns", [63, 64, 65, 256])
def test_a_thread_without_any_finite_logit(columns: int) -> None:
    """Where the target's is not finite either; the other threads' are."""
    x = np.random.default_rng(13).standard_normal((3, columns)).astype(np.float32)
    x[1, np.arange(columns) // 4 % 4 == 0] = -np.inf
    target = np.array([1, 0, 2])
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x), device.asarray(target)
        each = cross_entropy(*arrays, reduction="none").get()
        _, gradient = value_and_grad(cross_entropy)(*arrays, reduction="sum")
    assert np.isinf(each[1])
    exact = surprise(x[[0, 2]].astype(np.longdouble), target[[0, 2]])
    np.testing.assert_allclose(each[[0, 2]], exact.astype(np.float64), rtol=1e-6)
    powers = np.exp(x.astype(np.float64))
    expected = powers / powers.sum(axis=1, keepdims=True)
    expected[np.arange(3), target] -= 1
    np.testing.assert_allclose(gradient.get(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.quick
def test_logits_where_neighbours_are_far_apart() -> None:
    x = np.array([[2**28, 2**28 - 16, 0], [2**30, 2**30, 0], [-(2**29), -(2**29), -3e38]])
    expected = [np.log1p(np.exp(-16.0)), np.log(2), np.log(2)]
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x.astype(np.float32)), device.asarray(np.zeros(3, np.int64))
        each = cross_entropy(*arrays, reduction="none").get()
    np.testing.assert_allclose(each, expected, rtol=1e-5)


@pytest.mark.parametrize("misalignment", [0, 4, 16])
def test_rows_of_two_dtypes_that_begin_anywhere(misalignment: int) -> None:
    rng = np.random.default_rng(14)
    x = rng.standard_normal((5, 50)).astype(np.float32)
    target = rng.dirichlet(np.ones(50), 5).astype(np.float16)
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x, misalignment=misalignment), device.asarray(target)
        result = cross_entropy(*arrays, reduction="none").get()
    np.testing.assert_allclose(result, cross_entropy(x, target, reduction="none"), rtol=1e-5)


@pytest.mark.parametrize("columns", levels.first([5600, 5249]))
@pytest.mark.parametrize("smoothing", levels.first([0.0, 0.1]))
def test_a_rest_of_three_slots(
    columns: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind batches of four; the row ends inside that of the last warp."""
    monkeypatch.setattr(row_team, "BATCH_BYTES", 64)
    x = np.random.default_rng(15).standard_normal((3, columns)).astype(np.float32)
    target = np.array([0, columns - 1, 4999])
    loss = functools.partial(cross_entropy, label_smoothing=smoothing, reduction="none")
    slope = value_and_grad(functools.partial(cross_entropy, label_smoothing=smoothing))
    with installed(multiprocessors=3, seed=1) as device:
        arrays = device.asarray(x), device.asarray(target)
        each, gradient = loss(*arrays).get(), slope(*arrays)[1].get()
        assert {(team["batch"], team["slots"]) for team in teams(device)} == {(4, 11)}
    np.testing.assert_allclose(each, loss(x, target), rtol=1e-6)
    np.testing.assert_allclose(gradient, slope(x, target)[1], rtol=1e-5, atol=1e-9)


def check_last_rows(device: Device, rows: int, columns: int) -> None:
    """The last two of many rows, over sparse memory: their losses and gradients."""
    last = np.array([rows - 1, rows - 2])
    input = device.sparse((rows, columns), np.float16)
    target = np.zeros(rows, np.int64)
    x = (3 * np.random.default_rng(19).standard_normal((2, columns))).astype(np.float16)
    input.host_view[last], target[last] = x, (1, columns - 1)
    classes = device.asarray(target)
    each = cross_entropy(input, classes, reduction="none")
    gradient = value_and_grad(cross_entropy)(input, classes, reduction="sum")[1]
    expected = cross_entropy(x, target[last], reduction="none")
    slopes = value_and_grad(cross_entropy)(x, target[last], reduction="sum")[1]
    np.testing.assert_allclose(each.host_view[last], expected, rtol=2e-3)
    np.testing.assert_allclose(gradient.host_view[last], slopes, rtol=2e-3, atol=1e-6)


def check_rows_beyond_32_bits() -> None:
    """The blocks of a batch of 2^32 elements that have the last rows."""
    rows = (1 << 19) + 3
    last = np.array([rows - 1, rows - 2])
    with installed(seed=1, choose=lambda name, blocks: sorted(set(last % blocks))) as device:
        check_last_rows(device, rows, 8192)
        assert all(rows > launch.grid[0] >= 1024 for launch in device.launches)


def test_rows_of_more_than_2_to_the_32_elements() -> None:
    check_rows_beyond_32_bits()


@pytest.mark.parametrize("integer", ["int", "unsigned"])
def test_an_offset_cut_to_32_bits_is_found(integer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = "get<K>(pointers) + at.offset[K] +"
    wrong = right.replace("at.offset[K]", f"{integer}(at.offset[K])")
    plant(monkeypatch, "kernels/rows.cu", right, wrong)
    with pytest.raises((AssertionError, EmulatorError)):
        check_rows_beyond_32_bits()

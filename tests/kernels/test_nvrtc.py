"""Every kernel compiles with NVRTC for every architecture, without a GPU."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from cupy_losses import multiclass
from cupy_losses._core.loss import FORWARD, Call, Request, losses
from cupy_losses._core.rows import CLASS_WEIGHTS, ELEMENTS
from cupy_losses._core.shapes import ArraySpec
from cupy_losses._device import compiler, driver, sources
from cupy_losses._device.cpp import template, tuned
from cupy_losses._device.precompile import NO_ARRAYS
from cupy_losses._device.problem import Problem
from cupy_losses._device.row_team import STATIC_BYTES
from cupy_losses._kinds.rows import RowLoss

from ..tools import levels, requirements, static_checks

nvrtc = requirements.nvrtc()

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
SHORT = ("float", "__nv_bfloat16")
LOSSES = tuple(static_checks.POINTWISE.values())


def compile_for(architecture: int, names: list[str]) -> None:
    """Compile the kernels `names`; raises with the compiler's log."""
    file_of = static_checks.file_of
    for file, own in itertools.groupby(sorted(names, key=file_of), file_of):
        compile_file(architecture, file, list(own))


def compile_file(architecture: int, file: str, names: list[str]) -> None:
    """The same of kernels of one file."""
    program = nvrtc.createProgram(sources.source(file), file, (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        options = requirements.nvrtc_options(architecture)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        for name in names:
            assert nvrtc.getLoweredName(program, name)
        assert len(nvrtc.getCUBIN(program)) > 1000
    finally:
        nvrtc.destroyProgram(program)


def tile(width: int) -> str:
    """A tile of vectors so wide, one of a thread at a time."""
    return tuned("Tile", threads=512, vectors_per_thread=4, width=width, batch=1)


def sum_team(width: int) -> str:
    """A team of neighbouring sums."""
    return tuned("SumTeam", threads=256, width=width, batch=2, beside=True, along=0, plain=8)


def rectangle(width: int, flat: bool) -> str:
    """A tile of operands whose orders differ."""
    return tuned(
        "Rectangle",
        threads=256,
        rows=64,
        columns=24,
        width=width,
        batch=2,
        flat=flat,
        resident=2,
    )


def threads_of_a_row(name: str) -> int:
    """Those of a kernel of kernels/rows.cu."""
    return static_checks.parameters(name, "Team")["threads_per_row"]


def specialisations() -> list[str]:
    """A name for every kernel, loss, combinator and kind of layout."""
    names = []
    for loss, dtype in itertools.product(LOSSES, SHORT):
        k, expression = len(loss.operands), template(loss.struct, "float", *loss.options)
        read, written = (", ".join(k * [f"{const}{dtype}*"]) for const in ("const ", ""))
        width, every = 4 if dtype == "float" else 8, (1 << k) - 1
        for layout in (f"Layout<1, {k}, {every}u, unsigned>", f"Layout<3, {k}, 0u, unsigned>"):
            names.append(
                f"pointwise<float, {expression}, {layout}, {tile(width)}, "
                f"SUM_OF_VALUES, {every}u, {dtype}, {read}, {written}>"
            )
        # grad_output, tangents, mask, weight, operands.
        second = f"Masked<Vjp<Jvp<Weighted<{expression}, true>, {every << 1}u>>, {k + 1}>"
        all_operands = 2 * k + 3
        names.append(
            f"pointwise<float, {second}, Layout<2, {all_operands}, 7u, unsigned long long>, "
            f"{tile(4)}, NO_VALUES, {every << (k + 3)}u, float, "
            f"{', '.join(all_operands * ['const float*'])}, {', '.join(k * ['float*'])}>"
        )
        names.append(
            f"broadcast_sum<float, Vjp<{expression}>, Layout<2, {k + 1}, 0u, unsigned>, "
            f"{sum_team(width)}, 1, false, double, const float*, {read}>"
        )
    for width, dtype, flat in (
        (4, "float", False),
        (8, "__nv_bfloat16", True),
        (1, "double", False),
    ):
        real = "double" if dtype == "double" else "float"
        names.append(
            f"tiled<{real}, SquaredError<{real}>, TileLayout<3, 2, 2u, 3u, unsigned, int>, "
            f"{rectangle(width, flat)}, SUM_OF_VALUES, 3u, "
            f"{dtype}, {', '.join(2 * [f'const {dtype}*'] + 2 * [f'{dtype}*'])}>"
        )
    names.append("scale<float, __half, float, 512, 8>")
    names.append(
        "pointwise<double, Weighted<Huber<double>, false>, Layout<1, 3, 7u, unsigned>, "
        f"{tile(2)}, MEAN_OF_VALUES, 0u, double, const double*, const double*, "
        "const double*>"
    )
    return names


# All for one architecture, a fifth for each of the others; every fifth is a kernel of each loss.
PARTS = [(90, part) for part in range(5)] + [(a, a % 5) for a in ARCHITECTURES if a != 90]


@pytest.mark.parametrize(
    ("architecture", "part"), [levels.case(*each, default=each == PARTS[0]) for each in PARTS]
)
def test_all_kernels_compile(architecture: int, part: int) -> None:
    compile_for(architecture, specialisations()[part::5])


# Lanes of a warp; a block; the blocks of a cluster, rows that begin inside a vector; two launches;
# tiles of rows of one thread each, and of several.
ROW_SHAPES = [
    (4096, 16),
    (1024, 4096),
    (300, 100_001),
    (3, 1_000_000),
    (100_000, 21),
    (10_000, 333),
]
ROW_LOSSES = [
    loss for loss in losses().values() if isinstance(loss, RowLoss) and not loss.overwrites
]


def row_operand(loss: RowLoss, name: str, shape: tuple[int, int], dtype: str) -> ArraySpec:
    """An operand of a loss over rows of that shape."""
    role = loss.role(name)
    if role == CLASS_WEIGHTS:
        return static_checks.dense(dtype, shape[1])
    if role.of_elements:
        return static_checks.dense("int64" if role.is_index else dtype, *shape)
    of_rows = "int32" if role.is_index else "bool" if name == "where" else dtype
    return static_checks.dense(of_rows, shape[0])


@contextlib.contextmanager
def planned(shared_memory: int = 227 << 10) -> Iterator[dict[str, int]]:
    """Kernels over rows that are planned meanwhile, and the shared memory that they ask for."""
    names: dict[str, int] = {}
    clusters = 16 if shared_memory == 227 << 10 else 1

    def kernels(wanted: Sequence[compiler.Specialisation]) -> list[compiler.Kernel]:
        names.update((one.name, one.shared) for one in wanted if one.file in ROW_KERNELS)
        return [compiler.Kernel(None, 0, 1)] * len(wanted)

    with (
        mock.patch.object(compiler, "kernels", kernels),
        mock.patch.object(driver, "shared_memory", return_value=shared_memory),
        mock.patch.object(driver, "largest_cluster", return_value=clusters),
        mock.patch.object(driver, "cache_bytes", return_value=50 << 20),
    ):
        yield names


ROW_KERNELS = tuple(
    f"kernels/{name}.cu"
    for name in (
        "rows",
        "split_rows",
        "row_tiles",
        "gathered_rows",
        "strided_rows",
        "strided_tiles",
        "multilabel_margin",
        "denominators",
    )
)


def row_specialisations(
    shapes: Sequence[tuple[int, int]] = ROW_SHAPES, sampled: bool = False
) -> list[str]:
    """What the planner asks for: every loss over rows, every way to divide a row."""
    with planned() as names:
        for number, loss in enumerate(ROW_LOSSES):
            dtype = ("float32", "bfloat16", "float64")[number % 3]
            shape = shapes[number % len(shapes)]
            parameters = (1.0,) * len(loss.parameters)
            call = Call(
                loss,
                "mean",
                parameters,
                weighted=loss.weights,
                masked=sampled,
                row_weighted=sampled,
            )
            own = tuple(row_operand(loss, name, shape, dtype) for name in call.names)
            elements = [k for k, n in enumerate(call.names) if loss.role(n) == ELEMENTS]
            wanted = tuple(elements)
            vectors = [own[k] for k in elements]
            grad_output = static_checks.dense(dtype)
            second = Request(value=False, wanted=wanted, vjp=True, tangents=wanted)
            for request, leading in (
                (FORWARD, ()),
                (Request(wanted=wanted), ()),
                (second, (grad_output, *vectors)),
            ):
                operands = (*leading, *own)
                misaligned = (0,) * len(operands)
                problem = Problem(call, request, operands, misaligned, shape, False, device=0)
                loss.plan(NO_ARRAYS, problem)
        return list(names)


@pytest.mark.parametrize("architecture", [levels.case(a, default=a == 90) for a in ARCHITECTURES])
def test_row_kernels_compile(architecture: int) -> None:
    names = row_specialisations()
    some = names[::8] if architecture == 90 else names[architecture % 29 :: 29]
    assert some
    compile_for(architecture, some)


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", levels.first([90, *ARCHITECTURES[:1]]))
def test_row_kernels_with_masks_and_weights_compile(architecture: int) -> None:
    names = row_specialisations(sampled=True)
    some = [name for name in names if "Sampled<" in name][:: 12 if architecture == 90 else 29]
    assert some
    compile_for(architecture, some)


# Those that speed depends on most, and that would not be as fast with a register more.
FAST_SHAPES = [
    ("float32", (10_000_000, 2)),
    ("float32", (1 << 20, 256)),
    ("float32", (32768, 4096)),
    ("float32", (2048, 131_072)),
    ("bfloat16", (1 << 20, 256)),
    ("bfloat16", (2048, 131_072)),
    ("float32", (1 << 18, 333)),
    ("bfloat16", (1 << 22, 21)),
]


WAIT = "if constexpr (NEIGHBOURS > 1) __syncwarp();"
PARTIAL_WAIT = "__syncwarp(((1u << NEIGHBOURS) - 1) << threadIdx.x % 32 / NEIGHBOURS * NEIGHBOURS);"


def test_threads_of_a_warp_wait_for_all_of_it() -> None:
    """In rows of 4, 8 and 16 threads, also where they begin anywhere."""
    static_checks.require_disassembler()
    loss = multiclass._CROSS_ENTROPY[False, False, False]
    call = Call(loss, "mean", (-100, 0.0, 0.0))
    shapes = [(1 << 20, columns) for columns in (32, 256, 333, 512)]
    with planned() as names:
        for shape, asked in itertools.product(shapes, (FORWARD, Request(wanted=(0,)))):
            operands = (
                static_checks.dense("float32", *shape),
                static_checks.dense("int64", shape[0]),
            )
            problem = Problem(call, asked, operands, (0, 0), shape, False, device=0)
            loss.plan(NO_ARRAYS, problem)
    rows = [name for name in names if "Denominator" not in name]
    for threads_per_row in (4, 8, 16):
        assert threads_per_row in map(threads_of_a_row, rows)
    source = sources.source("kernels/rows.cu")
    assert not static_checks.partial_waits(static_checks.compile_program(source, rows, 90))
    slow = source.replace(WAIT, PARTIAL_WAIT)
    some = [name for name in rows if threads_of_a_row(name) == 8]
    assert static_checks.partial_waits(static_checks.compile_program(slow, some, 90)) == some


@pytest.mark.exhaustive
@pytest.mark.parametrize("asked", [FORWARD, Request(wanted=(0,))], ids=["loss", "gradient"])
def test_row_kernels_do_not_spill(asked: Request) -> None:
    """But for a register or two, once a row."""
    loss = multiclass._CROSS_ENTROPY[False, False, False]
    call = Call(loss, "mean", (-100, 0.0, 0.0))
    with planned() as planned_names:
        for dtype, shape in FAST_SHAPES:
            operands = static_checks.dense(dtype, *shape), static_checks.dense("int64", shape[0])
            problem = Problem(call, asked, operands, (0, 0), shape, False, device=0)
            loss.plan(NO_ARRAYS, problem)
    names = [name for name in planned_names if "Denominator" not in name]
    assert len(names) == len(FAST_SHAPES)
    spilled = {
        kernel.name: (kernel.stack, kernel.spills)
        for file, own in itertools.groupby(names, static_checks.file_of)
        for kernel in static_checks.compile_program(sources.source(file), list(own), 90).kernels
    }
    assert max(stack for stack, _ in spilled.values()) <= 8 * bool(asked.wanted), spilled
    assert max(spills for _, spills in spilled.values()) <= 24 * bool(asked.wanted), spilled


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_heavy_losses_and_long_rows_do_not_spill(dtype: str) -> None:
    """But for a few registers: label smoothing, probabilities, and rows of two launches."""
    losses_ = {
        multiclass._CROSS_ENTROPY[True, False, False]: (-100, 0.1, 0.0),
        multiclass._CROSS_ENTROPY[False, False, False]: (-100, 0.0, 0.0),
        multiclass._OF_PROBABILITIES[False, False, False]: (0.0, 0.0),
    }
    shapes = (1 << 17, 1000), (1 << 17, 1001), (1 << 15, 4096), (2048, 50257), (64, 2_000_000)
    with planned() as planned_names:
        for (loss, given), shape in itertools.product(losses_.items(), shapes):
            target = shape if loss.index is None else shape[:1]
            of_target = dtype if loss.index is None else "int64"
            operands = static_checks.dense(dtype, *shape), static_checks.dense(of_target, *target)
            call = Call(loss, "mean", given)
            loss.plan(NO_ARRAYS, Problem(call, FORWARD, operands, (0, 0), shape, False, device=0))
    names = sorted({name for name in planned_names if "Denominator" not in name})
    for file, own in itertools.groupby(names, static_checks.file_of):
        for kernel in static_checks.compile_program(sources.source(file), list(own), 90).kernels:
            assert kernel.spills <= 24, kernel.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_beside_an_operand_that_lies_apart_do_not_spill(dtype: str) -> None:
    loss = multiclass._OF_PROBABILITIES[False, False, False]
    call, requests = Call(loss, "mean", (0.0, 0.0)), (FORWARD, Request(wanted=(0,)))
    with planned() as names:
        for columns, asked in itertools.product((21, 128, 150, 1000), requests):
            shape = 1 << 18, columns
            operands = static_checks.dense(dtype, *shape), static_checks.transposed(dtype, *shape)
            loss.plan(NO_ARRAYS, Problem(call, asked, operands, (0, 0), shape, False, device=0))
    assert len(names) == 8
    source = sources.source("kernels/row_tiles.cu")
    for kernel in static_checks.compile_program(source, list(names), 90).kernels:
        assert (kernel.stack, kernel.spills) == (0, 0), kernel.name


def test_denominators_do_not_spill() -> None:
    """With and without weights of classes, a mask and weights of rows; of many rows, too."""
    loss = multiclass._CROSS_ENTROPY[False, False, False]
    with planned() as planned_names:
        for dtype, rows, weighted, sampled in itertools.product(
            ("bfloat16", "float32", "float64"), (1 << 20, 1 << 30), (False, True), (False, True)
        ):
            call = Call(
                loss,
                "mean",
                (-100, 0.0, 0.0),
                weighted=weighted,
                masked=sampled,
                row_weighted=sampled,
            )
            extra = [static_checks.dense("bool", rows), static_checks.dense(dtype, rows)] * sampled
            extra[1:1] = [static_checks.dense(dtype, 10)] * weighted
            own = static_checks.dense(dtype, rows, 10), static_checks.dense("int64", rows)
            operands = (*extra, *own)
            aligned = (0,) * len(operands)
            asked = Request(wanted=(call.extra,))
            shape = (rows, 10)
            loss.plan(NO_ARRAYS, Problem(call, asked, operands, aligned, shape, False, device=0))
    names = sorted({name for name in planned_names if name.startswith("denominators<")})
    assert len(names) == 24
    for kernel in static_checks.compile_program(
        sources.source("kernels/denominators.cu"), names, 90
    ).kernels:
        assert kernel.spills == 0, kernel.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", levels.first([90, 80, 120]))
def test_gathered_rows_do_not_spill(architecture: int) -> None:
    """With and without weights of classes, a mask and weights of rows; of many rows, too."""
    (loss,) = (loss for loss in ROW_LOSSES if loss.name == "nll_loss")
    with planned() as planned_names:
        for dtype, rows, columns, weighted, sampled in itertools.product(
            ("bfloat16", "float32", "float64"),
            (1 << 20, 1 << 30),
            (3, 100),
            (False, True),
            (False, True),
        ):
            call = Call(
                loss, "mean", (-100,), weighted=weighted, masked=sampled, row_weighted=sampled
            )
            extra = [static_checks.dense("bool", rows), static_checks.dense(dtype, rows)] * sampled
            extra[1:1] = [static_checks.dense(dtype, columns)] * weighted
            shape = (rows, columns)
            own = static_checks.dense(dtype, *shape), static_checks.dense("int64", rows)
            operands = (*extra, *own)
            aligned = (0,) * len(operands)
            for asked in (FORWARD, Request(wanted=(call.extra,))):
                problem = Problem(call, asked, operands, aligned, shape, False, device=0)
                loss.plan(NO_ARRAYS, problem)
    names = sorted({name for name in planned_names if name.startswith("gathered_rows<")})
    assert sum(".writing = STAGED" in name for name in names) == 24
    source = sources.source("kernels/gathered_rows.cu")
    for kernel in static_checks.compile_program(source, names, architecture).kernels:
        assert kernel.spills == 0, kernel.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float32"]))
@pytest.mark.parametrize("architecture", levels.first([90, 80, 120]))
def test_multilabel_kernels_are_lean(architecture: int, dtype: str) -> None:
    """No spills, no double arithmetic in loops, from one thread of a row to a whole block."""
    loss = multiclass._MULTILABEL_MARGIN
    call = Call(loss, "mean", ())
    with planned() as names:
        for columns in (3, 10, 101, 1000, 10_000, 100_000):
            shape = (1 << 17, columns)
            operands = static_checks.dense(dtype, *shape), static_checks.dense("int64", *shape)
            for request in (FORWARD, Request(wanted=(0,), early=True)):
                problem = Problem(call, request, operands, (0, 0), shape, False, device=0)
                loss.plan(NO_ARRAYS, problem)
    source = sources.source("kernels/multilabel_margin.cu")
    program = static_checks.compile_program(source, list(names), architecture)
    assert len(program.kernels) == len(names) == 12
    for kernel in program.kernels:
        assert not kernel.spills, kernel.name
        assert not list(static_checks.double_findings(kernel)), kernel.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", levels.first(["bfloat16", "float32"]))
@pytest.mark.parametrize("asked", [FORWARD, Request(wanted=(0,))], ids=["loss", "gradient"])
def test_strided_kernels_are_lean(asked: Request, dtype: str) -> None:
    """But for a few registers once a row, or once a batch of long rows."""
    loss = multiclass._CROSS_ENTROPY[False, False, False]
    call = Call(loss, "mean", (-100, 0.0, 0.0))
    with planned() as planned_names:
        for columns, pixels in itertools.product(
            (12, 16, 21, 32, 48, 64, 150, 200, 900, 2000, 8000, 32000), (4096, 4097)
        ):
            shape = (8, columns, pixels)
            operands = static_checks.dense(dtype, *shape), static_checks.dense("int64", 8, pixels)
            problem = Problem(call, asked, operands, (0, 0), shape, False, device=0)
            loss.plan(NO_ARRAYS, problem)
    names = [name for name in planned_names if name.startswith("strided_rows<")]
    source = sources.source("kernels/strided_rows.cu")
    program = static_checks.compile_program(source, names, 90)
    assert len(program.kernels) >= 7
    for kernel in program.kernels:
        assert kernel.spills <= 48, kernel.name
        assert not list(static_checks.double_findings(kernel)), kernel.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_of_strided_rows_do_not_spill(dtype: str) -> None:
    """Of any length, with smoothing too, and with weights of classes; on every architecture."""
    of_losses = (
        (multiclass._CROSS_ENTROPY[False, False, False], (-100, 0.0, 0.0)),
        (multiclass._CROSS_ENTROPY[True, False, False], (-100, 0.1, 0.0)),
    )
    with planned() as planned_names:
        for (loss, given), columns, gradient, weighted in itertools.product(
            of_losses, (3, 12, 21, 32), (False, True), (False, True)
        ):
            shape, pixels = (8, columns, 513 * 513), (8, 513 * 513)
            weight = (static_checks.dense(dtype, columns),) * weighted
            own = static_checks.dense(dtype, *shape), static_checks.dense("int64", *pixels)
            operands, call = (*weight, *own), Call(loss, "mean", given, weighted=weighted)
            asked = Request(wanted=(call.extra,)) if gradient else FORWARD
            aligned = (0,) * len(operands)
            loss.plan(NO_ARRAYS, Problem(call, asked, operands, aligned, shape, False, device=0))
    names = [name for name in planned_names if name.startswith("strided_tiles<")]
    assert len(names) >= 20
    source = sources.source("kernels/strided_tiles.cu")
    for kernel in static_checks.compile_program(source, names, 90).kernels:
        assert kernel.spills == 0, kernel.name
        assert not list(static_checks.double_findings(kernel)), kernel.name
    for architecture in (architecture for architecture in ARCHITECTURES if architecture > 90):
        static_checks.compile_program(source, names[::9], architecture)


WIDEST = [
    "cosine_embedding_loss",
    "triplet_margin_loss, norm=4, swap",
    "cross_entropy, probabilities, smoothed, z",
]


@pytest.mark.parametrize("architecture", levels.first([90, 80]))
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", WIDEST)
def test_the_widest_states_of_strided_rows_fit(name: str, dtype: str, architecture: int) -> None:
    """Those of second derivatives, of pairs of rows in half precision, in the shared memory that
    every kernel may have."""
    loss = next(loss for loss in ROW_LOSSES if loss.name == name)
    call = Call(loss, "mean", (1.0,) * len(loss.parameters))
    across = ArraySpec(dtype, (512, 2000), (1, 512))
    vectors = [
        across if loss.role(name) == ELEMENTS else static_checks.dense(dtype, 512)
        for name in loss.operands
    ]
    request = Request(value=False, wanted=(0,), vjp=True, tangents=(0,))
    given = static_checks.dense(dtype), across, *vectors
    with planned() as names:
        problem = Problem(call, request, given, (0,) * 5, (512, 2000), False, device=0)
        loss.plan(NO_ARRAYS, problem)
    kernels = [name for name in names if name.startswith("strided_rows<")]
    assert len(kernels) == 2  # of both launches
    source = sources.source("kernels/strided_rows.cu")
    assert len(static_checks.compile_program(source, kernels, architecture).kernels) == 2


@pytest.mark.parametrize("architecture", levels.first([90, 80, 120]))
def test_cache_policies_are_encoded(architecture: int) -> None:
    """In kernels that the assembler encodes wrongly where addresses are uniform."""
    static_checks.require_disassembler()
    found = row_specialisations([(32768, 4096)])
    names = [name for name in found if "<float, MultiMargin<" in name and ", 1u, 0u," in name]
    program = static_checks.compile_program(sources.source("kernels/rows.cu"), names, architecture)
    assert len(program.kernels) == len(names) > 0
    assert not static_checks.copy_findings(program)


def test_copies_to_uniform_addresses_are_found() -> None:
    assert static_checks.uniform_copies("LDGSTS.E.BYPASS.128 [R4+UR0], desc[UR1][R8.64] ;")
    assert not static_checks.uniform_copies("LDGSTS.E.BYPASS.128 [R4+0x80], desc[UR4][R8.64] ;")


@pytest.mark.parametrize("available", [64 << 10, 99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("columns", [12, 363, 2304, 9000, 20_011, 100_001])
def test_shared_memory_suffices(available: int, columns: int) -> None:
    """With what a kernel has besides, for rows that end within a turn of the threads."""
    triplet = next(loss for loss in ROW_LOSSES if loss.struct == "TripletMargin")
    entropy = next(loss for loss in ROW_LOSSES if loss.struct == "CrossEntropy")
    vectors = (static_checks.dense("bfloat16", 64, columns),) + 2 * (
        static_checks.dense("float32", 64, columns),
    )
    across = ArraySpec("float64", (64, columns, 512), (columns * 512, 512, 1))
    target = static_checks.dense("int64", 64, 512)
    with planned(available) as names:
        for loss, operands, shape in (
            (triplet, vectors, (64, columns)),
            (entropy, (across, target), (64, columns, 512)),
        ):
            call = Call(loss, "mean", (1.0,) * len(loss.parameters))
            aligned = (0,) * len(operands)
            problem = Problem(call, FORWARD, operands, aligned, shape, False, device=0)
            loss.plan(NO_ARRAYS, problem)
    for name, shared in names.items():
        assert shared + STATIC_BYTES <= available, name
    assert any(names.values()) or columns > 2304  # else in two launches

"""What the compiler makes of the kernels, without a GPU: registers, accesses, double arithmetic.

The kernels of every pointwise loss are held to limits. Those that the kernels' mechanisms are
checked with have their register counts in registers.json besides, so that a change of them shows in
review: `python -m tests.tools.static_checks` reports what is wrong, with `--record` it writes them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import cupy_losses  # noqa: F401 - it registers the losses
from cupy_losses._core.dtypes import DTYPES
from cupy_losses._core.loss import FORWARD, Call, Request, losses
from cupy_losses._core.shapes import ArraySpec, broadcast_shape, dense_strides, result_dtype
from cupy_losses._device import compiler, sources
from cupy_losses._device.precompile import NO_ARRAYS
from cupy_losses._device.problem import Problem
from cupy_losses._device.scale import scale_launch
from cupy_losses._kinds.pointwise import PointwiseLoss

from .requirements import missing, nvrtc_options

ARCHITECTURES = (80, 90, 100, 120)
RECORD = Path(__file__).with_name("registers.json")
WIDE = 16  # bytes of the widest access
REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread
PARAMETER = re.compile(r"\.(\w+) = (-?\w+)")
POINTERS = 7  # the first of them among the template arguments of a pointwise kernel


class Case(NamedTuple):
    """A pass over operands of a call: (mask, weight,) input and target."""

    loss: PointwiseLoss
    operands: tuple[ArraySpec, ...]
    request: Request = FORWARD
    reduction: str = "mean"

    def problem(self) -> Problem:
        """The pass with grad_output and tangents in front of the operands."""
        extra = len(self.operands) - len(self.loss.operands)
        masked = extra > 0 and self.operands[0].dtype == "bool"
        call = Call(
            self.loss,
            self.reduction,
            (1.0,) * len(self.loss.parameters),
            weighted=extra > masked,
            masked=masked,
        )
        shape = broadcast_shape(self.operands, call.names, call.extra)
        result = result_dtype(self.operands)
        front = [self.operands[k] for k in self.request.tangents]
        if self.request.vjp:
            front.insert(0, dense(result, *(shape if self.reduction == "none" else ())))
        operands = (*front, *self.operands)
        return Problem(call, self.request, operands, (0,) * len(operands), shape, False, device=0)


def dense(dtype: str, *shape: int) -> ArraySpec:
    """A C-ordered array."""
    return ArraySpec(dtype, shape, dense_strides(range(len(shape)), shape))


def transposed(dtype: str, *shape: int) -> ArraySpec:
    """A Fortran-ordered array."""
    return ArraySpec(dtype, shape, dense_strides(range(len(shape))[::-1], shape))


def sliced(dtype: str, *shape: int) -> ArraySpec:
    """A part of an array that is longer by one in each dimension."""
    return ArraySpec(dtype, shape, dense(dtype, *(length + 1 for length in shape)).strides)


POINTWISE = {name: loss for name, loss in losses().items() if isinstance(loss, PointwiseLoss)}
L1, MSE = POINTWISE["l1_loss"], POINTWISE["mse_loss"]
SMOOTH_L1, HUBER = POINTWISE["smooth_l1_loss"], POINTWISE["huber_loss"]
SIMPLE = (L1, MSE, SMOOTH_L1, HUBER)  # their kernels stand for those of all formulas
HINGE, BCE_WITH_LOGITS = POINTWISE["hinge_loss"], POINTWISE["binary_cross_entropy_with_logits"]
FLAT = (4096, 1000)
HUGE = (2**16, 2**16)  # more elements than 32 bits count
ROWS = (24, 40, 64)  # no vector crosses the end of a row
RAGGED = (24, 41, 61)
SQUARE = (4096, 4096)

# What backward passes ask for; from ALONG on, double backward.
EARLY = Request(wanted=(0,), early=True)
BOTH = Request(wanted=(0, 1))
BACKWARD = Request(value=False, wanted=(0,), vjp=True)
BACKWARD_BOTH = Request(value=False, wanted=(0, 1), vjp=True)
ALONG = Request(tangents=(0, 1))
SECOND = Request(value=False, wanted=(0, 1), vjp=True, tangents=(0, 1))
WEIGHTED_SECOND = Request(value=False, wanted=(1, 2), vjp=True, tangents=(1, 2))


def pair(dtype: str) -> tuple[ArraySpec, ...]:
    """A dense input and target."""
    return 2 * (dense(dtype, *FLAT),)


def value_cases() -> Iterator[Case]:
    """Dense operands: the loss alone."""
    for loss in SIMPLE:
        yield Case(loss, pair("float32"))
        yield Case(loss, pair("bfloat16"))
    yield Case(MSE, pair("float16"), FORWARD, "none")
    yield Case(MSE, pair("float64"))
    yield Case(MSE, 3 * (dense("float32", *FLAT),))


def gradient_cases() -> Iterator[Case]:
    """Dense operands: gradients, with the loss or after it."""
    for loss in SIMPLE:
        yield Case(loss, pair("float32"), EARLY)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        yield Case(SMOOTH_L1, pair(dtype), BOTH)
    for dtype in ("float16", "float32"):
        yield Case(SMOOTH_L1, pair(dtype), BACKWARD, "none")
        yield Case(HUBER, pair(dtype), SECOND, "none")
    yield Case(MSE, pair("bfloat16"), EARLY)
    yield Case(L1, pair("float16"), BACKWARD_BOTH, "none")
    yield Case(SMOOTH_L1, pair("float32"), ALONG)
    yield Case(SMOOTH_L1, (dense("float32", *FLAT), dense("int64", *FLAT)), EARLY)
    yield Case(L1, (dense("float32", *FLAT), dense("float16", *FLAT)), BOTH)
    yield Case(MSE, 2 * (dense("float32", *HUGE),), EARLY)
    yield from _weighted_cases()


def _weighted_cases() -> Iterator[Case]:
    gradient = Request(wanted=(1,))
    yield Case(L1, 3 * (dense("bfloat16", *FLAT),), gradient)
    yield Case(HUBER, 3 * (dense("float16", *FLAT),), Request(wanted=(0, 1, 2)), "sum")
    yield Case(SMOOTH_L1, (dense("float32", 1000), *2 * (dense("float32", *FLAT),)), gradient)


def formula_cases(loss: PointwiseLoss) -> Iterator[Case]:
    """A formula: the loss, with its gradient."""
    operands = len(loss.operands) * (dense("float32", *FLAT),)
    yield Case(loss, operands, FORWARD, "sum")
    yield Case(loss, operands, EARLY, "sum")


def combined_cases() -> Iterator[Case]:
    """A long formula differentiated twice, masks."""
    yield Case(BCE_WITH_LOGITS, pair("bfloat16"), EARLY)
    for dtype in ("bfloat16", "float32"):
        yield Case(BCE_WITH_LOGITS, pair(dtype), SECOND, "none")
    mask = dense("bool", *FLAT)
    yield Case(MSE, (mask, *pair("float32")))
    yield Case(MSE, (mask, *3 * (dense("float32", *FLAT),)), Request(wanted=(2,)))


def strided_cases() -> Iterator[Case]:
    """Operands with gaps, transposed ones, rows that are no whole number of vectors."""
    yield Case(MSE, (sliced("float32", *FLAT), dense("float32", *FLAT)), EARLY)
    yield Case(SMOOTH_L1, (sliced("bfloat16", *ROWS), dense("bfloat16", *ROWS)))
    yield Case(MSE, (transposed("float16", *FLAT), dense("float16", *FLAT)), BOTH)
    for dtype in ("float16", "float32", "float64"):
        ragged = sliced(dtype, *RAGGED), transposed(dtype, *RAGGED)
        if dtype != "float64":
            yield Case(SMOOTH_L1, ragged)
        yield Case(SMOOTH_L1, ragged, BOTH)
        yield Case(HUBER, (dense(dtype, *RAGGED), *ragged), WEIGHTED_SECOND, "none")
    rows = transposed("float64", *ROWS), sliced("float64", *ROWS)
    yield Case(SMOOTH_L1, rows, ALONG)
    for dtype in ("float16", "bfloat16"):
        three = dense(dtype, *ROWS), sliced(dtype, *ROWS), transposed(dtype, *ROWS)
        yield Case(HUBER, three, WEIGHTED_SECOND)
    yield Case(L1, (sliced("float32", 2**10, 2**10, 2**12 + 1),) * 2, EARLY)


def tiled_cases() -> Iterator[Case]:
    """Operands whose memory orders differ: vectors, single elements, vectors across rows."""
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for shape in (SQUARE, tuple(length - 1 for length in SQUARE)):
            pair = dense(dtype, *shape), transposed(dtype, *shape)
            yield Case(MSE, pair)
            yield Case(SMOOTH_L1, pair, BOTH)
    for dtype in ("bfloat16", "float32"):
        for channels in (3, 96):
            images = dense(dtype, 64, channels, 160 * 160), channels_last(dtype, channels)
            yield Case(MSE, images, EARLY)
            yield Case(MSE, images[::-1], EARLY)
    pair = dense("float32", *SQUARE), transposed("float32", *SQUARE)
    yield Case(MSE, (dense("float32", *SQUARE), *pair), Request(wanted=(1, 2)))
    yield Case(MSE, (transposed("bool", *SQUARE), *pair), Request(wanted=(1,)))
    yield Case(HUBER, pair, SECOND, "none")


def channels_last(dtype: str, channels: int) -> ArraySpec:
    """Images whose channels lie side by side, though theirs is not the last dimension."""
    pixels = 160 * 160
    return ArraySpec(dtype, (64, channels, pixels), (channels * pixels, 1, channels))


def broadcast_cases() -> Iterator[Case]:
    """Operands that are broadcast, whose gradients are sums."""
    yield Case(HUBER, (dense("float32", *FLAT), dense("float32", 1000)), BOTH)
    for target in (dense("float32", 1000), dense("float32", 4096, 1)):
        yield Case(HINGE, (dense("float32", *FLAT), target), EARLY)
    yield Case(MSE, (dense("bfloat16", *FLAT), dense("bfloat16", 4096, 1)), BOTH)
    yield Case(SMOOTH_L1, (dense("float32", *FLAT), dense("float32")), BACKWARD_BOTH)


# Those of the mechanisms of kernels, whose registers are recorded, then one for each formula.
RECORDED = {
    "value": value_cases,
    "gradient": gradient_cases,
    "combined": combined_cases,
    "strided": strided_cases,
    "tiled": tiled_cases,
    "broadcast": broadcast_cases,
}
GROUPS: dict[str, Callable[[], Iterator[Case]]] = RECORDED | {
    name.replace(", ", "_"): functools.partial(formula_cases, loss)
    for name, loss in POINTWISE.items()
    if loss not in SIMPLE
}

# What is compiled at once: the kernels of a group for an architecture.
PROGRAMS = list(itertools.product(ARCHITECTURES, GROUPS))


def file_of(name: str) -> str:
    """The file of a kernel, which has its name."""
    return f"kernels/{name.partition('<')[0]}.cu"


@functools.cache
def requested_kernels() -> dict[str, tuple[str, ...]]:
    """The names of the kernels that the planner asks for, for each group without earlier ones."""
    groups: dict[str, tuple[str, ...]] = {}
    names: dict[str, None] = {}

    def kernels(wanted: Sequence[compiler.Specialisation]) -> list[compiler.Kernel]:
        for one in wanted:
            assert one.file == file_of(one.name)
            names[one.name] = None
        return [compiler.Kernel(None, 0, 1)] * len(wanted)

    with mock.patch.object(compiler, "kernels", kernels):
        for group, cases in GROUPS.items():
            before = len(names)
            for case in cases():
                problem = case.problem()
                case.loss.plan(NO_ARRAYS, problem)
            if group == "gradient":  # the last step of a backward pass
                scale_launch("float32", "float32", 2**20, 0)
                scale_launch("bfloat16", "float32", 2**20, 0)
            groups[group] = tuple(names)[before:]
    return groups


def recorded_kernels() -> list[str]:
    """Those whose register counts are recorded."""
    requested = requested_kernels()
    return sorted(name for group in RECORDED for name in requested[group])


def template_arguments(name: str) -> list[str]:
    """The arguments of a template, split at the commas outside of inner brackets."""
    arguments, depth = [""], 0
    for character in name[name.index("<") + 1 : name.rindex(">")]:
        depth += {"<": 1, ">": -1, "{": 1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += character
    return [argument.strip() for argument in arguments]


def parameters(name: str, of: str) -> dict[str, int]:
    """The numbers that tune a kernel, those `of` its Team, say; of booleans 0 and 1."""
    (fields,) = re.findall(rf"\b{of}\{{(.*?)\}}", name)
    values = {field: json.loads(value.rstrip("u")) for field, value in PARAMETER.findall(fields)}
    return {field: int(value) for field, value in values.items()}


def is_float32(name: str) -> bool:
    """Whether a kernel computes in float32."""
    return template_arguments(name)[0] == "float"


def is_tiled(name: str) -> bool:
    """Whether a kernel transposes operands in shared memory."""
    return name.startswith("tiled<")


def meets_in_tiles(name: str) -> bool:
    """Whether the threads of a block meet in each of its tiles, and no loop is inside one."""
    if not name.startswith("strided_rows<"):
        return is_tiled(name)
    team = parameters(name, "StridedTeam")
    return bool((team["threads_per_row"] > 1 and team["stays"]) or team["in_step"])


def is_pointwise(name: str) -> bool:
    """Whether a kernel is one of those that read each operand once."""
    return name.startswith("pointwise<") or is_tiled(name)


def vectorised_operands(name: str) -> list[bool]:
    """Which operands a pointwise kernel accesses in vectors."""
    layout = template_arguments(template_arguments(name)[2])
    operands, vectorised = layout[1], layout[3 if is_tiled(name) else 2]
    return [bool(int(vectorised.rstrip("u")) >> k & 1) for k in range(int(operands))]


def is_dense(name: str) -> bool:
    """Whether a kernel is pointwise on operands without gaps."""
    return name.startswith("pointwise<") and "Layout<1, " in name and all(vectorised_operands(name))


def is_memory_bound(name: str) -> bool:
    """Whether a kernel is to be as fast as memory: dense, of few operands and gradients."""
    return is_dense(name) and len(template_arguments(name)[POINTERS:]) <= 3


class Limits(NamedTuple):
    """The fewest 16-byte accesses and the most narrower ones, in the loop over tiles."""

    wide_loads: int
    wide_stores: int
    narrow_loads: int
    narrow_stores: int


ANY = Limits(0, 0, sys.maxsize, sys.maxsize)


def limits(name: str) -> Limits:
    """What the accesses of a kernel must be.

    The loop has each vector twice: with the rest of its batch in whole tiles, and alone in the tile
    at the end. Only what does not fill a vector there goes element by element.
    """
    if name.startswith("scale<"):
        return ANY._replace(wide_loads=1, wide_stores=1)
    if not is_pointwise(name) or not any(vectorised_operands(name)):
        return ANY
    if is_tiled(name):
        return _limits_of_tiled(name)
    tile = parameters(name, "Tile")
    width, batch = tile["width"], tile["batch"]
    vectorised = vectorised_operands(name)
    read, written = _accessed(name)
    loads = [_wide_accesses(c, width) * whole for c, whole in zip(read, vectorised, strict=True)]
    stores = [_wide_accesses(c, width) for c in written]
    return Limits(
        (batch + 1) * sum(loads),
        (batch + 1) * sum(stores),
        width * len(loads) if all(loads) else ANY.narrow_loads,
        width * len(stores) if all(stores) else ANY.narrow_stores,
    )


def _accessed(name: str) -> tuple[list[str], list[str]]:
    """The C++ types of the elements that a pointwise kernel reads, and of those that it writes."""
    _, _, _, _, values, _, result, *pointers = template_arguments(name)
    types = [pointer.removeprefix("const ").rstrip("*") for pointer in pointers]
    operands = len(vectorised_operands(name))
    each = [result] if values == "EACH_VALUE" else []
    return types[:operands], [*types[operands:], *each]


def _limits_of_tiled(name: str) -> Limits:
    """Each vector of a batch, those of direct operands before the loop too.

    Only of elements that are read one by one there are narrow loads.
    """
    layout, tile = template_arguments(name)[2], parameters(name, "Rectangle")
    width, batch = tile["width"], tile["batch"]
    staged = int(template_arguments(layout)[2].rstrip("u"))
    vectorised = vectorised_operands(name)
    read, written = _accessed(name)
    direct = [c for k, c in enumerate(read) if not staged >> k & 1]
    elements = tile["rows"] * tile["columns"]
    batches = 2 if elements > tile["threads"] * width * batch else 1
    wide = [_wide_accesses(c, width) for c in direct]
    stores = [_wide_accesses(c, width) for c in written]
    return Limits(
        batches * batch * sum(wide),
        batch * sum(stores),
        0 if all(wide) and all(vectorised) else ANY.narrow_loads,
        0 if all(stores) else ANY.narrow_stores,
    )


def _wide_accesses(c_type: str, width: int) -> int:
    """How many accesses of 16 bytes a vector takes; 0 where it is shorter."""
    sizes = {dtype.c_type: dtype.item_size for dtype in DTYPES.values()}
    return width * sizes[c_type] // WIDE


class Kernel(NamedTuple):
    """A compiled kernel."""

    name: str
    symbol: str
    registers: int
    stack: int  # bytes
    spills: int  # bytes of stores and loads
    ptx: str

    def directive(self, name: str) -> int:
        """The number that a directive gives; 1 where there is none."""
        found = re.search(rf"\.{name}\s+(\d+)", self.ptx)
        return int(found[1]) if found else 1

    @property
    def most_registers(self) -> int:
        """How many a thread may have; two blocks of what is to be fast must be resident."""
        blocks = 2 if is_memory_bound(self.name) else self.directive("minnctapersm")
        return min(REGISTERS // (self.directive("maxntid") * blocks), MOST_REGISTERS)


class Program(NamedTuple):
    """Kernels compiled together for an architecture."""

    kernels: tuple[Kernel, ...]
    cubin: bytes
    compiler: str  # the version of NVRTC, with its build


def compile_program(source: str, names: Sequence[str], architecture: int) -> Program:
    """Compile as CuPy does, for an architecture (90 for sm_90)."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        options = nvrtc_options(architecture)
        try:
            nvrtc.compileProgram(program, (*options, "--ptxas-options=-v"))
        except nvrtc.NVRTCError as error:
            raise RuntimeError(nvrtc.getProgramLog(program)) from error
        log = nvrtc.getProgramLog(program)
        ptx = nvrtc.getPTX(program).decode()
        symbols = {nvrtc.getLoweredName(program, name): name for name in names}
        # CuPy takes the last byte for the end of a string.
        cubin = nvrtc.getCUBIN(program) + b"\0"
    finally:
        nvrtc.destroyProgram(program)
    entries = re.split(r"\.entry\s+", ptx)
    bodies = {re.match(r"\w+", entry)[0]: entry for entry in entries[1:]}  # type: ignore[index]
    kernels = tuple(
        Kernel(name, symbol, *_resources(log, symbol), bodies[symbol])
        for symbol, name in ((_text(symbol), name) for symbol, name in symbols.items())
    )
    return Program(kernels, cubin, re.search(r"release .*V(\S+)", ptx)[1])  # type: ignore[index]


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _resources(log: str, symbol: str) -> tuple[int, int, int]:
    """Registers, bytes of stack and bytes spilled, from what ptxas says of a kernel."""
    found = re.search(
        rf"Function properties for {symbol}\n"
        r".*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers",
        log,
    )
    if found is None:
        raise RuntimeError(f"ptxas says nothing of {symbol}:\n{log}")
    stack, stores, loads, registers = map(int, found.groups())
    return registers, stack, stores + loads


@functools.cache
def compiled(architecture: int, group: str) -> tuple[Program, ...]:
    """The requested kernels of a group, a program for each file."""
    names = sorted(requested_kernels()[group], key=file_of)
    return tuple(
        compile_program(sources.source(file), tuple(own), architecture)
        for file, own in itertools.groupby(names, file_of)
    )


STATEMENT = re.compile(r"[{}\s]*(?P<predicate>@!?%\w+\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<rest>.*)")


class Block:
    """A basic block: its instructions, and the blocks that may follow."""

    def __init__(self) -> None:
        self.opcodes: list[list[str]] = []  # split at the dots
        self.followers: list[Block] = []

    def accesses(self, direction: str) -> list[int]:
        """The bytes of each load ("ld") or store ("st") of global memory."""
        return [_bytes(o) for o in self.opcodes if o[0] == direction and "global" in o]


def _bytes(opcode: Sequence[str]) -> int:
    """What an access moves: 16 bytes for ld.global.v4.f32."""
    vector = [int(part[1:]) for part in opcode if re.fullmatch(r"v\d", part)]
    return (vector or [1])[0] * int(opcode[-1].lstrip("bfsu")) // 8


def basic_blocks(ptx: str) -> list[Block]:
    """The control flow of a kernel."""
    block = Block()
    blocks, labels, branches = [block], dict[str, Block](), list[tuple[Block, str]]()
    goes_on = True  # whether control reaches what follows

    def start() -> Block:
        blocks.append(Block())
        if goes_on:
            block.followers.append(blocks[-1])
        return blocks[-1]

    for line in re.sub(r"//.*", "", ptx[ptx.index("{") :]).splitlines():
        if label := re.match(r"\s*(\$\w+):", line):
            block = labels[label[1]] = start()
            goes_on = True
            continue
        for statement in filter(None, map(STATEMENT.match, line.split(";"))):
            opcode = statement["opcode"].split(".")
            block.opcodes.append(opcode)
            if opcode[0] == "bra":
                branches.append((block, statement["rest"].strip()))
            elif opcode[0] == "brx":
                raise NotImplementedError("a jump table in PTX")
            elif opcode[0] not in ("ret", "exit", "trap"):
                continue
            goes_on = statement["predicate"] is not None
            block = start()
            goes_on = True
    for source, target in branches:
        source.followers.append(labels[target])
    return blocks


def hot_loops(name: str, ptx: str) -> list[list[Block]]:
    """The loops over elements of operands: they access global memory.

    They do not come to the end of a segment. There are barriers, and where each tile has barriers
    too, sums are shuffled down. The loop that adds the partial sums up is not meant either: its
    loads bypass the first cache (cg), which those of operands never do.
    """
    ends = {"down"} if meets_in_tiles(name) else {"bar", "barrier"}
    blocks = [
        block
        for block in basic_blocks(ptx)
        if not any(ends.intersection(o) or "cg" in o for o in block.opcodes)
    ]
    loops = _cycles(blocks)
    return [loop for loop in loops if any(b.accesses("ld") or b.accesses("st") for b in loop)]


def _cycles(blocks: Sequence[Block]) -> list[list[Block]]:
    """The strongly connected components that have a cycle."""
    inside = set(blocks)
    after = {block: [b for b in block.followers if b in inside] for block in blocks}
    before: dict[Block, list[Block]] = {block: [] for block in blocks}
    for block, followers in after.items():
        for follower in followers:
            before[follower].append(block)
    found = []
    while inside:
        block = inside.pop()
        component = _reached(block, after) & _reached(block, before)
        if component:
            found.append([b for b in blocks if b in component])
        inside -= component
    return found


def _reached(start: Block, edges: Mapping[Block, Sequence[Block]]) -> set[Block]:
    """The blocks to which a path of at least one step leads."""
    reached, open_ends = set[Block](), [start]
    while open_ends:
        for block in edges[open_ends.pop()]:
            if block not in reached:
                reached.add(block)
                open_ends.append(block)
    return reached


def memory_findings(kernel: Kernel) -> Iterator[str]:
    """Spills, a stack, local memory."""
    if kernel.spills:
        yield f"{kernel.spills} bytes of spill loads and stores"
    if kernel.stack:
        yield f"a stack of {kernel.stack} bytes"
    if ".local" in kernel.ptx:
        yield "local memory"


def register_findings(kernel: Kernel) -> Iterator[str]:
    """No launch bounds, more registers than fit."""
    if kernel.directive("maxntid") == 1:
        yield "no launch bounds"
    if kernel.registers > kernel.most_registers:
        yield f"{kernel.registers} registers, {kernel.most_registers} fit"


def double_findings(kernel: Kernel) -> Iterator[str]:
    """Double arithmetic in the loop of a float32 kernel; at its end and before it there may be."""
    loops = hot_loops(kernel.name, kernel.ptx)
    if not loops:
        yield "no loop that accesses memory"
    if is_float32(kernel.name):
        opcodes = (opcode for loop in loops for block in loop for opcode in block.opcodes)
        yield from sorted({f"{'.'.join(o)} in the loop" for o in opcodes if "f64" in o})


def access_findings(kernel: Kernel) -> Iterator[str]:
    """Accesses that are narrower than they can be."""
    limit = limits(kernel.name)
    blocks = [block for loop in hot_loops(kernel.name, kernel.ptx) for block in loop]
    for direction, wide_limit, narrow_limit in (
        ("ld", limit.wide_loads, limit.narrow_loads),
        ("st", limit.wide_stores, limit.narrow_stores),
    ):
        sizes = [block.accesses(direction) for block in blocks]
        wide = sum(own.count(WIDE) for own in sizes)
        narrow = sum(map(len, sizes)) - wide
        if wide < wide_limit:
            yield f"{wide} {direction}.global of 16 bytes, not {wide_limit}"
        if narrow > narrow_limit:
            yield f"{narrow} {direction}.global of fewer than 16 bytes, more than {narrow_limit}"
        if narrow_limit < sys.maxsize and any(len({n == WIDE for n in own}) > 1 for own in sizes):
            yield f"{direction}.global of 16 bytes and of fewer side by side"


def findings(program: Program) -> list[str]:
    """All of the above, for all kernels of a program."""
    checks = (memory_findings, register_findings, double_findings, access_findings)
    return [
        f"{finding}: {kernel.name}"
        for kernel in program.kernels
        for check in checks
        for finding in check(kernel)
    ]


@functools.cache
def disassembler() -> str | None:
    """nvdisasm: from the path, a toolkit, or the wheel nvidia-cuda-nvdisasm."""
    folders = [Path(folder) / "nvidia" / "cu13" / "bin" for folder in sys.path]
    folders.append(Path("/usr/local/cuda/bin"))
    path = ":".join(str(folder) for folder in folders)
    return shutil.which("nvdisasm") or shutil.which("nvdisasm", path=path)


def require_disassembler() -> None:
    """Skip a test without one, or fail it: see requirements.py."""
    if disassembler() is None:
        missing("no nvdisasm to look at machine code: pip install nvidia-cuda-nvdisasm")


def machine_code_findings(program: Program) -> list[str]:
    """What is wrong in machine code with the accesses of memory, for all kernels of a program."""
    code = _disassemble(program.cubin)
    return [
        f"{finding}: {kernel.name}"
        for kernel in program.kernels
        for finding in _access_findings(limits(kernel.name), code[kernel.symbol])
    ]


def partial_waits(program: Program) -> list[str]:
    """The kernels in which threads wait for a part of their warp.

    They find out which of it are there by MATCH, which takes longer than to wait for all.
    """
    code = _disassemble(program.cubin)
    return [kernel.name for kernel in program.kernels if "MATCH" in code[kernel.symbol]]


def copy_findings(program: Program) -> list[str]:
    """Asynchronous copies of 16 bytes, which have a cache policy, to an address that is uniform.

    The assembler encodes them with the wrong register: see cuda/memory/async_copy.cuh.
    """
    return uniform_copies("\n".join(_disassemble(program.cubin).values()))


def uniform_copies(code: str) -> list[str]:
    """Those in machine code."""
    copies = re.findall(r"LDGSTS\S*\.BYPASS\S* \[([^\]]*)\]", code)
    return [address for address in copies if "UR" in address]


def _disassemble(cubin: bytes) -> dict[str, str]:
    """The machine code of each kernel, by symbol."""
    command = disassembler()
    assert command is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        arguments = [command, "-c", file.name]
        listing = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\s*\.section\s+\.text\.(\w+)", listing, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def _access_findings(limit: Limits, code: str) -> Iterator[str]:
    opcodes = [opcode.split(".") for opcode in re.findall(r"\b(?:LD|ST)[LG]\b[.\w]*", code)]
    local = sum(opcode[0] in ("LDL", "STL") for opcode in opcodes)
    if local:
        yield f"{local} accesses of local memory in machine code"
    # The loads of partial sums are strong ones.
    wide = [opcode[0] for opcode in opcodes if "128" in opcode and "STRONG" not in opcode]
    for name, at_least in (("LDG", limit.wide_loads), ("STG", limit.wide_stores)):
        if wide.count(name) < at_least:
            yield f"{wide.count(name)} {name} of 16 bytes, not {at_least}"


class Record(NamedTuple):
    """registers.json: the compiler, and for some kernels the registers on each architecture."""

    compiler: str
    registers: dict[str, dict[str, int]]

    @classmethod
    def read(cls) -> Record:
        """The record in the repository."""
        return cls(**json.loads(RECORD.read_text(encoding="utf-8")))

    @classmethod
    def make(cls) -> Record:
        """A new one."""
        registers: dict[str, dict[str, int]] = {name: {} for name in recorded_kernels()}
        for architecture, group in itertools.product(ARCHITECTURES, RECORDED):
            for program in compiled(architecture, group):
                for kernel in program.kernels:
                    registers[kernel.name][f"sm_{architecture}"] = kernel.registers
        return cls(program.compiler, registers)

    def text(self) -> str:
        """A line a kernel."""
        lines = (f"    {json.dumps(n)}: {json.dumps(r)}" for n, r in self.registers.items())
        kernels = ",\n".join(lines)
        return f'{{\n  "compiler": "{self.compiler}",\n  "registers": {{\n{kernels}\n  }}\n}}\n'


def changed_registers(record: Record, architecture: int, program: Program) -> list[str]:
    """The kernels that take other numbers of registers than the record says, of those in it."""
    changes = []
    for kernel in program.kernels:
        before = record.registers.get(kernel.name, {}).get(f"sm_{architecture}")
        if before not in (None, kernel.registers):
            changes.append(f"{kernel.registers} registers, recorded {before}: {kernel.name}")
    return changes


def main() -> int:
    """Report what is wrong, or record the register counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m tests.tools.static_checks"
    )
    parser.add_argument("--record", action="store_true", help="rewrite registers.json")
    if parser.parse_args().record:
        RECORD.write_text(Record.make().text(), encoding="utf-8")
        return 0
    lines = []
    for architecture, group in PROGRAMS:
        for program in compiled(architecture, group):
            wrong = findings(program) + changed_registers(Record.read(), architecture, program)
            lines += [f"sm_{architecture}: {line}" for line in wrong]
    print(*lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

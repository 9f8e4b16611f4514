"""What the compiler makes of every kernel: no spills, wide accesses, no double arithmetic in loops.

Without a GPU. static_checks.py says which kernels and how it is found out.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from cupy_losses._core.dtypes import c_type
from cupy_losses._device import sources
from cupy_losses._device.cpp import template, tuned

from ..tools import static_checks
from ..tools.requirements import nvrtc
from ..tools.static_checks import Program, Record

nvrtc()

# A kernel made as those of the package are: right, and wrong in one way each.
EXAMPLE = """
enum Fault { NONE, DOUBLE, NARROW, SPILL, LOCAL, UNBOUNDED };
template <class T, Fault FAULT>
__global__ void LAUNCH_BOUNDS scale(float4* data, const double2* partials, double* sum, int n) {
  __shared__ double total;
  float held[80];
#pragma unroll 1
  for (int segment = 0; segment < 4; ++segment) {
    float high = 0;
#pragma unroll 1
    for (int i = segment * n + threadIdx.x; i < segment * n + n; i += 512) {
      float4 pack = data[i];
      if (FAULT == NARROW) pack = {data[i].x, data[i + n].x, data[i].z, data[i + n].z};
      if (FAULT == SPILL) {
        for (int j = 0; j < 80; ++j) held[j] = data[i + j].x;
        for (int j = 0; j < 80; ++j) data[i + n * j].y = held[j];
      }
      if (FAULT == LOCAL) {
        for (int j = 0; j < 80; ++j) held[j * n % 80] += pack.y;
        pack.y = held[n % 80];
      }
      pack.x *= FAULT == DOUBLE ? float(pack.y * 0.1) : pack.y;
      high += pack.x;
      data[i] = {pack.x, pack.z, pack.w, pack.y};
    }
    total = high;
    __syncthreads();
    if (threadIdx.x == segment) *sum += total * 0.1;
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) *sum += __ldcg(partials + i).x;
}
"""


def example(fault: str) -> Program:
    """The kernel with this fault."""
    bounds = "" if fault == "UNBOUNDED" else "__launch_bounds__(512, 2)"
    source = EXAMPLE.replace("LAUNCH_BOUNDS", bounds)
    return static_checks.compile_program(source, [f"scale<float, {fault}>"], 90)


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("DOUBLE", r"mul\.rn\.f64 in the loop"),
        ("NARROW", r"0 ld\.global of 16 bytes, not 1"),
        ("SPILL", r"\d\d+ bytes of spill loads and stores"),
        ("LOCAL", r"a stack of \d\d+ bytes"),
        ("UNBOUNDED", "no launch bounds"),
    ],
)
def test_faults_are_found(fault: str, finding: str) -> None:
    found = static_checks.findings(example(fault))
    assert any(re.match(finding, line) for line in found), found


def test_no_false_alarm() -> None:
    assert static_checks.findings(example("NONE")) == []


def test_too_many_registers_are_found() -> None:
    kernel = example("NONE").kernels[0]._replace(registers=65)
    assert list(static_checks.register_findings(kernel)) == ["65 registers, 64 fit"]


@pytest.mark.parametrize("fault", ["NONE", "NARROW", "SPILL", "LOCAL"])
def test_faults_are_found_in_machine_code(fault: str) -> None:
    static_checks.require_disassembler()
    wrong = static_checks.machine_code_findings(example(fault))
    assert bool(wrong) == (fault != "NONE"), wrong


def test_all_kinds_of_kernels_are_checked() -> None:
    names = list(itertools.chain(*static_checks.requested_kernels().values()))
    for part in (
        *("pointwise<float", "pointwise<double", "broadcast_sum<float", "broadcast_sum<double"),
        *("tiled<float", "tiled<double", "width = 1, .batch = 8, .flat = false"),
        *("flat = true, .resident = 3", "vectors_per_thread = 4, .width = 1, .batch = 1"),
        *("scale<", "L1<float>", "SquaredError<", "SmoothL1<", "Huber<", "Identity<"),
        *("Weighted<", "Vjp<", "Jvp<", "unsigned long long"),
        *("NO_VALUES", "EACH_VALUE", " SUM_OF_VALUES", " MEAN_OF_VALUES"),
        *("__half*", "__nv_bfloat16*", "float*", "double*", "long long*"),
    ):
        assert any(part in name for name in names), part
    assert len(set(names)) == len(names)


def test_every_formula_is_checked() -> None:
    """With and without a gradient."""
    names = list(itertools.chain(*static_checks.requested_kernels().values()))
    for loss in static_checks.POINTWISE.values():
        start = f"pointwise<float, {template(loss.struct, 'float', *loss.options)}, "
        assert sum(name.startswith(start) for name in names) >= 2, loss.name


def test_a_change_of_registers_is_found() -> None:
    """Where the record has the kernel; one that it does not have is held to the limits alone."""
    program = example("NONE")
    (kernel,) = program.kernels
    for recorded, found in ((kernel.registers, 0), (kernel.registers + 1, 1)):
        record = Record(program.compiler, {kernel.name: {"sm_90": recorded}})
        assert len(static_checks.changed_registers(record, 90, program)) == found
    assert not static_checks.changed_registers(Record(program.compiler, {}), 90, program)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dense_operands_are_accessed_in_vectors(dtype: str) -> None:
    pointer = f"const {c_type(dtype)}*"
    names = [name for name in static_checks.requested_kernels()["value"] if pointer in name]
    assert names
    for name in names:
        assert static_checks.is_dense(name), name
        assert static_checks.limits(name).wide_loads >= 4


SUM = (
    "pointwise<float, SquaredError<float>, Layout<1, 2, 3u, unsigned>, "
    f"{tuned('Tile', threads=512, vectors_per_thread=4, width=4, batch=4)}, "
    "SUM_OF_VALUES, 0u, float, const float*, const float*>"
)


def counted_and_fenced(architecture: int, wrong: str = "") -> list[str]:
    """Fences and the counting of blocks in the order in which a kernel has them."""
    source, fence = sources.source("kernels/pointwise.cu"), 'asm volatile("fence.acq_rel.gpu;"'
    assert source.count(fence) == 1
    if wrong:
        source = source.replace(fence, wrong)
    (kernel,) = static_checks.compile_program(source, [SUM], architecture).kernels
    found = re.findall(
        r"fence\.acq_rel\.gpu|membar\.gl|(?:atom|red)\.[\w.]*(?:add|inc)", kernel.ptx
    )
    return [re.sub(r"(atom|red)\..*", "count", operation) for operation in found]


@pytest.mark.parametrize("architecture", static_checks.ARCHITECTURES)
def test_blocks_that_are_counted_are_fenced(architecture: int) -> None:
    assert counted_and_fenced(architecture) == ["fence.acq_rel.gpu", "count", "fence.acq_rel.gpu"]


def test_a_missing_fence_is_found() -> None:
    assert counted_and_fenced(90, 'asm volatile(""') == ["count"]


def level_of(architecture: int, group: str) -> list[pytest.MarkDecorator]:
    """Of a formula sm_90 and one other architecture in turn are in CI; of what is recorded, all."""
    if (architecture, group) in ((90, "value"), (90, "gradient")):
        return []
    others = [a for a in static_checks.ARCHITECTURES if a != 90]
    of_group = list(static_checks.GROUPS).index(group)
    chosen = 90, others[of_group % len(others)]
    later = group not in static_checks.RECORDED and architecture not in chosen
    return [pytest.mark.exhaustive, pytest.mark.release] if later else [pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("architecture", "group"),
    [pytest.param(*program, marks=level_of(*program)) for program in static_checks.PROGRAMS],
)
def test_kernels(architecture: int, group: str) -> None:
    record, wrong = Record.read(), list[str]()
    for program in static_checks.compiled(architecture, group):
        wrong += static_checks.findings(program)
        if static_checks.disassembler() is not None:
            wrong += static_checks.machine_code_findings(program)
        if program.compiler == record.compiler:
            wrong += static_checks.changed_registers(record, architecture, program)
    assert not wrong, "\n".join(["", *wrong])


def test_record_is_of_this_compiler() -> None:
    """If it is not, register counts are held against the launch bounds only."""
    recorded, present = Record.read().compiler, example("NONE").compiler
    assert recorded == present, "pip install the versions that pyproject.toml pins"


def test_record_is_of_the_compiler_that_is_installed_for_tests() -> None:
    """The version that the extra `test` pins."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"nvidia-cuda-nvrtc-cu12=={Record.read().compiler}"' in project


def test_machine_code_is_looked_at() -> None:
    """Without nvdisasm `test_kernels` looks at PTX alone."""
    static_checks.require_disassembler()


def test_record_lists_the_recorded_kernels() -> None:
    names, recorded = static_checks.recorded_kernels(), Record.read().registers
    assert names
    assert sorted(recorded) == names, "run: python -m tests.tools.static_checks --record"
    architectures = {f"sm_{a}" for a in static_checks.ARCHITECTURES}
    assert all(set(counts) == architectures for counts in recorded.values())


def test_record_has_a_line_a_kernel() -> None:
    assert Record.read().text() == static_checks.RECORD.read_text(encoding="utf-8")

"""Every kernel compiles with NVRTC for every architecture, without a GPU."""

from __future__ import annotations

import itertools

import pytest

from cupy_losses import _kernels
from cupy_losses._plan import template

from . import static_checks

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs the CuPy wheel")

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
SHORT = ("float", "__nv_bfloat16")
LOSSES = (*static_checks.LOSSES, *static_checks.FORMULAS)


def compile_for(architecture: int, names: list[str]) -> None:
    """Compile the kernels `names`; raises with the compiler's log."""
    program = nvrtc.createProgram(_kernels.source("pointwise.cu"), "pointwise.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        options = (*_kernels.compile_options(), f"-arch=sm_{architecture}", "-ftz=true")
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))
        for name in names:
            assert nvrtc.getLoweredName(program, name)
        assert len(nvrtc.getCUBIN(program)) > 1000
    finally:
        nvrtc.destroyProgram(program)


def specialisations() -> list[str]:
    """A name for every kernel, loss, combinator and kind of layout."""
    names = []
    for loss, dtype in itertools.product(LOSSES, SHORT):
        k, expression = len(loss.operands), template(loss.struct, "float", *loss.options)
        read, written = (", ".join(k * [f"{const}{dtype}*"]) for const in ("const ", ""))
        width, every = 4 if dtype == "float" else 8, (1 << k) - 1
        for layout in (f"Layout<1, {k}, {every}u, unsigned>", f"Layout<3, {k}, 0u, unsigned>"):
            names.append(
                f"pointwise<float, {expression}, {layout}, Tile<512, 4, {width}, 1>, "
                f"SUM_OF_VALUES, {every}u, {dtype}, {read}, {written}>"
            )
        # grad_output, tangents, mask, weight, operands.
        second = (
            f"Masked<Chained<Directional<Weighted<{expression}, true>, {every << 1}u>>, {k + 1}>"
        )
        all_operands = 2 * k + 3
        names.append(
            f"pointwise<float, {second}, Layout<2, {all_operands}, 7u, unsigned long long>, "
            f"Tile<512, 4, 4, 1>, NO_VALUES, {every << (k + 3)}u, float, "
            f"{', '.join(all_operands * ['const float*'])}, {', '.join(k * ['float*'])}>"
        )
        names.append(
            f"gradient_sum<float, Chained<{expression}>, Layout<2, {k + 1}, 0u, unsigned>, 256, "
            f"32, 1, double, const float*, {read}>"
        )
    names.append("scale<float, __half, float, 512, 8>")
    names.append(
        "pointwise<double, Weighted<Huber<double>, false>, Layout<1, 3, 7u, unsigned>, "
        "Tile<512, 4, 2, 1>, WEIGHTED_MEAN_OF_VALUES, 0u, double, const double*, const double*, "
        "const double*>"
    )
    return names


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_kernels_compile(architecture: int) -> None:
    names = specialisations()
    compile_for(architecture, names if architecture == 90 else names[architecture % 5 :: 5])

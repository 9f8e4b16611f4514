"""Every kernel compiles with NVRTC for every architecture, without a GPU."""

from __future__ import annotations

import itertools

import pytest

from cupy_losses import _kernels

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs the CuPy wheel")

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
SHORT = ("float", "__nv_bfloat16")
STRUCTS = ("L1", "SquaredError", "SmoothL1", "Huber")


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
    for loss, dtype in itertools.product(STRUCTS, SHORT):
        pointers = f"const {dtype}*, const {dtype}*"
        width = 4 if dtype == "float" else 8
        for layout in ("Layout<1, 2, 3u, unsigned>", "Layout<3, 2, 0u, unsigned>"):
            names.append(
                f"pointwise<float, {loss}<float>, {layout}, Tile<512, 4, {width}, 1>, "
                f"SUM_OF_VALUES, 3u, {dtype}, {pointers}, {dtype}*, {dtype}*>"
            )
        second = f"Chained<Directional<Weighted<{loss}<float>>, 6u>>"
        names.append(
            f"pointwise<float, {second}, Layout<2, 6, 7u, unsigned long long>, "
            f"Tile<512, 4, 4, 1>, NO_VALUES, 48u, float, const float*, const float*, const float*, "
            "const float*, const float*, const float*, float*, float*>"
        )
        names.append(
            f"gradient_sum<float, Chained<{loss}<float>>, Layout<2, 3, 0u, unsigned>, 256, "
            f"32, 1, double, const float*, {pointers}>"
        )
    names.append("scale<float, __half, float, 512, 8>")
    names.append(
        "pointwise<double, Weighted<Huber<double>>, Layout<1, 3, 7u, unsigned>, "
        "Tile<512, 4, 2, 1>, WEIGHTED_MEAN_OF_VALUES, 0u, double, const double*, const double*, "
        "const double*>"
    )
    return names


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_kernels_compile(architecture: int) -> None:
    names = specialisations()
    compile_for(architecture, names if architecture in (70, 90, 120) else names[::3])

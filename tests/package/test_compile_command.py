"""`cupy-losses compile`: the cache has what calls will look for, without a GPU."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import cupy_losses
from cupy_losses.__main__ import main
from cupy_losses._commands import losses, synthetic
from cupy_losses._commands.compile import _compile
from cupy_losses._device import compiler, driver

from ..tools import requirements

requirements.nvrtc()

ROOT = Path(cupy_losses.__file__).parents[1]
MEAN = {"reduction": "mean"}

# Fills the cache, then looks for each kernel as cupy.RawModule does on a device of sm_80.
SCRIPT = """
import os, sys
import cupy.cuda.compiler
from cupy._core import raw
from cupy_losses.__main__ import main
from cupy_losses._device import driver

asked = []
compile_ahead = driver.compile_ahead
def recorded(*arguments):
    asked.append(arguments)
    compile_ahead(*arguments)
driver.compile_ahead = recorded
assert main("compile --loss mse_loss --architecture 80 --elements 64x64".split()) == 0
folder = os.environ["CUPY_CACHE_DIR"]
files = sorted(os.listdir(folder))

compiler = cupy.cuda.compiler
class NeverLoaded(compiler.function.Module):
    def load(self, code):
        pass
compiler._get_arch = lambda: "80"
compiler._get_arch_for_options_for_nvrtc = compiler._get_arch_for_options_for_nvrtc.__wrapped__
compiler.function = type("function", (), {"Module": NeverLoaded})
for code, name, options, architecture in asked:
    raw._get_raw_module.__wrapped__(
        code, None, options, "nvrtc", False, False, False, (name,), None
    )
print(len(asked), len(files), files == sorted(os.listdir(folder)))
"""


def test_the_cache_is_that_of_calls(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUPY_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    header, row, last = result.stdout.splitlines()
    assert header.split() == ["loss", "dtype", "architecture", "seconds"]
    assert row.split()[:3] == ["mse_loss", "float32", "sm_80"]
    assert float(row.split()[3]) > 0
    kernels, files, found_all = last.split()
    assert int(kernels) == int(files) > 1
    assert found_all == "True"


def test_the_encoding_of_the_locale(tmp_path: Path) -> None:
    """CuPy writes what it compiles to a file in it; some versions of NVRTC make it ASCII."""
    environment = {"PYTHONPATH": str(ROOT), "CUPY_CACHE_DIR": str(tmp_path)}
    environment = {**os.environ, **environment, "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "cupy_losses", "compile", "--architecture", "80"]
    command += ["--loss", "mse_loss", "--loss", "cross_entropy"]
    subprocess.run(command, env=environment, capture_output=True, check=True)


def test_a_formula_beyond_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler gets the same C++, in ASCII."""
    text = "auto größe = input - target;  // Größe\nreturn größe * größe;"
    codes: list[str] = []
    compile_ahead = driver.compile_ahead

    def recorded(code: str, *others: Any) -> None:
        codes.append(code)
        compile_ahead(code, *others)

    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")  # whatever is in the one on disk
    monkeypatch.setattr(driver, "compile_ahead", recorded)
    monkeypatch.setattr(compiler, "_kernels", {})
    square = cupy_losses.pointwise_loss(
        "own_square", text, numpy=lambda input, target: (input - target) ** 2
    )
    assert not square.check().problems
    assert codes
    assert all(code.isascii() for code in codes)


def test_no_option_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC before 12.9 refuses that; CuPy adds options of its own."""
    from cupy.cuda import compiler as of_cupy

    given: list[tuple[str, ...]] = []
    compile_program = of_cupy._NVRTCProgram.compile

    def recorded(program: Any, options: tuple[str, ...], *others: Any) -> Any:
        given.append(tuple(options))
        return compile_program(program, options, *others)

    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")  # whatever is in the one on disk
    monkeypatch.setattr(of_cupy._NVRTCProgram, "compile", recorded)
    monkeypatch.setattr(compiler, "_kernels", {})
    _compile(losses.find("mse_loss"), (64, 64), "float32", 80, MEAN)
    assert not any("default-device" in option for option in compiler.compile_options())
    for options in given:
        assert set(requirements.nvrtc_options(80)) <= set(options)
        others = [option for option in options if not option.startswith("-I")]
        assert len(set(others)) == len(others)
    assert given


def requested(function: Callable[[], Any], device: int) -> set[tuple[str, str, int]]:
    """The kernels that are asked for: file, name, shared memory."""
    found: set[tuple[str, str, int]] = set()

    def kernels(wanted: Sequence[compiler.Specialisation]) -> list[compiler.Kernel]:
        assert all(one.device == device for one in wanted)
        found.update((one.file, one.name, one.shared) for one in wanted)
        return [compiler.Kernel(None, 0, 1)] * len(wanted)

    with mock.patch.object(compiler, "kernels", kernels):
        function()
    return found


@pytest.mark.parametrize(
    ("architecture", "kib", "clusters"), [(90, 227, 16), (120, 99, 8), (75, 64, 1)]
)
@pytest.mark.parametrize("name", ["cross_entropy", "triplet_margin_loss", "multilabel_margin_loss"])
def test_kernels_are_those_of_a_device(
    name: str, architecture: int, kib: int, clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long rows are divided by the shared memory, and by the largest cluster."""
    own = functools.partial(_compile, losses.find(name), (64, 30_000), "float32", arguments=MEAN)
    ahead = requested(lambda: own(architecture), -architecture)
    monkeypatch.setattr(driver, "shared_memory", lambda device: kib << 10)
    monkeypatch.setattr(driver, "largest_cluster", lambda device: clusters)
    monkeypatch.setattr(driver, "cache_bytes", lambda device: 50 << 20)
    assert ahead == requested(lambda: own(0), 0)
    assert ahead


def test_parameters_and_the_reduction(capsys: Any) -> None:
    """Other kernels where they are others, for any way to write the architecture."""

    def kernels(*arguments: str) -> set[tuple[str, str, int]]:
        own = ["compile", "--elements", "64x32", *arguments]
        return requested(lambda: main(own), -90)

    for architecture in ("9.0", "sm_90"):
        plain = kernels("--loss", "cross_entropy", "--architecture", architecture)
        assert plain == kernels("--loss", "cross_entropy", "--architecture", "90")
    own = ["--loss", "cross_entropy", "--architecture", "90", "--parameter"]
    smoothed = kernels(*own, "label_smoothing=0.1")
    assert smoothed
    assert smoothed.isdisjoint(plain)
    assert smoothed == kernels(*own, "label_smoothing=0.2")
    for reduction in ("sum", "none"):
        of_mse = ["--loss", "mse_loss", "--architecture", "90", "--reduction", reduction]
        assert kernels(*of_mse)
    assert kernels(*of_mse) != kernels(*of_mse[:-1], "mean")
    capsys.readouterr()
    assert main(["compile", "--loss", "mse_loss", "--parameter", "beta=1"]) == 2
    assert "mse_loss has no parameter 'beta'" in capsys.readouterr().err


def test_architectures_differ() -> None:
    own = functools.partial(
        _compile, losses.find("cross_entropy"), (64, 30_000), "float32", arguments=MEAN
    )
    assert requested(lambda: own(90), -90) != requested(lambda: own(75), -75)


def test_every_loss_has_kernels() -> None:
    shape = synthetic.shape_of("64x32")
    for name in losses.names():
        own = functools.partial(_compile, losses.find(name), shape, "bfloat16", 90, MEAN)
        assert any("__nv_bfloat16" in kernel[1] for kernel in requested(own, -90)), name


def test_an_architecture_that_nvrtc_does_not_have(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "architectures", lambda: [80, 90])
    monkeypatch.setattr(driver, "nvrtc_version", lambda: (12, 9))
    assert main(["compile", "--architecture", "90", "--architecture", "110"]) == 1
    message = "NVRTC that is installed, 12.9, does not compile for 110, only for 80, 90"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--architecture 42", "'42' is not one of '70'"),
        ("--architecture 90 --elements 0", "must be lengths of at least 1"),
        ("--architecture 90 --dtype float8", "'float8' is not one of"),
    ],
)
def test_wrong_arguments(arguments: str, message: str, capsys: Any) -> None:
    assert main(["compile", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fail() -> None:
        raise driver.MissingGPUError("CuPy finds none")

    monkeypatch.setattr(driver, "require_gpu", fail)
    assert main(["compile"]) == 2
    assert "say for which --architecture, such as 90: CuPy finds none" in capsys.readouterr().err


def test_a_cache_in_memory(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    assert main(["compile", "--architecture", "90"]) == 2
    assert "CUPY_CACHE_IN_MEMORY is set" in capsys.readouterr().err

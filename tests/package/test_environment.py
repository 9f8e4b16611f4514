"""What is missing or broken around the package: an error that says what to do about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cupy_losses._device import compiler, driver

# An array on a CUDA device, as far as one can tell without one.
DEVICE_ARRAY = """
import cupy_losses
class Array:
    def __dlpack__(self, **options): raise AssertionError("must not be asked")
    def __dlpack_device__(self): return 2, 0
try:
    cupy_losses.mse_loss(Array(), Array())
except cupy_losses.MissingGPUError as error:
    print(f"{type(error).__module__}.{type(error).__name__} {error}")
"""


def run_with_cupy(tmp_path: Path, source: str) -> str:
    """What DEVICE_ARRAY prints where `cupy` is a module of this source."""
    (tmp_path / "cupy.py").write_text(source)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{DEVICE_ARRAY}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_no_cupy(tmp_path: Path) -> None:
    printed = run_with_cupy(tmp_path, "raise ImportError('No module named cupy')")
    start = "cupy_losses.MissingGPUError CUDA arrays need CuPy: install cupy-losses[cuda12]"
    assert printed.startswith(start)


def test_cupy_whose_cache_folder_cannot_be_made(tmp_path: Path) -> None:
    printed = run_with_cupy(tmp_path, "raise PermissionError(13, 'Permission denied', '/cache')")
    assert "cupy_losses.MissingGPUError CuPy cannot be imported" in printed
    assert "CUPY_CACHE_DIR" in printed


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("cudaErrorNoDevice", "cudaErrorNoDevice"),
        ("cudaErrorInsufficientDriver: CUDA driver version is", "there is no NVIDIA driver, or "),
    ],
)
def test_no_gpu(error: str, why: str, tmp_path: Path) -> None:
    fake = f"""
class ndarray: pass
class cuda:
    class runtime:
        @staticmethod
        def getDeviceCount(): raise RuntimeError("{error}")
"""
    printed = run_with_cupy(tmp_path, fake)
    start = "cupy_losses.MissingGPUError CUDA arrays need a GPU, and CuPy finds none: "
    assert printed.startswith(start + why)


@pytest.mark.usefixtures("forgotten")
def test_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "nvrtc_version", lambda: (12, 9))
    monkeypatch.setattr(compiler, "include_folders", list)
    with pytest.raises(RuntimeError, match="cuda_fp16.h was not found.*nvidia-cuda-runtime-cu12"):
        compiler.compile_options()


def test_headers_of_nvrtcs_own_version_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ["/wheels/nvidia/cuda_runtime/include", "/wheels/nvidia/cu13/include"]
    monkeypatch.setattr(compiler, "include_folders", lambda: list(folders))
    for version, chosen in (((12, 9), folders[0]), ((13, 0), folders[1])):
        monkeypatch.setattr(driver, "nvrtc_version", lambda version=version: version)
        compiler.compile_options.cache_clear()
        assert f"-I{chosen}" in compiler.compile_options()
    compiler.compile_options.cache_clear()


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> Any:
        raise RuntimeError("libnvrtc.so.12: cannot open shared object file")

    runtime = SimpleNamespace(runtimeGetVersion=lambda: 12090)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(driver, "cupy", lambda: fake)
    nvrtc = SimpleNamespace(getVersion=version)
    for name in ("cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    libs = SimpleNamespace(nvrtc=nvrtc)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libs)
    with pytest.raises(RuntimeError, match="NVRTC.*pip install nvidia-cuda-nvrtc-cu12"):
        driver.nvrtc_version()


def test_kernel_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        def __init__(self, **arguments: Any) -> None:
            pass

        def get_function(self, name: str) -> Any:
            raise OSError(30, "Read-only file system")

    monkeypatch.setattr(driver, "cupy", lambda: SimpleNamespace(RawModule=Module))
    with pytest.raises(RuntimeError, match="cache cannot be written.*CUPY_CACHE_DIR"):
        driver.compile("", "kernel", ())

"""What is installed, what fits together, and what to install where something is missing."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import __version__
from .._device import compiler, driver
from .command import Command
from .environment import cuda_version, version
from .report import as_json


@click.command(
    "info", cls=Command, short_help="Say what is installed, and what does not fit together."
)
@click.option("--json", "to_json", is_flag=True, help="Print JSON instead of text.")
def command(to_json: bool) -> None:
    """Say what is installed, what does not fit together and what to install."""
    facts, advice = inspect()
    if to_json:
        click.echo(as_json({"facts": facts, "advice": advice}))
        return
    width = max(map(len, facts))
    for name, fact in facts.items():
        click.echo(f"{name:{width}}  {fact}")
    click.echo()
    for line in advice or ["Nothing is missing."]:
        click.echo(line)


def inspect() -> tuple[dict[str, str], list[str]]:
    """The facts by name, and advice, most urgent first."""
    facts = {
        "cupy_losses": __version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "NumPy": _version("numpy"),
    }
    advice: list[str] = []
    _inspect_cupy(facts, advice)
    _inspect_torch(facts)
    _compare_versions(facts, advice)
    facts["ml_dtypes"] = _version("ml_dtypes")
    if facts["ml_dtypes"] == _MISSING:
        advice.append("bfloat16 arrays of CuPy and NumPy need ml_dtypes: pip install ml_dtypes")
    _inspect_cache(facts, advice)
    return facts, advice


_MISSING = "not installed"


def _version(distribution: str) -> str:
    return version(distribution) or _MISSING


def _attempt(question: Callable[[], Any]) -> str:
    """The answer, or the first line of the error."""
    try:
        return str(question())
    except Exception as error:
        lines = driver.why(error).splitlines() or [type(error).__name__]
        return f"unavailable: {lines[0]}"


def _inspect_cupy(facts: dict[str, str], advice: list[str]) -> None:
    """CuPy, and through it the driver and the compiler."""
    installed = [name for name in _CUPY_WHEELS if _version(name) != _MISSING]
    if len(installed) > 1:
        advice.append(f"Several CuPy packages are installed ({', '.join(installed)}): keep one.")
    try:
        import cupy
    except ImportError:
        facts["CuPy"] = _MISSING
        advice.append(
            'CUDA arrays need CuPy: pip install "cupy-losses[cuda12]" or, with a CUDA 13 driver, '
            '"cupy-losses[cuda13]". NumPy arrays work without.'
        )
        return
    except Exception as error:
        facts["CuPy"] = f"unavailable: {error}"
        # CuPy makes the folder of its cache when it is imported.
        if not isinstance(error, OSError) or _cache_is_writable():
            advice.append(f"CuPy is installed, but cannot be imported: {error}")
        return
    runtime = cupy.cuda.runtime
    built = int(runtime.runtimeGetVersion())
    facts["CuPy"] = f"{cupy.__version__}, CUDA runtime {cuda_version(built)}"
    if tuple(map(int, cupy.__version__.split(".")[:2])) < (14, 2):
        advice.append("CuPy before 14.2 compiles every kernel anew in each process: upgrade it.")
    _inspect_driver(facts, advice, int(runtime.driverGetVersion()), built)
    _inspect_compiler(facts, advice, built // 1000)


def _inspect_driver(facts: dict[str, str], advice: list[str], supported: int, built: int) -> None:
    """The CUDA that the driver supports beside the one CuPy is built for, and the GPUs."""
    facts["driver"] = f"CUDA {cuda_version(supported)}" if supported else "none"
    facts["GPUs"] = _attempt(_gpus)
    if not supported or facts["GPUs"].startswith("unavailable"):
        advice.append("No GPU can be used here: losses of NumPy arrays run on the host.")
    elif supported // 1000 < built // 1000:
        advice.append(
            f"The driver supports CUDA {cuda_version(supported)}, CuPy is built for "
            f"{cuda_version(built)}: install cupy-losses[cuda{supported // 1000}] or a newer "
            "driver."
        )


def _inspect_compiler(facts: dict[str, str], advice: list[str], major: int) -> None:
    """NVRTC and the headers that kernels include, of a major version of CUDA."""
    facts["NVRTC"] = _attempt(lambda: "{}.{}".format(*driver.nvrtc_version()))
    if facts["NVRTC"].startswith("unavailable"):
        advice.append(f"The CUDA compiler is missing: pip install {driver.wheel('nvrtc', major)}")
    elif driver.nvrtc_version() < _OLDEST_NVRTC:
        oldest = "{}.{}".format(*_OLDEST_NVRTC)
        advice.append(
            f"NVRTC before {oldest} does not compile all losses over rows: "
            f"pip install --upgrade {driver.wheel('nvrtc', major)}"
        )
    folders = compiler.include_folders()
    facts["CUDA headers"] = folders[0] if folders else _MISSING
    if not folders:
        advice.append(f"cuda_fp16.h is missing: pip install {driver.wheel('runtime', major)}")


_OLDEST_NVRTC = (12, 4)
_CUPY_WHEELS = ("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy")


def _gpus() -> str:
    import cupy

    runtime = cupy.cuda.runtime
    names = [
        runtime.getDeviceProperties(device)["name"].decode()
        for device in range(runtime.getDeviceCount())
    ]
    return ", ".join(names) or "none"


def _inspect_torch(facts: dict[str, str]) -> None:
    facts["torch"] = _version("torch")
    if facts["torch"] == _MISSING:
        return
    try:
        import torch
    except Exception as error:
        facts["torch"] = f"unavailable: {error}"
        return
    facts["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"


def _compare_versions(facts: dict[str, str], advice: list[str]) -> None:
    """Where CuPy, the NVRTC that it finds and torch are of two versions of CUDA."""
    ours, nvrtc, theirs = (_cuda_of(facts.get(name, "")) for name in ("CuPy", "NVRTC", "torch"))
    if not ours:
        return
    mismatch = f"CuPy is built for CUDA {ours} and found NVRTC {facts['NVRTC']}"
    if nvrtc not in ("", ours, theirs):
        advice.append(f"{mismatch}: remove the CUDA wheels of the other version.")
    if theirs in ("", ours):
        return
    if nvrtc == theirs:
        advice.append(
            f"{mismatch}, which torch needs: pip uninstall cupy-cuda{ours}x, then install "
            f"cupy-losses[cuda{theirs}]."
        )
    else:
        advice.append(
            f"torch is built for CUDA {theirs} and CuPy for CUDA {ours}. They work together, but "
            f"installing cupy-losses[cuda{theirs}] instead avoids two sets of CUDA libraries."
        )


def _cuda_of(fact: str) -> str:
    """The major version of CUDA at the end of a fact; "" where there is none."""
    found = None if fact.startswith("unavailable") else re.search(r"(\d+)\.\d+$", fact)
    return found[1] if found else ""


def _inspect_cache(facts: dict[str, str], advice: list[str]) -> None:
    writable = _cache_is_writable()
    facts["kernel cache"] = f"{_cache()}, {'writable' if writable else 'not writable'}"
    if not writable:
        advice.append(
            "The kernel cache cannot be written: point CUPY_CACHE_DIR to a folder that can be "
            "written."
        )


def _cache() -> Path:
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def _cache_is_writable() -> bool:
    """Whether a file can be made in the folder, or in the one that it would be made in."""
    existing = _cache()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False

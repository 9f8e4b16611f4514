"""The machine and the versions that a measurement is of."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__

PACKAGES = ("numpy", "torch", "triton", "liger-kernel", "quack-kernels")


def version(distribution: str) -> str | None:
    """The version of a package, if it is installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The model of the CPU, with the widest vectors that NumPy uses there."""
    lines = Path("/proc/cpuinfo")
    text = lines.read_text() if lines.exists() else ""
    fields = dict(re.findall(r"^(.*?)\s*: (.*)$", text.split("\n\n")[0], re.M))
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        name += f", family {fields['cpu family']}, model {fields['model']}"
    shown: Any = np.show_config(mode="dicts")
    return f"{name}, {shown['SIMD Extensions']['found'][-1]}"


def environment(xp: Any) -> dict[str, Any]:
    """What computes arrays of the module `xp`, NumPy or CuPy, the versions and the date."""
    return {
        "date": datetime.date.today().isoformat(),
        **({"cpu": processor()} if xp is np else _of_gpu(xp)),
        "python": platform.python_version(),
        "cupy_losses": __version__,
        **{name: version(name) for name in PACKAGES},
    }


def _of_gpu(xp: Any) -> dict[str, Any]:
    runtime = xp.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "gpu": properties["name"].decode(),
        "multiprocessors": int(properties["multiProcessorCount"]),
        "driver": f"CUDA {cuda_version(runtime.driverGetVersion())}",
        "cuda": cuda_version(runtime.runtimeGetVersion()),
        "cupy": xp.__version__,
    }


def cuda_version(number: int) -> str:
    """A version of CUDA as it is written, from the number that CUDA gives."""
    return f"{number // 1000}.{number % 1000 // 10}"


def caption(facts: Mapping[str, Any]) -> str:
    """The same on one line, for a picture."""
    device = facts["gpu"] if "gpu" in facts else facts["cpu"]
    own = ("cuda", "cupy_losses", "cupy", *PACKAGES)
    versions = [f"{name} {facts[name]}" for name in own if facts.get(name)]
    return ", ".join([device, *versions, facts["date"]])

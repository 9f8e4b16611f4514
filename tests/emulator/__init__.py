"""Runs the package's CUDA kernels on a CPU and checks what they do; see docs/emulator.md."""

from __future__ import annotations

from ..tools.requirements import missing
from .compiler import CompileError, CompilerMissingError, Job, Module, cuda_headers, gxx, precompile
from .cupy_lookalike import Device, installed
from .launcher import EmulatorError, Kernel, Schedule
from .memory import ndarray

__all__ = [
    "CompileError",
    "CompilerMissingError",
    "Device",
    "EmulatorError",
    "Job",
    "Kernel",
    "Module",
    "Schedule",
    "installed",
    "ndarray",
    "precompile",
    "problem",
    "require",
]


def problem() -> str:
    """Why the emulator cannot run on this machine; "" where it can."""
    try:
        gxx(), cuda_headers()
    except CompilerMissingError as error:
        return str(error)
    return ""


def require() -> None:
    """Skip the test where the emulator cannot run; fail it if CUPY_LOSSES_REQUIRE_TOOLS=1."""
    if problem():
        missing(problem())

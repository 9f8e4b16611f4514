"""What tests need beside the package: a test without it is skipped, or fails where it must run."""

from __future__ import annotations

import importlib
import os
from typing import Any, NoReturn

import pytest

from cupy_losses._device import compiler

STRICT = "CUPY_LOSSES_REQUIRE_TOOLS"


def missing(what: str) -> NoReturn:
    """Skip the test, or the module, that needs `what`; fail it where CUPY_LOSSES_REQUIRE_TOOLS=1.

    CI sets that: there, a check that is not made is an error.
    """
    if os.environ.get(STRICT) == "1":
        pytest.fail(f"{what}: {STRICT}=1 wants it")
    pytest.skip(what, allow_module_level=True)


def imported(name: str, extra: str) -> Any:
    """A module that an extra brings."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(f"no {name}, which the extra {extra} brings: {error}")


def nvrtc() -> Any:
    """CuPy's module for NVRTC, with a library that answers."""
    try:
        module = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        module.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        missing(f"no NVRTC, which the wheels of the extra cuda12 bring: {error}")
    return module


def nvrtc_options(architecture: int) -> tuple[str, ...]:
    """The options of a kernel, with those that CuPy adds; 90 for sm_90."""
    added = "--device-as-default-execution-space", "-ftz=true", f"-arch=sm_{architecture}"
    return (*compiler.compile_options(), *added)

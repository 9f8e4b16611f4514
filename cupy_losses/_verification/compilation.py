"""Formulas compiled by NVRTC ahead of any call, without a device."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.loss import Call, Request
from .._core.shapes import ArraySpec
from .._device import driver, precompile

# Half precision has an arithmetic of its own. One architecture shows its mistakes.
_FULL, _HALF = (ArraySpec(dtype, (4096,), (1,)) for dtype in ("float32", "bfloat16"))


def compile_once(call: Call) -> None:
    """Compile the loss with its derivatives for one architecture: mistakes are those of all.

    Raises:
        ValueError: If the formula does not compile, with its line and column.
        RuntimeError: If there is no compiler, with what to install.

    """
    _compile(call, driver.architectures()[-1:])


def compile_for_all(call: Call) -> str:
    """The same for all architectures; returns which compiler it was, and for which."""
    architectures = driver.architectures()
    _compile(call, architectures)
    major, minor = driver.nvrtc_version()
    names = ", ".join(f"sm_{architecture}" for architecture in architectures)
    return f"compiled by NVRTC {major}.{minor} for {names}"


def _compile(call: Call, architectures: Sequence[int]) -> None:
    """Compile first and second derivatives, for the last architecture in half precision too."""
    every = tuple(range(len(call.loss.operands)))
    request = Request(wanted=every, tangents=(0,))
    kernels = [
        *((_FULL, architecture) for architecture in architectures),
        (_HALF, architectures[-1]),
    ]
    for operand, architecture in kernels:
        operands = (operand,) * (request.extra + len(every))
        precompile.compile_kernels(call, request, operands, architecture)

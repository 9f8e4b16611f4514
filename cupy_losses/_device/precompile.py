"""Kernels compiled into CuPy's cache ahead of the arrays that they are for, without a device."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from .._core.loss import Call, Request
from .._core.shapes import ArraySpec
from .problem import Problem

# What a plan asks of its library when it is made. This one is never run.
NO_ARRAYS: Any = SimpleNamespace(
    allocator=lambda output: list,
    filled=lambda output, value: list,
    address=id,
)


def compile_kernels(
    call: Call, request: Request, operands: Sequence[ArraySpec], architecture: int
) -> None:
    """Compile all kernels of a request on operands that are aligned, for an architecture."""
    shape = call.loss.shape_of(call, operands[request.extra :])
    aligned = (0,) * len(operands)
    problem = Problem(call.unscaled, request, tuple(operands), aligned, shape, False, -architecture)
    call.loss.plan(NO_ARRAYS, problem)

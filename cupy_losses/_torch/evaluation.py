"""Requests on tensors: what is evaluated, and the tensors that result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack

from .._core.dtypes import dtype_name
from .._core.loss import Call, Request
from .._core.outputs import Output
from .._core.shapes import ArraySpec

Tensor = torch.Tensor
Run = Callable[[Call, Request, Sequence[Any]], Sequence[Any]]
# The same, told besides whether autocast is on.
AutocastRun = Callable[[Call, Request, Sequence[Tensor], bool], Sequence[Tensor]]


class Evaluation(NamedTuple):
    """A request on operands, and what evaluates other requests of the same loss."""

    call: Call
    request: Request
    operands: Sequence[Tensor]
    run: Run


def in_memory(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one whose elements do not lie in memory as they are.

    These are views of negated numbers, and the zeros for which forward-mode AD has no memory.
    """
    return tensor.clone() if tensor.is_neg() or tensor._is_zerotensor() else tensor


def arithmetic_dtype(operands: Sequence[Tensor]) -> torch.dtype:
    """The dtype of the arithmetic: float64 if an operand has it, else float32."""
    is_wide = any(operand.dtype == torch.float64 for operand in operands)
    return torch.float64 if is_wide else torch.float32


def spec_of(tensor: Tensor) -> ArraySpec:
    """A tensor without its data."""
    return ArraySpec(dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride())


def specs_of(call: Call, operands: Sequence[Tensor]) -> list[ArraySpec]:
    """The operands of the unscaled call without their data."""
    return [spec_of(tensor) for tensor in operands[: len(operands) - call.scaled]]


def outputs_of(
    call: Call, request: Request, operands: Sequence[Tensor], autocast: bool
) -> list[Output]:
    """The results of a request without their data."""
    specs = specs_of(call, operands)
    outputs = call.loss.outputs(call.unscaled, request, specs, autocast)
    return [output for output in outputs if output is not None]


def is_autocast(operands: Sequence[Tensor]) -> bool:
    """Whether autocast is on, on the device of the operands."""
    device = operands[-1].device.type
    if device == "meta":
        return False
    if torch._C._len_torch_function_stack():
        # A strict export records that autocast is entered, and does not switch it on.
        for mode in reversed(_get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
            for node in reversed(getattr(mode, "enter_autocast_nodes", ())):
                if node.args[0] == device:
                    return bool(node.args[2])
    return torch.is_autocast_enabled(device)

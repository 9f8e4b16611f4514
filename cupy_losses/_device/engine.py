"""The CUDA backend: evaluates requests on the arrays of a library.

The hot path is `run`: read the addresses, look the plan up, let it launch. Hyper-parameters are
arguments of the launches and no part of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.cache import keep
from .._core.dtypes import item_size
from .._core.loss import Call, Request
from .._core.memory import Memory, check_overwritten, without_memory
from .._core.notices import warn
from .._core.shapes import ArraySpec
from .._core.types import AnyArray
from .library import DeviceLibrary
from .plan import Plan
from .problem import Problem

_plans: dict[Any, Plan] = {}


def run(
    library: DeviceLibrary, call: Call, request: Request, operands: Sequence[AnyArray]
) -> list[AnyArray | None]:
    """Evaluate a request: the value, if asked for, then the wanted gradients."""
    plan, pointers = planned(library, call, request, operands)
    if plan.is_special:
        if call.loss.overwrites:
            _check_overwritten(library, call, request, operands, pointers)
        if plan.notice:
            warn(plan.notice)
    if plan.device == library.current_device():
        return plan.run(operands, pointers, call.parameters, call.scale)
    with library.use_device(plan.device):
        return plan.run(operands, pointers, call.parameters, call.scale)


def planned(
    library: DeviceLibrary, call: Call, request: Request, operands: Sequence[AnyArray]
) -> tuple[Plan, list[int]]:
    """The plan of a request on operands, and their addresses."""
    try:
        described, pointers = library.inspect(operands)
    except RuntimeError as error:
        raise _without_memory(library, call, operands) from error
    misaligned: Any = None
    for pointer in pointers:
        if pointer & 15:
            misaligned = tuple([pointer & 15 for pointer in pointers])
            break
    loss, reduction, _, weighted, masked, _, scaled, axis, row_weighted = call
    of_call = loss.key, reduction, weighted, masked, scaled, axis, row_weighted
    key = library, of_call, request, misaligned, described
    try:
        plan = _plans[key]
    except KeyError:
        plan = _new_plan(library, call, request, operands, misaligned or (0,) * len(pointers))
        keep(_plans, key, plan)
    return plan, pointers


def _check_overwritten(
    library: DeviceLibrary,
    call: Call,
    request: Request,
    operands: Sequence[AnyArray],
    pointers: Sequence[int],
) -> None:
    """Refuse to overwrite what is read: the addresses are those of the call, not of its plan."""
    memories = []
    for operand, pointer in zip(operands, pointers, strict=True):
        spec = library.spec(operand)
        size = item_size(spec.dtype)
        strides = tuple([step * size for step in spec.strides])
        memories.append(Memory(pointer, spec.shape, strides, size))
    check_overwritten(call, request, memories)


def _without_memory(library: DeviceLibrary, call: Call, operands: Sequence[AnyArray]) -> TypeError:
    """The error for an operand that has no address or no strides."""
    for name, operand in zip(reversed(call.names), reversed(operands), strict=False):
        try:
            library.inspect([operand])
        except RuntimeError as error:
            return without_memory(name, operand, error)
    return TypeError("an array has no memory")


def _new_plan(
    library: DeviceLibrary,
    call: Call,
    request: Request,
    operands: Sequence[AnyArray],
    misaligned: tuple[int, ...],
) -> Plan:
    """Check the arguments of a call and decide how to compute it."""
    assert not request.pair, "the host has pairs alone"
    names = request.names_in_messages(call)
    specs = tuple(
        _spec(library, name, operand) for name, operand in zip(names, operands, strict=True)
    )
    scale = specs[-1].dtype if call.scaled else ""
    count = len(specs) - call.scaled
    specs, misaligned = specs[:count], misaligned[:count]
    shape = call.loss.shape_of(call.unscaled, specs[request.extra :])
    device = _common_device(library, names, operands)
    problem = Problem(
        call.unscaled, request, specs, misaligned, shape, library.autocast(), device, scale
    )
    with library.use_device(device):
        plan: Plan = call.loss.plan(library, problem)
    return plan


def _spec(library: DeviceLibrary, name: str, array: AnyArray) -> ArraySpec:
    try:
        return library.spec(array)
    except TypeError as error:
        raise TypeError(f"{name} {error}") from error


def _common_device(
    library: DeviceLibrary, names: Sequence[str], operands: Sequence[AnyArray]
) -> int:
    devices = [library.device(operand) for operand in operands]
    if len(set(devices)) > 1:
        given = ", ".join(
            f"{name} on {f'cuda:{device}' if device >= 0 else 'the host'}"
            for name, device in zip(names, devices, strict=True)
        )
        raise ValueError(f"all arrays must be on the same device, got {given}")
    return devices[0]

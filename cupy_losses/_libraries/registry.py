"""Which library an array is from, and the backend that computes on it.

Libraries are recognised by the modules that the user has imported already: nothing here imports
CuPy or torch for a program that does not use them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .._core.losses import Call, Pass

Array = Any


class Backend(Protocol):
    """Computes losses of the arrays of one library on one kind of device."""

    def evaluate(self, call: Call, operands: Sequence[Array]) -> Array:
        """The loss, differentiable where the library differentiates."""

    def run(self, call: Call, todo: Pass, operands: Sequence[Array]) -> list[Array | None]:
        """One pass over the operands: the value, if asked for, then the gradients."""


# From the type of an array to what gives its backend, filled as types are met.
_backend_of: dict[type, Callable[[Array], Backend]] = {}


def resolve(call: Call, operands: Sequence[Array]) -> tuple[Backend, Sequence[Array]]:
    """The backend for a call, and all operands as arrays of the backend's library.

    The first argument decides on the library; host and device do not mix.
    """
    kind = type(operands[-1])
    backend_of = _backend_of.get(kind)
    if backend_of is not None:
        for operand in operands:
            if type(operand) is not kind:
                break
        else:
            return backend_of(operands[-1]), operands
    return _recognised(call, operands)


# ---- the cold path: types not met yet, libraries that mix, DLPack objects, what is no array ------

_ON_HOST = ("numpy", "torch cpu", "dlpack cpu")
_ON_DEVICE = ("cupy", "torch cuda", "dlpack cuda")
_DLPACK_DEVICES = {1: "dlpack cpu", 3: "dlpack cpu", 2: "dlpack cuda", 13: "dlpack cuda"}
_LIBRARY_OF = {"dlpack cpu": "numpy", "dlpack cuda": "cupy"}


def _kind(array: Array) -> str:
    """The library and device of an array; "" if it is no array."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.layout is not torch.strided:
            return f"torch {array.layout}"
        return f"torch {array.device.type}"
    if cupy is not None and isinstance(array, cupy.ndarray):
        return "cupy"
    if isinstance(array, np.ma.MaskedArray):
        return ""  # its mask would be ignored
    if isinstance(array, np.ndarray | np.generic):
        return "numpy"
    device = getattr(array, "__dlpack_device__", None)
    return "" if device is None else _DLPACK_DEVICES.get(int(device()[0]), "dlpack")


@functools.cache
def _backend(kind: str) -> Backend:
    if kind == "numpy":
        from .._host.pointwise import HostBackend

        return HostBackend()
    if kind == "cupy":
        from .._device.engine import CupyBackend

        return CupyBackend()
    from .._torch import bridge

    return bridge.CudaBackend() if kind == "torch cuda" else bridge.CpuBackend()


def _torch_backend(tensor: Array) -> Backend:
    return _backend("torch cuda" if tensor.is_cuda else "torch cpu")


def _recognised(call: Call, operands: Sequence[Array]) -> tuple[Backend, Sequence[Array]]:
    kinds = [_kind(operand) for operand in operands]
    for name, operand, kind in zip(call.names, operands, kinds, strict=True):
        if kind not in (*_ON_HOST, *_ON_DEVICE):
            raise TypeError(
                f"{name} must be a NumPy, CuPy or dense torch array, or an object with __dlpack__ "
                f"on a CUDA device, got {type(operand).__name__}{kind and f' ({kind})'}"
            )
    first = kinds[call.extra]
    side = _ON_HOST if first in _ON_HOST else _ON_DEVICE
    if any(kind not in side for kind in kinds):
        given = ", ".join(
            f"{name} on the {'host' if kind in _ON_HOST else 'device'}"
            for name, kind in zip(call.names, kinds, strict=True)
        )
        raise ValueError(f"all arrays must be on the same device, got {given}")
    target = _LIBRARY_OF.get(first, first)
    backend = _backend(target)
    converted = [
        operand
        if kind == target and not isinstance(operand, np.generic)
        else _convert(operand, kind, target, name)
        for operand, kind, name in zip(operands, kinds, call.names, strict=True)
    ]
    for operand in converted:
        if target in ("numpy", "cupy"):
            _backend_of[type(operand)] = lambda array: backend
        elif type(operand) in _plain_tensors():
            _backend_of[type(operand)] = _torch_backend
    return backend, converted


def _plain_tensors() -> tuple[type, ...]:
    torch = sys.modules["torch"]
    return torch.Tensor, torch.nn.Parameter


def _convert(array: Array, kind: str, target: str, name: str) -> Array:
    """The same memory as an array of another library, by DLPack."""
    if getattr(array, "requires_grad", False):
        raise ValueError(
            f"{name} requires grad, but the first argument is no torch tensor and the result would "
            f"carry no gradient: pass {name}.detach()"
        )
    if isinstance(array, np.generic):
        array = np.asarray(array)
    try:
        if target == "numpy":
            return array if kind == "numpy" else np.from_dlpack(array)
        if target == "cupy":
            from .._device.driver import cupy

            return cupy().from_dlpack(_torch_exporter(array) if kind == "torch cuda" else array)
        return sys.modules["torch"].from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be shared as a {target} array: {error}") from error


def _torch_exporter(tensor: Array) -> Array:
    from .._torch.bridge import Exporter

    return Exporter(tensor)

"""What else computes a loss on this machine: plain formulas, torch, libraries of kernels.

A peer makes its works of a loss and its operands, or says why it has none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import value_and_grad
from .._core.dtypes import dtype_name
from .._core.rows import RowFormula
from .._core.types import AnyArray
from .._device import driver
from .formulas import PLAIN
from .losses import NamedLoss


class LeftOut(Exception):  # noqa: N818  # nothing is wrong
    """Why a peer has no such loss here."""


class Works(NamedTuple):
    """What a peer computes of its operands: the loss, and the loss with its first gradient."""

    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, Any]]


def _ours(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    loss = functools.partial(function.function, reduction="mean")
    both = value_and_grad(loss)
    return Works(functools.partial(loss, *operands), functools.partial(both, *operands))


def _plain(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    formulas = PLAIN.get(function.name)
    if formulas is None:
        raise LeftOut("no formula of this loss")
    if isinstance(function.loss, RowFormula) and operands[0].ndim != 2:
        raise LeftOut("its formula over rows takes shapes (N, C) alone")
    return Works(*(functools.partial(formula, *operands) for formula in formulas))


def _eager(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    return _of_torch(_torch_function(function, operands), operands)


def _compiled(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    eager = _torch_function(function, operands)
    _check_on_gpu(operands)
    import torch

    torch._dynamo.reset()  # else it would compile for any shape, after the first one
    return _of_torch(torch.compile(eager), operands)


def _liger(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    kernel = _kernel("liger-kernel", function, operands)
    return _of_torch(kernel, operands, overwrites=True)


def _quack(function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    kernel = _kernel("quack-kernels", function, operands)
    return _of_torch(kernel, operands)


def _kernel(package: str, function: NamedLoss, operands: Sequence[AnyArray]) -> Callable[..., Any]:
    """The cross entropy of a package of kernels."""
    _check_on_gpu(operands)
    if function.name != "cross_entropy":
        raise LeftOut("measured of cross_entropy alone")
    kernel = cross_entropy_of(package)
    if kernel is None:
        raise LeftOut(f"not installed: pip install {package}")
    return kernel


OURS = "cupy_losses"
CROSS_ENTROPY = {
    "liger-kernel": "liger_kernel.transformers.functional:liger_cross_entropy",
    "quack-kernels": "quack.cross_entropy:cross_entropy",
}
PEERS: dict[str, Callable[[NamedLoss, Sequence[AnyArray]], Works]] = {
    "plain": _plain,
    "torch": _eager,
    "torch.compile": _compiled,
    "Liger-Kernel": _liger,
    "QuACK": _quack,
}


def works(name: str, function: NamedLoss, operands: Sequence[AnyArray]) -> Works:
    """The works of this package or of a peer.

    Raises:
        LeftOut: If it has none.

    """
    return (_ours if name == OURS else PEERS[name])(function, operands)


def _check_on_gpu(operands: Sequence[AnyArray]) -> None:
    if isinstance(operands[0], np.ndarray):
        raise LeftOut("measured on a GPU alone")


def _torch_function(function: NamedLoss, operands: Sequence[AnyArray]) -> Callable[..., Any]:
    """The function of torch that has the same name."""
    try:
        import torch
    except ModuleNotFoundError:
        raise LeftOut("not installed: pip install torch") from None
    if not isinstance(operands[0], np.ndarray) and not torch.cuda.is_available():
        raise LeftOut("torch finds no GPU")
    found: Callable[..., Any] | None = getattr(torch.nn.functional, function.name, None)
    if found is None:
        raise LeftOut("torch has no such loss")
    return found


def _of_torch(
    function: Callable[..., Any], operands: Sequence[AnyArray], overwrites: bool = False
) -> Works:
    """The works of a function of tensors, which may overwrite the first one."""
    import torch

    first, *others = map(_tensor, operands)
    own = first.clone() if overwrites else first
    leaf = (first.clone() if overwrites else first.detach()).requires_grad_()

    def both() -> tuple[Any, Any]:
        value = function(leaf, *others)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    return Works(functools.partial(function, own, *others), both)


def _tensor(array: AnyArray) -> Any:
    """The tensor of the same memory."""
    import torch

    if dtype_name(array.dtype) == "bfloat16":  # NumPy has no such dtype to hand over
        return torch.utils.dlpack.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.utils.dlpack.from_dlpack(array)


@functools.cache
def cross_entropy_of(package: str) -> Callable[..., Any] | None:
    """That of a package of kernels; None where it is not installed."""
    place = CROSS_ENTROPY[package]
    if importlib.util.find_spec(place.partition(".")[0]) is None:
        return None
    kernel: Callable[..., Any] = pkgutil.resolve_name(place)
    return kernel


def message(failure: Exception) -> str:
    """The kind of an error and the first line that it says."""
    return f"{type(failure).__name__}: {failure}".strip().splitlines()[0]


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """Let torch compute on one thread of the CPU, as NumPy does."""
    try:
        import torch
    except Exception:  # of any kind, which the peer says
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> None:
    """Give the memory of a device back that CuPy and torch keep, so that the other finds it."""
    driver.cupy().get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()

"""The values behind tensors that are traced or transformed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

_functorch = torch._C._functorch


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Let nothing that runs be recorded or transformed."""
    with temporarily_clear_interpreter_stack(), _disable_current_modes():
        yield


def samples(operands: Sequence[Any]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """For each sample, its place in each batch, the outermost first, and the tensors inside.

    What is no tensor stays as it is. The caller iterates inside `unwatched`.
    """
    pairs = [_unwrapped(t) for t in operands]
    sizes: dict[int, int] = {}
    for tensor, levels in pairs:
        sizes.update(zip(levels, tensor.shape, strict=False))
    batches = sorted(sizes)
    for number in np.ndindex(*(sizes[level] for level in batches)):
        place = dict(zip(batches, number, strict=True))
        yield number, [t[tuple(place[level] for level in levels)] for t, levels in pairs]


def _unwrapped(tensor: Any) -> tuple[Any, list[int]]:
    """What transforms have wrapped, with the axes of its batches in front, and their levels."""
    dims: list[tuple[int, int]] = []
    while isinstance(tensor, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_functionaltensor(tensor):
            torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
        elif _functorch.is_batchedtensor(tensor):
            level, dim = _functorch.maybe_get_level(tensor), _functorch.maybe_get_bdim(tensor)
            dims.insert(0, (level, dim))
        tensor = _functorch.get_unwrapped(tensor)
    for front, (_, dim) in enumerate(dims):  # counted without the axes in front
        tensor = tensor.movedim(front + dim, front)
    return tensor, [level for level, _ in dims]

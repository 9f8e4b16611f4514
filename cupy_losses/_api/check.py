"""The check of operand values, on demand: it waits for the device, so that it is off by default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from .._core.chunks import chunks
from .._core.dtypes import dtype_name
from .._core.locks import table_lock
from .._core.loss import Call, Domain, in_six_digits
from .._core.rows import RowFormula
from .._core.types import AnyArray
from .._libraries.registry import ArrayLibrary, resolve
from . import compiled

enabled: ContextVar[bool] = ContextVar("enabled", default=False)


def check_values() -> AbstractContextManager[None]:
    """Check, inside a `with` block, that operands are in the range that their loss is defined for.

    Probabilities in [0, 1], variances and counts not negative, signs 1 or -1, indices of classes
    in range or ignored, as the table of losses says. It reads the operands once more and waits for
    the device: for finding a mistake, not for training. Elements that `where` leaves out are not
    checked. Inside `torch.vmap` it reads one sample after the other. A call alone, which no `with`
    heads, checks nothing.

    Raises:
        ValueError: In the call of a loss: the argument, the first wrong element and its value.

    >>> import numpy as np
    >>> from cupy_losses import binary_cross_entropy, check_values
    >>> with check_values():
    ...     binary_cross_entropy(np.array([0.5, 1.5]), np.array([0.0, 1.0]))
    Traceback (most recent call last):
    ...
    ValueError: input must be in [0, 1], but input[1] is 1.5

    """
    if compiled.is_compiling():
        return compiled.call_outside_graph("check_values", check_values)
    return _checked()


_lock = table_lock()  # held while blocks are counted
_open = 0  # how many there are, in all threads


@contextmanager
def _checked() -> Iterator[None]:
    token = enabled.set(True)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        enabled.reset(token)


def _count(more: int) -> None:
    global _open
    with _lock:
        _open += more
        compiled.checks_values = _open > 0


def resolved(call: Call, operands: Sequence[AnyArray]) -> tuple[ArrayLibrary, Sequence[AnyArray]]:
    """The library of a call and all operands as arrays of it, whose values are checked if asked."""
    library, arrays = resolve(call, operands)
    if enabled.get():
        check_operands(library, call, arrays)
    return library, arrays


def check_operands(library: ArrayLibrary, call: Call, operands: Sequence[AnyArray]) -> None:
    """Raise if an operand has an element outside its domain."""
    with library.samples(operands) as samples:
        for number, own in samples:
            sample = f" of sample {', '.join(map(str, number))}" if number else ""
            _check_sample(call, library.plain(own), sample)


def _check_sample(call: Call, operands: Sequence[AnyArray], sample: str) -> None:
    for name, operand in zip(call.names, operands, strict=True):
        domain = call.loss.domain(call, name, operands)
        if domain is None:
            continue
        mask = _mask(call, name, operands) if call.masked else None
        first = _first_outside(domain, operand, mask)
        if first is None:
            continue
        own = first[len(first) - operand.ndim :]
        index = tuple(int(i) if n > 1 else 0 for i, n in zip(own, operand.shape, strict=True))
        place = f"{name}[{', '.join(map(str, index))}]" if index else name
        found = in_six_digits(operand[index].item())
        raise ValueError(f"{name} must be {domain}, but {place}{sample} is {found}")


def _first_outside(domain: Domain, operand: AnyArray, mask: AnyArray | None) -> list[int] | None:
    """The index of the first element outside of a domain, of those that the mask leaves.

    NumPy arrays are read a chunk at a time.
    """
    shape = tuple(operand.shape)
    if mask is not None:
        shape = np.broadcast_shapes(shape, tuple(mask.shape))
    for place in chunks(shape) if isinstance(operand, np.ndarray) else [()]:
        own = np.broadcast_to(operand, shape)[place] if place else operand
        wrong = ~domain.contains(_comparable(own))
        if mask is not None:
            wrong = wrong & (np.broadcast_to(mask, shape)[place] if place else mask)
        if bool(wrong.any()):
            first = [int(k) for k in np.argwhere(_to_host(wrong))[0]]
            # A place is indices, then a slice.
            for part in reversed(place):
                if isinstance(part, slice):
                    first[0] += part.start
                else:
                    first.insert(0, part)
            return first
    return None


def _mask(call: Call, name: str, operands: Sequence[AnyArray]) -> AnyArray:
    """The mask as it broadcasts with an operand: one of rows has no axis of their elements."""
    mask, loss = operands[0], call.loss
    if not isinstance(loss, RowFormula) or not loss.role(name).of_elements:
        return mask
    shape = tuple(operands[call.extra].shape)
    behind = len(shape) - 1 - loss.axis(shape, call.axis)
    if mask.ndim <= behind:
        return mask
    return mask[(..., None, *(slice(None),) * behind)]


def _comparable(array: AnyArray) -> AnyArray:
    # torch does not compare its wide unsigned integers, nor all libraries uint64 with -1.
    name = dtype_name(array.dtype)
    if name not in ("uint16", "uint32", "uint64"):
        return array
    signed = array.long() if hasattr(array, "long") else array.astype(np.int64)
    signed[signed < 0] = np.iinfo(np.int64).max  # a uint64 beyond int64 stays large
    return signed


def _to_host(array: AnyArray) -> Any:
    if hasattr(array, "cpu"):
        return array.cpu().numpy()
    return array.get() if hasattr(array, "get") else array

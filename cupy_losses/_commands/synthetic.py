"""Operands of a loss without data: their shapes and dtypes, and numbers that suit it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import numpy as np

from .._core.dtypes import item_size, numpy_dtype
from .._core.loss import Domain, Loss
from .._core.rows import RowFormula
from .._core.shapes import Shape
from .._core.types import AnyArray


def shape_of(text: str) -> Shape:
    """A shape from a text such as 32768x32768."""
    try:
        shape = tuple(int(length) for length in text.lower().split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise click.UsageError(
            f"--elements must be lengths of at least 1, such as 32768x32768, got {text!r}"
        )
    try:
        np.empty((0,) * len(shape))
    except ValueError:
        message = f"--elements has {len(shape)} lengths, more than an array has axes"
        raise click.UsageError(message) from None
    if math.prod(shape) >= 1 << 63:
        raise click.UsageError(f"--elements must be fewer than 2^63 elements, got {text!r}")
    return shape


class Operand(NamedTuple):
    """An operand without its numbers."""

    dtype: str
    shape: Shape
    domain: Domain | None


def described(loss: Loss, shape: Shape, dtype: str, axis: int | None = None) -> dict[str, Operand]:
    """What each operand must be of a loss of elements of this shape, with rows along an axis."""
    if not isinstance(loss, RowFormula):
        return {name: Operand(dtype, shape, loss.domains.get(name)) for name in loss.operands}
    found = {}
    for name in loss.operands:
        role = loss.role(name)
        own = shape if role.of_elements else loss.rows_of(shape, axis)
        if role.is_index:
            found[name] = Operand("int64", own, Domain(0, shape[loss.axis(shape, axis)] - 1))
        else:
            found[name] = Operand(dtype, own, loss.domains.get(name))
    return found


def memory(xp: Any) -> int:
    """The bytes that arrays of the module `xp` can take: of a device, those that are free."""
    if xp is np:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, _ = xp.cuda.runtime.memGetInfo()
    return int(free)


def drawn(operands: Sequence[Operand], xp: Any) -> list[AnyArray]:
    """Random operands of the array module `xp`, the same every time."""
    needed = sum(item_size(operand.dtype) * math.prod(operand.shape) for operand in operands)
    if xp is np and needed > memory(np):
        # The system would promise more memory than it has.
        raise click.UsageError(
            f"--elements asks for {needed / 2**30:.3g} GiB, this machine has "
            f"{memory(np) / 2**30:.3g} GiB of memory"
        )
    generator = xp.random.default_rng(0)
    arrays = (_draw(operand, generator, xp) for operand in operands)
    return [
        array.astype(numpy_dtype(operand.dtype), copy=False)
        for array, operand in zip(arrays, operands, strict=True)
    ]


def _draw(operand: Operand, generator: Any, xp: Any) -> AnyArray:
    dtype, shape, domain = operand
    if domain is None:
        # Errors on both sides of every kink.
        drawn = dtype if dtype in ("float32", "float64") else "float32"
        return generator.standard_normal(shape, dtype=drawn)
    if dtype == "int64":
        return generator.integers(0, int(domain.maximum) + 1, shape)
    if domain.minimum is None:
        low, high = domain.values
        return xp.where(generator.random(shape) < 0.5, low, high)
    numbers = generator.random(shape)
    # Half precision would round others to the ends, where derivatives are infinite.
    numbers *= 0.98
    numbers += domain.minimum + 0.01
    return numbers

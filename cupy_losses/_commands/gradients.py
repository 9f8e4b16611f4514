"""Gradients in files."""

from __future__ import annotations

from typing import Any

import numpy as np

from .evaluation import Evaluation, on_the_host

Array = Any


def save(file: str, evaluation: Evaluation) -> None:
    """Write the gradient by the first operand to FILE.npy, or those by all to FILE.npz."""
    _, denominator = evaluation.reference
    if file.endswith(".npz"):
        found = list(evaluation.gradients(len(evaluation.names), denominator))
        whole = zip(*[[_plain(array) for array in arrays] for _, arrays in found], strict=True)
        arrays = [own[0] if len(own) == 1 else np.concatenate(own) for own in whole]
        named: dict[str, Any] = dict(zip(evaluation.names, arrays, strict=True))
        np.savez(file, **named)
        return
    mapped: Array = None
    for place, (array,) in evaluation.gradients(1, denominator):
        own = _plain(array)
        if not place:
            np.save(file, own)
            continue
        if mapped is None:
            # Not in memory, which the operands may be larger than.
            shape = evaluation.operands[evaluation.names[0]].shape
            mapped = np.lib.format.open_memmap(file, "w+", own.dtype, shape)
        mapped[place] = own


def _plain(array: Array) -> Array:
    """A NumPy array whose dtype a file can name: NumPy has no bfloat16, float32 holds it all."""
    own = on_the_host(array)
    return own.astype(np.float32) if own.dtype.name == "bfloat16" else own

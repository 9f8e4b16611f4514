"""Gradients in files."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import click
import numpy as np

from .._core.types import AnyArray
from .evaluation import EvaluatedLoss, on_the_host
from .output import replacing, reserve
from .progress import Line


def save(file: str, evaluated: EvaluatedLoss, line: Line) -> None:
    """Write the gradient by the first operand to FILE.npy, or those by all to FILE.npz.

    A FILE that is there is replaced when all is written.
    """
    with replacing(file) as own:
        if file.endswith(".npz"):
            _write_all(own, evaluated, line)
        else:
            _write(own, evaluated, 0, line)


def check(file: str, evaluated: EvaluatedLoss) -> None:
    """Raise unless there is a gradient that FILE.npy is for."""
    name = evaluated.first_name
    if file.endswith(".npy") and name not in evaluated.names:
        raise click.ClickException(
            f"--gradient {file} is by {name}, by which there is no gradient: save those by the "
            "other operands to a .npz file"
        )


def _write_all(file: str, evaluated: EvaluatedLoss, line: Line) -> None:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(file)) as folder:
        arrays: dict[str, Any] = {}
        for number, name in enumerate(evaluated.names):
            # Not in memory, which the operands may be larger than.
            own = f"{folder}/{number}.npy"
            _write(own, evaluated, number, line)
            arrays[name] = np.load(own, mmap_mode="r")
        np.savez(file, **arrays)


def _write(file: str, evaluated: EvaluatedLoss, number: int, line: Line) -> None:
    """Write a gradient to a .npy file, in the parts that it is computed in."""
    mapped: AnyArray = None
    text = f"gradient by {evaluated.names[number]}, saved"
    for place, gradient in line.each(text, evaluated.parts(number), evaluated.gradient(number)):
        own = _plain(gradient)
        if not place:
            np.save(file, own)
            continue
        if mapped is None:
            shape = evaluated.operands[evaluated.names[number]].shape
            mapped = np.lib.format.open_memmap(file, "w+", own.dtype, shape)
            with open(file, "r+b") as written:
                reserve(written)
        mapped[place] = own


def _plain(array: AnyArray) -> AnyArray:
    """A NumPy array whose dtype a file can name: NumPy has no bfloat16, float32 holds it all."""
    own = on_the_host(array)
    return own.astype(np.float32) if own.dtype.name == "bfloat16" else own

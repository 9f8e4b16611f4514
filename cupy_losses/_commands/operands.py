"""The operands of a loss: from files, drawn, or of the real data of the package."""

from __future__ import annotations

import functools
import importlib.resources
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from .._core.chunks import places
from .._core.dtypes import numpy_dtype
from .._core.rows import RowFormula
from .._core.types import AnyArray
from . import files, synthetic
from .evaluation import PART
from .losses import NamedLoss
from .output import reserve


@dataclass(frozen=True)
class Given:
    """What the command line says of the operands: files by option or by argument.

    Those `by_name` have options of their names: weights and a mask.
    """

    prediction: str | None
    target: str | None
    operands: Sequence[str]  # NAME=FILE
    by_name: Mapping[str, str | None]
    elements: str | None
    dtype: str | None

    @property
    def has_files(self) -> bool:
        """Whether an operand comes from a file."""
        return bool(self.operands) or (self.prediction, self.target) != (None, None)

    @property
    def files(self) -> list[str]:
        """All files, weights and masks among them."""
        named = [text.partition("=")[2] for text in self.operands]
        every = (self.prediction, self.target, *self.by_name.values(), *named)
        return [location for location in every if location]


class Operands:
    """The operands of one loss after the other, arrays of the module `xp`."""

    def __init__(self, given: Given, xp: Any) -> None:
        if given.elements is not None and given.has_files:
            raise click.UsageError("--elements makes its own operands: give no files beside it")
        if given.dtype:
            check_dtype(given.dtype)
        self._given, self._xp = given, xp
        # Most losses have the same ones: each is read or drawn once.
        self._read = functools.cache(files.read)
        self._drawn = functools.lru_cache(1)(synthetic.drawn)

    def of(self, function: NamedLoss, arguments: Mapping[str, Any]) -> dict[str, AnyArray]:
        """The operands of a loss by argument, given those that are no arrays."""
        arrays = self._made(function, arguments)
        for name, location in _locations(self._given, function, arrays).items():
            arrays[name] = self._read(name, location)
        return {
            name: self._xp.asarray(_converted(function, name, array, self._given.dtype))
            for name, array in arrays.items()
        }

    def _made(self, function: NamedLoss, arguments: Mapping[str, Any]) -> dict[str, AnyArray]:
        """Those that are not from files."""
        given = self._given
        if given.has_files:
            return {}
        if given.elements is not None:
            shape = synthetic.shape_of(given.elements)
            loss, axis = function.variant(arguments), arguments.get("axis")
            described = synthetic.described(loss, shape, given.dtype or "float32", axis)
            drawn = self._drawn(tuple(described.values()), self._xp)
            return dict(zip(described, drawn, strict=True))
        if function.name not in OF_DIABETES:
            raise click.UsageError(
                f"{function.name} needs operands: {_how(function.arrays)}; or --elements SHAPE"
            )
        return _diabetes()


def source(given: Given) -> str:
    """Where the operands are from."""
    if given.elements:
        return f"synthetic, {given.elements}"
    if given.prediction and given.target and not given.operands:
        return f"{given.prediction} against {given.target}"
    if given.has_files:
        return ", ".join(filter(None, (given.prediction, given.target, *given.operands)))
    return "progression of diabetes, held-out patients, least squares"


def _locations(given: Given, function: NamedLoss, made: Mapping[str, AnyArray]) -> dict[str, str]:
    """The file of each argument that is not `made`; each is given once, none is missing."""
    pairs = [(function.arrays[0], given.prediction), ("target", given.target)]
    pairs += given.by_name.items()
    for text in given.operands:
        name, equals, location = text.partition("=")
        if not equals:
            raise click.UsageError(f"--operand must look like NAME=FILE, got {text!r}")
        pairs.append((name, location))
    found: dict[str, str] = {}
    for name, location_of in pairs:
        if location_of is None:
            continue
        if name not in (*function.arrays, *function.optional):
            own = ", ".join((*function.arrays, *function.optional))
            raise click.UsageError(f"{function.name} has no operand {name}: it has {own}")
        if name in found:
            raise click.UsageError(f"the operand {name} is given twice")
        if not location_of:
            raise click.UsageError(f"the operand {name} has no file name")
        found[name] = location_of
    missing = [name for name in function.arrays if name not in found and name not in made]
    if missing:
        raise click.UsageError(f"{function.name} needs more operands: {_how(missing)}")
    return found


def _how(missing: Sequence[str]) -> str:
    options = {"input": "--prediction FILE", "target": "--target FILE"}
    return " ".join(options.get(name, f"--operand {name}=FILE") for name in missing)


def _converted(function: NamedLoss, name: str, array: AnyArray, dtype: str | None) -> AnyArray:
    """An operand in the dtype that was asked for; indices and masks keep theirs."""
    is_integer = array.dtype.kind in "iu"
    if name == "where":
        return _flags(array)
    loss = function.loss
    role = loss.role(name) if isinstance(loss, RowFormula) else None
    if role is not None and role.is_index and is_integer:
        return array
    if dtype is None and is_integer and (role or name == function.arrays[0]):
        # Whole numbers, of a text file for example, where a loss takes real ones.
        dtype = "float64"
    return array if dtype is None else _cast(array, numpy_dtype(dtype))


def _flags(array: AnyArray) -> AnyArray:
    """A mask of booleans, from numbers that are 0 or 1: many files have no others."""
    if array.dtype == bool:
        return array
    for place in places(array.shape, PART):
        own = array[place]
        wrong = (own != 0) & (own != 1)
        if wrong.any():
            value = own[wrong].reshape(-1)[0]
            empty = ", as an empty field is read" if np.isnan(value) else ""
            raise click.ClickException(
                f"where must hold true and false, or 1 and 0, got {value}{empty}"
            )
    return _cast(array, np.dtype(bool))


def _cast(array: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """An array in a dtype: of a mapped file, which may be larger than memory, in another one."""
    if array.dtype == dtype or not isinstance(array, np.memmap):
        return array.astype(dtype, copy=False)
    with tempfile.TemporaryFile() as file:
        file.truncate(array.size * dtype.itemsize)
        try:
            reserve(file)
        except OSError as error:
            error.filename = tempfile.gettempdir()
            raise
        mapped = np.memmap(file, dtype, "r+", shape=array.shape)
    for place in places(array.shape, PART):
        mapped[place] = array[place]
    return mapped


def check_dtype(name: str) -> None:
    """Raise unless NumPy can make arrays of a floating dtype here."""
    try:
        numpy_dtype(name)
    except ModuleNotFoundError as error:
        raise click.UsageError(str(error)) from None


# The losses of the real data, in the order in which they are shown.
OF_DIABETES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def _diabetes() -> dict[str, AnyArray]:
    """Predictions for every third patient, from a least-squares fit to the others."""
    file = importlib.resources.files("cupy_losses") / "data" / "diabetes.csv"
    with file.open(encoding="utf-8") as lines:
        table = np.loadtxt(lines, delimiter=",")
    held_out = np.arange(len(table)) % 3 == 0
    features = np.column_stack([np.ones(len(table)), table[:, :-1]])
    fit, *_ = np.linalg.lstsq(features[~held_out], table[~held_out, -1], rcond=None)
    prediction = (features[held_out] @ fit).astype(np.float32)
    return {"input": prediction, "target": table[held_out, -1].astype(np.float32)}

"""Arrays of numbers from files: .npy, .npz, .csv and .parquet."""

from __future__ import annotations

import csv
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

Array = Any


def read(name: str, location: str) -> Array:
    """The array `name` from FILE.npy, mapped, FILE.npz:KEY, FILE.csv or FILE.parquet."""
    file, key = _split(location)
    reader = _READERS.get(Path(file).suffix.lower())
    if reader is None:
        *endings, last = _READERS
        raise click.ClickException(
            f"{name}: the name of {location} must end in {', '.join(endings)} or {last}"
        )
    if not Path(file).exists():
        raise click.ClickException(f"{name}: there is no file {file}")
    try:
        array = reader(file, key)
    except OSError as error:
        reason = error.strerror or error
        raise click.ClickException(f"{name}: {file} cannot be read: {reason}") from None
    except (EOFError, ValueError, zipfile.BadZipFile) as error:
        raise click.ClickException(f"{name}: {file} {error}") from None
    if array.dtype.kind not in "biufc":
        what = "text" if array.dtype.kind in "SU" else f"dtype {array.dtype.name}"
        if array.dtype == "V2":
            what += ", which may be bfloat16: save it as float32"
        raise click.ClickException(f"{name}: {location} must hold numbers, got {what}")
    if not array.size:
        raise click.ClickException(f"{name}: {location} of shape {array.shape} has no elements")
    return array


def is_file_of(location: str, file: str) -> bool:
    """Whether an array is in a file, by whatever name this has."""
    own, _ = _split(location)
    return os.path.exists(own) and os.path.exists(file) and os.path.samefile(own, file)


def _split(location: str) -> tuple[str, str]:
    """A file and what is asked for in it."""
    file, colon, key = location.rpartition(":")
    return (file, key) if colon and file.lower().endswith(".npz") else (location, "")


def _npy(file: str, key: str) -> Array:
    with open(file, "rb") as start:
        if start.read(6) != b"\x93NUMPY":
            raise ValueError("holds no array as numpy.save writes it")
    return _loaded(lambda: np.load(file, mmap_mode="r"))


def _loaded(load: Callable[[], Array]) -> Array:
    """What NumPy loads, with errors that say what is wrong with the file."""
    try:
        return load()
    except (OSError, MemoryError):
        raise
    except RuntimeError as error:  # of zipfile: a password, a method of compression
        raise ValueError(f"cannot be read: {error}") from None
    except Exception as error:
        # Of a header or of compressed bytes anything may come, from whatever reads them.
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise ValueError("must hold numbers, got Python objects") from None
        raise ValueError("is cut off or damaged") from None


def _npz(file: str, key: str) -> Array:
    if not zipfile.is_zipfile(file):
        raise ValueError("holds no arrays as numpy.savez writes them")
    with np.load(file) as arrays:
        if not arrays.files:
            raise ValueError("has no arrays")
        if not key and len(arrays.files) != 1:
            raise ValueError(f"has several arrays, name one: {_choices(file, arrays.files)}")
        if key and key not in arrays.files:
            raise ValueError(f"has no array {key!r}, it has {_choices(file, arrays.files)}")
        key = key or arrays.files[0]
        array = _loaded(lambda: arrays[key])
    if not isinstance(array, np.ndarray):
        raise ValueError(f"holds no array as numpy.savez writes them, but {key}")
    return array


def _choices(file: str, keys: Sequence[str]) -> str:
    return ", ".join(f"{file}:{key}" for key in keys)


def _csv(file: str, key: str) -> Array:
    """Rows of numbers under a line of names, or none; a single column is a vector.

    An empty field is NaN, as a null of Parquet is: also a blank line, where each has one field.
    Blank lines at the end are none.
    """
    try:
        with open(file, newline="", encoding="utf-8-sig") as text:
            lines = list(enumerate(csv.reader(text), 1))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError("is no text of comma-separated values") from None
    while lines and not lines[-1][1]:
        lines.pop()
    # 1_000 is no number, but no name either.
    if lines and any(lines[0][1]) and all(_of_python(field) is None for field in lines[0][1]):
        lines = lines[1:]
    columns = next((len(row) for _, row in lines if row), 0)
    numbers = np.array([_numbers(place, row, columns) for place, row in lines])
    return numbers[:, 0] if columns == 1 else numbers


def _numbers(place: int, row: Sequence[str], columns: int) -> list[int | float]:
    """Those of a line, which has as many fields as the first one."""
    if not row and columns == 1:
        return [math.nan]
    if not row:
        raise ValueError(f"line {place} is blank")
    if len(row) != columns:
        raise ValueError(f"line {place} has {len(row)} fields, the first of numbers {columns}")
    found = []
    for field in row:
        value = number(field) if field else math.nan
        if value is None:
            raise ValueError(f"line {place} must hold numbers separated by commas, got {field!r}")
        found.append(value)
    return found


def number(text: str) -> int | float | None:
    """The number that a text is, an integer if it has 64 bits at most; None for any other text."""
    return None if "_" in text else _of_python(text)


def _of_python(text: str) -> int | float | None:
    """What Python reads as a number, which may have _ between its digits."""
    try:
        whole = int(text)
    except ValueError:
        pass
    else:
        if -(2**63) <= whole < 2**64:
            return whole
    try:
        return float(text)
    except ValueError:
        return None


def _parquet(file: str, key: str) -> Array:
    """The columns side by side; a single one is a vector."""
    columns = _columns(file)
    if not columns or any(column.dtype.kind not in "biuf" for column in columns):
        raise ValueError("must hold columns of numbers alone")
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)


def _columns(file: str) -> list[Array]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        return _columns_by_pandas(file)
    try:
        table = parquet.read_table(file)
    except ValueError:
        raise ValueError("is no Parquet file that pyarrow can read") from None
    # pandas stores the index of its rows among the columns: a range as a dict, any other by name.
    pandas = table.schema.pandas_metadata or {}
    index = [name for name in pandas.get("index_columns", ()) if isinstance(name, str)]
    return [table[name].to_numpy() for name in table.column_names if name not in index]


def _columns_by_pandas(file: str) -> list[Array]:
    try:
        import pandas
    except ModuleNotFoundError:
        raise ValueError("needs pyarrow or pandas: pip install pyarrow") from None
    frame = pandas.read_parquet(file)
    return [frame[name].to_numpy() for name in frame]


_READERS: dict[str, Callable[[str, str], Array]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}

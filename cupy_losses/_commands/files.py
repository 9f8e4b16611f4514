"""Arrays of numbers from files: .npy, .npz, .csv and .parquet."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from .._core.types import AnyArray

_FLAGS = {"true": True, "false": False}  # in capitals or not
_MISSING = ("na", "n/a", "<na>", "null", "none", "-", "?")  # what stands for a number elsewhere


def read(name: str, location: str) -> AnyArray:
    """The array `name` from a file, a .npy file mapped.

    A .npz file has it as FILE.npz:KEY. FILE.csv:COLUMN and FILE.parquet:COLUMN are a column, with
    several names between commas columns side by side.
    """
    file, key = _split(location)
    reader = _READERS.get(Path(file).suffix.lower())
    if reader is None:
        own, _, _ = file.rpartition(":")
        if Path(own).suffix.lower() == ".npy":
            raise click.ClickException(f"{name}: {own} holds one array, which has no name: {file}")
        *endings, last = _READERS
        raise click.ClickException(
            f"{name}: the name of {location} must end in {', '.join(endings)} or {last}"
        )
    if not Path(file).exists():
        raise click.ClickException(f"{name}: there is no file {file}")
    if not (Path(file).is_file() or Path(file).is_dir()):
        raise click.ClickException(f"{name}: {file} is no regular file")
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
    found = re.fullmatch(r"(.*?\.(?:npz|csv|parquet)):(.*)", location, re.IGNORECASE | re.DOTALL)
    return (found[1], found[2]) if found else (location, "")


@contextlib.contextmanager
def mistakes_in_files(locations: Sequence[str], ignored: int | None = None) -> Iterator[None]:
    """Let errors say what to write in a file, where they say what to call.

    Where shapes do not fit, they name the columns of tables that are read as a whole; where an
    index is not of integers, how it is written.

    Args:
        locations: What was read.
        ignored: The class of rows to ignore, if the loss has one.

    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if "must have an integer dtype" in str(error):
            what = re.sub("[:;] pass .*", "", str(error))
            own = "" if ignored is None else f", and {ignored} for rows to ignore"
            raise click.ClickException(f"{what}: write classes as integers{own}") from None
        whole = [_columns_of(location) for location in locations]
        columns = [
            f"{file} has columns: name one of {choices}" for file, choices in filter(None, whole)
        ]
        if "shape" not in str(error) or not columns:
            raise
        raise click.ClickException("; ".join([str(error), *columns])) from None


def _columns_of(location: str) -> tuple[str, str] | None:
    """A table that is read as a whole, and its columns if they are several and have names."""
    file, key = _split(location)
    readers: dict[str, Callable[[str], Sequence[str]]] = {
        ".csv": lambda file: _table(file)[0],
        ".parquet": lambda file: [*_columns(file)],
    }
    reader = readers.get(Path(file).suffix.lower())
    names = [] if key or reader is None else reader(file)
    return (file, _choices(file, names)) if len(names) > 1 else None


def _asked(file: str, key: str, known: Sequence[str]) -> list[str]:
    """The columns that are asked for, of those that a table has."""
    names = [key] if key in known else key.split(",")
    for name in names:
        if known.count(name) != 1:
            several = "several columns" if name in known else "no column"
            advice = ""
            if len(known) == 1 and re.search("[;\t|]", known[0]):
                advice = "; columns are separated by commas"
            raise ValueError(f"has {several} {name!r}, it has {_choices(file, known)}{advice}")
    return names


def _npy(file: str, key: str) -> AnyArray:
    with open(file, "rb") as start:
        if start.read(6) != b"\x93NUMPY":
            raise ValueError("holds no array as numpy.save writes it")
    return _loaded(lambda: np.load(file, mmap_mode="r"))


def _loaded(load: Callable[[], AnyArray]) -> AnyArray:
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


def _npz(file: str, key: str) -> AnyArray:
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
    return ", ".join(f"{file}:{key}" for key in keys if key)


def _csv(file: str, key: str) -> AnyArray:
    """Rows of numbers under a line of names, or none; a single column is a vector.

    Where all that is read is true or false, in any case, the array is boolean.
    An empty field is NaN, as a null of Parquet is: also a blank line, where each has one field.
    Blank lines at the end are none. Columns that are asked for, by their names or, where there are
    no names, by their numbers from 0 on, are read alone: others may be of text.
    """
    names, lines = _table(file, key)
    columns = next((len(row) for _, row in lines if row), 0)
    if not key:
        # The index of rows that pandas writes has no name.
        first = int(len(names) > 1 and not names[0])
        chosen = [*range(first, columns)]
    else:
        known = names or [str(number) for number in range(columns)]
        if not known:
            raise ValueError("is empty")
        chosen = [known.index(name) for name in _asked(file, key, known)]
    try:
        numbers = np.array([_numbers(place, row, columns, chosen) for place, row in lines])
    except ValueError as error:
        # Those of text cannot be read together with the others.
        advice = f"; name a column: {_choices(file, names)}" if len(names) > 1 and not key else ""
        raise ValueError(f"{error}{advice}") from None
    return numbers[:, 0] if len(chosen) == 1 and numbers.ndim == 2 else numbers


def _table(file: str, key: str = "") -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of a file of text, if it has any, and its other lines with their numbers."""
    try:
        with open(file, newline="", encoding="utf-8-sig") as text:
            lines = list(enumerate(csv.reader(text, skipinitialspace=True), 1))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError("is no text of comma-separated values in UTF-8") from None
    while lines and not lines[-1][1]:
        lines.pop()
    first = lines[0][1] if lines else []
    # 1_000 is no number, but no name either. Flags alone are a mask.
    are_flags = all(not field or flag(field) is not None for field in first)
    are_missing = all(_is_missing(field) for field in first)  # numbers, if badly written
    are_values = are_flags or are_missing
    are_names = not are_values and all(_of_python(field) is None for field in first)
    if are_names or _are_numbered(first, lines[1:]):
        return first, lines[1:]
    # A name among numbers, or a number, such as a year, that is not the one of a column.
    asked = [key] if key in first else key.split(",")
    numbers = [*map(str, range(len(first)))]
    are_asked = all(name in first and name not in numbers for name in asked)
    return (first, lines[1:]) if key and are_asked else ([], lines)


def _are_numbered(first: list[str], others: Sequence[tuple[int, list[str]]]) -> bool:
    """Whether a line is what pandas writes for columns without names: their numbers.

    The index ahead of them has no name. Without it they may be numbers as others: they are names
    beside lines of which no field is an integer.
    """
    if len(first) > 1 and first == ["", *map(str, range(len(first) - 1))]:
        return True
    if not first or first != [*map(str, range(len(first)))]:
        return False
    fields = [field for _, row in others for field in row if field]
    if not fields or any(isinstance(number(field), int) for field in fields):
        return False
    if len(first) > 1:
        return True
    warnings.warn(
        "the first line of a .csv file, 0, is read as a number: if it is the name that pandas "
        "gives a column, write the file with header=False",
        stacklevel=2,
    )
    return False


def _numbers(
    place: int, row: Sequence[str], columns: int, chosen: Sequence[int]
) -> list[int | float]:
    """Those of the columns that are chosen; a line has as many fields as the first one."""
    if not row and columns == 1:
        return [math.nan]
    if not row:
        raise ValueError(f"line {place} is blank")
    if len(row) != columns:
        raise ValueError(f"line {place} has {len(row)} fields, the first of numbers {columns}")
    found = []
    for column in chosen:
        field = row[column]
        value: bool | int | float | None = math.nan
        if field:
            value = flag(field)
            value = number(field) if value is None else value
        if value is None:
            advice = "; leave a missing number empty" if _is_missing(field) else ""
            raise ValueError(
                f"line {place} must hold numbers separated by commas, got {field!r}{advice}"
            )
        found.append(value)
    return found


def _is_missing(field: str) -> bool:
    return field.strip().lower() in _MISSING


def flag(text: str) -> bool | None:
    """The flag that a text is; None for any other text."""
    return _FLAGS.get(text.strip().lower())


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


def _parquet(file: str, key: str) -> AnyArray:
    """The columns, all or those that are asked for, side by side; a single one is a vector."""
    table = _columns(file)
    names = _asked(file, key, [*table]) if key else [*table]
    if not names:
        raise ValueError("has no columns")
    for name in names:
        if table[name].dtype.kind not in "biuf":
            several = len(names) > 1 and not key
            advice = f"; name a column: {_choices(file, names)}" if several else ""
            raise ValueError(f"has no numbers in its column {name!r}{advice}")
    columns = [table[name] for name in names]
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)


def _columns(file: str) -> dict[str, AnyArray]:
    try:
        from pyarrow import parquet
    except ImportError:
        return _columns_by_pandas(file)
    present = _read_by("pyarrow", lambda: parquet.read_schema(file)).names
    twice = next((name for name in present if present.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"has several columns {twice!r}")
    table = _read_by("pyarrow", lambda: parquet.read_table(file))
    # pandas stores the index of its rows among the columns: a range as a dict, any other by name.
    pandas = table.schema.pandas_metadata or {}
    index = [name for name in pandas.get("index_columns", ()) if isinstance(name, str)]
    return {
        name: _of_arrow(table[name]).to_numpy() for name in table.column_names if name not in index
    }


def _of_arrow(column: Any) -> Any:
    """A column whose nulls are NaN: flags are numbers where some are missing."""
    is_of_flags = str(column.type) == "bool"
    return column.cast("float64") if is_of_flags and column.null_count else column


def _columns_by_pandas(file: str) -> dict[str, AnyArray]:
    try:
        import pandas

        # It raises an ImportError where no package is there that reads such files for it.
        frame = _read_by("pandas", lambda: pandas.read_parquet(file))
    except ImportError:
        raise ValueError("needs pyarrow: pip install pyarrow") from None
    return {str(name): frame[name].to_numpy() for name in frame}


def _read_by(package: str, load: Callable[[], Any]) -> Any:
    """A table that a package reads; of a damaged file anything may come."""
    try:
        return load()
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"is no Parquet file that {package} can read") from None


_READERS: dict[str, Callable[[str, str], AnyArray]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}

"""The one table of dtypes: C++ type, bytes of an element, rank in promotion; and their names."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class DType(NamedTuple):
    """What is known of a dtype; `rank` is that in promotion, 0 of one that never decides."""

    c_type: str
    item_size: int
    rank: int = 0


DTYPES = {
    "float16": DType("__half", 2, rank=1),
    "bfloat16": DType("__nv_bfloat16", 2, rank=1),
    "float32": DType("float", 4, rank=2),
    "float64": DType("double", 8, rank=3),
    "bool": DType("bool", 1),
    "int8": DType("signed char", 1),
    "int16": DType("short", 2),
    "int32": DType("int", 4),
    "int64": DType("long long", 8),
    "uint8": DType("unsigned char", 1),
    "uint16": DType("unsigned short", 2),
    "uint32": DType("unsigned", 4),
    "uint64": DType("unsigned long long", 8),
}
FLOATING = tuple(name for name, dtype in DTYPES.items() if dtype.rank)
INTEGER = tuple(name for name in DTYPES if name.startswith(("int", "uint")))


_FLOAT = struct.Struct("f")


def in_float32(x: float) -> float:
    """A number rounded to float32, which NumPy takes a microsecond for."""
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)
    return rounded


def c_type(dtype: str) -> str:
    """The C++ type of an element."""
    return DTYPES[dtype].c_type


def item_size(dtype: str) -> int:
    """The bytes of an element."""
    return DTYPES[dtype].item_size


def promoted(dtypes: set[str]) -> str:
    """The widest floating dtype; float32 where both kinds of half precision meet."""
    floating = dtypes.intersection(FLOATING)
    if floating == {"float16", "bfloat16"}:
        return "float32"
    return max(floating, key=lambda name: DTYPES[name].rank)


@functools.lru_cache(maxsize=1024)
def dtype_name(dtype: object) -> str:
    """The name of a dtype of any library, which NumPy takes over a microsecond to put together."""
    name: str | None = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name or str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, bfloat16 included.

    Raises:
        ModuleNotFoundError: If that needs a package which is not there.

    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("bfloat16 needs ml_dtypes: pip install ml_dtypes") from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def check_dtypes(dtypes: Sequence[str], names: Sequence[str]) -> None:
    """Raise unless every dtype is supported and at least one is floating."""
    for dtype, name in zip(dtypes, names, strict=True):
        if name == "where" and dtype != "bool":
            raise TypeError(f"where must have dtype bool, got {dtype}: pass where != 0")
        if dtype not in DTYPES:
            real = f"{', '.join(FLOATING)}, an integer or bool"
            raise TypeError(f"{name} must have a real dtype ({real}), got {dtype}")
    if not any(dtype in FLOATING for dtype in dtypes):
        given = ", ".join(f"{n} {dtype}" for n, dtype in zip(names, dtypes, strict=True))
        raise TypeError(f"at least one of {', '.join(names)} must be floating, got {given}")

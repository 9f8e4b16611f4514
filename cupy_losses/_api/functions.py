"""The functions of this package by names, which stand for them in graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Array = Any

functions: dict[str, Callable[..., Array]] = {}


def register(function: Callable[..., Array]) -> str:
    """A name for a function, unlike all others."""
    name = f"{function.__module__}.{function.__qualname__}"
    if name in functions:
        name += f" {len(functions)}"
    functions[name] = function
    return name


def is_registered(function: Callable[..., Array]) -> bool:
    """Whether a function has a name."""
    return any(known is function for known in functions.values())

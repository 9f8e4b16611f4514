"""The functions of this package by names, which stand for them in graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

Array = Any

# Losses of a user, which may be defined again and again, are not kept by their names.
functions: WeakValueDictionary[str, Callable[..., Array]] = WeakValueDictionary()
_numbers = itertools.count()


def register(function: Callable[..., Array]) -> str:
    """A name for a function, unlike all others."""
    name = f"{function.__module__}.{function.__qualname__}"
    if name in functions:
        name += f" {next(_numbers)}"
    functions[name] = function
    return name


def call(name: str, /, *args: Any, **kwargs: Any) -> Array:
    """Call a function by its name."""
    return functions[name](*args, **kwargs)


def is_registered(function: Callable[..., Array]) -> bool:
    """Whether a function has a name."""
    return any(known is function for known in functions.values())

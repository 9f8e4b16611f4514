"""The functions of this package by names, which stand for them in graphs."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from .._core.locks import table_lock
from .._core.types import AnyArray

# Losses of a user, which may be defined again and again, are not kept by their names.
functions: WeakValueDictionary[str, Callable[..., AnyArray]] = WeakValueDictionary()
_numbers = itertools.count()
_lock = table_lock()  # held while a name is found and taken, and while all are read


def register(function: Callable[..., AnyArray]) -> str:
    """A name for a function, unlike all others."""
    name = f"{function.__module__}.{function.__qualname__}"
    with _lock:
        if name in functions:
            name += f" {next(_numbers)}"
        functions[name] = function
    return name


def names() -> list[str]:
    """All names."""
    with _lock:
        return list(functions)


def call(name: str, /, *args: Any, **kwargs: Any) -> AnyArray:
    """Call a function by its name."""
    return functions[name](*args, **kwargs)


def call_with_numbers(name: str, args: Any, kwargs: Any) -> AnyArray:
    """Call a function by its name, where torch.compile has made arrays of NumPy's numbers.

    What has a default is no array.
    """
    parameters = inspect.signature(functions[name]).parameters
    numbers = {n for n, p in parameters.items() if p.default not in (p.empty, None)}

    def own(name: str | None, value: Any) -> Any:
        is_number = name in numbers and isinstance(value, np.ndarray) and value.ndim == 0
        return value.item() if is_number else value

    parameter_names = itertools.chain(parameters, itertools.repeat(None))
    by_position = [own(name, value) for name, value in zip(parameter_names, args, strict=False)]
    return call(name, *by_position, **{name: own(name, value) for name, value in kwargs.items()})


def is_registered(function: Callable[..., AnyArray]) -> bool:
    """Whether a function has a name."""
    with _lock:
        return any(known is function for known in functions.values())

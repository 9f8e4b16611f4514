"""What tells two functions apart: their code, and the values that they have from around them."""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
import uuid
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

# Their text says all of them.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, np.dtype)
_NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__firstlineno__"}


def fingerprint(function: Any) -> str:
    """A text that two functions share only if they compute the same.

    It has no address, and no order of a set, so that it is the same in every process. In place of a
    value that can be neither looked into nor pickled it has a random number: then it is a new one
    each time, also in processes that were forked from one.
    """
    try:
        return _text(function, ())
    except RecursionError:
        return _unknown()


def _unknown() -> str:
    return f"object {uuid.uuid4().hex}"


def _text(x: Any, within: tuple[Any, ...]) -> str:
    """What a value is; `within`: the values that it is a part of."""
    if isinstance(x, _PLAIN) and type(x).__module__ in ("builtins", "numpy", "numpy.dtypes"):
        return f"{type(x).__name__} {x!r}"
    for depth, outer in enumerate(within):
        if x is outer:
            return f"value {depth}"
    within = (*within, x)

    def of(*parts: Any) -> str:
        return f"({', '.join(_text(part, within) for part in parts)})"

    kind = type(x)
    if kind is tuple or kind is list:
        return kind.__name__ + of(*x)
    if kind is dict:
        return "dict" + of(*x.items())
    if kind is set or kind is frozenset:
        return f"set({', '.join(sorted(_text(part, within) for part in x))})"
    if kind is np.ndarray and not x.dtype.hasobject:
        return of(x.dtype, x.shape, hashlib.sha256(x.tobytes()).hexdigest())
    if kind is FunctionType:
        names = _names(x.__code__) & set(x.__globals__)
        globals_ = {name: x.__globals__[name] for name in sorted(names)}
        cells = [_content(cell) for cell in x.__closure__ or ()]
        return of(x.__code__, cells, x.__defaults__, x.__kwdefaults__, vars(x), globals_)
    if kind is CodeType:
        arguments = x.co_argcount, x.co_kwonlyargcount, x.co_flags, x.co_varnames
        return of(x.co_code, x.co_exceptiontable, x.co_consts, x.co_names, arguments)
    if kind is MethodType:
        return of(x.__func__, x.__self__)
    if kind is BuiltinFunctionType:
        return of(x.__qualname__, x.__self__)  # that of a function is its module
    if isinstance(x, functools._lru_cache_wrapper):
        return of(x.__wrapped__)
    if isinstance(x, ModuleType):
        return x.__name__
    if isinstance(x, property):
        return of(x.fget)
    if isinstance(x, classmethod | staticmethod):
        return of(kind.__name__, x.__func__)
    if isinstance(x, GetSetDescriptorType | MemberDescriptorType):
        return x.__qualname__
    if name := _name(x):
        return name
    if isinstance(x, type):
        own = {k: value for k, value in vars(x).items() if k not in _NOT_OF_A_CLASS}
        return of(x.__qualname__, x.__bases__, own)
    try:
        reduced = x.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        return _unknown()
    if isinstance(reduced, str):
        return _unknown()  # of a name under which there is something else
    rebuild, arguments, *further = reduced  # a state, items of a list, pairs of a dict
    contents = [list(part) if isinstance(part, Iterator) else part for part in further]
    return of(rebuild.__qualname__, arguments, contents)


def _name(x: Any) -> str:
    """The name by which a module has a value; "" of what only this process has."""
    name = getattr(x, "__qualname__", getattr(x, "__name__", None))
    if not isinstance(name, str):
        return ""
    module = getattr(x, "__module__", None) or pickle.whichmodule(x, name)  # type: ignore[attr-defined]
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is x and module != "__main__" else ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return ...


def _names(code: CodeType) -> set[str]:
    """The names of globals, and of attributes, that code reads, and the functions inside it."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*inner)

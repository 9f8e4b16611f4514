"""Calls inside torch.compile: each is one node of the graph, in which our Python runs as it is.

torch.compile reads the code that it compiles instead of running it. A function of this package is
not for reading: what it looks up and decides would be traced step by step.

torch.fx runs the code, with proxies in place of tensors. There a call is one node too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .._core.extras import imported
from .._core.types import AnyArray
from . import functions

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


def _is_compiling() -> bool:
    global is_compiling, _is_guarded
    torch = imported("torch")
    if torch is None:
        return False
    if torch.compiler.is_dynamo_compiling():
        return True
    if not _is_guarded:
        _is_guarded = torch._guards.TracingContext.try_get() is not None
        if not _is_guarded:
            is_compiling = torch.compiler.is_dynamo_compiling  # a quarter of the time
    return False


# Whether torch.compile traces the caller, which it reads instead of running it. The answer must be
# right before the package has met torch: the first call may be one that is compiled.
is_compiling: Callable[[], bool] = _is_compiling
# Whether code that torch.compile has traced depends on `is_compiling`. To rebind that would make it
# compile everything anew.
_is_guarded = False
_is_compiling()  # torch may be there
# Whether a block of `check_values` is open. What torch.compile has made of a call outside of one
# has no node for it, and depends on this.
checks_values = False


def disable_compile(function: Function) -> Function:
    """Let torch.compile, if torch is there, skip a function with all that it calls."""
    if "torch" in sys.modules:
        from .._torch.dynamo import disable_compile as disable

        return disable(function)
    return function


def call_outside_graph(
    what: str, function: Callable[..., Result], /, *args: Any, **kwargs: Any
) -> Result:
    """Call a function that is no node of the caller's graph, by its name in `graph.py`."""
    from .graph import runs  # imports torch's compiler

    result: Result = runs[what](function, *args, **kwargs)
    return result


def in_graph(name: str, args: Any, kwargs: Any) -> AnyArray:
    """A node of the graph that calls a function."""
    from .graph import call  # imports torch's compiler

    if checks_values:
        return call_outside_graph("checked values", functions.call, name, *args, **kwargs)
    for value in (*args, *kwargs.values()):
        if isinstance(value, np.ndarray):
            return call_outside_graph(
                "NumPy arrays", functions.call_with_numbers, name, args, kwargs
            )
    return call(name, args, kwargs)


def proxy_among(args: Any, kwargs: Any) -> Any:
    """An argument that stands for a tensor while torch.fx records a graph; None if there is none.

    No library takes it: a call asks when it has failed.
    """
    torch = imported("torch")
    if torch is None:
        return None
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.fx.Proxy)), None)


def has_open_numbers(args: Any, kwargs: Any) -> bool:
    """Whether an argument is a number that torch keeps open, as it does sizes in a graph for all.

    No check takes it: a call asks when it has failed.
    """
    torch = imported("torch")
    if torch is None:
        return False
    kinds = torch.SymFloat, torch.SymInt, torch.SymBool
    return any(isinstance(x, kinds) for x in (*args, *kwargs.values()))


def as_node(name: str, args: Any, kwargs: Any) -> AnyArray:
    """Call a function as a node of a graph does, which makes constants of open numbers."""
    from .graph import call

    return call(name, args, kwargs)

"""Calls inside torch.compile: each is one node of the graph, in which our Python runs as it is.

torch.compile reads the code that it compiles instead of running it. A function of this package is
not for reading: what it looks up and decides would be traced step by step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def _is_read() -> bool:
    global is_read
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_dynamo_compiling():
        return True
    is_read = torch.compiler.is_dynamo_compiling  # a quarter of the time
    return False


# Whether torch.compile reads the caller instead of running it. It must be known before the package
# has met torch: the first call may be one that is compiled.
is_read: Callable[[], bool] = _is_read


def refuse(what: str) -> None:
    """Raise inside torch.compile, for what is no node.

    Raises:
        NotImplementedError: With what is not available there.

    """
    if is_read():
        raise NotImplementedError(f"{what} is not available inside torch.compile")


def in_graph(name: str, args: Any, kwargs: Any) -> Array:
    """A node of the graph that calls a function."""
    from .graph import call  # imports torch's compiler

    for value in (*args, *kwargs.values()):
        if isinstance(value, np.ndarray):
            refuse("a loss of NumPy arrays, which torch would make tensors of,")
    return call(name, args, kwargs)

"""The node of a graph of torch.compile that calls a function of this package, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._torch.unread import unread
from .compiled import UNAVAILABLE
from .functions import Array, functions


@unread  # where a node raises, torch.compile breaks the graph and calls the function outside
def call(name: str, args: Any, kwargs: Any) -> Array:
    """Call a function: with tensors that stand for others while the graph is made.

    Numbers that the compiler would keep open are constants of the graph. But a scale that changes
    becomes a tensor, by a product, which the compiler leaves open: nothing is compiled anew.
    """
    scale: Any = kwargs.get("scale")
    reduces = kwargs.get("reduction") != "none"  # else it is 1, and a constant
    is_open = isinstance(scale, torch.SymFloat | torch.SymInt) and reduces
    if is_open:
        first = next(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        one = torch.ones((), dtype=torch.float64, device=first.device)
        kwargs = {**kwargs, "scale": one * scale}
    numbers = {key: _number(value) for key, value in kwargs.items()}
    return functions[name](*map(_number, args), **numbers)


def _number(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


torch.compiler.allow_in_graph(call)  # type: ignore[no-untyped-call]


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


# What calls a function outside graphs, by what that is.
runs: dict[str, Callable[..., Any]] = {
    what: torch.compiler.disable(_run, reason=f"{reason} is not available inside torch.compile")  # type: ignore[no-untyped-call]
    for what, reason in UNAVAILABLE.items()
}

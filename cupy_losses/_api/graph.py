"""The node of a graph of torch.compile that calls a function of this package, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._core.types import AnyArray
from .._torch.dynamo import disable_compile
from . import functions


@disable_compile  # where a node raises, torch.compile breaks the graph and calls it outside
def call(name: str, args: Any, kwargs: Any) -> AnyArray:
    """Call a function: with tensors that stand for others while the graph is made.

    Numbers that the compiler would keep open are constants of the graph. But a scale that changes
    becomes a tensor, by a product, which the compiler leaves open: nothing is compiled anew.
    """
    scale: Any = kwargs.get("scale")
    reduces = kwargs.get("reduction") != "none"  # else it is 1, and a constant
    is_open = isinstance(scale, torch.SymFloat | torch.SymInt) and reduces
    tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
    first = next(tensors, None)
    if is_open and first is not None:
        one = torch.ones((), dtype=torch.float64, device=first.device)
        kwargs = {**kwargs, "scale": one * scale}
    numbers = {key: _number(value) for key, value in kwargs.items()}
    return functions.call(name, *map(_number, args), **numbers)


def _number(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    return int(value) if isinstance(value, torch.SymInt) else value


torch.compiler.allow_in_graph(call)  # type: ignore[no-untyped-call]


# What is no node of a graph, by name. torch.compile breaks the graph there, and runs it as ever;
# where the whole function must be one graph, its error says this.
_UNAVAILABLE = {
    "value_and_grad": "value_and_grad, which has torch.autograd.grad for that,",
    "jvp": "jvp, which has torch.func.jvp for that,",
    "vjp": "vjp, which has torch.func.vjp for that,",
    "hvp": "hvp, which has torch.func.hessian for that,",
    "grad_and_hess": "grad_and_hess, which has torch.func.grad for that,",
    "pointwise_loss": "pointwise_loss, whose function is to be made outside,",
    "row_loss": "row_loss, whose function is to be made outside,",
    "check_values": "check_values, which is to head a block outside,",
    "checked values": "a loss whose operands check_values reads,",
    "accelerate": "accelerate, which is to be called outside,",
    "NumPy arrays": (
        "a loss with a NumPy array or number, which torch would make a tensor of (pass a tensor, "
        "or what float(x) or int(x) gives outside),"
    ),
}


def _run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


# What calls a function outside graphs, by what that is.
runs: dict[str, Callable[..., Any]] = {
    what: torch.compiler.disable(_run, reason=f"{reason} is not available inside torch.compile")  # type: ignore[no-untyped-call]
    for what, reason in _UNAVAILABLE.items()
}

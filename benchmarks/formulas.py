"""The reference formulas of the tests, which are written in NumPy, as functions of tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from tests.tables.losses import Case

Tensor = Any

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "negative": operator.neg,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


class Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an operand of a formula; what NumPy computes of it is recorded for torch."""

    def __init__(self, proxy: fx.Proxy, operand: fx.Proxy) -> None:
        self.proxy = proxy
        self.operand = operand  # one that has the dtype of the loss

    # NumPy raises a TypeError that names the function where one returns NotImplemented.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        name = ufunc.__name__
        function = _OPERATORS.get(name) or getattr(torch, name, None)
        if function is None:
            return NotImplemented
        return Recorded(function(*map(_argument, inputs)), self.operand)

    def __array_function__(
        self, function: Any, types: Any, arguments: Sequence[Any], options: Any
    ) -> Any:
        if function is np.real:
            return self
        if function is not np.where:
            return NotImplemented
        # Two numbers would make a tensor of torch's default dtype.
        given: list[Any] = [
            x.proxy if isinstance(x, Recorded) else self.operand.new_full((), float(x))
            for x in arguments
        ]
        return Recorded(torch.where(*given), self.operand)


def _argument(x: Any) -> Any:
    """An argument of torch's function."""
    if isinstance(x, Recorded):
        return x.proxy
    return float(x) if isinstance(x, np.floating) else x


@functools.cache
def _of_elements(terms: Any, operands: int, parameters: tuple[tuple[str, Any], ...]) -> Any:
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(f"operand_{k}"), tracer) for k in range(operands)]
    recorded = [Recorded(proxy, proxies[0]) for proxy in proxies]
    first, *rest = terms(*recorded, **dict(parameters))
    graph.output(sum(rest, start=first).proxy.node)
    return fx.GraphModule({}, graph)


def in_torch(case: Case) -> Callable[..., Tensor]:
    """The loss of each element, a function of tensors of any floating dtype."""
    parameters = tuple(case.parameters.items())
    function: Callable[..., Tensor] = _of_elements(case.terms, len(case.draws), parameters)
    return function

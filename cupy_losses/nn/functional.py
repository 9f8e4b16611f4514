"""The losses with the signatures of torch: `import cupy_losses.nn.functional as F`.

A loss that `torch.nn.functional` has takes torch's arguments here: names, order and defaults, as
the installed torch has them, those that are deprecated too. A loss that torch does not have is the
function of `cupy_losses` itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch.nn.functional

import cupy_losses

from .._api import compiled, functions
from .._api.public import is_loss
from .._core.types import AnyArray
from .._libraries import torch as _  # noqa: F401  the operator, for saved programs
from .._torch.deprecated import DEPRECATED, are_given, take_reduction


def with_signature_of_torch(
    loss: Callable[..., AnyArray], of_torch: Callable[..., Any]
) -> Callable[..., AnyArray]:
    """Make a function that takes the arguments of torch's function, from a loss of this package.

    The loss has the same arguments by name, except those that are deprecated. Everything that
    depends on the signatures alone is decided here, and a call with operands alone passes them on.
    """
    signature = inspect.signature(of_torch)
    names, of_loss = frozenset(signature.parameters), inspect.signature(loss).parameters
    name, deprecated = of_torch.__name__, frozenset(DEPRECATED)
    positional = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    operands = sum(p.default is p.empty for p in signature.parameters.values())
    options = positional[operands:]
    # One that is no node itself calls functions of the caller, which torch.compile is to read.
    is_node = functions.is_registered(loss)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise a TypeError that says what is wrong with the arguments."""
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            more = [n for n in kwargs if n not in names and n in of_loss]
            hint = f": {more[0]} is an argument of cupy_losses.{name}" if more else ""
            raise TypeError(f"{name}() {error}{hint}") from None

    def function(*args: Any, **kwargs: Any) -> AnyArray:
        if is_node and compiled.is_compiling():
            return compiled.in_graph(in_graph, args, kwargs)
        if len(args) > operands:
            by_position = dict(zip(options, args[operands:], strict=False))
            if len(args) > len(positional) or not kwargs.keys().isdisjoint(by_position):
                check(args, kwargs)
            args = args[:operands]
            kwargs.update(by_position)
        if kwargs:
            if not names.issuperset(kwargs):
                check(args, kwargs)
            if not deprecated.isdisjoint(kwargs):
                _replace_deprecated(name, kwargs)
        return loss(*args, **kwargs)

    function.__module__, function.__name__, function.__qualname__ = __name__, name, name
    in_graph = functions.register(function)
    function.__doc__ = (
        f"{description(loss)}\n\nA drop-in for `torch.nn.functional.{name}`, whose arguments it "
        f"takes: `cupy_losses.{name}` describes them."
    )
    function.__annotations__ = dict(of_torch.__annotations__)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _replace_deprecated(name: str, kwargs: dict[str, Any]) -> None:
    """Put a reduction in place of the arguments that are deprecated."""
    if name == "kl_div" and kwargs.get("reduction") == "batchmean" and are_given(kwargs):
        raise ValueError(
            f"{' and '.join(DEPRECATED)} must be None with reduction 'batchmean': torch does as "
            "they say, and divides by the batch size as well"
        )
    reduction = take_reduction(kwargs)
    if reduction is not None:
        kwargs["reduction"] = reduction


def absent(name: str, module: str, of_torch: ModuleType) -> AttributeError:
    """The error for an attribute that a module of losses does not have."""
    text = f"module {module!r} has no attribute {name!r}"
    if hasattr(of_torch, name):
        lack = "does not have this loss:" if "loss" in name.lower() else "has losses alone, and"
        text = f"{module} {lack} {name} is {of_torch.__name__}.{name}"
    return AttributeError(text, name=name, obj=sys.modules[module])


def description(loss: Callable[..., AnyArray]) -> str:
    """What the docstring of a loss says before its arguments."""
    return (inspect.getdoc(loss) or "").partition("\n\nArgs:")[0]


def _functions() -> dict[str, Callable[..., AnyArray]]:
    """A function for each loss of this package."""
    found = {}
    for name in cupy_losses.__all__:
        loss = getattr(cupy_losses, name)
        if not is_loss(loss):
            continue
        of_torch = getattr(torch.nn.functional, name, None)
        found[name] = loss if of_torch is None else with_signature_of_torch(loss, of_torch)
    return found


_FUNCTIONS = _functions()
globals().update(_FUNCTIONS)
__all__ = list(_FUNCTIONS)

if TYPE_CHECKING:
    from ._functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Raise an error that says where the rest of torch.nn.functional is."""
        raise absent(name, __name__, torch.nn.functional)

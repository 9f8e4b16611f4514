"""Public functions of losses: which callables are one, and what prepares their calls."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from .._core.types import AnyArray
from . import functions
from .prepared import Prepared

# What prepares the call of a public function is an attribute of it. The function is there too:
# functools.wraps copies attributes to functions that compute something else.
_PREPARED = "_cupy_losses_prepared"
mark_of = operator.attrgetter(_PREPARED)  # of a public function


def mark(public: Callable[..., AnyArray], prepare: Callable[..., Prepared[Any]]) -> None:
    """Make a function public: that of a loss whose call another one prepares."""
    setattr(public, _PREPARED, (public, prepare))


def mark_as(public: Callable[..., AnyArray], function: Callable[..., AnyArray]) -> None:
    """Let a callable object be public in place of the function of a loss that it calls."""
    mark(public, prepare_of(function))
    setattr(function, _PREPARED, mark_of(public))


def public_of(function: Callable[..., AnyArray]) -> Callable[..., AnyArray]:
    """What is public of the function of a loss: itself, or the object that calls it."""
    public: Callable[..., AnyArray] = mark_of(function)[0]
    return public


def prepare_of(loss: Callable[..., AnyArray]) -> Callable[..., Prepared[Any]]:
    """What prepares the call of a public function, or of a `functools.partial` of one by keyword.

    Raises:
        TypeError: If it is no loss of this package.

    """
    prepare = prepare_or_none(loss)
    if prepare is None:
        if isinstance(loss, functools.partial) and is_loss(loss.func):
            raise TypeError("loss must be a functools.partial by keyword, got positional arguments")
        raise TypeError(
            f"loss must be a loss function of cupy_losses, got {loss!r}{namesake(loss)}"
        )
    return prepare


def with_signature_of(
    function: Callable[..., Any], made: functools.partial[Any]
) -> functools.partial[Any]:
    """What is made of a function, which takes the same arguments, with its signature and name."""
    inner, _ = without_partials(function)
    vars(made).update(__wrapped__=function, __name__=getattr(inner, "__name__", "function"))
    return made


def without_partials(loss: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function inside of partials by keyword, and the arguments that these have."""
    options: dict[str, Any] = {}
    while isinstance(loss, functools.partial):
        options, loss = {**loss.keywords, **options}, loss.func
    return loss, options


def namesake(loss: Callable[..., Any]) -> str:
    """What to pass in place of a function of the same name, for errors; "" if there is nothing."""
    name = getattr(loss, "__name__", "")
    of_package = [public for public in functions.names() if public.startswith("cupy_losses.")]
    is_public = any(public.endswith(f".{name}") for public in of_package)
    return f": pass cupy_losses.{name}" if is_public else ""


def is_loss(function: Any) -> bool:
    """Whether it is a public function of a loss, or a `functools.partial` of one by keyword."""
    return prepare_or_none(function) is not None


def prepare_or_none(loss: Callable[..., AnyArray]) -> Callable[..., Prepared[Any]] | None:
    """What prepares the call of a loss, or None for any other function."""
    if isinstance(loss, functools.partial) and not loss.args:
        prepare = prepare_or_none(loss.func)
        return None if prepare is None else functools.partial(prepare, **loss.keywords)
    prepared = getattr(loss, _PREPARED, None)
    return prepared[1] if type(prepared) is tuple and prepared[0] is loss else None

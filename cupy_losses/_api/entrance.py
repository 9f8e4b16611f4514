"""The entrance: what makes a public function of a loss.

Every public function is made by `loss_function`. It declares the kind of each argument that is no
array; each value that a caller passes is checked here, before anything else happens.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from .._core.arguments import Argument, Choice
from .._core.loss import REDUCTIONS, Call, Loss
from .._libraries.registry import resolve
from . import check

Array = Any
Arguments = ParamSpec("Arguments")
Prepared = tuple[Call, tuple[Array, ...]]

_REDUCTION = Choice(REDUCTIONS)
_checking = check.enabled.get


def call_of(
    loss: Loss,
    operands: tuple[Array, ...],
    reduction: str,
    weight: Array | None = None,
    where: Array | None = None,
    parameters: tuple[float | int, ...] = (),
) -> Prepared:
    """A call of `loss` and its operands."""
    if weight is None and where is None:
        return Call(loss, reduction, parameters, False, False), operands
    if weight is not None:
        operands = (weight, *operands)
    if where is not None:
        operands = (where, *operands)
    return Call(loss, reduction, parameters, weight is not None, where is not None), operands


# From a public function to what prepares its call. A registry, as an attribute of the function
# would be copied by functools.wraps to functions that compute something else.
_prepare_by_loss: dict[Callable[..., Array], Callable[..., Prepared]] = {}


def loss_function(
    **kinds: Argument,
) -> Callable[[Callable[Arguments, Prepared]], Callable[Arguments, Array]]:
    """Make the public function of a loss from a function that orders its arguments.

    Args:
        **kinds: The kind of each argument that is no array. `reduction` is one of the common three
            unless it is given.

    """

    def decorate(prepare: Callable[Arguments, Prepared]) -> Callable[Arguments, Array]:
        checked = with_checks(prepare, kinds)

        @functools.wraps(prepare)
        def loss(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Array:
            call, given = checked(*args, **kwargs)
            library, operands = resolve(call, given)
            if _checking():
                check.verify(call, library.plain(operands))
            return library.evaluate(call, operands)

        _prepare_by_loss[loss] = checked
        return loss

    return decorate


def with_checks(
    function: Callable[Arguments, Any], kinds: dict[str, Argument]
) -> Callable[Arguments, Any]:
    """The same function, each of whose arguments is checked first; defaults are not.

    Raises:
        TypeError: If an argument has a default other than None and no kind, or a kind is of no
            argument.

    """
    parameters = inspect.signature(function).parameters
    if "reduction" in parameters:
        kinds = {"reduction": _REDUCTION, **kinds}
    for name, parameter in parameters.items():
        array = parameter.default in (parameter.empty, None)
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not (array or variable) and name not in kinds:
            raise TypeError(f"the argument {name} of {function.__qualname__} has no kind")
    unknown = [name for name in kinds if name not in parameters]
    if unknown:
        raise TypeError(f"{function.__qualname__} has no argument {unknown[0]}")
    checks = {name: functools.partial(kind.checked, name) for name, kind in kinds.items()}
    positional = [
        checks.get(name)
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    # Up to here, arguments by position are arrays.
    arrays = next((n for n, check in enumerate(positional) if check is not None), len(positional))

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name in checks:
                kwargs[name] = checks[name](kwargs[name])
        if len(args) > arrays:
            pairs = zip(args, positional, strict=False)
            rest = args[len(positional) :]
            args = *(a if check is None else check(a) for a, check in pairs), *rest
        return function(*args, **kwargs)

    return checked


def prepared_by(
    prepare: Callable[..., Prepared], **kinds: Argument
) -> Callable[[Callable[Arguments, Array]], Callable[Arguments, Array]]:
    """Make a public function that is more than one call, differentiated as that of `prepare`."""

    def decorate(loss: Callable[Arguments, Array]) -> Callable[Arguments, Array]:
        checked = with_checks(loss, kinds)
        _prepare_by_loss[checked] = prepare
        return checked

    return decorate


def prepare_of(loss: Callable[..., Array]) -> Callable[..., Prepared]:
    """What prepares the call of a public function, or of a `functools.partial` of one by keyword.

    Raises:
        TypeError: If it is no loss of this package.

    """
    prepare = known(loss)
    if prepare is None:
        raise TypeError(f"loss must be a loss function of cupy_losses, got {loss!r}")
    return prepare


def known(loss: Callable[..., Array]) -> Callable[..., Prepared] | None:
    """The same, or None for any other function."""
    if isinstance(loss, functools.partial) and not loss.args:
        prepare = known(loss.func)
        return None if prepare is None else functools.partial(prepare, **loss.keywords)
    try:
        return _prepare_by_loss.get(loss)
    except TypeError:  # it has no hash
        return None

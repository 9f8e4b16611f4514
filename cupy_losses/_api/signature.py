"""The arguments of public functions that are no arrays: their kinds and their checks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from .._core.arguments import Argument, Choice, Scale
from .._core.loss import REDUCTIONS

Arguments = ParamSpec("Arguments")

_COMMON: dict[str, Argument] = {"reduction": Choice(REDUCTIONS), "scale": Scale()}


class Checks:
    """The checks of the arguments of a function that are no arrays.

    Defaults are checked once, when the checks are made, and not in calls.

    Attributes:
        arrays: How many arguments by position are arrays, before the first that is none.

    Raises:
        TypeError: If an argument has a default other than None and no kind, or a kind is of no
            argument.

    """

    def __init__(self, function: Callable[..., Any], kinds: dict[str, Argument]) -> None:
        parameters = inspect.signature(function).parameters
        kinds = {name: kind for name, kind in _COMMON.items() if name in parameters} | kinds
        for name, parameter in parameters.items():
            array = parameter.default in (parameter.empty, None)
            variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if array or variable:
                continue
            if name not in kinds:
                raise TypeError(f"the argument {name} of {function.__qualname__} has no kind")
            kinds[name].checked(name, parameter.default)
        unknown = [name for name in kinds if name not in parameters]
        if unknown:
            raise TypeError(f"{function.__qualname__} has no argument {unknown[0]}")
        self._checks = {name: functools.partial(k.checked, name) for name, k in kinds.items()}
        self._name = function.__name__
        self._by_keyword = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
        self._positional = [
            self._checks.get(name)
            for name, parameter in parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
        kinds_of = {parameter.kind for parameter in parameters.values()}
        self._takes_more = inspect.Parameter.VAR_POSITIONAL in kinds_of
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds_of
        self._names = None if takes_any else dict.fromkeys(parameters)
        checked = (n for n, check in enumerate(self._positional) if check is not None)
        self.arrays = next(checked, len(self._positional))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments by position as the function takes them; changes those by name."""
        checks, names = self._checks, self._names
        for name in kwargs:
            if name in checks:
                kwargs[name] = checks[name](kwargs[name])
            elif names is not None and name not in names:
                raise TypeError(
                    f"{self._name}() got an unexpected keyword argument {name!r}: it takes "
                    f"{', '.join(names)}{_of_transforms(name)}"
                )
        if len(args) <= self.arrays:
            return args
        most = len(self._positional)
        if len(args) > most and self._by_keyword and not self._takes_more:
            raise TypeError(
                f"{self._name}() takes {most} positional arguments but {len(args)} were given: "
                f"{', '.join(self._by_keyword)} are passed by keyword"
            )
        pairs = zip(args, self._positional, strict=False)
        rest = args[len(self._positional) :]
        return *(a if check is None else check(a) for a, check in pairs), *rest

    def before(self, function: Callable[Arguments, Any]) -> Callable[Arguments, Any]:
        """The function, each of whose arguments is checked first."""
        arrays = self.arrays

        @functools.wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            given: Any = args
            if kwargs or len(args) > arrays:
                given = self(args, kwargs)
            return function(*given, **kwargs)

        return checked


def _of_transforms(name: str) -> str:
    """What to pass to a transform in place of a number of its argument that it does not take."""
    if name not in ("argnum", "argnums"):
        return ""
    return "; hvp and grad_and_hess take argnum, value_and_grad, grad and vjp take argnums"

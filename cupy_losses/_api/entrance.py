"""The entrance: what makes a public function of a loss.

Every public function is made by `loss_function`. It declares the kind of each argument that is no
array; each value that a caller passes is checked here, before anything else happens.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from .._core.arguments import Argument, Choice, Scale
from .._core.loss import REDUCTIONS, Call, Loss
from .._libraries.registry import library_of, resolve
from . import check, compiled, functions

Array = Any
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Prepared(tuple[Call, tuple[Array, ...]], Generic[Result]):
    """A call with its operands, and for type checkers the type of what the call gives.

    At run time it is a tuple, which takes less time to make.
    """


_COMMON: dict[str, Argument] = {"reduction": Choice(REDUCTIONS), "scale": Scale()}
_checking = check.enabled.get


def one_like(name: str, array: Array) -> Array:
    """The number 1 as an array of shape (), beside an array; `name` names that in errors."""
    library = library_of(name, array)
    return library.one(library.adopt(array))


def call_of(
    loss: Loss,
    operands: tuple[Array, ...],
    reduction: str,
    weight: Array | None = None,
    where: Array | None = None,
    parameters: tuple[float | int, ...] = (),
    scale: float | Array = 1.0,
    sample_weight: Array | None = None,
    axis: int | None = None,
) -> Prepared[Any]:
    """A call of `loss` and its operands."""
    scaled = type(scale) is not float
    weighs = weight is not None or sample_weight is not None or where is not None
    if not scaled and scale == 1.0 and not weighs:
        call = Call(loss, reduction, parameters, False, False, 1.0, False, axis)
        return call, operands  # type: ignore[return-value]
    if reduction == "none" and (scaled or scale != 1.0):
        raise ValueError(
            "scale must be 1 with reduction 'none': multiply the losses, or pass a weight of each "
            "(weight, or sample_weight of rows)"
        )
    if sample_weight is not None:
        operands = (sample_weight, *operands)
    if weight is not None:
        operands = (weight, *operands)
    if where is not None:
        operands = (where, *operands)
    if scaled:
        operands, scale = (*operands, scale), 1.0
    weighted, masked, sampled = weight is not None, where is not None, sample_weight is not None
    call = Call(loss, reduction, parameters, weighted, masked, scale, scaled, axis, sampled)
    return call, operands  # type: ignore[return-value]


def evaluate(call: Call, operands: tuple[Array, ...]) -> Array:
    """The loss of a call that is prepared."""
    library, arrays = resolve(call, operands)
    if _checking():
        check.check_operands(library, call, arrays)
    return library.evaluate(call, arrays)


# What prepares the call of a public function is an attribute of it. The function is there too:
# functools.wraps copies attributes to functions that compute something else.
_PREPARED = "_cupy_losses_prepared"
mark_of = operator.attrgetter(_PREPARED)  # of a public function


def _mark(public: Callable[..., Array], prepare: Callable[..., Prepared[Any]]) -> None:
    setattr(public, _PREPARED, (public, prepare))


def loss_function(
    **kinds: Argument,
) -> Callable[[Callable[Arguments, Prepared[Result]]], Callable[Arguments, Result]]:
    """Make the public function of a loss from a function that orders its arguments.

    Args:
        **kinds: The kind of each argument that is no array. `reduction` is one of the common three
            unless it is given, `scale` always the same.

    """

    def decorate(prepare: Callable[Arguments, Prepared[Result]]) -> Callable[Arguments, Result]:
        checks = Checks(prepare, kinds)
        arrays = checks.arrays
        # A caller of the public function sees what the call gives.
        prepare.__annotations__["return"] = "ArrayT"

        @functools.wraps(prepare)
        def loss(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            if compiled.is_read():
                return compiled.in_graph(name, args, kwargs)
            try:
                given: Any = args
                if kwargs or len(args) > arrays:
                    given = checks(args, kwargs)
                call, operands = prepare(*given, **kwargs)
                return evaluate(call, operands)
            except Exception:
                proxy = compiled.proxy_among(args, kwargs)
                if proxy is not None:
                    return proxy.__torch_function__(loss, (), args, kwargs)
                if not compiled.has_open_numbers(args, kwargs):
                    raise
            # make_fx and torch.export run this code where torch.compile makes a node of the call.
            return compiled.as_node(name, args, kwargs)

        name = functions.register(loss)
        _mark(loss, checks.before(prepare))
        return loss

    return decorate


class Checks:
    """The checks of the arguments of a function that are no arrays; defaults are not checked.

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
        checked = (n for n, check in enumerate(self._positional) if check is not None)
        self.arrays = next(checked, len(self._positional))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments by position as the function takes them; changes those by name."""
        checks = self._checks
        for name in kwargs:
            if name in checks:
                kwargs[name] = checks[name](kwargs[name])
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


def prepared_by(
    prepare: Callable[..., Prepared[Any]], **kinds: Argument
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Make a public function that is more than one call, differentiated as that of `prepare`."""

    def decorate(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        checked = Checks(loss, kinds).before(loss)
        _mark(checked, prepare)
        return checked

    return decorate


def mark_as(public: Callable[..., Array], function: Callable[..., Array]) -> None:
    """Let a callable object be a loss, as the public function that it calls is."""
    _mark(public, prepare_of(function))


def prepare_of(loss: Callable[..., Array]) -> Callable[..., Prepared[Any]]:
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


def prepare_or_none(loss: Callable[..., Array]) -> Callable[..., Prepared[Any]] | None:
    """What prepares the call of a loss, or None for any other function."""
    if isinstance(loss, functools.partial) and not loss.args:
        prepare = prepare_or_none(loss.func)
        return None if prepare is None else functools.partial(prepare, **loss.keywords)
    prepared = getattr(loss, _PREPARED, None)
    return prepared[1] if type(prepared) is tuple and prepared[0] is loss else None

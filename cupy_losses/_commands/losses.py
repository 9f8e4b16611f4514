"""The losses by name, and their arguments as they are written on a command line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

import cupy_losses

from .._api.prepared import Prepared
from .._api.public import is_loss, prepare_of
from .._core.loss import Call, Loss
from .files import flag, number

# What has an option of its own, and what a command line cannot say or nobody sees the effect of.
_NO_PARAMETERS = ("reduction", "distance_function", "overwrite_input")
# What says nothing of one element or row.
_OF_SEVERAL = ("scale", "axis")


@dataclass(frozen=True)
class NamedLoss:
    """A public function, by what its arguments are.

    Attributes:
        function: The function.
        arrays: The arguments that are arrays.
        optional: Those that may be left out, weight and where among them.
        parameters: The hyper-parameters, with their defaults.

    """

    function: Callable[..., Any]
    arrays: tuple[str, ...]
    optional: tuple[str, ...]
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def prepare(self) -> Callable[..., Prepared[Any]]:
        """What prepares a call."""
        return prepare_of(self.function)

    @property
    def loss(self) -> Loss:
        """The loss that is called, with classes as targets where it takes any."""
        return self.variant({"reduction": "sum"})

    def variant(self, arguments: Mapping[str, Any]) -> Loss:
        """The same for given arguments: those that are no arrays."""
        return self.call(arguments).loss

    def call(self, arguments: Mapping[str, Any]) -> Call:
        """The call that is made with given arguments: those that are no arrays."""
        return self.prepare(**self._any_arrays(), **arguments)[0]

    def _any_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {name: np.ones((2, 2)) for name in self.arrays}
        if "target" in arrays:
            arrays["target"] = np.zeros(2, np.int64)
        return arrays

    @property
    def of_each(self) -> list[str]:
        """The hyper-parameters of the loss of one element or row."""
        return [name for name in self.parameters if name not in _OF_SEVERAL]

    def arguments(
        self, pairs: Iterable[tuple[str, str]], reduction: str, known: Collection[str] | None = None
    ) -> dict[str, Any]:
        """The arguments that are no arrays, from hyper-parameters, all of them or those `known`."""
        known = self.parameters if known is None else known
        found: dict[str, Any] = {"reduction": reduction}
        for name, value in pairs:
            if name not in known:
                own = ", ".join(known) or "none"
                raise click.UsageError(f"{self.name} has no parameter {name!r}: it has {own}")
            if name in found:
                raise click.UsageError(f"the parameter {name} is given twice")
            found[name] = _value(value)
        try:
            self.prepare(**self._any_arrays(), **found)
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"{self.name}: {error}") from None
        return found


def _value(text: str) -> bool | int | float | str:
    """A flag or a number; any other text as it is."""
    found: bool | int | float | None = flag(text)
    if found is None:
        found = number(text)
    return text if found is None else found


def names() -> list[str]:
    """The names of all losses."""
    return [name for name in cupy_losses.__all__ if is_loss(getattr(cupy_losses, name))]


class Name(click.Choice[str]):
    """The name of a loss; of one that is not there, the error says which one may be meant."""

    def __init__(self) -> None:
        super().__init__(names())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            # Compared without what most names end in, which any other word would be close to.
            names = {name.removesuffix("_loss"): name for name in self.choices}
            given = str(value).lower().removesuffix("loss").rstrip("_")
            likely = difflib.get_close_matches(given, names, n=1)
            if not likely:
                raise
            message = f"{value!r} is no loss. Did you mean {names[likely[0]]}?"
            raise click.BadParameter(message, ctx, param) from None


def option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that names losses, as `names`; without it a command takes the `default`."""
    return click.option(
        "--loss",
        "names",
        multiple=True,
        metavar="NAME",
        type=Name(),
        help=f"A loss, such as cross_entropy; again for more.  [default: {default}]",
    )


def parameter_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option of hyper-parameters of any loss, as `parameters`, which `pairs` reads."""
    return click.option(
        "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Such as beta=0.5."
    )(command)


def pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Names and values from texts NAME=VALUE."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--parameter must look like NAME=VALUE, got {text!r}")
        found.append((name, value))
    return found


def parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each hyper-parameter of an element or row, as arguments that have its values.

    Such as --label-smoothing for `label_smoothing`.
    """
    losses: dict[str, list[str]] = {}
    for function in map(find, names()):
        for parameter in function.of_each:
            losses.setdefault(parameter, []).append(function.name)
    for parameter, own in sorted(losses.items(), reverse=True):
        option = f"--{parameter.replace('_', '-')}"
        text = f"Of {', '.join(own)}."
        command = click.option(option, parameter, multiple=True, metavar="VALUE", help=text)(
            command
        )
    return command


def find(name: str) -> NamedLoss:
    """The loss of a name."""
    function = getattr(cupy_losses, name)
    arrays, optional, parameters = [], [], {}
    for argument in inspect.signature(function).parameters.values():
        if argument.default is argument.empty:
            arrays.append(argument.name)
        elif argument.name in _NO_PARAMETERS:
            continue
        elif argument.default is None:
            optional.append(argument.name)
        else:
            parameters[argument.name] = argument.default
    return NamedLoss(function, tuple(arrays), tuple(optional), parameters)

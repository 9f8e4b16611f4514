"""The losses by name, and their arguments as they are written on a command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

import cupy_losses

from .._api.entrance import Prepared, known, prepare_of
from .._core.loss import Loss
from .files import number

# What has an option of its own, and what a command line cannot say or nobody sees the effect of.
_NO_PARAMETERS = ("reduction", "distance_function", "overwrite_input")


@dataclass(frozen=True)
class LossFunction:
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
        return self.prepare(**self._any_arrays(), **arguments)[0].loss

    def _any_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {name: np.ones((2, 2)) for name in self.arrays}
        if "target" in arrays:
            arrays["target"] = np.zeros(2, np.int64)
        return arrays

    def arguments(self, texts: Sequence[str], reduction: str) -> dict[str, Any]:
        """The arguments that are no arrays, from texts NAME=VALUE."""
        found: dict[str, Any] = {"reduction": reduction}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.UsageError(f"--parameter must look like NAME=VALUE, got {text!r}")
            if name not in self.parameters:
                own = ", ".join(self.parameters)
                raise click.UsageError(f"{self.name} has no parameter {name!r}: it has {own}")
            found[name] = _value(value)
        try:
            self.prepare(**self._any_arrays(), **found)
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"{self.name}: {error}") from None
        return found


def _value(text: str) -> bool | int | float | str:
    """A flag or a number; any other text as it is."""
    flags = {"true": True, "false": False}
    if text.lower() in flags:
        return flags[text.lower()]
    found = number(text)
    return text if found is None else found


def names() -> list[str]:
    """The names of all losses."""
    return [name for name in cupy_losses.__all__ if known(getattr(cupy_losses, name)) is not None]


def option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that names losses, as `names`; without it a command takes the `default`."""
    return click.option(
        "--loss",
        "names",
        multiple=True,
        metavar="NAME",
        type=click.Choice(names()),
        help=f"A loss, such as cross_entropy; again for more.  [default: {default}]",
    )


def parameter_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option of hyper-parameters, as `parameters`, which `LossFunction.arguments` reads."""
    return click.option(
        "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Such as beta=0.5."
    )(command)


def find(name: str) -> LossFunction:
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
    return LossFunction(function, tuple(arrays), tuple(optional), parameters)

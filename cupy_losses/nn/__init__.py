"""Modules of the losses for torch, and `functional`, the losses with torch's signatures.

A loss of which `torch.nn` has a module is a subclass of that here: the same arguments, attributes,
buffers and `repr`, and a `forward` that calls this package. Every other loss has a module whose
arguments are those of the function that are no arrays, but for `scale`. A weight of classes is a
buffer; the operands, weights of elements or rows and a mask are passed to `forward`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._core.extras import require_torch
from .._core.types import AnyArray

require_torch(__name__)

import torch  # noqa: E402

from .._core.generated import function_of_source  # noqa: E402
from .._torch.deprecated import DEPRECATED  # noqa: E402
from . import functional  # noqa: E402

Module = torch.nn.Module
Forward = Callable[..., AnyArray]
Members = dict[str, Callable[..., Any]]

# Of all other losses torch's class has the name of the function.
_ABBREVIATED = {
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
}
_OF_TORCH = {name.lower(): name for name in dir(torch.nn) if name.endswith("Loss")}
_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def class_name(loss: str) -> str:
    """The name of the module of a loss, as torch spells it where torch has it."""
    words = loss.removesuffix("_loss").split("_")
    name = "".join(word.capitalize() for word in words) + "Loss"
    return _ABBREVIATED.get(loss) or _OF_TORCH.get(name.lower(), name)


def subclass_of_torch(base: type[Module], loss: str) -> type[Module]:
    """Make the module of a loss that torch has, from torch's module.

    Its arguments, but those that are deprecated, are attributes of the same names.
    """
    parameters = inspect.signature(base).parameters
    options = [name for name in parameters if name not in DEPRECATED]
    forward = _forward(loss, inspect.signature(base.forward), options)
    summary = f"A drop-in for `torch.nn.{base.__name__}`, whose arguments it takes."
    return _make(base.__name__, base, loss, summary, {"forward": forward})


def module_of(loss: str, name: str) -> type[Module]:
    """Make the module of a loss that torch does not have.

    The arguments that are no arrays are attributes, and so is a weight of classes, a buffer.
    """
    parameters = inspect.signature(getattr(functional, loss)).parameters
    # A weight is of elements where those can be masked, not rows; else of classes.
    weighs_elements = "where" in parameters and "sample_weight" not in parameters
    options: list[inspect.Parameter] = []
    arrays: list[inspect.Parameter] = []
    for parameter in parameters.values():
        if parameter.name == "scale":
            continue  # of a call, not of a module
        is_array = parameter.default in (parameter.empty, None)
        passed_on = is_array and (parameter.name != "weight" or weighs_elements)
        (arrays if passed_on else options).append(parameter)
    names = [option.name for option in options]
    bound = _binding(name, options)

    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        super(module, self).__init__()  # torch.compile does not read Module.__init__(self)
        for option, value in bound(args, kwargs).items():
            if option == "weight":
                self.register_buffer(option, value)
            else:
                setattr(self, option, value)

    def extra_repr(self: Module) -> str:
        shown = [option for option in names if option != "weight"]
        return ", ".join(f"{option}={getattr(self, option)!r}" for option in shown)

    __init__.__signature__ = inspect.Signature([_SELF, *options])  # type: ignore[attr-defined]
    forward = _forward(loss, inspect.Signature([_SELF, *arrays]), names)
    members: Members = {"__init__": __init__, "forward": forward, "extra_repr": extra_repr}
    summary = f"The module of `cupy_losses.{loss}`, which describes the arguments."
    module = _make(name, Module, loss, summary, members)
    return module


def _forward(loss: str, signature: inspect.Signature, options: Sequence[str]) -> Forward:
    """The forward pass of a module: arrays come as arguments, options are attributes.

    It is written out, so that torch.fx, which reads the code of a function and not its signature,
    finds the arguments. Its function is found by name, as torch's are: torch.compile can not read
    functions that closures hold, where it reads the code that makes the module too.
    """
    parameters = [*signature.parameters.values()]
    passed = [
        p.name if p.default is p.empty else f"{p.name}={p.name}"
        for p in parameters[1:]  # without self
    ]
    passed += [f"{name}=self.{name}" for name in options]
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    text = f"def forward{plain}:\n    return functional.{loss}({', '.join(passed)})\n"
    file = f"<{__name__}: {loss}>"
    forward: Forward = function_of_source(text, "forward", file, {"functional": functional})
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def _binding(
    of: str, parameters: Sequence[inspect.Parameter]
) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Make what binds arguments to parameters, with defaults, as `inspect.Signature` does.

    torch.compile reads it where a module is made or called, and can not read `inspect`.
    """
    names = [p.name for p in parameters]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    text = str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        by_position = dict(zip(positional, args, strict=False))
        given = {**defaults, **by_position, **kwargs}
        fits = all(name in names and name not in by_position for name in kwargs)
        if not fits or len(args) > len(positional) or len(given) < len(names):
            raise TypeError(
                f"{of} takes {text}, got {len(args)} arguments by position and {[*kwargs]} by name"
            )
        return {name: given[name] for name in names}

    return bound


def _make(name: str, base: type[Module], loss: str, summary: str, members: Members) -> type[Module]:
    for member in members.values():
        member.__module__, member.__qualname__ = __name__, f"{name}.{member.__name__}"
    text = f"{functional.description(getattr(functional, loss))}\n\n{summary}"
    return type(name, (base,), {"__module__": __name__, "__doc__": text, **members})


def _modules() -> dict[str, type[Module]]:
    """A module for each loss of this package."""
    modules = {}
    for loss in functional.__all__:
        name = class_name(loss)
        of_torch = getattr(torch.nn, name, None)
        modules[name] = (
            module_of(loss, name) if of_torch is None else subclass_of_torch(of_torch, loss)
        )
    return modules


_MODULES = _modules()
globals().update(_MODULES)
__all__ = ["functional", *_MODULES]

if TYPE_CHECKING:
    from ._modules import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Raise an error that says where the rest of torch.nn is."""
        raise functional.absent(name, __name__, torch.nn)

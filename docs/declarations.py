"""Write what type checkers read of cupy_losses.nn: `python docs/declarations.py`.

The functions and modules there are made of the losses and of the installed torch when they are
imported, which no type checker sees. A function or a class of torch is declared as such, so that it
has the types of the torch that the reader has installed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

import cupy_losses.nn.functional as F
from cupy_losses import nn

FOLDER = Path(__file__).parents[1] / "cupy_losses" / "nn"
HEAD = '"""{} Written by `python docs/declarations.py`."""\n'


def names(values: Sequence[str]) -> str:
    """The inside of a list of names, one a line."""
    return "".join(f"    {value},\n" for value in sorted(values))


def functions() -> str:
    """The functions: torch's own, and those that torch does not have."""
    of_torch = [name for name in F.__all__ if hasattr(torch.nn.functional, name)]
    own = [name for name in F.__all__ if name not in of_torch]
    return (
        HEAD.format("The types of `cupy_losses.nn.functional`.")
        + f"\nfrom torch.nn.functional import (\n{names(of_torch)})\n"
        + f"\nfrom cupy_losses import (\n{names(own)})\n"
        + f"\n__all__ = [\n{names([json.dumps(name) for name in F.__all__])}]\n"
    )


def method(name: str, signature: inspect.Signature, returned: str) -> str:
    """The declaration of a method, one argument a line."""
    lines = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        lines.append(argument(parameter))
    listed = "".join(f"        {line},\n" for line in lines)
    return f"    def {name}(\n{listed}    ) -> {returned}: ...\n"


def argument(parameter: inspect.Parameter) -> str:
    """The declaration of an argument."""
    if parameter.annotation is parameter.empty:
        return parameter.name
    kind = f"{parameter.name}: {annotation(parameter)}"
    default = parameter.default
    if default is parameter.empty:
        return kind
    return f"{kind} = {json.dumps(default) if isinstance(default, str) else default}"


def annotation(parameter: inspect.Parameter) -> str:
    """The type of an argument of a module, whose first operand is a tensor."""
    given = parameter.annotation
    if isinstance(given, str):
        return given.replace("ArrayT", "Tensor")
    return " | ".join([kind.__name__ for kind in get_args(given) or (given,)])


def module(loss: str) -> str:
    """The class of the module of a loss: how it is made, unless as torch's, and its call."""
    name = nn.class_name(loss)
    own: type[torch.nn.Module] = getattr(nn, name)
    (base,) = own.__bases__
    forward = inspect.signature(own.forward)
    parts = []
    if base is torch.nn.Module:
        made = inspect.signature(own.__init__)
        options = [p for p in made.parameters.values() if p.name != "self"]
        parts = [f"    {p.name}: {annotation(p)}\n" for p in options]
        parts += [method("__init__", made, "None"), method("forward", forward, "Tensor")]
    parts.append(method("__call__", forward, "Tensor"))
    head = f'class {name}(torch.nn.{base.__name__}):\n    """The module of `{loss}`."""\n\n'
    return head + "".join(parts)


def classes() -> str:
    """The modules."""
    head = HEAD.format("The types of `cupy_losses.nn`.")
    head += "\nimport torch\nfrom torch import Tensor\n\n"
    head += "from .._core.types import Array, Reduction\n\n"
    return head + "\n".join(map(module, F.__all__))


FILES = {FOLDER / "_functions.pyi": functions, FOLDER / "_modules.pyi": classes}


def main() -> None:
    """Write both."""
    for file, text in FILES.items():
        file.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""C++ types of kernels, as text."""

from __future__ import annotations

from collections.abc import Sequence


def template(name: str, *arguments: str | int) -> str:
    """The C++ type `name<arguments>`."""
    return f"{name}<{', '.join(map(_written, arguments))}>"


def tuned(name: str, **parameters: str | int) -> str:
    """The C++ type `name` of its parameters, in the order in which the kernel declares them."""
    fields = (f".{field} = {_written(value)}" for field, value in parameters.items())
    return template(name, f"{name}Parameters{{{', '.join(fields)}}}")


def _written(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def bits(indices: Sequence[int]) -> str:
    """A set of numbers, as a mask of the C++ type unsigned."""
    return f"{sum(1 << index for index in indices)}u"

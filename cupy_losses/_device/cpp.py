"""What names a kernel, as C++ text: types, and the values that templates take."""

from __future__ import annotations

from collections.abc import Sequence


def template(name: str, *arguments: str | int) -> str:
    """The C++ type `name<arguments>`."""
    return f"{name}<{', '.join(map(_written, arguments))}>"


def tuned(name: str, **parameters: str | int) -> str:
    """A value of the C++ struct `name`, whose fields are in the order that the kernel declares."""
    fields = (f".{field} = {_written(value)}" for field, value in parameters.items())
    return f"{name}{{{', '.join(fields)}}}"


def _written(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def bits(indices: Sequence[int]) -> str:
    """A set of numbers, as a mask of the C++ type unsigned."""
    return f"{sum(1 << index for index in indices)}u"

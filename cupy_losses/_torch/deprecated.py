"""The deprecated arguments of torch's losses, which stand for a reduction."""

from __future__ import annotations

from typing import Any

from torch.nn._reduction import legacy_get_string

DEPRECATED = ("size_average", "reduce")


def are_given(arguments: dict[str, Any]) -> bool:
    """Whether one of them is not None: they win over `reduction` then."""
    return any(arguments.get(name) is not None for name in DEPRECATED)


def take_reduction(arguments: dict[str, Any]) -> str | None:
    """Take them out of arguments; return the reduction that they stand for, with torch's warning.

    It is None if they are not given.
    """
    given = are_given(arguments)
    taken = [arguments.pop(name, None) for name in DEPRECATED]
    return legacy_get_string(*taken) if given else None

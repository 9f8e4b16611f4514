"""Functions whose source this package generates, for libraries that read code."""

from __future__ import annotations

import linecache
from types import FunctionType
from typing import Any


def function_of_source(
    text: str, name: str, file: str, names: dict[str, Any] | None = None
) -> FunctionType:
    """The function that a source defines; `inspect` and tracebacks show its lines.

    Args:
        text: The source.
        name: Its name.
        file: What stands for a file in tracebacks.
        names: The global variables that it reads.

    """
    # Without a time, the lines stay.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    made = dict(names or {})
    exec(compile(text, file, "exec"), made)
    function: FunctionType = made[name]
    return function

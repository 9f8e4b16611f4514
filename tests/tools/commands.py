"""Commands of the console script as a test calls them."""

from __future__ import annotations

import json
from typing import Any

from cupy_losses.__main__ import main


def run(capsys: Any, command: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code of a command on NumPy, and what it printed."""
    code = main([command, "--backend", "numpy", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def read(text: str) -> dict[str, Any]:
    """What is printed as JSON, by the rules of JSON alone."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    result: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return result

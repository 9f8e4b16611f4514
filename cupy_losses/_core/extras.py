"""Checks that a package from an extra is installed."""

from __future__ import annotations

import importlib.util


def require_torch(user: str) -> None:
    """Raise an error that says what to install, unless torch is there.

    Args:
        user: What needs it.

    Raises:
        ModuleNotFoundError: If torch is not installed.

    """
    if importlib.util.find_spec("torch") is None:
        message = f'{user} needs torch: pip install "cupy-losses[torch]"'
        raise ModuleNotFoundError(message, name="torch")

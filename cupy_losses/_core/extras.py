"""Packages from an extra: whether one is installed, and whether it is imported."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


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


def imported(name: str) -> Any:
    """A module that is imported; None where it is not, or a thread is importing it right now."""
    module = sys.modules.get(name)
    is_begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_begun else module

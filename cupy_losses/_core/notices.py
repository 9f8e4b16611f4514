"""Warnings to the caller of this package."""

from __future__ import annotations

import sys
import types
import warnings


def warn(message: str) -> None:
    """Warn at the line of the user's code that called this package."""
    level, frame = 1, sys._getframe()
    while frame is not None and _is_own(frame):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_own(frame: types.FrameType) -> bool:
    """Whether code of this package runs, which `accelerate` also puts into functions of torch."""
    own_file = frame.f_code.co_filename.startswith("<cupy_losses.")
    return own_file or frame.f_globals.get("__name__", "").startswith("cupy_losses.")

"""Where a command computes: CuPy on a GPU, or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from .._device import driver


def option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option of the backend, as `backend`, which `choose` reads."""
    return click.option(
        "--backend", type=click.Choice(["cupy", "numpy"]), help="[default: CuPy on a GPU]"
    )(command)


def choose(wanted: str | None) -> tuple[Any, str, str]:
    """The array module, its name, and why it was chosen."""
    if wanted == "numpy":
        return np, "NumPy", "asked for"
    try:
        xp = driver.cupy()
        count = xp.cuda.runtime.getDeviceCount()
        properties = xp.cuda.runtime.getDeviceProperties(0) if count else None
    except Exception as error:
        if wanted == "cupy":
            raise click.ClickException(f"no CuPy on a GPU: {driver.why(error)}") from error
        if isinstance(error.__cause__, ModuleNotFoundError):
            return np, "NumPy", "CuPy is not installed: cupy-losses info says what to install"
        return np, "NumPy", f"no GPU: {driver.why(error).splitlines()[0]}"
    if properties is None:
        return np, "NumPy", "no GPU: CuPy finds no device"
    return xp, f"CuPy on {properties['name'].decode()}", "a GPU is there"

"""Arrays of libraries that have no file in the package, on the host and on a GPU."""

from __future__ import annotations

import functools
import importlib
import os

from ..tools.requirements import imported
from .arrays import Array, Host

# JAX would take three quarters of a GPU's memory, and other tests use it too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def jax_array(host: Host, device: str = "cpu") -> Array:
    """An array of JAX."""
    jax = imported("jax", "arrays")
    return jax.device_put(host, jax.devices(device)[0])


def warp_array(host: Host, device: str = "cpu") -> Array:
    """An array of Warp."""
    warp = imported("warp", "arrays")
    warp.config.quiet = True
    return warp.array(host, device=device)


def array_on_gpu(library: str, host: Host) -> Array:
    """An array of a library on a GPU."""
    if library == "numba":
        return importlib.import_module("numba.cuda").to_device(host)
    return {"jax": jax_array, "warp": warp_array}[library](host, "cuda")


@functools.cache
def finds_gpu(library: str) -> bool:
    """Whether a library is there, and has arrays on a GPU."""
    try:
        if library == "jax":
            return bool(importlib.import_module("jax").devices("cuda"))
        if library == "warp":
            return bool(importlib.import_module("warp").is_cuda_available())
        return bool(importlib.import_module(f"{library}.cuda").is_available())
    except (ImportError, RuntimeError):  # JAX's, where it is for the host alone
        return False

"""Arrays of every library, from and to NumPy, for test bodies that run on all of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = Any
Host = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
MANTISSA_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
SMALLEST_NORMAL = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


class Library:
    """Arrays of one library: `numpy`, `torch`, `cupy` or `torch cuda`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    @property
    def is_torch(self) -> bool:
        """Whether its arrays are differentiable."""
        return self.name.startswith("torch")

    @property
    def on_host(self) -> bool:
        """Whether NumPy computes its losses."""
        return self.name in ("numpy", "torch")

    def array(self, host: Host) -> Array:
        """The same values in this library, with the strides of `host`."""
        if host.size == 0 or host.ndim == 0:
            host = host.copy()
        if self.name == "numpy":
            return host
        if self.name == "cupy":
            import cupy

            return _restride(cupy.asarray(_base(host)), host)
        import torch

        device = "cuda" if self.name == "torch cuda" else "cpu"
        base = _base(host)
        if base.dtype == BFLOAT16:
            tensor = torch.from_numpy(base.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(base)
        tensor = tensor.to(device) if device == "cuda" else tensor.clone()
        size = host.dtype.itemsize
        offset = _offset(host, base) // size
        return tensor.as_strided(host.shape, [step // size for step in host.strides], offset)

    def host(self, array: Array) -> Host:
        """The values of an array in NumPy."""
        if self.is_torch:
            import torch

            array = array.detach().cpu()
            if array.dtype == torch.bfloat16:
                return array.contiguous().view(torch.int16).numpy().view(BFLOAT16)
            return array.numpy()
        return array.get() if self.name == "cupy" else array

    def strides(self, array: Array) -> tuple[int, ...]:
        """The strides of an array in bytes. Its copy in NumPy can have others."""
        if self.is_torch:
            return tuple(step * array.element_size() for step in array.stride())
        return tuple(array.strides)


def _base(host: Host) -> Host:
    """The one-dimensional memory that an array is a view of."""
    while isinstance(host.base, np.ndarray):
        host = host.base
    flat = host.ravel("K")  # the axes may lie in any order
    assert np.shares_memory(flat, host) or host.size == 0
    return flat


def _offset(host: Host, base: Host) -> int:
    return int(host.__array_interface__["data"][0] - base.__array_interface__["data"][0])


def _restride(base: Array, host: Host) -> Array:
    import cupy

    start = base.data + _offset(host, _base(host))
    return cupy.ndarray(host.shape, host.dtype, start, host.strides)


def ulps(got: Host, exact: Host, scale: Host | None = None) -> float:
    """The largest distance of `got` from `exact`, rounded to its dtype, in units of the last place.

    The last place is that of `exact`, or of `scale` where that is larger. NaN and infinities must
    be at the same places.
    """
    dtype = got.dtype.name
    assert got.shape == exact.shape
    with np.errstate(over="ignore"):
        rounded = exact.astype(got.dtype).astype(np.longdouble)
    mine = got.astype(np.longdouble)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(mine[special], rounded[special])
    differs = (mine != rounded) & ~special
    if not differs.any():
        return 0.0
    mine, rounded = mine[differs], rounded[differs]
    largest = abs(rounded)
    if scale is not None:
        largest = np.maximum(largest, np.broadcast_to(scale, exact.shape)[differs])
    exponent = np.frexp(largest)[1].astype(int) - 1
    exponent = np.maximum(
        np.where(largest == 0, SMALLEST_NORMAL[dtype], exponent), SMALLEST_NORMAL[dtype]
    )
    unit = np.ldexp(np.longdouble(1), exponent - MANTISSA_BITS[dtype])
    return float((abs(mine - rounded) / unit).max())

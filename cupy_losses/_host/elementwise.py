"""A formula that a user wrote in NumPy, held to what the backend relies on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import HostArray, broadcast
from .dual import Dual, Number, plain
from .fingerprint import fingerprint

_COMPARED = 5  # elements


class Elementwise:
    """A formula whose results are checked: their dtype, their shape, and that it is elementwise.

    The backend evaluates it in chunks, so that an element may depend on the same element of the
    operands only. A few elements are therefore computed again, apart from the others, until that
    has succeeded on elements that differ.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self.function = function
        self._compared = False

    @property
    def fingerprint(self) -> str:
        """What tells formulas apart."""
        return fingerprint(self.function)

    def __call__(self, *operands: Number, **parameters: float) -> Number:
        arrays = [plain(operand) for operand in operands]
        for array in arrays:
            if isinstance(array, np.ndarray):
                array.flags.writeable = False  # the derivatives are computed from it too
        shape = np.shape(arrays[0])
        if not self._compared:
            # On arrays first, as what is not elementwise may not take numbers with derivatives.
            try:
                first = self.function(*arrays, **parameters)
            except ValueError as error:
                if "read-only" not in str(error):
                    raise
                raise ValueError(
                    f"numpy of {self._name} writes to its arguments: {error}"
                ) from None
            whole: HostArray = self._checked(first, shape)
            self._compare(arrays, parameters, whole)
            if not any(isinstance(operand, Dual) for operand in operands):
                return whole
        try:
            result = self.function(*operands, **parameters)
        except (AttributeError, TypeError) as error:
            if not any(isinstance(operand, Dual) for operand in operands):
                raise
            raise TypeError(f"numpy of {self._name} cannot be differentiated: {error}") from error
        return self._checked(result, shape)

    def _checked(self, result: Any, shape: tuple[int, ...]) -> Number:
        """The result in float64 and the shape of the operands, to which one number broadcasts."""
        if isinstance(result, Dual):
            return Dual(self._checked(result.value, shape), self._checked(result.slope, shape))
        array = np.asarray(result)
        if array.dtype.kind not in "biuf" or array.shape not in ((), shape):
            got = type(result).__name__
            if isinstance(result, np.ndarray | np.generic):
                got = f"{array.dtype} of shape {array.shape}"
            raise ValueError(
                f"numpy of {self._name} must return real numbers of the shape of its arguments, "
                f"{shape}, or one number, got {got}"
            )
        return broadcast(array.astype(np.float64, copy=False), shape)

    def _compare(
        self, operands: Sequence[HostArray], parameters: Mapping[str, float], whole: HostArray
    ) -> None:
        """Raise unless a few elements are the same when they are computed apart.

        Each alone, as its result must be its own, and all of them in reversed order, which a
        formula that sorts undoes.
        """
        count = min(whole.size, _COMPARED)
        if count < 2:
            return
        last = whole.size - 1
        places = np.unravel_index(last - np.arange(count) * whole.size // count, whole.shape)
        picked = np.stack([operand[places] for operand in operands])
        among_all = whole[places]

        def among(part: slice) -> HostArray:
            x = picked[:, part].copy()
            result: HostArray = self._checked(self.function(*x, **parameters), x.shape[1:])
            return result

        try:
            alone = np.concatenate([among(slice(k, k + 1)) for k in range(count)])
            among_few = among(slice(None))
        except Exception as error:
            raise ValueError(
                f"numpy of {self._name} must be elementwise, but fails on a few elements of "
                f"arguments of shape {whole.shape}: {error}"
            ) from error
        finite = among_all[np.isfinite(among_all)]
        tolerance = 1e-9 * abs(finite).max(initial=0.0)
        for others, result in ("alone", alone), ("among a few", among_few):
            same = np.isclose(result, among_all, rtol=1e-6, atol=tolerance, equal_nan=True)
            if not same.all():
                k = np.argmin(same)
                raise ValueError(
                    f"numpy of {self._name} must be elementwise, with a result for each element "
                    f"of arguments of shape {whole.shape}: that of one is {among_all[k]:g} among "
                    f"all of them and {result[k]:g} {others}"
                )
        compared = np.concatenate([picked, [among_all]])
        differ = (compared != compared[:, :1]).any(axis=1)
        self._compared = bool(differ.all() and np.isfinite(compared).all())

"""Calls with their operands, as public functions of losses prepare them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from .._core.loss import Call, Loss
from .._core.types import AnyArray
from .._libraries.registry import library_of

Result = TypeVar("Result")


class Prepared(tuple[Call, tuple[AnyArray, ...]], Generic[Result]):
    """A call with its operands, and for type checkers the type of what the call gives.

    At run time it is a tuple, which takes less time to make.
    """


def one_like(name: str, array: AnyArray) -> AnyArray:
    """The number 1 as an array of shape (), beside an array; `name` names that in errors."""
    library = library_of(name, array)
    return library.one(library.adopt(array))


def call_of(
    loss: Loss,
    operands: tuple[AnyArray, ...],
    reduction: str,
    weight: AnyArray | None,
    where: AnyArray | None,
    parameters: tuple[float | int, ...] = (),
    scale: float | AnyArray = 1.0,
    sample_weight: AnyArray | None = None,
    axis: int | None = None,
) -> Prepared[Any]:
    """A call of `loss` and its operands."""
    scaled = type(scale) is not float
    weighs = weight is not None or sample_weight is not None or where is not None
    if not scaled and scale == 1.0 and not weighs:
        call = Call(loss, reduction, parameters, False, False, 1.0, False, axis)
        return call, operands  # type: ignore[return-value]
    if reduction == "none" and (scaled or scale != 1.0):
        raise ValueError(
            "scale must be 1 with reduction 'none': multiply the losses, or pass a weight of each "
            "(weight, or sample_weight of rows)"
        )
    if sample_weight is not None:
        operands = (sample_weight, *operands)
    if weight is not None:
        operands = (weight, *operands)
    if where is not None:
        operands = (where, *operands)
    if scaled:
        operands, scale = (*operands, scale), 1.0
    weighted, masked = weight is not None, where is not None
    row_weighted = sample_weight is not None
    call = Call(loss, reduction, parameters, weighted, masked, scale, scaled, axis, row_weighted)
    return call, operands  # type: ignore[return-value]

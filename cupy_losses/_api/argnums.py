"""The operands that a loss is differentiated by: those that argnums name, if it can be."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

from .._core.arguments import Integer, digits, one_of
from .._core.dtypes import FLOATING, dtype_name
from .._core.loss import Call
from .._core.types import AnyArray


def check_reduced(call: Call) -> None:
    """Raise unless a loss is reduced to one number, whose gradient can be taken."""
    if call.reduction == "none":
        allowed = one_of(reduction for reduction in call.loss.reductions if reduction != "none")
        raise ValueError(
            f"reduction must be {allowed} to take a gradient, got 'none', given or by default: vjp "
            "takes a cotangent for each element of the loss, grad_and_hess gives the derivatives "
            "of each element"
        )


def check_differentiable(call: Call, operand: int) -> None:
    """Raise unless the loss is differentiated by an operand, here and not by torch's autograd."""
    name, refusal = call.names[operand], call.loss.refusal(call, operand)
    if refusal is None:
        return
    if refusal.by_autograd:
        raise ValueError(f"the loss is differentiated by {name} by torch's autograd alone")
    raise ValueError(f"the loss is not differentiated by {name}")


def integer(argnum: int) -> int:
    """The one argnum; raises a TypeError unless it is an integer."""
    return Integer().checked("argnum", argnum)


def numbers_of(argnums: int | Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """The argnums, and whether they came as a sequence; raises a TypeError if one is no integer."""
    if type(argnums) is int:
        return (argnums,), False
    several = not isinstance(argnums, numbers.Integral | str) and isinstance(argnums, Sequence)
    numbers_given: tuple[Any, ...] = tuple(argnums) if several else (argnums,)  # type: ignore[arg-type]
    for number in numbers_given:
        if isinstance(number, bool) or not isinstance(number, numbers.Integral):
            raise TypeError(
                f"argnums must be an integer or a sequence of integers, got {argnums!r}"
            )
    return tuple(operator.index(number) for number in numbers_given), several


def operands_of(
    call: Call, operands: Sequence[AnyArray], argnums: Sequence[int]
) -> tuple[int, ...]:
    """Which of the operands of a call the arguments to differentiate by are."""
    wanted = tuple(operand_of(call, operands, number) for number in argnums)
    check_distinct(wanted, argnums)
    return wanted


def operand_of(
    call: Call, operands: Sequence[AnyArray], number: int, option: str = "argnums"
) -> int:
    """Which of the operands of a call the argument with a number is.

    Args:
        call: The call.
        operands: Its operands, weights and masks included.
        number: The number of the argument, which may be counted from the end.
        option: The name of the option that has the number, for errors.

    Raises:
        TypeError: If the operand is not floating.
        ValueError: If there is no such argument, or the loss is not differentiated by it.

    """
    count = len(call.loss.operands)
    if not -count <= number < count:
        raise ValueError(
            f"{option} must be in {-count} … {count - 1} for the operands "
            f"{', '.join(call.loss.operands)}, got {digits(number)}"
        )
    k = call.extra + number % count
    dtype = dtype_name(operands[k].dtype)
    if dtype not in FLOATING:
        raise TypeError(f"{call.names[k]} must be floating to differentiate by it, got {dtype}")
    check_differentiable(call, k)
    return k


def check_distinct(found: Sequence[int], argnums: Sequence[int]) -> None:
    """Raise a ValueError if two of the argnums are the same argument, counted from either end."""
    if len(found) > 1 and len(set(found)) < len(found):
        raise ValueError(f"argnums must name each argument once, got {tuple(argnums)}")

"""What kernels evaluate of each row, as a C++ type: the loss, or its term of the denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import c_type, item_size
from .cpp import template
from .row_arrays import RowArray
from .row_operands import RowOperands


@dataclass(frozen=True)
class RowFunction:
    """What a kernel evaluates of each row.

    Attributes:
        expression: The C++ type.
        inputs: What it reads.
        tangents: The operands that vary.
        vjp: Whether the first input is grad_output.
        result: The C++ type of a value.
        divisor: What sums are divided by.
        scaled: Whether they are scaled as the call is.

    """

    expression: str
    inputs: Sequence[RowArray]
    tangents: Sequence[int]
    vjp: bool
    result: str
    divisor: float
    scaled: bool


def loss_function(operands: RowOperands, elements: int = 0) -> RowFunction:
    """The loss; `elements`: how many of a row a thread has, if all."""
    problem = operands.problem
    call, request = problem.call, problem.request
    return RowFunction(
        expression=_sampled(operands, _loss_type(operands, elements)),
        inputs=operands.inputs,
        tangents=[k - call.extra for k in request.tangents],
        vjp=request.vjp,
        result=c_type(problem.result),
        divisor=problem.denominator.size,
        scaled=True,
    )


def denominator_function(operands: RowOperands) -> RowFunction:
    """What a row adds to the denominator of a mean."""
    return RowFunction(
        expression=_sampled(operands, template("Denominator", _loss_type(operands, elements=0))),
        inputs=operands.own,
        tangents=(),
        vjp=False,
        result="double",
        divisor=1.0,
        scaled=False,
    )


def number_bytes(operands: RowOperands) -> int:
    """The bytes of a number with its derivative, where it has one."""
    problem = operands.problem
    return item_size(problem.real) * (2 if problem.request.tangents else 1)


def state_bytes(operands: RowOperands) -> int:
    """At most the bytes of what a row accumulates: sums and their errors, and one number."""
    return (2 * operands.loss.sums + 1) * number_bytes(operands)


def row_bytes(operands: RowOperands, gradients: bool) -> int:
    """At most the bytes of the context of a row and of what its gradients need, a multiple of 8."""
    context = 24 + 2 * number_bytes(operands)
    finished = (2 * max(operands.loss.sums, 3) + 1) * number_bytes(operands)
    return -(-(context + finished * gradients) // 8) * 8


def _loss_type(operands: RowOperands, elements: int) -> str:
    """The C++ type of the loss of a row that counts; `elements`: see `loss_function`."""
    problem, loss = operands.problem, operands.loss
    weighted = (problem.call.weighted,) if loss.weights else ()
    precision: tuple[int, ...] = ()
    if loss.precise:
        half = item_size(operands.main.dtype) < item_size(problem.real)
        precision = (half,) if loss.index is None else (half, elements)
    return template(loss.struct, c_type(problem.real), *loss.options, *weighted, *precision)


def _sampled(operands: RowOperands, expression: str) -> str:
    """The C++ type of a function of rows that count as the mask and the weights of rows say."""
    call = operands.problem.call
    if call.masked or call.row_weighted:
        return template("Sampled", expression, call.masked, call.row_weighted)
    return expression

"""Plans of pointwise losses; the files of cuda/kernels/ say what the kernels do."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.dtypes import c_type
from .._core.pointwise import PointwiseFormula
from .._core.shapes import broadcast_axes, broadcast_strides, memory_order
from .addresses import NO_ADDRESS, Address
from .cpp import bits, template
from .element_launches import ElementFunction, Launches, Quotient
from .launch import Fields
from .library import DeviceLibrary
from .plan import Plan, empty_plan
from .problem import Problem


def make_plan(library: DeviceLibrary, problem: Problem, loss: PointwiseFormula) -> Plan:
    """Decide how to evaluate a request of a pointwise loss."""
    if problem.size == 0:
        return empty_plan(library, problem)
    return _Planner(library, problem, loss).plan()


class _Planner(Launches):
    """The launches of one problem."""

    def __init__(self, library: DeviceLibrary, problem: Problem, loss: PointwiseFormula) -> None:
        super().__init__(library, problem)
        self._loss = loss
        self._strides = [broadcast_strides(o, problem.shape) for o in problem.operands]
        # As PointwiseFormula.outputs lie, whatever is requested.
        first = problem.leading + problem.call.extra
        self._axes = memory_order(problem.shape, self._strides, first)
        self._sums_rows = loss.row_means and problem.call.reduction == "none"

    def plan(self) -> Plan:
        problem = self._problem
        repeated: list[tuple[int, Address, tuple[int, ...]]] = []
        direct: dict[int, Address] = {}
        for k, address in self._gradients():
            index = problem.leading + k
            axes = broadcast_axes(problem.operands[index], problem.shape)
            if axes:
                repeated.append((index, address, axes))
            else:
                direct[index] = address
        denominator = self._denominator(bool(direct or repeated))
        values = "NO_VALUES" if self._sums_rows else self._values_mode()
        if values != "NO_VALUES" or direct:
            factor, result = self._factor(bool(direct), values), c_type(self._problem.result)
            request, reduced = problem.request, problem.call.reduction != "none"
            multiplies = request.vjp and reduced and not request.value
            if multiplies:  # grad_output is no operand of the function, but a factor
                factor = self._operand_addresses[0], NO_ADDRESS
                result = c_type(problem.operands[0].dtype)
            self._add_pointwise(
                self._function(int(multiplies)),
                problem.shape,
                values=values,
                result=result,
                value=NO_ADDRESS if self._sums_rows else self._value(),
                denominator=denominator,
                factor=factor,
                gradients={index - multiplies: address for index, address in direct.items()},
                divisor=problem.denominator.size,
            )
        if problem.request.value and self._sums_rows:
            last = [axis for axis in self._axes if axis == len(problem.shape) - 1]
            self._sum(-1, problem.result, self._value(), last, denominator)
        for index, address, axes in repeated:
            self._sum(index, problem.operands[index].dtype, address, axes, denominator)
        return self._finish()

    def _sum_denominator(self) -> Address:
        """The sum of the weights that the mask leaves, or their number."""
        problem, call = self._problem, self._problem.call
        where = problem.leading if call.masked else None
        weighs = self._loss.divides_by_weights(call)
        weight = problem.leading + call.masked if weighs else None
        return self._sum_of_counts(where, weight, problem.size)

    def _function(self, first: int = 0) -> ElementFunction:
        """What is evaluated at each element, of the operands from `first` on."""
        problem = self._problem
        parameters = problem.call.parameters
        return ElementFunction(
            self._expression(first),
            problem.real,
            self._loss.source,
            problem.operands[first:],
            self._operand_addresses[first:],
            self._strides[first:],
            self._axes,
            problem.misaligned[first:],
            Fields(self._loss, problem.real),
            parameters,
        )

    def _sum(
        self,
        operand: int,
        dtype: str,
        result: Address,
        repeated: Sequence[int],
        denominator: Address,
    ) -> None:
        """Sum over the axes `repeated`: the gradient of an operand that is broadcast along them.

        Or of the values, for -1.
        """
        problem = self._problem
        derivatives = operand >= 0 or bool(problem.request.tangents)
        empty_is_zero = problem.denominator.leaves_out and derivatives
        self._add_sums(
            self._function(),
            problem.shape,
            repeated,
            operand,
            Quotient(
                dtype, problem.denominator.size, denominator, result, empty_is_zero, scaled=True
            ),
        )

    def _expression(self, first: int) -> str:
        """The C++ type of a function of the operands from `first` on."""
        problem, loss = self._problem, self._loss
        call, request = problem.call, problem.request
        if problem.is_half:
            expression = template(loss.struct, "Approximate", *loss.options)
            expression = template("Approximately", expression)
        else:
            expression = template(loss.struct, c_type(problem.real), *loss.options)
        if call.weighted:
            expression = template("Weighted", expression, loss.weighted_mean)
        if request.tangents:
            # Below the mask, the operands of the call begin with the next one.
            tangents = tuple(k - call.masked for k in request.tangents)
            expression = template("Jvp", expression, bits(tangents))
        if request.vjp and not first:
            expression = template("Vjp", expression)
        if call.masked:
            expression = template("Masked", expression, problem.leading - first)
        return expression

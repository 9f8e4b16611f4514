"""Launches over rows as steps of a plan, whichever their schedules are."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial

from .._core.dtypes import item_size
from .._core.rows import RowFormula
from .._core.shapes import dense_strides
from .addresses import COUNTED, GRAD_OUTPUT, Address
from .builder import Step
from .compiler import Kernel
from .element_launches import Launches
from .launch import POINTERS_OF_RESULTS, Fields, Launch, head_of_results, int64
from .library import DeviceLibrary
from .plan import Plan, empty_plan
from .problem import Problem
from .row_arrays import RowArray
from .row_function import RowFunction
from .row_operands import RowOperands, row_operands
from .row_schedule import Results, Schedule, specialisation


class RowLaunches(Launches):
    """The launches of one problem, of which a planner decides the schedules and the order."""

    def __init__(self, library: DeviceLibrary, problem: Problem, loss: RowFormula) -> None:
        super().__init__(library, problem)
        self._loss = loss
        self._operands = row_operands(problem, loss, self._operand_addresses)

    @abstractmethod
    def plan(self) -> Plan:
        """Add the launches and make a plan of them."""

    def _gradient(self, k: int, address: Address) -> RowArray:
        """The array that the kernels write for operand k, whose gradient is at an address."""
        problem, space = self._problem, self._operands.rows.space
        index = problem.leading + k
        operand = problem.operands[index]
        if self._loss.overwrites and k == problem.call.extra:
            strides, misaligned = space.strides[index], problem.misaligned[index]
            return RowArray(operand.dtype, strides, misaligned, address, True)
        strides = dense_strides(space.axes, space.shape)
        if operand.size == problem.size:
            return RowArray(operand.dtype, strides, 0, address, True)
        full = self._add_scratch(item_size(problem.real) * problem.size)
        return RowArray(problem.real, strides, 0, full, True)

    def _sum_denominator(self) -> Address:
        """The sum of the weights of the rows that a mask leaves, or their number."""
        call, leading = self._problem.call, self._problem.leading
        where = leading if call.masked else None
        weight = leading + call.extra - 1 if call.row_weighted else None
        return self._sum_of_counts(where, weight, self._operands.rows.number)

    def _add(self, function: RowFunction, schedule: Schedule, results: Results) -> None:
        """Add the launch that evaluates a function of the rows."""
        scale_type, scale = self._scale(function.scaled)
        kernel = specialisation(self._operands, function, schedule, results, scale_type)
        workspace = self._workspace(
            self._problem.real, schedule.segments, results.values, schedule.groups
        )
        factor = results.factor or self._factor(bool(results.wanted), results.values)
        first = results.denominator, *factor, results.value, *workspace
        arrays = (array.address for array in [*function.inputs, *results.outputs])
        addresses = *first, *schedule.records, *arrays, *scale
        launch = partial(_launch, self._operands, function, schedule, len(addresses))
        self._steps.append(Step(kernel, partial(launch, limited=schedule.limited), addresses))
        if GRAD_OUTPUT in factor:
            # Gradients computed anew have the number of rows that there are for a denominator.
            again = (COUNTED, *addresses[1:]) if self._anticipates_count else addresses
            # No more blocks than run at once: most often all end at once.
            self._again = Step(kernel, partial(launch, limited=True), again)


def make_plan(
    library: DeviceLibrary, problem: Problem, loss: RowFormula, planner: type[RowLaunches]
) -> Plan:
    """Decide how to evaluate a request of a loss of rows, by a planner of its launches."""
    if math.prod(loss.rows_of(problem.shape, problem.call.axis)) == 0:
        return empty_plan(library, problem)
    return planner(library, problem, loss).plan()


def _launch(
    operands: RowOperands,
    function: RowFunction,
    schedule: Schedule,
    pointers: int,
    kernel: Kernel,
    *,
    limited: bool,
) -> Launch:
    """The launch of a compiled kernel; `limited`: of no more blocks than run at once."""
    problem, rows = operands.problem, operands.rows
    counts = int64(rows.number), int64(rows.columns)
    return Launch(
        kernel,
        schedule.grid(kernel.resident_blocks, limited),
        schedule.threads,
        [*schedule.arguments, *counts, head_of_results(schedule.segments, function.divisor)],
        pointers,
        POINTERS_OF_RESULTS,
        shared=schedule.shared,
        fields=Fields(operands.loss, problem.real),
        parameters=problem.call.parameters,
        scaled=function.scaled,
    )

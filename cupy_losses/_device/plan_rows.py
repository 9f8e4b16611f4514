"""Plans of losses of rows; their kernels in cuda/kernels say what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from .._core.dtypes import item_size
from .._core.rows import RowFormula
from .._core.shapes import ArraySpec
from . import row_launches
from .addresses import NO_ADDRESS, NO_FACTOR, SLOT, Address
from .denominators_schedule import denominators_schedule
from .element_launches import Quotient, identity
from .library import DeviceLibrary
from .plan import Plan
from .problem import Problem
from .row_arrays import RowArray
from .row_function import RowFunction, denominator_function, loss_function
from .row_gathering_schedule import Gathering, gathered_rows_schedule, gathering_of
from .row_launches import RowLaunches
from .row_schedule import NO_RESULTS, Results, Schedule
from .row_striding import StridedTeam
from .row_striding_schedule import bytes_between_sections, strided_rows_schedule, strided_team_of
from .row_team import row_team
from .row_team_schedule import bytes_between_splits, rows_schedule, split_rows_schedule
from .row_tiling_schedule import row_tiles_schedule, tile_of
from .strided_tiling_schedule import strided_tile_of, strided_tiles_schedule

# Gradients of up to FEW_ELEMENTS are anticipated to be divided by the number of all rows. To count
# rows ahead would take longer than to write the gradients anew where some are ignored.
FEW_ELEMENTS = 1 << 18


def make_plan(library: DeviceLibrary, problem: Problem, loss: RowFormula) -> Plan:
    """Decide how to evaluate a request of a loss of rows."""
    return row_launches.make_plan(library, problem, loss, _Planner)


class _Planner(RowLaunches):
    """The launches of one problem."""

    @property
    def _anticipates_count(self) -> bool:
        """Whether gradients are divided by a number of rows that is not known yet.

        Some rows of a mean may be ignored. Up to FEW_ELEMENTS, none are anticipated to be. Beyond,
        none are if the last call had all rows, and else a launch ahead counts them. The pass that
        writes the gradients counts the rows too. If it finds another number, the gradients are
        computed anew: by the backward pass of an early request, else by a launch right behind.
        That reads the operands again, so that none of them may have been overwritten.
        """
        problem, request = self._problem, self._problem.request
        counts = self._values_mode() == "MEAN_OF_VALUES" and not problem.call.extra
        # A slot that is new has the number 1.
        if not (counts and self._operands.rows.number > 1):
            return False
        repeatable = not (request.vjp or self._loss.overwrites)
        return request.early or (repeatable and request.wanted != ())

    @cached_property
    def _gathering(self) -> Gathering | None:
        return gathering_of(self._operands)

    def plan(self) -> Plan:
        found = self._gradients()
        outputs = [self._gradient(k, address) for k, address in found]
        summed = [
            (k, array, address)
            for (k, address), array in zip(found, outputs, strict=True)
            if array.address != address
        ]
        assert not (summed and self._anticipates_count), "sums would have to be added up anew"
        denominator = NO_ADDRESS
        if not self._anticipates_count or self._problem.size > FEW_ELEMENTS:
            denominator = self._denominator(bool(outputs))
        wanted = [k - self._problem.call.extra for k, _ in found]
        results = Results(self._values_mode(), self._value(), denominator, wanted, outputs)
        self._add_loss(results, bool(summed))
        for k, array, address in summed:
            self._sum_gradient(k, array, address)
        return self._finish()

    def _add_loss(self, results: Results, summed: bool) -> None:
        """Add the loss by the kernel for rows that lie so; `summed`: gradients are added up."""
        operands, outputs = self._operands, results.outputs
        if gathering := self._gathering:
            if gathering.writing == "IN_ZEROS":
                for array in outputs:
                    self._zero(array.address, item_size(array.dtype) * self._problem.size)
            schedule = gathered_rows_schedule(operands, gathering, outputs)
            self._add(loss_function(operands), schedule, results)
            return
        if tile := None if summed else tile_of(operands, outputs):
            schedule = row_tiles_schedule(operands, tile, outputs)
            self._add(loss_function(operands), schedule, results)
        elif columns := None if summed else strided_tile_of(operands, outputs):
            function = loss_function(operands, columns.count if columns.few else 0)
            self._add(function, strided_tiles_schedule(operands, columns, outputs), results)
        elif team := strided_team_of(operands, outputs):
            self._add_side_by_side(team, results)
        else:
            self._add_by_team(results)

    def _add_side_by_side(self, team: StridedTeam, results: Results) -> None:
        """Add a launch by kernels/strided_rows.cu, or two where several blocks share a tile."""
        operands = self._operands
        function = loss_function(operands, team.count if team.few else 0)
        if not team.of_block:
            self._add(function, strided_rows_schedule(operands, team, results), results)
            return
        schedule = partial(strided_rows_schedule, operands, team)
        self._add_in_phases(function, schedule, bytes_between_sections(operands, team), results)

    def _add_by_team(self, results: Results) -> None:
        """Add a launch by kernels/rows.cu, or two by kernels/split_rows.cu."""
        operands = self._operands
        team = row_team(operands.memory, bool(results.outputs), self._problem.device)
        has_row = team.rows_ahead and team.threads_per_row == 1
        function = loss_function(operands, operands.rows.columns if has_row else 0)
        if not team.splits:
            self._add(function, rows_schedule(operands, team, function, results), results)
            return
        schedule = partial(split_rows_schedule, operands, team, function)
        self._add_in_phases(function, schedule, bytes_between_splits(operands, team), results)

    def _add_in_phases(
        self,
        function: RowFunction,
        schedule: Callable[[Results, str, Address], Schedule],
        between: int,
        results: Results,
    ) -> None:
        """Add a launch of parts of rows, which records so many bytes, and one that merges them."""
        records = self._add_scratch(between)
        for phase, made in (("SPLIT", NO_RESULTS), ("MERGE", results)):
            self._add(function, schedule(made, phase, records), made)

    def _sum_gradient(self, k: int, array: RowArray, address: Address) -> None:
        """The gradient of an operand that is broadcast, from that of all elements."""
        operand = self._problem.operands[self._problem.leading + k]
        space = self._operands.rows.space
        shape, repeated = space.shape, [a for a in space.axes if operand.shape[a] == 1]
        function = identity(ArraySpec(array.dtype, shape, array.strides), array.address)
        quotient = Quotient(operand.dtype, 1.0, NO_ADDRESS, address)
        self._add_sums(function, shape, repeated, -1, quotient)

    def _sum_denominator(self) -> Address:
        """The sum of the weights of the rows that are not ignored, or their number."""
        if not self._loss.weighted_mean:
            return super()._sum_denominator()
        call = self._problem.call
        denominator = self._add_scratch(8)
        values = "SUM_OF_VALUES" if call.extra else "COUNT_OF_VALUES"
        factor = (NO_ADDRESS, SLOT) if self._anticipates_count else NO_FACTOR
        results = Results(values, denominator, NO_ADDRESS, factor=factor)
        function = denominator_function(self._operands)
        self._add(function, denominators_schedule(self._operands, function), results)
        return denominator

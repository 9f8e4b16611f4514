"""Plans of losses of rows; their kernels in cuda/kernels say what they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from .._core.dtypes import FLOATING, item_size
from .._core.rows import RowFormula
from .._core.shapes import ArraySpec, dense_strides
from . import driver
from .compiler import Kernel
from .element_launches import Launches, Quotient, identity
from .launch import Fields, Launch, float64, int32, int64
from .library import DeviceLibrary
from .plan import (
    COUNTED,
    GRAD_OUTPUT,
    NO_ADDRESS,
    NO_FACTOR,
    SLOT,
    UNSUMMED,
    Address,
    Plan,
    Problem,
    Step,
    bits,
    empty_plan,
    template,
)
from .row_arrays import SECTOR_BYTES, RowArray
from .row_function import (
    RowFunction,
    denominator_function,
    loss_function,
    number_bytes,
    state_bytes,
)
from .row_operands import RowOperands, row_operands
from .row_schedule import (
    FAN_IN,
    LEFT_BYTES,
    NO_RESULTS,
    Results,
    Schedule,
    resident_blocks,
    specialisation,
)
from .row_striding import StridedRows, strided_rows
from .row_team import BLOCK, MAX_RANKS, RowTeam, row_team
from .row_tiling import MANY_TILES, TILE_SEGMENTS, RowTile, row_tile

MAX_SHARING = 1 << 10  # blocks that sum the denominator of a mean, at most

# Gradients of up to FEW_ELEMENTS are anticipated to be divided by the number of all rows. To count
# rows ahead would take longer than to write the gradients anew where some are ignored.
FEW_ELEMENTS = 1 << 18


def make_plan(
    library: DeviceLibrary, problem: Problem, loss: RowFormula, launches: type[RowLaunches]
) -> Plan:
    """Decide how to evaluate a request of a loss of rows."""
    if math.prod(loss.rows_of(problem.shape, problem.call.axis)) == 0:
        return empty_plan(library, problem)
    return launches(library, problem, loss).plan()


class RowLaunches(Launches):
    """The launches of one problem."""

    def __init__(self, library: DeviceLibrary, problem: Problem, loss: RowFormula) -> None:
        super().__init__(library, problem)
        self._loss = loss
        self._operands = row_operands(problem, loss, self._operand_addresses)

    @property
    def _anticipates_count(self) -> bool:
        """Whether gradients are divided by all rows, or are if the last call had all.

        The pass that writes them counts too, so that it shows whether that was right. What is
        overwritten can not be read again.
        """
        problem, request = self._problem, self._problem.request
        counts = self._values_mode() == "MEAN_OF_VALUES" and not problem.call.extra
        streams = self._operands.any_streamed
        # A slot that is new has the number 1.
        if not (counts and streams and self._operands.rows.number > 1):
            return False
        repeatable = not (request.vjp or self._loss.overwrites)
        return request.early or (repeatable and request.wanted != ())

    def plan(self) -> Plan:
        value, values = self._value(), self._values_mode()
        outputs: list[RowArray] = []
        wanted: list[int] = []
        summed: list[tuple[int, RowArray, Address]] = []
        for k, address in self._gradients():
            array = self._gradient(k, address)
            outputs.append(array)
            wanted.append(k - self._problem.call.extra)
            if array.address != address:
                summed.append((k, array, address))
        assert not (summed and self._anticipates_count), "sums would have to be added up anew"
        denominator = NO_ADDRESS
        if not self._anticipates_count or self._problem.size > FEW_ELEMENTS:
            denominator = self._denominator(bool(wanted))
        results = Results(values, value, denominator, wanted, outputs)
        device = self._problem.device
        team = row_team(self._operands.memory, bool(wanted), device)
        if wanted and values != "NO_VALUES" and not self._operands.any_streamed:
            # Many threads write a row of which one has the value.
            reading = row_team(self._operands.memory, False, device)
            self._add_by_team(reading, Results(values, value, denominator))
            results = replace(results, values="NO_VALUES", value=NO_ADDRESS)
        if tile := None if summed else self._tile(outputs):
            self._add(loss_function(self._operands), self._tiled(tile, outputs), results)
        elif strided := self._strided(outputs):
            self._add_side_by_side(strided, results)
        elif team.splits:
            memory = self._add_scratch(LEFT_BYTES * self._operands.rows.number * (1 + team.splits))
            self._add_by_team(team, NO_RESULTS, "SPLIT", (memory,))
            self._add_by_team(team, results, "MERGE", (memory,))
        else:
            self._add_by_team(team, results)
        for k, array, address in summed:
            self._sum_gradient(k, array, address)
        return self._finish()

    def _gradient(self, k: int, address: Address) -> RowArray:
        """The array that the kernels write for operand k, whose gradient is at an address."""
        problem = self._problem
        index = problem.leading + k
        operand = problem.operands[index]
        if self._loss.overwrites and k == problem.call.extra:
            strides, misaligned = (
                self._operands.rows.space.strides[index],
                problem.misaligned[index],
            )
            return RowArray(operand.dtype, strides, misaligned, address, True)
        space = self._operands.rows.space
        strides = dense_strides(space.axes, space.shape)
        if operand.size == problem.size:
            return RowArray(operand.dtype, strides, 0, address, True)
        full = self._add_scratch(item_size(problem.real) * problem.size)
        return RowArray(problem.real, strides, 0, full, True)

    def _sum_gradient(self, k: int, array: RowArray, address: Address) -> None:
        """The gradient of an operand that is broadcast, from that of all elements."""
        operand, space = (
            self._problem.operands[self._problem.leading + k],
            self._operands.rows.space,
        )
        shape, repeated = space.shape, [a for a in space.axes if operand.shape[a] == 1]
        function = identity(ArraySpec(array.dtype, shape, array.strides), array.address)
        quotient = Quotient(operand.dtype, 1.0, NO_ADDRESS, address)
        self._add_sums(function, shape, space.axes, repeated, -1, quotient)

    def _tile(self, outputs: Sequence[RowArray]) -> RowTile | None:
        """The tiles of rows that are one stretch of memory; None for other rows."""
        rows = self._operands.rows
        if rows.columns == 0:
            return None
        elements, numbers = {}, {}
        for k, array in enumerate(self._operands.inputs):
            if self._operands.is_class_weights(k):
                continue
            if array.streamed:
                if not rows.lies(array, rows.dense):
                    return None
                elements[k] = item_size(array.dtype)
            elif rows.lies(array, rows.one_each):
                numbers[k] = item_size(array.dtype)
        if not all(rows.lies(array, rows.dense) for array in outputs):
            return None
        main = self._operands.main
        if outputs and not elements:  # their places are for the gradients alone
            if not rows.lies(main, rows.dense):
                return None
            elements[self._problem.leading] = item_size(outputs[0].dtype)
        # Of integers vectors of two, and no pairs of half precision.
        size = item_size(main.dtype if main.dtype in FLOATING else "float64")
        kept = state_bytes(self._operands) + self._finished
        return row_tile(
            rows.columns,
            size,
            elements,
            numbers,
            kept,
            hides=self._loss.hides,
            precise=self._loss.precise,
        )

    def _strided(self, outputs: Sequence[RowArray]) -> StridedRows | None:
        """The team of rows that lie side by side; None for other rows."""
        read = [
            a
            for k, a in enumerate(self._operands.inputs)
            if a.streamed and not self._operands.is_class_weights(k)
        ]
        if not read or not self._operands.memory.apart:
            return None
        rows, sizes = self._operands.rows, [item_size(a.dtype) for a in read]
        main = self._operands.main
        in_parts = any(rows.lies_in_parts(array, self._operands.inputs) for array in outputs)
        return strided_rows(
            rows.columns,
            sizes,
            state_bytes(self._operands),
            rows.number,
            bool(outputs),
            in_parts=in_parts,
            overlap=self._overlap(outputs) if in_parts else 0,
            in_pairs=item_size(main.dtype) == 2 and rows.has_pairs(main, self._operands.inputs),
        )

    def _overlap(self, outputs: Sequence[RowArray]) -> int:
        """How many rows that lie side by side two tiles may share: those of a sector of gradients.

        None of gradients that overwrite an operand: the other tile may not have read it yet. None
        of half precision, where a sector has too many.
        """
        dtypes = self._operands.main.dtype, *(array.dtype for array in outputs)
        sizes = [item_size(dtype) for dtype in dtypes]
        if len(outputs) > 1 or self._loss.overwrites or min(sizes) < 4:
            return 0
        return SECTOR_BYTES // sizes[-1]

    @property
    def _finished(self) -> int:
        """About those of what its gradients need, a number for each sum, and of its context.

        What is more fits into OTHER_BYTES of row_tiling.py.
        """
        return (self._loss.sums + 2) * number_bytes(self._operands) + 16

    def _sum_denominator(self) -> Address:
        """The sum of the weights of the rows that are not ignored, or their number."""
        call, leading = self._problem.call, self._problem.leading
        if not self._loss.weighted_mean:
            where = leading if call.masked else None
            weight = leading + call.extra - 1 if call.sampled else None
            return self._sum_of_counts(where, weight, self._operands.rows.number)
        denominator = self._add_scratch(8) if call.extra else self._add_counter()
        values = "SUM_OF_VALUES" if call.extra else "COUNT"
        factor = (NO_ADDRESS, SLOT) if self._anticipates_count else NO_FACTOR
        results = Results(values, denominator, NO_ADDRESS, factor=factor)
        function, team = denominator_function(self._operands), RowTeam(BLOCK, 1, 1, slots=1)
        groups = -(-self._operands.rows.number // team.rows)
        most = min(MAX_SHARING, max(FAN_IN, groups // 4))  # a group, or several rows
        self._add(function, self._by_team(team, function, results, most=most), results)
        return denominator

    def _add_by_team(
        self, team: RowTeam, results: Results, phase: str = "", memory: tuple[Address, ...] = ()
    ) -> None:
        """Add a launch of the loss by a team."""
        function = loss_function(
            self._operands,
            self._operands.rows.columns if team.held and team.threads_per_row == 1 else 0,
        )
        self._add(function, self._by_team(team, function, results, phase, memory), results)

    def _by_team(
        self,
        team: RowTeam,
        function: RowFunction,
        results: Results,
        phase: str = "",
        memory: tuple[Address, ...] = (),
        most: int | None = None,
    ) -> Schedule:
        """By kernels/rows.cu, or in one of the two phases of kernels/split_rows.cu.

        `most`: how many workers at most.
        """
        wanted, main = results.wanted, self._operands.main
        streams = [a for a in function.inputs if a.streamed]
        vector_bytes = team.width * sum(item_size(a.dtype) for a in streams)
        slots = team.slots
        if team.splits > MAX_RANKS:
            team = replace(team, slots=0)  # the argument `slots` says how many
        cluster = blocks = team.ranks if team.cluster else 1
        if phase == "SPLIT" or (phase == "MERGE" and wanted):
            blocks = team.splits
        summed = results.values not in UNSUMMED
        workers = team.workers(self._operands.memory, summed or not wanted)
        if most is not None:
            workers = min(workers, most)
        arrays = [*function.inputs, *results.outputs]
        shifted = main if team.shifts else None
        vectors = [
            k
            for k, array in enumerate(arrays)
            if team.width > 1 and self._operands.rows.has_vectors(array, team.width, shifted)
        ]
        layout, layout_bytes = self._operands.layout(arrays, vectors)
        threads = team.threads_of_multiprocessor(
            self._operands.memory.hides, vector_bytes, bool(wanted)
        )
        types: tuple[str, ...] = (
            layout,
            team.c_type(resident_blocks(self._problem, team.threads, threads)),
        )
        segments = self._operands.rows.number if team.ranks > 2 else workers
        kept = int64(self._kept(workers))
        rows = Schedule(
            kernel="rows",
            types=types,
            arguments=(layout_bytes, kept, int32(team.apart)),
            threads=team.threads,
            segments=segments,
            workers=workers,
            blocks=blocks,
            cluster=cluster,
            in_groups=True,
            shared=team.shared_bytes(vector_bytes),
        )
        if not phase:
            return rows
        types, arguments = (*types, phase), (layout_bytes, int64(team.splits), int64(slots))
        of_phase = replace(rows, kernel="split_rows", types=types, arguments=arguments)
        return replace(of_phase, shared=0, memory=memory)

    def _tiled(self, tile: RowTile, outputs: Sequence[RowArray]) -> Schedule:
        """By kernels/row_tiles.cu."""
        arrays = [*self._operands.inputs, *outputs]
        layout, layout_bytes = self._operands.layout(arrays, tile.elements)
        team = template(
            "TileTeam",
            *map(str, (tile.threads, tile.threads_per_row, tile.unit, tile.batch)),
            tile.paired,
            str(tile.parts),
            str(resident_blocks(self._problem, tile.threads)),
            bits(tile.elements),
            bits(tile.numbers),
        )
        begins = (tile.begins.get(k, 0) for k in range(len(arrays)))
        places = int32(tile.rows, tile.bytes, *begins)
        arguments, shared = (layout_bytes, places), 2 * tile.bytes
        tiles = -(-self._operands.rows.number // tile.rows)
        segments = min(tiles, TILE_SEGMENTS)
        main = self._operands.main
        is_light = main.dtype == "float32" and tile.threads_per_row == 1
        return Schedule(
            kernel="row_tiles",
            types=(layout, team),
            arguments=arguments,
            threads=tile.threads,
            segments=segments,
            workers=segments,
            limited=not (is_light and tiles >= MANY_TILES * segments),
            shared=shared,
        )

    def _add_side_by_side(self, rows: StridedRows, results: Results) -> None:
        """Add a launch by kernels/strided_rows.cu, or two where several blocks share a tile."""
        function, sections = (
            loss_function(self._operands, rows.count if rows.few else 0),
            rows.sections,
        )
        if not rows.of_block:
            self._add(function, self._side_by_side(rows, results, "WHOLE", sections), results)
            return
        tile_rows = self._tile_rows(rows)
        left = (LEFT_BYTES + state_bytes(self._operands) * sections) * tile_rows
        memory = (self._add_scratch(left * -(-self._operands.rows.number // tile_rows)),)
        split = self._side_by_side(rows, NO_RESULTS, "SPLIT", rows.of_block, memory)
        self._add(function, split, NO_RESULTS)
        of_block = rows.of_block if results.wanted else sections
        self._add(function, self._side_by_side(rows, results, "MERGE", of_block, memory), results)

    def _tile_rows(self, rows: StridedRows) -> int:
        """The rows of a tile."""
        return rows.threads // rows.threads_per_row * (2 if rows.pairs else 1)

    def _side_by_side(
        self,
        rows: StridedRows,
        results: Results,
        phase: str,
        of_block: int,
        memory: tuple[Address, ...] = (NO_ADDRESS,),
    ) -> Schedule:
        """By kernels/strided_rows.cu, in one of its phases, with so many sections of a block."""
        arrays = [*self._operands.inputs, *results.outputs]
        layout, layout_bytes = self._operands.layout(arrays, ())
        pairs = [
            k
            for k, a in enumerate(arrays)
            if rows.pairs and self._operands.rows.has_pairs(a, arrays)
        ]
        team = template(
            "StridedTeam",
            *map(str, (rows.threads, rows.threads_per_row, 2 if rows.pairs else 1)),
            *map(str, (rows.count, rows.sure)),
            rows.stays,
            rows.ahead,
            *map(str, (rows.resident, state_bytes(self._operands))),
            bits(pairs),
            rows.staged,
            str(rows.overlap),
        )
        sections = int64(rows.section), *map(int32, (rows.share, rows.shares, of_block))
        types, arguments = (layout, team, phase), (layout_bytes, *sections)
        of_tile = self._tile_rows(rows)
        own_rows = of_tile - rows.overlap
        merges = rows.threads_per_row > 1 and phase != "SPLIT"
        shared = state_bytes(self._operands) * rows.shares * of_tile if merges else 0
        segments = min(-(-self._operands.rows.number // own_rows), rows.segments)
        return Schedule(
            kernel="strided_rows",
            types=types,
            arguments=arguments,
            threads=rows.threads,
            segments=segments,
            workers=segments,
            blocks=-(-rows.sections // of_block),
            shared=shared,
            memory=memory,
        )

    def _add(self, function: RowFunction, schedule: Schedule, results: Results) -> None:
        """Add the launch that evaluates a function of the rows."""
        scale_type, scale = self._scale(function.scaled)
        kernel = specialisation(self._operands, function, schedule, results, scale_type)
        workspace = self._workspace(schedule.segments, results.values, schedule.groups)
        factor = results.factor or self._factor(bool(results.wanted), results.values)
        first = results.denominator, *factor, results.value, *workspace
        arrays = (array.address for array in [*function.inputs, *results.outputs])
        addresses = *first, *schedule.memory, *arrays, *scale
        launch = partial(_launch, self._operands, function, schedule, len(addresses))
        self._steps.append(Step(kernel, partial(launch, limited=schedule.limited), addresses))
        if GRAD_OUTPUT in factor:
            # Gradients computed anew have the number of rows that there are for a denominator.
            again = (COUNTED, *addresses[1:]) if self._anticipates_count else addresses
            # No more blocks than run at once: most often all end at once.
            self._again = Step(kernel, partial(launch, limited=True), again)

    def _kept(self, workers: int) -> int:
        """The workers whose elements others are to push out of the cache."""
        cache = driver.cache_bytes(self._problem.device)
        read = (
            self._operands.rows.number
            * self._operands.rows.columns
            * self._operands.memory.element_bytes
        )
        return max(0, workers - -(-workers * cache // max(read, 1)))


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
    counts = int64(rows.number), int64(rows.columns), int64(schedule.segments)
    return Launch(
        kernel,
        schedule.grid(kernel.resident_blocks, limited),
        schedule.threads,
        [*schedule.arguments, *counts, float64(function.divisor)],
        pointers,
        shared=schedule.shared,
        fields=Fields(operands.loss, problem.real),
        parameters=problem.call.parameters,
        scaled=function.scaled,
    )

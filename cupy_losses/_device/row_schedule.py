"""What all schedules of rows share: the blocks of a launch, its results, the name of its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._core.dtypes import c_type
from .addresses import NO_ADDRESS, Address
from .compiler import Specialisation
from .cpp import bits, template
from .hardware import THREADS_OF_MULTIPROCESSOR
from .problem import Problem
from .row_arrays import RowArray
from .row_function import RowFunction
from .row_operands import RowOperands

FAN_IN = 64  # in cuda/reduction/reduction.cuh
MOST_AT_ONCE = 256  # there, too
RECORD_BYTES = 256  # of what one launch records of a row or a split, in kernels/phases.cuh


@dataclass(frozen=True)
class Results:
    """What a launch makes of the rows, see cuda/kernels/rows.cu; `factor` None: as the call has."""

    values: str
    value: Address
    denominator: Address
    wanted: Sequence[int] = ()
    outputs: Sequence[RowArray] = ()
    factor: tuple[Address, Address] | None = None


NO_RESULTS = Results("NO_VALUES", NO_ADDRESS, NO_ADDRESS)  # but records for the next launch


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The workers of a launch over rows; the parts of its sum are segments.

    Attributes:
        kernel: The name of the kernel, and that of its file.
        types: Its template arguments between the loss and the values: a layout, a team.
        arguments: Its first arguments.
        threads: The threads of a block.
        segments: How many there are.
        workers: The blocks, or groups of them, that take a segment at a time each.
        blocks: Those of a worker.
        cluster: Those of a cluster.
        limited: Whether no more workers are launched than run at once.
        in_groups: Whether many segments are added up in groups first.
        shared: The shared memory of a block.
        records: Where one launch records what the next one needs.

    """

    kernel: str
    types: tuple[str, ...]
    arguments: tuple[bytes, ...]
    threads: int
    segments: int
    workers: int
    blocks: int = 1
    cluster: int = 1
    limited: bool = False
    in_groups: bool = False
    shared: int = 0
    records: tuple[Address, ...] = ()

    @property
    def groups(self) -> int:
        """The groups of segments that are added up first."""
        if not self.in_groups:
            return 0
        return 1 if self.segments <= MOST_AT_ONCE else -(-self.segments // FAN_IN)

    def grid(self, resident_blocks: int, limited: bool) -> tuple[int, int]:
        """The grid of a launch where so many blocks run at once; `limited`: of no more workers."""
        at_once = max(1, resident_blocks // self.blocks)
        return (min(self.workers, at_once) if limited else self.workers) * self.blocks, 1


def blocks_per_multiprocessor(
    problem: Problem, threads: int, of_multiprocessor: int = THREADS_OF_MULTIPROCESSOR
) -> int:
    """How many blocks a multiprocessor is to hold; half as many where numbers are wide."""
    wide = 2 if problem.request.tangents or problem.real == "float64" else 1
    return max(1, of_multiprocessor // wide // threads)


def specialisation(
    operands: RowOperands,
    function: RowFunction,
    schedule: Schedule,
    results: Results,
    scale_type: Sequence[str],
) -> Specialisation:
    """The kernel of a launch; `scale_type`: the C++ type of the array that scales it, if any."""
    problem = operands.problem
    read = (f"const {c_type(array.dtype)}*" for array in function.inputs)
    written = (f"{c_type(array.dtype)}*" for array in results.outputs)
    name = template(
        schedule.kernel,
        c_type(problem.real),
        function.expression,
        *schedule.types,
        results.values,
        bits(results.wanted),
        bits(function.tangents),
        function.vjp,
        function.result,
        *read,
        *written,
        *scale_type,
    )
    return Specialisation(
        f"kernels/{schedule.kernel}.cu",
        name,
        schedule.threads,
        problem.device,
        operands.loss.source,
        schedule.shared,
        schedule.cluster,
    )

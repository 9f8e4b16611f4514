"""What to launch for a request on operands of given dtypes, shapes and strides: decided once.

A plan holds everything but the addresses and the hyper-parameters: the specialised kernels with
their grids and arguments, how to allocate the outputs, how much scratch memory. `plan_pointwise`,
`plan_rows` and `plan_multilabel` make plans, by a `Builder`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from .._core.reduction import value_of_nothing
from .._core.types import AnyArray
from . import driver
from .anticipation import COUNTED_OFFSET, Again, Slots, Waiting, keep_for_replays
from .launch import Chooser, Launch, Parameters
from .library import Allocator, DeviceLibrary
from .problem import Problem
from .workspace import Workspace


class Plan:
    """Launches that share outputs and scratch memory.

    A step picks its addresses from a list: 0 a null pointer, then the operands, the outputs, those
    of the workspace, the parts of the scratch memory, the slot of a call whose gradients anticipate
    grad_output (see anticipation.py). Gradients that an early pass leaves out are None.
    """

    def __init__(
        self,
        library: DeviceLibrary,
        problem: Problem,
        outputs: list[Allocator | None],
        workspace: Workspace | None,
        scratch: list[int],
        steps: list[tuple[Launch, Chooser]],
        zeroed: list[tuple[int, int]],
        again: tuple[Launch, Chooser] | None = None,
    ) -> None:
        self.device = problem.device
        loss = problem.call.loss
        self.notice = loss.notice(problem.call, problem.request, problem.own)
        # Whether a call does more than to launch: a test for all that few calls need.
        self.is_special = bool(self.notice) or loss.overwrites
        self._library = library
        self._address = library.address
        self._outputs = [allocate for allocate in outputs if allocate is not None]
        # Which outputs are computed, if some are left out.
        self._computed = [allocate is not None for allocate in outputs] if None in outputs else None
        self._workspace = workspace
        self._scratch = scratch  # where each part begins, and the end
        self._zeroed = zeroed  # what starts at zero: an address and a number of bytes
        self._memset = driver.memset()
        self._is_early = problem.request.early
        self._is_capturing = driver.capture_query()
        self._has_memory = bool(workspace or scratch or again)  # beside the outputs
        self._again: Again | None = None
        self._slots: Slots | None = None
        if again is not None and not self._is_early:
            # Behind the others at once, which find out how many rows there are.
            self._slots = Slots(library)
            steps = [*steps, again]
        elif again is not None:
            launch, choose = again
            self._again = Again(
                launch.start,
                choose,
                Slots(library),
                library,
                problem.device,
                [] if all(o.is_contiguous for o in problem.given) else [*problem.given],
                self._is_capturing,
            )
        self._steps = [(launch.start, choose) for launch, choose in steps]

    # A method by name: a call of the object itself would take longer.
    def run(
        self,
        operands: Sequence[AnyArray],
        pointers: list[int],
        parameters: Parameters,
        scale: float,
    ) -> list[Any]:
        """Allocate the outputs and launch: the value, if asked for, then the gradients.

        Last, of an early request, what its backward pass needs: a `Waiting`, or None.
        """
        library = self._library
        outputs = [allocate(operands) for allocate in self._outputs]
        waiting = memory = None
        if self._steps:
            stream = library.stream(self.device)
            is_captured = self._has_memory and self._is_capturing(stream)
            addresses = [0, *pointers, *map(self._address, outputs)]
            if self._workspace is not None:
                _held, *parts = self._workspace.of(operands, stream, is_captured)
                addresses += parts
            if self._scratch:
                memory, base = library.scratch(operands, self._scratch[-1], is_captured)
                addresses += [base + start for start in self._scratch]
            for place, size in self._zeroed:
                self._memset(addresses[place], 0, size, stream)
            home = None
            if self._again is not None:
                numbers = parameters, scale
                again = self._again
                waiting = Waiting(
                    again, numbers, pointers, addresses, stream, is_captured, memory, operands
                )
            elif self._slots is not None:
                slot, slots, home = self._slots.take(operands, stream, is_captured)
                addresses += slot, slot, slot + COUNTED_OFFSET
                if is_captured:
                    keep_for_replays(slots)
            for start, choose in self._steps:
                start(stream, parameters, scale, choose(addresses))
            if home is not None:
                insort(home, slot)
        results = outputs if self._computed is None else self._with_gaps(outputs, self._computed)
        if self._is_early:
            results.append(waiting)
        return results

    @staticmethod
    def _with_gaps(outputs: list[AnyArray], computed: list[bool]) -> list[AnyArray | None]:
        made = iter(outputs)
        return [next(made) if is_computed else None for is_computed in computed]


def empty_plan(library: DeviceLibrary, problem: Problem) -> Plan:
    """The plan without elements: nothing is launched."""
    outputs: list[Allocator | None] = []
    for number, output in enumerate(problem.outputs):
        if output is None:
            outputs.append(None)
        elif output.in_place:
            outputs.append(itemgetter(output.like))
        elif number or not problem.request.value:
            outputs.append(library.filled(output, 0.0))
        else:
            request, denominator = problem.request, problem.denominator
            derivative = bool(request.tangents) and denominator.leaves_out
            nothing = request.denominator or derivative
            value = 0.0 if nothing else value_of_nothing(denominator)
            outputs.append(library.filled(output, value))
    return Plan(library, problem, outputs, None, [], [], [])

"""What to launch for a request on operands of given dtypes, shapes and strides: decided once.

A plan holds everything but the addresses and the hyper-parameters: the specialised kernels with
their grids and arguments, how to allocate the outputs, how much scratch memory. `plan_pointwise`,
`plan_rows` and `plan_multilabel` make plans.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from .._core.dtypes import c_type, item_size, promoted
from .._core.loss import Call, Request
from .._core.outputs import Output
from .._core.reduction import Denominator, value_of_nothing
from .._core.shapes import ArraySpec, Shape, dense_strides
from .._core.types import AnyArray
from . import compiler, driver
from .anticipation import Again, Slots, Waiting
from .compiler import Kernel, Specialisation
from .launch import Chooser, Launch, Parameters
from .library import Allocator, DeviceLibrary
from .workspace import Workspace

VECTOR_BYTES = 16  # the most that a thread accesses at once
WARP = 32  # threads that work together
# What kernels make of values that are not added up, see cuda/reduction/reduction.cuh.
UNSUMMED = ("NO_VALUES", "EACH_VALUE")


@dataclass(frozen=True)
class Problem:
    """A request on operands without their data; the call is unscaled."""

    call: Call
    request: Request
    given: tuple[ArraySpec, ...]  # the operands of the request
    misaligned_given: tuple[int, ...]  # address modulo 16 of each
    shape: Shape
    autocast: bool
    device: int
    scale: str = ""  # the dtype of the array, behind the operands, that scales the results

    @property
    def arrays(self) -> int:
        """The number of arrays that come with a call."""
        return len(self.given) + bool(self.scale)

    @property
    def operands(self) -> tuple[ArraySpec, ...]:
        """What the kernels evaluate: all but the denominator."""
        return self.given[self.request.denominator :]

    @property
    def misaligned(self) -> tuple[int, ...]:
        """Their addresses modulo 16."""
        return self.misaligned_given[self.request.denominator :]

    @property
    def leading(self) -> int:
        """How many of them come before those of the call."""
        return self.request.extra - self.request.denominator

    @property
    def own(self) -> tuple[ArraySpec, ...]:
        """The operands of the call."""
        return self.given[self.request.extra :]

    @property
    def result(self) -> str:
        """The dtype of the value."""
        return self.call.loss.result_dtype(self.call, self.own, self.autocast)

    @property
    def real(self) -> str:
        """The dtype of the arithmetic."""
        return "float64" if any(o.dtype == "float64" for o in self.operands) else "float32"

    @property
    def is_half(self) -> bool:
        """Whether the operands of the call promote to half precision.

        Not beside a grad_output or a tangent of float64, with which all is computed in double.
        """
        half = item_size(promoted({o.dtype for o in self.own})) == 2
        return half and self.real == "float32"

    @property
    def size(self) -> int:
        """The number of elements of the broadcast shape."""
        return math.prod(self.shape)

    @cached_property
    def outputs(self) -> list[Output | None]:
        """What is allocated."""
        return self.call.loss.outputs(self.call, self.request, self.given, self.autocast)

    @cached_property
    def denominator(self) -> Denominator:
        """What the sum is divided by."""
        return self.call.loss.denominator(self.call, self.shape, self.own)


def template(name: str, *arguments: str | int) -> str:
    """The C++ type `name<arguments>`."""
    return f"{name}<{', '.join(map(_written, arguments))}>"


def tuned(name: str, **parameters: str | int) -> str:
    """The C++ type `name` of its parameters, in the order in which the kernel declares them."""
    fields = (f".{field} = {_written(value)}" for field, value in parameters.items())
    return template(name, f"{name}Parameters{{{', '.join(fields)}}}")


def _written(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        self._steps = [(launch.start, choose) for launch, choose in steps]
        self._is_early = problem.request.early
        self._is_capturing = driver.capture_query()
        self._has_memory = bool(workspace or scratch or again)  # beside the outputs
        self._again = None
        if again is not None:
            launch, choose = again
            self._again = Again(
                launch.start,
                choose,
                Slots(library),
                library,
                problem.device,
                _unless_contiguous(problem.given),
                self._is_capturing,
            )

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
            if self._again is not None:
                numbers = parameters, scale
                again = self._again
                waiting = Waiting(
                    again, numbers, pointers, addresses, stream, is_captured, memory, operands
                )
            for start, choose in self._steps:
                start(stream, parameters, scale, choose(addresses))
            if waiting is not None and not self._is_early:
                waiting.finish_at_once()
        results = outputs if self._computed is None else self._with_gaps(outputs, self._computed)
        if self._is_early:
            results.append(waiting)
        return results

    @staticmethod
    def _with_gaps(outputs: list[AnyArray], computed: list[bool]) -> list[AnyArray | None]:
        made = iter(outputs)
        return [next(made) if is_computed else None for is_computed in computed]


def _unless_contiguous(operands: Sequence[ArraySpec]) -> list[ArraySpec]:
    """The operands; none where all are contiguous."""
    for operand in operands:
        if operand.strides != dense_strides(range(len(operand.shape)), operand.shape):
            return [*operands]
    return []


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


@dataclass(frozen=True)
class Scratch:
    """The address of a part of the scratch memory, numbered when all parts are known."""

    index: int


@dataclass(frozen=True)
class Shared:
    """An address in the workspace, which all launches of a call use one after the other."""

    index: int


@dataclass(frozen=True)
class Late:
    """An address behind all others, of the slot of a call or known in its backward pass alone."""

    index: int


Address = int | Scratch | Shared | Late
NO_ADDRESS: Address = 0
COUNTERS, PARTIALS = Shared(0), Shared(1)
SLOT, GRAD_OUTPUT, COUNTED = Late(0), Late(1), Late(2)
NO_FACTOR = NO_ADDRESS, NO_ADDRESS


class Step(NamedTuple):
    """A launch to come: of what kernel, how, and on what."""

    kernel: Specialisation
    launch: Callable[[Kernel], Launch]
    addresses: tuple[Address, ...]


class Builder(ABC):
    """Collects the launches of one problem.

    Addresses are places in the list of a `Plan`. Those behind the outputs are numbered when the
    scratch memory of all launches is known.
    """

    def __init__(self, library: DeviceLibrary, problem: Problem) -> None:
        self._library = library
        self._problem = problem
        given = tuple(range(1, 1 + len(problem.given)))
        self._operand_addresses = given[problem.request.denominator :]
        self._allocators: list[Allocator | None] = []
        self._output_addresses: list[int] = []  # 0 for one that is left out
        for output in problem.outputs:
            self._add_output(output)
        self._scratch_sizes: list[int] = []
        self._counters = self._partials = 0  # bytes of the workspace
        self._zeroed: list[tuple[Address, int]] = []
        self._steps: list[Step] = []
        self._again: Step | None = None

    def _add_output(self, output: Output | None) -> None:
        if output is None:
            self._allocators.append(None)
            self._output_addresses.append(0)
            return
        if output.in_place:
            self._allocators.append(itemgetter(output.like))
        else:
            self._allocators.append(self._library.allocator(output))
        made = sum(allocator is not None for allocator in self._allocators)
        self._output_addresses.append(self._problem.arrays + made)

    def _value(self) -> Address:
        """The address of the value; 0 where it is not asked for."""
        return self._output_addresses[0] if self._problem.request.value else NO_ADDRESS

    def _gradients(self) -> list[tuple[int, Address]]:
        """The operands of the call whose gradients are computed, with the addresses of these.

        Kernels write gradients in the order of the operands, whatever the order of the results.
        """
        request = self._problem.request
        addresses = self._output_addresses[request.value + request.counted :]
        found = [(k, a) for k, a in zip(request.wanted, addresses, strict=True) if a]
        return sorted(found, key=itemgetter(0))

    def _factor(self, gradients: bool, values: str) -> tuple[Address, Address]:
        """The addresses of what gradients are multiplied by, see cuda/reduction/reduction.cuh.

        Or, of a launch without gradients, of the denominator that it hands out.
        """
        request = self._problem.request
        if gradients and (request.early or self._anticipates_count):
            return GRAD_OUTPUT, SLOT
        if request.counted and values == "MEAN_OF_VALUES":
            return NO_ADDRESS, self._output_addresses[1]
        return NO_FACTOR

    @property
    def _anticipates_count(self) -> bool:
        """Whether gradients are divided by a number of rows that is counted with them."""
        return False

    def _scale(self, scaled: bool) -> tuple[list[str], list[Address]]:
        """The C++ type and the address of the array that scales a launch, if there is one.

        It comes behind all others that the kernel has.
        """
        if not scaled or not self._problem.scale:
            return [], []
        return [f"const {c_type(self._problem.scale)}*"], [self._problem.arrays]

    def _values_mode(self) -> str:
        """What the kernels make of values, see cuda/reduction/reduction.cuh."""
        request = self._problem.request
        if not request.value:
            return "NO_VALUES"
        if self._problem.call.reduction == "none":
            return "EACH_VALUE"
        # Derivatives of a value are divided as gradients are.
        if self._problem.denominator.of_data and not request.tangents and not request.denominator:
            return "MEAN_OF_VALUES"
        return "SUM_OF_VALUES"

    def _denominator(self, derivatives: bool) -> Address:
        """The address of a denominator that a launch needs and does not compute itself."""
        request = self._problem.request
        if request.denominator:
            return 1
        if self._problem.denominator.of_data and (derivatives or request.tangents):
            return self._sum_denominator()
        return NO_ADDRESS

    @abstractmethod
    def _sum_denominator(self) -> Address:
        """Launch what computes the denominator ahead; its address."""

    def _use_workspace(self, counters: int, partials: int) -> tuple[Address, Address]:
        """The addresses of so many bytes of counters, which are 0, and of partial sums."""
        self._counters = max(self._counters, counters)
        self._partials = max(self._partials, partials)
        return COUNTERS, PARTIALS

    def _zero(self, address: Address, size: int) -> None:
        """Let so many bytes be 0 ahead of all launches."""
        self._zeroed.append((address, size))

    def _add_scratch(self, size: int) -> Scratch:
        self._scratch_sizes.append(-(-size // 16) * 16)
        return Scratch(len(self._scratch_sizes) - 1)

    def _finish(self) -> Plan:
        made = sum(allocator is not None for allocator in self._allocators)
        first = 1 + self._problem.arrays + made
        workspace = None
        if self._counters:
            device = self._problem.device
            workspace = Workspace(self._library, device, self._counters, self._partials)
        of_workspace = 2 * (workspace is not None)
        scratch = [*accumulate(self._scratch_sizes, initial=0)] if self._scratch_sizes else []

        def number(name: Address) -> int:
            if isinstance(name, Late):
                return first + of_workspace + len(scratch) + name.index
            if isinstance(name, Scratch):
                return first + of_workspace + name.index
            return first + name.index if isinstance(name, Shared) else name

        def launched(step: Step, without: Address) -> tuple[Launch, Chooser]:
            (kernel,) = compiler.kernels([step.kernel])
            chosen = [number(n) if n != without else 0 for n in step.addresses]
            return step.launch(kernel), itemgetter(*chosen)

        compiler.kernels([step.kernel for step in self._steps])  # at once
        return Plan(
            self._library,
            self._problem,
            self._allocators,
            workspace,
            scratch,
            [launched(step, GRAD_OUTPUT) for step in self._steps],
            [(number(address), size) for address, size in self._zeroed if size],
            self._again and launched(self._again, self._value()),
        )


def bits(indices: Sequence[int]) -> str:
    """A set of numbers, as a mask of the C++ type unsigned."""
    return f"{sum(1 << index for index in indices)}u"

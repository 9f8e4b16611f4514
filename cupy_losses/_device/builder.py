"""What collects the launches of a problem, and makes a plan of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from .._core.dtypes import c_type
from .._core.outputs import Output
from . import compiler
from .addresses import (
    COUNTERS,
    GRAD_OUTPUT,
    NO_ADDRESS,
    NO_FACTOR,
    PARTIALS,
    SLOT,
    Address,
    Scratch,
    Trailing,
    WorkspacePart,
)
from .compiler import Kernel, Specialisation
from .launch import Chooser, Launch
from .library import Allocator, DeviceLibrary
from .plan import Plan
from .problem import Problem
from .workspace import Workspace

# What kernels make of values that are not added up, see cuda/reduction/reduction.cuh.
UNSUMMED = ("NO_VALUES", "EACH_VALUE")


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
        """The addresses of what gradients are multiplied by, see cuda/reduction/factor.cuh.

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
            if isinstance(name, Trailing):
                return first + of_workspace + len(scratch) + name.index
            if isinstance(name, Scratch):
                return first + of_workspace + name.index
            return first + name.index if isinstance(name, WorkspacePart) else name

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

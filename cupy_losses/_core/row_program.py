"""A formula of rows as steps: what an element adds to each of some sums, and the loss of these.

A sum is one of terms, or the log of the sum of their exponentials.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .program import Function, Program, Step

LENGTH = "_length"  # the number of elements of a row
LOG_SUM_EXP = np.logaddexp.reduce
SUMS = (np.sum, LOG_SUM_EXP)
MOST_SUMS = 8  # which the kernels have room for; a log of a sum takes that of two
MOST_OPERANDS = 8  # each with a tangent and a gradient: the kernels tell up to 32 arrays apart


def name_of_sum(k: int) -> str:
    """The name of a sum where the loss is made of them, which no operand has."""
    return f"_sum{k + 1}"


@dataclass(frozen=True)
class RowProgram:
    """What is added up over a row, and the loss of the row.

    Attributes:
        terms: What an element adds to each sum, of the operands.
        logs: Whether each is the log of the sum of the exponentials of its terms.
        loss: The loss, of the length of the row and the sums.

    """

    terms: tuple[Program, ...]
    logs: tuple[bool, ...]
    loss: Program

    @classmethod
    def split(cls, whole: Program) -> RowProgram:
        """The parts of a program whose sums are steps of functions in `SUMS`."""
        steps = {
            k: value
            for k, value in enumerate(whole.values)
            if isinstance(value, Step) and value.function in SUMS
        }
        names = {k: name_of_sum(n) for n, k in enumerate(steps)}
        terms = tuple(whole.part(step.arguments[0], {}) for step in steps.values())
        logs = tuple(step.function == LOG_SUM_EXP for step in steps.values())
        loss = whole.part(len(whole.values) - 1, names, (LENGTH, *names.values()))
        return cls(terms, logs, loss)

    @property
    def sums(self) -> int:
        """How many sums the kernels are to have room for."""
        return len(self.terms) + sum(self.logs)

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return self.terms[0].operands

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the hyper-parameters."""
        return self.loss.parameters

    @functools.cached_property
    def compared_in_float32(self) -> RowProgram:
        """The same, but that constants which are compared, or chosen, are those in float32."""
        terms = tuple(term.compared_in_float32 for term in self.terms)
        return RowProgram(terms, self.logs, self.loss.compared_in_float32)

    def unrolled(self, length: int) -> Program:
        """The loss of a row of so many elements as a formula of each of them.

        Its operands are the elements of the first operand, then those of the next ones.
        """
        elements = [[f"{name}[{k}]" for name in self.operands] for k in range(length)]
        operands = [name for names in zip(*elements, strict=True) for name in names]
        values: list[str | float | Step] = [*operands, *self.parameters, float(length)]
        places = {name: k for k, name in enumerate(values[:-1]) if isinstance(name, str)}

        def append(value: float | Step) -> int:
            values.append(value)
            return len(values) - 1

        def include(program: Program, given: Sequence[int]) -> int:
            """Append the steps of a program of operands that are there; the place of its value."""
            known = places | dict(zip(program.operands, given, strict=True))
            at: list[int] = []
            for value in program.values:
                if isinstance(value, str):
                    at.append(known[value])
                elif isinstance(value, Step):
                    at.append(append(Step(value.function, tuple(at[k] for k in value.arguments))))
                else:
                    at.append(append(value))
            return at[-1]

        def join(function: Function, a: int, b: int) -> int:
            return append(Step(function, (a, b)))

        sums = [len(values) - 1]
        for term, is_log in zip(self.terms, self.logs, strict=True):
            added = [include(term, [places[name] for name in names]) for names in elements]
            joined = functools.partial(join, np.logaddexp if is_log else np.add)
            sums.append(functools.reduce(joined, added))
        result = include(self.loss, sums)
        return Program(tuple(operands), self.parameters, tuple(values)).part(result, {})

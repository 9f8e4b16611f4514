"""A formula of rows as steps: what an element adds to each of some sums, and the loss of these."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .program import Program, Step

LENGTH = "_length"  # the number of elements of a row
MOST_SUMS = 8  # which the kernels have room for
MOST_OPERANDS = 8  # each with a tangent and a gradient: the kernels tell up to 32 arrays apart


def name_of_sum(k: int) -> str:
    """The name of a sum where the loss is made of them, which no operand has."""
    return f"_sum{k + 1}"


@dataclass(frozen=True)
class RowProgram:
    """What is added up over a row, and the loss of the row.

    Attributes:
        terms: What an element adds to each sum, of the operands.
        loss: The loss, of the length of the row and the sums.

    """

    terms: tuple[Program, ...]
    loss: Program

    @classmethod
    def split(cls, whole: Program) -> RowProgram:
        """The parts of a program whose sums are steps of `np.sum`."""
        arguments = {
            k: value.arguments[0]
            for k, value in enumerate(whole.values)
            if isinstance(value, Step) and value.function is np.sum
        }
        names = {k: name_of_sum(n) for n, k in enumerate(arguments)}
        terms = tuple(whole.part(k, {}) for k in arguments.values())
        return cls(terms, whole.part(len(whole.values) - 1, names, (LENGTH, *names.values())))

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return self.terms[0].operands

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the hyper-parameters."""
        return self.loss.parameters

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

        sums = [len(values) - 1]
        for term in self.terms:
            added = [include(term, [places[name] for name in names]) for names in elements]
            sums.append(functools.reduce(lambda a, b: append(Step(np.add, (a, b))), added))
        result = include(self.loss, sums)
        return Program(tuple(operands), self.parameters, tuple(values)).part(result, {})

"""Counts of calls: by function, by dtype and size, and by the reason where torch computed."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from .._core.locks import table_lock


class Kind(NamedTuple):
    """What is counted together.

    Attributes:
        function: The name of the function.
        dtype: The dtype of its first tensor; "" where it was not looked at.
        exponent: The largest tensor has from 2**exponent elements to twice as many; -1 where it was
            not looked at, or is of any size.
        reason: Why torch computed; "" where this package did.
        traced: Whether the call was traced, transformed or watched. A graph may compute it often.

    """

    function: str
    dtype: str
    exponent: int
    reason: str
    traced: bool = False


class Layout(NamedTuple):
    """A tensor without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    requires_grad: bool


class Sample(NamedTuple):
    """A call without its data: what is needed to make another one like it.

    Attributes:
        arguments: All arguments by name, a `Layout` in place of each tensor.
        autocast: Whether autocast was on.

    """

    arguments: dict[str, Any]
    autocast: bool


class Tally:
    """How often calls of one kind came.

    Attributes:
        kind: What is counted.
        reason: That of the kind.
        count: Counts one call. It is one step of the interpreter, which threads need no lock for: a
            lock would take longer than the rest of the decision.
        sample: The first of them, where this package computes them.
        example: The error of this package that was the reason, if one was.

    """

    __slots__ = ("_counter", "_reads", "count", "example", "kind", "reason", "sample")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.reason = kind.reason
        self.sample: Sample | None = None
        self.example = ""
        self.count = itertools.count().__next__
        self._reads = 0

    def read(self) -> int:
        """How many calls there were; a read counts too, and is taken off."""
        self._reads += 1
        return self.count() + 1 - self._reads


_lock = table_lock()
_tallies: dict[Kind, Tally] = {}


def tally_of(kind: Kind) -> Tally:
    """The one tally of a kind."""
    with _lock:
        return _tallies.setdefault(kind, Tally(kind))


def exponent_of(sizes: list[Any]) -> int:
    """The exponent of the largest number of elements; -1 of none, and where one is not known."""
    if not all(isinstance(size, int) for size in sizes):
        return -1
    return max(sizes, default=0).bit_length() - 1


def counts() -> dict[Tally, int]:
    """The calls of each kind since the process began."""
    with _lock:
        return {tally: tally.read() for tally in _tallies.values()}

"""What acceleration did: calls by function, dtype and size, and why torch computed some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .tallies import Tally


class Times(NamedTuple):
    """How long one call took, in seconds, with its backward pass if it has one."""

    torch: float
    ours: float


@dataclass(frozen=True)
class Line:
    """Calls that are counted together.

    Attributes:
        function: The name of the function.
        dtype: The dtype of its first tensor; "" where torch computed without a look at the tensors.
        elements: How many elements the largest tensor has, as text.
        calls: How many calls there were.
        reason: Why torch computed; "" where this package did.
        traced: Whether the calls were traced, transformed or watched.
        example: The error of this package that was the reason, if one was.
        times: The measured times of a call like the first of these; None if there are none.

    """

    function: str
    dtype: str
    elements: str
    calls: int
    reason: str
    traced: bool
    example: str
    times: Times | None


@dataclass(frozen=True)
class Report:
    """The calls of torch's losses while acceleration was on; `str` of it is a table."""

    lines: tuple[Line, ...]

    @classmethod
    def of(cls, calls: Mapping[Tally, int], times: Mapping[Tally, Times]) -> Report:
        """The report of calls, those of each kind in a line."""
        lines = []
        for tally, number in calls.items():
            if number:
                kind = tally.kind
                line = Line(
                    function=kind.function,
                    dtype=kind.dtype,
                    elements=_elements(kind.exponent),
                    calls=number,
                    reason=kind.reason,
                    traced=kind.traced,
                    example=tally.example,
                    times=times.get(tally),
                )
                lines.append((kind, line))
        return cls(tuple(line for _, line in sorted(lines, key=lambda pair: pair[0])))

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return sum(line.calls for line in self.lines)

    @property
    def ours(self) -> int:
        """How many of them this package computed."""
        return sum(line.calls for line in self.lines if not line.reason)

    @property
    def saved(self) -> float | None:
        """The seconds saved, as far as times were measured; None without any."""
        measured = [(line.calls, line.times) for line in self.lines if line.times is not None]
        if not measured:
            return None
        return sum(number * (times.torch - times.ours) for number, times in measured)

    def __str__(self) -> str:
        head = f"cupy_losses computed {self.ours} of {self.calls} calls of torch's losses."
        return "\n".join([head, "", *self._table(), "", self._saving()])

    def _table(self) -> list[str]:
        if not self.lines:
            return ["There were none."]
        rows = [("function", "dtype", "elements", "calls", "computed by")]
        for line in self.lines:
            by = "torch" if line.reason else "cupy_losses"
            if line.traced:
                by += ", traced or transformed"
            if line.reason:
                by += f": {line.reason}"
            if line.example:
                by += f" ({line.example})"
            if line.times is not None:
                torch, ours = (f"{1e6 * seconds:.1f}" for seconds in line.times)
                by += f", {ours} µs a call; torch takes {torch} µs"
            rows.append((line.function, line.dtype, line.elements, str(line.calls), by))
        return _aligned(rows)

    def _saving(self) -> str:
        saved = self.saved
        if saved is None:
            return "Time saved: nothing was measured."
        measured = sum(line.calls for line in self.lines if line.times is not None)
        return (
            f"Time saved: about {saved:.3g} s, from measured times of calls like the first of a "
            f"line, {measured} of {self.ours} calls."
        )


def _elements(exponent: int) -> str:
    """A range of numbers of elements."""
    if exponent < 0:
        return ""
    if exponent < 10:
        return f"{2**exponent} to {2 ** (exponent + 1) - 1}"
    return f"2^{exponent} to 2^{exponent + 1}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of a table, whose last column is as long as it is; numbers of calls to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for *cells, calls, last in rows:
        texts = [f"{cell:{width}}" for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([*texts, f"{calls:>{widths[-2]}}", last]))
    return lines

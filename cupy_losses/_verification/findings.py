"""What is wrong with a formula at points: its results in an arithmetic beside exact ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._core.loss import Formula
from .._host.arrays import HostArray
from .arithmetic import WIDE, Quantity, derivatives

Results = Mapping[Quantity, HostArray]

_STEPS = (2.0**-20, 2.0**-23)  # of finite differences, times the operand where that is above 1
# What is said of a quantity, by the kind of a finding.
_VERBS = {
    "NaN": "is",
    "inexact": "loses digits:",
    "device": "differs:",
    "slope": "is no derivative:",
    "jump": "jumps:",
}
_SMALL = 1e-3  # operands that are smaller are known to the last place of this
_NUDGE = 2  # units of the last place


class Exact:
    """The quantities of a formula in wide arithmetic, and how much they vary nearby.

    An operand is known to units of its last place. No arithmetic is to be blamed for an error that
    is as small as what follows from that. At a kink all derivatives between those of its sides are.

    Attributes:
        results: The quantities.
        spread: How much each varies within some units of the last place of each operand.
        hole: Where the loss is NaN and beside it is not.

    """

    def __init__(
        self, formula: Formula, points: Sequence[HostArray], parameters: Mapping[str, float]
    ) -> None:
        wide = [x.astype(WIDE) for x in points]
        self.results = derivatives(formula, wide, parameters)
        defined_nearby = np.zeros(points[0].shape, np.bool_)
        least, largest = dict(self.results), dict(self.results)
        for k, x in enumerate(points):
            for units in (-_NUDGE, _NUDGE):
                unit = np.spacing(np.maximum(abs(x), x.dtype.type(_SMALL)))
                nudged = wide[k] + units * unit.astype(WIDE)
                nearby = derivatives(formula, [*wide[:k], nudged, *wide[k + 1 :]], parameters)
                defined_nearby |= np.isfinite(nearby[()])
                for quantity, result in nearby.items():
                    least[quantity] = np.fmin(least[quantity], result)
                    largest[quantity] = np.fmax(largest[quantity], result)
        self.hole = np.isnan(self.results[()]) & defined_nearby
        self.spread = {q: np.nan_to_num(largest[q] - least[q]) for q in largest}

    def within(self, dtype: Any, quantity: Quantity) -> Any:
        """Where a quantity has a value in a dtype, and so has all that it is a derivative of."""
        lower = [q for q in self.results if len(q) < len(quantity) and set(q) <= set(quantity)]
        results = [self.results[q].astype(dtype) for q in (*lower, quantity)]
        return np.all(np.isfinite(results), axis=0)


class Findings:
    """What is wrong, and what is worth a note: of each kind and quantity the plainest point."""

    def __init__(self, operands: Sequence[str]) -> None:
        self._operands = operands
        self._said: set[tuple[str, Quantity]] = set()
        self.problems: list[str] = []
        self.notes: list[str] = []

    def undefined(self, computed: Results, points: Sequence[HostArray], where: str) -> None:
        """Derivatives that are NaN where the loss is finite."""
        for quantity, result in computed.items():
            wrong = np.isnan(result) & np.isfinite(computed[()])
            if len(quantity) == 2:
                wrong &= ~np.isnan(computed[quantity[:1]])
            self._add(self.problems, "NaN", quantity, wrong, points, where, lambda k: "NaN")

    def inaccurate(
        self, computed: Results, exact: Exact, points: Sequence[HostArray], where: str
    ) -> None:
        """Results that overflow or are NaN and should not be, and those that lose their digits."""
        self._add(self.problems, "NaN", (), exact.hole, points, where, lambda k: "NaN")
        for quantity, result in computed.items():
            reference = exact.results[quantity]
            infinite = ~np.isfinite(result) & exact.within(result.dtype, quantity)

            def said(k: int, result: HostArray = result, reference: HostArray = reference) -> str:
                return f"{result[k]:.6g} instead of {reference[k]:.6g}"

            self._add(self.problems, "NaN", quantity, infinite, points, where, said)
            allowed = _allowed(result.dtype, reference, exact.spread[quantity])
            inexact = np.isfinite(result) & (_distance(result, reference) > allowed)
            self._add(self.notes, "inexact", quantity, inexact, points, where, said)

    def different(
        self,
        on_device: Results,
        on_host: Results,
        exact: Exact,
        points: Sequence[HostArray],
        where: str,
    ) -> None:
        """Results of a device that are farther from the exact ones than the host's arithmetic."""
        for quantity, result in on_device.items():
            reference = exact.results[quantity]
            host = on_host[quantity]
            allowed = _allowed(result.dtype, reference, exact.spread[quantity])
            allowed = allowed + 16 * _distance(host, reference)
            known = np.isfinite(host) & exact.within(result.dtype, quantity)
            wrong = known & ~(_distance(result, reference) <= allowed)

            def said(k: int, result: HostArray = result, host: HostArray = host) -> str:
                return f"{result[k]:.6g}, and by NumPy {host[k]:.6g}"

            self._add(self.problems, "device", quantity, wrong, points, where, said)

    def not_the_slope(
        self,
        formula: Formula,
        exact: Exact,
        points: Sequence[HostArray],
        parameters: Mapping[str, float],
    ) -> None:
        """Derivatives that differ from finite differences of what they are derivatives of.

        At a kink the derivative may be any between the slopes to both sides. A step is as small as
        the operand too, which may be near a kink at 0.
        """
        x = [point.astype(WIDE) for point in points]
        for j in range(len(points)):
            largest = np.max([abs(operand) for operand in x], axis=0)
            own = np.where(x[j] == 0, 1, abs(x[j]))
            steps = [*(size * np.maximum(own, 1) for size in _STEPS), _STEPS[-1] * own]
            sides = [
                [
                    derivatives(formula, [*x[:j], x[j] + h, *x[j + 1 :]], parameters)
                    for h in (-step, step)
                ]
                for step in steps
            ]
            for quantity, slope in exact.results.items():
                if j not in quantity:
                    continue
                at = quantity.index(j)
                of = quantity[:at] + quantity[at + 1 :]
                coarse, fine, near = (
                    Difference(before[of], exact.results[of], behind[of], step, largest)
                    for (before, behind), step in zip(sides, steps, strict=True)
                )
                wrong = coarse.agrees_with(fine) & fine.agrees_with(near)
                wrong &= fine.excludes(slope) & near.excludes(slope)

                def said(k: int, slope: HostArray = slope, middle: HostArray = fine.middle) -> str:
                    return f"{slope[k]:.6g}, and by finite differences {middle[k]:.6g}"

                self._add(self.problems, "slope", quantity, wrong, points, "", said)

    def jumping(
        self,
        formula: Formula,
        kinks: tuple[Sequence[HostArray], Sequence[HostArray]],
        parameters: Mapping[str, float],
    ) -> None:
        """Neighbours between which the loss jumps."""
        before, behind = (
            derivatives(formula, [x.astype(WIDE) for x in side], parameters)[()] for side in kinks
        )
        wrong = abs(before - behind) > 1e-9 + 1e-6 * (abs(before) + abs(behind))
        wrong &= np.isfinite(before) & np.isfinite(behind)

        def said(k: int) -> str:
            return f"{before[k]:.6g} beside {behind[k]:.6g}"

        self._add(self.notes, "jump", (), wrong, kinks[0], "", said)

    def _add(
        self,
        to: list[str],
        kind: str,
        quantity: Quantity,
        wrong: HostArray,
        points: Sequence[HostArray],
        where: str,
        said: Callable[[int], str],
    ) -> None:
        """A sentence about the plainest of the points, unless there is one of its kind."""
        if not wrong.any() or (kind, quantity) in self._said:
            return
        self._said.add((kind, quantity))
        size = np.sum([abs(x) for x in points], axis=0)
        k = int(np.argmin(np.where(wrong, size, np.inf)))
        place = ", ".join(
            f"{name}={x[k]:.9g}" for name, x in zip(self._operands, points, strict=True)
        )
        others = int(wrong.sum()) - 1
        text = f"{self._named(quantity)} {_VERBS[kind]} {said(k)} at {place}{where}"
        to.append(text + (f", and {others} more" if others else ""))

    def _named(self, quantity: Quantity) -> str:
        names = [self._operands[k] for k in quantity]
        if len(names) == 2:
            return "its second derivative by " + " and ".join(dict.fromkeys(names))
        return f"its derivative by {names[0]}" if names else "it"


class Difference:
    """A finite difference of a quantity to both sides, and between what the derivative must be.

    Rounding errors are those of terms up to the product of the result and the largest operand.
    """

    def __init__(
        self,
        before: HostArray,
        now: HostArray,
        behind: HostArray,
        step: HostArray,
        largest: HostArray,
    ) -> None:
        left, right = (now - before) / step, (behind - now) / step
        self.middle: HostArray = (left + right) / 2
        self._rounding = 64 * np.finfo(WIDE).eps * (1 + abs(now)) * (1 + largest) / step
        self._allowed = abs(right - left) + 1e-3 * (abs(left) + abs(right)) + self._rounding

    def excludes(self, slope: HostArray) -> Any:
        """Where a derivative is not between the slopes to both sides."""
        return np.isfinite(self._allowed) & (abs(slope - self.middle) > self._allowed)

    def agrees_with(self, finer: Difference) -> Any:
        """Where a finer difference is the same, about: elsewhere neither says anything."""
        allowed = 0.1 * abs(finer.middle) + finer._rounding
        return abs(self.middle - finer.middle) <= allowed


def _distance(a: HostArray, b: HostArray) -> Any:
    return abs(a.astype(WIDE) - b)


def _allowed(dtype: Any, reference: HostArray, spread: HostArray) -> Any:
    """The error at which half of the digits are left, or which the operands explain."""
    limits = np.finfo(dtype)
    return np.sqrt(limits.eps) * abs(reference) + 4 * spread + 4 * limits.smallest_normal

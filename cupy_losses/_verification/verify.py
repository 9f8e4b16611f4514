"""The check of a loss of one's own, as `OwnLoss.check` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._core.loss import FORWARD, Call, Formula, Loss, Request
from .._core.program import Program
from .._device import driver
from .._host.arrays import HostArray
from .._host.elementwise import Elementwise
from .._host.row_replay import ReplayOfRows
from .._libraries.registry import resolve
from .advice import advice
from .arithmetic import Quantity, derivatives, rounded, second_derivatives
from .compilation import compile_for_all
from .findings import Exact, Findings
from .points import at_kinks, drawn
from .report import Report

_DRAWN = 2  # elements of a row
_MOST = 4  # elements of a row of a user's
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_NOT_COMPARED = (
    "its text in C++ was not compared with its formula in NumPy: that needs a GPU, and until then "
    "they may be two different losses"
)
_NO_VALUES = "no value was computed: a text in C++ without numpy= needs a GPU"


class _Points(NamedTuple):
    """Where a loss is checked, as a function of single elements.

    Attributes:
        formula: The formula in NumPy; None where there is none.
        names: The names of its operands.
        length: The elements of a row, which the formula takes one by one; 1 for a pointwise loss.
        points: The values of each operand.
        kinks: Neighbours of which one lies on each side of a kink; none for points of one's own.

    """

    formula: Formula | None
    names: Sequence[str]
    length: int
    points: list[HostArray]
    kinks: tuple[list[HostArray], list[HostArray]]

    @classmethod
    def of(
        cls, loss: Loss, parameters: Mapping[str, float], operands: Sequence[ArrayLike]
    ) -> _Points:
        """The points given by operands; without operands, points that are drawn."""
        formula: Formula | None = loss.formula
        names, length = loss.operands, 1
        points = [np.asarray(x, np.float64).ravel() for x in operands]
        if isinstance(formula, Elementwise):
            formula = formula.function
        elif isinstance(formula, ReplayOfRows):
            length = _length_of(operands)
            formula = formula.program.unrolled(length)
            names = formula.operands
            points = [x[k::length] for x in points for k in range(length)]
        kinks: tuple[list[HostArray], list[HostArray]] = ([], [])
        if not operands:
            points = drawn(len(names), list(parameters.values()))
            if isinstance(formula, Program):
                kinks = at_kinks(formula.switches, points, parameters)
                points = [np.concatenate(parts) for parts in zip(points, *kinks, strict=True)]
        return cls(formula, names, length, points, kinks)


@np.errstate(all="ignore")
def verify(loss: Loss, parameters: Mapping[str, float], operands: Sequence[ArrayLike]) -> Report:
    """Check a loss at points of one's own, or, without operands, at points that are drawn.

    A formula of rows is checked as one of each element of rows of a few.

    Raises:
        ValueError: If the operands of a loss over rows are no rows of a few elements.

    """
    at = _Points.of(loss, parameters, operands)
    formula = at.formula
    call = Call(loss, "none", tuple(parameters.values()))
    findings = Findings(at.names)
    checked = []
    try:
        checked.append(compile_for_all(call))
    except ValueError as error:
        findings.problems.append(f"it was not compiled: {error}")
    except RuntimeError as error:  # of what is installed, not of the formula
        findings.notes.append(f"it was not compiled: {error}")
    has_gpu = bool(checked) and _has_gpu()
    if not (has_gpu or findings.problems or isinstance(formula, Program)):
        findings.notes.append(_NO_VALUES if formula is None else _NOT_COMPARED)
    for dtype in _DTYPES:
        _compare(findings, call, at, parameters, dtype, has_gpu)
    if formula is not None and at.kinks[0]:
        findings.jumping(formula, at.kinks, parameters)
    checked += _said(formula, has_gpu, len(at.points[0]))
    problems, notes = tuple(findings.problems), tuple(findings.notes)
    instead: list[str] = []
    if isinstance(formula, Program) and (problems or notes):
        instead = advice(formula, of_rows=at.length > 1)
    return Report(loss.name, problems, notes, tuple(instead), tuple(checked))


def _compare(
    findings: Findings,
    call: Call,
    at: _Points,
    parameters: Mapping[str, float],
    dtype: np.dtype[Any],
    has_gpu: bool,
) -> None:
    """Add what is wrong in the arithmetic of a dtype, on the host and on a GPU if there is one."""
    formula, points = at.formula, [x.astype(dtype) for x in at.points]
    here, on_gpu = f" in {dtype}", f" on the GPU in {dtype}"
    on_device = derivatives_on_device(call, points, at.length) if has_gpu else None
    if formula is None:
        if on_device is not None:
            findings.undefined(on_device, points, on_gpu)
        return
    exact = Exact(formula, points, rounded(parameters, dtype))
    computed = derivatives(formula, points, parameters)
    findings.undefined(computed, points, here)
    findings.inaccurate(computed, exact, points, here)
    if on_device is not None:
        findings.undefined(on_device, points, on_gpu)
        findings.different(on_device, computed, exact, points, on_gpu)
    if dtype == np.float64:
        findings.not_the_slope(formula, exact, points, parameters)


def _said(formula: Formula | None, has_gpu: bool, count: int) -> list[str]:
    """What was compared at the points."""
    device = "on the GPU" if has_gpu else "not on a GPU"
    if formula is not None:
        return [
            f"the loss and its first and second derivatives at {count} points, in float32 and "
            f"float64 arithmetic on the host; {device}"
        ]
    return [f"no values on the host, as there is no formula in NumPy; {device}"]


def _has_gpu() -> bool:
    try:
        driver.require_gpu()
    except driver.MissingGPUError:
        return False
    return True


def _length_of(operands: Sequence[ArrayLike]) -> int:
    """The elements of a row that are points of a check."""
    shapes = {np.shape(x) for x in operands}
    if not shapes:
        return _DRAWN
    *others, shape = shapes
    length: int = shape[-1] if shape else 0
    if others or length not in range(1, _MOST + 1):
        raise ValueError(
            f"points of rows must be arrays of one shape, whose last axis has up to {_MOST} "
            f"elements, got {', '.join(map(str, sorted(shapes)))}"
        )
    return length


def derivatives_on_device(
    call: Call, points: Sequence[HostArray], length: int
) -> dict[Quantity, HostArray]:
    """All quantities of a loss, computed by its kernels, of rows of so many elements."""
    cupy = driver.require_gpu()
    starts = range(0, len(points), length)
    rows = [cupy.asarray(np.stack(points[k : k + length], axis=-1)) for k in starts]
    library, operands = resolve(call, rows)

    def run(request: Request, *tangents: Any) -> list[HostArray]:
        results: list[Any] = library.run(call, request, (*tangents, *operands))
        return [result.get() for result in results]

    found: dict[Quantity, HostArray] = {(): run(FORWARD)[0].ravel()}
    for quantity in second_derivatives(len(points)):
        (j, column), (k, of_column) = (divmod(n, length) for n in quantity)
        along = np.zeros((len(points[0]), length), points[0].dtype)
        along[:, column] = 1
        value, slope = run(Request(wanted=(k,), tangents=(j,)), cupy.asarray(along))
        found[quantity[:1]], found[quantity] = value.ravel(), slope[:, of_column]
    return found

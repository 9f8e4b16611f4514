"""The check of a loss of one's own, as `LossFunction.check` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._core.loss import FORWARD, Call, Request
from .._core.pointwise import PointwiseFormula
from .._core.program import Program
from .._device import driver
from .._libraries.registry import resolve
from . import points as places
from .advice import advice
from .arithmetic import Array, Formula, Quantity, derivatives, quantities, rounded
from .compilation import compile_for_all
from .findings import Exact, Findings
from .report import Report

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@np.errstate(all="ignore")
def verify(
    loss: PointwiseFormula, parameters: Mapping[str, float], operands: Sequence[ArrayLike]
) -> Report:
    """Check a loss at points of one's own, or, without operands, at points that are drawn."""
    formula: Formula | None = getattr(loss.formula, "function", None)
    call = Call(loss, "none", tuple(parameters.values()), False, False)
    findings = Findings(loss.operands)
    checked = []
    try:
        checked.append(compile_for_all(call))
    except (RuntimeError, ValueError) as error:
        findings.problems.append(f"it was not compiled: {error}")
    points = [np.asarray(x, np.float64).ravel() for x in operands]
    kinks: tuple[list[Array], list[Array]] = ([], [])
    if not operands:
        points = places.drawn(len(loss.operands), list(parameters.values()))
        if isinstance(formula, Program):
            kinks = places.at_kinks(formula.switches, points, parameters)
            points = [np.concatenate(parts) for parts in zip(points, *kinks, strict=True)]
    has_gpu = not findings.problems and _has_gpu()
    for dtype in _DTYPES:
        at = [x.astype(dtype) for x in points]
        on_device = derivatives_on_device(call, at) if has_gpu else None
        if formula is None:
            if on_device is not None:
                findings.undefined(on_device, at, f" on the GPU in {dtype}")
            continue
        exact = Exact(formula, at, rounded(parameters, dtype))
        computed = derivatives(formula, at, parameters)
        findings.undefined(computed, at, f" in {dtype}")
        findings.inaccurate(computed, exact, at, f" in {dtype}")
        if on_device is not None:
            findings.undefined(on_device, at, f" on the GPU in {dtype}")
            findings.different(on_device, computed, exact, at, f" on the GPU in {dtype}")
        if dtype == np.float64:
            findings.not_the_slope(formula, exact, at, parameters)
    if formula is not None and kinks[0]:
        findings.jumping(formula, kinks, parameters)
    checked += _said(formula, has_gpu, len(points[0]))
    problems, notes = tuple(findings.problems), tuple(findings.notes)
    instead: list[str] = []
    if isinstance(formula, Program) and (problems or notes):
        instead = advice(formula)
    return Report(loss.name, problems, notes, tuple(instead), tuple(checked))


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


def derivatives_on_device(call: Call, points: Sequence[Array]) -> dict[Quantity, Array]:
    """All quantities of a loss, computed by its kernels."""
    cupy = driver.require_gpu()
    library, operands = resolve(call, [cupy.asarray(x) for x in points])

    def run(request: Request, *tangents: Any) -> list[Array]:
        results: list[Any] = library.run(call, request, (*tangents, *operands))
        return [result.get() for result in results]

    found: dict[Quantity, Array] = {(): run(FORWARD)[0]}
    for quantity in quantities(len(points)):
        if len(quantity) == 2:
            j, k = quantity
            request = Request(wanted=(k,), tangents=(j,))
            tangent = cupy.full(operands[j].shape, 1, operands[j].dtype)
            found[(j,)], found[quantity] = run(request, tangent)
    return found

"""How right and how fast an evaluation of a loss is."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .._core.chunks import Place, places
from .._core.types import AnyArray
from .evaluation import PART, EvaluatedLoss, on_the_host
from .progress import Line
from .timing import by_events

REPEATS = 5  # timed runs, after one that compiles
SECONDS = 1.0  # after which no further one starts


class Row(NamedTuple):
    """What is reported of one loss. Errors are relative to the host's formula in float64."""

    loss: str
    value: float
    error: float
    gradient_norm: float
    gradient_error: float
    forward_ms: float
    forward_gb_per_s: float
    gradient_ms: float
    gradient_gb_per_s: float


def measured(name: str, evaluated: EvaluatedLoss, line: Line) -> Row:
    """Everything that is reported; the gradient is that by the first operand."""
    line.say(f"{name}: loss")
    value = float(evaluated.value())
    if mistake := evaluated.mistake():
        warnings.warn(mistake, stacklevel=1)
    reference, denominator = evaluated.reference
    line.say(f"{name}: gradient")
    parts = evaluated.parts()
    gradient = line.each(f"{name}: gradient", parts, evaluated.gradient())
    norm, worst = _compared(gradient, evaluated, denominator)
    if math.isnan(value):
        worst = math.nan  # a gradient that is right of what is wrong says nothing
        _warn_of_operands(evaluated)
    line.say(f"{name}: time of the loss")
    forward = _milliseconds(evaluated, evaluated.value)
    line.say(f"{name}: time of the gradient")

    def consume() -> None:
        for _ in line.each(f"{name}: time of the gradient", parts, evaluated.gradient()):
            pass

    with_gradient = _milliseconds(evaluated, consume)
    read = sum(map(_bytes, evaluated.operands.values()))
    written = _bytes(evaluated.operands[evaluated.names[0]])
    return Row(
        loss=name,
        value=value,
        error=relative(abs(value - reference), abs(reference)) if value != reference else 0.0,
        gradient_norm=norm,
        gradient_error=worst,
        forward_ms=forward,
        forward_gb_per_s=read / forward / 1e6,
        gradient_ms=with_gradient,
        gradient_gb_per_s=(read + written) / with_gradient / 1e6,
    )


def _bytes(array: AnyArray) -> int:
    return int(array.size * array.dtype.itemsize)


def relative(error: float, size: float) -> float:
    """An error in units of what it is an error of; NaN stays NaN."""
    if error == 0:
        return 0.0
    return error / size if size else math.inf * error


def _compared(
    gradient: Iterable[tuple[Place, AnyArray]], evaluated: EvaluatedLoss, denominator: float
) -> tuple[float, float]:
    """The norm of the first gradient, and its largest error by its largest finite element.

    An infinite element that is infinite in float64 too is right.
    """
    first = evaluated.first
    exact = evaluated.reference_gradient(first, denominator)
    norm, sample = 0.0, None
    for place, own in gradient:
        if sample is None:
            sample = on_the_host(own if place else own[first]).astype(np.float64)
        for part in places(own.shape, PART):
            wide = on_the_host(own[part]).astype(np.float64)
            norm = math.hypot(norm, _norm(wide))
    with np.errstate(all="ignore"):
        worst = float(np.where(sample == exact, 0.0, abs(sample - exact)).max())
        largest = float(abs(exact).max(where=np.isfinite(exact), initial=0.0))
    return norm, relative(worst, largest)


def _norm(array: AnyArray) -> float:
    """The norm of an array, whose squares may be out of range."""
    largest = float(abs(array).max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return float(abs(array).sum())  # 0, infinite or NaN
    return largest * math.sqrt(float(((array / largest) ** 2).sum()))


def _warn_of_operands(evaluated: EvaluatedLoss) -> None:
    """Warn of what may be why a loss is NaN: NaN and infinities in its operands."""
    for name, operand in evaluated.operands.items():
        if operand.dtype.kind in "biu":
            continue
        nan = infinite = 0
        for part in places(operand.shape, PART):
            own = on_the_host(operand[part])
            nan += int(np.isnan(own).sum())
            infinite += int(np.isinf(own).sum())
        counts = [f"{nan} NaN"] * bool(nan)
        counts += [f"{infinite} {'infinities' if infinite > 1 else 'infinity'}"] * bool(infinite)
        if counts:
            text = f"{name} has {' and '.join(counts)} in {operand.size} elements"
            warnings.warn(text, stacklevel=2)


def _milliseconds(evaluated: EvaluatedLoss, work: Callable[[], Any]) -> float:
    """The median time of a call, on the device where there is one."""
    work()
    times: list[float] = []
    timer = _on_host if evaluated.on_host else by_events
    while len(times) < REPEATS and sum(times) < 1e3 * SECONDS:
        times.append(timer(work))
    return float(np.median(times))


def _on_host(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)

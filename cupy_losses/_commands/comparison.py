"""The times of a loss and its peers, each of which is checked first, and the machine's limit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import peers, timing
from .problem import Drawn, Problem, WrongError

# What moves as many bytes and does little else: without the gradient, and with it.
LIMITS = ("a sum", "a copy")


class Result(NamedTuple):
    """A time, or why there is none.

    Attributes:
        loss: The loss.
        shape: The shape of the operands, of classes that of the logits.
        row: The number of elements of a row, of a loss over rows.
        dtype: That of the operands.
        gradient: Whether the gradient by the first operand is computed too.
        peer: Who computes it; for a limit, what is done.
        milliseconds: The median time.
        gb_per_s: The bytes that must be moved over this time.
        error: That of the loss, or of the gradient if it is computed, relative to float64.
        failure: Why there is no time.

    """

    loss: str
    shape: Sequence[int]
    row: int | None
    dtype: str
    gradient: bool
    peer: str
    milliseconds: float | None = None
    gb_per_s: float | None = None
    error: float | None = None
    failure: str | None = None


def steps(names: Sequence[str]) -> int:
    """How many things `Comparison.add` says of a problem: the operands, each peer, the times."""
    return len(names) + 2


@dataclass
class Comparison:
    """What was measured.

    Attributes:
        results: Those of all who have the loss.
        limits: What the machine reaches over as many bytes.
        left_out: Why others have none: peer, loss, reason.

    """

    results: list[Result] = field(default_factory=list)
    limits: list[Result] = field(default_factory=list)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)

    def add(
        self,
        problem: Problem,
        xp: Any,
        names: Sequence[str],
        gradient: bool,
        say: Callable[[str], None],
    ) -> None:
        """Measure a problem on arrays of the module `xp`, and say what is under way."""
        works = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of calls that the user does not make
            say(f"{problem}: operands")
            drawn = Drawn(problem, xp)
            limits = limits_of(problem, gradient, xp)
            for name in names:
                say(f"{problem}: {name}")
                try:
                    works += _checked(name, drawn, gradient)
                except peers.LeftOut as reason:
                    self.left_out.append((name, problem.function.name, str(reason)))
                except Exception as failure:  # of others' code: of any kind
                    if name == peers.OURS:
                        raise
                    message = peers.message(failure)
                    self.left_out.append((name, problem.function.name, message))
            say(f"{problem}: all in turn")
            timed = {work: work for work in [*works, *limits] if work.failure is None}
            times = (timing.on_host if xp is np else timing.on_device)(timed)
        self.results += [work.result(problem, times) for work in works]
        self.limits += [work.result(problem, times) for work in limits]

    def reasons(self) -> dict[tuple[str, str], list[str]]:
        """Why peers are left out: peer and reason, and of which losses."""
        found: dict[tuple[str, str], list[str]] = {}
        for peer, loss, reason in dict.fromkeys(self.left_out):
            found.setdefault((peer, reason), []).append(loss)
        return found

    def series(self) -> list[Series]:
        """The results by loss, without gradients and with them."""
        keys = dict.fromkeys((limit.loss, limit.gradient) for limit in self.limits)

        def of(results: list[Result], key: tuple[str, bool]) -> list[Result]:
            return [result for result in results if (result.loss, result.gradient) == key]

        return [Series(of(self.results, key), of(self.limits, key)) for key in keys]


class Series(NamedTuple):
    """What was measured of a loss at all sizes.

    Attributes:
        results: Of all who have it.
        limits: One of each size, in order.

    """

    results: list[Result]
    limits: list[Result]

    def __str__(self) -> str:
        first = self.limits[0]
        return f"{first.loss}{' and its gradient' if first.gradient else ''}, {first.dtype}"

    @property
    def peers(self) -> list[str]:
        """Who have it, in order."""
        return [*dict.fromkeys(result.peer for result in self.results)]

    def of(self, peer: str, shape: Sequence[int]) -> Result | None:
        """The result of a peer at a size."""
        found = (r for r in self.results if (r.peer, r.shape) == (peer, shape))
        return next(found, None)


@dataclass(eq=False)
class Work:
    """What a peer computes: once right, it may still fail for want of memory."""

    peer: str
    gradient: bool
    compute: Callable[[], Any]
    error: float | None = None
    failure: str | None = None

    def check(self, error: Callable[[Any], float]) -> None:
        """Keep the error, or why it fails."""
        try:
            self.error = error(self.compute())
        except WrongError as failure:
            self.failure = f"wrong: {failure}"
        except Exception as failure:
            self.failure = peers.message(failure)

    def __call__(self) -> None:
        try:
            self.compute()
        except Exception as failure:
            self.failure = peers.message(failure)

    def result(self, problem: Problem, times: dict[Work, float]) -> Result:
        """What is reported."""
        result = Result(
            problem.function.name,
            list(problem.shape),
            problem.row,
            problem.dtype,
            self.gradient,
            self.peer,
            error=self.error,
            failure=self.failure,
        )
        if self.failure is not None:
            return result
        bandwidth = problem.bytes_moved(self.gradient) / times[self] / 1e6
        return result._replace(milliseconds=times[self], gb_per_s=bandwidth)


def _checked(name: str, drawn: Drawn, gradient: bool) -> list[Work]:
    """The works of a peer."""
    works = peers.works(name, drawn.problem.function, drawn.operands)
    forward, both = Work(name, False, works.forward), Work(name, True, works.both)
    forward.check(drawn.error)
    if not gradient:
        return [forward]
    both.check(drawn.error_of_both)
    return [forward, both]


def limits_of(problem: Problem, gradient: bool, xp: Any) -> list[Work]:
    """A sum that reads as many bytes and, beside the gradient, a copy that moves as many."""
    size = problem.bytes_moved(gradient) // 4
    numbers = xp.ones(size, dtype=xp.float32)
    read = numbers[: problem.bytes_moved(False) // 4]
    limits = [Work(LIMITS[0], False, read.sum)]
    if gradient:
        half = size // 2
        source, copy = numbers[:half], numbers[half : 2 * half]
        limits.append(Work(LIMITS[1], True, lambda: xp.copyto(copy, source)))
    return limits

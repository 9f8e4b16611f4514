"""What is under way, on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress

Item = TypeVar("Item")


class Line:
    """The line that says it, with a bar where it is done in parts."""

    def __init__(self, progress: Progress, steps: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=steps)

    def step(self, text: str) -> None:
        """Say what the next one of the steps is."""
        self._progress.update(self._task, description=text, advance=1)

    def say(self, text: str, parts: int | None = None) -> None:
        """Say what begins, and in how many parts."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(text, total=parts)

    def each(self, text: str, parts: Sequence[Any], items: Iterable[Item]) -> Iterator[Item]:
        """Items, one of each part: where there are several, they are said as they are done."""
        if len(parts) > 1:
            self.say(text, len(parts))
        for item in items:
            yield item
            if len(parts) > 1:
                self._progress.advance(self._task)


@contextmanager
def shown(steps: int | None = None) -> Iterator[Line]:
    """The line, until all is done; `steps`: how many there are in all."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Line(progress, steps)

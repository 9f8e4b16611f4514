"""What the check of a formula found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What the check of a formula found: `str` of it is a text, and it is true without problems.

    Attributes:
        name: The name of the loss.
        problems: What is wrong: it does not compile, a derivative is NaN or is not that of the
            loss, a value overflows that should not, the device differs from NumPy.
        notes: Where accuracy is lost, where the loss jumps, and what could not be tested here.
        advice: What to write instead, where that is known.
        checked: What was compared, and what could not be.

    """

    name: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    checked: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.name}: {_count(self.problems, 'problem')}, {_count(self.notes, 'note')}"]
        for title in ("problems", "notes", "advice", "checked"):
            label = title if title in ("advice", "checked") else title[:-1]
            lines += [f"{label}: {text}" for text in getattr(self, title)]
        return "\n".join(lines)

    __repr__ = __str__


def _count(texts: tuple[str, ...], what: str) -> str:
    return f"{len(texts) or 'no'} {what}{'' if len(texts) == 1 else 's'}"

"""Names of the addresses that a launch takes, while its plan is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scratch:
    """The address of a part of the scratch memory, numbered when all parts are known."""

    index: int


@dataclass(frozen=True)
class WorkspacePart:
    """An address in the workspace, which all launches of a call use one after the other."""

    index: int


@dataclass(frozen=True)
class Trailing:
    """An address behind all others, of the slot of a call or known in its backward pass alone."""

    index: int


Address = int | Scratch | WorkspacePart | Trailing
NO_ADDRESS: Address = 0
COUNTERS, PARTIALS = WorkspacePart(0), WorkspacePart(1)
SLOT, GRAD_OUTPUT, COUNTED = Trailing(0), Trailing(1), Trailing(2)
NO_FACTOR = NO_ADDRESS, NO_ADDRESS

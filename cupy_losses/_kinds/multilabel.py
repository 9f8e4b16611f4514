"""The kind of the loss over rows that have several labels."""

from __future__ import annotations

from dataclasses import dataclass

from .._device.library import DeviceLibrary
from .._device.plan import Plan
from .._device.plan_multilabel import make_plan
from .._device.problem import Problem
from .rows import RowLoss


@dataclass(frozen=True, eq=False, kw_only=True)
class MultilabelLoss(RowLoss):
    """A loss of rows with a kernel of its own, as each row has several labels."""

    def plan(self, library: DeviceLibrary, problem: Problem) -> Plan:
        """The launches for a problem."""
        return make_plan(library, problem, self)

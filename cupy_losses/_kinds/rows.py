"""The kind of losses that make one number of a row of elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._core.loss import Call, Request
from .._core.rows import RowFormula
from .._device.library import DeviceLibrary
from .._device.plan import Plan
from .._device.plan_rows import make_plan
from .._device.problem import Problem
from .._host import rows


@dataclass(frozen=True, eq=False, kw_only=True)
class RowLoss(RowFormula):
    """A loss of rows, on devices and on the host."""

    def plan(self, library: DeviceLibrary, problem: Problem) -> Plan:
        """The launches for a problem."""
        return make_plan(library, problem, self)

    def on_host(
        self, call: Call, request: Request, operands: Sequence[Any], autocast: bool
    ) -> list[Any]:
        """Evaluate a request on NumPy arrays."""
        return rows.evaluate(self, call, request, operands, autocast)

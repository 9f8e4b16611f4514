"""The kind of losses that are one formula of each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._core.loss import Call, Request
from .._core.pointwise import PointwiseFormula
from .._device.library import DeviceLibrary
from .._device.plan import Plan
from .._device.plan_pointwise import make_plan
from .._device.problem import Problem
from .._host import pointwise


@dataclass(frozen=True, eq=False, kw_only=True)
class PointwiseLoss(PointwiseFormula):
    """A pointwise loss, on devices and on the host."""

    def plan(self, library: DeviceLibrary, problem: Problem) -> Plan:
        """The launches for a problem."""
        return make_plan(library, problem, self)

    def on_host(
        self, call: Call, request: Request, operands: Sequence[Any], autocast: bool
    ) -> list[Any]:
        """Evaluate a request on NumPy arrays."""
        return pointwise.evaluate(self, call, request, operands, autocast)

"""Fixtures of tests of torch."""

from __future__ import annotations

from typing import Any

import pytest

from cupy_losses._acceleration import rules
from cupy_losses._libraries.torch import TorchCpu


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors count as tensors on a GPU: the host backend computes them."""
    monkeypatch.setattr(rules, "place_problem", lambda tensor: "")


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the losses that are computed."""
    names: list[str] = []
    run_resolved = TorchCpu.run_resolved

    def recorded(self: TorchCpu, call: Any, *args: Any) -> Any:
        names.append(call.loss.name)
        return run_resolved(self, call, *args)

    monkeypatch.setattr(TorchCpu, "run_resolved", recorded)
    return names

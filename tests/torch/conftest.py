"""Fixtures of tests of torch."""

from __future__ import annotations

import pytest

from cupy_losses._acceleration import rules


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors count as tensors on a GPU: the host backend computes them."""
    monkeypatch.setattr(rules, "place_problem", lambda tensor: "")

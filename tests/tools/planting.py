"""A bug planted in the source of a kernel, which a test is to find."""

from __future__ import annotations

import pytest

from cupy_losses._device import compiler, sources


def plant(monkeypatch: pytest.MonkeyPatch, file: str, right: str, wrong: str) -> None:
    """Compile a file, and what it includes, with `wrong` in the one place that says `right`."""
    text = sources.source(file)
    assert text.count(right) == 1
    planted = text.replace(right, wrong)
    monkeypatch.setattr(
        compiler, "source", lambda name: planted if name == file else sources.source(name)
    )

"""`cupy-losses bench` on a GPU: all are right, and the times are those of the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cupy_losses.__main__ import main

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_peers(dtype: str, capsys: Any, tmp_path: Path) -> None:
    """A part of the operands repeats: 2^23 elements are more than are drawn."""
    arguments = ["--elements", "65537x128", "--dtype", dtype, "--peer", "torch"]
    plain = ["--peer", "plain"] if dtype == "float32" else []
    plot = ["--plot", str(tmp_path / "a.png")]
    assert main(["bench", "--json", *arguments, *plain, *plot]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["environment"]["gpu"] in result["backend"]
    # In float16 torch's gradient of a mean over so many rows underflows, and is reported as wrong.
    failed = {row["peer"] for row in result["results"] if row["failure"]}
    assert failed <= ({"torch"} if dtype == "float16" else set())
    assert len(result["results"]) == (12 if plain else 8)
    timed = [row for row in result["results"] if not row["failure"]]
    assert all(row["milliseconds"] > 0 for row in timed + result["limits"])
    assert (tmp_path / "a.png").exists()
    ours = [row for row in result["results"] if row["peer"] == "cupy_losses"]
    largest = 2.0**-21 if dtype == "float32" else 2.0**-8
    assert all(row["error"] < largest for row in ours)


def test_compiled(capsys: Any) -> None:
    arguments = ["mse_loss", "--elements", "100000", "--json", "--peer", "torch.compile"]
    assert main(["bench", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["failure"] for row in result["results"]] == [None] * 4

"""What the planners in Python and the kernels both know has one value."""

from __future__ import annotations

import re

import pytest

from cupy_losses._device import (
    anticipation,
    plan_multilabel,
    row_schedule,
    row_team,
    row_tiling,
    sources,
)

CONSTANTS = {
    ("reduction/reduction.cuh", "FAN_IN"): row_schedule.FAN_IN,
    ("reduction/reduction.cuh", "MOST_AT_ONCE"): row_schedule.MOST_AT_ONCE,
    ("kernels/phases.cuh", "RECORD_BYTES"): row_schedule.RECORD_BYTES,
    ("kernels/split_rows.cu", "MAX_RANKS"): row_team.MAX_RANKS,
    ("kernels/row_worker.cuh", "VECTORS_OF_LINE"): row_team.VECTORS_OF_LINE,
    ("kernels/row_units.cuh", "MOST_ROWS"): row_tiling.MOST_ROWS,
}


@pytest.mark.parametrize(("file", "name"), CONSTANTS)
def test_constants(file: str, name: str) -> None:
    found = re.findall(rf"constexpr int {name} = (.*?);", sources.source(file))
    assert found == [str(CONSTANTS[file, name])]


def test_the_numbers_of_an_anticipation() -> None:
    (body,) = re.findall(
        r"enum Anticipation \{(.*?)\}", sources.source("reduction/factor.cuh"), re.S
    )
    names = re.findall(r"^\s*(\w+),", body, re.M)
    assert len(names) * 8 == anticipation.SLOT_BYTES
    assert names.index("COUNTED") * 8 == anticipation.COUNTED_OFFSET


def test_what_a_warp_counts_at_a_time() -> None:
    """Two counts share a register, and the columns of a window are counted together."""
    (power,) = re.findall(
        r"int MOST_COUNTED = 1 << (\d+);", sources.source("kernels/multilabel_margin.cu")
    )
    assert max(plan_multilabel.WINDOW, plan_multilabel.WINDOW_ACROSS) <= 1 << int(power) < 1 << 16

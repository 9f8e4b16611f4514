"""What was computed: tables for people, JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_DIGITS = 15  # that a float64 has for certain


def as_json(report: Any) -> str:
    """JSON, which has no NaN and no infinity: they are the strings "NaN", "Infinity"."""
    return json.dumps(_finite(report), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def in_column(numbers: Sequence[float], digits: int = 4) -> list[str]:
    """Numbers with the same decimals, so that they align: `digits` of the least one if they fit.

    Where that takes more digits than a float64 has, they do not align.
    """
    found = [abs(number) for number in numbers if number and math.isfinite(number)]
    if found:
        least, most = (math.floor(math.log10(number)) for number in (min(found), max(found)))
        decimals = max(min(digits - 1 - least, digits + 1 - most), 0)
        if -least <= decimals <= _DIGITS and most < _DIGITS:
            return [f"{number:.{decimals}f}" for number in numbers]
    return [f"{number:.{digits}g}" for number in numbers]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns under their names: texts in the first one, numbers in the others."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # The table takes what it needs: in a narrow terminal lines wrap, and no number is cut off.
    Console(width=1000, highlight=False).print(table)

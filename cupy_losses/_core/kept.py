"""What is kept from call to call, in tables of a bounded size."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_MOST = 4096


def keep(table: dict[Key, Value], key: Key, value: Value) -> Value:
    """Put a value in a table, which is emptied first where it is full; the value.

    Calls look into the table themselves, as a function for it would cost each of them time.
    """
    if len(table) >= _MOST:
        table.clear()
    table[key] = value
    return value

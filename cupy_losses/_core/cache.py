"""What is kept from call to call, in tables of a bounded size."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def keep(table: dict[Key, Value], key: Key, value: Value, most: int = 4096) -> Value:
    """Put a value into a table and return it. A table that has `most` values is emptied first.

    Callers look values up in the table themselves: a function would cost each call time.
    """
    if len(table) >= most:
        table.clear()
    table[key] = value
    return value

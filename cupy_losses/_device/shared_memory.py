"""Shared memory: its banks, and where the arrays of a tile lie in it.

Different words of a bank are read one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .hardware import VECTOR_BYTES

WORD_BYTES = 4
BANKS = 32


def bank_conflicts(words: Iterable[int]) -> int:
    """How many of these words of shared memory are in the same bank, at most."""
    return max(Counter(word % BANKS for word in set(words)).values())


def placed(lengths: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Where arrays of so many bytes begin, one behind the other, and where the last one ends.

    There is room for each to begin anywhere in a vector, as it does in device memory.
    """
    begins, end = {}, 0
    for k, length in lengths.items():
        begins[k] = end
        end += -(-length // VECTOR_BYTES) * VECTOR_BYTES + VECTOR_BYTES
    return begins, end

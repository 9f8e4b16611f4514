"""The banks of shared memory: different words of one are read one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

WORD_BYTES = 4
BANKS = 32


def bank_conflicts(words: Iterable[int]) -> int:
    """How many of these words of shared memory are in the same bank, at most."""
    return max(Counter(word % BANKS for word in set(words)).values())

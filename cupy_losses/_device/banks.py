"""The banks of shared memory: a warp waits where its threads need different words of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

WORD_BYTES = 4
BANKS = 32


def turns(words: Iterable[int]) -> int:
    """How many turns it takes to read these words of shared memory."""
    return max(Counter(word % BANKS for word in set(words)).values())

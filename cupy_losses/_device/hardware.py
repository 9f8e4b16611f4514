"""What every device has: the units in which threads work and memory moves."""

from __future__ import annotations

VECTOR_BYTES = 16  # the most that a thread accesses at once
WARP = 32  # threads that work together
SECTOR_BYTES = 32  # of device memory, which are written at once
THREADS_OF_MULTIPROCESSOR = 1024  # resident at once, with 64 registers each

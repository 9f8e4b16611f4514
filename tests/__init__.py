"""Tests, and what measures and checks them: tools."""

import os

# Threads of torch that have little to do spin while they wait for each other, on cores that the
# processes of pytest-xdist share.
os.environ.setdefault("OMP_NUM_THREADS", "1")

"""Each array in device memory of its own: `pytest -p tests.tools.unpooled`.

compute-sanitizer does not see an access outside an array that meets another one of a memory pool.
"""

from __future__ import annotations

import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # before torch is imported

import cupy

cupy.cuda.set_allocator(None)

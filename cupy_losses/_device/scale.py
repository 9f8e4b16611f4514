"""The launch that scales gradients which are there already."""

from __future__ import annotations

from .._core.dtypes import c_type, item_size
from . import compiler
from .compiler import Specialisation
from .cpp import template
from .element_schedule import THREADS
from .hardware import VECTOR_BYTES
from .launch import Launch, int64


def scale_launch(gradient: str, grad_output: str, size: int, device: int) -> Launch:
    """The launch that multiplies a dense gradient by a 0-d grad_output, in place."""
    real = "double" if "float64" in (gradient, grad_output) else "float"
    width = VECTOR_BYTES // item_size(gradient)
    name = template("scale", real, c_type(gradient), c_type(grad_output), THREADS, width)
    (kernel,) = compiler.kernels([Specialisation("kernels/scale.cu", name, THREADS, device)])
    blocks = min(-(-size // (THREADS * width)), kernel.resident_blocks)
    return Launch(kernel, (blocks, 1), THREADS, [int64(size)], pointers=2)

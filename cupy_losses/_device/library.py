"""What the CUDA backend asks of a library of device arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .._core.outputs import Output
from .._core.shapes import ArraySpec
from .._core.types import AnyArray

Allocator = Callable[[Sequence[AnyArray]], AnyArray]
PER_THREAD_STREAM = 2  # the handle of as many streams as there are threads


class DeviceLibrary(Protocol):
    """Arrays of one library on CUDA devices."""

    def inspect(self, operands: Sequence[AnyArray]) -> tuple[Any, list[int]]:
        """All that a plan depends on (dtypes, shapes, strides, devices, modes), and addresses."""

    def autocast(self) -> bool:
        """Whether losses of half precision are to be float32."""

    def spec(self, array: AnyArray) -> ArraySpec:
        """An array without its data; a TypeError says what one must have that kernels can read."""

    def device(self, array: AnyArray) -> int:
        """The device of an array; negative on the host."""

    def current_device(self) -> int:
        """The device that work goes to now."""

    def use_device(self, device: int) -> AbstractContextManager[Any]:
        """A context in which work goes to another device."""

    def stream(self, device: int) -> int:
        """The current stream of the current device."""

    def address(self, array: AnyArray) -> int:
        """The address of the first element of an array."""

    def allocator(self, output: Output) -> Allocator:
        """A function from the operands to a new array on their device."""

    def filled(self, output: Output, value: float) -> Allocator:
        """The same, with every element set to `value`."""

    def scratch(
        self, operands: Sequence[AnyArray], size: int, is_captured: bool
    ) -> tuple[Any, int]:
        """Memory of this call alone, 16-byte aligned: what keeps it alive, and its address.

        It is free again, in stream order, once nothing keeps it alive; that of a call that is
        captured in a CUDA graph, never.
        """

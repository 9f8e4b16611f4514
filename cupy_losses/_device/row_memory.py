"""How rows lie in memory, as far as the threads that work on them depend on it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from .hardware import VECTOR_BYTES


@dataclass(frozen=True)
class RowMemory:
    """The rows in memory, as far as their teams depend on them.

    Attributes:
        rows: How many there are.
        columns: The elements of a row.
        size: The bytes of an element of the first operand, where that is floating, or else of the
            narrowest one that is.
        element_sizes: Those of an element of each array that is read element by element.
        step: From an element of the first operand to the next one of its row, in elements.
        row_steps: From a row to the next one along each axis, in elements.
        begin: Where the first row begins behind an aligned address, in elements.
        precise: Whether parts of a row cost much to merge.
        hides: Whether a row may be padded, with elements that the kernels hide.

    """

    rows: int
    columns: int
    size: int
    element_sizes: tuple[int, ...]
    step: int
    row_steps: tuple[int, ...]
    begin: int
    _: KW_ONLY
    precise: bool
    hides: bool

    @property
    def element_bytes(self) -> int:
        """What is read of each element."""
        return sum(self.element_sizes)

    @property
    def is_whole_vectors(self) -> bool:
        """Whether a row, its elements side by side, is some vectors, wherever it begins."""
        return self.step == 1 and self.columns * self.size % VECTOR_BYTES == 0

    @property
    def is_heavy(self) -> bool:
        """Whether each element adds to several sums: of a precise loss that hides none."""
        return self.precise and not self.hides

    @property
    def width(self) -> int:
        """The elements of a vector; vectors of a few do not reach beyond the row."""
        if self.step != 1 and self.columns > 1:
            return 1
        width = VECTOR_BYTES // self.size
        while self.columns < 4 * width and self.columns % width:
            width //= 2
        return width

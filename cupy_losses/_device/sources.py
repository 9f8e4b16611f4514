"""The CUDA sources: where they lie, and their text with our own includes inlined."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def source_folder() -> Path:
    """The folder of the .cu and .cuh files: in an installed package, beside it in a checkout."""
    for folder in (_PACKAGE / "cuda", _PACKAGE.parent / "cuda"):
        if (folder / "kernels/pointwise.cu").is_file():
            return folder
    raise FileNotFoundError(
        f"the CUDA sources are missing: no cuda/kernels/pointwise.cu near {_PACKAGE}"
    )


@functools.cache
def source(name: str) -> str:
    """The text of a kernel file with our own includes inlined.

    CuPy caches compiled kernels by source text and does not see what an #include names. The
    #line directives make compiler errors name the right file and line.
    """
    included: set[str] = set()

    def inline(file: str) -> list[str]:
        included.add(file)
        lines = [f'#line 1 "{file}"']
        text = (source_folder() / file).read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            include = re.match(r'#include "(.+)"', line)
            if include is None:
                lines.append("" if line.startswith("#pragma once") else line)
            elif include[1] not in included:
                lines += [*inline(include[1]), f'#line {number + 1} "{file}"']
            else:
                lines.append("")
        return lines

    return "\n".join(inline(name)) + "\n"

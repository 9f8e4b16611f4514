"""The code in the documents runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = ("README.md", "docs/nn.md", "docs/accelerate.md", "docs/formulas.md", "docs/types.md")


def blocks(name: str) -> list[str]:
    """The blocks of Python of a document, without those that need a GPU."""
    found = BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))
    return [code for code in found if "import cupy as" not in code and 'device="cuda"' not in code]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_code(name: str) -> None:
    """Each block by itself."""
    codes = blocks(name)
    assert len(codes) > 1
    for code in codes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(code, {})


def test_lists_of_accelerate_are_current() -> None:
    """docs/accelerate.py makes them of the code."""
    made = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "accelerate.py")))
    text = made.PAGE.read_text(encoding="utf-8")
    assert text == made.page(text)

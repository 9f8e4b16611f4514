"""Imports and includes go downwards, and docs/structure.md shows what they are."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

structure = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "docs" / "structure.py"))
)


def of_package(package: Path) -> list[str]:
    found: list[str] = structure.findings(
        structure.imports(package), structure.room_of_module, structure.ROOMS
    )
    return found


def of_cuda(folder: Path) -> list[str]:
    found: list[str] = structure.findings(
        structure.includes(folder), structure.room_of_source, tuple(structure.CUDA_ROOMS)
    )
    return found


def test_imports_go_downwards() -> None:
    graph = structure.imports(structure.PACKAGE)
    assert "cupy_losses._core.loss" in graph["cupy_losses._api.entrance"]
    assert "cupy_losses._device.driver" in graph["cupy_losses._commands.info"]  # in a function
    assert "cupy_losses" in graph["cupy_losses._commands.program"]  # `from . import __version__`
    assert of_package(structure.PACKAGE) == []


def test_includes_go_downwards() -> None:
    graph = structure.includes(structure.CUDA)
    assert "numbers/math.cuh" in graph["losses/pointwise.cuh"]
    assert of_cuda(structure.CUDA) == []


def test_page_is_current() -> None:
    assert structure.PAGE.read_text(encoding="utf-8") == structure.page()


PLANTED = {
    "upwards": (
        "_core/dtypes.py",
        "from .._device import driver\n",
        "cupy_losses._core.dtypes uses cupy_losses._device.driver, from a room above its own",
    ),
    "upwards in a function": (
        "_host/arrays.py",
        "def late() -> None:\n    import cupy_losses._api.check\n",
        "cupy_losses._host.arrays uses cupy_losses._api.check, from a room above its own",
    ),
    "upwards to the package": (
        "_api/check.py",
        "def late() -> None:\n    from .. import mse_loss\n",
        "cupy_losses._api.check uses cupy_losses, from a room above its own",
    ),
    "upwards by name": (
        "_device/plan.py",
        "import importlib\nimportlib.import_module('cupy_losses._api')\n",
        "cupy_losses._device.plan uses a name made at run time, which is not there",
    ),
    "a cycle in a room": (
        "_core/shapes.py",
        "def late() -> None:\n    from . import loss\n",
        "a cycle: cupy_losses._core.",
    ),
    "a new room": (
        "_attic/__init__.py",
        "",
        "cupy_losses._attic is in no room of docs/structure.py",
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_import_is_found(case: str, tmp_path: Path) -> None:
    file, text, expected = PLANTED[case]
    package = tmp_path / "cupy_losses"
    shutil.copytree(structure.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / file).parent.mkdir(exist_ok=True)
    with (package / file).open("a") as source:
        source.write(text)
    # What goes upwards closes a cycle as well, where the one below is used above.
    found = of_package(package)
    assert any(finding.startswith(expected) for finding in found), found


@pytest.mark.parametrize(
    ("file", "included", "expected"),
    [
        ("numbers/dual.cuh", "losses/pointwise.cuh", "from a room above its own"),
        ("numbers/dual.cuh", "numbers/math.cuh", "a cycle: "),
        ("losses/rows.cuh", "losses/missing.cuh", "which is not there"),
    ],
)
def test_a_planted_include_is_found(
    file: str, included: str, expected: str, tmp_path: Path
) -> None:
    folder = tmp_path / "cuda"
    shutil.copytree(structure.CUDA, folder)
    with (folder / file).open("a") as source:
        source.write(f'#include "{included}"\n')
    found = of_cuda(folder)
    assert any(expected in finding for finding in found), found

"""The package as a whole: what importing it does, what it ships."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cupy_losses
from cupy_losses._api.public import is_loss
from cupy_losses._commands import losses
from cupy_losses._core.pointwise import PointwiseFormula
from cupy_losses._device import sources

from ..tables.losses import LOSSES
from ..tables.rows import ROWS

PACKAGE = Path(cupy_losses.__file__).parent


def test_import_loads_neither_torch_nor_cupy() -> None:
    code = (
        "import sys, numpy, cupy_losses; "
        "cupy_losses.mse_loss(numpy.ones(3), numpy.zeros(3)); "
        "print([name for name in ('torch', 'cupy', 'cupy_backends', 'ml_dtypes') "
        "if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("use", "user"),
    [("import cupy_losses.nn", "cupy_losses.nn"), ("cupy_losses.accelerate()", "accelerate")],
)
def test_what_needs_torch_says_what_to_install(use: str, user: str) -> None:
    code = f"import sys, cupy_losses; sys.modules['torch'] = None; {use}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    message = f'ModuleNotFoundError: {user} needs torch: pip install "cupy-losses[torch]"'
    assert result.stderr.splitlines()[-1] == message


WHILE_IT_IS_IMPORTED = """
import threading, numpy, cupy_losses
from cupy_losses._libraries import cupy  # as after the first array on a device

class Own(numpy.ndarray):
    __module__ = "elsewhere"

def losses():
    print(cupy_losses.mse_loss(numpy.ones(3).view(Own), numpy.zeros(3)))
    try:
        cupy_losses.mse_loss(numpy.ones(3), None)
    except TypeError as error:
        print(str(error).partition(",")[0])

thread = threading.Thread(target=losses)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_calls_while_another_thread_imports(name: str, tmp_path: Path) -> None:
    """What of a package is not there yet is not asked for, on its way through `sys.modules`."""
    (tmp_path / f"{name}.py").write_text(WHILE_IT_IS_IMPORTED)
    code = f"import sys, cupy_losses; sys.path.insert(0, {str(tmp_path)!r}); import {name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    message = "target must be a NumPy"
    assert result.stdout.splitlines() == ["1.0", message], result.stderr


def test_sources_are_found_and_hold_no_python() -> None:
    folder = sources.source_folder()
    files = {str(file.relative_to(folder)) for file in folder.rglob("*.cu*")}
    assert {"kernels/pointwise.cu", "numbers/dual.cuh"} <= files
    assert not list(folder.rglob("*.py"))
    # CuPy writes them to a file in the encoding of the locale.
    assert all((folder / file).read_bytes().isascii() for file in files)


def test_includes_are_inlined_once_with_line_numbers() -> None:
    source = sources.source("kernels/pointwise.cu")
    assert '#include "' not in source
    assert source.count("struct Dual {") == 1
    file, number, seen = "", 0, set()
    for line in source.splitlines():
        if directive := re.match(r'#line (\d+) "(.+)"', line):
            file, number = directive[2], int(directive[1])
            continue
        own = (sources.source_folder() / file).read_text(encoding="utf-8").splitlines()[number - 1]
        assert line == own or (line == "" and own.startswith(("#pragma once", '#include "')))
        seen.add(file)
        number += 1
    assert {"kernels/pointwise.cu", "losses/combinators.cuh", "numbers/dual.cuh"} <= seen


ERRORS = ["MissingGPUError"]
FUNCTIONS = [name for name in cupy_losses.__all__ if name not in ERRORS]
MODULES = sorted({getattr(cupy_losses, name).__module__ for name in FUNCTIONS})


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_documented(name: str) -> None:
    """Its arguments, and what it returns and raises; a loss refers to a module for that."""
    function = getattr(cupy_losses, name)
    text = inspect.getdoc(function) or ""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    assert [name for name in named if f"\n    {name}: " not in text] == []
    parts = [">>>", "Args:"] if named else [">>>"]
    if is_loss(function):
        parts += ["Formula:", "Returns:", "Source:", "shapes, dtypes and errors as `cupy_losses."]
        loss = losses.find(name).loss
        if isinstance(loss, PointwiseFormula) and loss.warns_of_broadcasting:
            parts += ["Warns:"]
    else:
        parts += ["Raises:"]
    assert [part for part in parts if part not in text] == []


def test_modules_say_what_is_public() -> None:
    """The package re-exports what they say, and nothing else."""
    for name in MODULES:
        if "._" not in name:
            assert set(importlib.import_module(name).__all__) <= set(cupy_losses.__all__)
    assert len(set(cupy_losses.__all__)) == len(cupy_losses.__all__)
    public = {name for name in vars(cupy_losses) if callable(getattr(cupy_losses, name))}
    assert public == set(cupy_losses.__all__)
    # Modules are those of the package, and not what it imports.
    modules = [value for name, value in vars(cupy_losses).items() if not name.startswith("_")]
    assert [m for m in modules if inspect.ismodule(m) and not m.__name__.startswith("cupy_")] == []


def test_the_citation_is_of_this_version() -> None:
    citation = (PACKAGE.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {cupy_losses.__version__}\n" in citation


def test_lists_of_losses_are_current() -> None:
    """docs/losses.py makes docs/losses.md and the README's list of the code."""
    generator = load(PACKAGE.parent / "docs" / "losses.py")
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page()
    readme = generator.README.read_text(encoding="utf-8")
    assert readme == generator.readme(readme)
    for name in generator.names():
        assert f"`{name}`" in readme
        assert f"`{name}(" in generator.page()


def test_declarations_are_current() -> None:
    """docs/declarations.py makes what type checkers read of `cupy_losses.nn`."""
    for file, text in load(PACKAGE.parent / "docs" / "declarations.py").FILES.items():
        assert file.read_text(encoding="utf-8") == text()


def test_every_loss_is_tested() -> None:
    """The tables of the tests have all of them."""
    losses = set(load(PACKAGE.parent / "docs" / "losses.py").names())
    tested = {case.name for case in LOSSES if case.function is None}
    tested |= {case.name for case in ROWS if case.function is None}
    tested |= {"triplet_margin_with_distance_loss"}
    assert losses == tested


def load(path: Path) -> Any:
    """A module that is in no package."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module

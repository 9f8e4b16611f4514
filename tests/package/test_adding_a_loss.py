"""A loss is added to a copy of the tree by CONTRIBUTING's own steps; its tests run there.

That takes a copy and many processes: it is exhaustive.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_losses._core import loss as core
from cupy_losses._core.loss import Call, Loss, Request
from cupy_losses._core.rows import ELEMENTS
from cupy_losses._device import plan_pointwise, plan_rows
from cupy_losses._host import pointwise, row_formulas
from cupy_losses._kinds.rows import RowLoss
from cupy_losses._libraries.numpy import on_host
from cupy_losses._libraries.registry import ArrayLibrary

from .. import emulator
from ..tables import rows
from ..tools import requirements

ROOT = Path(__file__).parents[2]
COPIED = ("cuda", "cupy_losses", "tests", "benchmarks", "docs")
NAME = "lorentzian_loss"


class Step:
    """One of the numbered steps: the file that it names first, and the code to put there."""

    def __init__(self, text: str) -> None:
        self.file = next(
            name for name in re.findall(r"`([\w/.]+)`", text) if (ROOT / name).is_file()
        )
        found = re.search(r"^ *```\S+\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        assert found, text
        self.code = textwrap.dedent(found[1])


def section(title: str = "a pointwise loss") -> str:
    """The one on adding something."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split(f"## Adding {title}\n")[1].split("\n## ")[0]


def code(text: str) -> list[str]:
    """The blocks of Python in a section."""
    found = re.findall(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def steps() -> list[Step]:
    """Its numbered steps."""
    return [Step(step) for step in re.split(r"^\d\. ", section(), flags=re.MULTILINE)[1:]]


def before_the_end_of_a_list(text: str, start: str, code: str) -> str:
    """Source text with an item added to the list that begins with the line `start`."""
    head, rest = text.split(f"\n{start}\n")
    items, tail = rest.split("\n]\n", 1)
    return f"{head}\n{start}\n{items}\n{textwrap.indent(code, '    ')},\n]\n{tail}"


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the modules of a tree."""
    # A cache of its own: the lock of the common one may be held for minutes.
    own = {"PYTHONPATH": str(tree), "CUPY_LOSSES_EMULATOR_CACHE": str(tree / "emulator-cache")}
    environment = {**os.environ, **own}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True
    )


def outcomes(tree: Path, *arguments: str, chosen: str = NAME) -> dict[str, str]:
    """The tests that have the name of the loss, or what else is chosen, and how they end."""
    report = tree / "report.xml"
    pytest_ = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    result = run(tree, *pytest_, "-k", chosen, f"--junitxml={report}", *arguments)
    assert result.returncode == 0, result.stdout
    return {
        f"{case.get('classname')}::{case.get('name')}": "skipped" if len(case) else "passed"
        for case in ET.parse(report).iter("testcase")
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which the steps have been followed."""
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("CONTRIBUTING.md", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)

    formula, function, entry = steps()
    for step in (formula, function):
        with (tree / step.file).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{step.code}")
    for step, start, code in (
        (function, "__all__ = [", f'"{NAME}"'),
        (entry, "LOSSES = [", entry.code.strip()),
    ):
        file_ = tree / step.file
        text = before_the_end_of_a_list(file_.read_text(encoding="utf-8"), start, code)
        file_.write_text(text, encoding="utf-8")
    generators = re.findall(r"python (docs/\w+\.py)", section())
    assert "docs/losses.py" in generators
    for generator in generators:
        assert run(tree, generator).returncode == 0
    return tree


@pytest.mark.exhaustive
def test_the_loss_is_in_no_other_place(tree: Path) -> None:
    """The example of the guide is no loss of the package: the tests below are not those of one."""
    assert NAME not in (ROOT / "README.md").read_text(encoding="utf-8")
    changed = {
        str(path.relative_to(tree))
        for path in tree.rglob("*.*")
        if path.suffix in (".py", ".pyi", ".cuh", ".cu", ".md", ".json")
        and path.read_bytes() != (ROOT / path.relative_to(tree)).read_bytes()
    }
    written = {f"cupy_losses/nn/{name}.pyi" for name in ("_functions", "_modules")}
    written |= {"docs/losses.md", "README.md"}
    assert changed == {*(step.file for step in steps()), *written}


@pytest.fixture(scope="module")
def ran(tree: Path) -> dict[str, str]:
    """Tests of the loss and of the documents, in one process, and how they end."""
    documents = "test_package and (docstrings or documented or public or current or tested)"
    files = ("test_package", "test_benchmarks")
    paths = (*(f"tests/package/{file}.py" for file in files), "tests/api", "tests/torch/test_nn.py")
    return outcomes(tree, *paths, chosen=f"{NAME} or {documents}")


def all_pass(ran: dict[str, str], name: str) -> bool:
    """Whether a file has several of these tests, none of which fails or is skipped."""
    own = [outcome for test, outcome in ran.items() if f".{name}::" in test]
    return len(own) > 1 and set(own) == {"passed"}


@pytest.mark.exhaustive
def test_documents(tree: Path, ran: dict[str, str]) -> None:
    for file in ("docs/losses.md", "README.md"):
        assert f"`{NAME}" in (tree / file).read_text(encoding="utf-8")
    assert all_pass(ran, "test_package")


@pytest.mark.exhaustive
def test_picture(tree: Path) -> None:
    result = run(tree, "-m", "cupy_losses", "plot", NAME, "--c", "0.5")
    assert result.returncode == 0, result.stderr
    assert (tree / f"{NAME}.png").exists()


@pytest.mark.exhaustive
def test_benchmark(ran: dict[str, str]) -> None:
    assert all_pass(ran, "test_benchmarks")


@pytest.mark.exhaustive
def test_values_and_gradients(ran: dict[str, str]) -> None:
    """Of the function, and of the module that follows from it."""
    for name in ("test_values", "test_gradients", "test_errors", "test_nn"):
        assert all_pass(ran, name), name


@pytest.mark.exhaustive
def test_kernels(tree: Path) -> None:
    """On the emulator, on dense arrays and where a gradient is a sum; through NVRTC."""
    requirements.nvrtc()
    emulator.require()
    ran = outcomes(tree, "tests/kernels/test_emulated.py")
    static = "tests/kernels/test_static.py"
    ran |= outcomes(tree, "-m", "", static, chosen=f"{NAME} and 90")  # of one architecture
    for name in ("test_every_specialisation", "test_second_order", "test_kernels"):
        own = [outcome for test, outcome in ran.items() if f"::{name}[" in test]
        assert own, name
        assert set(own) == {"passed"}, name


def test_the_loss_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula of the guide and its derivatives are those of the entry of the table there."""
    monkeypatch.setattr(core, "_LOSSES", {})  # it is none of the package
    formula, entry = code(section("a loss over rows"))
    known: dict[str, Any] = {**vars(row_formulas)}
    exec(formula, known)
    names = "input1", "input2"
    loss = RowLoss(
        name="squared_distance_loss",
        struct="SquaredDistance",
        formula=known["_squared_distance"],
        operands=names,
        roles=dict.fromkeys(names, ELEMENTS),
        broadcasts=True,
    )
    case: rows.RowCase = eval(entry, {**vars(rows)})
    operands = case.draw(np.random.default_rng(0), (5, 7), np.float64)
    arrays = [operands[name] for name in names]
    found: list[Any] = on_host(Call(loss, "mean", ()), Request(wanted=(0, 1)), arrays)
    expected = [case.reduced(operands, "mean")]
    slopes, count = case.slopes(operands), case.divisor(operands, "mean")
    expected += [slopes[name] / count for name in case.differentiable]
    for got, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, np.asarray(exact, np.float64), rtol=1e-14)


def test_methods_of_a_kind() -> None:
    """The guide names all that a kind of loss has to have, and an argument of each function."""
    text = section("a kind of loss")
    assert [name for name in Loss.__abstractmethods__ if f"`{name}`" not in text] == []
    for function in plan_pointwise.make_plan, plan_rows.make_plan, pointwise.evaluate:
        arguments = ", ".join(inspect.signature(function).parameters)
        assert f"`{function.__name__}({arguments})`" in text


def test_methods_of_a_library() -> None:
    """The guide has those without which there is no library of arrays, with their signatures."""
    (block,) = code(section("a library of arrays"))
    own = signatures(Path(inspect.getfile(ArrayLibrary)).read_text(encoding="utf-8"))
    shown = signatures(block)["NameLibrary"]
    assert ArrayLibrary.__abstractmethods__ <= {*shown}
    assert shown.items() <= own["ArrayLibrary"].items()


def signatures(text: str) -> dict[str, dict[str, str]]:
    """The methods of each class of a source text, each with its arguments and what it returns."""
    return {
        made.name: {
            part.name: f"{ast.unparse(part.args)} -> {part.returns and ast.unparse(part.returns)}"
            for part in made.body
            if isinstance(part, ast.FunctionDef)
        }
        for made in ast.parse(text).body
        if isinstance(made, ast.ClassDef)
    }

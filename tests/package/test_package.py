"""The package as a whole: what importing it does, what it ships, its examples and commands."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupy_losses
from cupy_losses.__main__ import main
from cupy_losses._commands import evaluate
from cupy_losses._device import sources

from ..tables.losses import LOSSES, SIMPLE
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


def test_sources_are_found_and_hold_no_python() -> None:
    folder = sources.source_folder()
    files = {str(file.relative_to(folder)) for file in folder.rglob("*.cu*")}
    assert {"kernels/pointwise.cu", "numbers/dual.cuh"} <= files
    assert not list(folder.rglob("*.py"))


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


MODULES = sorted({getattr(cupy_losses, name).__module__ for name in cupy_losses.__all__})


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_every_public_function_is_documented() -> None:
    for name in cupy_losses.__all__:
        text = getattr(cupy_losses, name).__doc__
        assert ">>>" in text
        if name.endswith("_loss") and name != "pointwise_loss":
            assert all(part in text for part in ("Formula:", "Args:", "Returns:", "Source:"))


def test_modules_say_what_is_public() -> None:
    """The package re-exports what they say, and nothing else."""
    for name in MODULES:
        if "._" not in name:
            assert set(importlib.import_module(name).__all__) <= set(cupy_losses.__all__)
    assert len(set(cupy_losses.__all__)) == len(cupy_losses.__all__)
    functions = {name for name in vars(cupy_losses) if callable(getattr(cupy_losses, name))}
    assert functions == set(cupy_losses.__all__)


def test_lists_of_losses_are_current() -> None:
    """docs/losses.py makes docs/losses.md and the README's list of the code."""
    generator = load(PACKAGE.parent / "docs" / "losses.py")
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page()
    readme = generator.README.read_text(encoding="utf-8")
    assert readme == generator.readme(readme)
    for name in generator.names():
        assert f"`{name}`" in readme
        assert f"`{name}(" in generator.page()


def test_every_loss_is_tested() -> None:
    """The tables of the tests have all of them."""
    losses = set(load(PACKAGE.parent / "docs" / "losses.py").names())
    tested = {case.name for case in LOSSES if case.function is None}
    tested |= {case.name for case in ROWS} | {"triplet_margin_with_distance_loss"}
    assert losses == tested


def report(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", "--json", "--backend", "numpy", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_evaluate_real_data(capsys: Any) -> None:
    result = report(capsys)
    assert result["shape"] == [148]
    losses = {row["loss"]: row for row in result["losses"]}
    assert set(losses) == {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
    assert 2000 < losses["mse_loss"]["value"] < 4000  # a fit explains half of a variance of 5900
    for row in losses.values():
        assert row["error"] < 2**-23
        assert row["gradient_error"] < 2**-22
        assert row["forward_ms"] > 0


def test_evaluate_files(capsys: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("prediction", "target"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((30, 40)).astype(np.float32))
    files = [f"--{n}={tmp_path / f'{n}.npy'}" for n in ("prediction", "target")]
    prediction, target = (np.load(tmp_path / f"{n}.npy") for n in ("prediction", "target"))
    for dtype in ("float32", "float64"):
        result = report(capsys, *files, "--dtype", dtype)
        assert (result["shape"], result["dtype"]) == ([30, 40], dtype)
        rows = {row["loss"]: row for row in result["losses"]}
        for case in (
            case for case in SIMPLE if case.parameters in ({}, {"beta": 1.0}, {"delta": 1.0})
        ):
            wide = [x.astype(np.longdouble) for x in (prediction, target)]
            expected, row = float(case.value(*wide).mean()), rows.pop(case.name)
            assert row["value"] == pytest.approx(expected, rel=2**-23)
            norm = float(np.linalg.norm(case.slopes(*wide)[0].astype(float))) / target.size
            assert row["gradient_norm"] == pytest.approx(norm, rel=1e-5)
        assert not rows
    assert main(["evaluate", "--backend", "numpy", *files]) == 0
    assert "smooth_l1_loss" in capsys.readouterr().out


def test_evaluate_synthetic(capsys: Any) -> None:
    assert report(capsys, "--elements", "64x32")["shape"] == [64, 32]
    assert report(capsys, "--elements", "100", "--dtype", "float16")["dtype"] == "float16"


def test_evaluate_one_number(capsys: Any, tmp_path: Path) -> None:
    files = []
    for name, number in (("prediction", 3.0), ("target", 1.0)):
        np.save(tmp_path / f"{name}.npy", np.array(number))
        files.append(f"--{name}={tmp_path / f'{name}.npy'}")
    rows = {row["loss"]: row for row in report(capsys, *files)["losses"]}
    assert (rows["mse_loss"]["value"], rows["mse_loss"]["gradient_norm"]) == (4.0, 4.0)
    assert all(row["error"] == row["gradient_error"] == 0 for row in rows.values())


def test_evaluate_sees_errors(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a value and of a gradient, as a kernel that is wrong would have them."""
    monkeypatch.setattr(
        evaluate, "value_and_grad", lambda loss: lambda x, y: (1.25 * loss(x, y), 0 * x)
    )
    for row in report(capsys, "--elements", "20x10")["losses"]:
        assert row["error"] == pytest.approx(0.25, rel=1e-6)
        assert row["gradient_error"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prediction", "missing.npy"], "go together"),
        (["--prediction", "missing.npy", "--target", "missing.npy"], "missing.npy"),
        (["--elements", "3x"], "must look like"),
        (["--elements", "3", "--target", "missing.npy"], "makes its own data"),
    ],
)
def test_evaluate_errors(capsys: Any, arguments: list[str], message: str) -> None:
    assert main(["evaluate", "--backend", "numpy", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_info(capsys: Any) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["cupy_losses"] == cupy_losses.__version__
    assert {"NumPy", "CuPy", "torch", "kernel cache"} <= set(facts)
    assert main(["info"]) == 0
    assert "kernel cache" in capsys.readouterr().out


def test_info_names_what_is_missing(tmp_path: Path) -> None:
    """In a process whose imports of CuPy and torch fail, and whose cache cannot be written."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("cupy", "torch"):
        (blocked / f"{name}.py").write_text("raise ImportError('not here')")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{blocked}{os.pathsep}{PACKAGE.parent}",
        "CUPY_CACHE_DIR": "/proc/cache",
    }
    command = [sys.executable, "-m", "cupy_losses", "info"]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "pip install cupy-losses[cuda12]" in result.stdout
    assert "CUPY_CACHE_DIR" in result.stdout


def run_example(name: str) -> Any:
    return load(PACKAGE.parent / "examples" / f"{name}.py").main()


def load(path: Path) -> Any:
    """A module that is in no package."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_example_train_torch() -> None:
    assert 0 < run_example("train_torch") < 0.1


def test_example_fit_without_torch() -> None:
    assert 0 < run_example("fit_without_torch") < 0.02

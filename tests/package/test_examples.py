"""The examples run, and come to what they promise."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..tools import requirements

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = {"multitask_torch", "transformer_torch"}  # tests/torch/test_training.py runs them

Example = Callable[[str], Any]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """A new copy of an example by its name, imported as a script imports what is beside it."""

    def load(name: str) -> Any:
        # What the examples have at the top: `common`, and their own names.
        for path in EXAMPLES.glob("*.py"):
            monkeypatch.delitem(sys.modules, path.stem, raising=False)
        return importlib.import_module(name)

    monkeypatch.syspath_prepend(str(EXAMPLES))
    return load


def needs(*modules: str) -> None:
    for name in modules:
        requirements.imported(name, "examples")


def test_every_example_is_tested() -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    called = set(re.findall(r'example\("(\w+)"\)', own))
    assert called | ELSEWHERE == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "no/a.png"], "--output: there is no folder no"),
        (["--output", "folder.png"], "--output: folder.png is a folder"),
        (["--output", "a.txt"], "--output must be a .pdf, a .png or a .svg file, got a.txt"),
        ([], "this example needs more packages: pip install scikit-learn no_package"),
    ],
)
def test_what_is_missing_is_said_at_once(
    arguments: list[str],
    message: str,
    example: Example,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Not when all is computed."""
    monkeypatch.chdir(tmp_path)
    Path("folder.png").mkdir()
    monkeypatch.setattr(sys, "argv", ["example", *arguments])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name[:2] != "ma" else name)
    common = example("common")
    with pytest.raises(SystemExit) as stopped:
        common.output("What it does.", "sklearn", "no_package")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_train_torch(example: Example) -> None:
    """The bands are of 80% of the patients."""
    assert 0.7 < example("train_torch").main() < 0.9


def test_robust_regression(example: Example) -> None:
    """Patients differ by 77; what is wrong is ignored but by the squared error."""
    assert example("common").diabetes()[0].features.shape == (294, 11)
    errors = example("robust_regression").main(steps=1000)
    assert errors["squared error"] > 80
    assert 30 < errors["Huber"] < 45
    assert 30 < errors["Tukey"] < 45


def test_quantile_bands(example: Example) -> None:
    below = example("quantile_bands").main(steps=1000)
    for q, part in below.items():
        assert abs(part - q) < 0.08


def test_predictions_on_disk(example: Example) -> None:
    """The gradient of a mean is 2 / N times the error, and no patient is off by more than 300."""
    models = 40
    loss, steepest = example("predictions_on_disk").main(models)
    assert 2000 < loss < 4000
    assert 100 < steepest * models * 442 / 2 < 300


@pytest.mark.exhaustive  # packages of the extra
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_boosted_trees(example: Example) -> None:
    needs("xgboost", "lightgbm")
    difference, below = example("boosted_trees").main()
    assert difference < 1e-5
    assert set(below) == {"XGBoost", "LightGBM"}
    for parts in below.values():
        for q, part in zip((0.1, 0.5, 0.9), parts, strict=True):
            assert abs(part - q) < 0.15


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_segmentation(example: Example) -> None:
    """A guess of the ten digits would be right at a tenth of the pixels."""
    needs("sklearn")
    assert example("segmentation_torch").main(steps=200) > 0.3


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("robust_regression", {"steps": 10}),
        ("quantile_bands", {"steps": 10}),
        ("predictions_on_disk", {"models": 10}),
        ("train_torch", {"steps": 10}),
        ("boosted_trees", {}),
        ("segmentation_torch", {"steps": 1}),
    ],
)
def test_pictures(example: Example, tmp_path: Path, name: str, arguments: dict[str, Any]) -> None:
    needs("matplotlib", "xgboost", "lightgbm", "sklearn")
    file = tmp_path / "picture.png"
    example(name).main(file=str(file), **arguments)
    assert file.read_bytes().startswith(b"\x89PNG")

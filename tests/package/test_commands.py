"""The console script: what its commands print, and one sentence for each mistake of a user."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from rich.progress import Progress

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses.__main__ import main
from cupy_losses._commands import (
    evaluation,
    losses,
    measurement,
    operands,
    progress,
    synthetic,
)
from cupy_losses._commands.files import read
from cupy_losses._commands.report import in_column
from cupy_losses._core.dtypes import numpy_dtype
from cupy_losses._device import driver
from cupy_losses._host import rows

from .. import emulator
from ..tables.losses import SIMPLE
from ..tools import commands, requirements

PACKAGE = Path(cupy_losses.__file__).parent
RNG = np.random.default_rng(0)


def evaluate(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    """The exit code of `evaluate` on NumPy, and what it printed."""
    return commands.run(capsys, "evaluate", *arguments)


def report(capsys: Any, *arguments: str) -> dict[str, Any]:
    """What `evaluate --json` prints."""
    code, out, _ = evaluate(capsys, "--json", *arguments)
    assert code == 0
    return commands.read(out)


def divide(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Compute in parts of a size, and rows in chunks of at most 64 elements."""
    monkeypatch.setattr(evaluation, "PART", size)
    monkeypatch.setattr(rows, "CHUNK", min(size, 64))


def saved(folder: Path, **arrays: Any) -> list[str]:
    """The options for operands that are saved as .npy files."""
    options = []
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        options.append(f"--operand={name}={folder / name}.npy")
    return options


def subprocess_environment(**variables: str) -> dict[str, str]:
    """The variables of this process, with the package to import."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables}


def test_evaluate_real_data(capsys: Any) -> None:
    result = report(capsys)
    assert result["shape"] == [148]
    rows = {row["loss"]: row for row in result["losses"]}
    assert set(rows) == {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
    assert 2000 < rows["mse_loss"]["value"] < 4000  # a fit explains half of a variance of 5900
    for row in rows.values():
        assert row["error"] < 2**-23
        assert row["gradient_error"] < 2**-22
        assert row["forward_ms"] > 0


def test_keys_of_json(capsys: Any) -> None:
    """The page has those of `evaluate` and `info`."""
    page = (PACKAGE.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ", page.split("## The JSON of evaluate")[1], re.MULTILINE)
    shown = re.findall(r"`(\w+)`", " ".join(rows))
    result = report(capsys, "--elements", "3", "--loss", "mse_loss")
    assert shown == [*result, *result["losses"][0]]
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(f"`{key}`" in page for key in found)
    assert {"NumPy", "driver", "kernel cache"} <= set(found["facts"])


def test_evaluate_files(capsys: Any, tmp_path: Path) -> None:
    for name in ("prediction", "target"):
        np.save(tmp_path / f"{name}.npy", RNG.standard_normal((30, 40)).astype(np.float32))
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
    code, out, _ = evaluate(capsys, *files)
    assert code == 0
    assert "smooth_l1_loss" in out


def test_evaluate_synthetic(capsys: Any) -> None:
    assert report(capsys, "--elements", "64x32")["shape"] == [64, 32]
    assert report(capsys, "--elements", "100", "--dtype", "float16")["dtype"] == "float16"


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["cross_entropy", "multilabel_margin_loss"])
def test_evaluate_synthetic_rows_along_an_axis(name: str, axis: int, capsys: Any) -> None:
    arguments = ["--loss", name, "--elements", "50x4x3", "--parameter", f"axis={axis}"]
    assert report(capsys, *arguments)["shape"] == [50, 4, 3]


@pytest.mark.parametrize("name", losses.names())
def test_evaluate_every_loss(name: str, capsys: Any, tmp_path: Path) -> None:
    """On operands that suit it; the gradients are those of the function, by all operands."""
    arguments = ["--loss", name, "--elements", "6x5", "--dtype", "float64"]
    (row,) = report(capsys, *arguments, "--gradient", str(tmp_path / "g.npz"))["losses"]
    assert row["loss"] == name
    assert abs(row["value"]) > 0
    assert row["error"] < 2**-52
    assert row["gradient_error"] < 2**-50
    with np.load(tmp_path / "g.npz") as found:
        gradients = dict(found)
    first = losses.find(name).arrays[0]
    assert row["gradient_norm"] == pytest.approx(float(np.linalg.norm(gradients[first])))


def test_operands_weights_masks_and_parameters(capsys: Any, tmp_path: Path) -> None:
    operands = {name: RNG.uniform(0.5, 2, (7, 3)) for name in ("input", "target", "var", "weight")}
    where = RNG.random((7, 3)) < 0.5
    own = saved(tmp_path, input=operands["input"], var=operands["var"])
    two: dict[str, Any] = {"of:target": operands["target"], "b": operands["weight"]}
    np.savez(tmp_path / "two.npz", **two)
    np.savetxt(tmp_path / "where.csv", where, fmt="%d", delimiter=",")
    own += ["--target", f"{tmp_path}/two.npz:of:target", "--weight", f"{tmp_path}/two.npz:b"]
    own += ["--where", f"{tmp_path}/where.csv", "--loss", "gaussian_nll_loss"]
    own += ["--parameter", "eps=0.75", "--parameter", "full=true", "--parameter", "scale=2"]
    own += ["--reduction", "sum", "--gradient", f"{tmp_path}/g.npy"]
    (row,) = report(capsys, *own)["losses"]
    x, y, v = (operands[name] for name in ("input", "target", "var"))
    keywords: dict[str, Any] = {
        "full": True,
        "eps": 0.75,
        "scale": 2,
        "reduction": "sum",
        "where": where,
    }
    value, gradient = value_and_grad(cupy_losses.gaussian_nll_loss)(
        x, y, v, weight=operands["weight"], **keywords
    )
    assert row["value"] == float(value)
    np.testing.assert_array_equal(np.load(tmp_path / "g.npy"), gradient)


@pytest.mark.parametrize("axis", [-1, 0])
def test_masks_and_weights_of_rows(
    axis: int, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reference is of a part of the rows."""
    divide(monkeypatch, 8)
    logits, classes = RNG.standard_normal((9, 3, 4)), RNG.integers(0, 3, (9, 3))
    classes = classes if axis == -1 else RNG.integers(0, 9, (3, 4))
    where, weight = RNG.random(classes.shape) < 0.7, RNG.random(classes.shape[1:])
    own = saved(tmp_path, input=logits, target=classes)
    np.save(tmp_path / "w.npy", where)
    np.save(tmp_path / "s.npy", weight)
    own += ["--where", f"{tmp_path}/w.npy", "--sample-weight", f"{tmp_path}/s.npy"]
    own += ["--loss", "cross_entropy", "--parameter", f"axis={axis}"]
    (row,) = report(capsys, *own, "--gradient", f"{tmp_path}/g.npy")["losses"]
    value, gradient = value_and_grad(cupy_losses.cross_entropy)(
        logits, classes, where=where, sample_weight=weight, axis=axis
    )
    assert row["value"] == float(value)
    assert row["gradient_error"] < 2**-50
    np.testing.assert_array_equal(np.load(tmp_path / "g.npy"), gradient)


@pytest.mark.parametrize("header", ["", 'counts,"True"\n'])
@pytest.mark.parametrize("words", [("True", "False"), ("true", "false"), ("TRUE", "FALSE")])
def test_masks_of_text(words: tuple[str, str], header: str, capsys: Any, tmp_path: Path) -> None:
    """True and False, as NumPy and pandas write them; as other programs do."""
    x, y = RNG.standard_normal((2, 5, 2))
    where = np.array([[True, False]] * 4 + [[False, True]])
    np.savetxt(tmp_path / "where.csv", np.where(where, *words), fmt="%s", delimiter=",")
    file = tmp_path / "where.csv"
    file.write_text(header + file.read_text())
    assert read("where", str(file)).dtype == bool
    own = [*saved(tmp_path, input=x, target=y), "--where", str(file), "--loss", "mse_loss"]
    (row,) = report(capsys, *own)["losses"]
    assert row["value"] == float(cupy_losses.mse_loss(x, y, where=where))


@pytest.mark.parametrize("ending", ["npy", "csv"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_masks_of_numbers(ending: str, dtype: Any, capsys: Any, tmp_path: Path) -> None:
    """All 0 or 1, of any dtype; else the message says what to write, not what to call."""
    x, y = RNG.standard_normal((2, 5))
    file = f"{tmp_path}/mask.{ending}"
    own = [*saved(tmp_path, input=x, target=y), "--where", file, "--loss", "mse_loss"]
    flags = np.array([1, 0, 0, 1, 1], dtype)
    for factor in (1, 2):
        if ending == "npy":
            np.save(file, factor * flags)
        else:
            np.savetxt(file, factor * flags, fmt="%.1f" if flags.dtype.kind == "f" else "%d")
        if factor == 1:
            (row,) = report(capsys, *own)["losses"]
            assert row["value"] == float(cupy_losses.mse_loss(x, y, where=flags == 1))
    code, _, err = evaluate(capsys, *own)
    two = "2.0" if flags.dtype.kind == "f" else "2"
    assert (code, err) == (1, f"Error: where must hold true and false, or 1 and 0, got {two}\n")


def test_an_empty_field_of_a_mask(capsys: Any, tmp_path: Path) -> None:
    """It is neither true nor false."""
    (tmp_path / "mask.csv").write_text("true,false\n,true\n")
    own = saved(tmp_path, input=np.ones((2, 2)), target=np.zeros((2, 2)))
    code, _, err = evaluate(capsys, *own, "--where", f"{tmp_path}/mask.csv")
    assert code == 1
    assert err.endswith("or 1 and 0, got nan, as an empty field is read\n")


def test_classes_keep_their_dtype(capsys: Any, tmp_path: Path) -> None:
    """Whatever --dtype says, also where they are from a text file."""
    logits, classes = RNG.standard_normal((9, 4)), RNG.integers(0, 4, 9)
    np.savetxt(tmp_path / "classes.csv", classes, fmt="%d", header="class", comments="")
    own = [*saved(tmp_path, input=logits), "--target", f"{tmp_path}/classes.csv"]
    (row,) = report(capsys, *own, "--loss", "cross_entropy", "--dtype", "float32")["losses"]
    expected = cupy_losses.cross_entropy(logits.astype(np.float32), classes)
    assert row["value"] == float(expected)


TABLE = np.array([[1.5, 2.0, -3.0], [0.25, 5.0, 1e-3]])


@pytest.mark.parametrize(
    ("ending", "header"), [("csv", ""), ("csv", "a,b,c\n"), ("npz", ""), ("parquet", "")]
)
def test_formats(ending: str, header: str, capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / f"table.{ending}"
    if ending == "csv":
        lines = [",".join(map(repr, row)) for row in TABLE.tolist()]
        file.write_text(header + "\n".join(lines) + "\n\n")
    elif ending == "npz":
        np.savez(file, only=TABLE)
    else:
        import pyarrow
        from pyarrow import parquet

        columns = dict(zip("abc", TABLE.T, strict=True))
        parquet.write_table(pyarrow.table(columns), file)
    own = saved(tmp_path, target=np.zeros((2, 3)))
    result = report(capsys, "--prediction", str(file), *own, "--loss", "l1_loss")
    assert (result["shape"], result["dtype"]) == ([2, 3], "float64")
    assert result["losses"][0]["value"] == pytest.approx(abs(TABLE).mean(), rel=2**-52)


@pytest.mark.parametrize("power", [63, 64, 100, 2000])
@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_of_any_size(power: int, sign: int, tmp_path: Path) -> None:
    """Those beyond 64 bits are real numbers, under names that look like numbers but are none."""
    number = sign * 2**power
    (tmp_path / "large.csv").write_text(f"_1\n{number - 1}\n{number}\n")
    (_, array) = read("input", f"{tmp_path}/large.csv")
    assert array.dtype.kind in "iuf"
    with np.errstate(over="ignore"):
        assert array == (sign * np.exp2(power) if power < 1024 else sign * np.inf)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a\n1.0\n""\n3\n', [1, math.nan, 3]),
        ("a\n1\n\n3\n\n\n", [1, math.nan, 3]),
        ('1\n""\n', [1, math.nan]),
        ('""\n1\n', [math.nan, 1]),
        ("1,2\n,\n3,\n\n", [[1, 2], [math.nan, math.nan], [3, math.nan]]),
    ],
)
def test_empty_fields_are_nan(text: str, expected: Any, tmp_path: Path) -> None:
    """No row is left out, but blank lines at the end."""
    (tmp_path / "some.csv").write_text(text)
    np.testing.assert_array_equal(read("input", f"{tmp_path}/some.csv"), expected)


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("name,p,t\nann,1.5,2\nbob,,3\n", "p", [1.5, math.nan]),
        ("name,p,t\nann,1.5,2\nbob,,3\n", "t", [2, 3]),
        ("id,2020\n1,5\n2,6\n", "id", [1, 2]),
        ("1,2\n3,4\n", "1", [2, 4]),
        ("p\n1\n2\n", "p", [1, 2]),
    ],
)
def test_a_column_of_a_text(text: str, key: str, expected: Any, tmp_path: Path) -> None:
    """The others may be of text."""
    (tmp_path / "table.csv").write_text(text)
    np.testing.assert_array_equal(read("input", f"{tmp_path}/table.csv:{key}"), expected)


def test_a_column_of_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"name": ["ann", "bob"], "p": [1.0, 2.0], "t": [3, 4]})
    parquet.write_table(table, tmp_path / "table.parquet")
    assert read("input", f"{tmp_path}/table.parquet:t").tolist() == [3, 4]
    with pytest.raises(click.ClickException, match="has no column 'q', it has .*:name, .*:p, .*:t"):
        read("input", f"{tmp_path}/table.parquet:q")


def test_shapes_that_do_not_fit_name_the_columns(capsys: Any, tmp_path: Path) -> None:
    """Of a table that is read as a whole."""
    (tmp_path / "p.csv").write_text("id,p\n1,0.5\n2,1.5\n3,2.5\n")
    own = ["--loss", "mse_loss", *saved(tmp_path, target=np.zeros(3))]
    code, _, err = evaluate(capsys, "--prediction", f"{tmp_path}/p.csv", *own)
    assert code == 1
    assert "does not broadcast with input (3, 2)" in err
    assert err.endswith(f"p.csv has columns: name one of {tmp_path}/p.csv:id, {tmp_path}/p.csv:p\n")
    result = report(capsys, "--prediction", f"{tmp_path}/p.csv:p", *own)
    assert result["losses"][0]["value"] == pytest.approx(8.75 / 3)
    np.save(tmp_path / "q.npy", np.zeros((3, 2)))
    code, _, err = evaluate(capsys, "--prediction", f"{tmp_path}/q.npy", *own)
    assert (code, err.count("columns")) == (1, 0)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cross_entropy", ", and -100 for rows to ignore"),
        ("nll_loss", ", and -100 for rows to ignore"),
        ("multi_margin_loss", ""),
    ],
)
def test_classes_that_are_written_as_fractions(
    name: str, advice: str, capsys: Any, tmp_path: Path
) -> None:
    """As pandas writes them where one is missing; the message has no Python."""
    (tmp_path / "scores.csv").write_text("a,b\n1.5,2.5\n0.5,1.5\n")
    (tmp_path / "classes.csv").write_text("c\n0.0\n1.0\n")
    np.save(tmp_path / "classes.npy", np.ones(2))
    for file in ("classes.csv", "classes.npy"):
        files = "--prediction", f"{tmp_path}/scores.csv", "--target", f"{tmp_path}/{file}"
        code, _, err = evaluate(capsys, "--loss", name, *files)
        assert code == 1
        assert "must have an integer dtype" in err
        assert err.endswith(f": write classes as integers{advice}\n")
        assert "pass" not in err
    own = "--loss", "nll_loss", *files, "--parameter", "ignore_index=-1"
    assert evaluate(capsys, *own)[2].endswith(", and -1 for rows to ignore\n")


def test_several_columns_of_a_table(tmp_path: Path) -> None:
    """Side by side, in the order in which they are named; the name of one may have a comma."""
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "some.csv").write_text('id,a,"b,c",d\n7,1,2.5,3\n8,4,5.5,6\n')
    (tmp_path / "unnamed.csv").write_text("7,1,2\n8,3,4\n")
    table = pyarrow.table({"id": ["x", "y"], "a": [1, 4], "d": [3, 6]})
    parquet.write_table(table, tmp_path / "some.parquet")
    for place, expected in (
        ("some.csv:d,a", [[3, 1], [6, 4]]),
        ("some.csv:b,c", [2.5, 5.5]),
        ("unnamed.csv:1,2", [[1, 2], [3, 4]]),
        ("some.parquet:d,a", [[3, 1], [6, 4]]),
    ):
        assert read("input", f"{tmp_path}/{place}").tolist() == expected
    for place in ("some.csv:a,c", "some.parquet:a,c"):
        with pytest.raises(click.ClickException, match="has no column 'c', it has .*:id, .*:a"):
            read("input", f"{tmp_path}/{place}")


def test_an_index_that_pandas_writes_is_no_data(tmp_path: Path) -> None:
    """`to_csv` gives it no name."""
    (tmp_path / "some.csv").write_text(",p\n0,1.5\n1,2.5\n")
    assert read("input", f"{tmp_path}/some.csv").tolist() == [1.5, 2.5]
    (tmp_path / "some.csv").write_text(",p,q\n0,1.5,1\n1,2.5,2\n")
    assert read("input", f"{tmp_path}/some.csv").tolist() == [[1.5, 1], [2.5, 2]]
    with pytest.raises(click.ClickException, match=r"it has \S*some.csv:p, \S*some.csv:q$"):
        read("input", f"{tmp_path}/some.csv:r")


def test_columns_that_pandas_numbers_have_names(tmp_path: Path) -> None:
    """As it writes a frame of an array, without names."""
    (tmp_path / "some.csv").write_text(",0,1\n0,1.5,1\n1,2.5,2\n")
    assert read("input", f"{tmp_path}/some.csv").tolist() == [[1.5, 1], [2.5, 2]]
    assert read("input", f"{tmp_path}/some.csv:0").tolist() == [1.5, 2.5]
    (tmp_path / "some.csv").write_text(",0,2\n0,1.5,1\n")
    assert read("input", f"{tmp_path}/some.csv").shape == (2, 3)


def test_an_index_that_pandas_stores_is_no_data(tmp_path: Path) -> None:
    """As `pandas.read_parquet` has it: a column by name, or a range, which is none."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"p": [1.0, 2.0], "__index_level_0__": [0, 2]})
    for index in (["__index_level_0__"], [{"kind": "range", "start": 0, "stop": 2, "step": 1}]):
        own = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": index})})
        parquet.write_table(own, tmp_path / "some.parquet")
        found = read("input", f"{tmp_path}/some.parquet")
        assert found.tolist() == ([1, 2] if isinstance(index[0], str) else [[1, 0], [2, 2]])


def test_parquet_by_pandas(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    """Where there is no pyarrow; and where pandas is not there, or has nothing to read it with."""
    (tmp_path / "one.parquet").write_text("what a stand-in reads")
    own = ["--prediction", f"{tmp_path}/one.parquet", *saved(tmp_path, target=np.zeros(2))]
    for name in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = evaluate(capsys, *own)
    assert code == 1
    assert err.endswith("one.parquet needs pyarrow: pip install pyarrow\n")
    for error, message in (
        (ImportError("Unable to find a usable engine"), "needs pyarrow: pip install pyarrow"),
        (KeyError("schema"), "is no Parquet file that pandas can read"),
        (OSError("Couldn't deserialize thrift"), "is no Parquet file that pandas can read"),
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
    ):

        def fail(file: str, error: Exception = error) -> Any:
            raise error

        monkeypatch.setitem(sys.modules, "pandas", stand_in := type(sys)("pandas"))
        vars(stand_in)["read_parquet"] = fail
        code, _, err = evaluate(capsys, *own)
        assert (code, err) == (1, f"Error: input: {tmp_path}/one.parquet {message}\n")
    frame = type("Frame", (dict,), {})(column=np.array([2.0, 4.0]))
    frame["column"] = type("Series", (), {"to_numpy": lambda self: np.array([2.0, 4.0])})()
    stand_in = type(sys)("pandas")
    vars(stand_in)["read_parquet"] = lambda file: frame
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    assert report(capsys, *own, "--loss", "l1_loss")["losses"][0]["value"] == 3


@pytest.mark.parametrize("name", ["huber_loss", "cross_entropy"])
def test_evaluate_on_a_device(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    """An emulated one, that has no events to take the time with."""
    emulator.require()
    target = RNG.integers(0, 7, 9) if name == "cross_entropy" else RNG.random((9, 7))
    x = RNG.standard_normal((9, 7)).astype(np.float32)
    own = [*saved(tmp_path, input=x, target=target), "--loss", name]
    own += ["--gradient", f"{tmp_path}/g.npy", "--dtype", "float32"]
    monkeypatch.setattr(measurement, "by_events", measurement._on_host)
    with emulator.installed(seed=1) as device:
        monkeypatch.setattr(
            "cupy_losses._commands.backends.choose", lambda wanted: (device, "it", "so")
        )
        result = report(capsys, *own)
    assert result["backend"] == "it"
    assert device.launches
    (row,) = result["losses"]
    assert row["error"] < 2**-23
    assert row["gradient_error"] < 2**-21
    found = np.load(tmp_path / "g.npy")
    assert row["gradient_norm"] == pytest.approx(float(np.linalg.norm(found)))


def test_evaluate_one_number(capsys: Any, tmp_path: Path) -> None:
    own = saved(tmp_path, input=np.array(3.0), target=np.array(1.0))
    rows = {row["loss"]: row for row in report(capsys, *own)["losses"]}
    assert (rows["mse_loss"]["value"], rows["mse_loss"]["gradient_norm"]) == (4.0, 4.0)
    assert all(row["error"] == row["gradient_error"] == 0 for row in rows.values())


def test_evaluate_sees_errors(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a value and of a gradient, as a kernel that is wrong would have them."""
    plain_value, plain_gradient = evaluation.EvaluatedLoss.value, evaluation.EvaluatedLoss.gradient

    def gradient(self: Any) -> Any:
        for place, array in plain_gradient(self):
            yield place, 0 * array

    monkeypatch.setattr(evaluation.EvaluatedLoss, "value", lambda self: 1.25 * plain_value(self))
    monkeypatch.setattr(evaluation.EvaluatedLoss, "gradient", gradient)
    for row in report(capsys, "--elements", "20x10")["losses"]:
        assert row["error"] == pytest.approx(0.25, rel=1e-6)
        assert row["gradient_error"] == 1


@pytest.mark.parametrize("elements", ["10x21", "1x300", "3x100x5", "8x8x9"])
@pytest.mark.parametrize("name", losses.names())
def test_parts_have_the_bits_of_one_piece(
    name: str, elements: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loss and all gradients, also where the rows do not fill the last part."""
    found = []
    for part in (64, 200, 1 << 20):
        divide(monkeypatch, part)
        own = ["--loss", name, "--elements", elements, "--gradient", f"{tmp_path}/g.npz"]
        (row,) = report(capsys, *own)["losses"]
        with np.load(tmp_path / "g.npz") as arrays:
            found.append((row["value"], {key: arrays[key].tobytes() for key in arrays}))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("name", "shape", "axis", "count"),
    [
        ("mse_loss", (1, 2000), None, 32),
        ("mse_loss", (33, 21), None, 11),
        ("cross_entropy", (33, 21), 1, 11),
        ("cross_entropy", (33, 2, 8), 1, 9),
        ("cross_entropy", (21, 33), 0, 11),
        ("cross_entropy", (3, 200), 1, 3),
        ("cross_entropy", (1, 2000), 1, 1),
    ],
)
def test_parts_are_small(
    name: str, shape: tuple[int, ...], axis: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the axes; a row is not divided."""
    divide(monkeypatch, 64)
    function = losses.find(name)
    described = synthetic.described(function.loss, shape, "float32", axis)
    drawn = synthetic.drawn([*described.values()], np)
    arguments = {"reduction": "mean"} if axis is None else {"reduction": "mean", "axis": axis}
    own = evaluation.EvaluatedLoss(function, dict(zip(described, drawn, strict=True)), arguments)
    gradients = [gradient for _, gradient in own.gradient()]
    assert len(gradients) == len(own.parts()) == count
    row = 64 if axis is None else max(64, shape[axis])
    assert max(gradient.size for gradient in gradients) <= row
    assert sum(gradient.size for gradient in gradients) == math.prod(shape)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["smooth_l1_loss", "multilabel_soft_margin_loss", "kl_div"])
def test_parts_of_operands_that_are_broadcast(
    name: str, reduction: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A gradient that is written while its operands are read, a few rows at a time."""
    monkeypatch.setattr(evaluation, "PART", 64)
    function = getattr(cupy_losses, name)
    x, y = RNG.random((2, 33, 21)).astype(np.float32)
    weight, where = RNG.random(21).astype(np.float32), RNG.random((33, 1)) < 0.7
    own = saved(tmp_path, input=x, target=y, weight=weight, where=where)
    own += ["--loss", name, "--reduction", reduction]
    for ending in ("npy", "npz"):
        (row,) = report(capsys, *own, "--gradient", f"{tmp_path}/g.{ending}")["losses"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, of_one_piece = value_and_grad(function, (0, 1))(
            x, y, weight=weight, where=where, reduction=reduction
        )
    assert row["value"] == float(value)
    np.testing.assert_array_equal(np.load(tmp_path / "g.npy"), of_one_piece[0])
    with np.load(tmp_path / "g.npz") as found:
        for name, expected in zip(("input", "target"), of_one_piece, strict=True):
            np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("name", ["input", "weight"])
def test_a_gradient_never_takes_the_place_of_an_operand(
    name: str, ending: str, capsys: Any, tmp_path: Path
) -> None:
    """Whose file it is by a link."""
    own = saved(tmp_path, input=np.ones(3), target=np.zeros(3))
    (np.save if ending == "npy" else np.savez)(tmp_path / f"x.{ending}", np.ones(3))
    key = "" if ending == "npy" else ":arr_0"
    own += [f"--operand={name}={tmp_path}/x.{ending}{key}"]
    own = own[1:] if name == "input" else own
    before = (tmp_path / f"x.{ending}").read_bytes()
    (tmp_path / f"g.{ending}").symlink_to(tmp_path / f"x.{ending}")
    code, _, err = evaluate(
        capsys, *own, "--loss", "mse_loss", "--gradient", f"{tmp_path}/g.{ending}"
    )
    message = f"--gradient {tmp_path}/g.{ending} would overwrite the operand {tmp_path}/x.{ending}"
    assert code == 2
    assert message in err
    assert (tmp_path / f"x.{ending}").read_bytes() == before


def test_a_file_of_one_gradient_is_of_the_first_operand(capsys: Any, tmp_path: Path) -> None:
    """Where that has none, no other takes its place."""
    x = np.linspace(0.1, 0.9, 12)
    own = ["--loss", "mse_loss", *saved(tmp_path, input=x > 0.5, target=x)]
    code, _, err = evaluate(capsys, *own, "--gradient", f"{tmp_path}/g.npy")
    assert code == 1
    assert "is by input, by which there is no gradient: save those by the other operands to" in err
    assert not (tmp_path / "g.npy").exists()
    report(capsys, *own, "--gradient", f"{tmp_path}/g.npz")
    with np.load(tmp_path / "g.npz") as gradients:
        assert gradients.files == ["target"]


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("part", [64, 1 << 20])
def test_a_failure_leaves_the_file_of_a_gradient(
    ending: str, part: int, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is what it was before, and no other file is left beside it."""
    divide(monkeypatch, part)
    x, y = RNG.random((2, 33, 21))
    own = saved(tmp_path, input=x, target=y)
    (tmp_path / f"g.{ending}").write_text("as before")
    before = sorted(tmp_path.iterdir())
    own += ["--loss", "mse_loss", "--gradient", f"{tmp_path}/g.{ending}"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))  # as a disk that is full
    try:
        code, _, err = evaluate(capsys, *own)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, err[:6]) == (1, "Error:")
    assert (tmp_path / f"g.{ending}").read_text() == "as before"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("what", ["gradient", "dtype"])
def test_a_full_disk_is_an_error(
    what: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ahead of a mapping: a write through one without room on the disk ends the process."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    divide(monkeypatch, 64)
    monkeypatch.setattr(os, "posix_fallocate", full)
    x, y = RNG.random((2, 33, 21))
    own = [*saved(tmp_path, input=x, target=y), "--loss", "mse_loss"]
    gradient = f"{tmp_path}/g.npy"
    more = {"gradient": ["--gradient", gradient], "dtype": ["--dtype", "float32"]}
    named = {"gradient": gradient, "dtype": tempfile.gettempdir()}
    before = sorted(tmp_path.iterdir())
    code, _, err = evaluate(capsys, *own, *more[what])
    assert (code, err) == (1, f"Error: {named[what]}: No space left on device\n")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [1e-180, 1e180])
def test_the_norm_of_a_gradient_whose_squares_are_out_of_range(
    size: float, capsys: Any, tmp_path: Path
) -> None:
    own = saved(tmp_path, input=np.array([3.0, -4.0]), target=np.zeros(2), weight=[size] * 2)
    (row,) = report(capsys, *own, "--loss", "l1_loss", "--reduction", "sum")["losses"]
    assert row["gradient_norm"] == pytest.approx(math.sqrt(2) * size, abs=0)


def test_parquet_of_flags_with_nulls(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"m": [True, None, False]}), tmp_path / "m.parquet")
    np.testing.assert_array_equal(read("where", f"{tmp_path}/m.parquet"), [1.0, math.nan, 0.0])
    parquet.write_table(pyarrow.table({"m": ["a", "b"]}), tmp_path / "m.parquet")
    with pytest.raises(click.ClickException, match="has no numbers in its column 'm'$"):
        read("where", f"{tmp_path}/m.parquet")
    parquet.write_table(pyarrow.table({"name": ["a"], "p": [1.0]}), tmp_path / "m.parquet")
    with pytest.raises(click.ClickException, match="has no numbers in its column 'name'$"):
        read("where", f"{tmp_path}/m.parquet:p,name")
    twice = pyarrow.table([pyarrow.array([1.0]), pyarrow.array([2.0])], names=["a", "a"])
    parquet.write_table(twice, tmp_path / "m.parquet")
    with pytest.raises(click.ClickException, match="has several columns 'a'$"):
        read("where", f"{tmp_path}/m.parquet")


def test_a_folder_has_the_name_of_a_gradient(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "g.npy").mkdir()
    code, _, err = evaluate(capsys, "--loss", "mse_loss", "--gradient", f"{tmp_path}/g.npy")
    assert (code, err) == (1, f"Error: {tmp_path}/g.npy: Is a directory\n")


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_a_gradient_that_cannot_be_written(ending: str, capsys: Any) -> None:
    """Its name is the one that the user gave."""
    code, _, err = evaluate(capsys, "--loss", "mse_loss", "--gradient", f"/proc/g.{ending}")
    assert (code, err) == (1, f"Error: /proc/g.{ending}: No such file or directory\n")


@pytest.mark.parametrize("shape", [(), (3, 5)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_file_in_another_dtype(
    shape: tuple[int, ...], dtype: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Is converted in parts, to another file; an array that is not mapped is not."""
    monkeypatch.setattr(operands, "PART", 4)
    x, y, flags = RNG.random(shape), RNG.random(shape), RNG.integers(0, 2, shape)
    own = [*saved(tmp_path, input=x, target=y, where=flags), "--loss", "l1_loss", "--reduction=sum"]
    (row,) = report(capsys, *own, "--dtype", dtype)["losses"]
    wide = [array.astype(numpy_dtype(dtype)).astype(float) for array in (x, y)]
    assert row["value"] == pytest.approx(abs(wide[0] - wide[1])[flags == 1].sum(), rel=2**-8)
    assert row["error"] < 2**-8


LARGE = 1 << 27  # elements


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mse_loss", (1 << 14, 1 << 13), "--gradient g.npy"),
        ("mse_loss", (1, LARGE), ""),
        ("l1_loss", (2, LARGE // 2), "--dtype bfloat16"),
        ("hinge_loss", (LARGE,), "--gradient g.npz"),
        ("cross_entropy", (1 << 12, 1 << 15), "--gradient g.npy"),
    ],
)
def test_files_larger_than_memory(
    name: str, shape: tuple[int, ...], options: str, tmp_path: Path
) -> None:
    """Files of 0.5 GiB and a gradient of as much, by a process that may have 0.4 GiB."""
    described = synthetic.described(losses.find(name).loss, shape, "float32")
    own = []
    for operand, (dtype, of_operand, _) in described.items():
        np.lib.format.open_memmap(tmp_path / f"{operand}.npy", "w+", dtype, of_operand)
        own.append(f"--operand={operand}={operand}.npy")
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))\n"
        "from cupy_losses.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = f"evaluate --loss {name} {options} --backend numpy --json".split()
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments, *own],
        cwd=tmp_path,
        env=subprocess_environment(
            OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TMPDIR=str(tmp_path)
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    expected = {"cross_entropy": math.log(shape[-1]), "hinge_loss": 1.0}.get(name, 0.0)
    value = json.loads(result.stdout)["losses"][0]["value"]
    assert value == pytest.approx(expected, rel=1e-6)
    if "npy" in options:
        assert np.load(tmp_path / "g.npy", mmap_mode="r").shape == shape


@pytest.mark.parametrize(("size", "parts"), [(1 << 20, None), (64, 11)])
def test_progress(
    size: int, parts: int | None, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bar of the parts of a gradient, each time that it is computed; on a terminal alone."""
    divide(monkeypatch, size)
    begun: list[tuple[str, int | None]] = []
    done: list[str] = []

    plain = progress.Line.say

    def say(self: Any, text: str, parts: int | None = None) -> None:
        begun.append((text, parts))
        plain(self, text, parts)

    monkeypatch.setattr(progress.Line, "say", say)
    monkeypatch.setattr(Progress, "advance", lambda self, task: done.append(begun[-1][0]))
    own = ["--loss", "mse_loss", "--elements", "33x21", "--gradient", f"{tmp_path}/g.npy"]
    code, _, err = evaluate(capsys, *own)
    assert (code, err) == (0, "")
    texts = ("mse_loss: gradient", "mse_loss: time of the gradient", "gradient by input, saved")
    assert ("mse_loss: loss", None) in begun
    for text in texts:
        times = begun.count((text, parts))
        assert parts is None or times > 0
        assert done.count(text) == times * (parts or 0)


def test_nan_is_no_number(capsys: Any, tmp_path: Path) -> None:
    """It is in no error that looks like a good one, and in no JSON."""
    own = saved(tmp_path, input=np.array([1.0, math.nan]), target=np.zeros(2))
    for row in report(capsys, *own)["losses"]:
        assert row["value"] == row["error"] == row["gradient_error"] == "NaN"
    _, out, err = evaluate(capsys, *own)
    assert "nan" in out
    assert "Warning: input has 1 NaN in 2 elements" in err
    own = saved(tmp_path, input=np.array([math.inf, math.nan]), target=np.full(2, math.inf))
    _, _, err = evaluate(capsys, *own)
    assert "Warning: input has 1 NaN and 1 infinity in 2 elements" in err
    assert "Warning: target has 2 infinities in 2 elements" in err


OUT_OF_RANGE: dict[str, tuple[Any, Any, str]] = {
    "cross_entropy": (np.ones((3, 4)), np.array([1, 7, 9]), "target must be in [0, 3] or -100, "),
    "binary_cross_entropy": (np.array([0.5, 1.5]), np.ones(2), "input must be in [0, 1], but "),
    "hinge_loss": (np.ones(2), np.array([-1, 0.0]), "target must be -1 or 1, but target[1] is 0"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_values_out_of_range_are_named(name: str, capsys: Any, tmp_path: Path) -> None:
    x, target, message = OUT_OF_RANGE[name]
    own = [*saved(tmp_path, input=x, target=target), "--loss", name]
    code, _, err = evaluate(capsys, *own)
    (line,) = err.splitlines()
    assert code == 0
    assert line.startswith(f"Warning: {message}")


def test_infinity_is_no_number(capsys: Any, tmp_path: Path) -> None:
    own = saved(tmp_path, input=np.full(2, 60000, np.float16), target=np.zeros(2, np.float16))
    (row,) = report(capsys, *own, "--loss", "mse_loss")["losses"]
    assert row["value"] == row["error"] == "Infinity"


def test_infinity_that_is_right_is_no_error(capsys: Any, tmp_path: Path) -> None:
    """A loss that is infinite in float64 too, and the infinite elements of its gradient."""
    own = saved(tmp_path, input=np.array([1.0, math.inf]), target=np.zeros(2))
    for row in report(capsys, *own)["losses"]:
        assert (row["value"], row["error"], row["gradient_error"]) == ("Infinity", 0.0, 0.0)


def test_an_error_beside_infinity_is_seen(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = evaluation.EvaluatedLoss.gradient

    def gradient(self: Any) -> Any:
        return ((place, array * [1.0, 1.5]) for place, array in plain(self))

    monkeypatch.setattr(evaluation.EvaluatedLoss, "gradient", gradient)
    own = saved(tmp_path, input=np.array([math.inf, 1.0]), target=np.zeros(2))
    (row,) = report(capsys, *own, "--loss", "mse_loss")["losses"]
    assert row["gradient_error"] == 0.5


@pytest.mark.parametrize("dtype", [">f4", "<f4"])
def test_a_dtype_of_another_byte_order_has_its_name(
    dtype: str, capsys: Any, tmp_path: Path
) -> None:
    own = saved(tmp_path, input=np.ones(2, dtype), target=np.zeros(2, dtype))
    assert report(capsys, *own, "--loss", "mse_loss")["dtype"] == "float32"


def test_warnings_show_no_code(capsys: Any, tmp_path: Path) -> None:
    own = saved(tmp_path, input=np.ones((2, 3)), target=np.ones((2, 1)))
    code, _, err = evaluate(capsys, *own, "--loss", "mse_loss")
    assert code == 0
    (line,) = err.splitlines()
    assert line.startswith("Warning: target of shape (2, 1) is broadcast with input")


def header_of(shape: str) -> bytes:
    """A .npy file of float64 without its elements, whose header has a shape."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(members: dict[str, Any], damage: slice = slice(0), is_encrypted: bool = False) -> bytes:
    """A zip file of members: bytes, or arrays as .npy files."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            own = io.BytesIO()
            if isinstance(content, bytes):
                own.write(content)
            else:
                np.save(own, content)
            file.writestr(name, own.getvalue())
    found = bytearray(memory.getvalue())
    found[damage] = b"\xff" * len(found[damage])
    if is_encrypted:
        found[found.index(b"PK\x03\x04") + 6] |= 1
        found[found.index(b"PK\x01\x02") + 8] |= 1
    return bytes(found)


FILES: dict[str, Any] = {
    "empty.npy": b"",
    "damaged.npy": b"\x93NUMPY\x01\x00",
    "text.npz": b"hello",
    "empty.csv": b"",
    "ragged.csv": b"1,2\n3\n",
    "words.csv": b"1,2\n3,four\n",
    "blank.csv": b"1,2\n\n3,4\n",
    "text.csv": b"name,p\none,1\n",
    "semicolons.csv": b"a;b\n1.5;2\n",
    "tabs.csv": b"1.5\t2\n3\t4\n",
    "missing.csv": b"1,2\nNA,4\n",
    "first.csv": b"N/A\n3\n4\n",
    "underscore.csv": b"1_000,2\n3,4\n",
    "underscores.csv": b"1_000,2_000.5\n3,4\n",
    "binary.csv": bytes(range(256)),
    "text.parquet": b"hello",
    "none.npy": np.zeros((0, 3)),
    "bfloat16.npy": np.ones(3, numpy_dtype("bfloat16")),
    "words.npy": np.array(["one", "two"]),
    "objects.npy": np.array([1, None], object),
    "several.npz": {"p": np.ones(3), "q": np.ones(3)},
    "objects.npz": {"p": np.array([1, None], object)},
    "named.csv": b"p,q\n1,2\n",
    "twice.csv": b"p,p\n1,2\n",
    "unnamed.csv": b"1,2\n",
    "header.npy": b"\x93NUMPY\x01\x00\x20\x00{'descr': '<f8', 'fortran_order'",
    "huge.npy": header_of("(99999999999999999999, 3)"),
    "nothing.npz": {},
    "bytes.npz": zipped({"readme.txt": b"hello"}),
    "stored.npz": zipped({"p.npy": b"\x93NUMPY\x01\x00"}),
    "deflated.npz": zipped({"p.npy": np.arange(4000.0)}, damage=slice(60, 75)),
    "encrypted.npz": zipped({"p.npy": np.arange(4.0)}, is_encrypted=True),
}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("empty.npy", "empty.npy holds no array as numpy.save writes it"),
        ("damaged.npy", "damaged.npy is cut off or damaged"),
        ("text.npz", "text.npz holds no arrays as numpy.savez writes them"),
        ("empty.csv", "empty.csv of shape (0,) has no elements"),
        ("empty.csv:p", "empty.csv is empty"),
        ("ragged.csv", "ragged.csv line 2 has 1 fields, the first of numbers 2"),
        ("words.csv", "line 2 must hold numbers separated by commas, got 'four'"),
        ("text.csv", "commas, got 'one'; name a column: text.csv:name, text.csv:p"),
        ("text.csv:name", "line 2 must hold numbers separated by commas, got 'one'"),
        ("words.parquet", "column 'name'; name a column: words.parquet:name, words.parquet:p"),
        ("words.parquet:name", "words.parquet has no numbers in its column 'name'"),
        ("blank.csv", "blank.csv line 2 is blank"),
        ("semicolons.csv", "line 2 must hold numbers separated by commas, got '1.5;2'"),
        ("tabs.csv", "line 2 must hold numbers separated by commas, got '3\\t4'"),
        ("underscore.csv", "line 1 must hold numbers separated by commas, got '1_000'"),
        ("underscores.csv", "line 1 must hold numbers separated by commas, got '1_000'"),
        ("binary.csv", "binary.csv is no text of comma-separated values in UTF-8"),
        ("text.parquet", "text.parquet is no Parquet file that pyarrow can read"),
        ("none.npy", "none.npy of shape (0, 3) has no elements"),
        ("bfloat16.npy", "got dtype void16, which may be bfloat16: save it as float32"),
        ("words.npy", "words.npy must hold numbers, got text"),
        ("objects.npy", "objects.npy must hold numbers, got Python objects"),
        ("objects.npz", "objects.npz must hold numbers, got Python objects"),
        ("header.npy", "header.npy is cut off or damaged"),
        ("huge.npy", "huge.npy is cut off or damaged"),
        ("nothing.npz", "nothing.npz has no arrays"),
        ("bytes.npz", "bytes.npz holds no array as numpy.savez writes them, but readme.txt"),
        ("stored.npz", "stored.npz is cut off or damaged"),
        ("deflated.npz", "deflated.npz is cut off or damaged"),
        (
            "encrypted.npz",
            "encrypted.npz cannot be read: File 'p.npy' is encrypted, password required for "
            "extraction",
        ),
        ("several.npz", "has several arrays, name one: several.npz:p, several.npz:q"),
        ("several.npz:r", "has no array 'r', it has several.npz:p, several.npz:q"),
        ("named.csv:r", "named.csv has no column 'r', it has named.csv:p, named.csv:q"),
        ("twice.csv:p", "twice.csv has several columns 'p', it has twice.csv:p, twice.csv:p"),
        ("unnamed.csv:p", "unnamed.csv has no column 'p', it has unnamed.csv:0, unnamed.csv:1"),
        ("missing.npy", "there is no file missing.npy"),
        ("folder.npy", "folder.npy cannot be read: Is a directory"),
        ("fifo.npy", "fifo.npy is no regular file"),
        ("missing.csv", "commas, got 'NA'; leave a missing number empty"),
        (
            "first.csv",
            "first.csv line 1 must hold numbers separated by commas, got 'N/A'; leave a "
            "missing number empty",
        ),
        (
            "semicolons.csv:a",
            "no column 'a', it has semicolons.csv:a;b; columns are separated by commas",
        ),
        ("none.npy:p", "none.npy holds one array, which has no name: none.npy:p"),
        ("/dev/null", "the name of /dev/null must end in .npy, .npz, .csv or .parquet"),
    ],
)
def test_files_that_are_no_operands(
    file: str, message: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo("fifo.npy")
    content = FILES.get(file.partition(":")[0])
    if isinstance(content, bytes):
        Path(file.partition(":")[0]).write_bytes(content)
    elif isinstance(content, dict):
        np.savez(file.partition(":")[0], **content)
    elif content is not None:
        np.save(file, content)
    elif file.startswith("words.parquet"):
        from pyarrow import parquet, table

        parquet.write_table(table({"name": ["one"], "p": [1.0]}), "words.parquet")
    code, out, err = evaluate(capsys, "--prediction", file, *saved(tmp_path, target=np.ones(3)))
    assert (code, out) == (1, "")
    assert err.startswith("Error: input: ")
    assert err.endswith(f"{message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--prediction missing.npy", "mse_loss needs more operands: --target FILE"),
        ("--elements 3x", "must be lengths of at least 1, such as 32768x32768, got '3x'"),
        ("--elements 0", "must be lengths of at least 1, such as 32768x32768, got '0'"),
        ("--elements 4x-1", "must be lengths of at least 1"),
        ("--elements=", "must be lengths of at least 1"),
        (f"--elements 1{'x1' * 69}", "--elements has 70 lengths, more than an array has axes"),
        ("--prediction= --target t.npy", "the operand input has no file name"),
        ("--operand input= --target t.npy", "the operand input has no file name"),
        ("--elements 9999999x9999999", "--elements asks for 7.45e+05 GiB, this machine has"),
        ("--elements 999999999999999999", "--elements asks for 7.45e+09 GiB"),
        ("--elements 3 --target missing.npy", "--elements makes its own operands"),
        ("--dtype int3", "'int3' is not one of 'float16', 'bfloat16', 'float32', 'float64'"),
        ("--loss no_loss", "'no_loss' is not one of"),
        ("--loss mse", "Did you mean mse_loss?"),
        ("--loss MSELoss", "Did you mean mse_loss?"),
        ("--loss crossentropy", "Did you mean cross_entropy?"),
        ("--loss cross_entropy", "cross_entropy needs operands: --prediction FILE --target FILE"),
        ("--loss mse_loss --elements 3x3 --sample-weight w.npy", "has no operand sample_weight"),
        ("--loss huber_loss --parameter delta", "must look like NAME=VALUE, got 'delta'"),
        ("--loss huber_loss --parameter beta=1", "has no parameter 'beta': it has scale, delta"),
        ("--loss huber_loss --parameter delta=1 --parameter delta=2", "delta is given twice"),
        ("--loss huber_loss --delta 2", "no option --delta: write --parameter delta=VALUE"),
        ("--loss nll_loss --ignore-index 2", "write --parameter ignore_index=VALUE"),
        ("--parameter reduction=sum", "reduction is no parameter, but the option --reduction"),
        ("--parameter weight=2", "weight is no parameter, but the option --weight"),
        ("--loss huber_loss --parameter delta=-1", "delta must be > 0"),
        ("--loss huber_loss --parameter delta=x", "delta must be a real number, got 'x'"),
        ("--loss huber_loss --parameter delta=1_0", "delta must be a real number, got '1_0'"),
        ("--reduction batchmean", "--reduction must be 'mean' or 'sum' for mse_loss"),
        ("--operand input", "must look like NAME=FILE, got 'input'"),
        ("--prediction a.npy --prediction b.npy", "the option --prediction is given twice"),
        ("--reduction sum --reduction sum", "the option --reduction is given twice"),
        ("--prediction a.npy --operand input=b.npy", "the operand input is given twice"),
        ("--gradient g.npy", "--gradient is of one loss: choose it by --loss"),
        ("--loss mse_loss --gradient=", "must be a .npy or a .npz file, got "),
        ("--loss mse_loss --gradient g.txt", "must be a .npy or a .npz file, got g.txt"),
        ("--loss mse_loss --gradient no/g.npy", "--gradient: there is no folder no"),
        ("--no-option", "--no-option"),
        ("mse_loss", "Got unexpected extra argument (mse_loss): write --loss mse_loss"),
        ("something", "Got unexpected extra argument (something)"),
    ],
)
def test_wrong_arguments(arguments: str, message: str, capsys: Any) -> None:
    code, out, err = evaluate(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_nothing_is_said_of_what_was_not_computed(capsys: Any) -> None:
    """A warning of `kl_div` would be the last line, behind the mistake."""
    code, _, err = evaluate(capsys, "--loss", "kl_div")
    assert code == 2
    assert err.endswith(
        "kl_div needs operands: --prediction FILE --target FILE; or --elements SHAPE\n"
    )


def test_columns_that_pandas_numbers_without_an_index(tmp_path: Path) -> None:
    """Numbers of columns are their names, unless the other lines may be of the same kind."""
    for text, expected, key in (
        ("0,1\n1.5,2.0\n2.5,\n", [[1.5, 2.0], [2.5, np.nan]], ""),
        ("0,1\n1.5,2.0\n2.5,3.0\n", [2.0, 3.0], ":1"),
        ("0,1\n1.5,2\n", [[0.0, 1.0], [1.5, 2.0]], ""),
        ("2019,2020\n1.5,2.0\n", [2.0], ":2020"),
        ("0\n1\n2\n", [0, 1, 2], ""),
    ):
        (tmp_path / "some.csv").write_text(text)
        array = read("input", f"{tmp_path / 'some.csv'}{key}")
        np.testing.assert_array_equal(array, expected)
    (tmp_path / "some.csv").write_text("0\n1.5\n")
    with pytest.warns(UserWarning, match="write the file with header=False"):
        np.testing.assert_array_equal(read("input", str(tmp_path / "some.csv")), [0.0, 1.5])


@pytest.mark.usefixtures("forgotten")
def test_no_cupy(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be installed is what `info` says."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["evaluate"]) == 0
    line = "backend: NumPy (CuPy is not installed: cupy-losses info says what to install)\n"
    assert line in capsys.readouterr().out


def test_every_command_is_listed(capsys: Any) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "..." not in printed.partition("Commands:")[2]
    for name in ("accelerate", "bench", "compile", "evaluate", "info", "plot"):
        assert f"\n  {name} " in printed


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([0.0411, 12.5, 0.0], ["0.0411", "12.5000", "0.0000"]),
        ([2891.92773, 43.4284], ["2891.93", "43.43"]),
        ([2.0], ["2.000"]),
        ([1e-9, 1.0], ["1e-09", "1"]),
        ([math.nan, 1.5, math.inf], ["nan", "1.500", "inf"]),
        ([0.0], ["0"]),
        ([3e38, 2.5], ["3e+38", "2.5"]),
        ([1.5e-38], ["1.5e-38"]),
    ],
)
def test_numbers_in_a_column(numbers: list[float], texts: list[str]) -> None:
    """They align, unless they differ too much."""
    assert in_column(numbers) == texts


def test_no_driver(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA says of a driver that is not there is what it says of an old one."""

    def fail() -> Any:
        raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    monkeypatch.setattr(driver, "cupy", fail)
    assert main(["evaluate", "--backend", "cupy"]) == 1
    why = "there is no NVIDIA driver, or it is too old for the CUDA of CuPy"
    assert capsys.readouterr().err == f"Error: no CuPy on a GPU: {why}\n"
    assert main(["evaluate"]) == 0
    assert f"backend: NumPy (no GPU: {why})" in capsys.readouterr().out


def test_data_that_does_not_fit(capsys: Any, tmp_path: Path) -> None:
    own = saved(tmp_path, input=np.ones((2, 3)), target=np.ones(2))
    code, out, err = evaluate(capsys, *own)
    assert (code, out) == (1, "")
    assert err == "Error: target of shape (2,) does not broadcast with input (2, 3)\n"


def test_memory_that_is_not_there(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr("cupy_losses._commands.evaluate.measured", fail)
    code, _, err = evaluate(capsys)
    assert (code, err) == (1, "Error: not enough memory: Unable to allocate 3 TiB\n")


@pytest.mark.parametrize("command", ["evaluate", "evaluate --json"])
def test_a_reader_that_has_enough(command: str) -> None:
    """As `head` is: what is left to print is no error."""
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-m", "cupy_losses", *command.split()],
        env=subprocess_environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_an_encoding_without_a_character() -> None:
    arguments = "evaluate --elements 3x4 --loss mse_loss"
    result = run(subprocess_environment(PYTHONIOENCODING="cp1251"), Path(), arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert "3x4: 3 ? 4, float32" in result.stdout


def test_a_closed_output() -> None:
    command = f"{sys.executable} -m cupy_losses evaluate --elements 3x4 --loss mse_loss >&-"
    result = subprocess.run(
        ["sh", "-c", command],
        env=subprocess_environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def without(folder: Path, *names: str) -> dict[str, str]:
    """The variables of a process that has no packages of these names."""
    for name in names:
        text = f"raise ModuleNotFoundError('No module named {name}', name={name!r})"
        (folder / f"{name}.py").write_text(text)
    return subprocess_environment(PYTHONPATH=f"{folder}{os.pathsep}{PACKAGE.parent}")


def run(environment: dict[str, str], folder: Path, arguments: str) -> Any:
    """The console script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cupy_losses", *arguments.split()],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_interrupted(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cupy_losses._commands.evaluate.measured", interrupt)
    code, out, err = evaluate(capsys)
    assert (code, out) == (130, "")
    assert err.strip() == "cupy-losses: interrupted"


def test_bfloat16_needs_no_import_by_the_user(tmp_path: Path) -> None:
    """In a process that has not imported ml_dtypes; without it, a sentence."""
    arguments = "evaluate --backend numpy --loss mse_loss --dtype bfloat16 --elements 64"
    result = run(subprocess_environment(), tmp_path, f"{arguments} --gradient g.npy")
    assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "g.npy").dtype == np.float32
    result = run(without(tmp_path, "ml_dtypes"), tmp_path, arguments)
    assert result.returncode == 2
    assert result.stderr.endswith("Error: bfloat16 needs ml_dtypes: pip install ml_dtypes\n")


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra(missing: str, tmp_path: Path) -> None:
    """One sentence; and a program is accelerated all the same."""
    environment = without(tmp_path, missing)
    result = run(environment, tmp_path, "info")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.endswith('needs click and rich: pip install "cupy-losses[cli]"')
    result = run(environment, tmp_path, "accelerate no_program.py")
    assert (result.returncode, result.stderr) == (
        2,
        "cupy-losses: there is no file no_program.py\n",
    )


def test_what_is_evaluated_without_operands(capsys: Any) -> None:
    """The help and the page on messages name the losses that have data."""
    assert main(["evaluate", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"[default: {', '.join(operands.OF_DIABETES)}]" in printed
    assert "--reduction [mean|sum|batchmean] [default: mean]" in printed
    page = (PACKAGE.parent / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    *others, last = (f"`{name}`" for name in operands.OF_DIABETES)
    assert f"`evaluate` computes {', '.join(others)} and {last} alone" in " ".join(page.split())


def test_no_command_is_a_mistake(capsys: Any) -> None:
    assert main([]) == 2
    assert "evaluate" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{cupy_losses.__version__}\n"
    assert main(["--help"]) == 0
    assert "accelerate" in capsys.readouterr().out


def test_info(capsys: Any) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["cupy_losses"] == cupy_losses.__version__
    assert {"NumPy", "CuPy", "torch", "kernel cache"} <= set(facts)
    assert main(["info"]) == 0
    assert "kernel cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("of_torch", "nvrtc", "expected"),
    [
        (None, 0, []),
        (0, 0, []),
        (
            1,
            0,
            ["torch is built for CUDA {other} and CuPy for CUDA {own}. They work together, but"],
        ),
        (1, 1, ["CuPy is built for CUDA {own} and found NVRTC {other}.0, which torch needs: pip "]),
        (0, 1, ["CuPy is built for CUDA {own} and found NVRTC {other}.0: remove the CUDA wheels"]),
        (
            None,
            1,
            ["CuPy is built for CUDA {own} and found NVRTC {other}.0: remove the CUDA wheels"],
        ),
    ],
)
def test_info_of_two_versions_of_cuda(
    of_torch: int | None,
    nvrtc: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """Wheels that torch needs are not to be removed; numbers are those of CuPy's version."""
    cupy = requirements.imported("cupy", "cuda12")
    own = cupy.cuda.runtime.runtimeGetVersion() // 1000
    cuda = None if of_torch is None else f"{own + of_torch}.0"
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(driver, "nvrtc_version", lambda: (own + nvrtc, 0))
    assert main(["info", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    found = [line for line in advice if "is built for" in line and "river" not in line]
    starts = [line.format(own=own, other=own + 1) for line in expected]
    assert len(found) == len(starts)
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True))


@pytest.mark.parametrize(("version", "is_old"), [((12, 3), True), ((12, 4), False)])
def test_info_of_an_old_nvrtc(
    version: tuple[int, int], is_old: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    requirements.imported("cupy", "cuda12")
    monkeypatch.setattr(driver, "nvrtc_version", lambda: version)
    assert main(["info"]) == 0
    advice = (
        "NVRTC before 12.4 does not compile all losses over rows: pip install --upgrade nvidia-"
    )
    assert (advice in capsys.readouterr().out) is is_old


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
    assert 'pip install "cupy-losses[cuda12]"' in result.stdout
    assert "CUPY_CACHE_DIR" in result.stdout


def test_info_where_the_home_is_read_only(tmp_path: Path) -> None:
    """CuPy is there: what is wrong is its cache, and nothing else is to be installed."""
    (tmp_path / "cupy.py").write_text("raise PermissionError(13, 'Permission denied', '/proc/c')")
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    environment = subprocess_environment(
        PYTHONPATH=f"{tmp_path}{os.pathsep}{PACKAGE.parent}", CUPY_CACHE_DIR="/proc/c"
    )
    result = run(environment, tmp_path, "info --json")
    assert json.loads(result.stdout)["advice"] == [
        "The kernel cache cannot be written: point CUPY_CACHE_DIR to a folder that can be written."
    ]
    result = run({**environment, "CUPY_CACHE_DIR": str(tmp_path)}, tmp_path, "info --json")
    assert json.loads(result.stdout)["advice"] == [
        "CuPy is installed, but cannot be imported: [Errno 13] Permission denied: '/proc/c'"
    ]

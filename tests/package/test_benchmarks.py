"""What the benchmarks measure follows from the tables of the tests; on the host, at small sizes."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
from benchmarks import host, losses, measure, picture, report, rows, sweep, tune
from benchmarks.formulas import in_torch
from benchmarks.losses import ROWS, Row
from cupy_losses._device import engine

from ..tables.losses import LOSSES
from ..tables.rows import ROWS as ROW_CASES

SHAPE = (30, 20)


def test_every_loss_is_measured() -> None:
    assert {row.name for row in ROWS} == {case.name for case in LOSSES}
    assert len({str(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_references(row: Row) -> None:
    """The table's formula in torch gives what it gives in NumPy, with its derivative."""
    operands = [x.double() for x in row.draw(SHAPE, 0, "cpu")]
    exact = [x.numpy().astype(np.longdouble) for x in operands]
    value = row.each(*operands).numpy()
    np.testing.assert_allclose(value, row.case.value(*exact).astype(float), rtol=1e-13, atol=1e-14)
    operands[0].requires_grad_()
    (slope,) = torch.autograd.grad(row.each(*operands).sum(), operands[0])
    expected = row.case.slopes(*exact)[0].astype(float)
    np.testing.assert_allclose(slope.numpy(), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    "terms",
    [lambda x, y: (np.mean(x - y),), lambda x, y: (np.add.reduce(x),), lambda x, y: (np.cbrt(x),)],
)
def test_what_has_no_counterpart_in_torch_is_refused(terms: Any) -> None:
    """Not recorded as something else."""
    with pytest.raises(TypeError, match=r"mean|add|cbrt"):
        in_torch(dataclasses.replace(LOSSES[0], terms=terms))


@pytest.mark.filterwarnings("ignore:.*is broadcast", "ignore:Using a target size")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_peers(row: Row) -> None:
    """What is timed beside a loss is the same loss."""
    operands = row.draw(SHAPE, 0, "cpu")
    each = row.each(*(x.double() for x in operands))
    divisor = SHAPE[0] if row.reduction == "batchmean" else each.numel()
    exact = pytest.approx(float(each.sum() / divisor), rel=1e-5)
    assert float(row.eager(*operands)) == exact
    if row.label != "pointwise_loss: squared error":  # of the device alone
        assert float(row.ours(*operands)) == exact


def test_operands_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "DRAWN", 128)
    for row in ROWS:
        operands = row.draw(SHAPE, 0, "cpu")
        shapes: list[tuple[int, ...]] = [SHAPE] * len(operands)
        if row.row_target:
            shapes[1] = SHAPE[1:]
        assert [tuple(x.shape) for x in operands] == shapes
        flat = operands[0].flatten()
        assert torch.equal(flat[:128], flat[128:256])
        assert not torch.equal(flat[:64], flat[64:128])


def test_every_loss_over_rows_is_measured() -> None:
    names = {case.name for case in ROW_CASES if case.of_torch}
    assert {problem.name for problem in rows.PROBLEMS} == names
    assert not rows.unnamed(rows.PROBLEMS)
    assert {problem.name for problem in rows.unnamed([])} == names


# One for each way to draw operands and each set of options.
PROBLEMS = {(str(p), p.draws): p for p in [*rows.PROBLEMS, *rows.unnamed([])]}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)
def test_problems_over_rows(problem: rows.Problem) -> None:
    """Operands of a few rows, of which torch computes the same."""
    few = dataclasses.replace(problem, shape=(12, 30), dtype=torch.float32)
    operands = few.draw(0, "cpu")
    assert all(len(x) == 12 for x in operands)
    expected = float(few.eager(*(x.double() if x.is_floating_point() else x for x in operands)))
    assert float(few.ours(*operands)) == pytest.approx(expected, rel=1e-5)
    assert all(x.shape == (12, 30) for x in operands[: few.leaves])


def test_rows_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "DRAWN", 150)
    for problem in rows.unnamed([]):
        first, *_ = dataclasses.replace(problem, shape=(12, 30)).draw(0, "cpu")
        assert first.shape == (12, 30)
        assert torch.equal(first[:5], first[5:10])
        assert not torch.equal(first[0], first[1])


def test_time_of_the_bytes() -> None:
    """4.62 TB/s and 4 µs, with writes 4.1 TB/s and 6 µs; a ratio is a time over that."""
    assert measure.time_of_bytes(4.62e9, writing=False) == pytest.approx(1.004)
    assert measure.time_of_bytes(4.1e9, writing=True) == pytest.approx(1.006)
    result = {
        "forward_bytes": 4.62e9,
        "gradient_bytes": 8.2e9,
        "forward_ms": 1.004,
        "liger_forward_ms": 3.012,
        "value_and_grad_ms": 2.006,
        "liger_forward_backward_ms": 4.012,
        "copy_ms": 1.0,
    }
    assert measure.ratios(result) == pytest.approx(
        {
            "forward_ms": 1.0,
            "liger_forward_ms": 3.0,
            "value_and_grad_ms": 1.0,
            "liger_forward_backward_ms": 2.0,
        }
    )


def test_grid_of_a_sweep() -> None:
    """Every power of two, counts that are none, no wide gaps; 2^27 logits, or what fits in them."""
    counts = sweep.CLASSES
    assert {1 << exponent for exponent in range(1, 19)} < set(counts)
    assert {3, 17, 21, 333, 1001, 50257, 100003, 128256, 151936} < set(counts)
    assert len(set(counts)) == len(counts)
    assert counts == sorted(counts)
    assert all(later <= 2 * count for count, later in itertools.pairwise(counts))
    assert set(sweep.QUICK_CLASSES) < set(counts)
    shapes = sweep.STRIDED, sweep.NLL_STRIDED, sweep.LENGTHS, sweep.SHAPES_OF_OPTIONS
    problems = sweep.sections(counts, *shapes, sweep.DTYPES)
    assert [*problems] == [*sweep.SECTIONS]
    of_classes, strided, of_lengths, of_options = problems.values()
    assert len(of_classes) == len(counts) * len(sweep.DTYPES)
    for problem in of_classes:
        size, count = math.prod(problem.shape), problem.shape[1]
        assert sweep.LOGITS - count < size <= sweep.LOGITS
    assert len({(p.shape, str(p), p.dtype) for p in strided}) == len(strided)
    assert all(len(p.shape) > 2 or p.draws is rows.two_orders for p in strided)
    cache = 50 << 20
    assert all(math.prod(p.shape) * p.dtype.itemsize > 1.5 * cache for p in strided)
    assert set(sweep.QUICK_LENGTHS) < set(sweep.LENGTHS)
    assert (min(sweep.LENGTHS), max(sweep.LENGTHS)) == (3, 10_000)
    assert len({(p.shape, str(p), p.dtype) for p in of_lengths}) == len(of_lengths)
    assert set(sweep.QUICK_SHAPES_OF_OPTIONS) < set(sweep.SHAPES_OF_OPTIONS)
    assert len({(p.shape, str(p), p.dtype) for p in of_options}) == len(of_options)
    assert all(math.prod(p.shape) * p.dtype.itemsize > 1.5 * cache for p in of_options)


@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("dtype", sweep.DTYPES)
def test_losses_of_a_sweep(monkeypatch: pytest.MonkeyPatch, length: int, dtype: str) -> None:
    """They are right, and what they read is no more than their operands."""
    monkeypatch.setattr(sweep, "LOGITS", 1200)
    problems = sweep.row_lengths(length, dtype)
    assert len({str(problem) for problem in problems}) == len(problems) == 7
    of_options = sweep.with_options((1200 // length, length), dtype)
    assert len({str(problem) for problem in of_options}) == len(of_options) == 7
    for problem in problems + of_options:
        operands = problem.draw(0, "cpu")
        assert rows.check(problem, operands, 2) <= 2, problem
        every = sum(x.numel() * x.element_size() for x in operands)
        assert 0 < problem.bytes_read(operands) <= every
        assert problem.bytes_written(operands) <= every


def test_options_of_cross_entropy_in_a_sweep() -> None:
    """Each changes the loss, and is an option of ours and of torch's."""
    for problem in sweep.with_options((40, 7), "float64"):
        operands = problem.draw(0, "cpu")
        loss = float(problem.eager(*operands))
        assert loss == pytest.approx(float(problem.ours(*operands)), rel=1e-12)
        assert float(problem.eager(*operands, reduction="sum")) / problem.divisor(
            operands
        ) == pytest.approx(loss)
        plain = torch.nn.functional.cross_entropy(*operands)
        assert (loss != float(plain)) == (problem.weighted or bool(problem.options))


def test_operands_of_a_sweep() -> None:
    problem = sweep.classes_strided((2, 3, 4, 5), rows.channels_last, "bfloat16")
    input, target = problem.draw(0, "cpu")
    assert input.dtype == torch.bfloat16
    assert input.shape == problem.shape
    assert input.stride(1) == 1
    assert target.shape == (2, 4, 5)
    assert problem.rows == 40
    assert problem.bytes_read([input, target]) == 120 * 2 + 40 * 8
    assert problem.bytes_written([input, target]) == 120 * 2


@dataclasses.dataclass(frozen=True)
class Wrong(rows.Problem):
    """A problem whose loss is not that of torch: `wrong` makes it of the right one."""

    wrong: Any = None

    @property
    def ours(self) -> Any:
        return functools.partial(self.wrong, super().ours)


MAPS = (6, 5, 3, 4)
SWEPT = [((40, 7), rows.two_orders), (MAPS, rows.two_orders), (MAPS, rows.scores_last)]
SWEPT += [((40, 7), rows.classes), (MAPS, rows.classes), (MAPS, rows.channels_last)]


@pytest.mark.parametrize("dtype", sweep.DTYPES)
@pytest.mark.parametrize(("shape", "draws"), SWEPT)
def test_checks_of_a_sweep(shape: rows.Shape, draws: rows.Draw, dtype: str) -> None:
    """What is right passes; a wrong loss, or a gradient that is wrong in one place, does not."""
    right = sweep.classes_strided(shape, draws, dtype)
    operands = right.draw(0, "cpu")
    assert rows.check(right, operands, 2) <= 1

    def scaled(loss: Any, *operands: Any, **options: Any) -> Any:
        return 1.05 * loss(*operands, **options)

    fields = {field.name: getattr(right, field.name) for field in dataclasses.fields(right)}
    with pytest.raises(AssertionError):
        rows.check(Wrong(**fields, wrong=scaled), operands, 2)


@dataclasses.dataclass(frozen=True)
class Nudged(rows.Problem):
    """Triplets whose reference has a margin that is a little smaller."""

    @property
    def eager(self) -> Any:
        return functools.partial(super().eager, margin=1.0 - 3e-7)


def test_rounding_decides_on_which_side_of_a_margin_a_row_is() -> None:
    """Its gradient is not compared; that of every other row is."""
    problem = Nudged("triplet_margin_loss", (3000, 1), torch.float32, rows.triplets, leaves=3)
    operands = problem.draw(0, "cpu")
    # Ours has some loss there, or none and the gradient of the margin; the reference has neither.
    for near in (0.0, 1.0, 2.0 - 2.0**-22), (0.0, 1.0, 2.0):
        for operand, number in zip(operands, near, strict=True):
            operand[1600] = number
        rows.check(problem, operands, 1500)
    for operand, number in zip(operands, near, strict=True):
        operand[1600:1605] = number
    with pytest.raises(AssertionError):
        rows.check(problem, operands, 1500)


def test_gradients_that_are_subnormal_pass() -> None:
    """In float16, where numbers below 2^-14 are as far apart as those at it."""
    problem = rows.cross_entropy(12, 1000, torch.float16)
    input, target = problem.draw(0, "cpu")
    rows.check(problem, [2 * input, target], 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_differences_of_scores_are_exact(dtype: torch.dtype) -> None:
    """Else a hinge could be on the other side in float64, where a gradient is checked."""
    for problem in (
        rows.Problem("multi_margin_loss", (500, 40), dtype),
        rows.multilabel_margin_loss(500, 40, dtype),
    ):
        input = problem.draw(0, "cpu")[0]
        single, double = ((1 - x[:, :1]) + x for x in (input.float(), input.double()))
        assert torch.equal(single.double(), double)


@pytest.mark.parametrize("place", [0, 20, 39])
def test_checks_of_gradients(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """A gradient that is wrong at an end or in the middle."""

    def value_and_grad(*arguments: Any) -> Any:
        both = cupy_losses.value_and_grad(*arguments)

        def wrong(*operands: Any, **options: Any) -> Any:
            value, (gradient,) = both(*operands, **options)
            gradient[place, 3] *= 1.05
            return value, (gradient,)

        return wrong

    problem = rows.cross_entropy(40, 7)
    operands = problem.draw(0, "cpu")
    rows.check(problem, operands, 2)
    monkeypatch.setattr(rows, "value_and_grad", value_and_grad)
    with pytest.raises(AssertionError):
        rows.check(problem, operands, 2)


def milliseconds(work: Any, *_: Any) -> float:
    """What stands for a timer."""
    work()
    return 1.0


def in_turn(works: dict[str, Any], *_: Any) -> dict[str, float]:
    return {name: milliseconds(work) for name, work in works.items()}


def fails(*operands: Any) -> Any:
    raise ValueError("no such class count\nand more")


def test_tuning_constants_are_read_where_they_are() -> None:
    """Plans see a value that is set: no other module has a copy."""
    assert len({constant.label for constant in tune.CONSTANTS}) == len(tune.CONSTANTS)
    folder = Path(engine.__file__).parent
    read: set[str] = set()
    imported: set[str] = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(f"{file.stem}.{node.id}")
            elif isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    labels = {constant.label for constant in tune.CONSTANTS}
    assert labels <= read
    assert "row_tiling.TILE_SEGMENTS" in imported
    assert not labels & imported


@pytest.mark.parametrize("constant", tune.CONSTANTS, ids=lambda constant: constant.label)
def test_tuning_constants(constant: tune.Constant) -> None:
    """One that is in use is among the values; the others are set, and then that again."""
    in_use = constant.in_use
    assert in_use in constant.values
    assert len(set(constant.values)) == len(constant.values) > 1
    for value in constant.values:
        with tune.value_of(constant, value):
            assert getattr(constant.module, constant.name) == value
    assert constant.in_use == in_use
    for dtype in tune.DTYPES:
        assert constant.problems(dtype)


def test_a_table_of_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass is timed with each value; times are over those with the value in use."""

    def in_turn(works: dict[str, Any], runs: int) -> dict[str, float]:
        assert runs == sweep.RUNS
        for work in works.values():
            work()
        return {name: 2.0 if name.endswith(" 64") else 1.0 for name in works}

    monkeypatch.setattr(tune, "in_turn", in_turn)
    constant = next(c for c in tune.CONSTANTS if c.name == "SMALL_BLOCK")
    problem = rows.cross_entropy(40, 7)
    result = tune.measure(constant, problem, problem.draw(0, "cpu"), (64, 128))
    assert result["forward_ms"] == result["value_and_grad_ms"] == {"64": 2.0, "128": 1.0}
    assert tune.summary([result], constant.in_use) == {"64": (2.0, 2.0), "128": (1.0, 1.0)}


def test_a_point_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of all peers; one that fails, is not there or computes something else has none."""
    monkeypatch.setattr(sweep, "milliseconds", milliseconds)
    monkeypatch.setattr(sweep, "in_turn", in_turn)
    monkeypatch.setitem(rows.PEERS, "compiled", lambda problem: fails)
    monkeypatch.setitem(rows.PEERS, "liger", lambda problem: None)
    monkeypatch.setitem(
        rows.PEERS, "quack", lambda problem: lambda *operands: 1.1 * problem.eager(*operands)
    )
    problem = rows.cross_entropy(40, 7)
    result = sweep.measure(problem, problem.draw(0, "cpu"), [*rows.PEERS])
    assert {name for name in result if name.endswith("_ms")} == {
        f"{name}_ms"
        for name in (
            "forward",
            "eager_forward",
            "value_and_grad",
            "forward_backward",
            "eager_forward_backward",
        )
    }
    assert result["forward_bytes"] == 40 * 7 * 4 + 40 * 8
    assert result["gradient_bytes"] == 2 * 40 * 7 * 4 + 40 * 8
    assert result["ratios"] == measure.ratios(result)
    assert result["failures"].pop("compiled_forward_ms") == "ValueError: no such class count"
    assert result["failures"].pop("quack_forward_ms").startswith("AssertionError")
    assert not result["failures"]
    assert "cross_entropy 40 × 7 float32, 2.0 s: forward 1.000 ms" in sweep.described(result, 2.0)
    with pytest.raises(ValueError, match="no such"):
        sweep.timed({"forward_ms": fails}, {})


def test_a_peer_without_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward time stands; slow ones are timed by themselves."""
    monkeypatch.setattr(sweep, "milliseconds", lambda *_: milliseconds(*_) * 2 * sweep.SLOW)
    monkeypatch.setattr(sweep, "in_turn", in_turn)
    failures: dict[str, str] = {}
    works: dict[str, Any] = {"forward_ms": dict, "quack_forward_backward_ms": fails}
    assert sweep.timed(works, failures) == {"forward_ms": 10.0}
    assert failures == {"quack_forward_backward_ms": "ValueError: no such class count"}


ORDERS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200-orders.json"
ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "driver": "1",
    "cuda": "13.0",
    "cupy": "14.2.0",
    "torch": "2.11.0",
    "quack-kernels": "0.6",
    "date": "2026-11-21",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a small sweep writes, with times that are none."""
    file = tmp_path_factory.mktemp("swept") / "folder" / "sweep.json"
    options = ["--quick", "--peers", "eager", "--dtype", "float32", "--classes", "3", "7", "2"]
    draw = rows.Problem.draw
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sweep, "LOGITS", 1 << 10)
        monkeypatch.setattr(sweep, "QUICK_STRIDED", SWEPT[-2:])
        monkeypatch.setattr(sweep, "NLL_STRIDED", [(2, 3, 40)])
        monkeypatch.setattr(sweep, "QUICK_LENGTHS", [9, 20])
        monkeypatch.setattr(sweep, "QUICK_SHAPES_OF_OPTIONS", [(60, 6)])
        monkeypatch.setattr(sweep, "milliseconds", milliseconds)
        monkeypatch.setattr(sweep, "in_turn", in_turn)
        monkeypatch.setattr(sweep, "environment", lambda: ENVIRONMENT)
        monkeypatch.setattr(rows.Problem, "draw", lambda self, seed: draw(self, seed, "cpu"))
        monkeypatch.setattr("sys.argv", ["sweep", "--output", str(file), *options])
        sweep.main()
    return file


def test_a_sweep_is_written(swept: Path) -> None:
    """What was asked for, in this order."""
    results = json.loads(swept.read_text())
    assert results["environment"] == ENVIRONMENT
    assert [row["shape"] for row in results["classes_last"]] == [[341, 3], [146, 7], [512, 2]]
    assert [row["loss"] for row in results["classes_strided"]] == [
        "cross_entropy",
        "cross_entropy, channels_last",
        "nll_loss",
    ]
    losses = [row["loss"] for row in results["row_lengths"]]
    assert losses == 2 * losses[:7]
    assert results["row_lengths"][-1]["shape"] == [3, 51, 20]
    assert {tuple(row["shape"]) for row in results["options"]} == {(60, 6)}


def test_what_is_drawn(swept: Path) -> None:
    """Peers that are there, sorted class counts, the orders of another file."""
    results = json.loads(swept.read_text())
    counts = [row["shape"][1] for row in picture.by_length([results], "classes_last", "float32")]
    assert counts == [2, 3, 7]
    assert not picture.by_length([results], "classes_last", "bfloat16")
    assert picture.by_length([results], "row_lengths", "float32") == results["row_lengths"]
    assert picture.points(results["classes_last"], "compiled_forward_ms") == []
    assert len(picture.points(results["classes_last"], "eager_forward_ms")) == 3
    assert picture.source([results, results]).endswith("quack-kernels 0.6, 2026-11-21")
    both = picture.shapes([results, json.loads(ORDERS.read_text())], "float32")
    assert [row["loss"] for row in both[1:5]] == [
        "cross_entropy, channels_last",
        "nll_loss",
        "mse_loss, transposed",
        "mse_loss, NCHW, NHWC",
    ]
    low, high = picture.span(both)
    assert low <= 0.9
    assert high > max(ratio for row in both for ratio in measure.ratios(row).values())


@pytest.mark.parametrize(("name", "start"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml")])
def test_a_sweep_is_drawn(
    monkeypatch: pytest.MonkeyPatch, swept: Path, name: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib", exc_type=ImportError)
    drawing = swept.parent / name
    monkeypatch.setattr("sys.argv", ["sweep", "--draw", *map(str, (swept, ORDERS, drawing))])
    sweep.main()
    assert drawing.read_bytes().startswith(start)


def test_no_results_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", exc_type=ImportError)
    drawing = tmp_path / "x.png"
    with pytest.raises(ValueError, match="no results"):
        picture.draw([{"environment": ENVIRONMENT}], drawing)
    assert not drawing.exists()


def test_drawing_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        picture.draw([], tmp_path / "x.png")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--draw", "picture.png"],
        ["--output", "x.json", "--classes", "0"],
        ["--output", "x.json", "--peers", "numpy"],
        ["--output", "x.json", "--draw", "y.json", "picture.png"],
    ],
)
def test_options_of_a_sweep(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["sweep", *options])
    with pytest.raises(SystemExit) as raised:
        sweep.main()
    assert raised.value.code == 2


HOST = {(p.name, p.draw): dataclasses.replace(p, shape=(12, 9)) for p in host.PROBLEMS}


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("dtype", host.DTYPES)
@pytest.mark.parametrize("problem", HOST.values(), ids=lambda problem: problem.name)
def test_problems_of_the_host(problem: host.Problem, dtype: str) -> None:
    """All compute the same; what does not is not timed."""
    operands = problem.operands(dtype)
    assert {x.dtype.name for x in operands if x.dtype.kind == "f"} == {dtype}
    host.check(problem, operands)

    plain = problem.plain

    def scaled(*operands: Any) -> Any:
        value, gradient = plain.both(*operands)
        return value, 1.01 * gradient

    for wrong in (
        plain._replace(value=lambda *x: 1.01 * plain.value(*x)),
        plain._replace(both=scaled),
    ):
        with pytest.raises(AssertionError):
            host.check(dataclasses.replace(problem, plain=wrong), operands)


def test_results_of_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line for each problem and dtype, and the page that is made of them."""
    monkeypatch.setattr(host, "PROBLEMS", [*HOST.values()])
    monkeypatch.setattr(host, "microseconds", lambda works, runs: in_turn(works))
    file = tmp_path / "host.json"
    monkeypatch.setattr("sys.argv", ["host", "--output", str(file), "--only", "mse_loss", "kl_div"])
    host.main()
    problems = json.loads(file.read_text())["problems"]
    assert [row["loss"] for row in problems] == ["mse_loss", "mse_loss", "kl_div", "kl_div"]
    assert all(row["torch_both_us"] == 1.0 and row["both_peak"] > 0 for row in problems)
    *_, table, _ = report.host_section(file)
    assert table.count("\n") == 1 + len(problems)
    assert "| `kl_div` 12 × 9 float64 | **1** | 1.00 | 1.00 |" in table
    assert report.host_section(tmp_path / "folder" / "h200.json") == []
    page = ORDERS.parents[2] / "docs" / "benchmarks.md"
    assert "\n\n".join(report.host_section(ORDERS)) in page.read_text()


RESULTS = ORDERS.parent
MAIN, OVER_ROWS = RESULTS / "h200.json", RESULTS / "h200-rows.json"


def results(name: str) -> Any:
    """What a file of results holds."""
    return json.loads((RESULTS / name).read_text())


def plain(page: str) -> str:
    """The text of a page without its line breaks."""
    return " ".join((RESULTS.parents[1] / page).read_text(encoding="utf-8").split())


def test_the_documents_are_of_the_results() -> None:
    """The page of benchmarks and the table of the README are what `benchmarks.report` writes."""
    files = results(MAIN.name), MAIN, results(OVER_ROWS.name), OVER_ROWS
    root = RESULTS.parents[1]
    page = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert page == report.document(*files)
    assert report.readme_block(*files) in (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "losses over rows"),
        ([], 2, "required: results"),
        (["missing.json"], 2, "missing.json cannot be read: No such file or directory"),
        (["text.json"], 2, "must be results of a whole run"),
        (["part.json"], 2, "must be results of a whole run"),
        (["list.json"], 2, "must be results of a whole run"),
    ],
)
def test_mistakes_in_calls_of_the_report(
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"text": "no JSON", "part": '{"environment": {}}', "list": "[]"}.items():
        Path(f"{name}.json").write_text(text)
    monkeypatch.setattr("sys.argv", ["report", *arguments])
    with pytest.raises(SystemExit) as raised:
        report.main()
    assert raised.value.code == code
    printed = capsys.readouterr()
    assert said in " ".join((printed.out + printed.err).split())


def test_figures_of_the_host_in_the_readme() -> None:
    problems = results("host.json")["problems"]
    small = [row for row in problems if row["shape"] == [32, 32]]
    large = [row for row in problems if math.prod(row["shape"]) == 10**6]
    assert len({row["loss"] for row in large}) == 7  # as many as the README says

    def times(what: str) -> str:
        return "{:.0f} to {:.0f} µs".format(*span(row[f"{what}_us"] for row in small))

    losses = {row["loss"] for row in large}
    assert losses == {row["loss"] for row in problems}
    others = [row for row in results("host-epyc.json")["problems"] if row["loss"] not in losses]
    assert {row["loss"] for row in others} == {"nll_loss"}

    def ratios(file: str, peer: str, dtype: str) -> str:
        """Of the large problems that both files have, with gradients and without."""
        own = [
            row
            for row in results(file)["problems"]
            if row["loss"] in losses and row["dtype"] == dtype and math.prod(row["shape"]) == 10**6
        ]
        return to_times(own, peer, "forward", "both")

    def to_times(rows: Sequence[Any], peer: str, *parts: str) -> str:
        ends = span(row[f"{what}_us"] / row[f"{peer}_{what}_us"] for row in rows for what in parts)
        return "{:.2g} to {:.2g}".format(*ends)

    readme = plain("README.md")
    for said, peer, dtype in (
        ("NumPy expressions, float64", "numpy", "float64"),
        ("NumPy expressions, float32", "numpy", "float32"),
        ("torch's own losses, float32", "torch", "float32"),
    ):
        figures = (ratios(file, peer, dtype) for file in ("host.json", "host-epyc.json"))
        assert f"| {' | '.join([said, *figures])} |" in readme
    assert f"32 × 32 elements takes {times('forward')}, with its gradient {times('both')}" in readme
    large = [row for row in others if math.prod(row["shape"]) == 10**6]
    forward, both = (to_times(large, "torch", what) for what in ("forward", "both"))
    assert (
        f"on the EPYC alone: {forward} times as long as torch's, with its gradient {both} times."
        in readme
    )


def test_figures_of_first_calls_in_the_readme() -> None:
    calls = results(MAIN.name)["first_call"]
    mse, cross_entropy, both = (
        f"{calls[call]['empty_cache_s']:.1f} s"
        for call in ("mse_loss, forward", "cross_entropy, forward", "cross_entropy, value_and_grad")
    )
    warm = "{:.1f} to {:.1f} s".format(*span(each["warm_cache_s"] for each in calls.values()))
    assert (
        f"{mse} for `mse_loss`, {cross_entropy} for `cross_entropy` and {both} for its "
        f"`value_and_grad`; with a warm cache, {warm}."
    ) in plain("README.md")


def test_figures_of_strided_classes() -> None:
    """What the page says of torch.compile, and of torch where its loss is right."""
    rows = results("h200-strided.json")["classes_strided"]

    def times(losses: Sequence[str], peer: str, *works: str) -> str:
        found = [
            row[f"{peer}_{work}"] / row[work]
            for row in rows
            for work in works
            if row["loss"] in losses and f"{peer}_{work}" in row
        ]
        return "{:.2f} to {:.2f} times".format(*span(found))

    page = plain("docs/benchmarks.md")
    both_works = "forward_ms", "forward_backward_ms"
    layouts = "cross_entropy", "cross_entropy, channels_last"
    compiled = times(layouts, "compiled", *both_works)
    two_orders = times(
        [
            f"cross_entropy of probabilities{which}, two memory orders"
            for which in ("", ", scores last")
        ],
        "compiled",
        *both_works,
    )
    assert f"takes {compiled} as long as `cross_entropy`, and {two_orders} where" in page
    forward, both = (
        [times(["nll_loss"], peer, work) for peer in ("compiled", "eager")]
        for work in ("forward_ms", "forward_backward_ms")
    )
    assert "`nll_loss` it takes {} as long, torch {};".format(*forward) in page
    assert f"{both[0].removesuffix(' times')} and {both[1]}. For rows" in page


def test_figures_of_row_lengths() -> None:
    """How many times as long torch takes, for any of the losses, forward or with the gradient."""
    rows = results("h200-row-lengths.json")["row_lengths"]
    low, high = span(
        row[f"eager_{work}"] / row[work]
        for row in rows
        for work in ("forward_ms", "forward_backward_ms")
        if f"eager_{work}" in row
    )
    lengths = {row["shape"][-1] for row in rows}
    assert (
        f"For rows of {min(lengths)} to {max(lengths)} elements, torch takes {low:.2f} to "
        f"{high:.0f} times as long"
    ) in plain("docs/benchmarks.md")


def test_figures_follow_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those under the picture of a sweep are of its files: another measurement changes them."""
    strided = results("h200-strided.json")
    for row in strided["classes_strided"]:
        if row["loss"] == "cross_entropy, channels_last":
            row["compiled_forward_ms"] = 1234.4 * row["forward_ms"]
    (tmp_path / "h200-strided.json").write_text(json.dumps(strided))
    lengths = {"row_lengths": [{"shape": [5, 7], "forward_ms": 2.0, "eager_forward_ms": 3.0}]}
    (tmp_path / "h200-row-lengths.json").write_text(json.dumps(lengths))
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    text = "\n".join(report.sweeps())
    assert " to 1234 times as long as `cross_entropy`" in text
    assert "For rows of 7 to 7 elements, torch takes 1.50 to 1.50 times as long" in text


def span(numbers: Iterable[float]) -> tuple[float, float]:
    """The least and the largest."""
    low, *_, high = sorted(numbers)
    return low, high


def test_times_of_the_host() -> None:
    """Each is called as often as it takes to be timed, at least once a run."""
    calls: list[str] = []
    times = host.microseconds({name: functools.partial(calls.append, name) for name in "ab"}, 2)
    assert [*times] == ["a", "b"]
    assert all(time > 0 for time in times.values())
    assert min(calls.count(name) for name in "ab") >= 4


def test_the_least_time_is_bold() -> None:
    assert report.fastest("1.840", "3.90", "1.828", "") == ["1.840", "3.90", "**1.828**", ""]
    assert report.fastest("0.93", "2.12", "0.93") == ["**0.93**", "2.12", "**0.93**"]
    assert report.fastest("10.4", "") == ["10.4", ""]

"""What the benchmarks measure follows from the tables of the tests; on the host, at small sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import losses, rows
from benchmarks.formulas import in_torch
from benchmarks.losses import ROWS, Row

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

"""Masks and weights of rows, and rows along any axis, of arrays of every library.

The table of losses over rows has values and gradients; here is what holds beside them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    check_values,
    cosine_embedding_loss,
    cross_entropy,
    margin_ranking_loss,
    multilabel_margin_loss,
    nll_loss,
    triplet_margin_with_distance_loss,
    value_and_grad,
)

from ..tables.arrays import Library
from ..tables.rows import ROWS, RowCase

PLAIN = [case for case in ROWS if "sampled" not in case.label]
ONE_EACH = {case.name + case.label: case for case in PLAIN}.values()


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_an_axis_is_that_of_moved_operands(
    case: RowCase, library: Library, rng: np.random.Generator
) -> None:
    """So is the loss; the gradients have the shapes of the operands."""
    shape = 2, 5, 3
    own = case.axis(shape)
    operands = case.draw(rng, shape, np.float32)
    both = value_and_grad(case.loss)
    expected, slope = case.call(to(library, operands), both)
    for axis in (0, 2, -2):
        moved = {
            name: np.ascontiguousarray(np.moveaxis(x, own, axis)) if x.shape == shape else x
            for name, x in operands.items()
        }
        given = to(library, moved)
        value, gradient = case.call(given, both, axis=axis)
        assert gradient.shape == given[case.positional[0]].shape
        np.testing.assert_allclose(library.host(value), library.host(expected), 1e-6)
        found = np.moveaxis(library.host(gradient), axis, own)
        np.testing.assert_allclose(found, library.host(slope), 1e-5, 1e-7)


def to(library: Library, operands: dict[str, Any]) -> dict[str, Any]:
    return {name: library.array(x) for name, x in operands.items()}


@pytest.fixture
def rows(library: Library, rng: np.random.Generator) -> tuple[Any, Any]:
    """Logits and classes of six rows."""
    logits, classes = rng.standard_normal((6, 4)), rng.integers(0, 4, 6)
    return library.array(logits), library.array(classes)


def test_nothing_left(library: Library, rows: tuple[Any, Any]) -> None:
    """As for elements: the mean is NaN, the sum 0, the gradients 0."""
    where = library.array(np.zeros((), bool))
    for loss, expected in (
        (functools.partial(cross_entropy, where=where), np.nan),
        (functools.partial(cross_entropy, where=where, reduction="sum"), 0.0),
    ):
        value, gradient = value_and_grad(loss)(*rows)
        np.testing.assert_equal(float(library.host(value)), expected)
        assert not library.host(gradient).any()


def test_what_is_left_out_may_be_anything(library: Library, rows: tuple[Any, Any]) -> None:
    """NaN elements and weights, classes out of range."""
    logits, classes = map(library.host, rows)
    counts = np.arange(6) % 2 > 0
    expected, slope = value_and_grad(cross_entropy)(logits[counts], classes[counts])
    x = library.array(np.where(counts[:, None], logits, np.nan))
    y = library.array(np.where(counts, classes, 99))
    where = library.array(counts)
    for weight in (None, library.array(np.where(counts, 2.0, np.nan))):
        value, gradient = value_and_grad(cross_entropy)(x, y, where=where, sample_weight=weight)
        np.testing.assert_allclose(library.host(value), expected, 1e-12)
        np.testing.assert_allclose(library.host(gradient)[counts], slope, 1e-12, 1e-15)
        assert not library.host(gradient)[~counts].any()


def test_a_mean_divides_by_both_weights(library: Library, rows: tuple[Any, Any]) -> None:
    sample, weight = np.arange(1.0, 7.0), np.array([0.5, 1.0, 2.0, 4.0])
    classes = library.host(rows[1])
    options = {"weight": library.array(weight), "sample_weight": library.array(sample)}
    total = library.host(cross_entropy(*rows, **options, reduction="sum"))
    mean = library.host(cross_entropy(*rows, **options))
    np.testing.assert_allclose(mean, total / (sample * weight[classes]).sum(), 1e-12)
    whole = cross_entropy(*rows, sample_weight=library.array(sample.astype(np.int64)))
    np.testing.assert_allclose(
        library.host(whole),
        library.host(cross_entropy(*rows, sample_weight=options["sample_weight"])),
    )


def test_a_class_out_of_range_counts_with_its_weight(library: Library) -> None:
    """The loss is NaN, and so is the gradient of the row; that of another is divided by all."""
    x, y = library.array(np.zeros((2, 2))), library.array(np.array([0, 7]))
    sample = library.array(np.array([1.0, 3.0]))
    value, gradient = value_and_grad(cross_entropy)(x, y, sample_weight=sample)
    assert np.isnan(library.host(value))
    np.testing.assert_allclose(library.host(gradient)[0], [-0.125, 0.125])
    assert np.isnan(library.host(gradient)[1]).all()


def test_values_are_checked_where_rows_count(library: Library) -> None:
    x, where = library.array(np.zeros((2, 3))), library.array(np.array([True, False]))
    across, labels = np.array([[1, 9], [-1, 9], [0, 9]]), np.array([[1, -1, 0], [9, 9, 9]])
    with check_values():
        cross_entropy(x, library.array(np.array([1, 9])), where=where)
        multilabel_margin_loss(x, library.array(labels), where=where)
        y = library.array(np.zeros((3, 2)))
        multilabel_margin_loss(y, library.array(across), where=where, axis=0)
        with pytest.raises(ValueError, match=r"target\[1, 0\] is 9"):
            multilabel_margin_loss(x, library.array(labels))
        with pytest.raises(ValueError, match=r"target\[1\] is 2"):
            cross_entropy(y, library.array(np.array([1, 2, 0])), axis=1)


def test_a_distance_of_ones_own(library: Library, rng: np.random.Generator) -> None:
    """Its rows are masked and weighted as those of the built-in distance."""
    anchor, positive, negative = (library.array(x) for x in rng.standard_normal((3, 6, 4)))
    options = {
        "where": library.array(np.arange(6) > 1),
        "sample_weight": library.array(rng.random(6)),
    }

    def distance(x: Any, y: Any) -> Any:
        return ((x - y + 1e-6) ** 2).sum(-1) ** 0.5

    operands = anchor, positive, negative
    own = triplet_margin_with_distance_loss(*operands, distance_function=distance, **options)
    expected = triplet_margin_with_distance_loss(*operands, **options)
    np.testing.assert_allclose(library.host(own), library.host(expected), 1e-12)
    near, far = distance(anchor, positive), distance(anchor, negative)
    sign, weight = library.array(np.full(6, -1.0)), options["sample_weight"]
    ranking = margin_ranking_loss(
        near, far, sign, margin=1.0, weight=weight, where=options["where"]
    )
    np.testing.assert_allclose(library.host(own), library.host(ranking), 1e-12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"where": np.ones(3, bool)}, ValueError, r"where of shape \(3,\) does not broadcast to"),
        ({"where": np.ones((1, 2), bool)}, ValueError, r"shape of the rows, \(2,\)"),
        ({"sample_weight": np.ones((2, 4))}, ValueError, r"sample_weight of shape \(2, 4\)"),
        ({"where": np.ones(2)}, TypeError, "where must have dtype bool, got float64"),
        ({"sample_weight": np.ones(2, complex)}, TypeError, "sample_weight must have a real dtype"),
        ({"axis": 2}, ValueError, r"axis must be in -2 … 1 for rows in shape \(2, 4\), got 2"),
        ({"axis": -3}, ValueError, "axis must be in -2 … 1"),
        ({"axis": 1.0}, TypeError, r"axis must be an integer, got 1.0"),
    ],
)
def test_errors(library: Library, options: Any, error: type[Exception], message: str) -> None:
    given = {name: library.array(x) if name != "axis" else x for name, x in options.items()}
    logits, classes = library.array(np.zeros((2, 4))), library.array(np.zeros(2, np.int64))
    with pytest.raises(error, match=message):
        nll_loss(logits, classes, **given)


def test_one_row_has_one_axis(library: Library) -> None:
    """That of the classes may be the only one; of vectors it is the last."""
    x, y = library.array(np.zeros(4)), library.array(np.array(2))
    assert library.host(nll_loss(x, y, axis=1)) == library.host(nll_loss(x, y, axis=-1))
    with pytest.raises(ValueError, match=r"axis must be in -1 … 0"):
        cosine_embedding_loss(x, x, library.array(np.array(1.0)), axis=1)


def test_no_classes_and_their_weights(library: Library) -> None:
    logits, classes = library.array(np.zeros((3, 0))), library.array(np.full(3, -100))
    each = cross_entropy(logits, classes, weight=library.array(np.zeros(0)), reduction="none")
    assert library.host(each).tolist() == [0.0, 0.0, 0.0]

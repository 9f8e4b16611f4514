"""Indices of every integer dtype, in range and beyond the range of int64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    check_values,
    cross_entropy,
    multi_margin_loss,
    multilabel_margin_loss,
    nll_loss,
    value_and_grad,
)

from .. import emulator
from ..emulator import installed
from ..tables.arrays import Library
from ..tools import levels

# As int64 they would be -100, which is ignored, and -1, which ends a list of labels.
LIKE_IGNORED, LIKE_THE_END = 2**64 - 100, 2**64 - 1
DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def check_rows(of: Any, host: Any, loss: Any, target: Any, wrong: list[bool]) -> None:
    """The loss and the gradient of rows are NaN exactly where the target is out of range."""
    input = of(np.random.default_rng(0).standard_normal((len(target), 3)).astype(np.float32))
    each = host(loss(input, of(target), reduction="none"))
    assert np.isnan(each).tolist() == wrong
    value, gradient = value_and_grad(loss)(input, of(target))
    assert np.isnan(host(value)) == any(wrong)
    assert np.isnan(host(gradient)).tolist() == [[bad] * 3 for bad in wrong]


def check_all(of: Any, host: Any) -> None:
    """Targets beyond int64, for every kind of index."""
    target = np.array([0, LIKE_IGNORED, 2, 2**63, 2**63 - 1, LIKE_THE_END], np.uint64)
    for loss in (cross_entropy, nll_loss, multi_margin_loss):
        check_rows(of, host, loss, target, [False, True, False, True, True, True])
    labels = np.array([[0, LIKE_THE_END, 1], [2, 0, 1], [LIKE_IGNORED, 1, 1]], np.uint64)
    check_rows(of, host, multilabel_margin_loss, labels, [True, False, True])


def test_a_uint64_beyond_int64_is_out_of_range(library: Library) -> None:
    check_all(library.array, library.host)


def test_a_uint64_of_the_other_order_of_bytes() -> None:
    check_all(lambda x: x.astype(">u8") if x.dtype == np.uint64 else x, np.asarray)


def test_a_uint64_beyond_int64_is_out_of_range_on_the_device() -> None:
    emulator.require()
    with installed(multiprocessors=3, seed=1) as device:
        check_all(device.asarray, lambda array: array.get())


def check_ignored(of: Any, host: Any, dtype: str) -> None:
    """A dtype that holds an ignore_index has it ignored."""
    input = of(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))
    ignored = -100 if dtype.startswith("int") else 127
    target = of(np.array([1, ignored, 3], dtype))
    for loss in (cross_entropy, nll_loss):
        each = host(loss(input, target, reduction="none", ignore_index=ignored))
        assert (each == 0).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ignored_rows_of_every_dtype(library: Library, dtype: str) -> None:
    check_ignored(library.array, library.host, dtype)


@pytest.mark.parametrize("dtype", levels.first(["uint64", *DTYPES[:-1]]))
def test_ignored_rows_of_every_dtype_on_the_device(dtype: str) -> None:
    emulator.require()
    with installed(multiprocessors=3, seed=1) as device:
        check_ignored(device.asarray, lambda array: array.get(), dtype)


def test_check_values_finds_a_uint64_beyond_int64(library: Library) -> None:
    input = library.array(np.zeros((2, 3), np.float32))
    with check_values():
        target = library.array(np.array([1, LIKE_IGNORED], np.uint64))
        with pytest.raises(ValueError, match=rf"or -100, but target\[1\] is {LIKE_IGNORED}"):
            cross_entropy(input, target)
        labels = library.array(np.array([[0, 1, 2], [0, LIKE_THE_END, 1]], np.uint64))
        with pytest.raises(ValueError, match=rf"but target\[1, 1\] is {LIKE_THE_END}"):
            multilabel_margin_loss(input, labels)
        cross_entropy(input, library.array(np.array([1, 2], np.uint64)))

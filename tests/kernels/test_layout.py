"""Shapes and strides: the order of a walk over memory, and what collapses."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cupy_losses._core.shapes import (
    ArraySpec,
    IterationSpace,
    broadcast_axes,
    broadcast_strides,
    coalesce,
    dense_strides,
    memory_order,
)
from cupy_losses._device.launch import iteration_space


def strides_of(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


@settings(deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_a_dense_array_collapses_to_one_dimension(order: list[int], shape: list[int]) -> None:
    array = np.zeros(shape).transpose(order)
    strides = strides_of(array)
    axes = memory_order(array.shape, [strides, strides])
    walk = coalesce(axes, array.shape, [strides, strides])
    assert walk.shape == ((array.size,) if array.size > 1 else ())
    moving = [axis for axis in range(4) if array.shape[axis] > 1]
    made = dense_strides(axes, array.shape)
    assert [made[axis] for axis in moving] == [strides[axis] for axis in moving]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=4))
def test_dense_strides_in_c_order_are_numpys(shape: list[int]) -> None:
    array = np.zeros(shape)
    if array.size:
        assert dense_strides(range(len(shape)), tuple(shape)) == strides_of(array)


def test_walks_visit_every_element_once() -> None:
    """Whatever collapses, a walk meets the elements that belong together at the same step."""
    base = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    views = [base, base[:, ::-1], base[..., ::2], base.transpose(2, 0, 3, 1), base[:, 1:2]]
    views += [base[..., :1], base[0], base[:, ::-1, :1], base.transpose(2, 0, 3, 1)[:1]]
    compared = 0
    for a, b in itertools.product(views, views):
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            continue
        compared += 1
        operands = [ArraySpec("float32", x.shape, strides_of(x)) for x in (a, b)]
        strides = [broadcast_strides(operand, shape) for operand in operands]
        walk = coalesce(memory_order(shape, strides), shape, strides)
        index = np.indices(walk.shape).reshape(len(walk.shape), -1)
        starts = [(x.ctypes.data - base.ctypes.data) // 8 for x in (a, b)]
        offsets = [
            start + np.array(s) @ index for start, s in zip(starts, walk.strides, strict=True)
        ]
        visited = sorted(zip(*(part.tolist() for part in offsets), strict=True))
        elements = [np.broadcast_to(x, shape).ravel().tolist() for x in (a, b)]
        assert visited == sorted(zip(*elements, strict=True))
    assert compared > 40


@pytest.mark.parametrize(
    ("own", "shape", "axes"),
    [((3,), (2, 3), (0,)), ((2, 1), (2, 3), (1,)), ((), (2, 3), (0, 1)), ((1, 3), (1, 3), ())],
)
def test_broadcast_axes(
    own: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    assert broadcast_axes(ArraySpec("float32", own, ()), shape) == axes


@settings(deadline=None)
@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
@example(2, 2**31 - 1)
@example(3, 2**31 - 1)
@example(2**30 + 1, 2**31 - 1)
@example(2**31 - 1, 2**31 - 2)
def test_a_reciprocal_divides_as_a_division_does(divisor: int, number: int) -> None:
    fields = iteration_space(IterationSpace((divisor,), ((1,),)))
    multiplier, shift = struct.unpack("=2I", fields[8:16])
    assert (number * multiplier >> 32) >> shift == number // divisor

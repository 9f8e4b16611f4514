"""Losses over rows of one's own with boolean and integer operands, on the emulator.

Every kernel takes elements of several sizes in one row: those of a mask are a byte.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cupy_losses import row_loss, value_and_grad
from cupy_losses._api.public import prepare_of
from cupy_losses._core.loss import Request
from cupy_losses._core.shapes import ArraySpec
from cupy_losses._device import driver, precompile
from cupy_losses._device.row_striding import strided_team
from cupy_losses._libraries.registry import resolve

from ..emulator import installed
from ..tables.arrays import DTYPES
from ..tools import levels, requirements
from .test_rows_emulated import names

pytestmark = pytest.mark.usefixtures("needs_emulator")

Array = Any


@row_loss
def mask_first(mask: Any, x: Any, label: Any) -> Any:
    """The first operand, whose layout decides who works on a row, is no number of the loss."""
    squares = np.sum(np.where(mask, (x - label) ** 2, 0.0))
    return squares / (1 + np.sum(mask)) + np.mean(x * x * label)


@row_loss
def mask_last(x: Any, y: Any, mask: Any) -> Any:
    """Two operands to differentiate by."""
    overlap = np.sum(np.where(mask, x * y, 0.0))
    return 1 - (2 * overlap + 1) / (np.sum(x * x) + np.sum(y * y) + 1)


def of_first(shape: tuple[int, ...], floating: str, mask: str, label: str) -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 2, shape).astype(mask),
        rng.normal(0, 1, shape).astype(DTYPES[floating]),
        rng.integers(0, 5, shape).astype(label),
    ]


def of_last(shape: tuple[int, ...], floating: str, mask: str, label: str) -> list[Array]:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(0, 1, shape).astype(DTYPES[floating]) for _ in range(2))
    return [x, y, rng.integers(0, 2, shape).astype(mask)]


LOSSES = {"first": (mask_first, of_first, (1,)), "last": (mask_last, of_last, (0, 1))}

# The kernel that works on the rows, with their shape, which are dense or beside each other.
KERNELS: dict[str, tuple[str | tuple[str, ...], tuple[int, int], Any]] = {
    "tiles": ("row_tiles<", (70, 33), "C"),
    "held": (("rows<", "row_tiles<"), (40, 4), "C"),  # which a thread holds if it can
    "rows": ("rows<", (9, 1001), "C"),
    "aligned": ("rows<", (5, 1024), "C"),
    "clusters": (("rows<", "split_rows<"), (3, 20_001), "C"),  # if they fit
    "splits": ("split_rows<", (1, 270_000), "C"),
    "strided": ("strided_rows<", (300, 11), "F"),
    "apart": ("strided_rows<", (70, 70), "F"),
    "long": ("strided_rows<", (34, 1100), "F"),
    "few": ("strided_rows<", (300, 3), "F"),
}
TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2}


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Compare arrays of the device with those of float64, in units of the largest element."""
    if isinstance(found, tuple | list):
        for a, b in zip(found, expected, strict=True):
            close(a, b, tolerance)
        return
    unit = max(np.abs(expected).max(initial=0.0), 1e-3)
    np.testing.assert_allclose(found.get().astype("f8") / unit, expected / unit, atol=tolerance)


def exercise(
    which: str, hosts: list[Array], tolerance: float, kernel: Any = "", **options: Any
) -> list[bytes]:
    """Values, gradients and second derivatives against the host's in float64; the bits of some."""
    loss, _, wanted = LOSSES[which]
    wide = [host.astype("f8") for host in hosts]
    request = Request(wanted=wanted, tangents=wanted[:1])
    along = np.cos(np.arange(hosts[0].size)).reshape(hosts[0].shape)
    with installed(**{"multiprocessors": 3, "seed": 1, **options}) as device:
        arrays = [device.asarray(host) for host in hosts]
        call, given = prepare_of(loss)(*arrays)
        library, operands = resolve(call, given)
        order: Any = "C" if hosts[0].flags.c_contiguous else "F"
        varied = np.array(along, hosts[wanted[0]].dtype, order=order)
        tangent = device.asarray(varied)

        def results() -> tuple[Any, Any, Any, Any]:
            each, mean = loss(*arrays, reduction="none"), loss(*arrays)
            both = value_and_grad(loss, wanted)(*arrays)
            return each, mean, both, library.run(call, request, (tangent, *operands))

        each, mean, (value, gradients), found = device.together(results)
        close(each, loss(*wide, reduction="none"), tolerance)
        assert value.get().tobytes() == mean.get().tobytes(), "the same bits with a gradient"
        close((value, gradients), value_and_grad(loss, wanted)(*wide), tolerance)
        assert any(name.startswith(kernel) for name in names(device))
        of_host = call.loss.on_host(call, request, [varied.astype("f8"), *wide], False)
        close(found, of_host, 4 * tolerance)
        return [x.get().tobytes() for x in (each, mean, *gradients)]


@pytest.mark.parametrize(
    ("kernel", "which", "floating"),
    levels.covering(4, KERNELS, LOSSES, ["float32", "float64", "bfloat16"]),
)
def test_every_kernel(kernel: str, which: str, floating: str) -> None:
    name, shape, order = KERNELS[kernel]
    hosts = LOSSES[which][1](shape, floating, "bool", "int16")
    exercise(which, [np.asarray(host, order=order) for host in hosts], TOLERANCES[floating], name)


@pytest.mark.parametrize(
    ("mask", "label"),
    [
        *[("bool", "int8"), ("int8", "int16"), ("int16", "int32"), ("int32", "int64")],
        *[("int64", "bool"), ("uint8", "uint32"), ("uint16", "uint8"), ("uint32", "uint64")],
        ("uint64", "uint16"),
    ],
)
def test_every_dtype(mask: str, label: str) -> None:
    exercise("first", of_first((5, 133), "float32", mask, label), TOLERANCES["float32"])


@pytest.mark.parametrize("misaligned", [1, 3, 8])
def test_any_place_in_memory(misaligned: int) -> None:
    """A mask that begins anywhere, and rows of which each begins elsewhere in a vector."""
    mask, x, label = of_first((7, 1003), "float32", "bool", "int16")
    expected = exercise("first", [mask, x, label], TOLERANCES["float32"])[0]
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [
            device.asarray(mask, misalignment=misaligned),
            device.asarray(x, misalignment=4 * (misaligned % 4)),
            device.asarray(label, misalignment=2 * misaligned % 16),
        ]
        assert mask_first(*arrays, reduction="none").get().tobytes() == expected


@pytest.mark.parametrize("misaligned", [8, 16, 48])
@pytest.mark.parametrize(("mask", "floating"), [("int64", "bfloat16"), ("int32", "float64")])
def test_vectors_of_a_wide_first_operand(mask: str, floating: str, misaligned: int) -> None:
    """Its vectors are longer than an access, whose address says where rows begin in vectors."""
    hosts = of_first((7, 301), floating, mask, "int16")
    expected = exercise("first", hosts, TOLERANCES[floating])
    with installed(multiprocessors=3, seed=1) as device:
        arrays = [
            device.asarray(hosts[0], misalignment=misaligned),
            *map(device.asarray, hosts[1:]),
        ]
        value, gradients = value_and_grad(mask_first, (1,))(*arrays)
        assert [x.get().tobytes() for x in (value, *gradients)] == expected[1:]


@pytest.mark.parametrize("kernel", levels.first(["rows", "tiles", "strided", "clusters", "few"], 2))
def test_the_same_bits_on_any_device(kernel: str) -> None:
    _, shape, order = KERNELS[kernel]
    hosts = [np.asarray(x, order=order) for x in of_first(shape, "float32", "bool", "int16")]
    bits = exercise("first", hosts, TOLERANCES["float32"])
    other = {"multiprocessors": 1, "seed": 2, "compute_capability": "70"}
    assert exercise("first", hosts, TOLERANCES["float32"], **other) == bits


def test_broadcast_masks() -> None:
    """Of all rows, and of a number for each row."""
    mask, x, label = of_first((12, 100), "float32", "bool", "int16")
    for hosts in ([mask[:1], x, label[:, :1]], [mask[:, :1], x, label[:1]]):
        wide = [host.astype("f8") for host in hosts]
        with installed(multiprocessors=3, seed=1) as device:
            found = value_and_grad(mask_first, 1)(*map(device.asarray, hosts))
        close(found, value_and_grad(mask_first, 1)(*wide), TOLERANCES["float32"])


@pytest.mark.quick
def test_who_works_on_rows_beside_each_other() -> None:
    """A byte takes a register, as two of them do; pairs are of what has two bytes."""
    for columns, state in itertools.product((2, 21, 70, 230, 900, 1100, 5000), (28, 136)):
        for of_bytes, of_numbers in (((1, 4), (4, 4)), ((1, 2), (2, 2)), ((1, 8), (4, 8))):
            team = strided_team(columns, of_bytes, state, 64, 100, False)
            assert team == strided_team(columns, of_numbers, state, 64, 100, False)
            assert team == strided_team(columns, of_bytes[::-1], state, 64, 100, False)


SPECS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "tiles": ((64, 33), (33, 1)),
    "rows": ((64, 1001), (1001, 1)),
    "strided": ((64, 1001), (1, 64)),
    "side_by_side": ((64, 5001), (1, 64)),
    "splits": ((1, 2**20), (2**20, 1)),
}


@pytest.mark.parametrize(
    ("kernel", "floating", "mask"),
    levels.covering(3, SPECS, ["float64", "bfloat16"], ["bool", "uint64"]),
)
def test_nvrtc_compiles_them(kernel: str, floating: str, mask: str) -> None:
    requirements.nvrtc()
    call = prepare_of(mask_first)(*np.ones((3, 2, 2)), reduction="none")[0]
    operands = [ArraySpec(dtype, *SPECS[kernel]) for dtype in (floating, mask, floating, "int8")]
    request = Request(wanted=(1,), tangents=(1,))
    precompile.compile_kernels(call, request, operands, driver.architectures()[-1])

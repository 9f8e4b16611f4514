"""Arrays of more than 2^33 elements and rows of more than 2^31, on a GPU with room for them.

An offset cut to 32 bits, signed or not, meets another element than the one that is meant.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cupy_losses import (
    cosine_embedding_loss,
    cross_entropy,
    grad,
    jvp,
    mse_loss,
    value_and_grad,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _room() -> Any:
    """The memory of the largest test, and none of it is kept."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GB of device memory")
    yield
    torch.cuda.empty_cache()


def _count(array: Any) -> int:
    """How many elements are not 0; torch's own needs a mask of the size of the array."""
    flat = array.reshape(-1)
    return sum(int(part.count_nonzero()) for part in flat.split(1 << 28))


@pytest.mark.filterwarnings("ignore:.*is broadcast")
def test_elements() -> None:
    """A dense, a strided and a broadcast walk."""
    size = 2**33 + 8192 * 3 + 5
    input = torch.zeros(size, dtype=torch.bfloat16, device="cuda")
    # Within a whole tile and at the end, none where another one is cut to.
    marks = {2**31 + 8: 1.0, 2**31 + 999: 2.0, 2**32 + 16: 3.0, 2**33 + 777: 4.0, size - 1: 5.0}
    for element, mark in marks.items():
        input[element] = mark
    places = torch.tensor(list(marks), device="cuda")
    squares = sum(mark**2 for mark in marks.values())
    zero = torch.zeros((), dtype=torch.bfloat16, device="cuda")
    assert mse_loss(input, torch.zeros_like(input), reduction="sum").item() == squares
    assert mse_loss(input, zero, reduction="sum").item() == squares
    gradient = grad(mse_loss)(input, zero, reduction="sum")
    assert gradient[places].tolist() == [2 * mark for mark in marks.values()]
    assert _count(gradient) == len(marks)
    del gradient
    assert grad(mse_loss, 1)(input, zero, reduction="sum").item() == -2 * sum(marks.values())
    table = input[: size // 4 * 4].view(-1, 4)[:, 1:]
    kept = {element: mark for element, mark in marks.items() if element % 4 and element < size - 1}
    assert len(kept) == 2
    assert mse_loss(table, zero, reduction="sum").item() == sum(mark**2 for mark in kept.values())
    each = mse_loss(table, zero, reduction="none")
    for element, mark in kept.items():
        assert each[element // 4, element % 4 - 1].item() == mark**2
    assert _count(each) == len(kept)


# Tiles of rows, threads of a warp, a block, rows that begin anywhere; classes strided, few of them
# and many.
@pytest.mark.parametrize(
    "shape",
    [
        (2**33 // 21 + 5, 21),
        (2**33 // 223 + 5, 223),
        (2**33 // 4096 + 5, 4096),
        (2**33 // 50_257 + 5, 50_257),
        (2, 5, 2**33 // 10 + 1031),
        (3, 21, 2**27 + 5),
        (2, 1000, 2**22 + 800),
        (2**15 + 1, 2**12, 65),
    ],
    ids=str,
)
def test_rows(shape: tuple[int, ...]) -> None:
    """Those around the places where an offset would be cut are as they are alone."""
    generator = torch.Generator("cuda").manual_seed(shape[1])
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)
    places = (shape[0], *shape[2:])
    target = torch.randint(shape[1], places, device="cuda", generator=generator, dtype=torch.int32)
    each = cross_entropy(x, target, reduction="none")
    total, gradient = value_and_grad(cross_entropy)(x, target, reduction="sum")
    added = sum(part.sum(dtype=torch.float64) for part in each.reshape(-1).split(1 << 28))
    torch.testing.assert_close(total.double(), added, rtol=4e-3, atol=0)
    for cut in (0, 2**31, 2**32, x.numel() - 1):
        here = _rows_at(shape, cut)
        alone, labels = x[here].clone(), target[(here[0], *here[2:])].clone()
        expected, slope = value_and_grad(cross_entropy)(alone, labels, reduction="sum")
        assert torch.equal(gradient[here], slope), cut
        lone = cross_entropy(alone, labels, reduction="none")
        assert torch.equal(each[(here[0], *here[2:])], lone), cut
        wide = torch.nn.functional.cross_entropy(alone.double(), labels.long(), reduction="sum")
        torch.testing.assert_close(expected.double(), wide, rtol=4e-3, atol=0)


def _rows_at(shape: tuple[int, ...], element: int) -> tuple[slice, ...]:
    """Rows about this element of a dense array: all of their elements, and a few rows."""
    inner = shape[2] if len(shape) == 3 else 1
    outer = element // (shape[1] * inner)
    if inner == 1:
        return slice(max(outer - 3, 0), outer + 3), slice(None)
    first = max(element % inner - 70, 0)
    return slice(outer, outer + 1), slice(None), slice(first, first + 140)


@pytest.mark.parametrize(("rows", "apart"), [(1, False), (3, False), (3, True)])
def test_long_rows(rows: int, apart: bool) -> None:
    """Rows one after the other, or side by side with their elements apart."""
    columns = 2**31 + 9
    generator = torch.Generator("cuda").manual_seed(rows)
    shape = (columns, rows) if apart else (rows, columns)
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)
    x = x.T if apart else x
    target = torch.tensor([columns - 2, 5, 2**30])[:rows].cuda()
    for row, label in enumerate(target.tolist()):
        x[row, label] = 16.0  # so that it is much of the sum
    each = cross_entropy(x, target, reduction="none")
    total, gradient = value_and_grad(cross_entropy)(x, target, reduction="sum")
    torch.testing.assert_close(total.double(), each.double().sum(), rtol=4e-3, atol=0)
    for row, label in enumerate(target.tolist()):
        parts = x[row].split(1 << 28)
        sums = sum(part.double().exp().sum() for part in parts)
        exact = sums.log() - 16
        torch.testing.assert_close(each[row].double(), exact, rtol=4e-3, atol=0)
        slopes = torch.tensor([label, columns - 1, 0, 2**31 - 1], device="cuda")
        likely = x[row, slopes].double().exp() / sums
        likely[0] -= 1
        torch.testing.assert_close(gradient[row, slopes].double(), likely, rtol=5e-3, atol=0)
        if apart:  # a row alone has no neighbours
            continue
        alone = x[row : row + 1], target[row : row + 1]
        assert torch.equal(cross_entropy(*alone, reduction="none"), each[row : row + 1])
    tangent = torch.zeros_like(x)
    tangent[:, -1] = 1
    _, slope = jvp(cross_entropy, (x, target), (tangent, None), reduction="none")
    torch.testing.assert_close(slope, gradient[:, -1], rtol=5e-3, atol=0)


def test_long_pairs() -> None:
    """A loss of two rows: three elements are not 0, two of them beyond 2^31."""
    columns = 2**31 + 9
    arrays = [torch.zeros(1, columns, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    places = [7, 2**31 + 1, columns - 1]
    for array, marks in zip(arrays, ([1.0, 2.0, 2.0], [2.0, 2.0, 1.0]), strict=True):
        array[0, places] = torch.tensor(marks, dtype=torch.bfloat16, device="cuda")
    target = torch.ones(1, device="cuda")
    first, second = arrays
    value, slopes = value_and_grad(cosine_embedding_loss, (0, 1))(first, second, target)
    small = [array[:, places].double().requires_grad_() for array in arrays]
    exact = torch.nn.functional.cosine_embedding_loss(small[0], small[1], target.double())
    wanted = torch.autograd.grad(exact, small)
    torch.testing.assert_close(value.double(), exact, rtol=4e-3, atol=0)
    for got, slope in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(got[:, places].double(), slope, rtol=4e-3, atol=0)
        assert _count(got) == int(slope.count_nonzero())

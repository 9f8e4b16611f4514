"""Losses of operands of which one is broadcast, and means of rows, beside eager and torch.compile.

`python -m benchmarks.run --only broadcast` measures them. Gradients of what is broadcast are sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses._core.dtypes import dtype_name

from .measure import check_autograd, gradients, in_turn, one_by_one, time_of_bytes

Shape = tuple[int, ...]
# Input, of about 2^26 elements, and target.
SHAPES: list[tuple[Shape, Shape]] = [
    ((67108, 1000), (67108, 1)),
    ((67108, 1000), (1000,)),
    ((671088, 100), (100,)),
    ((22369621, 3), (22369621, 1)),
    ((22369621, 3), (3,)),
    ((256, 64, 64, 64), (64, 1, 1)),
    ((256, 64, 64, 64), (256, 1, 64, 64)),
    ((264, 64, 63, 63), (64, 1, 1)),
    ((264, 64, 63, 63), (264, 1, 63, 63)),
    ((67108, 1000), ()),
]
# torch.compile takes long to compile, so that it is timed at these alone, in float32.
COMPILED: list[tuple[Shape, Shape]] = [SHAPES[k] for k in (1, 4, 6)]
# Losses of a third array, which a keyword names, with a number for each class or for each row.
OF_THREE = {"binary_cross_entropy_with_logits": "pos_weight", "gaussian_nll_loss": "var"}
# Shapes of their input and target. torch.compile is timed at the first, in float32.
ROWS_OF_THREE: list[Shape] = [(67108, 1000), (3195660, 21)]
# Rows whose means multilabel_soft_margin_loss returns with reduction none.
ROWS: list[Shape] = [(1 << 26 >> 4, 16), (223696, 300), (67108, 1000)]
DTYPES = (torch.float32, torch.bfloat16)
WANTED: dict[str, tuple[int, ...]] = {"input": (0,), "target": (1,), "both": (0, 1)}


def broadcast() -> list[dict[str, Any]]:
    """Check and time all of them."""
    problems: list[Callable[[int], dict[str, Any]]] = []
    for dtype in DTYPES:
        problems += [functools.partial(_mse, *shapes, dtype) for shapes in SHAPES]
        problems += [
            functools.partial(_of_three, name, shape, dtype)
            for name in OF_THREE
            for shape in ROWS_OF_THREE
        ]
        problems += [functools.partial(_means, shape, dtype) for shape in ROWS]
    return one_by_one(problems, _described)


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """The times of a result in units of the time of its bytes: each array is moved once."""
    forward = time_of_bytes(result["forward_bytes"], writing=False)
    found = {}
    for name, time in result.items():
        if name.endswith("forward_ms"):
            found[name] = time / forward
        elif name.endswith("_ms"):
            wanted = name.split("_")[-2]
            found[name] = time / time_of_bytes(result[f"{wanted}_bytes"], writing=True)
    return found


def _mse(shape: Shape, of_target: Shape, dtype: Any, seed: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    input, target = (
        torch.empty(each, dtype=dtype, device="cuda").normal_(generator=generator)
        for each in (shape, of_target)
    )
    ours = cupy_losses.mse_loss
    peers: dict[str, Callable[..., Any]] = {"eager": F.mse_loss}
    if dtype == torch.float32 and (shape, of_target) in COMPILED:
        torch._dynamo.reset()
        peers["compiled"] = torch.compile(F.mse_loss, dynamic=False)
    _check_mse(input, target)
    works: dict[str, Callable[[], Any]] = {"forward_ms": lambda: ours(input, target)}
    for peer, loss in peers.items():
        works[f"{peer}_forward_ms"] = functools.partial(loss, input, target)
    bytes_read = input.nbytes + target.nbytes
    moved = {"forward_bytes": bytes_read}
    for name, wanted in WANTED.items():
        works[f"{name}_ms"] = functools.partial(value_and_grad(ours, wanted), input, target)
        moved[f"{name}_bytes"] = bytes_read + sum((input, target)[k].nbytes for k in wanted)
        for peer, loss in peers.items():
            works[f"{peer}_{name}_ms"] = functools.partial(
                _gradients, loss, (input, target), wanted
            )
    return _result("mse_loss", (shape, of_target), dtype, moved, in_turn(works))


def _of_three(name: str, shape: Shape, dtype: Any, seed: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    of_third = shape[1:] if OF_THREE[name] == "pos_weight" else (shape[0], 1)
    input, target, third = (
        torch.empty(each, dtype=dtype, device="cuda").uniform_(0.01, 0.99, generator=generator)
        for each in (shape, shape, of_third)
    )

    def loss_of(module: Any) -> Callable[..., Any]:
        loss = getattr(module, name)
        return lambda input, target, third: loss(input, target, **{OF_THREE[name]: third})

    ours, eager = loss_of(cupy_losses), loss_of(F)
    _check_of_three(ours, eager, input, target, third)
    peers = {"eager": eager}
    if dtype == torch.float32 and shape == ROWS_OF_THREE[0]:
        torch._dynamo.reset()
        peers["compiled"] = torch.compile(eager, dynamic=False)
    operands = input, target, third
    works: dict[str, Callable[[], Any]] = {
        "forward_ms": functools.partial(ours, *operands),
        "input_ms": functools.partial(value_and_grad(ours), *operands),
    }
    for peer, loss in peers.items():
        works[f"{peer}_forward_ms"] = functools.partial(loss, *operands)
        works[f"{peer}_input_ms"] = functools.partial(_gradients, loss, operands, (0,))
    bytes_read = input.nbytes + target.nbytes + third.nbytes
    moved = {"forward_bytes": bytes_read, "input_bytes": bytes_read + input.nbytes}
    return _result(name, (shape, of_third), dtype, moved, in_turn(works))


def _check_of_three(
    ours: Callable[..., Any], eager: Callable[..., Any], input: Any, target: Any, third: Any
) -> None:
    """Raise unless the loss, and gradients at both ends, are those of float64.

    That is within a few roundings.
    """
    every, some = len(input), 4096

    def exact(rows: slice) -> list[Any]:
        return [(x[rows] if len(x) == every else x).double() for x in (input, target, third)]

    value, slope = value_and_grad(ours)(input, target, third)
    check_autograd(ours, [input, target, third], [slope])
    total = 0.0
    for first in range(0, every, 16 * some):
        part = exact(slice(first, first + 16 * some))
        total += float(eager(*part)) * len(part[0])
    rtol = max(1e-5, 2 * torch.finfo(input.dtype).eps)
    expected = torch.tensor(total / every, dtype=torch.float64, device=value.device)
    torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=0.0)
    for rows in (slice(0, some), slice(every - some, every)):
        leaf, *others = exact(rows)
        leaf.requires_grad_()
        (wanted,) = gradients(eager, [leaf], others)
        wanted = wanted * (some / every)
        atol = rtol * float(wanted.abs().max())
        torch.testing.assert_close(slope[rows].double(), wanted, rtol=rtol, atol=atol)


def _means(shape: Shape, dtype: Any, seed: int) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(seed)
    input = torch.empty(shape, dtype=dtype, device="cuda").normal_(generator=generator)
    target = torch.empty(shape, dtype=dtype, device="cuda").bernoulli_(generator=generator)
    name = "multilabel_soft_margin_loss"
    ours, eager = (
        functools.partial(getattr(module, name), reduction="none") for module in (cupy_losses, F)
    )
    found = ours(input, target)
    exact = eager(input[:4096].double(), target[:4096].double())
    rtol = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(found[:4096].double(), exact, rtol=rtol, atol=0.0)
    times = in_turn(
        {
            "forward_ms": lambda: ours(input, target),
            "eager_forward_ms": lambda: eager(input, target),
        }
    )
    moved = {"forward_bytes": input.nbytes + target.nbytes + found.nbytes}
    return _result(f"{name}, none", (shape, shape), dtype, moved, times)


def _gradients(loss: Callable[..., Any], arrays: Sequence[Any], wanted: tuple[int, ...]) -> Any:
    operands = [x.detach().requires_grad_() if k in wanted else x for k, x in enumerate(arrays)]
    return gradients(lambda *_: loss(*operands), [operands[k] for k in wanted], [])


def _check_mse(input: Any, target: Any) -> None:
    """Raise unless loss and gradients are those of float64, within a few roundings."""
    value, slopes = value_and_grad(cupy_losses.mse_loss, (0, 1))(input, target)
    difference = input.double() - target.double()
    rtol = max(1e-6, 2 * torch.finfo(input.dtype).eps)
    torch.testing.assert_close(value.double(), (difference**2).mean(), rtol=rtol, atol=0.0)
    slope = difference * (2 / input.numel())
    torch.testing.assert_close(slopes[0].double(), slope, rtol=rtol, atol=1e-30)
    summed = -slope.sum_to_size(target.shape)
    # Sums cancel: their errors are measured by what is added up, which has been rounded.
    atol = torch.finfo(torch.float32).eps * float(slope.abs().sum_to_size(target.shape).max())
    torch.testing.assert_close(slopes[1].double(), summed, rtol=rtol, atol=atol)


def _result(
    loss: str,
    shapes: tuple[Shape, Shape],
    dtype: Any,
    moved: dict[str, int],
    times: dict[str, float],
) -> dict[str, Any]:
    input, target = shapes
    return {
        "loss": loss,
        "shape": input,
        "target": target,
        "dtype": dtype_name(dtype),
        **moved,
        **times,
    }


def _described(result: dict[str, Any]) -> str:
    """Times and, in brackets, what they are in units of the time of the bytes."""
    parts = [f"{result['loss']} {result['shape']} {result['target']} {result['dtype']}:"]
    for name, ratio in ratios(result).items():
        parts.append(f"{name.removesuffix('_ms')} {result[name]:.3f} ({ratio:.2f})")
    return " ".join(parts)

"""Measure the losses and their peers on this GPU; write the results as JSON.

    python -m benchmarks.run --output benchmarks/results/NAME.json [--only SECTION …]

Every result of this package is checked against float64 before it is timed, those of peers in
benchmarks/sweep.py alone. Kernels are timed by device events
(median of RUNS, after warm-up) on inputs far larger than the cache, redrawn for each problem, with
errors on both sides of every kink; call overhead by the host's clock over thousands of calls. All
peers are measured in the same run. Bytes: every input element read once, every gradient element
written once.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses._core.dtypes import dtype_name

from . import losses as table
from . import rows as over_rows
from .broadcast import broadcast
from .measure import (
    RUNS,
    Peers,
    Works,
    beside_torch,
    check_autograd,
    environment,
    error_in_ulps,
    forward_works,
    gradients,
    host_microseconds,
    in_turn,
    milliseconds,
    of_each,
    one_by_one,
    ratios,
    release_memory,
    time_of_bytes,
    ulps,
)

LOSSES = ("mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss")
CUPY_EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mse_loss": lambda a, b: cupy.mean((a - b) ** 2),
    "l1_loss": lambda a, b: cupy.mean(cupy.abs(a - b)),
}


def draw(size: int, dtype: Any, seed: int) -> tuple[Any, Any]:
    """Two arrays of normal deviates."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        torch.empty(size, dtype=dtype, device="cuda").normal_(generator=generator) for _ in "ab"
    )


def reference(name: str) -> Callable[[Any, Any], Any]:
    """The loss of each element with default parameters, in torch."""
    return next(row.each for row in table.ROWS if row.name == name)


def exact_mean(name: str, input: Any, target: Any) -> float:
    """The mean loss in float64, a part at a time."""
    total, each = 0.0, reference(name)
    for first in range(0, input.numel(), 1 << 27):
        part = slice(first, first + (1 << 27))
        total += each(input[part].double(), target[part].double()).sum().item()
    return total / input.numel()


def exact_slope(name: str, input: Any, target: Any) -> Any:
    """The derivative of each element's loss by `input` in float64."""
    leaf = input.double().requires_grad_()
    (slope,) = torch.autograd.grad(reference(name)(leaf, target.double()).sum(), leaf)
    return slope


def check_gradient(name: str, input: Any, target: Any, gradient: Any) -> None:
    """Raise unless the gradient of the mean is right, here and there."""
    for part in (slice(0, 1 << 20), slice(-(1 << 20), None)):
        expected = exact_slope(name, input[part], target[part]) / input.numel()
        torch.testing.assert_close(
            gradient[part].double(), expected, rtol=4 * torch.finfo(gradient.dtype).eps, atol=1e-30
        )


def autograd(loss: Callable[..., Any], input: Any, *others: Any) -> Callable[[], None]:
    """A forward and backward pass that leaves a gradient behind."""

    def work() -> None:
        input.grad = None
        loss(input, *others).backward()

    return work


def backward_works(peers: Peers, operands: Sequence[Any]) -> Works:
    """Forward and backward passes, of which the first operand has the gradient from now on."""
    leaf, *others = operands
    leaf.requires_grad_()
    return of_each(peers, "forward_backward_ms", lambda loss: autograd(loss, leaf, *others))


def bandwidth() -> list[dict[str, Any]]:
    """The mean and its gradient at 2^30 elements, beside eager, torch.compile and CuPy."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        rows += one_by_one(functools.partial(_bandwidth_of, name, dtype) for name in LOSSES)
    return rows


def _bandwidth_of(name: str, dtype: Any, seed: int) -> dict[str, Any]:
    size = 1 << 30
    item = torch.finfo(dtype).bits // 8
    input, target = draw(size, dtype, seed)
    ours = getattr(cupy_losses, name)
    peers = beside_torch(ours, getattr(F, name))
    both = value_and_grad(ours)

    value, gradient = both(input, target)
    error = error_in_ulps(value, exact_mean(name, input, target))
    assert error <= 1, (name, dtype, error)
    check_gradient(name, input, target, gradient)
    check_autograd(ours, [input, target], [gradient])

    works: Works = {
        "copy_ms": lambda: gradient.copy_(input),
        **forward_works(peers, [input, target]),
        "value_and_grad_ms": lambda: both(input, target),
    }
    if name in CUPY_EXPRESSIONS and dtype == torch.float32:
        arrays = [cupy.from_dlpack(x) for x in (input, target)]
        works["cupy_expression_forward_ms"] = lambda: CUPY_EXPRESSIONS[name](*arrays)
    times = in_turn(works)
    gradient = None  # also out of the reach of the copy above
    times |= in_turn(backward_works(peers, [input, target]))
    cupy.get_default_memory_pool().free_all_blocks()  # those of the expression
    return {
        "loss": name,
        "dtype": dtype_name(dtype),
        "elements": size,
        "error_ulp": error,
        # A copy moves 2 items an element, a loss with its gradient 3.
        "forward_bytes": 2 * item * size,
        "gradient_bytes": 3 * item * size,
        "copy_of_gradient_bytes_ms": 1.5 * times["copy_ms"],
        **times,
    }


def losses() -> list[dict[str, Any]]:
    """Every loss in float32 at 2^30 elements, beside eager and torch.compile."""
    return one_by_one(
        functools.partial(_loss, row, (32768, 32768), torch.float32) for row in table.ROWS
    )


def halves() -> list[dict[str, Any]]:
    """The same in bfloat16."""
    return one_by_one(
        functools.partial(_loss, row, (32768, 32768), torch.bfloat16) for row in table.ROWS
    )


def _loss(row: table.Row, shape: tuple[int, int], dtype: Any, seed: int) -> dict[str, Any]:
    operands = row.draw(shape, seed, dtype=dtype)
    ours = row.ours
    peers = beside_torch(ours, row.eager)

    value, gradient = value_and_grad(ours)(*operands)
    exact = sum(
        row.each(*(_rows_of(x, first, 2048) for x in operands)).sum().item()
        for first in range(0, shape[0], 2048)
    )
    divisor = shape[0] if row.reduction == "batchmean" else operands[0].numel()
    error = abs(value.item() - exact / divisor) / abs(exact / divisor)
    rounding = torch.finfo(dtype).eps
    assert error <= 4 * rounding, (str(row), error)
    rtol = max(1e-5, 2 * rounding)
    for first in (0, shape[0] - 8):
        part = [_rows_of(x, first, 8) for x in operands]
        part[0].requires_grad_()
        (expected,) = torch.autograd.grad(row.each(*part).sum() / divisor, part[0])
        torch.testing.assert_close(
            gradient[first : first + 8].double(), expected, rtol=rtol, atol=1e-6 / divisor
        )
    check_autograd(ours, operands, [gradient])
    del gradient, part, expected

    times = in_turn(forward_works(peers, operands))
    times |= in_turn(backward_works(peers, operands))
    bytes_read = sum(x.nbytes for x in operands)
    return {
        "loss": str(row),
        "dtype": dtype_name(dtype),
        "elements": operands[0].numel(),
        "relative_error": error,
        "forward_bytes": bytes_read,
        "gradient_bytes": bytes_read + operands[0].nbytes,
        **times,
    }


# Input and target of other memory orders: shapes, and the axes of each, slowest first.
CHANNELS_FIRST, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)
ORDERS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ("transposed", torch.float32, (16384, 16384), (0, 1), (1, 0)),
    ("NCHW, NHWC", torch.float32, (64, 96, 160, 160), CHANNELS_FIRST, CHANNELS_LAST),
    ("NCHW, NHWC", torch.bfloat16, (64, 96, 160, 160), CHANNELS_FIRST, CHANNELS_LAST),
    ("NHWC, NCHW", torch.bfloat16, (64, 96, 160, 160), CHANNELS_LAST, CHANNELS_FIRST),
    ("cycled", torch.float32, (512, 512, 512), (0, 1, 2), (2, 0, 1)),
    ("cycled", torch.bfloat16, (511, 513, 515), (0, 1, 2), (2, 0, 1)),
    ("NCHW, NHWC", torch.float32, (256, 3, 512, 512), CHANNELS_FIRST, CHANNELS_LAST),
    ("NHWC, NCHW", torch.float32, (256, 3, 512, 512), CHANNELS_LAST, CHANNELS_FIRST),
]


def orders() -> list[dict[str, Any]]:
    """MSE of operands whose memory orders differ, beside eager and torch.compile."""
    return one_by_one((functools.partial(_order, *problem) for problem in ORDERS), _ratios)


def _order(
    name: str,
    dtype: Any,
    shape: tuple[int, ...],
    first: tuple[int, ...],
    second: tuple[int, ...],
    seed: int,
) -> dict[str, Any]:
    size = math.prod(shape)
    input, target = (
        flat.view([shape[axis] for axis in order]).permute(
            [order.index(axis) for axis in range(len(shape))]
        )
        for flat, order in zip(draw(size, dtype, seed), (first, second), strict=True)
    )
    ours = cupy_losses.mse_loss
    peers = beside_torch(ours, F.mse_loss, dynamic=False)
    one, both = value_and_grad(ours), value_and_grad(ours, (0, 1))

    value, slopes = both(input, target)
    error = error_in_ulps(value, exact_mean("mse_loss", input, target))
    assert error <= 1, (name, dtype, error)
    again, slope = one(input, target)
    assert again == value
    assert ours(input, target) == value
    assert torch.equal(slope, slopes[0])
    rounding = 4 * torch.finfo(dtype).eps
    for part in (slice(0, 8), slice(-8, None)):
        exact = exact_slope("mse_loss", input[part], target[part]) / size
        for gradient, sign in zip(slopes, (1, -1), strict=True):
            torch.testing.assert_close(
                gradient[part].double(), sign * exact, rtol=rounding, atol=1e-30
            )
    check_autograd(ours, [input, target], [slope])
    del slope, slopes, exact, gradient

    times = in_turn(
        {
            **forward_works(peers, [input, target]),
            "value_and_grad_ms": lambda: one(input, target),
            "both_gradients_ms": lambda: both(input, target),
        }
    )
    leaf = input.detach().requires_grad_()
    times |= in_turn(
        of_each(
            peers,
            "forward_backward_ms",
            lambda loss: functools.partial(gradients, loss, [leaf], [target]),
        )
    )
    return {
        "orders": name,
        "dtype": dtype_name(dtype),
        "shape": shape,
        "error_ulp": error,
        "forward_bytes": 2 * input.itemsize * size,
        "gradient_bytes": 3 * input.itemsize * size,
        **times,
    }


def _ratios(result: dict[str, Any]) -> str:
    """Times and, in brackets, what they are in units of the time of the bytes."""
    both = time_of_bytes(2 * result["forward_bytes"], writing=True)
    found = {**ratios(result), "both_gradients_ms": result["both_gradients_ms"] / both}
    parts = [f"{result['orders']} {result['dtype']} {result['shape']}:"]
    for name in ("forward", "value_and_grad", "both_gradients"):
        parts.append(f"{name} {result[f'{name}_ms']:.3f} ms ({found[f'{name}_ms']:.2f})")
    for peer in ("eager", "compiled"):
        forward, backward = (result[f"{peer}_forward{more}_ms"] for more in ("", "_backward"))
        parts.append(f"{peer} {forward:.3f} / {backward:.3f} ms")
    return " ".join(parts)


def rows() -> dict[str, Any]:
    """Losses over rows, beside eager, torch.compile and Liger-Kernel, and MSE's bandwidth."""
    pair = draw(1 << 30, torch.float32, 0)
    mse = in_turn({"mse_forward_ms": functools.partial(cupy_losses.mse_loss, *pair)})
    del pair
    problems = one_by_one(functools.partial(_problem, problem) for problem in over_rows.PROBLEMS)
    memory = [_memory_of(problem) for problem in over_rows.MAIN[:2]]
    return {"mse_forward_bytes": 8 << 30, **mse, "problems": problems, "memory": memory}


def _problem(problem: over_rows.Problem, seed: int) -> dict[str, Any]:
    operands = problem.draw(seed)
    error = over_rows.check(problem, operands)
    names = ("eager", "compiled", "liger") if problem.compiled else ("eager", "liger")
    peers = over_rows.peers(problem, names)
    works = forward_works(peers, operands)
    if problem.backward:
        works["value_and_grad_ms"] = over_rows.value_and_grad_work(problem, operands)
    pair = draw(problem.bytes_read(operands) // 8, torch.float32, seed)
    works["mse_forward_ms"] = functools.partial(cupy_losses.mse_loss, *pair)
    times = in_turn(works, problem.runs)
    del works, pair
    if problem.backward:
        times |= in_turn(over_rows.backward_works(problem, peers, operands), problem.runs)
    return problem.result(operands, error, times)


def _memory_of(problem: over_rows.Problem) -> dict[str, Any]:
    """Peak memory of forward and backward beyond the inputs, in bytes."""
    input, *others = problem.draw(0)
    leaf = input.detach().requires_grad_()
    overwriting = value_and_grad(functools.partial(problem.ours, overwrite_input=True))
    # Those that write over the input come last.
    works: Works = {
        "peak": functools.partial(gradients, problem.ours, [leaf], others),
        "eager_peak": functools.partial(gradients, problem.eager, [leaf], others),
        "overwriting_peak": functools.partial(overwriting, input, *others),
    }
    if problem.liger:
        works["liger_peak"] = functools.partial(gradients, problem.liger, [leaf], others)
    result = {
        "loss": str(problem),
        "shape": problem.whole_shape,
        "dtype": dtype_name(problem.dtype),
        "gradient_bytes": problem.bytes_written([input]),
    }
    return result | {name: _peak(work) for name, work in works.items()}


def _peak(work: Callable[[], Any]) -> int:
    """What the device holds during the work beyond what it held before, in bytes."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def instructions() -> list[dict[str, Any]]:
    """What the kernels of every loss execute: thread instructions an element, counted by ncu."""
    counter = ["ncu", "--csv", "--metrics", "smsp__thread_inst_executed.sum", "-k", "pointwise"]
    counted = subprocess.run(
        [*counter, sys.executable, "-m", "benchmarks.losses"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    start = next(i for i, line in enumerate(counted) if line.startswith('"ID"'))
    counts = [int(row["Metric Value"].replace(",", "")) for row in csv.DictReader(counted[start:])]
    forward, both = counts[::2], counts[1::2]
    elements = table.COUNTED[0] * table.COUNTED[1]
    return [
        {"loss": str(row), "forward": a / elements, "forward_backward": b / elements}
        for row, a, b in zip(table.ROWS, forward, both, strict=True)
    ]


def _rows_of(x: Any, first: int, rows: int) -> Any:
    """Some rows of an operand in float64; one that is broadcast along them is the same in each."""
    return (x[first : first + rows] if x.ndim > 1 else x).double()


def small() -> dict[str, Any]:
    """Calls so small that the host's time counts."""
    input, target = draw(1024, torch.float32, 0)
    leaf = input.clone().requires_grad_()
    arrays = [cupy.from_dlpack(x) for x in (input, target)]
    ours, eager = cupy_losses.mse_loss, F.mse_loss
    value, gradient = value_and_grad(ours)(input, target)
    assert error_in_ulps(value, exact_mean("mse_loss", input, target)) <= 2
    check_gradient("mse_loss", input, target, gradient)
    check_autograd(ours, [input, target], [gradient])
    from cupy_losses._libraries.torch import Exporter

    result: dict[str, Any] = {"elements": 1024}
    result |= host_microseconds(
        {
            "forward_us": lambda: ours(input, target),
            "eager_forward_us": lambda: eager(input, target),
            "forward_with_graph_us": lambda: ours(leaf, target),
            "eager_forward_with_graph_us": lambda: eager(leaf, target),
            "forward_backward_us": autograd(ours, leaf, target),
            "eager_forward_backward_us": autograd(eager, leaf, target),
            "cupy_forward_us": lambda: ours(*arrays),
            "cupy_expression_us": lambda: CUPY_EXPRESSIONS["mse_loss"](*arrays),
            "cupy_value_and_grad_us": lambda: value_and_grad(ours)(*arrays),
        }
    )
    result["sharing_us"] = host_microseconds(
        {
            "cupy.from_dlpack(tensor)": lambda: cupy.from_dlpack(input),
            "cupy.from_dlpack(thin exporter)": lambda: cupy.from_dlpack(Exporter(input)),
            "loss of a CuPy array and a tensor": lambda: ours(arrays[0], target),
            "tensor.data_ptr(), shape, strides, dtype": lambda: (
                input.data_ptr(),
                input.shape,
                input.stride(),
                input.dtype,
            ),
        }
    )
    # 2^20 elements: 16 pairs in turn, so that none is in the cache; as called, and as the device
    # sees it, in a graph.
    pairs = [draw(1 << 20, torch.float32, seed) for seed in range(16)]
    for label, loss in (("", ours), ("eager_", eager)):
        work = functools.partial(_each, loss, pairs)
        result[f"{label}forward_2_20_us"] = milliseconds(work, 50, ahead=0) / len(pairs) * 1e3
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        result[f"{label}forward_2_20_device_us"] = milliseconds(graph.replay, 50) / len(pairs) * 1e3
    return result


def _each(loss: Callable[..., Any], pairs: list[tuple[Any, Any]]) -> None:
    for pair in pairs:
        loss(*pair)


def memory() -> dict[str, Any]:
    """Peak memory of forward and backward at 2^28 elements, beyond the inputs, in bytes."""
    size = 1 << 28
    result: dict[str, Any] = {"elements": size, "gradient_bytes": 4 * size}
    for label, module in (("", cupy_losses), ("eager_", F)):
        for name in LOSSES:
            input, target = draw(size, torch.float32, 0)
            loss = getattr(module, name)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            kept = loss(input, target)
            forward = torch.cuda.memory_allocated() - before
            del kept
            input.requires_grad_()
            peak = _peak(autograd(loss, input, target))
            result[f"{label}{name}"] = {"kept_without_grad": forward, "peak_forward_backward": peak}
            del input, target
            release_memory()
    return result


FIRST_CALL = """
import sys, time, cupy
x = cupy.ones((4096, 1000), cupy.float32)
y = {"mse_loss": cupy.zeros_like(x), "cross_entropy": cupy.zeros(4096, cupy.int64)}[sys.argv[1]]
cupy.cuda.Device().synchronize()
start = time.perf_counter()
import cupy_losses
loss = getattr(cupy_losses, sys.argv[1])
if sys.argv[2] == "value_and_grad":
    loss = cupy_losses.value_and_grad(loss)
result = loss(x, y)
cupy.cuda.Device().synchronize()
print(time.perf_counter() - start)
value = result[0] if isinstance(result, tuple) else result
assert abs(float(value) - {"mse_loss": 1.0, "cross_entropy": 6.907755}[sys.argv[1]]) < 1e-5
"""
FIRST_RUNS = 5


def first_call() -> dict[str, Any]:
    """Seconds of the first call in a process, after importing CuPy and using the device once."""
    result: dict[str, Any] = {}
    for name in ("mse_loss", "cross_entropy"):
        for call in ("forward", "value_and_grad"):
            empty = [_first_call_process(name, call, tempfile.mkdtemp()) for _ in range(FIRST_RUNS)]
            cache = tempfile.mkdtemp()
            _first_call_process(name, call, cache)
            warm = [_first_call_process(name, call, cache) for _ in range(FIRST_RUNS)]
            result[f"{name}, {call}"] = {
                "empty_cache_s": statistics.median(empty),
                "warm_cache_s": statistics.median(warm),
            }
    return result


def _first_call_process(name: str, call: str, cache: str) -> float:
    # CuPy's own kernels that fill an array belong to the set-up, not to the first call.
    return float(
        subprocess.run(
            [sys.executable, "-c", FIRST_CALL, name, call],
            env={**os.environ, "CUPY_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def scaling() -> list[dict[str, Any]]:
    """Time an element and error from 2^10 to 2^33 elements, MSE in float32."""
    rows = []
    for exponent in range(10, 34):
        size = 1 << exponent
        if 13 * size > torch.cuda.mem_get_info()[0]:
            continue
        input, target = draw(size, torch.float32, exponent)
        value, gradient = value_and_grad(cupy_losses.mse_loss)(input, target)
        error = error_in_ulps(value, exact_mean("mse_loss", input, target))
        assert error <= (1 if size >= 4096 else 2), (size, error)
        check_gradient("mse_loss", input, target, gradient)
        del gradient
        runs = 5 if exponent > 30 else RUNS
        loss = cupy_losses.mse_loss
        forward = milliseconds(functools.partial(loss, input, target), runs)
        both = milliseconds(functools.partial(value_and_grad(loss), input, target), runs)
        rows.append(
            {
                "elements": size,
                "error_ulp": error,
                "forward_ms": forward,
                "value_and_grad_ms": both,
                "forward_ps_per_element": forward / size * 1e9,
                "value_and_grad_ps_per_element": both / size * 1e9,
            }
        )
        del input, target, value
        torch.cuda.empty_cache()
    return rows


def accuracy() -> list[dict[str, Any]]:
    """The worst errors over sizes, for every loss, dtype and reduction, in ulps."""
    rows = []
    for name in LOSSES:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            worst: dict[str, float] = {"below 4096": 0.0, "from 4096": 0.0, "gradient": 0.0}
            sizes = [1, 2, 10, 1000, 4095, 4096, 10_007, 1_000_003, 2**27 + 5, 2**31 + 7]
            sizes += [2**33] if dtype == torch.float32 else [2**33 + 11]
            for size in sizes:
                _accuracy_of(name, dtype, size, worst)
            rows.append({"loss": name, "dtype": dtype_name(dtype), **worst})
    return rows


def _accuracy_of(name: str, dtype: Any, size: int, worst: dict[str, float]) -> None:
    loss = getattr(cupy_losses, name)
    for seed in range(20 if size < 10_000 else 1):
        input, target = draw(size, dtype, seed + size % 1000)
        exact = exact_mean(name, input, target)
        kind = "below 4096" if size < 4096 else "from 4096"
        for reduction, factor in (("mean", 1.0), ("sum", float(size))):
            value, gradient = value_and_grad(loss)(input, target, reduction=reduction)
            worst[kind] = max(worst[kind], error_in_ulps(value, exact * factor))
            for start in range(0, size, 1 << 28):
                part = slice(start, start + (1 << 26))  # a quarter of large arrays
                slope = exact_slope(name, input[part], target[part])
                error = ulps(gradient[part], slope * (factor / size))
                worst["gradient"] = max(worst["gradient"], error)
            del gradient
        del input, target
    torch.cuda.empty_cache()


SECTIONS: dict[str, Callable[[], Any]] = {
    "first_call": first_call,
    "small": small,
    "bandwidth": bandwidth,
    "losses": losses,
    "halves": halves,
    "orders": orders,
    "broadcast": broadcast,
    "rows": rows,
    "instructions": instructions,
    "memory": memory,
    "scaling": scaling,
    "accuracy": accuracy,
}


def main() -> None:
    """Run the sections and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    results = {"environment": environment()}
    for name in arguments.only:
        start = time.perf_counter()
        results[name] = SECTIONS[name]()
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

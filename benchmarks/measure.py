"""What the benchmarks share: timers, errors, the time of the bytes, the environment."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cupy_losses._commands import environment as of_package

RUNS = 15
AHEAD = 2_000_000  # cycles of the device: a millisecond

Result = dict[str, Any]
Loss = Callable[..., Any]
Works = dict[str, Callable[[], Any]]
# The functions of one loss, by what the names of their times begin with: "" for this package's.
Peers = dict[str, Loss]


def milliseconds(
    work: Callable[[], Any], runs: int = RUNS, warm_up: int = 3, ahead: int = AHEAD
) -> float:
    """The median device time of a call.

    The device is busy for `ahead` cycles, while the host launches all of it: the host's time is not
    in what is measured.
    """
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if ahead:
            torch.cuda._sleep(ahead)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def in_turn(works: dict[str, Callable[[], Any]], runs: int = RUNS) -> dict[str, float]:
    """The median device time of each, taken in turn: the speed of memory drifts over seconds."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs + 2):
        for name, work in works.items():
            times[name].append(milliseconds(work, 1, 1))
    return {name: statistics.median(taken[2:]) for name, taken in times.items()}


def host_microseconds(works: dict[str, Callable[[], Any]], calls: int = 300) -> dict[str, float]:
    """The median time until a call returns, over batches of calls taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(12):
        for name, work in works.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                work()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(batches[2:]) for name, batches in times.items()}


def one_by_one(
    problems: Iterable[Callable[[int], Result]], described: Callable[[Result], object] = dict
) -> list[Result]:
    """Measure each problem, given its number as a seed, and print its result.

    None finds memory that another one has left behind.
    """
    results = []
    for seed, measured in enumerate(problems):
        results.append(measured(seed))
        print(described(results[-1]), file=sys.stderr)
        release_memory()
    return results


def release_memory() -> None:
    """Give the device memory back that nothing refers to any more."""
    gc.collect()
    torch.cuda.empty_cache()


def compiled(function: Loss, **options: Any) -> Loss:
    """What torch.compile makes of a function, as in a process that has compiled nothing else."""
    torch._dynamo.reset()
    return torch.compile(function, **options)


def beside_torch(ours: Loss, eager: Loss, **options: Any) -> Peers:
    """Our function, torch's, and what torch.compile makes of that with these options."""
    return {"": ours, "eager_": eager, "compiled_": compiled(eager, **options)}


def of_each(peers: Peers, name: str, work: Callable[[Loss], Callable[[], Any]]) -> Works:
    """The same work by each of the functions."""
    return {f"{peer}{name}": work(loss) for peer, loss in peers.items()}


def forward_works(peers: Peers, operands: Sequence[Any]) -> Works:
    """Forward passes."""
    return of_each(peers, "forward_ms", lambda loss: functools.partial(loss, *operands))


def gradients(loss: Callable[..., Any], leaves: Sequence[Any], others: Sequence[Any]) -> Any:
    """Autograd's gradients, as a layer below would get them: not copied to the leaves."""
    return torch.autograd.grad(loss(*leaves, *others), leaves)


def check_autograd(loss: Loss, operands: Sequence[Any], found: Sequence[Any]) -> None:
    """Raise unless autograd's gradients have the bits of those that were checked."""
    leaves = [x.detach().requires_grad_() for x in operands[: len(found)]]
    for own, checked in zip(gradients(loss, leaves, operands[len(found) :]), found, strict=True):
        assert torch.equal(own, checked)


def ulps(values: Any, exact: Any) -> float:
    """The largest distance from the rounded float64 result, in units of the last place.

    Raises:
        AssertionError: If one of them alone is NaN.

    """
    info = torch.finfo(values.dtype)
    rounded = exact.to(values.dtype).double()
    smallest = torch.frexp(torch.tensor(info.smallest_normal, dtype=torch.float64))[1].item()
    exponent = torch.frexp(rounded)[1].clamp_min(smallest)
    distance = (values.double() - rounded).abs() / torch.ldexp(
        torch.full_like(rounded, info.eps), exponent - 1
    )
    same = values.double() == rounded  # infinities of a float16 sum
    largest = float(distance.masked_fill(same, 0).max())
    assert not math.isnan(largest), "a NaN, which has no distance"
    return largest


def error_in_ulps(value: Any, exact: float) -> float:
    """The error of one loss."""
    return ulps(value, torch.tensor(exact, dtype=torch.float64, device=value.device))


def time_of_bytes(moved: float, writing: bool) -> float:
    """The milliseconds that passes over dense operands take on an H200 to move so many bytes.

    4.62 TB/s and 4 µs without writes, 4.1 TB/s and 6 µs with them.
    """
    return moved / 4.1e9 + 0.006 if writing else moved / 4.62e9 + 0.004


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """The times of a result, forward and with one gradient, in units of the time of its bytes."""
    forward = time_of_bytes(result["forward_bytes"], writing=False)
    gradient = time_of_bytes(result["gradient_bytes"], writing=True)
    found = {}
    for name, value in result.items():
        if name.endswith("forward_ms"):
            found[name] = value / forward
        elif name.endswith(("value_and_grad_ms", "forward_backward_ms")):
            found[name] = value / gradient
    return found


def environment() -> dict[str, Any]:
    """GPU, versions and date."""
    import cupy

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    of_torch = {"driver": driver.stdout.split()[0], "cuda": torch.version.cuda}
    return {**of_package.environment(cupy), **of_torch}

"""How long works take: on the host the time of the CPU, on a device the time between events.

Works are taken in turn, since the speed of a machine drifts over seconds. The time of each is the
median of its runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from .._device import driver
from .._device.sources import source

RUNS = 15  # of each work, after the first ones
FEWEST = 3
SECONDS = 10.0  # after which there are no more than the fewest
AT_LEAST = 5e-3  # seconds of a run on the host, of which a clock says enough
AHEAD = 2_000_000  # cycles of the device: a millisecond
CACHES = 4  # caches of a device that are read to empty one

Key = TypeVar("Key", bound=Hashable)

OPTIONS = ("-std=c++17",)
WAIT = "kernels/wait.cu"


def on_host(works: Mapping[Key, Callable[[], Any]], runs: int = RUNS) -> dict[Key, float]:
    """The milliseconds of the CPU that a call of each takes, in runs of many calls."""
    return _in_turn({name: _batch(work) for name, work in works.items()}, runs)


def _batch(work: Callable[[], Any]) -> Callable[[], float]:
    """A run of as many calls as it takes, which returns the milliseconds of one."""
    work()
    start = time.process_time()
    work()
    count = max(1, int(AT_LEAST / max(time.process_time() - start, 1e-6)))

    def timed() -> float:
        start = time.process_time()
        for _ in range(count):
            work()
        return 1e3 * (time.process_time() - start) / count

    return timed


def on_device(works: Mapping[Key, Callable[[], Any]], runs: int = RUNS) -> dict[Key, float]:
    """The milliseconds that the device takes for a call of each, of operands in its memory.

    Before each run the cache is filled with other numbers, by reading them: what is written there
    would have to leave the cache during the run. Then the device waits, while the host launches all
    of the run, so that the host's time is not in what is measured.
    """
    cupy = driver.cupy()
    device = cupy.cuda.runtime.getDevice()
    others = cupy.zeros(CACHES * driver.cache_bytes(device) // 4, dtype=cupy.float32)
    wait = driver.compile(source(WAIT), "wait", OPTIONS)

    def prepare() -> None:
        others.sum()
        wait((1,), (1,), (AHEAD,))

    def timed(work: Callable[[], Any]) -> Callable[[], float]:
        work()
        return lambda: by_events(work, prepare)

    return _in_turn({name: timed(work) for name, work in works.items()}, runs)


def by_events(work: Callable[[], Any], prepare: Callable[[], None] | None = None) -> float:
    """The milliseconds between what the device does before a call and behind it."""
    cuda = driver.cupy().cuda
    begin, end = cuda.Event(), cuda.Event()
    if prepare is not None:
        prepare()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(cuda.get_elapsed_time(begin, end))


def _in_turn(timed: Mapping[Key, Callable[[], float]], runs: int) -> dict[Key, float]:
    times: dict[Key, list[float]] = {name: [] for name in timed}
    start = time.perf_counter()
    for run in range(runs):
        if run >= FEWEST and time.perf_counter() - start > SECONDS:
            break
        for name, run_of in timed.items():
            times[name].append(run_of())
    return {name: statistics.median(found) for name, found in times.items()}

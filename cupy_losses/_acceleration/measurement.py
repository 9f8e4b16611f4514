"""Times of calls like those that came: by torch and by this package, with CUDA events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._api.entrance import evaluate
from .replacement import FUNCTIONS, Replaced
from .report import Times
from .tallies import Layout, Sample, Tally

_LINES = 32  # of those with the most calls
_REPEATS = 5  # of which the median counts
_CALLS = 10  # between two events
# How long they take depends on the values of the target.
_BY_VALUES = ("multilabel_margin_loss",)


def times_of(calls: Mapping[Tally, int]) -> dict[Tally, Times]:
    """The times of one call of each kind that is on a GPU."""
    functions = {function.name: function for function in FUNCTIONS}
    often = sorted(calls, key=lambda tally: calls[tally], reverse=True)
    found = {}
    for tally in [tally for tally in often if _is_measurable(tally)][:_LINES]:
        assert tally.sample is not None
        try:
            found[tally] = _times(functions[tally.kind.function], tally.sample)
        except (torch.cuda.OutOfMemoryError, TypeError, ValueError):
            continue  # the program has the memory, or the first call had a bad option
    return found


def _is_measurable(tally: Tally) -> bool:
    if tally.sample is None or tally.kind.function in _BY_VALUES:
        return False
    layouts = [x for x in tally.sample.arguments.values() if isinstance(x, Layout)]
    return all(layout.device.type == "cuda" for layout in layouts)


def _times(function: Replaced, sample: Sample) -> Times:
    device = next(x.device for x in sample.arguments.values() if isinstance(x, Layout))
    with torch.cuda.device(device), torch.autocast("cuda", enabled=sample.autocast):
        arguments = _arguments(sample)
        calls = [lambda: function.torch(**arguments), lambda: _by_us(function, arguments)]
        leaves = [x for x in arguments.values() if isinstance(x, torch.Tensor) and x.requires_grad]
        steps = [_step(call, leaves) for call in calls]
        for step in steps:
            step()
        # In turns, so that what else goes on is the same for both.
        times = [[_seconds(step) for step in steps] for _ in range(_REPEATS)]
    # Not by the module `statistics`: a program may have one of its own.
    return Times(*(sorted(own)[_REPEATS // 2] for own in zip(*times, strict=True)))


def _by_us(function: Replaced, arguments: dict[str, Any]) -> torch.Tensor:
    return evaluate(*function.prepared(arguments))  # type: ignore[no-any-return]


def _step(call: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> Callable[[], None]:
    """A call and, where something requires grad, its backward pass."""

    def step() -> None:
        with torch.enable_grad():
            value = call()
            if leaves:
                torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)

    return step


def _seconds(step: Callable[[], None]) -> float:
    event: Callable[..., Any] = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for _ in range(_CALLS):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _CALLS


def _arguments(sample: Sample) -> dict[str, Any]:
    """Arguments like those of a sample, with random values that all losses take."""
    first = next(x for x in sample.arguments.values() if isinstance(x, Layout))
    classes = first.shape[min(1, len(first.shape) - 1)] if first.shape else 1
    generator = torch.Generator(first.device).manual_seed(0)
    arguments = dict(sample.arguments)
    for name, x in arguments.items():
        if not isinstance(x, Layout):
            continue
        # Elements may share memory, as those of an expanded tensor do.
        last = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True))
        memory = torch.empty(0 if 0 in x.shape else last + 1, dtype=x.dtype, device=x.device)
        if x.dtype.is_floating_point:
            memory.uniform_(0.01, 0.99, generator=generator)
        else:
            memory.random_(0, classes, generator=generator)
        tensor = memory.as_strided(x.shape, x.strides)
        arguments[name] = tensor.requires_grad_(x.requires_grad)
    return arguments

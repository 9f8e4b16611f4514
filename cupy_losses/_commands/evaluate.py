"""The main job: losses and gradients of real predictions, with their error and speed."""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .. import grad, huber_loss, l1_loss, mse_loss, smooth_l1_loss, value_and_grad
from .._api.entrance import prepare_of
from .._core.pointwise import PointwiseFormula

Array = Any

CHUNK = 1 << 26  # elements of the float64 reference at a time
SAMPLE = 1 << 24  # elements of the gradient that are compared, about
REPEATS = 5  # timed runs, after one that compiles


def add_parser(commands: Any) -> None:
    """Add the subcommand to the argument parser."""
    parser = commands.add_parser(
        "evaluate",
        help="losses and gradients of predictions",
        description="Compute each loss and its gradient, with the speed and the error against the "
        "formula of the host in float64: on NumPy that is the rounding of the result alone. Given "
        "no data, it predicts the progression of diabetes by least squares.",
    )
    parser.add_argument("--prediction", metavar="FILE", help="predictions, a .npy file")
    parser.add_argument("--target", metavar="FILE", help="true values, a .npy file")
    parser.add_argument(
        "--elements", metavar="SHAPE", help="synthetic data of a shape, such as 32768x32768"
    )
    parser.add_argument("--dtype", default=None, help="convert to this dtype first")
    parser.add_argument("--backend", choices=("cupy", "numpy"), help="default: CuPy on a GPU")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Row:
    """What is reported of one loss. Errors are relative to the host's formula in float64."""

    loss: str
    value: float
    error: float
    gradient_norm: float
    gradient_error: float
    forward_ms: float
    forward_gb_per_s: float
    gradient_ms: float
    gradient_gb_per_s: float


def run(arguments: argparse.Namespace) -> None:
    """Compute and print."""
    xp, backend, why = _choose_backend(arguments.backend)
    prediction, target, source = _data(arguments, xp)
    rows = list(_rows(xp, prediction, target))
    report = {
        "data": source,
        "shape": list(prediction.shape),
        "dtype": str(prediction.dtype),
        "backend": backend,
        "reason": why,
        "losses": [asdict(row) for row in rows],
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report, rows)


def _choose_backend(wanted: str | None) -> tuple[Any, str, str]:
    """The array module, its name, and why it was chosen."""
    if wanted == "numpy":
        return np, "NumPy", "asked for"
    try:
        from .._device.driver import cupy

        xp = cupy()
        count = xp.cuda.runtime.getDeviceCount()
        properties = xp.cuda.runtime.getDeviceProperties(0) if count else None
    except Exception as error:
        if wanted == "cupy":
            raise RuntimeError(f"no CuPy on a GPU: {error}") from error
        return np, "NumPy", f"no GPU: {str(error).splitlines()[0]}"
    if properties is None:
        return np, "NumPy", "no GPU: CuPy finds no device"
    return xp, f"CuPy on {properties['name'].decode()}", "a GPU is there"


def _data(arguments: argparse.Namespace, xp: Any) -> tuple[Array, Array, str]:
    given = [arguments.prediction, arguments.target]
    if arguments.elements and any(given):
        raise ValueError("--elements makes its own data: give it without --prediction and --target")
    if any(given) and not all(given):
        raise ValueError("--prediction and --target go together")
    if all(given):
        pair: tuple[Array, ...] = tuple(np.load(file, mmap_mode="r") for file in given)
        source = f"{given[0]} against {given[1]}"
    elif arguments.elements:
        return (*_synthetic(arguments, xp), f"synthetic, {arguments.elements}")
    else:
        pair = _diabetes()
        source = "progression of diabetes, held-out patients, least squares"
    dtype = np.dtype(arguments.dtype) if arguments.dtype else None
    prediction, target = (xp.asarray(np.asarray(array, dtype)) for array in pair)
    return prediction, target, source


def _synthetic(arguments: argparse.Namespace, xp: Any) -> tuple[Array, Array]:
    """Normal deviates: errors on both sides of every kink."""
    try:
        shape = tuple(int(length) for length in arguments.elements.lower().split("x"))
    except ValueError:
        raise ValueError(
            f"--elements must look like 32768x32768, got {arguments.elements}"
        ) from None
    dtype = np.dtype(arguments.dtype or "float32")
    generator = xp.random.default_rng(0)
    drawn = dtype if dtype.itemsize >= 4 else np.dtype("float32")
    pair = (generator.standard_normal(shape, dtype=drawn).astype(dtype, copy=False) for _ in "ab")
    prediction, target = pair
    return prediction, target


def _diabetes() -> tuple[Array, Array]:
    """Predictions for every third patient, from a least-squares fit to the others."""
    file = importlib.resources.files("cupy_losses") / "data" / "diabetes.csv"
    with file.open(encoding="utf-8") as lines:
        table = np.loadtxt(lines, delimiter=",")
    held_out = np.arange(len(table)) % 3 == 0
    features = np.column_stack([np.ones(len(table)), table[:, :-1]])
    fit, *_ = np.linalg.lstsq(features[~held_out], table[~held_out, -1], rcond=None)
    prediction = (features[held_out] @ fit).astype(np.float32)
    return prediction, table[held_out, -1].astype(np.float32)


_LOSSES = (mse_loss, l1_loss, smooth_l1_loss, huber_loss)


def _rows(xp: Any, prediction: Array, target: Array) -> Iterator[Row]:
    size = np.broadcast_shapes(prediction.shape, target.shape)
    count = int(np.prod(size))
    item = prediction.dtype.itemsize
    forward_bytes = count * (item + target.dtype.itemsize)
    progress = _Progress(len(_LOSSES))
    for loss in _LOSSES:
        name = loss.__name__
        progress.show(name)
        both = value_and_grad(loss)
        value, gradient = both(prediction, target)
        reference, norm, worst = _reference(xp, loss, prediction, target, gradient)
        forward = _milliseconds(xp, functools.partial(loss, prediction, target))
        with_gradient = _milliseconds(xp, functools.partial(both, prediction, target))
        yield Row(
            loss=name,
            value=float(value),
            error=abs(float(value) - reference) / abs(reference) if reference else 0.0,
            gradient_norm=norm,
            gradient_error=worst,
            forward_ms=forward,
            forward_gb_per_s=forward_bytes / forward / 1e6,
            gradient_ms=with_gradient,
            gradient_gb_per_s=(forward_bytes + count * item) / with_gradient / 1e6,
        )
    progress.clear()


def _reference(
    xp: Any, loss: Callable[..., Any], prediction: Array, target: Array, gradient: Array
) -> tuple[float, float, float]:
    """The mean in float64, the norm of the gradient, and the gradient's largest error.

    They come from the formula of the host, which the kernels do not share: the mean by calling it
    with the arrays, the derivative from the host backend. The error is relative to the largest
    element of the gradient.
    """
    prediction, target = xp.broadcast_arrays(prediction, target)
    if gradient.shape != prediction.shape:
        raise ValueError("the prediction must have the shape of the loss")
    call, _ = prepare_of(loss)(prediction, target)
    assert isinstance(call.loss, PointwiseFormula)
    formula = call.loss.formula
    assert formula is not None
    count = prediction.size
    total = norm = 0.0
    for part in _parts(prediction.shape, CHUNK):
        x, y, own = (array[part].astype("float64") for array in (prediction, target, gradient))
        total += float(formula(x, y, **call.named_parameters).sum())
        norm += float((own * own).sum())
    part = next(_parts(prediction.shape, SAMPLE))
    x, y, own = (_on_host(array[part]) for array in (prediction, target, gradient))
    exact = grad(loss)(x, y, reduction="sum") / count
    worst, largest = (float(abs(error).max()) for error in (own - exact, exact))
    return total / count, norm**0.5, worst / largest if largest else 0.0


def _parts(shape: tuple[int, ...], size: int) -> Iterator[Any]:
    """Indices of consecutive parts along the first axis, of about `size` elements."""
    if not shape:
        yield ()
        return
    rows = max(1, size // max(1, int(np.prod(shape[1:]))))
    for first in range(0, shape[0], rows):
        yield slice(first, first + rows)


def _on_host(array: Array) -> Array:
    """The same values in NumPy, in float64."""
    return np.asarray(array.get() if hasattr(array, "get") else array, "float64")


def _milliseconds(xp: Any, work: Callable[[], Any]) -> float:
    """The median time of a call, on the device where there is one."""
    work()
    times = []
    for _ in range(REPEATS):
        if xp is np:
            start = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - start))
        else:
            begin, end = xp.cuda.Event(), xp.cuda.Event()
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(float(xp.cuda.get_elapsed_time(begin, end)))
    return float(np.median(times))


class _Progress:
    """One line on a terminal that says what is under way; silent elsewhere."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._terminal = sys.stderr.isatty()

    def show(self, name: str) -> None:
        """Say that `name` is being computed."""
        if self._terminal:
            print(f"\r\x1b[K{self._done + 1}/{self._count} {name}", end="", file=sys.stderr)
            sys.stderr.flush()
        self._done += 1

    def clear(self) -> None:
        """Remove the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr)


def _print_table(report: dict[str, Any], rows: list[Row]) -> None:
    shape = " × ".join(map(str, report["shape"])) or "one number"
    print(f"{report['data']}: {shape}, {report['dtype']}")
    print(f"backend: {report['backend']} ({report['reason']})\n")
    print(
        f"{'':16}{'':>12}{'error':>10}{'|gradient|':>12}{'error':>10}"
        f"{'forward':>12}{'':>10}{'+ gradient':>12}"
    )
    print(
        f"{'loss':16}{'mean':>12}{'relative':>10}{'':>12}{'relative':>10}"
        f"{'ms':>12}{'GB/s':>10}{'ms':>12}{'GB/s':>10}"
    )
    for row in rows:
        print(
            f"{row.loss:16}{row.value:12.6g}{row.error:10.1e}{row.gradient_norm:12.4g}"
            f"{row.gradient_error:10.1e}{row.forward_ms:12.4g}{row.forward_gb_per_s:10.4g}"
            f"{row.gradient_ms:12.4g}{row.gradient_gb_per_s:10.4g}"
        )

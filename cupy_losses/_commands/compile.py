"""The kernel cache, filled ahead of the first calls."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from .._core.dtypes import FLOATING
from .._core.loss import FORWARD, Request
from .._core.shapes import ArraySpec, Shape
from .._device import driver, precompile
from . import losses, progress, synthetic
from .command import Command
from .report import print_table

# What a call asks for, what `value_and_grad` does, what a step of training by torch's autograd.
_REQUESTS = (FORWARD, Request(wanted=(0,)), Request(wanted=(0,), early=True))
_NOT_REDUCED = (FORWARD, Request(value=False, wanted=(0,), vjp=True))


class _Architecture(click.Choice[str]):
    """A compute capability, such as 90, 9.0 or sm_90."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        plain = str(value).lower().removeprefix("sm_").replace(".", "")
        return super().convert(plain if plain in self.choices else value, param, ctx)


@click.command("compile", cls=Command, short_help="Fill the kernel cache ahead of the first calls.")
@losses.option(default="all")
@losses.parameter_option
@click.option(
    "--reduction",
    type=click.Choice(["mean", "sum", "none", "batchmean"]),
    default="mean",
    show_default=True,
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(FLOATING),
    default=["float32"],
    show_default=True,
    help="That of the operands; again for more.",
)
@click.option(
    "--architecture",
    "architectures",
    multiple=True,
    type=_Architecture([str(number) for number in driver.SHARED_MEMORY]),
    help="The compute capability, 90, 9.0 or sm_90; again for more.  [default: that of the GPU]",
)
@click.option(
    "--elements",
    metavar="SHAPE",
    default="4096x1024",
    show_default=True,
    help="The shape of the operands; for losses over classes, that of the logits. Kernels depend "
    "on the length of rows.",
)
def command(
    names: Sequence[str],
    parameters: Sequence[str],
    reduction: str,
    dtypes: Sequence[str],
    architectures: Sequence[str],
    elements: str,
) -> None:
    """Fill the kernel cache ahead, so that first calls like these do not compile.

    Compiles what a loss, its gradient by the first operand and a step of training with torch need,
    for contiguous operands of one shape, with class indices as targets, and without a weight or a
    mask. Another number for a parameter compiles nothing; some other flags, and whether
    label_smoothing and z_loss are 0, do. A GPU is needed only to know its architecture.
    """
    if os.environ.get("CUPY_CACHE_IN_MEMORY", "0") not in ("", "0"):
        raise click.UsageError("CUPY_CACHE_IN_MEMORY is set: what is compiled would be lost")
    shape = synthetic.shape_of(elements)
    hyper = losses.pairs(parameters)
    functions = [losses.find(name) for name in names or losses.names()]
    with _unwarned():
        arguments = [function.arguments(hyper, reduction) for function in functions]
    known = driver.architectures()
    for architecture in map(int, architectures):
        if architecture not in known:
            version = ".".join(map(str, driver.nvrtc_version()))
            choices = ", ".join(map(str, known))
            raise click.ClickException(
                f"the NVRTC that is installed, {version}, does not compile for {architecture}, "
                f"only for {choices}"
            )
    called = list(zip(functions, arguments, strict=True))
    wanted = [*itertools.product(architectures or [_architecture()], called, dtypes)]
    rows = []
    with progress.shown(len(wanted)) as line:
        for architecture, (function, own), dtype in wanted:
            line.step(f"{function.name}, {dtype}, sm_{architecture}")
            seconds = _compile(function, shape, dtype, int(architecture), own)
            rows.append((function.name, dtype, f"sm_{architecture}", f"{seconds:.2f}"))
    print_table(("loss", "dtype", "architecture", "seconds"), rows)


def _compile(
    function: losses.NamedLoss,
    shape: Shape,
    dtype: str,
    architecture: int,
    arguments: Mapping[str, Any],
) -> float:
    """Compile the kernels of a loss; the seconds that it took."""
    start = time.perf_counter()
    with _unwarned():
        call = function.call(arguments)
    described = synthetic.described(call.loss, shape, dtype, call.axis)
    specs = [ArraySpec.contiguous(own.dtype, own.shape) for own in described.values()]
    for request in _NOT_REDUCED if call.reduction == "none" else _REQUESTS:
        leading = []
        if request.vjp:
            rows = call.loss.shape_of(call, specs)
            leading = [ArraySpec.contiguous(dtype, call.loss.value_shape(call, rows))]
        precompile.compile_kernels(call, request, [*leading, *specs], architecture)
    return time.perf_counter() - start


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Without the warnings of calls that are not made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _architecture() -> str:
    """That of the current GPU."""
    try:
        return str(driver.require_gpu().cuda.Device().compute_capability)
    except driver.MissingGPUError as error:
        raise click.UsageError(f"say for which --architecture, such as 90: {error}") from None

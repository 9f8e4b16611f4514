"""The kernel cache, filled ahead of the first calls."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

import click

from .._core.dtypes import FLOATING
from .._core.loss import FORWARD, Call, Request
from .._core.shapes import ArraySpec, Shape, dense_strides
from .._device import driver, precompile
from . import losses, progress, synthetic
from .report import print_table

# What a call asks for, what `value_and_grad` does, what a step of training by torch's autograd.
_REQUESTS = (FORWARD, Request(wanted=(0,)), Request(wanted=(0,), early=True))


@click.command("compile")
@losses.option(default="all")
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
    type=click.Choice([str(number) for number in driver.SHARED_MEMORY]),
    help="Compute capability without its point; again for more.  [default: that of the GPU]",
)
@click.option(
    "--elements",
    metavar="SHAPE",
    default="4096x1024",
    show_default=True,
    help="The shape of the operands, of classes the logits: kernels depend on the length of rows.",
)
def command(
    names: Sequence[str], dtypes: Sequence[str], architectures: Sequence[str], elements: str
) -> None:
    """Fill the kernel cache ahead, so that no first call compiles.

    Compiles what a loss, its gradient by the first operand and a step of training with torch need,
    for contiguous operands of one shape, without a weight or a mask. A GPU is needed only to know
    its architecture.
    """
    if os.environ.get("CUPY_CACHE_IN_MEMORY", "0") not in ("", "0"):
        raise click.UsageError("CUPY_CACHE_IN_MEMORY is set: what is compiled would be lost")
    shape = synthetic.shape_of(elements)
    wanted = [
        *itertools.product(architectures or [_architecture()], names or losses.names(), dtypes)
    ]
    rows = []
    with progress.shown(len(wanted)) as line:
        for architecture, name, dtype in wanted:
            line.step(f"{name}, {dtype}, sm_{architecture}")
            seconds = _compile(losses.find(name), shape, dtype, int(architecture))
            rows.append((name, dtype, f"sm_{architecture}", f"{seconds:.2f}"))
    print_table(("loss", "dtype", "architecture", "seconds"), rows)


def _compile(function: losses.NamedLoss, shape: Shape, dtype: str, architecture: int) -> float:
    """Compile the kernels of a loss; the seconds that it took."""
    start = time.perf_counter()
    loss = function.loss
    operands = [
        ArraySpec(own, own_shape, dense_strides(range(len(own_shape)), own_shape))
        for own, own_shape, _ in synthetic.described(loss, shape, dtype).values()
    ]
    for request in _REQUESTS:
        call = Call(loss, "mean", (1.0,) * len(loss.parameters))
        precompile.compile_kernels(call, request, operands, architecture)
    return time.perf_counter() - start


def _architecture() -> str:
    """That of the current GPU."""
    try:
        return str(driver.require_gpu().cuda.Device().compute_capability)
    except driver.MissingGPUError as error:
        raise click.UsageError(f"say for which --architecture, such as 90: {error}") from None

"""The losses over rows of the benchmark: problems, torch's function and Liger-Kernel's.

A loss of the tests' table that torch has too and that no problem below names has one of its own.

`python -m benchmarks.run --only rows` measures them. Liger-Kernel is optional: `pip install
liger-kernel`, or its unpacked wheel on PYTHONPATH; without it its columns stay empty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses._commands.peers import cross_entropy_of
from cupy_losses._core.dtypes import dtype_name
from tests.tables.rows import ROWS, RowCase

from .measure import Peers, Works, check_autograd, compiled, error_in_ulps, gradients

Tensor = Any
Shape = tuple[int, ...]  # rows and the elements of each; of cross_entropy also (N, C, d...)
# Operands of rows of a shape and a dtype, those with elements first.
Draw = Callable[[Shape, Any, Any], list[Tensor]]


def normal(shape: Shape, dtype: Any, generator: Any) -> Tensor:
    """Real numbers."""
    return torch.empty(shape, dtype=dtype, device=generator.device).normal_(generator=generator)


def of_grid(shape: Shape, dtype: Any, generator: Any) -> Tensor:
    """Real numbers whose differences are exact: a hinge is on the same side in every precision."""
    return normal(shape, torch.float32, generator).mul_(1024).round_().div_(1024).to(dtype)


def classes(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Scores and the class of each row."""
    rows = shape[:1] + shape[2:]
    target = torch.randint(0, shape[1], rows, device=generator.device, generator=generator)
    return [of_grid(shape, dtype, generator), target]


IGNORED = -100  # torch's default of ignore_index


def some_ignored(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """The same with a third of the rows ignored."""
    input, target = classes(shape, dtype, generator)
    ignored = torch.rand(target.shape, device=generator.device, generator=generator) < 1 / 3
    return [input, target.masked_fill_(ignored, IGNORED)]


def channels_last(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Scores whose classes are next to each other, of images, and the class of each pixel."""
    input, target = classes(shape, dtype, generator)
    return [input.contiguous(memory_format=torch.channels_last), target]


def log_probabilities(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Logarithms of the probabilities of all classes and the class of each row."""
    input, target = classes(shape, dtype, generator)
    return [input.log_softmax(1), target]


def probabilities(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Scores and the probabilities of all classes."""
    return [normal(shape, dtype, generator), normal(shape, dtype, generator).softmax(1)]


def two_orders(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """The same, the probabilities in another memory order: transposed, or channels_last."""
    input, target = probabilities(shape, dtype, generator)
    if len(shape) == 2:
        return [input, target.t().contiguous().t()]
    return [input, target.contiguous(memory_format=torch.channels_last)]


def scores_last(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Scores of images in channels_last, and probabilities in the usual order."""
    input, target = probabilities(shape, dtype, generator)
    return [input.contiguous(memory_format=torch.channels_last), target]


def signs(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Two vectors a row and 1 or -1."""
    target = torch.empty(shape[:1], dtype=dtype, device=generator.device)
    target.bernoulli_(generator=generator)
    inputs = [normal(shape, dtype, generator) for _ in "ab"]
    return [*inputs, 2 * target - 1]


def triplets(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Three vectors a row."""
    return [normal(shape, dtype, generator) for _ in "abc"]


LABELS = 8


def labels(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
    """Scores and a few different labels of each row."""
    target = normal(shape, torch.float32, generator).argsort(1)
    target[:, LABELS:] = -1
    return [of_grid(shape, dtype, generator), target]


NEAR = 1e-5  # a loss that is smaller may be 0 in another precision
DRAWN = 1 << 24  # elements that the table draws; rows repeat after them


def of_table(case: RowCase) -> Draw:
    """The draws of a line of the tests' table, made by NumPy."""

    def draw(shape: Shape, dtype: Any, generator: Any) -> list[Tensor]:
        rng = np.random.default_rng(generator.initial_seed())
        rows = min(shape[0], max(1, DRAWN // shape[1]))
        operands = []
        for x in case.draw(rng, (rows, shape[1]), np.float32).values():
            some = torch.from_numpy(x).to(generator.device)
            some = some.to(dtype) if some.is_floating_point() else some
            times = (-(-shape[0] // rows), *[1] * (x.ndim - 1))
            operands.append(some.repeat(times)[: shape[0]])
        return operands

    return draw


def with_z_loss(
    input: Tensor, target: Tensor, z_loss: float, reduction: str = "mean", **options: Any
) -> Tensor:
    """The cross_entropy of torch with a z-loss, as its users write it."""
    losses = F.cross_entropy(input, target, reduction="none", **options)
    losses = losses + z_loss * input.logsumexp(1) ** 2
    return losses.sum() if reduction == "sum" else losses.mean()


@dataclass(frozen=True)
class Problem:
    """A loss over rows of one shape.

    Gradients are taken by the first `leaves` operands. `read` is what of a row has to be read, in
    bytes, where that is not all of every operand. With `weighted` each class has a weight.
    """

    name: str
    shape: Shape
    dtype: Any = torch.float32
    draws: Draw = classes
    leaves: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    weighted: bool = False
    label: str = ""
    read: int | None = None
    backward: bool = True
    compiled: bool = False
    of_liger: bool = False
    of_quack: bool = False
    runs: int = 15

    def __str__(self) -> str:
        return self.label or self.name

    @property
    def ours(self) -> Callable[..., Tensor]:
        """The function of this package."""
        weight = {} if self.weight is None else {"weight": self.weight}
        return functools.partial(getattr(cupy_losses, self.name), **self.options, **weight)

    @property
    def eager(self) -> Callable[..., Tensor]:
        """The function of torch, of operands in any dtype."""
        options, weight = self.options, self.weight
        function: Callable[..., Tensor] = getattr(F, self.name)
        if "z_loss" in options:
            function = with_z_loss
        if weight is None:
            return lambda *operands, **more: function(*operands, **options, **more)
        return lambda input, *others, **more: function(
            input, *others, weight=weight.to(input), **options, **more
        )

    @functools.cached_property
    def weight(self) -> Tensor | None:
        """That of each class, in the dtype of the scores."""
        if not self.weighted:
            return None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.linspace(0.5, 1.5, self.shape[1], device=device).to(self.dtype)

    def divisor(self, operands: list[Tensor]) -> float:
        """What a mean is divided by."""
        target = operands[1]
        if self.name != "cross_entropy" or target.is_floating_point():
            return self.rows
        counted = target[target != IGNORED]
        if self.weight is None:
            return counted.numel()
        return self.weight.to(target.device).double()[counted].sum().item()

    @property
    def liger(self) -> Callable[..., Tensor] | None:
        """That of Liger-Kernel, where it is installed and has the loss."""
        function = cross_entropy_of("liger-kernel") if self.of_liger else None
        return function and functools.partial(function, **self.options)

    @property
    def quack(self) -> Callable[..., Tensor] | None:
        """That of QuACK, where it is installed and has the loss."""
        return cross_entropy_of("quack-kernels") if self.of_quack else None

    @property
    def whole_shape(self) -> list[int]:
        """The shape, with the number of vectors where it is more than one."""
        return [*([self.leaves] if self.leaves > 1 else []), *self.shape]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape) // self.shape[1]

    def draw(self, seed: int, device: str = "cuda") -> list[Tensor]:
        """The operands."""
        return self.draws(self.shape, self.dtype, torch.Generator(device).manual_seed(seed))

    def bytes_read(self, operands: list[Tensor]) -> int:
        """What a forward pass has to read."""
        if self.read is not None:
            return self.rows * self.read
        return sum(x.numel() * x.element_size() for x in operands)

    def bytes_written(self, operands: list[Tensor]) -> int:
        """The gradients."""
        return sum(x.numel() * x.element_size() for x in operands[: self.leaves])

    def result(
        self, operands: list[Tensor], error: float, times: dict[str, float]
    ) -> dict[str, Any]:
        """What a result file says of it."""
        read = self.bytes_read(operands)
        return {
            "loss": str(self),
            "shape": self.whole_shape,
            "dtype": dtype_name(self.dtype),
            "error_ulp": error,
            "forward_bytes": read,
            "gradient_bytes": read + self.bytes_written(operands),
            **times,
        }


PEERS: dict[str, Callable[[Problem], Callable[..., Tensor] | None]] = {
    "eager": lambda problem: problem.eager,
    "compiled": lambda problem: compiled(problem.eager),
    "liger": lambda problem: problem.liger,
    "quack": lambda problem: problem.quack,
}


def peers(problem: Problem, names: Sequence[str]) -> Peers:
    """Our function and those that are there of the peers, by what their results begin with."""
    found = {f"{name}_": function for name in names if (function := PEERS[name](problem))}
    return {"": problem.ours, **found}


def value_and_grad_work(problem: Problem, operands: list[Tensor]) -> Callable[[], Any]:
    """Our function with its gradients, without autograd."""
    return functools.partial(value_and_grad(problem.ours, tuple(range(problem.leaves))), *operands)


def backward_works(problem: Problem, peers: Peers, operands: list[Tensor]) -> Works:
    """Forward and backward passes."""
    leaves, others = operands[: problem.leaves], operands[problem.leaves :]
    works: Works = {}
    for peer, loss in peers.items():
        # Liger-Kernel computes the gradient in its forward pass and writes it over the input: it
        # has an input of its own, never drawn anew, as a copy would count.
        own = [x.clone() for x in leaves] if peer == "liger_" else leaves
        own = [x.detach().requires_grad_() for x in own]
        works[f"{peer}forward_backward_ms"] = functools.partial(gradients, loss, own, others)
    return works


def check(problem: Problem, operands: list[Tensor], sample: int = 8) -> float:
    """Raise unless loss and gradients are right; return the error of the loss in ulps.

    The reference is torch's function of the operands in float64, some rows at a time. Gradients are
    compared in so many rows at both ends and in the middle, with those that torch computes on the
    host: its kernel of multilabel_margin_loss for CUDA writes other ones from call to call. Where
    only one of them is 0, in a row of hardly any loss, rounding has decided on which side of a
    margin it is.
    """
    length = problem.shape[0]

    def exact(operands: list[Tensor]) -> Tensor:
        return problem.eager(*operands, reduction="sum")

    step = max(1, (1 << 26) // math.prod(problem.shape[1:]))
    parts = (_doubles(operands, slice(first, first + step)) for first in range(0, length, step))
    expected = sum(exact(part).item() for part in parts) / problem.divisor(operands)
    error = error_in_ulps(problem.ours(*operands), expected)
    assert error <= (4 if problem.dtype == torch.float32 else 1), (problem, error)
    if problem.backward:
        _check_gradients(problem, operands, exact, sample)
    return error


def _check_gradients(
    problem: Problem, operands: list[Tensor], exact: Callable[..., Tensor], sample: int
) -> None:
    # float16 has no numbers for the gradients of a mean over millions of rows.
    reduction = "sum" if problem.dtype == torch.float16 else "mean"
    divisor = 1 if reduction == "sum" else problem.divisor(operands)
    both = value_and_grad(problem.ours, tuple(range(problem.leaves)))
    value, found = both(*operands, reduction=reduction)
    loss = functools.partial(problem.ours, reduction=reduction)
    assert value == loss(*operands)
    check_autograd(loss, operands, found)
    middle = problem.shape[0] // 2
    for few in (slice(0, sample), slice(middle, middle + sample), slice(-sample, None)):
        part = [x.cpu() for x in _doubles(operands, few)]
        leaves = [x.requires_grad_() for x in part[: problem.leaves]]
        slopes = torch.autograd.grad(exact(part) / divisor, leaves)
        ours = problem.ours(*(x[few] for x in operands), reduction="none").cpu()
        near = (torch.maximum(ours, problem.eager(*part, reduction="none")) < NEAR).unsqueeze(1)
        for gradient, slope in zip(found, slopes, strict=True):
            own = gradient[few].double().cpu()
            other_side = near & ((own != 0).any(1, True) != (slope != 0).any(1, True))
            assert other_side.double().mean() < 1e-3, problem
            numbers = torch.finfo(problem.dtype)
            rtol = max(1e-5, numbers.eps)
            # Half the distance of subnormal numbers, as some gradients in float16 are.
            rounding = numbers.smallest_normal * numbers.eps / 2
            atol = max(1e-5 * slope.abs().mean().item(), rounding)
            compared = torch.where(other_side, slope, own)
            torch.testing.assert_close(compared, slope, rtol=rtol, atol=atol)


def _doubles(operands: list[Any], part: slice) -> list[Any]:
    """Some rows of all operands, numbers in float64."""
    return [x[part].double() if x.is_floating_point() else x[part] for x in operands]


def cross_entropy(rows: int, columns: int, dtype: Any = torch.float32, **fields: Any) -> Problem:
    """Cross entropy with a class for each row."""
    return Problem("cross_entropy", (rows, columns), dtype, of_liger=True, **fields)


def nll_loss(shape: Shape, dtype: Any = torch.float32, **fields: Any) -> Problem:
    """Of each row a score is read, and the index of its class."""
    read = dtype.itemsize + 8
    return Problem("nll_loss", shape, dtype, log_probabilities, read=read, **fields)


def multilabel_margin_loss(rows: int, columns: int, dtype: Any = torch.float32) -> Problem:
    """Of each row the scores are read, the labels, and the -1 after them."""
    read = columns * dtype.itemsize + 8 * min(columns, LABELS + 1)
    return Problem("multilabel_margin_loss", (rows, columns), dtype, labels, read=read)


# The problems of the README, the first two also those of which memory is measured.
MAIN = [
    cross_entropy(32768, 4096, compiled=True),
    cross_entropy(8192, 128256, torch.bfloat16, compiled=True),
    Problem("triplet_margin_loss", (32768, 8192), draws=triplets, leaves=3, compiled=True),
]
PROBLEMS = [
    *MAIN,
    cross_entropy(8192, 50257, torch.bfloat16),
    cross_entropy(10_000_000, 2, runs=5),
    cross_entropy(1, 100_000_000, runs=5),
    *(
        cross_entropy((1 << 28) // columns, columns, dtype, backward=False)
        for dtype in (torch.float32, torch.bfloat16)
        for columns in (256, 1024, 4096, 16384, 32768, 131072)
    ),
    cross_entropy(
        32768,
        4096,
        options={"label_smoothing": 0.1},
        label="cross_entropy(label_smoothing=0.1)",
        compiled=True,
    ),
    Problem(
        "cross_entropy",
        (32768, 4096),
        draws=probabilities,
        label="cross_entropy of probabilities",
        compiled=True,
    ),
    nll_loss((32768, 4096), compiled=True),
    Problem("multi_margin_loss", (32768, 4096), compiled=True),
    Problem("cosine_embedding_loss", (32768, 4096), draws=signs, leaves=2, compiled=True),
    multilabel_margin_loss(131072, 1000),
]


def problem_of(case: RowCase) -> Problem:
    """A problem for a line of the table."""
    leaves = len(case.differentiable)
    return Problem(case.name, (32768, 4096), torch.float32, of_table(case), leaves, case.parameters)


def unnamed(problems: list[Problem]) -> list[Problem]:
    """One for the first line of each loss that they leave out."""
    missing: dict[str, RowCase] = {}
    for case in ROWS:
        if case.of_torch and all(problem.name != case.name for problem in problems):
            missing.setdefault(case.name, case)
    return [problem_of(case) for case in missing.values()]


PROBLEMS += unnamed(PROBLEMS)

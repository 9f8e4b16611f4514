"""What torch does to functions: each mode as a call of a loss, and what it must give.

`python -m tests.torch.modes [LOSS …]` writes docs/modes.md: each loss in each mode.
"""

from __future__ import annotations

import functools
import io
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import cupy_losses

from ..tables.examples import Example, of_elements, of_rows
from ..tables.losses import LOSSES
from ..tables.rows import ROWS

Tensor = torch.Tensor
Function = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "modes.md"
SAMPLES = 3
REDUCTIONS = ("mean", "sum", "none")
BROKEN = ("grad", "jvp", "vmap", "vmap(grad)", "hessian")


@dataclass
class Given:
    """A loss of tensors; its first operand that requires grad is what modes differentiate by."""

    example: Example
    reduction: str

    def __str__(self) -> str:
        return f"{self.example}-{self.reduction}"

    @property
    def tensors(self) -> list[Tensor]:
        """The operands and the options that are tensors, such as weights, without gradients."""
        options = [o for o in self.example.options.values() if isinstance(o, Tensor)]
        return [t.detach() for t in (*self.example.operands, *options)]

    def loss(self, *tensors: Tensor) -> Tensor:
        """The loss of tensors."""
        count = len(self.example.operands)
        names = [k for k, o in self.example.options.items() if isinstance(o, Tensor)]
        options = self.example.options | dict(zip(names, tensors[count:], strict=True))
        function = getattr(cupy_losses, self.example.name)
        return function(*tensors[:count], **options, reduction=self.reduction)

    @property
    def number(self) -> int:
        """The place of what modes differentiate by."""
        return next(k for k, t in enumerate(self.example.operands) if t.requires_grad)

    @property
    def point(self) -> Tensor:
        """What modes differentiate by."""
        return self.tensors[self.number]

    def of_one(self, x: Tensor) -> Tensor:
        """The loss as a function of one tensor."""
        tensors = self.tensors
        return self.loss(*tensors[: self.number], x, *tensors[self.number + 1 :])

    def total(self, x: Tensor) -> Tensor:
        """A number of it, whose gradient and second derivatives depend on the loss."""
        value = self.of_one(x)
        return (value * value + value).sum()

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of `total` by a backward pass."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.total(x), x)[0]


def rolled(tensor: Tensor) -> Tensor:
    """A batch of samples that differ."""
    each = [tensor.roll(b, 0) if tensor.dim() else tensor for b in range(SAMPLES)]
    return torch.stack(each)


def each_sample(function: Function, *batches: Tensor) -> Tensor:
    """A function of each sample, one after the other."""
    return torch.stack([function(*[batch[b] for batch in batches]) for b in range(SAMPLES)])


def jacobian(given: Given) -> Tensor:
    """By backward passes."""
    return torch.autograd.functional.jacobian(given.of_one, given.point)


def second_jacobian(given: Given) -> Tensor:
    """The Jacobian matrix of the Jacobian matrix, by backward passes."""
    of_first = functools.partial(torch.autograd.functional.jacobian, given.of_one)
    first = functools.partial(of_first, create_graph=True)
    return torch.autograd.functional.jacobian(first, given.point)


def contracted(matrix: Tensor, along: Tensor) -> Tensor:
    """The sum over the last axes of a matrix, those of `along`, of its products with that."""
    return (matrix * along).reshape(*matrix.shape[: matrix.dim() - along.dim()], -1).sum(-1)


def directional(given: Given) -> Tensor:
    """The derivative along `tangent`."""
    return contracted(jacobian(given), tangent(given))


def along(given: Given, direction: Tensor) -> Function:
    """The derivative along a direction, in forward mode."""
    return lambda x: jvp(given.of_one, (x,), (direction,))[1]


def tangent(given: Given) -> Tensor:
    return torch.linspace(-1, 2, given.point.numel(), dtype=torch.float64).view_as(given.point)


def of_dual_numbers(given: Given) -> Any:
    with forward_ad.dual_level():
        value = given.of_one(forward_ad.make_dual(given.point, tangent(given)))
        return forward_ad.unpack_dual(value).tangent


def of_batched_grads(given: Given) -> tuple[Tensor, Tensor]:
    """One backward pass for several grad_outputs, and one for each."""
    x = given.point.requires_grad_()
    value = given.of_one(x)
    grads = torch.linspace(-1, 1, 2 * value.numel(), dtype=value.dtype).reshape(2, *value.shape)

    def backward(grad_output: Tensor, **options: bool) -> Tensor:
        return torch.autograd.grad(value, x, grad_output, retain_graph=True, **options)[0]

    return backward(grads, is_grads_batched=True), torch.stack([backward(g) for g in grads])


def passes_gradcheck(given: Given) -> tuple[bool, bool]:
    inputs = differentiable(given)
    return torch.autograd.gradcheck(
        given.loss,
        inputs,
        check_forward_ad=True,
        check_backward_ad=True,
        check_undefined_grad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    ), True


def passes_gradgradcheck(given: Given) -> tuple[bool, bool]:
    return torch.autograd.gradgradcheck(
        given.loss,
        differentiable(given),
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_undefined_grad=True,
        check_batched_grad=True,
    ), True


def differentiable(given: Given) -> list[Tensor]:
    operands = given.example.operands
    required = [t.requires_grad for t in operands]
    rest = given.tensors[len(operands) :]
    return [t.requires_grad_(r) for t, r in zip(given.tensors, required, strict=False)] + rest


def results(loss: Function, given: Given) -> list[Tensor]:
    """The loss and its gradients, after a backward pass that is not trivial."""
    inputs = differentiable(given)
    value = loss(*inputs)
    leaves = [t for t in inputs if t.requires_grad]
    gradients = torch.autograd.grad((value * value + value).sum(), leaves)
    return [value.detach(), *gradients]


def compiled(function: Function, **options: Any) -> Function:
    torch._dynamo.reset()
    chosen: dict[str, Any] = {"fullgraph": True, "backend": "aot_eager"} | options
    return torch.compile(function, **chosen)


def compiled_loss(**options: Any) -> Callable[[Given], tuple[Any, Any]]:
    def mode(given: Given) -> tuple[Any, Any]:
        return results(compiled(given.loss, **options), given), results(given.loss, given)

    return mode


def of_another(given: Given) -> list[Tensor]:
    """Tensors of other values, to trace with: a loss that is a constant then shows."""
    return [t.flip(0) * 0.5 if t.is_floating_point() and t.dim() else t for t in given.tensors]


def by_make_fx(given: Given) -> tuple[Any, Any]:
    graph = make_fx(given.loss)(*of_another(given))
    return graph(*given.tensors), given.loss(*given.tensors)


def by_jit_trace(given: Given) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(given.loss, of_another(given), check_trace=False)
    return traced(*given.tensors), given.loss(*given.tensors)


def exported(given: Given) -> tuple[Any, Any]:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return given.loss(*tensors)

    program = torch.export.export(Module(), tuple(of_another(given)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()(*given.tensors), given.loss(*given.tensors)


def shape(value: Tensor) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape), value.stride()


def transformed_graph(given: Given) -> tuple[Any, Any]:
    """Transforms of what was recorded."""
    x = given.point
    graph = make_fx(lambda x: given.total(x))(x.flip(0) * 0.5)
    along = jvp(graph, (x,), (tangent(given),))[1]
    gradient = given.gradient(x)
    return [grad(graph)(x), along], [gradient, (gradient * tangent(given)).sum()]


def exported_vmap(given: Given) -> tuple[Any, Any]:
    """A loss of each sample, exported."""
    dims = tuple(0 if k == given.number else None for k in range(len(given.tensors)))

    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return vmap(given.loss, in_dims=dims)(*tensors)

    tensors = given.tensors
    tensors[given.number] = batch = rolled(tensors[given.number])
    program = torch.export.export(Module(), tuple(t.clone() for t in tensors))
    return program.module()(*tensors), each_sample(given.of_one, batch)


def of_fake_tensors(given: Given) -> tuple[Any, Any]:
    mode = FakeTensorMode()
    tensors = [mode.from_tensor(t) for t in given.tensors]
    with mode:
        fake = given.loss(*tensors)
    return shape(fake), shape(given.loss(*given.tensors))


def of_meta_tensors(given: Given) -> tuple[Any, Any]:
    """The loss, and second derivatives with a grad_output that varies."""
    tensors = [t.to("meta") for t in given.tensors]
    point = tensors[given.number].requires_grad_()
    value = given.loss(*tensors)
    (gradient,) = torch.autograd.grad((value**2).sum(), point, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), point)
    assert value.is_meta
    assert second.is_meta
    assert second.shape == point.shape
    return shape(value), shape(given.loss(*given.tensors))


def by_vjp(given: Given) -> Tensor:
    value, pull = vjp(given.of_one, given.point)[:2]
    return pull(2 * value + 1)[0]


Mode = Callable[[Given], tuple[Any, Any]]

# Of each transform, the function that it makes of a loss, its argument, and what it must be.
_TRANSFORMS: dict[str, tuple[Callable[[Given], Function], bool, Callable[[Given], Any]]] = {
    "grad": (lambda g: grad(g.total), False, lambda g: g.gradient(g.point)),
    "jvp": (
        lambda g: lambda x: jvp(g.of_one, (x,), (tangent(g),))[1],
        False,
        directional,
    ),
    "vmap": (lambda g: vmap(g.of_one), True, lambda g: each_sample(g.of_one, rolled(g.point))),
    "vmap(grad)": (
        lambda g: vmap(grad(g.total)),
        True,
        lambda g: each_sample(g.gradient, rolled(g.point)),
    ),
    "jacrev": (lambda g: jacrev(g.of_one), False, jacobian),
    "jacfwd": (lambda g: jacfwd(g.of_one), False, jacobian),
    "hessian": (
        lambda g: hessian(g.total),
        False,
        lambda g: torch.autograd.functional.hessian(g.total, g.point),
    ),
    "jacfwd(jacfwd)": (lambda g: jacfwd(jacfwd(g.of_one)), False, second_jacobian),
    "jvp(jvp)": (
        lambda g: lambda x: jvp(along(g, tangent(g)), (x,), (tangent(g).flip(0),))[1],
        False,
        lambda g: contracted(contracted(second_jacobian(g), tangent(g)), tangent(g).flip(0)),
    ),
}


def eager_transform(name: str) -> Mode:
    made, batched, expected = _TRANSFORMS[name]
    return lambda g: (made(g)(rolled(g.point) if batched else g.point), expected(g))


def compiled_transform(name: str) -> Mode:
    made, batched, expected = _TRANSFORMS[name]
    return lambda g: (compiled(made(g))(rolled(g.point) if batched else g.point), expected(g))


class Broken(Given):
    """One that torch.compile cannot compile whole, nor a transform of it."""

    def loss(self, *tensors: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().loss(*tensors)


def broken_transform(name: str) -> Mode:
    made, batched, expected = _TRANSFORMS[name]

    def mode(given: Given) -> tuple[Any, Any]:
        function = compiled(made(Broken(given.example, given.reduction)), fullgraph=False)
        return function(rolled(given.point) if batched else given.point), expected(given)

    return mode


EAGER: dict[str, Mode] = {
    **{name: eager_transform(name) for name in _TRANSFORMS},
    "vjp": lambda g: (by_vjp(g), g.gradient(g.point)),
    "vmap, all operands": lambda g: (
        vmap(g.loss)(*map(rolled, g.tensors)),
        each_sample(g.loss, *map(rolled, g.tensors)),
    ),
    "vmap, last axis": lambda g: (
        vmap(g.of_one, in_dims=-1)(rolled(g.point).movedim(0, -1)),
        each_sample(g.of_one, rolled(g.point)),
    ),
    "jacrev(jacfwd)": lambda g: (
        jacrev(jacfwd(g.total))(g.point),
        torch.autograd.functional.hessian(g.total, g.point),
    ),
    "vmap(hessian)": lambda g: (
        vmap(hessian(g.total))(rolled(g.point)),
        each_sample(lambda x: torch.autograd.functional.hessian(g.total, x), rolled(g.point)),
    ),
    "jacrev(jacrev)": lambda g: (
        jacrev(jacrev(g.total))(g.point),
        torch.autograd.functional.hessian(g.total, g.point),
    ),
    "dual numbers": lambda g: (of_dual_numbers(g), directional(g)),
    "is_grads_batched": of_batched_grads,
    "gradcheck": passes_gradcheck,
    "gradgradcheck": passes_gradgradcheck,
}
TRACED: dict[str, Mode] = {
    "make_fx": by_make_fx,
    "jit.trace": by_jit_trace,
    "export": exported,
    "grad, jvp of a graph": transformed_graph,
    "export of vmap": exported_vmap,
    "FakeTensor": of_fake_tensors,
    "meta": of_meta_tensors,
}
COMPILED: dict[str, Mode] = {
    "compile": compiled_loss(dynamic=False),
    "compile, dynamic": compiled_loss(dynamic=True),
    **{f"compile({name})": compiled_transform(name) for name in _TRANSFORMS},
    **{f"compile({name}), graph break": broken_transform(name) for name in BROKEN},
}
MODES = EAGER | TRACED | COMPILED
EXACT = {"compile", "compile, dynamic", *TRACED} - {"grad, jvp of a graph", "export of vmap"}


def examples() -> Iterable[Example]:
    """Every loss of the tables, and some with weights of elements and masks."""
    yield from (of_elements(case) for case in LOSSES if hasattr(cupy_losses, case.name))
    over_rows = [of_rows(case) for case in ROWS if hasattr(cupy_losses, case.name)]
    yield from over_rows
    triplet = next(example for example in over_rows if example.name == "triplet_margin_loss")
    yield Example("triplet_margin_with_distance_loss", triplet.operands, {"margin": 0.5})
    generator = torch.Generator().manual_seed(3)
    weight = torch.rand(4, 5, dtype=torch.float64, generator=generator)
    where = weight > 0.3
    for case in LOSSES:
        if case.name in ("mse_loss", "multilabel_soft_margin_loss", "kl_div"):
            for options in ({"weight": weight}, {"where": where, "weight": weight}):
                example = of_elements(case)
                yield Example(case.name, example.operands, example.options | options)


EXAMPLES = list(examples())


def is_right(mode: str, given: Given) -> bool:
    """Whether a mode gives what it must: the same bits and strides, or nearly for transforms."""
    got, expected = MODES[mode](given)
    if not isinstance(got, list | torch.Tensor):
        return bool(got == expected)
    pairs = [(got, expected)] if isinstance(got, Tensor) else list(zip(got, expected, strict=True))
    if mode in EXACT:
        return all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def outcome(mode: str, given: Given) -> str:
    """A cell of the page: right, WRONG, or the error that this package raises."""
    try:
        return "right" if is_right(mode, given) else "WRONG"
    except NotImplementedError as error:
        return str(error).partition(":")[0]


def row(name: str) -> str:
    """The row of a loss in docs/modes.md: of all its examples, the reductions in turn."""
    given = [
        Given(example, REDUCTIONS[n % 3])
        for n, example in enumerate(EXAMPLES)
        if example.name == name
    ]
    found = [" / ".join(sorted({outcome(mode, g) for g in given})) for mode in MODES]
    return f"| `{name}` | " + " | ".join(found) + " |\n"


def main(names: Sequence[str]) -> None:
    """Write the rows of some losses, or of all; the others stay."""
    text = PAGE.read_text(encoding="utf-8")
    rows = {
        line.split("`")[1]: line for line in text.splitlines(keepends=True) if line[:3] == "| `"
    }
    head = "| loss | " + " | ".join(f"`{mode}`" for mode in MODES) + " |\n"
    lines = [text[: text.index("| loss |")], head, "|---" * (len(MODES) + 1) + "|\n"]
    for name in dict.fromkeys(example.name for example in EXAMPLES):
        stays = name in rows and names and name not in names
        lines.append(rows[name] if stays else row(name))
    PAGE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""`scale` in torch: with autograd, transforms and the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from cupy_losses import cross_entropy, mse_loss

from ..tables.arrays import Library
from ..tools.levels import first

Tensor = torch.Tensor
Loss = Callable[..., Tensor]

CALLS = ["mse", "cross entropy", "mse weight where"]
F64 = torch.float64


def problem(name: str, dtype: torch.dtype = F64, device: str = "cpu") -> tuple[Loss, Tensor]:
    """A loss of one tensor and a scale, and the tensor."""
    generator = torch.Generator().manual_seed(3)
    input, target, weight = (
        torch.randn(6, 5, generator=generator, dtype=F64).to(device, dtype) for _ in range(3)
    )
    classes = torch.tensor([0, 3, -100, 4, 1, 1], device=device)

    def loss(input: Tensor, scale: Any = 1.0) -> Tensor:
        if name == "mse":
            return mse_loss(input, target, scale=scale)
        if name == "cross entropy":
            return cross_entropy(input, classes, weight=weight[0].abs(), scale=scale)
        return mse_loss(input, target, weight=weight.abs(), where=weight > -0.5, scale=scale)

    return loss, input


def device_of(library: Library) -> str:
    return "cuda" if library.name == "torch cuda" else "cpu"


@pytest.mark.parametrize("name", CALLS)
def test_gradients(torch_library: Library, name: str) -> None:
    """First and second ones; of a scale that requires grad too."""
    device = device_of(torch_library)
    loss, input = problem(name, device=device)
    input.requires_grad_()
    number, tensor = 0.3, torch.tensor(0.3, dtype=F64, device=device)
    plain = torch.autograd.grad(loss(input), input)[0]
    for scale in (number, tensor):
        got = torch.autograd.grad(loss(input, scale), input)[0]
        torch.testing.assert_close(got, 0.3 * plain, rtol=1e-14, atol=0)
        assert torch.autograd.gradgradcheck(functools.partial(loss, scale=scale), input)
    tensor.requires_grad_()
    assert torch.autograd.gradcheck(loss, (input, tensor))
    assert torch.autograd.gradgradcheck(loss, (input, tensor))
    by_scale = torch.autograd.grad(loss(input.detach(), tensor), tensor)[0]
    torch.testing.assert_close(by_scale, loss(input).detach())
    with torch.no_grad():
        torch.testing.assert_close(loss(input, tensor), 0.3 * loss(input))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_scale_of_another_dtype_that_requires_grad(
    torch_library: Library, dtype: torch.dtype
) -> None:
    loss, input = problem("mse", dtype, device_of(torch_library))
    scale = torch.tensor(0.3, dtype=F64, device=input.device, requires_grad=True)
    value = loss(input.requires_grad_(), scale)
    assert value.dtype == dtype
    value.backward()
    assert scale.grad is not None
    assert input.grad is not None
    torch.testing.assert_close(scale.grad, loss(input).detach().double(), rtol=1e-2, atol=0)
    expected = torch.autograd.grad(loss(input, scale.detach()), input)[0]
    torch.testing.assert_close(input.grad, expected)


def test_a_scale_that_is_changed_before_the_backward_pass(torch_library: Library) -> None:
    loss, input = problem("mse", device=device_of(torch_library))
    scale = torch.tensor(0.3, device=input.device)
    value = loss(input.requires_grad_(), scale)
    scale.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_the_input_is_overwritten(torch_library: Library) -> None:
    _, leaf = problem("cross entropy", device=device_of(torch_library))
    classes = torch.tensor([0, 3, -100, 4, 1, 1], device=leaf.device)
    leaf.requires_grad_()
    plain = torch.autograd.grad(cross_entropy(leaf, classes), leaf)[0]
    for requires_grad in (False, True):
        scale = torch.tensor(0.3, dtype=F64, device=leaf.device, requires_grad=requires_grad)
        value = cross_entropy(leaf * 1, classes, overwrite_input=True, scale=scale)
        gradient = torch.autograd.grad(3 * value, leaf)[0]
        torch.testing.assert_close(gradient, 0.9 * plain)


@pytest.mark.parametrize("name", CALLS)
def test_transforms(torch_library: Library, name: str) -> None:
    """By the scale, along it, twice, of a batch of scales."""
    loss, input = problem(name, device=device_of(torch_library))
    scale = torch.tensor(0.3, dtype=F64, device=input.device)
    value, slope = loss(input), grad(loss)(input)
    close = torch.testing.assert_close
    close(grad(loss)(input, scale), 0.3 * slope)
    close(grad(loss, argnums=1)(input, scale), value)
    close(jacrev(grad(loss, argnums=1))(input, scale), slope)
    close(jacrev(grad(loss), argnums=1)(input, scale), slope)
    close(hessian(loss)(input, scale), 0.3 * hessian(loss)(input))
    close(jvp(loss, (input, scale), (slope, scale))[1], 0.3 * ((slope * slope).sum() + value))
    close(jvp(lambda s: loss(input, s), (scale,), (scale,))[1], 0.3 * value)
    close(jvp(lambda s: grad(loss)(input, s), (scale,), (scale,))[1], 0.3 * slope)
    scales = torch.tensor([0.3, -2.0, 0.0], device=input.device)
    inputs = torch.stack([input, 2 * input, input - 1])
    for dims, batch in (((None, 0), [input] * 3), ((0, 0), [*inputs]), ((0, None), [*inputs])):
        x = inputs if dims[0] == 0 else input
        given = scales if dims[1] == 0 else scales[1]
        each = [float(s) for s in (scales if dims[1] == 0 else [scales[1]] * 3)]
        for function in (loss, grad(loss)):
            expected = torch.stack([s * function(x) for s, x in zip(each, batch, strict=True)])
            close(vmap(function, in_dims=dims)(x, given), expected)
        of_number = vmap(functools.partial(loss, scale=each[0]))(inputs)
        close(of_number, each[0] * torch.stack([loss(x) for x in inputs]))
    by_scale = vmap(grad(loss, argnums=1), in_dims=(0, 0))(inputs, scales)
    close(by_scale, torch.stack([loss(x) for x in inputs]).to(by_scale.dtype))


def masked(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return mse_loss(input, weight.detach(), where=torch.zeros(3, 5) > 0, scale=scale)


def masked_with_weights(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    zeros = torch.zeros_like(input)
    return mse_loss(input, zeros, weight=weight, where=torch.zeros(3, 5) > 0, scale=scale)


def ignored(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return cross_entropy(input, torch.full((3,), -100), weight=weight, scale=scale)


def weights_of_zero(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    classes, zeros = torch.tensor([0, 3, 1]), 0 * weight[:3]
    return cross_entropy(input, classes, sample_weight=zeros, scale=scale)


def backward(loss: Loss, given: Any) -> Any:
    leaves = [x.clone().requires_grad_() for x in given]
    total = loss(*leaves).sum()
    return torch.autograd.grad(total, leaves, materialize_grads=True)


NUMBERS = 0, 1, 2
NOTHING_LEFT: dict[str, Callable[[Loss, Any, Any], Any]] = {
    "backward": lambda loss, given, batch: backward(loss, given),
    "grad": lambda loss, given, batch: grad(loss, NUMBERS)(*given),
    "jacfwd": lambda loss, given, batch: jacfwd(loss, NUMBERS)(*given),
    "vmap(grad)": lambda loss, given, batch: vmap(grad(loss, NUMBERS))(*batch),
    "vmap(jacfwd)": lambda loss, given, batch: vmap(jacfwd(loss, NUMBERS))(*batch),
    "backward of vmap": lambda loss, given, batch: backward(vmap(loss), batch),
    "jvp of vmap": lambda loss, given, batch: [
        jvp(vmap(loss), (*batch,), tuple(x * (k == n) for n, x in enumerate(batch)))[1]
        for k in NUMBERS
    ],
}


@pytest.mark.parametrize("loss", [masked, masked_with_weights, ignored, weights_of_zero])
@pytest.mark.parametrize("mode", NOTHING_LEFT)
def test_nothing_left(loss: Loss, mode: str) -> None:
    """The loss is NaN, and so is its derivative by the scale; those by input and weight are 0."""
    weight = torch.ones(3, 5, dtype=F64)[0 if loss in (ignored, weights_of_zero) else ...]
    given = torch.ones(3, 5, dtype=F64), weight, torch.tensor(0.3, dtype=F64)
    batch = [torch.stack([x, 2 * x]) for x in given]
    by_input, by_weight, by_scale = NOTHING_LEFT[mode](loss, given, batch)
    assert (by_input == 0).all()
    assert (by_weight == 0).all()
    assert by_scale.isnan().all()


@pytest.mark.parametrize("loss", [masked_with_weights, ignored])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_nothing_left_along_weights_of_samples(loss: Loss, dtype: torch.dtype) -> None:
    """Beside a scale that all samples share, which has no tangent."""
    input, scale = torch.ones(3, 5), torch.tensor(0.3, dtype=dtype)
    weight = torch.ones(3, 5)[0 if loss is ignored else ...]

    def along(weight: Tensor, tangent: Tensor) -> Tensor:
        return jvp(lambda w: loss(input, w, scale), (weight,), (tangent,))[1]

    assert along(weight, weight) == 0
    assert vmap(along)(weight[None], weight[None]) == 0


def test_a_tangent_of_zero_is_differentiated() -> None:
    """What is along it is linear in it."""
    loss, input = problem("mse")
    scale = torch.tensor(0.3, dtype=F64)

    def along(tangent: Tensor) -> Tensor:
        return jvp(loss, (input, scale), (input, tangent))[1]

    for of_tangent in (grad(along), jacfwd(along)):
        torch.testing.assert_close(of_tangent(torch.zeros_like(scale)), loss(input))


def test_a_batch_of_class_weights_and_scales() -> None:
    """Which are one launch a sample."""
    input, classes = torch.randn(6, 5), torch.tensor([0, 3, 2, 4, 1, 1])
    weights, scales = torch.rand(3, 5), torch.tensor([0.5, 2.0, -1.0])

    def loss(weight: Tensor, scale: Tensor) -> Tensor:
        return cross_entropy(input, classes, weight=weight, scale=scale)

    expected = [loss(*given) for given in zip(weights, scales, strict=True)]
    torch.testing.assert_close(vmap(loss)(weights, scales), torch.stack(expected))


def test_weights_that_require_grad(torch_library: Library) -> None:
    """Of a mean that they divide, and of classes; beside a scale that requires grad, or not."""
    device = device_of(torch_library)
    input, target, drawn = (torch.rand(6, 5, dtype=F64, device=device) + 0.5 for _ in range(3))
    classes = torch.tensor([0, 3, -100, 4, 1, 1], device=device)

    def of_elements(input: Tensor, weight: Tensor, scale: Any = 1.0) -> Tensor:
        return mse_loss(input, target, weight=weight, scale=scale)

    def of_classes(input: Tensor, weight: Tensor, scale: Any = 1.0) -> Tensor:
        return cross_entropy(input, classes, weight=weight, label_smoothing=0.1, scale=scale)

    scale = torch.tensor(0.3, dtype=F64, device=device)
    losses: list[tuple[Loss, Tensor]] = [(of_elements, drawn), (of_classes, drawn[0])]
    for loss, weight in losses:
        given = [x.clone().requires_grad_() for x in (input, weight, scale)]
        assert torch.autograd.gradcheck(loss, given, check_forward_ad=True)
        expected = torch.autograd.grad(loss(*given[:2]), given[:2])
        for number in (0.3, scale):
            got = torch.autograd.grad(loss(*given[:2], number), given[:2])
            torch.testing.assert_close(got, tuple(0.3 * x for x in expected))
        by_weight = grad(loss, argnums=1)(input, weight, scale)
        torch.testing.assert_close(by_weight, 0.3 * expected[1])


def test_no_samples() -> None:
    loss, input = problem("mse")
    nothing = vmap(loss, in_dims=(None, 0))(input, torch.zeros(0))
    assert nothing.shape == (0,)


def test_batched_grads() -> None:
    loss, input = problem("mse")
    input.requires_grad_()
    value = loss(input, torch.tensor(0.3, dtype=F64))
    several = torch.tensor([1.0, -2.0], dtype=F64)
    got = torch.autograd.grad(value, input, several, is_grads_batched=True)[0]
    plain = torch.autograd.grad(loss(input), input)[0]
    torch.testing.assert_close(got, 0.3 * several[:, None, None] * plain)


@pytest.mark.parametrize("name", first(CALLS))
def test_compiled(torch_library: Library, name: str) -> None:
    """A number that changes is compiled twice, a tensor once, with the bits of eager mode."""
    loss, input = problem(name, torch.float32, device_of(torch_library))
    input.requires_grad_()

    def step(input: Tensor, scale: Any) -> Tensor:
        return loss(2 * input, scale) + 1

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(step, backend=counter, fullgraph=True)
    tensors = [torch.tensor(number, device=input.device) for number in (0.5, 2.0)]
    of_grad = torch.tensor(0.5, device=input.device, requires_grad=True)
    frames = []
    for scale in (0.3, 0.7, 0.0, -2.5, 1 / 3, 1.0, *tensors, of_grad):
        by = [input, scale] if scale is of_grad else [input]
        got, expected = function(input, scale), step(input, scale)
        assert scale is of_grad or torch.equal(got, expected)
        torch.testing.assert_close(got, expected)
        gradients = torch.autograd.grad(got, by)
        torch.testing.assert_close(gradients, torch.autograd.grad(expected, by))
        frames.append(counter.frame_count)
    assert frames == [1, 2, 2, 2, 2, 2, 3, 3, 4]


def test_recorded_and_exported() -> None:
    loss, input = problem("mse")
    scale = torch.tensor(0.3, dtype=F64)
    for number in (0.3, 0.0):
        program = make_fx(functools.partial(loss, scale=number))(input)
        assert torch.equal(program(input), loss(input, number))
    program = make_fx(grad(loss))(input, scale)
    torch.testing.assert_close(program(input, 2 * scale), 0.6 * grad(loss)(input))

    class Module(torch.nn.Module):
        def forward(self, input: Tensor, scale: Tensor) -> Tensor:
            return loss(input, scale)

    exported = torch.export.export(Module(), (input, scale)).module()
    assert torch.equal(functional_call(exported, {}, (input, 2 * scale)), loss(input, 2 * scale))


def test_tensors_without_memory() -> None:
    _, input = problem("mse", torch.float32)
    on_meta = mse_loss(input.to("meta"), input.to("meta"), scale=torch.ones((), device="meta"))
    assert (on_meta.shape, on_meta.dtype) == ((), torch.float32)
    with pytest.raises(ValueError, match="all arrays must be on the same device"):
        mse_loss(input.to("meta"), input.to("meta"), scale=torch.ones(()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_scale_that_requires_grad(dtype: torch.dtype) -> None:
    """It multiplies the rounded loss, as in eager mode: the same bits."""
    torch._dynamo.reset()
    compiled = torch.compile(mse_loss, fullgraph=True, backend="aot_eager")
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(50, generator=generator).to(dtype) for _ in range(2))
        leaves = x.requires_grad_(), torch.rand((), generator=generator).requires_grad_()
        values = [loss(x, y, scale=leaves[1]) for loss in (mse_loss, compiled)]
        expected, got = ([v, *torch.autograd.grad(3 * v, leaves)] for v in values)
        assert all(map(torch.equal, got, expected))


def weighed(weight: Tensor, scale: Tensor, input: Tensor, by_us: bool) -> Tensor:
    """A weighted mean, whose weights vary too, times a scale: by a loss, or by torch's products."""
    zeros = torch.zeros_like(input)
    if by_us:
        return mse_loss(input, zeros, weight=weight, scale=scale)
    return (weight * input**2).sum() / weight.sum() * scale


@pytest.mark.parametrize("of_vmap", [False, True])
def test_the_tangent_of_a_gradient_along_a_scale(of_vmap: bool) -> None:
    """A backward pass through a value whose scale alone has a tangent."""
    input = torch.tensor([1.0, 3.0], dtype=F64, requires_grad=True)
    weight = torch.tensor([1.0, 2.0], dtype=F64, requires_grad=True)
    found = []
    for by_us in (True, False):
        with forward_ad.dual_level():
            scale = forward_ad.make_dual(torch.tensor(2.0, dtype=F64), torch.tensor(1.0, dtype=F64))
            if of_vmap:
                samples = torch.stack([input, 2 * input])
                value = vmap(lambda x: weighed(weight.detach(), scale, x, by_us))(samples).sum()  # noqa: B023
            else:
                value = weighed(weight, scale, input, by_us)
            (gradient,) = torch.autograd.grad(value, input)
            found.append(forward_ad.unpack_dual(gradient))
    (ours, along_ours), (torchs, along_torchs) = found
    torch.testing.assert_close(ours, torchs)
    torch.testing.assert_close(along_ours, along_torchs)


def test_batches_of_tangents_of_a_weight_and_a_scale() -> None:
    """As torch.autograd.functional makes them."""
    input = torch.tensor([1.0, 3.0], dtype=F64)
    given = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor(2.0, dtype=F64)
    ours, torchs = (
        torch.autograd.functional.jacobian(
            functools.partial(weighed, input=input, by_us=by_us),
            given,
            vectorize=True,
            strategy="forward-mode",
        )
        for by_us in (True, False)
    )
    torch.testing.assert_close(ours, torchs)

"""Derivatives by weights that divide a mean and by weights of classes, which calls compose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import cupy_losses
from cupy_losses import (
    cosine_embedding_loss,
    cross_entropy,
    mse_loss,
    multi_margin_loss,
    nll_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from cupy_losses._core.types import Reduction

from ..tools.levels import case

Tensor = torch.Tensor
Function = Callable[..., Any]
MSE: Function = F.mse_loss
F64 = torch.float64
IGNORED = -100
TARGET = torch.tensor([0, 1, 3, IGNORED, 2, 1])
WHERE = torch.arange(24).view(6, 4) % 3 > 0
COUNTS = torch.arange(6) != 1


def of_rows(value: Tensor, weight: Tensor, reduction: str, weighted: bool = True) -> Tensor:
    """Losses of rows, reduced as torch does."""
    if reduction == "none":
        return value
    return value.sum() / ((weight.sum() if weighted else len(value)) if reduction == "mean" else 1)


def classes(
    input: Tensor, weight: Tensor, reduction: str, label_smoothing: float = 0.0, z: float = 0.0
) -> Tensor:
    """cross_entropy of indices, of torch's operations that differentiate by the weight."""
    left = TARGET != IGNORED
    target = TARGET.where(left, 0)
    own, logs = weight[target] * left, input.log_softmax(1)
    value = -(1 - label_smoothing) * own * logs.gather(1, target[:, None])[:, 0]
    value = value - label_smoothing / input.shape[1] * (logs * weight).sum(1) * left
    value = value + z * own * input.logsumexp(1) ** 2
    return of_rows(value, own, reduction)


def likelihood(input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    left = TARGET != IGNORED
    target = TARGET.where(left, 0)
    own = weight[target] * left
    return of_rows(-own * input.gather(1, target[:, None])[:, 0], own, reduction)


def margins(input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    target = TARGET.clamp(min=0)[:, None]
    terms = (1 - input.gather(1, target) + input).clamp(min=0) ** 2
    value = weight[target[:, 0]] * terms.scatter(1, target, 0).sum(1) / input.shape[1]
    return of_rows(value, weight, reduction, weighted=False)


def masked(input: Tensor, target: Tensor, weight: Tensor, reduction: str) -> Tensor:
    counts = torch.where(WHERE, weight, 0)
    return (counts * (input - target) ** 2).sum() / counts.sum()


def sampled(each: Function, share: Function) -> Function:
    """Losses of rows with a weight for each, the last tensor, of those that COUNTS leaves."""

    def reference(*tensors: Tensor, reduction: str) -> Tensor:
        *own, weight = tensors
        counts = torch.where(COUNTS, weight, 0)
        return of_rows(counts * each(*own), counts * share(*own), reduction)

    return reference


def numbers(*shape: int) -> Tensor:
    return 0.3 + torch.rand(shape, generator=torch.manual_seed(0), dtype=torch.float64)


ELEMENTS, CLASSES, SAMPLES = numbers(6, 4), numbers(4), numbers(6)
LOGITS = 3 * torch.randn(6, 4, generator=torch.manual_seed(1), dtype=torch.float64)


def smoothed(function: Function, value: float = 0.2, **options: float) -> Function:
    return lambda *args, **given: function(*args, label_smoothing=value, **given, **options)


def of_classes(loss: Function, target: Tensor = TARGET, **options: Any) -> Function:
    def of_weight(input: Tensor, weight: Tensor, reduction: str) -> Any:
        return loss(input, target, weight=weight, reduction=reduction, **options)

    return of_weight


def of_samples_and_classes(input: Tensor, weight: Tensor, sample: Tensor, **given: Any) -> Any:
    given |= {"sample_weight": sample, "where": COUNTS, "weight": weight}
    return cross_entropy(input, TARGET, label_smoothing=0.2, z_loss=0.1, **given)


def of_samples_and_probabilities(
    input: Tensor, target: Tensor, weight: Tensor, sample: Tensor, **given: Any
) -> Any:
    given |= {"sample_weight": sample, "where": COUNTS, "weight": weight}
    return cross_entropy(input, target, **given)


def of_vectors(input: Tensor, sample: Tensor, **given: Any) -> Any:
    given |= {"sample_weight": sample, "where": COUNTS}
    return cosine_embedding_loss(input, ELEMENTS.to(input), torch.ones(6), **given)


def of_weight(loss: Function, **options: Any) -> Function:
    def call(input: Tensor, target: Tensor, weight: Tensor, reduction: str) -> Any:
        return loss(input, target, weight=weight, reduction=reduction, **options)

    return call


# The loss and its reference, as functions of tensors, the last of which is the weight.
EVERY = ("mean", "sum", "none")
WEIGHED: dict[str, tuple[Function, Function, tuple[Tensor, ...], tuple[str, ...]]] = {
    "classes": (of_classes(cross_entropy), classes, (LOGITS, CLASSES), EVERY),
    "smoothed": (
        of_classes(smoothed(cross_entropy, z_loss=0.1)),
        smoothed(classes, z=0.1),
        (LOGITS, CLASSES),
        EVERY,
    ),
    "smoothed alone": (
        of_classes(smoothed(cross_entropy, 1.0)),
        smoothed(classes, 1.0),
        (LOGITS, CLASSES),
        EVERY,
    ),
    "probabilities": (
        of_weight(cross_entropy),
        of_weight(F.cross_entropy),
        (LOGITS, ELEMENTS, CLASSES),
        EVERY,
    ),
    "smoothed probabilities": (
        of_weight(smoothed(cross_entropy)),
        of_weight(smoothed(F.cross_entropy)),
        (LOGITS, ELEMENTS, CLASSES),
        EVERY,
    ),
    "nll": (of_classes(nll_loss), likelihood, (LOGITS, CLASSES), EVERY),
    "multi_margin": (
        of_classes(multi_margin_loss, TARGET.clamp(min=0), p=2),
        margins,
        (LOGITS, CLASSES),
        EVERY,
    ),
    "samples and classes": (
        of_samples_and_classes,
        sampled(
            lambda x, w: classes(x, w, "none", 0.2, 0.1),
            lambda x, w: w[TARGET.clamp(min=0)] * (TARGET != IGNORED),
        ),
        (LOGITS, CLASSES, SAMPLES),
        EVERY,
    ),
    "samples and probabilities": (
        of_samples_and_probabilities,
        sampled(
            lambda x, y, w: F.cross_entropy(x, y, weight=w, reduction="none"),
            lambda *tensors: torch.ones(6),
        ),
        (LOGITS, ELEMENTS, CLASSES, SAMPLES),
        EVERY,
    ),
    "samples of vectors": (
        of_vectors,
        sampled(
            lambda x: 1 - F.cosine_similarity(x, ELEMENTS.to(x)),
            lambda x: torch.ones(6),
        ),
        (LOGITS, SAMPLES),
        EVERY,
    ),
    "mse": (of_weight(mse_loss), of_weight(MSE), (LOGITS, ELEMENTS, 2 * ELEMENTS), EVERY),
    "mse of broadcast weights": (
        of_weight(mse_loss),
        lambda x, y, w, **given: MSE(x, y, weight=w.expand(6, 4), **given),
        (LOGITS, ELEMENTS, CLASSES),
        ("mean",),
    ),
    "mse of a mask": (
        of_weight(mse_loss, where=WHERE),
        masked,
        (LOGITS, ELEMENTS, 2 * ELEMENTS),
        ("mean",),
    ),
}


def leaves(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.clone().requires_grad_() for t in tensors]


def squared(function: Function) -> Function:
    """A number, whose derivatives depend on the value."""

    def total(*tensors: Tensor) -> Tensor:
        value = function(*tensors)
        return (value * value + value).sum()

    return total


def twice(function: Function, *tensors: Tensor) -> Any:
    """The value, all gradients, and gradients of these."""
    given = leaves(tensors)
    value = function(*given)
    first = torch.autograd.grad((value * value + value).sum(), given, create_graph=True)
    total = torch.stack([(slope * slope).sum() for slope in first]).sum()
    return value, first, torch.autograd.grad(total, given, materialize_grads=True)


def once(function: Function, *tensors: Tensor) -> Any:
    given = leaves(tensors)
    value = function(*given)
    return value, torch.autograd.grad((value * value + value).sum(), given)


def of_samples(transform: Function) -> Function:
    def of_batch(function: Function, *tensors: Tensor) -> Any:
        batch = [torch.stack([t, 1.1 * t, 0.9 * t]) for t in tensors]
        return vmap(transform(function))(*batch)

    return of_batch


def by_compile(function: Function, *tensors: Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", **options)
    return once(compiled, *tensors)


MODES: dict[str, Function] = {
    "eager": twice,
    "hessian": lambda f, *ts: hessian(squared(f), tuple(range(len(ts))))(*ts),
    "by input, then by weight": lambda f, *ts: jacrev(grad(squared(f)), len(ts) - 1)(*ts),
    "along weight, of a gradient": lambda f, *ts: jacfwd(grad(squared(f)), len(ts) - 1)(*ts),
    "along input, then by weight": lambda f, *ts: jacrev(jacfwd(squared(f)), len(ts) - 1)(*ts),
    "along weight": lambda f, *ts: jacfwd(f, len(ts) - 1)(*ts),
    "of samples": of_samples(lambda f: jacrev(f, -1)),
}
TRACED: dict[str, tuple[Function, Function]] = {
    "recorded": (lambda f, *ts: once(make_fx(lambda *given: f(*given))(*ts), *ts), once),
    "compiled": (by_compile, once),
    "compiled for all shapes": (lambda f, *ts: by_compile(f, *ts, dynamic=True), once),
}
CASES = [(name, reduction) for name, (*_, own) in WEIGHED.items() for reduction in own]


def results(mode: Function, reference: Function, name: str, reduction: str) -> tuple[Any, Any]:
    """What a mode gives of the loss, and of the reference."""
    loss, expected, tensors, _ = WEIGHED[name]
    return (
        mode(lambda *given: loss(*given, reduction=reduction), *tensors),
        reference(lambda *given: expected(*given, reduction=reduction), *tensors),
    )


# A mode, the one of the reference, and of how many cases one runs by default.
WITH_REFERENCE = [
    *((name, (mode, mode), 4) for name, mode in MODES.items()),
    *((name, modes, 19) for name, modes in TRACED.items()),
]


@pytest.mark.parametrize(
    ("modes", "name", "reduction"),
    [
        case(modes, name, reduction, default=(k + n) % every == 0, id=f"{label}-{name}-{reduction}")
        for k, (label, modes, every) in enumerate(WITH_REFERENCE)
        for n, (name, reduction) in enumerate(CASES)
    ],
)
def test_derivatives(modes: tuple[Function, Function], name: str, reduction: str) -> None:
    torch.testing.assert_close(*results(*modes, name, reduction))


@pytest.mark.parametrize("loss", [cross_entropy, nll_loss, multi_margin_loss])
@pytest.mark.parametrize("transform", [grad, jacfwd, hessian])
def test_samples_of_one_row(loss: Function, transform: Function) -> None:
    """Whose target is of shape (); one weight is that of all."""

    def of_weight(weight: Tensor, input: Tensor, target: Tensor) -> Any:
        value = loss(input, target, weight=weight, reduction="sum")
        return value**2 + loss(input, target, weight=weight)

    target = torch.tensor([0, 1, 2, 3, 1, 1])
    of_one = transform(of_weight)
    expected = [of_one(CLASSES, *given) for given in zip(LOGITS, target, strict=True)]
    got = vmap(of_one, in_dims=(None, 0, 0))(CLASSES, LOGITS, target)
    torch.testing.assert_close(got, torch.stack(expected))


@pytest.mark.parametrize("loss", [cross_entropy, nll_loss])
def test_a_hessian_that_torch_batches(loss: Function) -> None:
    """In forward mode over a backward pass."""

    def squared(weight: Tensor) -> Tensor:
        return loss(LOGITS, TARGET, weight=weight) ** 2

    hessians = [
        torch.autograd.functional.hessian(squared, CLASSES, **options)
        for options in ({}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"})
    ]
    torch.testing.assert_close(hessians[1], hessians[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_a_weight_for_each_sample_under_autocast(dtype: torch.dtype, autocast: torch.dtype) -> None:
    weights = torch.rand(2, CLASSES.numel()).to(dtype)
    logits, target = LOGITS[:2].to(dtype), TARGET[:2]
    of_one = grad(lambda x, t, w: cross_entropy(x, t, weight=w))
    with torch.autocast("cpu", dtype=autocast):
        got = vmap(of_one)(logits, target, weights)
        each = [of_one(*given) for given in zip(logits, target, weights, strict=True)]
    assert got.dtype == dtype
    assert torch.equal(got, torch.stack(each))


@pytest.mark.parametrize("name", WEIGHED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    """That of the loss, whose gradients have those of the operands; rounded once."""
    loss, expected, tensors, (reduction, *_) = WEIGHED[name]
    given = leaves(tuple(t.to(dtype) for t in tensors))
    exact = leaves(tuple(t.detach().double() for t in given))
    pairs = []
    for function, operands in ((loss, given), (expected, exact)):
        value = function(*operands, reduction=reduction)
        pairs.append([value, *torch.autograd.grad(value, operands)])
    assert pairs[0][0].dtype == loss(*(t.detach() for t in given), reduction=reduction).dtype
    for got, wanted in zip(*pairs, strict=True):
        assert got.dtype == dtype
        rtol = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got, wanted.to(dtype), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_by_class_weights_are_rounded_once(dtype: torch.dtype) -> None:
    """Whose parts, of a loss with smoothing, cancel here."""
    input, weight = LOGITS.to(dtype), torch.full((4,), 60000.0).to(dtype)
    slopes = []
    for loss, kind in ((of_classes(smoothed(cross_entropy)), dtype), (smoothed(classes), F64)):
        (leaf,) = leaves((weight.to(kind),))
        value = loss(input.to(kind), leaf, reduction="mean")
        slopes.append(torch.autograd.grad(value, leaf)[0])
    assert torch.equal(slopes[0], slopes[1].to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("smoothing", [0.1, 0.999, 1.0])
def test_smoothing_does_not_cancel(dtype: torch.dtype, smoothing: float) -> None:
    """What the class adds to a gradient, and what all classes add, may be much the same."""
    generator = torch.manual_seed(2)
    input = (3 * torch.randn(300, 2, generator=generator)).to(dtype)
    target = torch.randint(0, 2, (300,), generator=generator)
    weight = (0.5 + torch.rand(2, generator=generator)).to(dtype)
    operands, exact = leaves((input, weight)), leaves((input.to(F64), weight.to(F64)))
    value = smoothed(cross_entropy, smoothing)(operands[0], target, weight=operands[1])
    shares = (1 - smoothing) * F.one_hot(target).double() + smoothing / 2
    terms = -exact[1] * shares * exact[0].log_softmax(1)
    wanted_value = terms.sum() / exact[1][target].sum()
    gradients = torch.autograd.grad(value, operands), torch.autograd.grad(wanted_value, exact)
    eps = torch.finfo(dtype).eps
    for got, wanted in zip(*gradients, strict=True):
        off = (got.to(F64) - wanted).abs() / wanted.abs().amax(-1, keepdim=True)
        assert off.max() <= eps, f"{float(off.max() / eps):.1f} eps"


def test_one_pass_over_what_is_ignored_or_masked() -> None:
    """NaN in it reaches neither the loss nor a gradient."""
    nan = torch.nan
    input = LOGITS.where((TARGET != IGNORED)[:, None], nan).requires_grad_()
    (weight,) = leaves((CLASSES,))
    for smoothing in (0.0, 0.2):
        value = cross_entropy(input, TARGET, weight=weight, label_smoothing=smoothing)
        gradients = torch.autograd.grad(value, (input, weight))
        assert value.isfinite()
        assert all(g.isfinite().all() for g in gradients)
        assert (gradients[0][3] == 0).all()
    weights = ELEMENTS.where(WHERE, nan).requires_grad_()
    value = mse_loss(LOGITS.where(WHERE, nan), ELEMENTS, weight=weights, where=WHERE)
    (slope,) = torch.autograd.grad(value, weights)
    assert value.isfinite()
    assert (slope[~WHERE] == 0).all()
    assert slope.isfinite().all()


def test_nothing_left() -> None:
    """The loss is NaN, its gradients are 0; a class out of range is NaN in both."""
    input, weight = leaves((LOGITS, CLASSES))
    losses = [
        cross_entropy(input, torch.full((6,), IGNORED), weight=weight),
        mse_loss(input, ELEMENTS, weight=weight, where=torch.zeros(4, dtype=torch.bool)),
    ]
    for value in losses:
        assert value.isnan()
        for gradient in torch.autograd.grad(value, (input, weight)):
            assert (gradient == 0).all()
    each = cross_entropy(input, TARGET + 1, weight=weight, reduction="none")
    assert each.isnan().tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("reduction", EVERY)
def test_only_the_weight_requires_grad(reduction: Reduction) -> None:
    (weight,) = leaves((CLASSES,))
    value = nll_loss(LOGITS, TARGET, weight=weight, reduction=reduction)
    got = torch.autograd.grad(value.sum(), weight)
    expected = torch.autograd.grad(likelihood(LOGITS, weight, reduction).sum(), weight)
    torch.testing.assert_close(got, expected)
    with torch.no_grad():
        assert not nll_loss(LOGITS, TARGET, weight=weight, reduction=reduction).requires_grad


def test_what_is_not_available_says_so() -> None:
    input, weight = leaves((LOGITS, CLASSES))
    with pytest.raises(ValueError, match="weight requires grad, which torch's autograd alone"):
        cross_entropy(1 * input, TARGET, weight=weight, overwrite_input=True)
    with pytest.raises(ValueError, match="the loss is differentiated by weight by torch"):
        cupy_losses.grad(lambda w: mse_loss(LOGITS, ELEMENTS, weight=w))(ELEMENTS)

    def by_target(weight: Tensor) -> Tensor:
        def loss(target: Tensor) -> Any:
            return cross_entropy(LOGITS, target, weight=weight)

        return grad(loss)(ELEMENTS).sum()

    with pytest.raises(NotImplementedError, match="by weight of derivatives by target are not"):
        grad(by_target)(CLASSES)


@pytest.mark.parametrize("distance", [None, lambda x, y: (x - y + 1e-6).norm(dim=-1)])
def test_gradients_are_zero_where_weights_of_triplets_add_up_to_nothing(distance: Any) -> None:
    """With the built-in distance, and with one of one's own."""
    anchor, positive, negative = torch.rand(3, 4, 5)
    anchor.requires_grad_()
    loss = triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, sample_weight=torch.zeros(4)
    )
    loss.backward()
    assert loss.isnan()
    assert torch.equal(anchor.grad, torch.zeros(4, 5))


NAN = float("nan")
OF_NAN: dict[str, dict[str, Any]] = {
    "probabilities that a mask leaves out": {
        "target": torch.tensor([[0.2, 0.8], [NAN, NAN], [1.0, 0.0]]),
        "where": torch.tensor([True, False, True]),
    },
    "a weight of a row that is ignored": {
        "target": torch.tensor([0, -100, 1]),
        "sample_weight": torch.tensor([1.0, NAN, 2.0]),
        "label_smoothing": 0.1,
    },
    "a weight of a row of an ignored class": {
        "target": torch.tensor([0, 1, 0]),
        "sample_weight": torch.tensor([1.0, NAN, 2.0]),
        "ignore_index": 1,
    },
    "the weight of an ignored class": {
        "target": torch.tensor([0, 1, 0]),
        "sample_weight": torch.tensor([1.0, 3.0, 2.0]),
        "weight": torch.tensor([2.0, NAN]),
        "ignore_index": 1,
    },
}


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("case", OF_NAN)
def test_what_is_ignored_may_be_nan(case: str, reduction: Reduction) -> None:
    """The value is that without derivatives, and these are numbers."""
    options: dict[str, Any] = {"weight": torch.tensor([1.0, 3.0]), **OF_NAN[case]}
    options["reduction"] = reduction
    logits, target = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]]), options.pop("target")
    expected = cross_entropy(logits, target, **options)
    names = [name for name in ("weight", "sample_weight") if name in options]
    recorded = {name: options[name].clone().requires_grad_() for name in names}
    value = cross_entropy(logits, target, **(options | recorded))
    torch.testing.assert_close(value, expected)
    assert expected.isfinite().all()
    for gradient in torch.autograd.grad(value.sum(), [*recorded.values()]):
        assert gradient.isfinite().all()


def test_a_weight_in_single_precision_of_a_loss_in_double() -> None:
    logits, target = torch.linspace(-3, 5, 18, dtype=torch.float64).reshape(6, 3), torch.arange(6)
    weight = torch.linspace(0.1, 2, 6)
    values = [
        cross_entropy(
            logits,
            target % 3,
            weight=torch.tensor([0.1, 0.2, 0.3]),
            sample_weight=weight.clone().requires_grad_(recorded),
            label_smoothing=0.1,
        ).detach()
        for recorded in (False, True)
    ]
    torch.testing.assert_close(values[1], values[0], rtol=1e-14, atol=0.0)


def test_weights_that_add_up_to_nothing_but_are_not() -> None:
    logits, target = torch.eye(2, 3), torch.tensor([0, 0])
    weight = torch.tensor([1.0, -1.0])
    expected = cross_entropy(logits, target, sample_weight=weight)
    assert expected.isinf()
    assert cross_entropy(logits, target, sample_weight=weight.requires_grad_()) == expected


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_narrow_probabilities_are_smoothed_in_the_dtype_of_the_arithmetic(
    narrow: torch.dtype,
) -> None:
    """Where the weight requires grad, the loss is what it is without."""
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(4, 3, generator=generator)
    target = torch.softmax(torch.randn(4, 3, generator=generator), 1).to(narrow)
    weight = torch.tensor([0.3, 1.0, 1.7])
    losses = [
        cross_entropy(input, target, weight=w, label_smoothing=0.15)
        for w in (weight, weight.clone().requires_grad_())
    ]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", [cross_entropy, nll_loss, multi_margin_loss])
def test_weights_of_no_classes(loss: Any) -> None:
    """Indices into no classes give NaN, and the weight of none has no gradient."""
    x, target = torch.zeros(3, 0), torch.zeros(3, dtype=torch.long)
    weight = torch.zeros(0, requires_grad=True)
    value = loss(x, target, weight=weight)
    assert value.isnan()
    (gradient,) = torch.autograd.grad(value, weight)
    assert gradient.shape == (0,)
    weights = torch.zeros(2, 0)
    assert torch.func.vmap(lambda own: loss(x, target, weight=own))(weights).isnan().all()


def test_batches_without_samples() -> None:
    """Those of transforms inside of others, too."""
    func, y = torch.func, torch.zeros(4)

    def mean(x: Tensor) -> Tensor:
        return mse_loss(x, y)

    def total(x: Tensor) -> Tensor:
        return mse_loss(x, y, reduction="sum")

    nothing = torch.zeros(0, 4)
    assert func.vmap(func.hessian(mean))(nothing).shape == (0, 4, 4)
    assert func.vmap(func.jacfwd(mean))(nothing).shape == (0, 4)
    assert func.vmap(func.jacrev(total))(nothing).shape == (0, 4)
    assert func.vmap(func.vmap(mean))(torch.zeros(0, 2, 4)).shape == (0, 2)


def test_derivatives_of_means_over_no_rows() -> None:
    """They are 0 for each sample of a batch, as for one alone; the mean is NaN."""
    anchors, b = torch.zeros(2, 0, 3), torch.ones(1, 3)

    def mean(anchor: Tensor, others: Tensor) -> Tensor:
        return triplet_margin_loss(anchor, others, others)

    def forward(anchor: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(lambda own: mean(anchor, own), (b,), (b,))[1]
        return found

    assert forward(anchors[0]) == 0
    assert (torch.func.vmap(forward)(anchors) == 0).all()
    of_each = torch.func.vmap(torch.func.grad(mean, argnums=1), (0, None))(anchors, b)
    assert (of_each == 0).all()
    assert torch.func.vmap(mean, (0, None))(anchors, b).isnan().all()

"""The types of the public functions: at run time, and as type checkers see them.

mypy and pyright read this file when the tree is linted, both as strictly as a user may: they hold
`assert_type` to what it says, and each comment that ignores an error to there being one. pytest
runs it: what the checkers believe happens. The code of docs/types.md is checked by a test.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal, TypeVar, assert_type, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import cupy_losses
import cupy_losses.nn.functional as F
from cupy_losses import (
    accelerate,
    cross_entropy,
    gaussian_nll_loss,
    grad,
    grad_and_hess,
    hvp,
    jvp,
    kl_div,
    mse_loss,
    multi_margin_loss,
    nn,
    pointwise_loss,
    row_loss,
    triplet_margin_with_distance_loss,
    value_and_grad,
    vjp,
)
from cupy_losses._api.public import is_loss
from cupy_losses._core.arguments import Choice
from cupy_losses.custom import LossFunction, RowLossFunction
from cupy_losses.typing import (
    AccelerationReport,
    Array,
    ArrayT,
    CheckReport,
    KLReduction,
    Reduction,
)

from ..tools import requirements
from .test_documents import ROOT, blocks

Numpy = npt.NDArray[Any]

LOSSES = [name for name, value in vars(cupy_losses).items() if is_loss(value)]
X = np.array([1.0, 3.0])
ZERO = np.zeros(2)


@pointwise_loss
def cauchy(input: Any, target: Any, c: float = 1.0) -> Any:
    """A formula of one element."""
    return np.log1p(((input - target) / c) ** 2)


@row_loss
def overlap(input: Any, target: Any, smooth: float = 1.0) -> Any:
    """A formula of a row."""
    return (np.sum(input * target) + smooth) / (np.sum(input) + np.sum(target) + smooth)


@pointwise_loss(check=False)
def absolute(input: float, target: float, c: float = 1.0) -> float:
    """A formula of one element, decorated with an option."""
    return abs(input - target) / c


@row_loss(name="product", check=False)
def multiplied(input: Any, target: Any) -> Any:
    """A formula of a row, under another name."""
    return np.sum(input * target) / np.sum(target)


@pytest.mark.exhaustive  # mypy reads torch
def test_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no mistakes for a strict mypy, without the settings of this tree."""
    mypy = requirements.imported("mypy.api", "dev")
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n", encoding="utf-8")
    files: list[Path] = []
    for block in blocks("docs/types.md"):
        files.append(tmp_path / f"line{block.line}.py")
        files[-1].write_text(block.code, encoding="utf-8")
    assert len(files) > 1
    options = "--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")
    report, errors, code = mypy.run([*options, *map(str, files)])
    assert (code, errors) == (0, ""), report


@pytest.mark.parametrize("name", LOSSES)
def test_signatures(name: str) -> None:
    """Operands are arrays, the first one decides on the result, choices are literals."""
    function = getattr(cupy_losses, name)
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    assert inspect.signature(function).return_annotation == "ArrayT"
    assert hints.pop("return") is ArrayT
    first, *others = [p.name for p in parameters if p.default is p.empty]
    assert hints[first] is ArrayT
    assert all(hints[other] in (Array, Array | float) for other in others)
    for parameter in parameters:
        hint = hints[parameter.name]
        assert hint is not Any
        if get_origin(hint) is Literal:
            with pytest.raises(ValueError, match="must be") as error:
                function(*[ZERO] * (1 + len(others)), **{parameter.name: "wrong"})
            with pytest.raises(ValueError, match="must be") as expected:
                Choice(get_args(hint)).checked(parameter.name, "wrong")
            assert str(error.value) == str(expected.value)


def test_signature_of_a_loss_of_ones_own() -> None:
    assert inspect.signature(cauchy).return_annotation == "ArrayT"


def test_numpy() -> None:
    assert_type(mse_loss(X, ZERO), Numpy)
    assert_type(mse_loss(X.astype(np.float32), ZERO, reduction="none"), Numpy)
    assert_type(mse_loss(input=X, target=ZERO, where=X > 2, scale=np.float64(2.0)), Numpy)
    assert_type(kl_div(X, ZERO, reduction="batchmean"), Numpy)
    assert_type(gaussian_nll_loss(X, ZERO, 0.5, scale=np.ones(())), Numpy)
    assert_type(multi_margin_loss(X, np.zeros((), int), p=2), Numpy)
    assert_type(cross_entropy(X, np.zeros((), int), ignore_index=np.int64(-1)), Numpy)
    assert_type(value_and_grad(mse_loss)(X, ZERO, scale=2.0), tuple[Numpy, Numpy])
    assert_type(value_and_grad(mse_loss, (0, 1))(X, ZERO), tuple[Numpy, tuple[Numpy, ...]])
    assert_type(grad(mse_loss)(X, ZERO), Numpy)
    assert_type(grad(mse_loss, [0, 1])(X, ZERO), tuple[Numpy, ...])
    assert_type(grad_and_hess(mse_loss)(X, ZERO), tuple[Numpy, Numpy])
    assert_type(jvp(mse_loss, (X, ZERO), (X, None), reduction="sum"), tuple[Numpy, Numpy])
    assert_type(hvp(mse_loss, [X, ZERO], [X, None]), Numpy)
    assert_type(vjp(mse_loss, (X, ZERO), X, reduction="none"), Numpy)
    assert_type(vjp(mse_loss, [X, ZERO], X, (0, 1), reduction="none"), tuple[Numpy, ...])
    assert_type(cauchy(X, ZERO, c=2.0), Numpy)
    assert isinstance(mse_loss(X, ZERO), np.ndarray)


def test_torch() -> None:
    x, zero = torch.tensor([1.0, 3.0]), torch.zeros(2)
    assert_type(mse_loss(x, zero), Tensor)
    assert_type(mse_loss(torch.nn.Parameter(x), zero, scale=zero[0]), Tensor)
    assert type(mse_loss(torch.nn.Parameter(x), zero)) is Tensor
    assert_type(value_and_grad(mse_loss)(x, zero, reduction="sum"), tuple[Tensor, Tensor])
    assert_type(value_and_grad(mse_loss, (0, 1))(x, zero), tuple[Tensor, tuple[Tensor, ...]])
    assert_type(grad(mse_loss)(x, zero), Tensor)
    assert_type(jvp(mse_loss, (x, zero), (None, x)), tuple[Tensor, Tensor])
    assert_type(hvp(mse_loss, (x, zero), (x, None), argnum=1), Tensor)
    assert_type(cross_entropy(torch.ones(2, 3), torch.tensor([0, 2])), Tensor)
    mse_loss(x.requires_grad_(), zero).backward()  # type: ignore[no-untyped-call]  # torch's


def test_two_libraries() -> None:
    """The first operand decides."""
    x = torch.tensor([1.0, 3.0])
    assert_type(mse_loss(x, ZERO), Tensor)
    assert_type(mse_loss(X, x), Numpy)
    assert_type(grad(mse_loss, 1)(X, x), Numpy)
    assert isinstance(grad(mse_loss, 1)(X, x), np.ndarray)
    # The primals are of both, and their order is not known.
    assert_type(jvp(mse_loss, (x, ZERO), (x, None)), tuple[Any, Any])


@pytest.mark.gpu
def test_cupy() -> None:
    """CuPy has no types: its arrays are Any, and so is what comes of them."""
    import cupy as cp  # pyright: ignore[reportMissingTypeStubs]

    def losses(x: Any) -> None:
        assert_type(mse_loss(x, x), Any)
        assert_type(value_and_grad(mse_loss)(x, x), tuple[Any, Any])
        assert isinstance(mse_loss(x, x), cp.ndarray)

    losses(cp.ones(3))


def test_arrays_of_another_library() -> None:
    class Shared:
        """What has the memory of an array."""

        def __dlpack__(self, **options: Any) -> Any:
            return ZERO.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return ZERO.__dlpack_device__()

    assert_type(mse_loss(X, Shared()), Numpy)
    assert_type(mse_loss(Shared(), X), Any)


def test_functions_of_losses() -> None:
    """Their own parameters and types are passed on."""

    def elastic(input: Tensor, target: Tensor, factor: float) -> Tensor:
        return 0.5 * mse_loss(input, target) + factor * cauchy(input, target)

    x = torch.ones(2)
    assert_type(value_and_grad(elastic)(x, x, factor=2.0), tuple[Tensor, Tensor])
    assert_type(value_and_grad(elastic, (0, 1))(x, x, 2.0), tuple[Tensor, tuple[Tensor, ...]])
    with pytest.raises(TypeError, match="colour"):
        value_and_grad(elastic)(x, x, 2.0, colour=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_losses_of_ones_own() -> None:
    x = torch.tensor([1.0, 3.0])
    assert_type(cauchy.source, str)
    assert_type(cauchy.check(ZERO, ZERO), CheckReport)
    assert_type(cauchy(x, ZERO, c=2.0, reduction="sum", scale=2.0, where=x > 2), Tensor)
    assert_type(cauchy(input=X, target=ZERO), Any)
    assert_type(value_and_grad(cauchy)(x, x, reduction="sum"), tuple[Tensor, Tensor])
    assert_type(grad(cauchy, (0, 1))(X, ZERO, c=2.0), tuple[Numpy, ...])
    assert_type(grad_and_hess(cauchy)(X, ZERO, weight=X), tuple[Numpy, Numpy])
    assert_type(overlap(x, ZERO, smooth=2.0, sample_weight=np.ones(()), axis=0), Tensor)
    assert_type(value_and_grad(overlap)(X, ZERO), tuple[Numpy, Numpy])
    with pytest.raises(TypeError, match="unexpected keyword argument 'weight'"):
        overlap(X, ZERO, weight=X)
    assert_type(absolute(x, ZERO, c=2.0, weight=x), Tensor)
    assert_type(value_and_grad(absolute)(X, ZERO), tuple[Numpy, Numpy])
    assert_type(multiplied(X, X, axis=0), Numpy)
    assert_type(multiplied.source, str)

    def product(input: Any, target: Any) -> Any:
        return input * target

    text = pointwise_loss("text", "input * target", numpy=product)
    assert_type(value_and_grad(text)(X, ZERO), tuple[Numpy, Numpy])
    named = pointwise_loss("named", product)
    assert_type(named(X, ZERO), Numpy)
    assert_type(pointwise_loss(product, check=False), LossFunction)
    assert_type(pointwise_loss("other")(product), LossFunction)

    def total(input: Any) -> Any:
        return np.sum(input)

    assert_type(row_loss()(total), RowLossFunction)


def test_distance_of_ones_own() -> None:
    def distance(x: Tensor, y: Tensor) -> Tensor:
        return abs(x - y).sum(dim=-1)

    x = torch.ones(2, 3)
    loss = triplet_margin_with_distance_loss(x, x, 2 * x, distance_function=distance)
    assert_type(loss, Tensor)


def test_torch_nn() -> None:
    """Functions and modules have the types of torch's; modules return tensors."""
    x, zero = torch.tensor([1.0, 3.0]), torch.zeros(2)
    assert_type(F.mse_loss(x, zero, None, None, "sum"), Tensor)
    assert_type(F.charbonnier_loss(x, zero, eps=0.1), Tensor)
    assert_type(nn.HuberLoss(delta=2.0)(x, zero), Tensor)
    own = nn.CharbonnierLoss(0.1, reduction="sum")
    assert_type(own(x, ZERO, where=x > 2), Tensor)
    assert_type(own.eps, float)
    assert_type(own.reduction, Reduction)
    torch_module: torch.nn.CrossEntropyLoss = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert_type(torch_module.label_smoothing, float)


def test_accelerate() -> None:
    with accelerate() as acceleration:
        assert_type(acceleration.report(measure=False), AccelerationReport)


def test_generic_functions() -> None:
    """A user's own function of arrays of several libraries."""
    Own = TypeVar("Own", Tensor, Numpy)

    def doubled(input: Own, target: Own) -> Own:
        return 2 * mse_loss(input, target)

    assert_type(doubled(X, ZERO), Numpy)
    assert_type(doubled(torch.ones(2), torch.ones(2)), Tensor)


def test_wrapped() -> None:
    """A user's own function that passes the arguments of a loss on."""

    def divergence(input: ArrayT, target: Array, reduction: KLReduction = "batchmean") -> ArrayT:
        return kl_div(input, target, reduction=reduction)

    def squared(input: ArrayT, target: Array, reduction: Reduction = "mean") -> ArrayT:
        return mse_loss(input, target, reduction=reduction)

    x = torch.ones(2)
    assert_type(divergence(X, ZERO), Numpy)
    assert_type(squared(x, ZERO, "sum"), Tensor)
    assert_type(value_and_grad(squared)(X, ZERO), tuple[Numpy, Numpy])
    with pytest.raises(ValueError, match="reduction"):
        squared(x, x, "batchmean")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_mistakes() -> None:
    """Each is an error of both checkers, and at run time."""
    x = torch.ones(2)
    with pytest.raises(ValueError, match="reduction"):
        mse_loss(x, x, reduction="avg")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="reduction"):
        mse_loss(x, x, reduction="batchmean")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="p must be 1 or 2"):
        multi_margin_loss(x, x, p=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="weigth"):
        mse_loss(x, x, weigth=x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="target"):
        mse_loss(x, [1.0, 2.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="positional"):
        mse_loss(x, x, "sum")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="reduction"):
        value_and_grad(mse_loss)(x, x, reduction="avg")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="argnums"):
        grad(mse_loss, "input")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ValueError, match="reduction"):
        cauchy(x, x, reduction="avg")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="c must be a real number"):
        cauchy(x, x, c="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="check must be True or False"):
        pointwise_loss(check="yes")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        row_loss(operands=("x",))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with pytest.raises(AttributeError):
        nn.MeanSquaredLoss()  # type: ignore[attr-defined]  # pyright: ignore
    with pytest.raises(TypeError, match="epsilon"):
        nn.CharbonnierLoss(epsilon=0.1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(AttributeError):
        F.mean_squared_loss(x, x)  # type: ignore[attr-defined]  # pyright: ignore
    with pytest.raises(TypeError, match="eps"):
        F.huber_loss(x, x, eps=0.1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

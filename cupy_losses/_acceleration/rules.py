"""Where this package has torch's result, and why not elsewhere.

All is decided by types, dtypes, shapes and flags: nothing here waits for a device. What only values
could show is not seen: docs/accelerate.md lists it, and docs/deviations.md says what differs.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from .._api.prepared import Prepared
from .._device import driver
from .._torch.evaluation import is_autocast, spec_of

Tensor = torch.Tensor

ON_NO_GPU = "the operands are on no GPU"
DEVICE = "the operands are not all on one GPU"
NO_GPU = "CuPy finds no GPU"
NO_TENSOR = "an operand is no tensor"
SUBCLASS = "an operand is of a subclass of Tensor"
LAYOUT = "an operand is sparse, nested, or not dense otherwise"
EMPTY = "an operand has no elements"
UNKNOWN = "shapes that depend on data"
DERIVATIVES = "a third derivative, or a second one in forward mode"
GRADIENT = "a gradient by a target or a weight"
OTHER_DTYPES = "dtypes of which torch makes another dtype, or an error"
SHAPES = "shapes of which torch makes another result, or an error"
AUTOCAST = "autocast, under which torch has another dtype, or an error"
DISTANCE = "a distance function of one's own"
REFUSED = "an argument that cupy_losses does not take"

REASONS = (
    ON_NO_GPU,
    DEVICE,
    NO_GPU,
    NO_TENSOR,
    SUBCLASS,
    LAYOUT,
    EMPTY,
    UNKNOWN,
    DERIVATIVES,
    GRADIENT,
    OTHER_DTYPES,
    SHAPES,
    AUTOCAST,
    DISTANCE,
    REFUSED,
)

# Arguments that may be None, and are looked at as operands are where they are not.
OPTIONAL = ("weight", "pos_weight", "distance_function")
# Operands that may be numbers of Python.
MAY_BE_NUMBERS = ("var",)

# Subclasses of others may do anything. The last two are torch's own, for tracing.
_CLASSES = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
_WEIGHTED_MEANS = {"mse_loss", "l1_loss", "huber_loss"}
_OF_CLASSES = {"cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_margin_loss"}
_OF_INDICES = {"cross_entropy", "nll_loss"}
_OF_VECTORS = {
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
}
# Where torch has no gradient by the target, or NaN at 0.
NO_GRADIENT_BY_TARGET = {
    "hinge_embedding_loss",
    "kl_div",
    "poisson_nll_loss",
    "soft_margin_loss",
}
# Where torch differentiates by the weight; by those of classes, where the target is probabilities.
_BY_WEIGHT = {"mse_loss", "l1_loss", "huber_loss", "multilabel_soft_margin_loss"}
_OF_FEW_DIMENSIONS = {"cosine_embedding_loss", "multi_margin_loss", "multilabel_margin_loss"}
# Where torch does not broadcast, or not as this package does.
_OF_EQUAL_SHAPES = {"soft_margin_loss", "multilabel_soft_margin_loss"}
# Where torch does not promote floating dtypes as this package does.
_NOT_PROMOTING = {
    "binary_cross_entropy",
    "hinge_embedding_loss",
    "huber_loss",
    "soft_margin_loss",
}
# Where the target must be floating.
_FLOATING_TARGETS = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "huber_loss",
    "kl_div",
}
_HALF = (torch.float16, torch.bfloat16)
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
# Where torch computes in half precision although autocast is on.
HALF_UNDER_AUTOCAST = {
    "gaussian_nll_loss",
    "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
}


def as_in_torch(name: str, prepare: Callable[..., Prepared[Any]]) -> Callable[..., Prepared[Any]]:
    """What prepares the calls of a function; raises for options that change what torch gives."""
    if name != "triplet_margin_loss":
        return prepare

    @functools.wraps(prepare)
    def restricted(*operands: Any, **options: Any) -> Prepared[Any]:
        p = options.get("p")
        if isinstance(p, int | float) and p == 0:
            raise ValueError("torch has no gradient for p=0, not even zeros")
        return prepare(*operands, **options)

    return restricted


def place_problem(tensor: Tensor) -> str:
    """Why the losses of a tensor are not computed where it is; "" where they are."""
    if not tensor.is_cuda:
        return ON_NO_GPU if tensor.get_device() < 0 else DEVICE
    return "" if gpu_is_there() else NO_GPU


@functools.cache
def gpu_is_there() -> bool:
    """Whether CuPy finds the GPU that torch has found; warns where it does not."""
    try:
        driver.require_gpu()
    except driver.MissingGPUError as error:
        warnings.warn(f"torch computes all losses itself: {error}", UserWarning, stacklevel=2)
        return False
    return True


def kind_problem(arguments: dict[str, Any]) -> str:
    """Why a call is not one of tensors that this package takes; "" where it is.

    Args:
        arguments: As those of `decide`, of any types.

    """
    tensors = {key: x for key, x in arguments.items() if isinstance(x, Tensor)}
    others = {key: x for key, x in arguments.items() if key not in tensors}
    for happens, reason in (
        (any(callable(x) for x in others.values()), DISTANCE),
        (any(x.is_nested for x in tensors.values()), LAYOUT),
        (any(type(x) not in _CLASSES for x in tensors.values()), SUBCLASS),
        (not all(_is_no_operand(key, x) for key, x in others.items()), NO_TENSOR),
    ):
        if happens:
            return reason
    return ""


def _is_no_operand(name: str, x: Any) -> bool:
    if name in OPTIONAL:
        return x is None
    return name in MAY_BE_NUMBERS and isinstance(x, float)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Let torch.jit.trace, to which sizes are tensors, see nothing of a decision."""
    state = torch._C._get_tracing_state()
    if state is None:
        yield
        return
    set_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]
    set_state(None)
    try:
        yield
    finally:
        set_state(state)


def is_traced_again(*operands: Any) -> bool:
    """Whether torch.compile traces a second time what it has traced already."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    return any(isinstance(x, FunctionalTensor) for tensor in tensors for x in _layers(tensor))


def _layers(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, and those that transforms of torch.func have made it of."""
    yield tensor
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
        yield tensor


def decide(
    name: str, prepare: Callable[..., Prepared[Any]], arguments: dict[str, Any]
) -> tuple[str, str]:
    """Why torch computes a call, "" where this package does, and the error that says so, if any.

    Args:
        name: The name of the function.
        prepare: What prepares the call of this package.
        arguments: Its operands, and those of `OPTIONAL` that it takes, by name. They are tensors
            of `_CLASSES`, None, or a float for those of `MAY_BE_NUMBERS`.

    """
    tensors = {key: x for key, x in arguments.items() if isinstance(x, Tensor)}
    first = next(iter(tensors.values()))
    reason = _by_place([*tensors.values()]) or _by_derivatives()
    if not reason:
        autocast = is_autocast([first])
        reason = (
            _by_gradients(name, tensors)
            or _by_dtypes(name, tensors, autocast)
            or _by_autocast(name, tensors, autocast)
            or _by_shapes(name, first, tensors)
        )
    return (reason, "") if reason else _by_trial(prepare, arguments)


def _by_place(tensors: list[Tensor]) -> str:
    first = tensors[0]
    if any(x.device != first.device for x in tensors):
        return DEVICE
    if problem := place_problem(first):
        return problem
    if any(x.layout is not torch.strided for x in tensors):
        return LAYOUT
    if any(_depends_on_data(x) for x in tensors):
        return UNKNOWN
    # A batch of no samples has samples with elements.
    return EMPTY if any(x.numel() == 0 for each in tensors for x in _layers(each)) else ""


def _depends_on_data(tensor: Tensor) -> bool:
    """Whether a size is known when the program runs alone, so that nothing is to be decided."""
    return any(
        isinstance(size, torch.SymInt) and has_free_unbacked_symbols(size) for size in tensor.shape
    )


def _transforms() -> Sequence[Any]:
    """The transforms of torch.func that what runs is nested in."""
    return torch._C._functorch.get_interpreter_stack() or ()


def _by_derivatives() -> str:
    """Transforms that are nested deeper than the derivatives of this package go."""
    kinds = [level.key() for level in _transforms()]
    forward = kinds.count(TransformType.Jvp)
    return DERIVATIVES if forward > 1 or forward + kinds.count(TransformType.Grad) > 2 else ""


def _by_gradients(name: str, tensors: dict[str, Tensor]) -> str:
    target = tensors.get("target")
    of_probabilities = target is not None and target.is_floating_point()
    by_weight = name in _BY_WEIGHT or (name == "cross_entropy" and of_probabilities)
    keys = [key for key in OPTIONAL if not (by_weight and key == "weight")]
    alone = [tensors[key] for key in keys if key in tensors]
    if name in NO_GRADIENT_BY_TARGET:
        alone.append(tensors["target"])
    return GRADIENT if any(map(_is_differentiated, alone)) else ""


def _is_differentiated(tensor: Tensor) -> bool:
    """Whether a backward pass, forward mode or a transform may differentiate by a tensor."""
    layers = [*_layers(tensor)]
    if any(x.requires_grad for x in layers):
        return True
    if transforms := _transforms():
        forward = [level.level() for level in transforms if level.key() == TransformType.Jvp]
        return any(torch._C._functorch.maybe_get_level(x) in forward for x in layers)
    if forward_ad._current_level < 0:
        return False
    dual: Any = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return dual.tangent is not None


def _by_dtypes(name: str, tensors: dict[str, Tensor], autocast: bool) -> str:
    first, *others = tensors.values()
    if not first.is_floating_point():
        return OTHER_DTYPES
    target = tensors.get("target")
    if target is not None and not target.is_floating_point():
        allowed = (torch.int64,) if name in _OF_CLASSES else _SIGNED
        if name in _FLOATING_TARGETS or target.dtype not in allowed:
            return OTHER_DTYPES
        others = [x for x in others if x is not target]
    if all(x.dtype == first.dtype for x in others):
        return ""
    if not all(x.is_floating_point() for x in others):
        return OTHER_DTYPES
    if autocast:
        # It leaves float64 as it is, and makes float32 of all else.
        return OTHER_DTYPES if any(x.dtype == torch.float64 for x in (first, *others)) else ""
    if name in _NOT_PROMOTING | _OF_CLASSES:
        return OTHER_DTYPES
    if name == "binary_cross_entropy_with_logits":
        # The dtype of the target is that of the loss.
        half = first.dtype in _HALF and {x.dtype for x in others} == {torch.float32}
        return "" if half else OTHER_DTYPES
    # A tensor of shape () counts less in torch where an operand is not read by a kernel of its own.
    return OTHER_DTYPES if len(others) > 1 or any(x.ndim == 0 for x in tensors.values()) else ""


def _by_autocast(name: str, tensors: dict[str, Tensor], autocast: bool) -> str:
    if not autocast:
        return ""
    half = any(x.dtype in _HALF for x in tensors.values())
    if (
        name == "binary_cross_entropy"
        or (half and name in HALF_UNDER_AUTOCAST)
        or (half and name in _WEIGHTED_MEANS and "weight" in tensors)
    ):
        return AUTOCAST
    return ""


def _by_shapes(name: str, first: Tensor, tensors: dict[str, Tensor]) -> str:
    shapes = {key: x.shape for key, x in tensors.items()}
    of_vectors = [shape for key, shape in shapes.items() if key != "target"]
    unequal = "target" in shapes and shapes["target"] != first.shape
    weighted = "weight" in shapes and name not in _OF_CLASSES
    of_one_row = (
        name in _OF_INDICES and first.ndim == 1 and not tensors["target"].is_floating_point()
    )
    if (
        (name in _OF_FEW_DIMENSIONS and first.ndim > 2)
        # One number for each vector would be broadcast before distances are taken.
        or (name in _OF_VECTORS and any(shape[-1:] != first.shape[-1:] for shape in of_vectors))
        or (name == "margin_ranking_loss" and len({*map(len, shapes.values())}) > 1)
        or (unequal and (weighted or name in _OF_EQUAL_SHAPES))
        or (weighted and name in _WEIGHTED_MEANS and shapes["weight"] != first.shape)
        # A class of shape (1,) beside one row without an axis: torch's backward pass may raise.
        or (of_one_row and shapes["target"] != ())
    ):
        return SHAPES
    return ""


def _by_trial(prepare: Callable[..., Prepared[Any]], arguments: dict[str, Any]) -> tuple[str, str]:
    """The checks of this package, which need no data."""
    options = {key: x for key, x in arguments.items() if key in OPTIONAL and x is not None}
    # A number is checked with each call, as that of the next call may be another.
    operands = [
        1.0 if isinstance(x, float) else x for key, x in arguments.items() if key not in OPTIONAL
    ]
    try:
        call, resolved = prepare(*operands, **options, reduction="sum")
        specs = [spec_of(x) for x in resolved]
        call.loss.shape_of(call, specs)
    except (TypeError, ValueError) as error:
        return REFUSED, str(error)
    return "", ""

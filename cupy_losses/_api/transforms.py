"""From a public function to a backend: evaluation and the gradient transforms."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from .._core.dtypes import FLOATING
from .._core.losses import AnyLoss, Call, Pass
from .._libraries.registry import resolve
from . import check
from .check import verify

Array = Any
checking = check.enabled.get
Arguments = ParamSpec("Arguments")
Prepared = tuple[Call, tuple[Array, ...]]


def prepare(
    loss: AnyLoss,
    operands: tuple[Array, ...],
    reduction: str,
    weight: Array | None = None,
    where: Array | None = None,
    parameters: tuple[float, ...] = (),
) -> Prepared:
    """A call of `loss` and its operands, for `differentiable`."""
    if parameters:
        checked = [p.checked(v) for p, v in zip(loss.parameters, parameters, strict=True)]
        parameters = tuple(checked)
    if weight is None and where is None:
        return Call(loss, reduction, parameters, False, False), operands
    if weight is not None:
        operands = (weight, *operands)
    if where is not None:
        operands = (where, *operands)
    return Call(loss, reduction, parameters, weight is not None, where is not None), operands


# From a public function to what prepares its call. A registry, as an attribute of the function
# would be copied by functools.wraps to functions that compute something else.
_prepare_by_loss: dict[Callable[..., Array], Callable[..., Prepared]] = {}


def differentiable(prepare: Callable[Arguments, Prepared]) -> Callable[Arguments, Array]:
    """The public function of a loss, from a function that checks and orders its arguments."""

    @functools.wraps(prepare)
    def loss(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Array:
        call, given = prepare(*args, **kwargs)
        backend, operands = resolve(call, given)
        if checking():
            verify(call, operands)
        return backend.evaluate(call, operands)

    _prepare_by_loss[loss] = prepare
    return loss


def prepared_by(
    prepare: Callable[..., Prepared],
) -> Callable[[Callable[Arguments, Array]], Callable[Arguments, Array]]:
    """Let a function that is more than one call be differentiated as the call of `prepare`."""

    def register(loss: Callable[Arguments, Array]) -> Callable[Arguments, Array]:
        _prepare_by_loss[loss] = prepare
        return loss

    return register


def value_and_grad(
    loss: Callable[..., Array], argnums: int | Sequence[int] = 0
) -> Callable[..., tuple[Array, Any]]:
    """Make a function that returns a loss and its gradient, computed in one pass.

    Args:
        loss: A loss of this package, or a `functools.partial` of one.
        argnums: The positional argument to differentiate by (0 is `input`), or several of them.

    Returns:
        A function with the arguments of `loss` that returns `(value, gradient)`; with a sequence
        of argnums, `gradient` is a tuple. A gradient has the shape and dtype of its argument and
        belongs to the same library. torch tensors come back detached: the gradient is computed
        here, not by autograd.

    Raises:
        TypeError: If `loss` is no loss of this package, or an argument to differentiate by is not
            a floating array.
        ValueError: If argnums is out of range or the loss is not reduced to one number.

    The meaning is that of `jax.value_and_grad`:

    >>> import numpy as np
    >>> from cupy_losses import smooth_l1_loss, value_and_grad
    >>> input, target = np.array([0.0, 3.0]), np.zeros(2)
    >>> value, gradient = value_and_grad(smooth_l1_loss)(input, target, beta=0.5)
    >>> float(value), gradient.tolist()
    (1.375, [0.0, 0.5])

    """
    prepare = prepare_of(loss)
    several = isinstance(argnums, Sequence)
    numbers = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)

    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Array, Any]:
        call, given = prepare(*args, **kwargs)
        backend, operands = resolve(call, given)
        wanted = _wanted(call, operands, numbers)
        if checking():
            verify(call, operands)
        value, *gradients = backend.run(call, Pass(wanted=wanted), operands)
        return value, tuple(gradients) if several else gradients[0]

    return value_and_gradient


def grad(loss: Callable[..., Array], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Make a function that returns the gradient of a loss: `value_and_grad` without the value.

    >>> import numpy as np
    >>> from cupy_losses import grad, mse_loss
    >>> grad(mse_loss)(np.array([1.0, 3.0]), np.zeros(2)).tolist()
    [1.0, 3.0]
    """
    both = value_and_grad(loss, argnums)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def prepare_of(loss: Callable[..., Array]) -> Callable[..., Prepared]:
    """What prepares the call of a public function, or of a `functools.partial` of one."""
    if isinstance(loss, functools.partial):
        if loss.args:
            raise TypeError(
                "loss must not be a partial with positional arguments: argnums would count from "
                "the first that is left"
            )
        return functools.partial(prepare_of(loss.func), **loss.keywords)
    prepare = _prepare_by_loss.get(loss)
    if prepare is None:
        raise TypeError(f"loss must be a loss function of cupy_losses, got {loss!r}")
    return prepare


def _wanted(call: Call, operands: Sequence[Array], argnums: Sequence[int]) -> tuple[int, ...]:
    """The operands that `argnums` names."""
    names = call.loss.operands
    if call.reduction == "none":
        raise ValueError("reduction must be 'mean' or 'sum' to take a gradient, got 'none'")
    wanted = []
    for number in argnums:
        if isinstance(number, bool):
            raise TypeError(f"argnums must be an integer or several, got {number}")
        if not -len(names) <= operator.index(number) < len(names):
            raise ValueError(f"argnums must be in 0 … {len(names) - 1}, got {number}")
        k = number % len(names)
        dtype = operands[call.extra + k].dtype
        name = getattr(dtype, "name", str(dtype).removeprefix("torch."))
        if name not in FLOATING:
            raise TypeError(f"{names[k]} must be floating to differentiate by it, got {name}")
        if call.loss.refusal(call, call.extra + k):
            raise ValueError(f"the loss is not differentiated by {names[k]}")
        wanted.append(call.extra + k)
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"argnums must name each argument once, got {tuple(argnums)}")
    return tuple(wanted)

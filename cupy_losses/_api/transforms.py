"""The gradient transforms: `value_and_grad` and `grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from .._core.cache import keep
from .._core.dtypes import FLOATING, dtype_name
from .._core.loss import Call, Request
from .._core.types import AnyArray
from .._libraries.registry import keep_for_graphs
from . import check, compiled
from .argnums import check_distinct, check_reduced, numbers_of, operands_of
from .prepared import Result
from .public import is_loss, mark_of, namesake, with_signature_of, without_partials
from .signature import Arguments
from .sums import Sum, Trace, Variable

_NAME = "value_and_grad"


@overload
def value_and_grad(
    loss: Callable[Arguments, Result], argnums: int = 0
) -> Callable[Arguments, tuple[Result, Result]]: ...


@overload
def value_and_grad(
    loss: Callable[Arguments, Result], argnums: Sequence[int]
) -> Callable[Arguments, tuple[Result, tuple[Result, ...]]]: ...


def value_and_grad(
    loss: Callable[..., Any], argnums: int | Sequence[int] = 0
) -> Callable[..., tuple[Any, Any]]:
    """Make a function that returns a loss and its gradient, computed in one pass.

    A function of your own may call several losses: it returns a sum of losses of this package, each
    times a constant. It is called once, and each of its losses is computed in one pass. The
    arguments to differentiate by may be passed to losses as they are, and nowhere else: what cannot
    be differentiated raises.

    Args:
        loss: A loss of this package, or a function that adds several up.
        argnums: The positional argument to differentiate by (0 is `input`), or several of them.

    Returns:
        A function with the arguments of `loss` that returns `(value, gradient)`; with a sequence
        of argnums, `gradient` is a tuple. A gradient has the shape and dtype of its argument and
        belongs to the library of the loss, that of its first operand. torch tensors come back
        detached: the gradient is computed here, not by autograd.

    Raises:
        TypeError: If `loss` is no function or does anything else with an argument to differentiate
            by, or that is not a floating array.
        ValueError: If argnums is out of range or a loss is not reduced to one number.

    Like `jax.value_and_grad` for such functions, without `has_aux`. A gradient is not
    differentiated again: `hvp` and `grad_and_hess` give second derivatives of a loss.

    >>> import numpy as np
    >>> from cupy_losses import smooth_l1_loss, value_and_grad
    >>> input, target = np.array([0.0, 3.0]), np.zeros(2)
    >>> value, gradient = value_and_grad(smooth_l1_loss)(input, target, beta=0.5)
    >>> float(value), gradient.tolist()
    (1.375, [0.0, 0.5])
    >>> from cupy_losses import l1_loss, mse_loss
    >>> def elastic(input, target):
    ...     return 0.5 * mse_loss(input, target) + 2 * l1_loss(input, target)
    >>> value, gradient = value_and_grad(elastic)(input, target)
    >>> float(value), gradient.tolist()
    (5.25, [0.0, 2.5])

    """
    return _both(loss, argnums, _NAME)


def _both(
    loss: Callable[..., Any], argnums: int | Sequence[int], name: str
) -> Callable[..., tuple[Any, Any]]:
    """What `value_and_grad` makes, which may be a part of what another function makes."""
    if compiled.is_compiling():
        return compiled.call_outside_graph(_NAME, _both, loss, argnums, name)
    if not callable(loss):
        raise TypeError(f"loss must be a function, got {type(loss).__name__}")
    wanted_numbers, several = numbers_of(argnums)
    if not is_loss(loss):
        if getattr(loss, "__module__", "") == "torch.nn.functional":
            raise TypeError(f"loss must not be a function of torch{namesake(loss)}")
        made = functools.partial(_of_function, name, loss, wanted_numbers, several)
        return with_signature_of(loss, made)
    function, options = without_partials(loss)
    made = functools.partial(_of_one_loss, function, wanted_numbers, several, **options)
    return with_signature_of(loss, made)


# What a transform makes is a partial of a function of this module, as that can be pickled.


def _of_function(
    name: str,
    loss: Callable[..., Any],
    wanted_numbers: tuple[int, ...],
    several: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> tuple[AnyArray, Any]:
    """The value and the gradient of a function of losses."""
    if compiled.is_compiling():
        return compiled.call_outside_graph(
            _NAME, _of_function, name, loss, wanted_numbers, several, *args, **kwargs
        )
    own = [_by_position(number, len(args)) for number in wanted_numbers]
    check_distinct(own, wanted_numbers)
    given = list(args)
    trace = Trace(name)
    for number in own:
        array = _differentiable(args[number], f"argument {number}")
        given[number] = Variable(trace, array, number)
    try:
        total = loss(*given, **kwargs)
        if not isinstance(total, Sum):
            raise TypeError(
                "the function must return a sum of losses of the arguments to differentiate "
                f"by, got {type(total).__name__}"
            )
        trace.check(total.trace)
    finally:
        trace.is_open = False
    gradients = tuple([total.gradient(number) for number in own])
    return total.value(), gradients if several else gradients[0]


def _of_one_loss(
    loss: Callable[..., Any],
    wanted_numbers: tuple[int, ...],
    several: bool,
    /,
    *args: Any,
    **kwargs: Any,
) -> tuple[AnyArray, Any]:
    """The value and the gradient of a loss of this package: one request."""
    if compiled.is_compiling():
        return compiled.call_outside_graph(
            _NAME, _of_one_loss, loss, wanted_numbers, several, *args, **kwargs
        )
    _, prepare = mark_of(loss)
    call, given = prepare(*args, **kwargs)
    library, operands = check.resolved(call, given)
    request = _request(call, operands, wanted_numbers)
    value, *gradients = library.run(call, request, operands)
    return value, tuple(gradients) if several else gradients[0]


@overload
def grad(loss: Callable[Arguments, Result], argnums: int = 0) -> Callable[Arguments, Result]: ...


@overload
def grad(
    loss: Callable[Arguments, Result], argnums: Sequence[int]
) -> Callable[Arguments, tuple[Result, ...]]: ...


def grad(loss: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Make a function that returns the gradient of a loss: `value_and_grad` without the value.

    Args:
        loss: A loss of this package, or a function that adds several up.
        argnums: The positional argument to differentiate by (0 is `input`), or several of them.

    Returns:
        A function with the arguments of `loss` that returns the gradient; with a sequence of
        argnums, a tuple.

    Raises:
        TypeError: As `value_and_grad`.
        ValueError: As `value_and_grad`.

    A gradient is not differentiated again: `hvp` and `grad_and_hess` give second derivatives.

    >>> import numpy as np
    >>> from cupy_losses import grad, mse_loss
    >>> grad(mse_loss)(np.array([1.0, 3.0]), np.zeros(2)).tolist()
    [1.0, 3.0]

    """
    return with_signature_of(loss, functools.partial(_second, _both(loss, argnums, "grad")))


def _second(both: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The second one of two results."""
    first, second = both(*args, **kwargs)
    keep_for_graphs(first)
    return second


def _by_position(number: int, count: int) -> int:
    """The number of an argument of a function, counted from the front."""
    if not -count <= number < count:
        raise ValueError(
            "argnums must be of arguments that are passed by position, of which there are "
            f"{count}, got {number}"
        )
    return number % count


def _differentiable(array: AnyArray, name: str) -> AnyArray:
    """The array, if it is one to differentiate by."""
    dtype = dtype_name(getattr(array, "dtype", type(array).__name__))
    if isinstance(array, Variable) or dtype not in FLOATING:
        raise TypeError(f"{name} must be a floating array to differentiate by it, got {dtype}")
    return array


_requests: dict[Any, Request] = {}


def _request(call: Call, operands: Sequence[AnyArray], argnums: tuple[int, ...]) -> Request:
    """The request for a value and its gradients."""
    key = call.layout_key, argnums, *[x.dtype for x in operands]
    request = _requests.get(key)
    if request is None:
        request = keep(_requests, key, Request(wanted=_wanted(call, operands, argnums)))
    return request


def _wanted(call: Call, operands: Sequence[AnyArray], argnums: Sequence[int]) -> tuple[int, ...]:
    """The operands that `argnums` names."""
    check_reduced(call)
    return operands_of(call, operands, argnums)

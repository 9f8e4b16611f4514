"""Derivatives of losses in one pass: `jvp` and `vjp`, and second ones, `hvp`, `grad_and_hess`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from .._core.arguments import described
from .._core.dtypes import FLOATING, dtype_name
from .._core.loss import FORWARD, Call, Request
from .._core.pointwise import PointwiseFormula
from .._core.shapes import ArraySpec, Shape
from .._core.types import Array, ArrayT
from .._libraries.advice import instead
from .._libraries.registry import ArrayLibrary, find, resolve
from . import check, compiled
from .argnums import check_reduced, integer, numbers_of, operand_of, operands_of
from .prepared import Result
from .public import prepare_of, with_signature_of, without_partials
from .signature import Arguments


def jvp(
    loss: Callable[..., Any],
    /,
    primals: Sequence[ArrayT],
    tangents: Sequence[Array | None],
    **options: Any,
) -> tuple[ArrayT, ArrayT]:
    """Compute a loss and its derivative along tangents of its operands.

    That is the sum over the operands x_k of tangent_k * d loss / d x_k, reduced as the loss is, in
    one pass, after the pass that computes the loss. The name is that of a Jacobian-vector product.

    Args:
        loss: A loss of this package, or a `functools.partial` of one by keyword.
        primals: Its operands, in order.
        tangents: An array of the shape of each operand, or None for one that does not vary.
        **options: The arguments of the loss by keyword, such as `reduction`.

    Returns:
        The loss and its derivative, of the same shape and dtype. torch tensors come back detached.

    Raises:
        TypeError: If an operand with a tangent, or the tangent, is not floating.
        ValueError: If there are not as many tangents as operands, none at all, or one of another
            shape than its operand.

    Like `jax.jvp`.

    >>> import numpy as np
    >>> from cupy_losses import jvp, mse_loss
    >>> input, target = np.array([1.0, 3.0]), np.zeros(2)
    >>> value, derivative = jvp(mse_loss, (input, target), (np.array([1.0, 0.0]), None))
    >>> float(value), float(derivative)
    (5.0, 1.0)

    """
    if compiled.is_compiling():
        return compiled.call_outside_graph("jvp", jvp, loss, primals, tangents, **options)
    call, library, operands = _resolved(loss, primals, options)
    varied, arrays = _along(call, library, operands, tangents)
    value: Any = library.run(call, FORWARD, operands)[0]
    derivative: Any = library.run(call, Request(tangents=varied), arrays)[0]
    return value, derivative


@overload
def vjp(
    loss: Callable[..., Any],
    /,
    primals: Sequence[ArrayT],
    cotangent: Array,
    argnums: int = 0,
    **options: Any,
) -> ArrayT: ...


@overload
def vjp(
    loss: Callable[..., Any],
    /,
    primals: Sequence[ArrayT],
    cotangent: Array,
    argnums: Sequence[int],
    **options: Any,
) -> tuple[ArrayT, ...]: ...


def vjp(
    loss: Callable[..., Any],
    /,
    primals: Sequence[Any],
    cotangent: Array,
    argnums: int | Sequence[int] = 0,
    **options: Any,
) -> Any:
    """Compute the gradients of the sum of a cotangent times a loss, in one pass.

    With `reduction="none"` the cotangent has a number for each element of the loss. The name is
    that of a product of a vector with the Jacobian.

    Args:
        loss: A loss of this package, or a `functools.partial` of one by keyword.
        primals: Its operands, in order.
        cotangent: An array of the shape of the loss.
        argnums: The operand to differentiate by (0 is `input`), or several of them.
        **options: The arguments of the loss by keyword, such as `reduction`.

    Returns:
        The gradient; with a sequence of argnums, a tuple. A gradient has the shape and dtype of its
        operand and belongs to the library of the first one. torch tensors come back detached.

    Raises:
        TypeError: If an operand to differentiate by, or the cotangent, is not floating.
        ValueError: If argnums is out of range, or the cotangent has another shape than the loss.

    Like the function that `jax.vjp` returns.

    >>> import numpy as np
    >>> from cupy_losses import mse_loss, vjp
    >>> input, target = np.array([1.0, 3.0]), np.zeros(2)
    >>> vjp(mse_loss, (input, target), np.array([1.0, 10.0]), reduction="none").tolist()
    [2.0, 60.0]

    """
    if compiled.is_compiling():
        return compiled.call_outside_graph("vjp", vjp, loss, primals, cotangent, argnums, **options)
    wanted_numbers, several = numbers_of(argnums)
    call, library, operands = _resolved(loss, primals, options)
    wanted = operands_of(call, operands, wanted_numbers)
    shape = _shape_of_value(call, operands)
    factor = _beside(call, library, operands, call.extra, cotangent, "cotangent", shape)
    request = Request(value=False, wanted=wanted, vjp=True)
    given = call.loss.grad_output_operand(call, factor), *operands
    gradients = library.run(call, request, given)
    return tuple(gradients) if several else gradients[0]


def hvp(
    loss: Callable[..., Any],
    /,
    primals: Sequence[ArrayT],
    tangents: Sequence[Array | None],
    argnum: int = 0,
    **options: Any,
) -> ArrayT:
    """Compute a Hessian-vector product: the derivative of a gradient along tangents.

    That is d/dx of the sum over the operands x_k of tangent_k * d loss / d x_k, in one pass.

    Args:
        loss: A loss of this package that is reduced to one number, or a `functools.partial` of it.
        primals: Its operands, in order.
        tangents: An array of the shape of each operand, or None for one that does not vary.
        argnum: Which of the operands x is.
        **options: The arguments of the loss by keyword, such as `reduction`.

    Returns:
        An array of the shape and dtype of x. A torch tensor comes back detached.

    Raises:
        TypeError: As `jvp`.
        ValueError: As `jvp`, and if the loss is not reduced.

    >>> import numpy as np
    >>> from cupy_losses import hvp, mse_loss
    >>> input, target = np.array([1.0, 3.0]), np.zeros(2)
    >>> hvp(mse_loss, (input, target), (np.array([1.0, 0.0]), None)).tolist()
    [1.0, 0.0]

    """
    if compiled.is_compiling():
        found: ArrayT = compiled.call_outside_graph(
            "hvp", hvp, loss, primals, tangents, argnum, **options
        )
        return found
    call, library, operands = _resolved(loss, primals, options)
    check_reduced(call)
    varied, arrays = _along(call, library, operands, tangents)
    wanted = (operand_of(call, operands, integer(argnum), "argnum"),)
    request = Request(value=False, wanted=wanted, tangents=varied)
    products: list[Any] = library.run(call, request, arrays)
    product: ArrayT = products[0]
    return product


def grad_and_hess(
    loss: Callable[Arguments, Result], argnum: int = 0
) -> Callable[Arguments, tuple[Result, Result]]:
    """Make a function that returns the first and the second derivative of each element's loss.

    Both come from one pass. Libraries of boosted trees ask an objective for them.

    Args:
        loss: A pointwise loss of this package, one of your own, or a `functools.partial` of it.
        argnum: The operand to differentiate by (0 is `input`).

    Returns:
        A function with the arguments of `loss`, but `reduction` and `scale`, that returns
        `(gradient, hessian)`, two arrays of the shape of the operand. The hessian has the dtype of
        the operand, the gradient that of the loss: the same where the operands have one dtype. They
        are those of `reduction="sum"`: nothing is divided by the number of elements.

    Raises:
        TypeError: If `loss` is no pointwise loss of this package.
        ValueError: If the other operands do not broadcast to the shape of this one.

    >>> import numpy as np
    >>> from cupy_losses import grad_and_hess, huber_loss
    >>> gradient, hessian = grad_and_hess(huber_loss)(np.array([0.5, 3.0]), np.zeros(2))
    >>> gradient.tolist(), hessian.tolist()
    ([0.5, 1.0], [1.0, 0.0])

    """
    if compiled.is_compiling():
        return compiled.call_outside_graph("grad_and_hess", grad_and_hess, loss, argnum)
    prepare_of(loss)
    return with_signature_of(loss, functools.partial(_of_each_element, loss, integer(argnum)))


def _of_each_element(
    loss: Callable[..., Any], argnum: int, /, *args: Any, **options: Any
) -> tuple[Any, Any]:
    """The first and the second derivative of each element's loss."""
    if compiled.is_compiling():
        return compiled.call_outside_graph(
            "grad_and_hess", _of_each_element, loss, argnum, *args, **options
        )
    _, of_partials = without_partials(loss)
    for name in ("reduction", "scale"):
        if name in options or name in of_partials:
            raise TypeError(f"grad_and_hess is of each element: leave out {name}")
    call, library, operands = _resolved(loss, args, {**options, "reduction": "none"})
    if not isinstance(call.loss, PointwiseFormula) or call.loss.row_means:
        raise TypeError(
            f"{call.loss.name} is a loss of whole rows, whose second derivatives are "
            "matrices: grad_and_hess takes losses of single elements"
        )
    k = operand_of(call, operands, argnum, "argnum")
    request = Request(wanted=(k,), tangents=(k,))
    gradient, hessian = library.run(call, request, (library.one(operands[k]), *operands))
    if gradient is None or tuple(gradient.shape) != tuple(operands[k].shape):
        raise ValueError(
            f"the other operands must broadcast to the shape of {call.names[k]}, "
            f"{tuple(operands[k].shape)}"
        )
    return gradient, hessian


def _resolved(
    loss: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
) -> tuple[Call, ArrayLibrary, Sequence[Any]]:
    """A call, its library and its operands as arrays of that."""
    if not isinstance(args, tuple | list):
        raise TypeError(f"primals must be a tuple or a list of arrays, got {described(args)}")
    call, given = prepare_of(loss)(*args, **options)
    library, operands = check.resolved(call, given)
    return call, library, operands


def _along(
    call: Call,
    library: ArrayLibrary,
    operands: Sequence[Any],
    tangents: Sequence[Any],
) -> tuple[tuple[int, ...], list[Any]]:
    """Which operands vary, and all arrays of the library: their tangents, then the operands."""
    names = call.loss.operands
    if not isinstance(tangents, tuple | list):
        raise TypeError(f"tangents must be a tuple or a list of arrays, got {described(tangents)}")
    if len(tangents) != len(names):
        raise ValueError(
            f"there must be {len(names)} tangents, of {', '.join(names)}, None for an operand that "
            f"does not vary, got {len(tangents)}"
        )
    varied, adopted = [], []
    for number, tangent in enumerate(tangents):
        if tangent is None:
            continue
        k = operand_of(call, operands, number)
        shape = tuple(operands[k].shape)
        varied.append(k)
        adopted.append(_beside(call, library, operands, k, tangent, "tangent", shape))
    if not varied:
        raise ValueError("there must be a tangent of some operand, got None for all")
    return tuple(varied), [*adopted, *operands]


def _beside(
    call: Call,
    library: ArrayLibrary,
    operands: Sequence[Any],
    k: int,
    array: Any,
    name: Literal["cotangent", "tangent"],
    shape: Shape,
) -> Any:
    """What is given for a derivative, as an array of the library of operand k, of a shape."""
    what = "the cotangent" if name == "cotangent" else f"the tangent of {call.names[k]}"
    if find(array) is None:
        advice = instead(name, array, operands[call.extra])
        raise TypeError(
            f"{what} must be an array as {call.names[k]} is, got {type(array).__name__}{advice}"
        )
    found, adopted = resolve(call, [*operands[:k], array, *operands[k + 1 :]])
    if found.computing is not library.computing and not library.takes_over:
        raise TypeError(
            f"{what} must be a {library.name} array as {call.names[k]} is, "
            f"got {type(array).__name__}"
        )
    if tuple(adopted[k].shape) != shape:
        raise ValueError(f"{what} must have shape {shape}, got {tuple(adopted[k].shape)}")
    dtype = dtype_name(adopted[k].dtype)
    if dtype not in FLOATING:
        raise TypeError(f"{what} must be floating, got {dtype}")
    return adopted[k]


def _shape_of_value(call: Call, operands: Sequence[Any]) -> Shape:
    """The shape of the loss of operands."""
    specs = [ArraySpec.contiguous(dtype_name(x.dtype), tuple(x.shape)) for x in operands]
    call = call.unscaled
    return call.loss.value_shape(call, call.loss.shape_of(call, specs[: len(call.names)]))

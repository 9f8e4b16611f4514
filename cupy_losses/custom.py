"""Losses of your own, from a formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._api.compiled import refuse
from ._api.entrance import Prepared, call_of, loss_function
from ._core.arguments import Real
from ._core.formula import is_identifier, source, struct_of
from ._host.elementwise import Elementwise
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "pointwise_loss",
]

Array = Any

_RESERVED = ("reduction", "scale", "weight", "where")


def pointwise_loss(
    name: str,
    formula: str,
    *,
    operands: Sequence[str] = ("input", "target"),
    parameters: Mapping[str, float] | None = None,
    numpy: Callable[..., Any] | None = None,
) -> Callable[..., Array]:
    """Make a loss function from the formula of one element, with all that the built-in ones have.

    The formula is a C++ expression, or several statements that end with `return`. It may use the
    names of the operands and parameters, numbers, + - * /, comparisons, `a ? b : c`, `auto`
    variables, and the functions abs, sign, exp, expm1, log, log1p, xlogx (x log x), sqrt, pow (to a
    constant), tanh, sinh, cosh, sin, cos, atan, relu, sigmoid, softplus, log_sigmoid, max, min,
    clamp_min and half_square. Its derivatives, first and second, are made at compile time.

    Args:
        name: The name of the function, an identifier.
        formula: The loss of one element. It is compiled when the loss is first called.
        operands: The names of the arrays, which are the first arguments of the function.
        parameters: The names of numbers, which are keyword arguments, and their defaults.
        numpy: The same formula in NumPy, called with the operands and, by keyword, the parameters;
            for NumPy arrays and CPU tensors. Its derivatives follow from those of the operators and
            of NumPy's functions abs, exp, expm1, log, log1p, sqrt, power, square, tanh, sinh, cosh,
            sin, cos, arctan, hypot, logaddexp, maximum, minimum and where. It must be elementwise:
            the arrays that it gets are parts of the operands. One number stands for all elements.

    Returns:
        A function of the operands and, by keyword, `reduction`, `scale`, `weight`, `where` and the
        parameters; shapes, dtypes and errors as `cupy_losses.regression` says. A weighted mean
        divides by the sum of the weights. A formula that does not compile raises ValueError with
        its line and column; so does a NumPy formula that does not return one real number for each
        element, or is not elementwise, which is seen from a few elements.

    Raises:
        TypeError: If the formula is no text.
        ValueError: If a name is no identifier or is taken.

    >>> import numpy as np
    >>> from cupy_losses import pointwise_loss, value_and_grad
    >>> cauchy_loss = pointwise_loss(
    ...     "cauchy_loss",
    ...     "log1p((input - target) * (input - target) / (c * c))",
    ...     parameters={"c": 1.0},
    ...     numpy=lambda input, target, c: np.log1p((input - target) ** 2 / c**2),
    ... )
    >>> value, gradient = value_and_grad(cauchy_loss)(np.array([3.0]), np.zeros(1), c=3.0)
    >>> float(value), gradient.round(4).tolist()
    (0.6931471805599453, [0.3333])

    """
    refuse("pointwise_loss, whose function is to be made outside,")
    if not isinstance(formula, str):
        raise TypeError(f"formula must be a string, got {type(formula).__name__}")
    operands, defaults = tuple(operands), dict(parameters or {})
    _check_names(name, operands, tuple(defaults))
    defaults = {k: Real().checked(k, value) for k, value in defaults.items()}
    loss = PointwiseLoss(
        name=name,
        struct=struct_of(name),
        formula=None if numpy is None else Elementwise(name, numpy),
        operands=operands,
        parameters=tuple(defaults),
        of_user=True,
        source=source(name, formula, operands, tuple(defaults)),
    )

    def prepare_call(
        *args: Array,
        reduction: str = "mean",
        scale: float | Array = 1.0,
        weight: Array | None = None,
        where: Array | None = None,
        **given: Any,
    ) -> Prepared:
        if len(args) != len(operands):
            args = _bound(name, operands, args, given)
        unknown = [argument for argument in given if argument not in defaults]
        if unknown:
            raise TypeError(f"{name}() got an unexpected argument {unknown[0]!r}")
        values = tuple([given.get(parameter, default) for parameter, default in defaults.items()])
        return call_of(loss, args, reduction, weight, where, values, scale)

    prepare_call.__name__ = prepare_call.__qualname__ = name
    prepare_call.__doc__ = f"Compute a loss of one's own.\n\nFormula: {formula}\n"
    prepare_call.__signature__ = _signature(operands, defaults)  # type: ignore[attr-defined]
    return loss_function(**dict.fromkeys(defaults, Real()))(prepare_call)


def _check_names(name: str, operands: tuple[str, ...], parameters: tuple[str, ...]) -> None:
    if not operands:
        raise ValueError("operands must name at least one array")
    for identifier in (name, *operands, *parameters):
        if not is_identifier(identifier):
            raise ValueError(f"a name must be an identifier of ASCII letters, got {identifier!r}")
    names = (*operands, *parameters, *_RESERVED)
    for identifier in names:
        if names.count(identifier) > 1:
            raise ValueError(f"the name {identifier!r} is taken")


def _bound(
    name: str, operands: tuple[str, ...], args: tuple[Array, ...], given: dict[str, Any]
) -> tuple[Array, ...]:
    """The operands, where some come by keyword; they are removed from `given`."""
    if len(args) > len(operands):
        raise TypeError(f"{name}() takes {len(operands)} arrays, got {len(args)}")
    missing = [operand for operand in operands[len(args) :] if operand not in given]
    if missing:
        raise TypeError(f"{name}() misses the argument {missing[0]!r}")
    return (*args, *(given.pop(operand) for operand in operands[len(args) :]))


def _signature(operands: tuple[str, ...], defaults: dict[str, float]) -> inspect.Signature:
    positional, keyword = (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    options = {"reduction": "mean", "scale": 1.0, "weight": None, "where": None, **defaults}
    return inspect.Signature(
        [inspect.Parameter(operand, positional) for operand in operands]
        + [inspect.Parameter(k, keyword, default=v) for k, v in options.items()]
    )

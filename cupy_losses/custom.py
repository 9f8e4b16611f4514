"""Losses of your own, from a formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast, overload

from ._api.compiled import refuse
from ._api.entrance import Prepared, call_of, loss_function
from ._core.arguments import Real
from ._core.formula import is_identifier, source, struct_of
from ._core.program import cpp_name
from ._core.tracing import trace
from ._core.types import Array, ArrayT, Reduction
from ._host.elementwise import Elementwise
from ._host.replay import Replay
from ._kinds.pointwise import PointwiseLoss

__all__ = [
    "pointwise_loss",
]

_OPERANDS = ("input", "target")
_RESERVED = ("reduction", "scale", "weight", "where")


class LossFunction(Protocol):
    """A loss function of one's own, called with its first operand by position, or all by name.

    The type of the formula says nothing here: its operands are single elements, and the type system
    cannot add options to the parameters of a function.
    """

    __name__: str
    source: str
    """The formula in C++."""

    @overload
    def __call__(
        self,
        input: ArrayT,
        /,
        *operands: Array,
        reduction: Reduction = "mean",
        scale: float | Array = 1.0,
        weight: Array | None = None,
        where: Array | None = None,
        **parameters: float | Array,
    ) -> ArrayT: ...

    @overload
    def __call__(self, **arguments: Any) -> Any: ...


@overload
def pointwise_loss(name: Callable[..., Any], /) -> LossFunction: ...


@overload
def pointwise_loss(name: str, formula: Callable[..., Any], /) -> LossFunction: ...


@overload
def pointwise_loss(
    name: str,
    formula: str,
    *,
    operands: Sequence[str] = ...,
    parameters: Mapping[str, float] | None = ...,
    numpy: Callable[..., Any] | None = ...,
) -> LossFunction: ...


def pointwise_loss(
    name: str | Callable[..., Any],
    formula: str | Callable[..., Any] | None = None,
    *,
    operands: Sequence[str] = _OPERANDS,
    parameters: Mapping[str, float] | None = None,
    numpy: Callable[..., Any] | None = None,
) -> LossFunction:
    """Make a loss function from the formula of one element, with all that the built-in ones have.

    A formula is a function in Python, with the operands as arguments and the parameters as
    arguments with a default. Use it as a decorator, which takes the name and the docstring of the
    function, or pass a name and a function. The function is called once, here: what it does to its
    arguments is traced, and serves arrays on the host and, as C++, on the device. Its derivatives,
    first and second, follow from it.

    It may use + - * /, ** to a constant or a parameter, abs, comparisons, &, | and ~ of
    comparisons, numbers, functions of its own and NumPy's functions exp, expm1, log, log1p, sqrt,
    square, power, reciprocal, sign, tanh, sinh, cosh, sin, cos, arctan, hypot, logaddexp, maximum,
    minimum, where, clip (to constants or parameters), isnan, isinf, isfinite and logical_and, _or,
    _xor and _not. A whole power up to 16 becomes multiplications. A branch is np.where, not `if`:
    both sides are computed and one is taken, for the derivative too.

    A formula may also be a text in C++, for what NumPy cannot say: an expression, or several
    statements that end with `return`. It may use the names of the operands and parameters, numbers,
    + - * /, comparisons, `a ? b : c`, `auto` variables, and the functions abs, sign, signum (NaN
    for NaN), exp, expm1, log, log1p, xlogx (x log x), sqrt, pow (to a constant), tanh, sinh, cosh,
    sin, cos, atan, hypot, logaddexp, relu, sigmoid, softplus, log_sigmoid, max, min, clamp_min and
    half_square.

    Args:
        name: The name of the function, an identifier; or a function, which has it.
        formula: The loss of one element. In C++ it is compiled when the loss is first called.
        operands: Of a text, the names of the arrays, which are the first arguments of the loss.
        parameters: Of a text, the names of numbers, which are keyword arguments, and their
            defaults.
        numpy: Of a text, the same formula in NumPy, called with the operands and, by keyword, the
            parameters; for NumPy arrays and CPU tensors. Its derivatives follow from those of the
            operators and of the functions that a formula in Python may use. It must be elementwise:
            the arrays that it gets are parts of the operands. One number stands for all elements.

    Returns:
        A function of the operands and, by keyword, `reduction`, `scale`, `weight`, `where` and the
        parameters; shapes, dtypes and errors as `cupy_losses.regression` says. A weighted mean
        divides by the sum of the weights. Its attribute `source` is the formula in C++. A text that
        does not compile raises ValueError with its line and column; so does a NumPy formula that
        does not return one real number for each element, or is not elementwise, which is seen from
        a few elements.

    Raises:
        TypeError: If the formula is neither a function nor a text, or is a function that cannot be
            traced; the message shows its line and says what to write instead.
        ValueError: If a name is no identifier or is taken, or a default is out of range.

    >>> import numpy as np
    >>> from cupy_losses import pointwise_loss, value_and_grad
    >>> @pointwise_loss
    ... def cauchy_loss(input, target, c=1.0):
    ...     return np.log1p(((input - target) / c) ** 2)
    >>> value, gradient = value_and_grad(cauchy_loss)(np.array([3.0]), np.zeros(1), c=3.0)
    >>> float(value), gradient.round(4).tolist()
    (0.6931471805599453, [0.3333])
    >>> print(cauchy_loss.source)
    auto v1 = (input - target) / c;
    return log1p(v1 * v1);

    The same as a text:

    >>> same = pointwise_loss(
    ...     "cauchy_loss",
    ...     "auto d = (input - target) / c; return log1p(d * d);",
    ...     parameters={"c": 1.0},
    ...     numpy=lambda input, target, c: np.log1p(((input - target) / c) ** 2),
    ... )
    >>> float(same(np.array([3.0]), np.zeros(1), c=3.0))
    0.6931471805599453

    """
    refuse("pointwise_loss, whose function is to be made outside,")
    if callable(name) and formula is None:
        name, formula = getattr(name, "__name__", ""), name
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    if isinstance(formula, str):
        defaults = _checked(name, tuple(operands), parameters or {})
        host = None if numpy is None else Elementwise(name, numpy)
        cpp = source(name, formula, operands, tuple(defaults))
        return _function_of(_loss(name, operands, defaults, host, cpp), formula, defaults)
    if not callable(formula):
        got = type(formula).__name__
        raise TypeError(f"formula must be a function or a string, got {got}")
    if operands is not _OPERANDS or parameters is not None or numpy is not None:
        raise TypeError(
            "operands, parameters and numpy go with a formula in C++: a function has them in its "
            "signature"
        )
    return _traced(name, formula)


def _traced(name: str, function: Callable[..., Any]) -> LossFunction:
    """The loss of a formula in Python."""
    arguments = inspect.signature(function).parameters.values()
    for argument in arguments:
        kind, has_default = argument.kind, argument.default is not argument.empty
        by_position = kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        if not (by_position or (kind is argument.KEYWORD_ONLY and has_default)):
            raise TypeError(
                "a formula takes arrays, by position, and numbers, which have a default, got the "
                f"argument {argument}"
            )
    operands = tuple([a.name for a in arguments if a.default is a.empty])
    numbers = {a.name: a.default for a in arguments if a.default is not a.empty}
    by_keyword = [a.name for a in arguments if a.kind is a.KEYWORD_ONLY]
    defaults = _checked(name, operands, numbers)
    program = trace(name, function, operands, tuple(defaults), by_keyword)
    text = program.cpp()
    cpp = source(name, text, [*map(cpp_name, operands)], [*map(cpp_name, defaults)])
    loss = _loss(name, operands, defaults, Replay(program), cpp)
    return _function_of(loss, text, defaults, function)


def _loss(
    name: str,
    operands: Sequence[str],
    defaults: dict[str, float],
    formula: Callable[..., Any] | None,
    cpp: str,
) -> PointwiseLoss:
    return PointwiseLoss(
        name=name,
        struct=struct_of(name),
        formula=formula,
        operands=tuple(operands),
        parameters=tuple(defaults),
        of_user=True,
        source=cpp,
    )


def _function_of(
    loss: PointwiseLoss,
    text: str,
    defaults: dict[str, float],
    formula: Callable[..., Any] | None = None,
) -> LossFunction:
    """The public function of a loss; a formula in Python gives it its place and its docstring."""
    name, operands = loss.name, loss.operands

    def prepare_call(
        *args: Array,
        reduction: Reduction = "mean",
        scale: float | Array = 1.0,
        weight: Array | None = None,
        where: Array | None = None,
        **given: Any,
    ) -> Prepared[Any]:
        if len(args) != len(operands):
            args = _bound(name, operands, args, given)
        unknown = [argument for argument in given if argument not in defaults]
        if unknown:
            raise TypeError(f"{name}() got an unexpected argument {unknown[0]!r}")
        values = tuple([given.get(parameter, default) for parameter, default in defaults.items()])
        return call_of(loss, args, reduction, weight, where, values, scale)

    prepare_call.__name__ = prepare_call.__qualname__ = name
    prepare_call.__doc__ = f"Compute a loss of one's own.\n\nFormula: {text}\n"
    prepare_call.__signature__ = _signature(operands, defaults)  # type: ignore[attr-defined]
    prepare_call.source = text  # type: ignore[attr-defined]
    if formula is not None:
        # Pickle finds a function by its place.
        prepare_call.__module__ = getattr(formula, "__module__", __name__)
        if getattr(formula, "__name__", "") == name:
            prepare_call.__qualname__ = formula.__qualname__
            prepare_call.__doc__ = formula.__doc__ or prepare_call.__doc__
    made = loss_function(**dict.fromkeys(defaults, Real()))(prepare_call)
    return cast(LossFunction, made)


def _checked(
    name: str, operands: tuple[str, ...], parameters: Mapping[str, Any]
) -> dict[str, float]:
    """The defaults of the parameters; raises unless all names can be used."""
    if not operands:
        raise ValueError("operands must name at least one array")
    for identifier in (name, *operands, *parameters):
        if not is_identifier(identifier):
            raise ValueError(f"a name must be an identifier of ASCII letters, got {identifier!r}")
    names = (*operands, *parameters, *_RESERVED)
    for identifier in names:
        if names.count(identifier) > 1:
            raise ValueError(f"the name {identifier!r} is taken")
    return {parameter: Real().checked(parameter, x) for parameter, x in parameters.items()}


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

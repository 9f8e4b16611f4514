"""Losses of your own, from a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, overload

from ._api.own import Definition, OwnLoss, arguments_of, checked_names, defined
from ._api.prepared import Prepared, call_of
from ._core.arguments import Integer
from ._core.formula import row_formula, row_source, row_struct_of, source, struct_of
from ._core.program import RESERVED, cpp_name
from ._core.row_program import MOST_OPERANDS
from ._core.rows import ELEMENTS
from ._core.tracing import trace, trace_rows
from ._core.types import Array, ArrayT, Reduction
from ._host.elementwise import Elementwise
from ._host.row_replay import ReplayOfRows
from ._kinds.pointwise import PointwiseLoss
from ._kinds.rows import RowLoss

__all__ = [
    "pointwise_loss",
    "row_loss",
]

_OPERANDS = ("input", "target")


class LossFunction(OwnLoss):
    """A pointwise loss of one's own, made by `pointwise_loss`."""

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
    def __call__(self, /, **arguments: Any) -> Any: ...

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        """The loss of the operands."""
        return self._function(*args, **options)

    def _prepare(
        self,
        *args: Array,
        reduction: Reduction = "mean",
        scale: float | Array = 1.0,
        weight: Array | None = None,
        where: Array | None = None,
        **given: Any,
    ) -> Prepared[Any]:
        operands, values = self._arguments(args, given)
        return call_of(self._loss, operands, reduction, weight, where, values, scale)


class RowLossFunction(OwnLoss):
    """A loss over rows of one's own, made by `row_loss`."""

    _KINDS: ClassVar = {"axis": Integer()}

    @overload
    def __call__(
        self,
        input: ArrayT,
        /,
        *operands: Array,
        reduction: Reduction = "mean",
        scale: float | Array = 1.0,
        where: Array | None = None,
        sample_weight: Array | None = None,
        axis: int = -1,
        **parameters: float | Array,
    ) -> ArrayT: ...

    @overload
    def __call__(self, /, **arguments: Any) -> Any: ...

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        """The loss of the operands."""
        return self._function(*args, **options)

    def _prepare(
        self,
        *args: Array,
        reduction: Reduction = "mean",
        scale: float | Array = 1.0,
        where: Array | None = None,
        sample_weight: Array | None = None,
        axis: int = -1,
        **given: Any,
    ) -> Prepared[Any]:
        operands, values = self._arguments(args, given)
        return call_of(
            self._loss, operands, reduction, None, where, values, scale, sample_weight, axis
        )


@overload
def pointwise_loss(name: Callable[..., Any], /, *, check: bool = ...) -> LossFunction: ...


@overload
def pointwise_loss(
    name: str | None = ..., *, check: bool = ...
) -> Callable[[Callable[..., Any]], LossFunction]: ...


@overload
def pointwise_loss(
    name: str, formula: Callable[..., Any], /, *, check: bool = ...
) -> LossFunction: ...


@overload
def pointwise_loss(
    name: str,
    formula: str,
    *,
    operands: Sequence[str] = ...,
    parameters: Mapping[str, float] | None = ...,
    numpy: Callable[..., Any] | None = ...,
    check: bool = ...,
) -> LossFunction: ...


def pointwise_loss(
    name: str | Callable[..., Any] | None = None,
    formula: str | Callable[..., Any] | None = None,
    *,
    operands: Sequence[str] = _OPERANDS,
    parameters: Mapping[str, float] | None = None,
    numpy: Callable[..., Any] | None = None,
    check: bool = False,
) -> LossFunction | Callable[[Callable[..., Any]], LossFunction]:
    """Make a loss function from the formula of one element, with all that the built-in ones have.

    A formula is a function in Python, with the operands as arguments and the parameters as
    arguments with a default. Use it as a decorator, which takes the name and the docstring of the
    function, `@pointwise_loss`, or with options, `@pointwise_loss(check=True)`; or pass a name and
    a function. The function is called once, here: what it does to its arguments is traced, and
    serves arrays on the host and, as C++, on the device. Its derivatives, first and second, follow
    from it.

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
        name: The name of the loss, an identifier; or a function, which has it. A decorator with
            options takes that of its function by default.
        formula: The loss of one element; None for a decorator. In C++ it is compiled when the loss
            is first called.
        operands: Of a text, the names of the arrays, which are the first arguments of the loss.
        parameters: Of a text, the names of numbers, which are keyword arguments, and their
            defaults.
        numpy: Of a text, the same formula in NumPy, called with the operands and, by keyword, the
            parameters; for NumPy arrays and CPU tensors. Its derivatives follow from those of the
            operators and of the functions that a formula in Python may use. It must be elementwise:
            the arrays that it gets are parts of the operands. One number stands for all elements.
        check: Whether to compile the formula at once, which needs NVRTC and no GPU, so that a
            mistake in C++ is an error here.

    Returns:
        A function of the operands and, by keyword, `reduction`, `scale`, `weight`, `where` and the
        parameters; shapes, dtypes and errors as `cupy_losses.regression` says. A weighted mean
        divides by the sum of the weights. Its attribute `source` is the formula in C++. Its method
        `check` looks for derivatives that are NaN, for overflow and for loss of accuracy, `compile`
        compiles the formula without a GPU, to find mistakes in it. A text that does not compile
        raises ValueError with its line and column when it is called; so does a NumPy formula that
        does not return one real number for each element, or is not elementwise, which is seen from
        a few elements. Without a formula, what makes such a function of the one that it decorates.

    Raises:
        TypeError: If the formula is neither a function nor a text, or is a function that cannot be
            traced; the message shows its line and says what to write instead.
        ValueError: If a name is no identifier or is taken, or a default is out of range; with
            `check`, if the formula does not compile.
        RuntimeError: With `check`, if NVRTC is missing; the message says what to install.

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
    if isinstance(formula, str):
        given = {} if parameters is None else parameters
        if not isinstance(given, Mapping):
            raise TypeError(
                'parameters must map names to their defaults, as {"c": 1.0}, got '
                f"{type(given).__name__}"
            )
        if isinstance(operands, str) or not isinstance(operands, Sequence):
            raise TypeError(
                f'operands must be a list of names, as ["input", "target"], got {operands!r}'
            )
        if not (numpy is None or callable(numpy)):
            raise TypeError(f"numpy must be a function, got {type(numpy).__name__}")
        return defined(
            lambda own: _of_text(own, operands, given, numpy), pointwise_loss, name, formula, check
        )
    if operands is not _OPERANDS or parameters is not None or numpy is not None:
        raise TypeError(
            "operands, parameters and numpy go with a formula in C++: a function has them in its "
            "signature"
        )
    return defined(_traced, pointwise_loss, name, formula, check)


def _of_text(
    own: Definition,
    operands: Sequence[str],
    parameters: Mapping[str, float],
    numpy: Callable[..., Any] | None,
) -> LossFunction:
    """The loss of a formula in C++."""
    name, text, place, doc = own
    assert isinstance(text, str)
    defaults = checked_names(name, operands, parameters, LossFunction.options())
    for identifier in (*operands, *defaults):
        if identifier in RESERVED:
            raise ValueError(f"the name {identifier!r} means something else in C++: choose another")
    host = None if numpy is None else Elementwise(name, numpy)
    cpp = source(name, text, operands, tuple(defaults))
    loss = _pointwise(name, operands, defaults, host, cpp)
    return LossFunction(loss, text, defaults, place, doc)


def _traced(own: Definition) -> LossFunction:
    """The loss of a formula in Python."""
    name, function, place, doc = own
    assert not isinstance(function, str)
    operands, numbers, by_keyword = arguments_of(function)
    defaults = checked_names(name, operands, numbers, LossFunction.options())
    program = trace(name, function, operands, tuple(defaults), by_keyword)
    text = program.cpp()
    cpp = source(name, text, [*map(cpp_name, operands)], [*map(cpp_name, defaults)])
    loss = _pointwise(name, operands, defaults, program, cpp)
    return LossFunction(loss, text, defaults, place, doc)


def _pointwise(
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


@overload
def row_loss(name: Callable[..., Any], /, *, check: bool = ...) -> RowLossFunction: ...


@overload
def row_loss(
    name: str | None = ..., *, check: bool = ...
) -> Callable[[Callable[..., Any]], RowLossFunction]: ...


@overload
def row_loss(
    name: str, formula: Callable[..., Any], /, *, check: bool = ...
) -> RowLossFunction: ...


def row_loss(
    name: str | Callable[..., Any] | None = None,
    formula: Callable[..., Any] | None = None,
    *,
    check: bool = False,
) -> RowLossFunction | Callable[[Callable[..., Any]], RowLossFunction]:
    """Make a loss function from the formula of one row, with all that the built-in ones have.

    A formula is a function in Python of whole rows: what is in np.sum, np.mean or
    np.logaddexp.reduce is of each element, and the result is of these sums. So the kernels read a
    row once, accumulate all sums in that pass, and compute the gradient of each element from the
    derivatives by the sums. np.logaddexp.reduce(x) is log(sum(exp(x))), which does not overflow:
    what a softmax needs. Use it as a decorator, with options or without, or pass a name and a
    function, as `pointwise_loss` says: the function is traced once, here, its arguments without a
    default are the operands, those with one the parameters.

    Inside and outside of the sums it may use what a pointwise formula may. np.size(x) is the number
    of elements of a row. A formula has up to eight arrays and eight different sums, of which each
    np.logaddexp.reduce is two, and no sum is of what depends on another one, as that would take a
    second pass over the row.

    Args:
        name: The name of the loss, an identifier; or a function, which has it. A decorator with
            options takes that of its function by default.
        formula: The loss of one row; None for a decorator.
        check: Whether to compile the formula at once, which needs NVRTC and no GPU.

    Returns:
        A function of the operands, which are arrays of elements that broadcast against each other,
        and, by keyword, `reduction`, `scale`, `where`, `sample_weight`, `axis` and the parameters;
        shapes, dtypes and errors as `cupy_losses.embedding` says. All operands but one may be
        boolean or integer: they are numbers in the formula, have no gradient, and do not decide on
        the dtype of the result; TypeError where all are. Its attribute `source` is the formula in
        C++. Its method `check` looks for derivatives that are NaN, for overflow and for loss of
        accuracy, `compile` compiles the formula without a GPU, to find mistakes in it. Without a
        formula, what makes such a function of the one that it decorates.

    Raises:
        TypeError: If the formula is no function, has no operand or more than eight sums, or cannot
            be traced; the message shows its line and says what to write instead.
        ValueError: If a name is no identifier or is taken, a default is out of range, or there are
            more than eight arrays.
        RuntimeError: With `check`, if NVRTC is missing; the message says what to install.

    >>> import numpy as np
    >>> from cupy_losses import row_loss, value_and_grad
    >>> @row_loss
    ... def dice_loss(input, target, smooth=1.0):
    ...     overlap = np.sum(input * target)
    ...     return 1 - (2 * overlap + smooth) / (np.sum(input) + np.sum(target) + smooth)
    >>> input, target = np.array([[1.0, 0.0, 1.0]]), np.array([[1.0, 1.0, 0.0]])
    >>> value, gradient = value_and_grad(dice_loss)(input, target)
    >>> float(value.round(4)), gradient.round(2).tolist()
    (0.4, [[-0.28, -0.28, 0.12]])

    """
    return defined(_of_rows, row_loss, name, formula, check)


def _of_rows(own: Definition) -> RowLossFunction:
    """The loss of a formula of rows."""
    name, function, place, doc = own
    if isinstance(function, str):
        raise TypeError("formula must be a function in Python: a text is of one element alone")
    operands, numbers, by_keyword = arguments_of(function)
    defaults = checked_names(name, operands, numbers, RowLossFunction.options())
    if len(operands) > MOST_OPERANDS:
        raise ValueError(f"a formula of rows has up to {MOST_OPERANDS} arrays, got {len(operands)}")
    program = trace_rows(name, function, operands, tuple(defaults), by_keyword)
    text = row_formula(name, program)
    loss = RowLoss(
        name=name,
        struct=row_struct_of(name),
        formula=ReplayOfRows(program),
        operands=operands,
        roles=dict.fromkeys(operands, ELEMENTS),
        parameters=tuple(defaults),
        broadcasts=True,
        takes_integers=True,
        sums=program.sums,
        of_user=True,
        source=row_source(name, text),
    )
    return RowLossFunction(loss, text, defaults, place, doc)

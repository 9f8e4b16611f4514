"""Losses of your own, from a formula."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from ._api.compiled import refuse
from ._api.entrance import Prepared, call_of, loss_function, stands_for
from ._core.arguments import Flag, Real
from ._core.formula import is_identifier, source, struct_of
from ._core.loss import Call
from ._core.program import cpp_name
from ._core.tracing import trace
from ._core.types import Array, ArrayT, Reduction
from ._host.elementwise import Elementwise
from ._host.replay import Replay
from ._kinds.pointwise import PointwiseLoss
from ._verification.compilation import compile_once
from ._verification.report import Report
from ._verification.verify import verify

__all__ = [
    "pointwise_loss",
]

_OPERANDS = ("input", "target")
_RESERVED = ("reduction", "scale", "weight", "where")


class LossFunction:
    """A loss function of one's own, made by `pointwise_loss`.

    It is copied as functions are: the copy is the same object. It is pickled as they are, by its
    place, where it is found there; elsewhere by its formula, so that other processes need no
    definition of it.

    It is called with its first operand by position, or with all by name. The type of the formula
    says nothing here: its operands are single elements, and the type system cannot add options to
    the parameters of a function.

    Attributes:
        source: The formula in C++.

    """

    __name__: str
    __qualname__: str
    source: str

    def __init__(
        self,
        loss: PointwiseLoss,
        text: str,
        defaults: dict[str, float],
        place: tuple[str, str],
        doc: str | None,
    ) -> None:
        self._definition = (loss, text, defaults, place, doc)
        self._loss = loss
        self._defaults = defaults
        self.source = text
        self.__name__ = loss.name
        self.__module__, self.__qualname__ = place
        self.__doc__ = doc or f"Compute a loss of one's own.\n\nFormula: {text}\n"
        self.__signature__ = _signature(loss.operands, defaults)
        self._function = _function_of(self, loss, defaults)

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

    def check(self, *points: ArrayLike, **parameters: float) -> Report:
        """Check the formula: that it compiles, that its derivatives are right, how accurate it is.

        It is compiled by NVRTC for all architectures, which needs no GPU. Its values and its first
        and second derivatives, in float32 and in float64, are compared with those in NumPy's widest
        arithmetic, and the derivatives with finite differences, at random and special points and at
        the kinks; where there is a GPU, those of the kernels too. It takes some seconds: it is for
        tests, not for training.

        Args:
            *points: Arrays of one size, the points to check instead of those that are drawn,
                for a loss that is meant for some operands only.
            **parameters: Other values of the parameters than their defaults.

        Returns:
            A report, which is true if there are no problems. Its text has a line for each problem
            (a derivative that is NaN, a value that overflows, a text in C++ that differs from
            NumPy) with a point where it is seen, for each loss of accuracy, and for what to write
            instead, where that is known.

        Raises:
            TypeError: If there are not as many arrays as operands, or a parameter is unknown.
            ValueError: If the arrays have different sizes, or a parameter is out of range.

        """
        names = self._loss.operands
        if points and len(points) != len(names):
            raise TypeError(f"check() takes {len(names)} arrays or none, got {len(points)}")
        for name in parameters:
            if name not in self._defaults:
                raise TypeError(f"check() got an unexpected argument {name!r}")
        sizes = {name: np.size(x) for name, x in zip(names, points, strict=False)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"all arrays must have one size, got {sizes}")
        given = self._defaults | {k: Real().checked(k, x) for k, x in parameters.items()}
        return verify(self._loss, given, points)

    def compile(self) -> None:
        """Compile the formula for one architecture, without a GPU.

        Raises:
            ValueError: If it does not compile, with the line and the column.
            RuntimeError: If NVRTC is missing, with what to install.

        """
        values = tuple(self._defaults.values())
        compile_once(Call(self._loss, "none", values, False, False))

    def __repr__(self) -> str:
        return f"<loss function {self.__name__}>"

    def __copy__(self) -> LossFunction:
        return self

    def __deepcopy__(self, memo: Any) -> LossFunction:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        if _found_at(self.__module__, self.__qualname__) is self:
            return str(self.__qualname__)
        formula = self._loss.formula
        if isinstance(formula, Elementwise) and inspect.isfunction(formula.function):
            function = formula.function
            if _found_at(function.__module__, function.__qualname__) is not function:
                raise pickle.PicklingError(
                    f"{self.__name__} cannot be pickled, as its numpy= is a lambda or a function "
                    "inside another one: define it with def at the top of a module"
                )
        return LossFunction, self._definition


@overload
def pointwise_loss(name: Callable[..., Any], /) -> LossFunction: ...


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
    name: str | Callable[..., Any],
    formula: str | Callable[..., Any] | None = None,
    *,
    operands: Sequence[str] = _OPERANDS,
    parameters: Mapping[str, float] | None = None,
    numpy: Callable[..., Any] | None = None,
    check: bool = False,
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
        check: Whether to compile the formula at once, which needs NVRTC and no GPU, so that a
            mistake in C++ is an error here.

    Returns:
        A function of the operands and, by keyword, `reduction`, `scale`, `weight`, `where` and the
        parameters; shapes, dtypes and errors as `cupy_losses.regression` says. A weighted mean
        divides by the sum of the weights. Its attribute `source` is the formula in C++. Its method
        `check` looks for derivatives that are NaN, for overflow and for loss of accuracy. A text
        that does not compile raises ValueError with its line and column when it is called; so does
        a NumPy formula that does not return one real number for each element, or is not
        elementwise, which is seen from a few elements.

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
    refuse("pointwise_loss, whose function is to be made outside,")
    if callable(name) and formula is None:
        name, formula = getattr(name, "__name__", ""), name
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    if isinstance(formula, str):
        defaults = _checked(name, tuple(operands), parameters or {})
        host = None if numpy is None else Elementwise(name, numpy)
        cpp = source(name, formula, operands, tuple(defaults))
        loss = _loss(name, operands, defaults, host, cpp)
        made = LossFunction(loss, formula, defaults, (__name__, name), None)
    elif not callable(formula):
        got = type(formula).__name__
        raise TypeError(f"formula must be a function or a string, got {got}")
    elif operands is not _OPERANDS or parameters is not None or numpy is not None:
        raise TypeError(
            "operands, parameters and numpy go with a formula in C++: a function has them in its "
            "signature"
        )
    else:
        made = _traced(name, formula)
    if Flag().checked("check", check):
        made.compile()
    return made


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
    # The function that is decorated gives its place and its docstring.
    decorated = getattr(function, "__name__", "") == name
    place = (
        getattr(function, "__module__", None) or __name__,
        function.__qualname__ if decorated else name,
    )
    return LossFunction(loss, text, defaults, place, function.__doc__ if decorated else None)


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
    public: LossFunction, loss: PointwiseLoss, defaults: dict[str, float]
) -> Callable[..., Array]:
    """What a call of a loss function does."""
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

    prepare_call.__name__ = name
    prepare_call.__module__, prepare_call.__qualname__ = public.__module__, public.__qualname__
    prepare_call.__signature__ = public.__signature__  # type: ignore[attr-defined]
    function = loss_function(**dict.fromkeys(defaults, Real()))(prepare_call)
    stands_for(public, function)
    return function


def _found_at(module: str, qualname: str) -> Any:
    """What is at a place, where pickle looks for functions; None if nothing is."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


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
    options = {
        "reduction": ("Reduction", "mean"),
        "scale": ("float | Array", 1.0),
        "weight": ("Array | None", None),
        "where": ("Array | None", None),
        **{name: ("float", value) for name, value in defaults.items()},
    }
    return inspect.Signature(
        [
            inspect.Parameter(operand, positional, annotation="Array" if k else "ArrayT")
            for k, operand in enumerate(operands)
        ]
        + [
            inspect.Parameter(k, keyword, annotation=kind, default=default)
            for k, (kind, default) in options.items()
        ],
        return_annotation="ArrayT",
    )

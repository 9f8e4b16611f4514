"""Gradients of functions that add losses up.

`value_and_grad` calls such a function once, with a `Variable` in place of each argument that it
differentiates by. A loss of a `Variable` computes its value and gradients in one pass and gives a
`Sum`, which can be added to others and multiplied by constants. Nothing else can be done with
either, so that no part of a derivative is lost silently.
"""

from __future__ import annotations

import contextlib
import numbers
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from .._core.dtypes import dtype_name
from .._core.loss import Call, Request
from .._core.types import AnyArray
from .._libraries.registry import ArrayLibrary, find, register, resolve
from .argnums import check_differentiable, check_reduced

_REAL = ("bool", "int", "uint", "float", "bfloat")  # dtypes, without the number of bits


class Trace:
    """One call of a function that is differentiated: what belongs to it, and until when.

    Attributes:
        name: What differentiates it, `value_and_grad` or `grad`.
        is_open: Whether it is not over.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = True

    @property
    def only(self) -> str:
        """What is differentiated, in messages."""
        return (
            f"{self.name} of a function differentiates sums of losses of cupy_losses that take its "
            "arguments as they are, each times a constant"
        )

    def check(self, of: Trace) -> None:
        """Raise unless what is used is of this call, and this call is not over."""
        if of is not self or not self.is_open:
            raise TypeError(
                f"{self.only}; here an argument or a loss of another call is used, inside or "
                "before it"
            )


class _Restricted:
    """An object with few attributes: any other is refused, with what to do instead."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    @abstractmethod
    def _refuse(self, what: str) -> NoReturn:
        """Raise a TypeError that says what the object is used in."""


class Variable(_Restricted):
    """An argument that a function is differentiated by: its array is for losses alone."""

    __slots__ = ("array", "number", "trace")

    def __init__(self, trace: Trace, array: AnyArray, number: int) -> None:
        self.trace = trace
        self.array = array
        self.number = number

    def __repr__(self) -> str:
        dtype = dtype_name(self.dtype)
        return f"<argument {self.number} of {self.trace.name}: shape {self.shape}, {dtype}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.array.dtype

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"{self.trace.only}; argument {self.number} is used in {what}: torch's "
            "autograd differentiates through that, with tensors and .backward()"
        )


# Operators and conversions by their methods, without the underscores.
_OF_TWO = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_OTHERS = {
    "neg": "-",
    "pos": "+",
    "abs": "abs()",
    "invert": "~",
    "getitem": "an index",
    "index": "an index",
    "iter": "a loop",
    "bool": "a branch",
    "len": "len()",
    "float": "float()",
    "int": "int()",
    "array": "np.asarray()",
    "array_ufunc": "a function of NumPy",
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), "a comparison"),
}
_EVERYTHING = {
    **{f"__{name}__": sign for name, sign in {**_OF_TWO, **_OTHERS}.items()},
    **{f"__r{name}__": sign for name, sign in _OF_TWO.items()},
}


def _refuse_others(kind: Any) -> None:
    """Let each operator and conversion that a class does not have raise."""
    for name, sign in _EVERYTHING.items():
        if name not in vars(kind):
            setattr(kind, name, _refusal(sign))


def _refusal(what: str) -> Any:
    def refuse(self: Variable | Sum, *others: object, **_: object) -> NoReturn:
        first = others[0] if others else None
        self._refuse(f"np.{first.__name__}" if isinstance(first, np.ufunc) else what)

    return refuse


_refuse_others(Variable)


class Term:
    """One loss: its value and its gradients by the number of the argument; their library."""

    def __init__(
        self, library: ArrayLibrary, value: AnyArray, gradients: Mapping[int, AnyArray]
    ) -> None:
        self.library = library
        self.value = value
        self.gradients = gradients


# NumPy's numbers call these where they are the first operand.
_OF_UFUNCS: dict[Any, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "truediv",
}


class Sum(_Restricted):
    """A sum of losses, each times a constant, and a constant."""

    def __init__(self, trace: Trace, terms: Mapping[Term, Any], constant: Any = 0.0) -> None:
        self.trace = trace
        self._terms = terms
        self._constant = constant

    def __repr__(self) -> str:
        return f"<sum of losses inside {self.trace.name}: {self.value()}>"

    def __add__(self, other: Any) -> Sum:
        if isinstance(other, Sum):
            self.trace.check(other.trace)
            self._check_library_of(other)
            terms = dict(self._terms)
            for term, factor in other._terms.items():
                terms[term] = terms[term] + factor if term in terms else factor
            return Sum(self.trace, terms, self._constant + other._constant)
        return Sum(self.trace, self._terms, self._constant + self._known(other, "the sum"))

    __radd__ = __add__

    def __mul__(self, other: Any) -> Sum:
        return self._each(operator.mul, self._known(other, "the product"))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Sum:
        return self._each(_quotient, self._known(other, "the quotient"))

    def _each(self, operation: Callable[[Any, Any], Any], by: Any) -> Sum:
        """Each factor, and what is added unless that is 0, times or by a constant."""
        terms = {term: operation(own, by) for term, own in self._terms.items()}
        constant = self._constant
        if not _is(constant, 0.0):  # an infinite factor would make it NaN
            constant = operation(constant, by)
        return Sum(self.trace, terms, constant)

    def __neg__(self) -> Sum:
        return self * -1.0

    def __sub__(self, other: Any) -> Sum:
        return self + (-other if isinstance(other, Sum) else -self._known(other, "the difference"))

    def __rsub__(self, other: Any) -> Sum:
        return self.__neg__().__add__(other)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = _OF_UFUNCS.get(ufunc)
        if name is None or method != "__call__" or options:
            self._refuse(f"np.{ufunc.__name__}")
        first, second = inputs
        if isinstance(first, Sum):
            return getattr(first, f"__{name}__")(second)
        return getattr(self, f"__r{name}__")(first)

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("a comparison")

    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"{self.trace.only}; a loss is used in {what}: torch's autograd differentiates "
            "through that, with tensors and .backward()"
        )

    @property
    def _first(self) -> Term:
        return next(iter(self._terms))

    def _check_library_of(self, other: Sum) -> None:
        """Raise unless the arrays of another sum can be added to those of this one."""
        own, others = self._first.library, other._first.library
        if own is not others and not isinstance(other._first.value, own.types()):
            raise TypeError(
                f"{self.trace.only}; here losses of {own.name} and {others.name} arrays are added: "
                "the first operand of a loss decides, so let those be of one library"
            )

    def _known(self, other: Any, where: str) -> Any:
        """A constant, as an array of the library of the losses unless the host knows it."""
        constant = _constant(other, where, self.trace)
        library = self._first.library
        if isinstance(constant, (numbers.Real, *library.types())):
            return constant
        others = find(constant)
        return constant.item() if others and others.on_host else library.adopt(constant)

    def value(self) -> AnyArray:
        """The sum."""
        first = self._first
        own = _Arithmetic(first.library)
        with own.on_device_of(first.value):
            total, *others = [own.times(term.value, by) for term, by in self._terms.items()]
            for part in others:
                total = first.library.kept(total + part)
            if not _is(self._constant, 0.0):
                wide = first.library.kept(own.wide(total) + self._constant)
                total = own.in_dtype(wide, total)
        return np.asarray(total) if isinstance(total, np.generic) else total

    def gradient(self, number: int) -> AnyArray:
        """The gradient by an argument; takes the memory of those of the terms."""
        total = None
        for term, factor in self._terms.items():
            if number in term.gradients:
                own = _Arithmetic(term.library)
                part = own.scaled(term.gradients[number], factor)
                total = part if total is None else own.added(total, part)
        if total is None:
            raise ValueError(f"the function has no loss of argument {number}")
        return total


_refuse_others(Sum)


@register
class VariableLibrary(ArrayLibrary):
    """The arguments to differentiate by, with the arrays of any library beside them."""

    name = "variable"
    on_host = True
    takes_over = True

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """The one class."""
        return (Variable,)

    @classmethod
    def owns(cls, array: AnyArray) -> bool:
        """All of them."""
        return isinstance(array, Variable)

    def adopt(self, array: AnyArray) -> AnyArray:
        """Arrays of other libraries stay what they are."""
        return array

    def plain(self, operands: Sequence[AnyArray]) -> Sequence[AnyArray]:
        """The arrays of the arguments."""
        return [o.array if isinstance(o, Variable) else o for o in operands]

    def evaluate(self, call: Call, operands: Sequence[AnyArray]) -> Sum:
        """The loss, computed with its gradients."""
        check_reduced(call)
        if call.loss.overwrites:
            raise ValueError(
                "overwrite_input must be False in a function of losses, which may read the input "
                "again"
            )
        variables = [(k, o) for k, o in enumerate(operands) if isinstance(o, Variable)]
        trace = variables[0][1].trace
        for _, variable in variables:
            trace.check(variable.trace)
        if call.scaled and isinstance(operands[-1], Variable):
            raise ValueError(
                "scale must be no argument to differentiate by: multiply the loss by a constant"
            )
        for k, _ in variables:
            check_differentiable(call, k)
        library, plain = resolve(call, self.plain(operands))
        wanted = tuple(k for k, _ in variables)
        value, *gradients = library.run(call, Request(wanted=wanted), plain)
        by_number: dict[int, AnyArray] = {}
        for (_, variable), gradient in zip(variables, gradients, strict=True):
            number = variable.number
            known = by_number.get(number)
            if known is not None:
                gradient = _Arithmetic(library).added(known, gradient)
            by_number[number] = gradient
        return Sum(trace, {Term(library, value, by_number): 1.0})

    def run(
        self, call: Call, request: Request, operands: Sequence[AnyArray]
    ) -> list[AnyArray | None]:
        """Not available: a gradient of a gradient."""
        self._refuse(next((o for o in operands if isinstance(o, Variable)), None))

    def one(self, like: AnyArray) -> AnyArray:
        """Not available, for the same reason."""
        self._refuse(like)

    def _refuse(self, variable: AnyArray) -> NoReturn:
        name = variable.trace.name if isinstance(variable, Variable) else "value_and_grad"
        raise TypeError(
            f"{name} does not differentiate a derivative: hvp and grad_and_hess give second ones, "
            "and with tensors torch's autograd does with create_graph=True"
        )


def _constant(value: Any, where: str, trace: Trace) -> Any:
    """A real number, or an array of one, that does not depend on a `Variable`."""
    if isinstance(value, numbers.Real):
        # One of NumPy's with few bits would make others as narrow.
        return value.item() if isinstance(value, np.generic) else value
    what = {Variable: "an argument", Sum: "another loss"}.get(type(value), type(value).__name__)
    if not isinstance(value, Variable | Sum) and tuple(getattr(value, "shape", (1,))) == ():
        what = dtype_name(value.dtype)
        if what.rstrip("0123456789") in _REAL:
            if isinstance(value, np.ndarray | np.generic):
                return value.item()
            return value.detach() if getattr(value, "requires_grad", False) else value
    raise TypeError(f"{trace.only}; here it is in {where} with {what}, which is no real constant")


def _quotient(a: Any, b: Any) -> Any:
    """The quotient of constants; that of two numbers is what arrays have, where Python's raises."""
    if _is(b, 0.0) and isinstance(a, numbers.Real):
        with np.errstate(all="ignore"):
            return float(np.true_divide(float(a), float(b)))
    return a / b


def _is(value: Any, number: float) -> bool:
    """Whether a constant is a number that the host knows, and equal to `number`."""
    return isinstance(value, numbers.Real) and value == number


class _Arithmetic:
    """Operators of a library on what its losses give, where no array gets lost.

    A new array may be dropped for the next one while a graph is captured, whose replays use both.
    """

    def __init__(self, library: ArrayLibrary) -> None:
        self._library = library
        self._kept = library.kept

    @contextlib.contextmanager
    def on_device_of(self, array: AnyArray) -> Iterator[None]:
        """A context in which they work on the device of an array, without NumPy's warnings."""
        with self._library.on_device_of(array), np.errstate(all="ignore"):
            yield

    def times(self, value: AnyArray, factor: Any) -> AnyArray:
        """The value times a constant."""
        self._kept(value)
        if _is(factor, 1.0):
            return value
        return self.in_dtype(self._kept(self.wide(value) * factor), value)

    def scaled(self, gradient: AnyArray, factor: Any) -> AnyArray:
        """The gradient times a constant, in its own memory where that can be written to."""
        if _is(factor, 1.0):
            return gradient
        with self.on_device_of(gradient):
            wide = self.wide(gradient)
            wide *= factor
            return self.in_dtype(wide, gradient)

    def added(self, total: AnyArray, part: AnyArray) -> AnyArray:
        """The sum, in the memory of the first one."""
        with self.on_device_of(total):
            total += self._kept(part)
        return total

    def wide(self, array: AnyArray) -> AnyArray:
        """Half precision as float32: a factor may be out of its range while the product is not."""
        if dtype_name(array.dtype) not in ("float16", "bfloat16"):
            return array
        self._kept(array)
        return self._kept(array.float() if hasattr(array, "float") else array.astype("float32"))

    def in_dtype(self, array: AnyArray, like: AnyArray) -> AnyArray:
        """An array in the dtype of another one of its library."""
        if array.dtype == like.dtype:
            return array
        made = array.to(like.dtype) if hasattr(array, "to") else array.astype(like.dtype)
        return self._kept(made)

"""What losses of one's own have in common: how they are made, called, copied and checked."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .._core.arguments import Argument, Flag, Real
from .._core.formula import is_identifier
from .._core.formula_errors import shown_name
from .._core.loss import Call, Loss
from .._core.types import AnyArray
from .._verification.compilation import compile_once
from .._verification.report import Report
from .._verification.verify import verify
from . import compiled
from .entrance import loss_function
from .prepared import Prepared
from .public import is_loss, mark_as, without_partials


class OwnLoss(ABC):
    """A loss function of one's own.

    It is copied as functions are: the copy is the same object. It is pickled as they are, by its
    place, where it is found there; elsewhere by its formula, so that other processes need no
    definition of it.

    It is called with its first operand by position, or with all by name. The type of the formula
    says nothing here: its operands are no arrays, and the type system cannot add options to the
    parameters of a function.

    Attributes:
        source: The formula in C++.

    """

    __name__: str
    __qualname__: str
    source: str

    # The kinds of the options of a call that are no arrays, beside the common ones.
    _KINDS: ClassVar[Mapping[str, Argument]] = {}

    def __init__(
        self,
        loss: Loss,
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
        self.__signature__ = self._signature()
        prepare: Any = functools.partial(self._prepare)
        prepare.__name__, prepare.__annotations__ = loss.name, {}
        prepare.__module__, prepare.__qualname__ = place
        prepare.__signature__ = self.__signature__
        kinds = {**self._KINDS, **dict.fromkeys(defaults, Real())}
        self._function: Callable[..., AnyArray] = loss_function(**kinds)(prepare)
        public: Any = self
        mark_as(public, self._function)

    @abstractmethod
    def _prepare(self, *args: AnyArray, **options: Any) -> Prepared[Any]:
        """A call of arguments."""

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        """The options of a call, beside the parameters of the formula."""
        arguments = inspect.signature(cls._prepare).parameters
        return {name: own for name, own in arguments.items() if own.kind is own.KEYWORD_ONLY}

    def check(self, *points: ArrayLike, **parameters: float) -> Report:
        """Check the formula: that it compiles, that its derivatives are right, how accurate it is.

        It is compiled by NVRTC for all architectures, which needs no GPU. Its values and its first
        and second derivatives, in float32 and in float64, are compared with those in NumPy's widest
        arithmetic, and the derivatives with finite differences, at random and special points and at
        the kinks; where there is a GPU, those of the kernels too. It takes some seconds: it is for
        tests, not for training.

        Args:
            *points: Arrays of one size, the points to check instead of those that are drawn, for a
                loss that is meant for some operands only. For a loss over rows they are of one
                shape, and their last axis has the elements of a row, up to four; those that are
                drawn have two.
            **parameters: Other values of the parameters than their defaults.

        Returns:
            A report, which is true if there are no problems. Its text has a line for each problem
            (a derivative that is NaN, a value that overflows, on a GPU a text in C++ that differs
            from NumPy) with a point where it is seen, for each loss of accuracy, for what could not
            be tested without NVRTC or a GPU, and for what to write instead, where that is known.
            Its attributes `problems`, `notes`, `advice` and `checked` have these lines.

        Raises:
            TypeError: If there are not as many arrays as operands, or a parameter is unknown.
            ValueError: If the arrays have different sizes or no elements, or a parameter is out of
                range.

        """
        names = self._loss.operands
        if points and len(points) != len(names):
            raise TypeError(f"check() takes {len(names)} arrays or none, got {len(points)}")
        for name in parameters:
            if name not in self._defaults:
                own = ", ".join(self._defaults) or "no parameters"
                raise TypeError(
                    f"check() got an unexpected keyword argument {name!r}: it takes {own}"
                )
        sizes = {name: np.size(x) for name, x in zip(names, points, strict=False)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"all arrays must have one size, got {sizes}")
        if 0 in sizes.values():
            raise ValueError("there must be at least one point, got arrays of size 0")
        given = self._defaults | {k: Real().checked(k, x) for k, x in parameters.items()}
        return verify(self._loss, given, points)

    def compile(self) -> None:
        """Compile the formula with its derivatives for one architecture, to find mistakes in it.

        That needs NVRTC and no GPU. Later calls compile kernels of their own.

        Raises:
            ValueError: If it does not compile, with the line and the column.
            RuntimeError: If NVRTC is missing, with what to install.

        """
        values = tuple(self._defaults.values())
        compile_once(Call(self._loss, "none", values))

    def __repr__(self) -> str:
        return f"<loss function {self.__name__}>"

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """The loss itself, also as an attribute of a class.

        With this method it is a routine for `inspect`, as functions are, so that `help` shows its
        signature.
        """
        return self

    def __copy__(self) -> OwnLoss:
        return self

    def __deepcopy__(self, memo: Any) -> OwnLoss:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        if _found_at(self.__module__, self.__qualname__) is self:
            return str(self.__qualname__)
        function: Any = getattr(self._loss.formula, "function", None)
        of_text = inspect.isfunction(function)
        if of_text and _found_at(function.__module__, function.__qualname__) is not function:
            raise pickle.PicklingError(
                f"{self.__name__} cannot be pickled, as its numpy= is a lambda or a function "
                "inside another one: define it with def at the top of a module"
            )
        return type(self), self._definition

    def _arguments(
        self, args: tuple[AnyArray, ...], given: dict[str, Any]
    ) -> tuple[tuple[AnyArray, ...], tuple[float, ...]]:
        """The operands, some of which may come by keyword, and the parameters."""
        operands, defaults = self._loss.operands, self._defaults
        if len(args) != len(operands):
            args = self._bound(args, given)
        for argument in given:
            if argument in operands:
                raise TypeError(f"{self.__name__}() got multiple values for argument {argument!r}")
        return args, tuple([given.get(name, default) for name, default in defaults.items()])

    def _bound(self, args: tuple[AnyArray, ...], given: dict[str, Any]) -> tuple[AnyArray, ...]:
        """The operands, where some come by keyword; they are removed from `given`."""
        operands = self._loss.operands
        missing = [operand for operand in operands[len(args) :] if operand not in given]
        if missing:
            raise TypeError(f"{self.__name__}() misses the argument {missing[0]!r}")
        return (*args, *(given.pop(operand) for operand in operands[len(args) :]))

    def _signature(self) -> inspect.Signature:
        kinds = inspect.Parameter
        return inspect.Signature(
            [
                kinds(name, kinds.POSITIONAL_OR_KEYWORD, annotation="Array" if k else "ArrayT")
                for k, name in enumerate(self._loss.operands)
            ]
            + [*self.options().values()]
            + [
                kinds(name, kinds.KEYWORD_ONLY, annotation="float", default=default)
                for name, default in self._defaults.items()
            ],
            return_annotation="ArrayT",
        )


# Arguments of the transforms, which pass the others on, and of methods.
_TAKEN = ("self", "primals", "tangents", "cotangent", "argnum", "argnums")


def checked_names(
    name: str, operands: Sequence[str], parameters: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, float]:
    """The defaults of the parameters; raises unless all names can be used beside the options."""
    if not operands:
        raise ValueError("operands must name at least one array")
    for identifier in (name, *operands, *parameters):
        if not is_identifier(identifier):
            raise ValueError(
                "a name must be an identifier of ASCII letters that begins with a letter, "
                f"got {identifier!r}"
            )
    own = (*operands, *parameters)
    for identifier in own:
        if identifier in (*options, *_TAKEN):
            raise ValueError(
                f"the name {identifier!r} is taken, by an argument that all losses have: choose "
                "another"
            )
        if own.count(identifier) > 1:
            raise ValueError(f"the name {identifier!r} is taken, as it is there twice")
    return {
        parameter: Real().checked(f"{name}: the default of {parameter}", x)
        for parameter, x in parameters.items()
    }


def arguments_of(
    function: Callable[..., Any],
) -> tuple[tuple[str, ...], dict[str, Any], list[str]]:
    """The operands of a formula, the defaults of its parameters, and which are by keyword alone."""
    if isinstance(function, np.ufunc):
        names = ", ".join(("input", "target", "x", "y")[: function.nin])
        raise TypeError(
            f"a ufunc has no names for operands: write lambda {names}: "
            f"{shown_name(function)}({names})"
        )
    if is_loss(function):
        name = without_partials(function)[0].__name__
        raise TypeError(
            f"a formula is of numbers, and {name} is a loss of arrays already: call it as it is, "
            f"with functools.partial({name}, …) for other defaults, or write its formula"
        )
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
    if not operands:
        raise TypeError(
            "a formula takes at least one array, which is an argument without a default"
        )
    numbers = {a.name: a.default for a in arguments if a.default is not a.empty}
    for parameter, default in numbers.items():
        if isinstance(default, bool):
            raise TypeError(
                f"the default of {parameter} must be a real number, got {default}: a formula is "
                "traced once and cannot branch on a flag, so define a loss for each of its values"
            )
    return operands, numbers, [a.name for a in arguments if a.kind is a.KEYWORD_ONLY]


class Definition(NamedTuple):
    """What a loss of one's own is defined by.

    Attributes:
        name: Its name.
        formula: Its formula, a function or a text in C++.
        place: The module and the qualified name that it is found by.
        doc: Its docstring, where it is that of the function that is decorated.

    """

    name: str
    formula: str | Callable[..., Any]
    place: tuple[str, str]
    doc: str | None

    @classmethod
    def of(
        cls, name: str | None, formula: str | Callable[..., Any], module: str, decorates: bool
    ) -> Definition:
        """That of a formula, whose name may be that of its function.

        A decorated function is replaced by its loss, which is found under the function's qualified
        name. A function that has the loss's name counts as decorated. Any other loss is found by
        its own name, in the module of its function, or in `module` if it has none.
        """
        own = getattr(formula, "__name__", "")
        module = getattr(formula, "__module__", None) or module
        place = getattr(formula, "__qualname__", "") if decorates or own == name else ""
        name = own if name is None else name
        return cls(name, formula, (module, place or name), formula.__doc__ if place else None)


Made = TypeVar("Made", bound=OwnLoss)


def defined(
    make: Callable[[Definition], Made],
    public: Callable[..., Any],
    name: str | Callable[..., Any] | None,
    formula: Any,
    check: bool,
) -> Made | Callable[[Callable[..., Any]], Made]:
    """A loss of a name and a formula, or of a function; without either what decorates a function.

    Args:
        make: Makes the loss of a definition.
        public: The public function that the user calls.
        name: The name, or the function.
        formula: The formula, or None.
        check: Whether to compile the loss at once.

    Raises:
        TypeError: If the name is no text, the formula neither a text nor a function, or check no
            bool.

    """
    check = Flag().checked("check", check)
    decorates = formula is None
    if decorates and callable(name):
        name, formula = None, name
    elif not isinstance(name, str) and not (decorates and name is None):
        raise TypeError(f"name must be a string, got {type(name).__name__}")

    def made_of(formula: Any) -> Made:
        if compiled.is_compiling():
            return compiled.call_outside_graph(public.__name__, made_of, formula)
        return compiled.disable_compile(_defined)(make, public, name, formula, decorates, check)

    return made_of if formula is None else made_of(formula)


def _defined(
    make: Callable[[Definition], Made],
    public: Callable[..., Any],
    name: str | None,
    formula: Any,
    decorates: bool,
    check: bool,
) -> Made:
    """The loss of a name and a formula, which torch.compile would read where it has no tensors."""
    if not (callable(formula) or (isinstance(formula, str) and not decorates)):
        what = "what is decorated must be a function"
        if not decorates:
            what = "formula must be a function or a string"
        raise TypeError(f"{what}, got {type(formula).__name__}")
    if name is None and getattr(formula, "__name__", "<lambda>") == "<lambda>":
        raise ValueError(
            f"the function has no name: pass one first, {public.__name__}(name, function)"
        )
    loss = make(Definition.of(name, formula, public.__module__, decorates))
    if check:
        loss.compile()
    return loss


def _found_at(module: str, qualname: str) -> Any:
    """What is at a place, where pickle looks for functions; None if nothing is."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found

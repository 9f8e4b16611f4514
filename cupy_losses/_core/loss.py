"""What a loss is, what a call of one is, and what can be asked of a call."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args
from weakref import WeakValueDictionary

from .dtypes import in_float32
from .locks import table_lock
from .outputs import COUNT, PAIR, Output
from .reduction import Denominator
from .shapes import ArraySpec, Shape
from .types import Reduction

REDUCTIONS: tuple[str, ...] = get_args(Reduction)

Formula = Callable[..., Any]


class Refusal(NamedTuple):
    """Why a loss is not differentiated by an operand.

    Attributes:
        message: The error.
        by_autograd: Whether torch's autograd has the derivative, which `_torch/weights.py` composes
            of other calls.

    """

    message: str
    by_autograd: bool = False


def weight_refusal(name: str) -> Refusal:
    """That of a gradient by a weight, which only `_torch/weights.py` computes."""
    return Refusal(
        f"{name} requires grad, which torch's autograd alone can do here, without "
        f"overwrite_input: pass {name}.detach()",
        by_autograd=True,
    )


_LOSSES: dict[str, Loss] = {}
_OF_USERS: WeakValueDictionary[str, Loss] = WeakValueDictionary()  # by key
_making_known = table_lock()


def loss_of_key(key: str) -> Loss:
    """The loss with a key, in a program that may have been saved by another process.

    Raises:
        ValueError: If it is of a user who has not defined it here.

    """
    loss = _LOSSES.get(key) or _OF_USERS.get(key)
    if loss is None:
        name = re.sub("[0-9a-f]{64}$", "", key)
        raise ValueError(
            f"there is no loss of the name {name!r} with the formula that it had: define it, as "
            "it was, before it is called by what was traced"
        )
    return loss


def losses() -> Mapping[str, Loss]:
    """The losses of this package by name."""
    return _LOSSES


def variant(name: str, **options: bool | int) -> str:
    """The name of a variant of a loss: with the flags that are set, and other options."""
    given = {key: value for key, value in options.items() if value is not False}
    return ", ".join(
        [name, *(k if value is True else f"{k}={value}" for k, value in given.items())]
    )


def _named(name: str) -> Loss:
    return _LOSSES[name]


@dataclass(frozen=True, eq=False, kw_only=True)
class Loss(ABC):
    """One loss: a name, what it takes, and how it is computed on a device and on the host.

    Two losses are equal if their keys are equal. A new kind of loss is a new subclass.

    Attributes:
        name: Names the loss in the package; variants of a formula have names of their own.
        struct: The class template of its formula in C++, one of cuda/losses or one that `source`
            defines.
        formula: Its formula in NumPy; None where there is none.
        operands: The argument names of the arrays.
        parameters: The names of the hyper-parameters, in the order of `Call.parameters`.
        integers: Those of them that are integers, the others being real.
        reductions: The reductions that it has.
        domains: The ranges of operands, which are checked on demand.
        overwrites: Whether the gradient of the first operand takes its memory.
        source: The C++ source of the struct, where cuda/ has none.
        of_user: Whether a user defined it: it is not listed, and pickled with its definition.
        key: The name, which tells losses of a user apart by their definition too.

    """

    name: str
    struct: str
    formula: Formula | None
    operands: tuple[str, ...] = ("input", "target")
    parameters: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    reductions: tuple[str, ...] = REDUCTIONS
    domains: Mapping[str, Domain] = field(default_factory=dict)
    overwrites: bool = False
    source: str = ""
    of_user: bool = False
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.name + self.definition)
        if self.of_user:
            self._make_known()
            return
        if self.name in _LOSSES:
            raise ValueError(f"there is a loss of the name {self.name!r} already")
        _LOSSES[self.name] = self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loss) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return super().__reduce__() if self.of_user else (_named, (self.name,))  # type: ignore[return-value]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a loss of a user known in the process that it is unpickled in."""
        self.__dict__.update(state)
        self._make_known()

    def _make_known(self) -> None:
        """Register the loss under its key, for as long as it or an equal one is there."""
        with _making_known:
            known = _OF_USERS.setdefault(self.key, self)
        if known is not self:
            object.__setattr__(self, "_known", known)  # which keeps it

    @property
    def definition(self) -> str:
        """What tells losses of a user that have the same name apart: the source and the formula."""
        if not self.source:
            return ""
        text = self.source + getattr(self.formula, "fingerprint", "")
        return hashlib.sha256(text.encode()).hexdigest()

    def in_float32(self, parameters: Sequence[float | int]) -> tuple[float | int, ...]:
        """Hyper-parameters as they are in arithmetic of float32."""
        pairs = zip(self.parameters, parameters, strict=True)
        return tuple([x if name in self.integers else in_float32(x) for name, x in pairs])

    def domain(self, call: Call, name: str, operands: Sequence[Any]) -> Domain | None:
        """The range of an operand, given the arrays of the call."""
        return self.domains.get(name)

    @abstractmethod
    def shape_of(self, call: Call, operands: Sequence[ArraySpec]) -> Shape:
        """The shape of the elements; raises unless the operands fit together."""

    @abstractmethod
    def value_shape(self, call: Call, shape: Shape) -> Shape:
        """The shape of the value of a call."""

    @abstractmethod
    def result_dtype(self, call: Call, operands: Sequence[ArraySpec], autocast: bool) -> str:
        """The dtype of the value."""

    @abstractmethod
    def denominator(self, call: Call, shape: Shape, operands: Sequence[ArraySpec]) -> Denominator:
        """What the sum of a call is divided by."""

    @abstractmethod
    def outputs(
        self, call: Call, request: Request, operands: Sequence[ArraySpec], autocast: bool = False
    ) -> list[Output | None]:
        """What a request allocates: the value, if asked for, then the gradients.

        `operands` are those of the request. It needs no device and allocates nothing. A gradient
        that an early request leaves out is None.
        """

    @abstractmethod
    def refusal(self, call: Call, operand: int) -> Refusal | None:
        """Why the loss is not differentiable by an operand; None where it is."""

    def is_constant(self, call: Call, operand: int) -> bool:
        """Whether the loss is piecewise constant in an operand.

        Its gradient in autograd is None.
        """
        return False

    def differentiated(self, call: Call, needed: Sequence[bool]) -> tuple[int, ...]:
        """The operands that a loss is differentiated by, of those that need a gradient.

        Raises:
            ValueError: If it is not differentiable by one of them.

        """
        wanted = [k for k, needs in enumerate(needed) if needs and not self.is_constant(call, k)]
        for k in wanted:
            if refusal := self.refusal(call, k):
                raise ValueError(refusal.message)
        return tuple(wanted)

    def notice(self, call: Call, request: Request, operands: Sequence[ArraySpec]) -> str:
        """What to warn the caller of; "" for nothing."""
        return ""

    def grad_output_operand(self, call: Call, grad_output: Any) -> Any:
        """The operand of a request for a grad_output, an array in the shape of the value."""
        return grad_output

    @abstractmethod
    def plan(self, library: Any, problem: Any) -> Any:
        """The launches for a problem on a device, see `_device/plan.py`."""

    @abstractmethod
    def on_host(
        self, call: Call, request: Request, operands: Sequence[Any], autocast: bool
    ) -> list[Any]:
        """Evaluate a request on NumPy arrays."""


class Call(NamedTuple):
    """A loss with all its arguments but the arrays.

    The arrays go beside it as `operands`: the mask where there is one, then the weight where there
    is one, then that of rows where the call is `row_weighted`, then those of the loss, then the
    scale where that is an array of shape ().

    The value and all derivatives of a reduced loss are multiplied by `scale`, or, where the call is
    `scaled`, by that array. Plans and shapes are those of the call `unscaled`, and on the host the
    array has become the number. The elements of a row of a loss over rows lie along `axis`, or
    where they lie by default.
    """

    loss: Loss
    reduction: str
    parameters: tuple[float | int, ...]
    weighted: bool = False
    masked: bool = False
    scale: float = 1.0
    scaled: bool = False
    axis: int | None = None
    row_weighted: bool = False

    @property
    def extra(self) -> int:
        """The number of operands in front of those of the loss."""
        return self.masked + self.weighted + self.row_weighted

    @property
    def names(self) -> tuple[str, ...]:
        """The argument names of the operands."""
        extra = ("where",) * self.masked + ("weight",) * self.weighted
        extra += ("sample_weight",) * self.row_weighted
        return extra + self.loss.operands + ("scale",) * self.scaled

    @property
    def unscaled(self) -> Call:
        """The call with scale 1; its operands are those but the array of the scale."""
        return self._replace(scale=1.0, scaled=False)

    @property
    def of_layout(self) -> Call:
        """The call without its numbers, which leave shapes, dtypes and launches as they are."""
        loss, reduction, _, weighted, masked, _, scaled, axis, row_weighted = self
        return Call(loss, reduction, (), weighted, masked, 1.0, scaled, axis, row_weighted)

    @property
    def layout_key(self) -> tuple[Any, ...]:
        """What `of_layout` has, for the key of a table, with the key of the loss.

        `_device/engine.py` has it inline.
        """
        loss, reduction, _, weighted, masked, _, scaled, axis, row_weighted = self
        return loss.key, reduction, weighted, masked, scaled, axis, row_weighted

    @property
    def named_parameters(self) -> dict[str, float | int]:
        """The hyper-parameters by name."""
        return dict(zip(self.loss.parameters, self.parameters, strict=True))


class Request(NamedTuple):
    """What is computed of a call in one pass over its operands.

    The operands of a request are, in this order: the denominator, a scalar of float64, if
    `denominator` is set; grad_output if `vjp` is set; a tangent for each operand in `tangents`; the
    operands of the call. The function that is evaluated is

        (grad_output *) (sum over k in tangents of tangent_k * d/dx_k) (weights *) loss

    The results are the value, if `value` is set, then the derivatives by the operands in `wanted`.
    All are multiplied by the scale and divided by the denominator. With `denominator`, the divisor
    is the first operand. With `pair`, on the host alone, the value is three float64 numbers: the
    sum, its rounding error and the denominator; the caller scales and divides. With `counted`, a
    denominator that is a count is returned behind the value. Later requests for derivatives take it
    as an operand.

    An `early` request is that of a forward pass. Its gradients are multiplied by the grad_output
    that it anticipates. A gradient that is better computed when grad_output is known is None. The
    last result is for the backward pass: see `_torch/autograd.py`.
    """

    value: bool = True
    wanted: tuple[int, ...] = ()
    vjp: bool = False
    tangents: tuple[int, ...] = ()
    early: bool = False
    pair: bool = False
    denominator: bool = False
    counted: bool = False

    @property
    def extra(self) -> int:
        """The number of operands in front of those of the call."""
        return self.denominator + self.vjp + len(self.tangents)

    def names(self, call: Call) -> tuple[str, ...]:
        """The names by which operands have roles: a tangent has that of the operand it varies.

        The denominator and grad_output have none.
        """
        tangents = tuple(call.names[k] for k in self.tangents)
        return ("",) * (self.denominator + self.vjp) + tangents + call.names

    def names_in_messages(self, call: Call) -> tuple[str, ...]:
        """The names of the operands in messages to the user."""
        names = call.names
        leading = ("denominator",) * self.denominator + ("grad_output",) * self.vjp
        tangents = map("the tangent of {}".format, map(names.__getitem__, self.tangents))
        return (*leading, *tangents, *names)

    def computed(self, call: Call, operands: Sequence[ArraySpec], shape: Shape) -> list[bool]:
        """Which of the wanted gradients are computed; `operands` are those of the call.

        An early request leaves out those of reduction "none", which need grad_output at every
        element, and of operands that are broadcast, which need a sum of their own.
        """
        if not self.early:
            return [True] * len(self.wanted)
        if call.reduction == "none":
            return [False] * len(self.wanted)
        size = math.prod(shape)
        return [operands[k].size == size for k in self.wanted]

    def outputs(
        self, value: Output, computed: Sequence[bool], gradient: Callable[[int], Output]
    ) -> list[Output | None]:
        """What the request allocates, given the value of the call and the gradient by operand k.

        `computed` says which of the wanted gradients are computed; the others are None.
        """
        values = [PAIR if self.pair else value] * self.value + [COUNT] * self.counted
        pairs = zip(self.wanted, computed, strict=True)
        return [*values, *(gradient(k) if is_computed else None for k, is_computed in pairs)]


FORWARD = Request()


@dataclass(frozen=True)
class Domain:
    """The values that an operand may have: `values`, and a range where `minimum` is set."""

    minimum: float | None = None
    maximum: float = math.inf
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        parts = [in_six_digits(value) for value in self.values]
        if self.minimum is not None:
            low, high = in_six_digits(self.minimum), in_six_digits(self.maximum)
            parts.insert(0, f"at least {low}" if high == "inf" else f"in [{low}, {high}]")
        return " or ".join(parts)

    def contains(self, array: Any) -> Any:
        """Where the elements of an array, of any library, are inside."""
        parts = [array == value for value in self.values]
        if self.minimum is not None:
            parts.append((array >= self.minimum) & (array <= self.maximum))
        return functools.reduce(operator.or_, parts)


PROBABILITY = Domain(0.0, 1.0)
SIGN = Domain(values=(-1.0, 1.0))


def in_six_digits(value: float) -> str:
    """A number in a message; an integer in full."""
    return str(value) if isinstance(value, int) else f"{value:g}"

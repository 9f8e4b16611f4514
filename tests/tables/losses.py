"""The table of losses that drives the tests: one line a loss.

The references are NumPy expressions of their own, in whatever precision the operands have. They are
analytic on each side of their kinks, so that complex steps give exact derivatives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F

import cupy_losses
from cupy_losses._core.program import CALLED

Array = Any

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Real numbers."""
    return rng.standard_normal(shape)


def logit(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Log-odds, likely and very unlikely."""
    return 6 * rng.standard_normal(shape)


def probability(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers inside (0, 1)."""
    return rng.uniform(0.01, 0.99, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers above 0: variances, distances, rates."""
    return rng.uniform(0.1, 3.0, shape)


def sign(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """1 or -1."""
    return rng.choice([-1.0, 1.0], shape)


def count(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Whole numbers from 0."""
    return rng.poisson(2.0, shape).astype(np.float64)


def real(x: Array) -> Array:
    """The real part: what comparisons see of a number on a complex step."""
    return np.real(x)


def magnitude(x: Array) -> Array:
    """|x|, with the derivative 0 at 0."""
    return x * np.sign(real(x))


def clamp(x: Array) -> Array:
    """max(x, 0), with the derivative 1 at 0; NaN of NaN."""
    return np.where(real(x) < 0, 0.0, x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return np.where(real(x) > 0, x, 0.0) + np.log1p(np.exp(np.where(real(x) > 0, -x, x)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def bce_terms(x: Array, y: Array) -> tuple[Array, ...]:
    """The cross entropy of a logit."""
    return y * softplus(-x), (1 - y) * softplus(x)


def log_cosh(x: Array) -> Array:
    """log(cosh(x)), near 0 in a form that does not cancel."""
    near = abs(real(x)) < 1
    far = magnitude(x) + np.log1p((np.exp(-2 * magnitude(x)) - 1) / 2)
    return np.where(near, np.log1p(np.sinh(np.where(near, x, 0.0)) ** 2) / 2, far)


def _huber(d: Array, delta: float) -> Array:
    return np.where(abs(real(d)) < delta, d * d / 2, delta * (magnitude(d) - delta / 2))


def pinball(d: Array, quantile: float) -> Array:
    """The quantile loss of an error."""
    return np.where(real(d) < 0, (quantile - 1) * d, quantile * d)


def hinge_embedding(x: Array, y: Array, margin: float) -> tuple[Array, ...]:
    """A distance, or how far it is below the margin."""
    return np.where(y == 1, 0, clamp(margin - x)), np.where(y == -1, 0, x)


def focal(x: Array, y: Array, alpha: float, gamma: float) -> Array:
    """torchvision's, term by term."""
    p = sigmoid(x)
    p_t = p * y + (1 - p) * (1 - y)
    balance = alpha * y + (1 - alpha) * (1 - y) if alpha >= 0 else 1.0
    return balance * (1 - p_t) ** gamma * (y * softplus(-x) + (1 - y) * softplus(x))


def poisson_terms(
    x: Array, y: Array, log_input: bool = True, full: bool = False, eps: float = 1e-8
) -> tuple[Array, ...]:
    """The negative log-likelihood of counts."""
    parts = (np.exp(x), -y * x) if log_input else (x, -y * np.log(x + eps))
    if not full:
        return parts
    large = real(y) > 1
    z = np.where(large, y, 2.0)
    rest = z * np.log(z), -z, np.log(2 * np.longdouble(np.pi) * z) / 2
    return (*parts, *(np.where(large, part, 0.0) for part in rest))


def gaussian_terms(
    x: Array, y: Array, v: Array, full: bool = False, eps: float = 1e-6
) -> tuple[Array, ...]:
    """The negative log-likelihood of normal deviates."""
    v = np.where(real(v) < eps, eps + (v - real(v)), v)
    terms = np.log(v) / 2, (x - y) ** 2 / v / 2
    return (*terms, np.log(2 * np.longdouble(np.pi)) / 2) if full else terms


@dataclass(frozen=True)
class Case:
    """A loss with parameters, torch's counterpart and an independent reference.

    `terms` gives the loss of one element as terms to be added, from the operands and parameters:
    the error is promised in units of its largest term, which is `constant` at least, or `unit` of
    the operands. `draws` is what each operand is drawn from. `exact` losses are a few operations
    that round as well as can be; `ulps` is the promised error of the others in float32.
    """

    name: str
    terms: Callable[..., tuple[Array, ...]]
    draws: tuple[Draw, ...] = (normal, normal)
    parameters: dict[str, Any] = field(default_factory=dict)
    weighted_mean: bool = True
    exact: bool = False
    constant: float = 0.0
    unit: Callable[..., Array] | None = None
    ulps: float = 4
    warns: bool = False
    rows: bool = False
    same_shape: bool = False
    function: Callable[..., Array] | None = None

    @property
    def loss(self) -> Callable[..., Array]:
        """The function under test."""
        return self.function or getattr(cupy_losses, self.name)

    @property
    def of_torch(self) -> bool:
        """Whether torch has the loss."""
        return hasattr(F, self.name)

    @property
    def torch(self) -> Callable[..., Any]:
        """torch's function."""
        return getattr(F, self.name)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value:g}" for name, value in self.parameters.items())
        return f"{self.name}({arguments})"

    def draw(self, rng: np.random.Generator, shapes: Any, dtype: Any = np.float64) -> list[Array]:
        """Operands; `shapes` is one shape for all or one for each of the first two."""
        if isinstance(shapes, int):
            shapes = (shapes,)
        if all(isinstance(length, int) for length in shapes):
            shapes = [shapes] * len(self.draws)
        shapes = [*shapes, *[shapes[0]] * (len(self.draws) - len(shapes))]
        return [
            np.asarray(draw(rng, shape)).astype(dtype)
            for draw, shape in zip(self.draws, shapes, strict=True)
        ]

    def value(self, *operands: Array) -> Array:
        """The loss of each element."""
        terms = self.terms(*operands, **self.parameters)
        return np.asarray(sum(terms[1:], start=terms[0]))

    def scale(self, *operands: Array) -> Array:
        """The largest term of each element's loss."""
        wide = [operand.astype(np.longdouble) for operand in operands]
        terms = np.broadcast_arrays(*map(abs, self.terms(*wide, **self.parameters)))
        return np.maximum(np.max(terms, axis=0), self._constant(operands))

    def slopes(self, *operands: Array) -> list[Array]:
        """The derivative of each element's loss by each operand."""
        return [sum(parts[1:], start=parts[0]) for parts in self._slopes(*operands)]

    def slopes_and_scales(self, *operands: Array) -> tuple[list[Array], list[Array]]:
        """The same in the widest precision, and the largest term of each derivative."""
        constant = self._constant(operands)
        terms = self._slopes(*(operand.astype(np.longdouble) for operand in operands))
        slopes = [sum(parts[1:], start=parts[0]) for parts in terms]
        scales = [np.maximum(np.max([*map(abs, parts)], axis=0), constant) for parts in terms]
        return slopes, scales

    def _constant(self, operands: Sequence[Array]) -> Array:
        # Nothing is wider than float64, so that its units are those of the numbers inside.
        constant = max(self.constant, float(operands[0].dtype == np.float64))
        if self.unit is None:
            return constant
        return np.maximum(constant, self.unit(*(x.astype(np.longdouble) for x in operands)))

    def _slopes(self, *operands: Array) -> list[list[Array]]:
        step = np.longdouble(1e-100)
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        slopes = []
        for k, operand in enumerate(operands):
            moved = list(operands)
            moved[k] = operand.astype(np.clongdouble) + step * np.clongdouble(1j)
            terms = self.terms(*moved, **self.parameters)
            slopes.append([np.broadcast_to(np.imag(term) / step, shape) for term in terms])
        return slopes

    def reduce(
        self,
        each: Array,
        reduction: str,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Array:
        """The reduced loss, from the unweighted loss of each element."""
        if weight is not None:
            each = each * np.broadcast_to(weight, each.shape)
        if where is not None:
            each = np.where(where, each, 0)
        divisor = self.divisor(each, reduction, weight, where)
        if reduction == "none":
            return each.sum(axis=-1) / divisor if self.rows else each
        return np.asarray(each.sum(dtype=each.dtype) / divisor)

    def divisor(
        self,
        each: Array,
        reduction: str,
        weight: Array | None = None,
        where: Array | None = None,
    ) -> Array:
        """What the reduced loss and its gradient are divided by."""
        if reduction != "mean":
            return each.dtype.type(each.shape[-1] if self.rows else 1)
        shares = np.ones(each.shape, each.dtype)
        if weight is not None and self.weighted_mean:
            shares = shares * weight
        if where is not None:
            shares = np.where(where, shares, 0)
        return shares.sum(dtype=each.dtype)


def _of_difference(name: str, value: Any, weighted_mean: bool = True, **parameters: float) -> Case:
    """A loss of input - target."""

    def terms(x: Array, y: Array, **parameters: float) -> tuple[Array, ...]:
        return (value(x - y, **parameters),)

    return Case(
        name, terms, parameters=parameters, weighted_mean=weighted_mean, exact=True, warns=True
    )


SIMPLE = [
    _of_difference("l1_loss", magnitude),
    _of_difference("mse_loss", lambda d: d * d),
    _of_difference("smooth_l1_loss", lambda d, beta: _huber(d, beta) / beta, beta=1.0),
    _of_difference("smooth_l1_loss", lambda d, beta: _huber(d, beta) / beta, beta=0.3),
    _of_difference("smooth_l1_loss", lambda d, beta: magnitude(d), beta=0.0),
    _of_difference("huber_loss", _huber, False, delta=1.0),
    _of_difference("huber_loss", _huber, False, delta=0.7),
]


def case(name: str, terms: Any, draws: tuple[Draw, ...], **options: Any) -> Case:
    """A line of the table; what is no field of a case is a parameter of the loss."""
    fields = {field.name for field in dataclasses.fields(Case)}
    given = {k: v for k, v in options.items() if k in fields}
    parameters = {k: v for k, v in options.items() if k not in fields}
    return Case(name, terms, draws, parameters, **given)


_BCE: dict[str, Any] = {"weighted_mean": False, "same_shape": True}
# The factors of a focal loss have errors of their own: the largest terms are those of the cross
# entropy.
_FOCAL: dict[str, Any] = {
    "same_shape": True,
    "constant": 1.0,
    "unit": lambda x, y: sum(bce_terms(x, y)) + abs(x),
    "ulps": 6,
}


@cupy_losses.pointwise_loss
def cauchy_loss(input: Array, target: Array, c: float = 1.0) -> Array:
    """A loss of a user's: the Cauchy loss."""
    return np.log1p(((input - target) / c) ** 2)


def every_function(input: Array, target: Array, c: float = 1.5) -> Array:
    """A formula of all functions, with constants and parameters at both places."""
    x, y = abs(input) + 0.5, abs(target) / 4
    total = x * 0
    functions: list[Any] = sorted(CALLED, key=lambda function: str(function.__name__))
    for function in functions:
        if function.nin == 1:
            total = total + function(x) / 2 + function(y + 1)
        elif function is np.power:
            total = total + x**c + y**2
        else:
            total = total + function(x, y) + function(1.0, x) + function(y, 2) + function(c, x)
    return total


LOSSES = [
    *SIMPLE,
    case("log_cosh_loss", lambda x, y: (log_cosh(x - y),), (normal, normal), warns=True),
    case(
        "quantile_loss",
        lambda x, y, quantile: (pinball(y - x, quantile),),
        (normal, normal),
        quantile=0.7,
        warns=True,
    ),
    case(
        "charbonnier_loss",
        lambda x, y, eps: (np.sqrt((x - y) ** 2 + eps**2),),
        (normal, normal),
        eps=0.125,
        warns=True,
    ),
    case(
        "binary_cross_entropy",
        lambda x, y: (-y * np.log(x), -(1 - y) * np.log1p(-x)),
        (probability, probability),
        **_BCE,
    ),
    case("binary_cross_entropy_with_logits", bce_terms, (logit, probability), **_BCE),
    case(
        "sigmoid_focal_loss",
        lambda *a, **o: (focal(*a, **o),),
        (normal, probability),
        alpha=0.25,
        gamma=2.0,
        **_FOCAL,
    ),
    case(
        "sigmoid_focal_loss",
        lambda *a, **o: (focal(*a, **o),),
        (normal, probability),
        alpha=-1.0,
        gamma=1.5,
        **_FOCAL,
    ),
    case("soft_margin_loss", lambda x, y: (softplus(-y * x),), (logit, sign)),
    case(
        "multilabel_soft_margin_loss",
        bce_terms,
        (logit, probability),
        weighted_mean=False,
        rows=True,
    ),
    case("hinge_loss", lambda x, y: (clamp(1 - x * y),), (normal, sign), constant=1.0),
    case(
        "squared_hinge_loss",
        lambda x, y: (clamp(1 - x * y) ** 2,),
        (normal, sign),
        constant=1.0,
    ),
    case("hinge_embedding_loss", hinge_embedding, (positive, sign), margin=1.5, constant=1.0),
    case(
        "margin_ranking_loss",
        lambda a, b, y, margin: (clamp(-y * (a - b) + margin),),
        (normal, normal, sign),
        margin=0.25,
        constant=1.0,
    ),
    case(
        "kl_div",
        lambda x, y, log_target: (y * np.log(y), -y * x),
        (normal, positive),
        log_target=False,
        constant=1.0,
    ),
    case(
        "kl_div",
        lambda x, y, log_target: (np.exp(y) * y, -np.exp(y) * x),
        (normal, normal),
        log_target=True,
        constant=1.0,
    ),
    case("poisson_nll_loss", poisson_terms, (normal, count), full=True),
    case(
        "poisson_nll_loss",
        poisson_terms,
        (positive, positive),
        log_input=False,
        eps=0.125,
        constant=1.0,
    ),
    case("gaussian_nll_loss", gaussian_terms, (normal, normal, positive), full=True),
    case(
        "cauchy_loss",
        lambda x, y, c: (np.log1p(((x - y) / c) ** 2),),
        (normal, normal),
        c=1.5,
        function=cauchy_loss,
    ),
]

# Each formula once: the same kernels as above with other parameters are left out.
FORMULAS = [
    case for case in LOSSES if case.parameters not in ({"beta": 1.0}, {"beta": 0.0}, {"delta": 1.0})
]
OF_TORCH = [case for case in LOSSES if case.of_torch]


def ids(cases: Sequence[Case]) -> list[str]:
    """Names for parametrised tests."""
    return [str(case) for case in cases]

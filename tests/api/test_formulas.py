"""Formulas in Python, which are traced: on the host, in C++, and what cannot be traced."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import functools
import inspect
import io
import math
import multiprocessing
import pickle
import pydoc
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cupy_losses import (
    grad,
    grad_and_hess,
    huber_loss,
    mse_loss,
    pointwise_loss,
    row_loss,
    value_and_grad,
)
from cupy_losses._api import own
from cupy_losses._api.public import prepare_of
from cupy_losses._core import tracing
from cupy_losses._core.loss import Call, Loss
from cupy_losses._core.program import FUNCTIONS, RESERVED, Program, Step
from cupy_losses._host import dual

from .. import emulator
from ..emulator import Module, installed
from ..kernels import test_numbers
from ..tables.arrays import Library
from ..tools import levels, requirements
from . import test_custom

Array = Any
GAIN = 0.25


def difference(a: Any, b: Any) -> Any:
    """A helper."""
    return a - b


def tukey(input: Any, target: Any, c: float = 2.0) -> Any:
    d = difference(input, target)
    inside = (c**2 / 6) * (1 - (1 - (d / c) ** 2) ** 3)
    return np.where(np.abs(d) <= c, inside, c**2 / 6)


def tukey_of_torch(x: Any, y: Any, c: float = 2.0) -> Any:
    inside = c**2 / 6 * (1 - (1 - ((x - y) / c) ** 2) ** 3)
    return torch.where(abs(x - y) <= c, inside, c**2 / 6)


def focal(input: Any, target: Any, alpha: float = 0.25, gamma: float = 2.0) -> Any:
    """A binary cross entropy of logits, with less weight on what is likely."""
    p = 0.5 * (1 + np.tanh(input / 2))
    entropy = np.logaddexp(0, input) - target * input
    miss = p * (1 - target) + (1 - p) * target
    balance = alpha * target + (1 - alpha) * (1 - target)
    return balance * miss**gamma * entropy


def focal_of_torch(x: Any, y: Any, alpha: float = 0.25, gamma: float = 2.0) -> Any:
    p = torch.sigmoid(x)
    entropy = -y * torch.nn.functional.logsigmoid(x) - (1 - y) * torch.nn.functional.logsigmoid(-x)
    miss = p * (1 - y) + (1 - p) * y
    return (alpha * y + (1 - alpha) * (1 - y)) * miss**gamma * entropy


def asymmetric(input: Any, target: Any, over: float = 2.0, under: float = 0.5) -> Any:
    d = input - target
    return np.where((d > 0) & ~(d > 1), over * d**2, under * abs(d)) + GAIN * np.square(d)


def asymmetric_of_torch(x: Any, y: Any, over: float = 2.0, under: float = 0.5) -> Any:
    d = x - y
    return torch.where((d > 0) & (d <= 1), over * d * d, under * abs(d)) + 0.25 * d * d


def several(a: Any, DEVICE: Any, v1: Any, max: float = 0.75, *, T: float = 3.0) -> Any:
    """Names that mean something else in C++."""
    x = a / T + np.minimum(DEVICE, max)
    total: Any = 0
    for k in range(3):
        total = total + x**k * v1
    return total


def several_of_torch(a: Any, b: Any, c: Any, max: float = 0.75, T: float = 3.0) -> Any:
    v = a / T + torch.clamp(b, max=max)
    return c + v * c + v * v * c


@dataclass(frozen=True)
class Written:
    """A formula, the same in torch, and other parameters than its defaults."""

    name: str
    formula: Callable[..., Any]
    of_torch: Callable[..., Any]
    parameters: Any = None
    drawn: Any = None

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def loss(self) -> Any:
        return pointwise_loss(self.name, self.formula)

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.parameters or {})

    @functools.cached_property
    def operands(self) -> list[Array]:
        """Numbers on all sides of the formulas' kinks, and on none."""
        if self.drawn is not None:
            return list(self.drawn)
        rng = np.random.default_rng(3)
        kinds = inspect.signature(self.formula).parameters.values()
        return [rng.normal(0, 1.5, 40) for kind in kinds if kind.default is kind.empty]

    @property
    def call(self) -> Call:
        return prepare_of(self.loss)(*self.operands, reduction="sum", **self.given)[0]

    def expected(self) -> list[Array]:
        """The value, the first derivatives, and those of the derivative along (1, 2, ...)."""
        x = [torch.tensor(operand, requires_grad=True) for operand in self.operands]
        value = self.of_torch(*x, **self.given)
        options: Any = {"create_graph": True, "materialize_grads": True}
        firsts = torch.autograd.grad(value.sum(), x, **options)
        along: Any = sum((k + 1) * first for k, first in enumerate(firsts))
        seconds: Any = [torch.zeros_like(first) for first in firsts]
        if along.requires_grad:
            seconds = torch.autograd.grad(along.sum(), x, materialize_grads=True)
        return [column.detach().numpy() for column in (value, *firsts, *seconds)]


_RNG = np.random.default_rng(0)
_LOGITS = np.stack([3 * _RNG.standard_normal(40), _RNG.random(40)])

TABLE = [
    Written(
        "cauchy",
        lambda input, target, c=1.0: np.log1p(((input - target) / c) ** 2),
        lambda x, y, c: torch.log1p((x - y) ** 2 / c**2),
        {"c": 0.7},
    ),
    Written(
        "geman_mcclure",
        lambda input, target: (input - target) ** 2 / ((input - target) ** 2 + 1),
        lambda x, y: 1 - 1 / (1 + (x - y) ** 2),
    ),
    Written(
        "welsch",
        lambda input, target, c=2.0: c**2 / 2 * -np.expm1(-(((input - target) / c) ** 2)),
        lambda x, y, c: c * c / 2 * (1 - torch.exp(-((x - y) ** 2) / c**2)),
        {"c": 1.5},
    ),
    Written(
        "log_cosh",
        lambda input, target: np.logaddexp(input - target, target - input) - math.log(2),
        lambda x, y: torch.log(torch.cosh(x - y)),
    ),
    Written(
        "charbonnier",
        lambda input, target, eps=1e-3: np.hypot(input - target, eps),
        lambda x, y, eps: torch.sqrt((x - y) ** 2 + eps**2),
        {"eps": 0.5},
    ),
    Written(
        "pinball",
        lambda input, target, q=0.5: np.where(target > input, q, q - 1) * (target - input),
        lambda x, y, q: torch.maximum(q * (y - x), (q - 1) * (y - x)),
        {"q": 0.9},
    ),
    Written("tukey", tukey, tukey_of_torch),
    Written("focal", focal, focal_of_torch, {"gamma": 1.5}, _LOGITS),
    Written("asymmetric", asymmetric, asymmetric_of_torch, {"over": 3}),
    Written("several", several, several_of_torch, {"T": 2.0}),
    Written(
        "powers",
        lambda x, y, p=2.5: (
            x**5 - x**-3 + abs(y) ** p - np.sqrt(y * y) ** 0.3 + 2**p * (1 + x * x) ** 0.5 + p**3
        ),
        lambda x, y, p=2.5: (
            x**5 - x**-3 + abs(y) ** p - abs(y) ** 0.3 + 2**p * torch.sqrt(1 + x * x) + p**3
        ),
    ),
    Written(
        "functions",
        lambda x, y: (
            np.sin(x) * np.cos(y)
            + np.sinh(x) / np.cosh(x)
            + np.arctan(y) * np.reciprocal(2 + np.tanh(x))
            - np.log(np.fabs(x) + 1) * np.exp(-y)
            + np.sign(y) * x
            + np.clip(x, -0.5, 1) * y
            + np.maximum(x, y)
        ),
        lambda x, y: (
            torch.sin(x) * torch.cos(y)
            + torch.tanh(x)
            + torch.atan(y) / (2 + torch.tanh(x))
            - torch.log(abs(x) + 1) * torch.exp(-y)
            + torch.sign(y) * x
            + torch.clamp(x, -0.5, 1) * y
            + torch.maximum(x, y)
        ),
    ),
    Written(
        "conditions",
        lambda x, y: (
            (x > 0) * y
            + np.where(np.logical_xor(x > 1, y > 1) | (x < -1), x * y, -y)
            + np.where(np.isnan(x) | np.isinf(y) | ~np.isfinite(x), 1e30, 0.1 * x)
            + np.where((x >= 0) & ((y <= 0) | (x != y)) & (x != 0.25), True, x > -1)
        ),
        lambda x, y: (
            torch.where(x > 0, y, 0.0)
            + torch.where(((x > 1) ^ (y > 1)) | (x < -1), x * y, -y)
            + 0.1 * x
            + torch.where(x > -1, 1.0, 0.0)
        ),
    ),
    Written(
        "order",
        lambda x, y, a=3.0: (
            x - (y - (a - x)) - -y / (x / (y * a)) - (x + (y + 1e-7)) * np.negative(-a)
        ),
        lambda x, y, a=3.0: x - (y - (a - x)) + y / (x / (y * a)) - (x + (y + 1e-7)) * a,
    ),
    Written(
        "of_parameters",
        lambda x, c=2.0: np.exp(-c) + abs(-c) + np.maximum(c, 1) + np.where(c > 1, c, 3),
        lambda x, c=2.0: 0 * x + math.exp(-c) + 3 * c,
    ),
    Written("constant", lambda x, y: 0.1, lambda x, y: 0.1 + 0 * x * y),
]

REALS = levels.first(["double", "float"])


def kernel(written: Written, real: str) -> str:
    """The kernel of tests/kernels/numbers.cu that evaluates a formula."""
    return test_numbers.kernel_name(written.call, real, len(written.operands))


def formula_of(loss: Any) -> Loss:
    """The loss that a public function computes."""
    names = inspect.signature(loss).parameters.values()
    ones = [np.ones(1) for name in names if name.default is name.empty]
    return prepare_of(loss)(*ones)[0].loss


def program_of(loss: Any) -> Program:
    """What its formula was traced to."""
    formula = formula_of(loss).formula
    assert isinstance(formula, Program)
    return formula


def defaults_of(loss: Any) -> dict[str, float]:
    """The defaults of its parameters."""
    arguments = inspect.signature(loss).parameters
    return {name: arguments[name].default for name in formula_of(loss).parameters}


def source() -> str:
    """All formulas of the table in C++, behind the kernels."""
    return "\n".join([test_numbers.source(), *(formula_of(w.loss).source for w in TABLE)])


@functools.cache
def kernels(real: str) -> Module:
    """The kernels of the table in one arithmetic type."""
    emulator.require()
    return Module(source(), [kernel(written, real) for written in TABLE])


@pytest.mark.parametrize("written", TABLE, ids=str)
def test_against_torch(written: Written) -> None:
    """Values and gradients on the host."""
    value, *slopes = written.expected()[: 1 + len(written.operands)]
    each = written.loss(*written.operands, reduction="none", **written.given)
    np.testing.assert_allclose(each, value, rtol=1e-12, atol=1e-12)
    argnums = range(len(slopes))
    gradients = grad(written.loss, argnums)(*written.operands, reduction="sum", **written.given)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=1e-11, atol=1e-11)


# A text cannot have all names that a function can.
OF_TEXT = [w for w in TABLE if RESERVED.isdisjoint(inspect.signature(w.formula).parameters)]


@pytest.mark.parametrize("written", OF_TEXT, ids=str)
def test_as_the_formula_of_the_host(written: Written) -> None:
    """The function as it is, beside a text in C++, computes what it is traced to."""
    loss = formula_of(written.loss)
    of_text = pointwise_loss(
        "text",
        written.loss.source,
        operands=loss.operands,
        parameters=defaults_of(written.loss),
        numpy=written.formula,
    )
    argnums = range(len(written.operands))
    options: dict[str, Any] = {"reduction": "sum"}
    got = value_and_grad(of_text, argnums)(*written.operands, **options, **written.given)
    expected = value_and_grad(written.loss, argnums)(*written.operands, **options, **written.given)
    for ours, theirs in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)


def test_functions_have_derivatives_on_the_host() -> None:
    """NumPy's functions are the same in a formula that is traced and in dual numbers."""
    rules = set(dual._RULES)
    bitwise = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert}
    assert rules == (FUNCTIONS | {*tracing._MADE_OF_OTHERS}) - bitwise - {np.where}


@pytest.mark.parametrize("real", REALS)
def test_in_cpp(real: str) -> None:
    """Values, first and second derivatives on the emulator, against the host's and torch's."""
    tolerance = 1e-11 if real == "double" else 2e-5
    for written in TABLE:
        x = np.stack(written.operands).astype("f4" if real == "float" else "f8").astype("f8")
        got, host = test_numbers.both_backends(kernels(real), real, written.call, x)
        expected = dataclasses.replace(written, drawn=x).expected()
        for column, ours, theirs in zip(got, host, expected, strict=True):
            scale = float(abs(ours).max()) + 0.1
            np.testing.assert_allclose(
                column, ours, rtol=tolerance, atol=tolerance * scale, err_msg=written.name
            )
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-11, atol=1e-11 * scale, err_msg=written.name
            )


def test_compiles() -> None:
    """With NVRTC, all of the table."""
    nvrtc = requirements.nvrtc()
    program = nvrtc.createProgram(source(), "p.cu", (), ())
    for written in TABLE:
        nvrtc.addNameExpression(program, kernel(written, "float"))
    try:
        nvrtc.compileProgram(program, requirements.nvrtc_options(90))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))


def test_every_function_is_in_the_table() -> None:
    used: set[Any] = set()
    for written in TABLE:
        used |= {v.function for v in program_of(written.loss).values if isinstance(v, Step)}
    assert used == FUNCTIONS


@pytest.mark.parametrize("real", REALS)
def test_special_values(real: str) -> None:
    """The same values of infinities, NaN and zeros on the emulator and on the host."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])
    for written in TABLE:
        count = len(written.operands)
        x = np.stack([pair.ravel() for pair in np.meshgrid(*[special] * count)])
        got, host = test_numbers.both_backends(kernels(real), real, written.call, x)
        np.testing.assert_allclose(
            got[0], host[0].astype("f4" if real == "float" else "f8"), rtol=2e-6, atol=1e-6
        )


def quadratic(c: float = 1.0) -> Any:
    """A loss with a constant from around its formula."""
    return pointwise_loss("quadratic", lambda x, y: c * (x - y) ** 2)


def test_source() -> None:
    """One variable for what is used twice, and for what is long; the rest in place."""
    assert next(w for w in TABLE if w.name == "tukey").loss.source == (
        "auto v1 = input - target;\n"
        "auto v2 = c * c / 6.0;\n"
        "auto v3 = v1 / c;\n"
        "auto v4 = 1.0 - v3 * v3;\n"
        "return abs(v1) <= c ? v2 * (1.0 - v4 * v4 * v4) : v2;"
    )
    assert quadratic(0.1).source == "auto v1 = x - y;\nreturn 0.1 * (v1 * v1);"
    assert test_custom.square.source == "(input - target) * (input - target)"

    def unused(x: Any) -> Any:
        np.exp(x)
        return x + 1

    assert pointwise_loss("unused", unused).source == "x + 1.0"


def test_a_value_that_is_used_often_is_computed_once() -> None:
    def tower(x: Any) -> Any:
        for _ in range(200):
            x = np.tanh(x + x * x)
        return x

    loss = pointwise_loss("tower", tower)
    assert len(loss.source.splitlines()) == 200
    assert max(map(len, loss.source.splitlines())) < 60
    assert 0 < loss(np.ones(3)) < 1
    # As soon as a line would be long, it has a name too.
    long = pointwise_loss("long", lambda x: functools.reduce(lambda a, k: a + x * k, range(500)))
    assert max(map(len, long.source.splitlines())) < 100
    assert long(np.ones(3)) == sum(range(500))


def test_whole_powers_are_few_multiplications() -> None:
    def raised(power: int) -> Any:
        return pointwise_loss("power", lambda x: x**power)

    for power in range(-18, 19):
        loss = raised(power)
        assert loss(np.full(3, 1.25)) == pytest.approx(1.25**power, rel=1e-14)
        few = 1 <= abs(power) <= 16
        assert ("pow" in loss.source) != few
        assert loss.source.count("*") <= 6


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("power", [-1, -2, -3, -4])
def test_negative_powers_at_zeros_and_infinities(power: int, real: str) -> None:
    """Values and derivatives as torch has them, but for second ones at zeros, which are NaN."""
    x = np.array([[np.inf, -np.inf, 2.0, 0.0, -0.0]])
    formula = Written("inverse", lambda x: x**power, lambda x: x**power, drawn=x)
    compiled = Module(
        "\n".join([test_numbers.source(), formula_of(formula.loss).source]),
        [kernel(formula, real)],
    )
    got, host = test_numbers.both_backends(compiled, real, formula.call, x)
    counts = (5, 5, 3)
    for n, ours, theirs, expected in zip(counts, got, host, formula.expected(), strict=True):
        np.testing.assert_array_equal(ours[:n], expected[:n])
        np.testing.assert_array_equal(theirs[:n], expected[:n])


CONSTANTS = [
    (0.1, "0.1"),
    (1e-300, "1e-300"),
    (5, "5.0"),
    (2**60, "1.152921504606847e+18"),
    (-0.5, "-0.5"),
    (-0.0, "-0.0"),
    (True, "1.0"),
    (np.float32(0.1), "0.10000000149011612"),
    (np.int8(-3), "-3.0"),
    (np.array(2.5), "2.5"),
    (np.pi, "3.141592653589793"),
    (math.inf, "Real<T>(__int_as_float(0x7f800000))"),
    (-math.inf, "Real<T>(__int_as_float(0xff800000))"),
    (math.nan, "Real<T>(__int_as_float(0x7fffffff))"),
]


@pytest.mark.parametrize(("constant", "text"), CONSTANTS, ids=[text for _, text in CONSTANTS])
def test_constants(constant: Any, text: str) -> None:
    loss = pointwise_loss("mine", lambda x, y: x + constant - 0.0 * y)
    assert loss.source == f"x + {text} - 0.0 * y"
    assert next(v for v in program_of(loss).values if isinstance(v, float)).hex() == (
        float(constant).hex()
    )
    result = loss(np.ones(2), np.ones(2))
    np.testing.assert_array_equal(result, 1 + float(constant))


def test_assignments_with_an_operation() -> None:
    def steps(x: Any) -> Any:
        before = x
        x -= 1
        x *= x
        x **= 0.5
        x /= 2
        return x + before

    assert pointwise_loss("steps", steps).source == (
        "auto v1 = x - 1.0;\nreturn sqrt(v1 * v1) / 2.0 + x;"
    )


def test_equal_formulas_are_one_loss() -> None:
    """However they are written; not if a constant, a name or an order of operations differs."""
    made = [
        quadratic(),
        pointwise_loss("quadratic", lambda x, y: 1 * np.square(x - y)),
        pointwise_loss("quadratic", lambda x, y: 1.0 * ((x - y) * (x - y))),
    ]
    others = [
        quadratic(2.0),
        quadratic(-0.0),
        quadratic(0.0),
        pointwise_loss("quadratic", lambda x, y: (x - y) ** 2 * 1),
        pointwise_loss("quadratic", lambda x, z: 1 * (x - z) ** 2),
        pointwise_loss("quadratic", lambda x, y, c=1.0: 1 * (x - y) ** 2),
        pointwise_loss("another", lambda x, y: 1 * (x - y) ** 2),
    ]
    assert len({formula_of(loss) for loss in made}) == 1
    assert len({formula_of(loss) for loss in made + others}) == 1 + len(others)


def test_what_is_around_a_formula_is_read_once() -> None:
    scale = [2.0]
    loss = pointwise_loss("mine", lambda x: scale[0] * x)
    scale[0] = 3.0
    assert loss(np.ones(3)) == 2.0


@pointwise_loss
def module_level(input: Any, target: Any, c: float = 1.0) -> Any:
    """A loss that pickle finds by its name."""
    return np.abs(input - target) / c


named = pointwise_loss("named", lambda input, target: input * target)


@pointwise_loss(name="renamed_loss")
def renamed(input: Any, target: Any, c: float = 2.0) -> Any:
    """A loss whose name is not that of its function."""
    return c * np.square(input - target)


@row_loss(name="renamed_row_loss")
def renamed_row(input: Any, target: Any) -> Any:
    """A loss over rows whose name is not that of its function."""
    return np.mean(input * target)


def of_text(numpy: Any) -> Any:
    text = "auto d = (input - target) / c; return d * d;"
    return pointwise_loss("of_text", text, parameters={"c": 2.0}, numpy=numpy)


def squared(input: Any, target: Any, c: float) -> Any:
    """A formula that pickle finds by its name."""
    return ((input - target) / c) ** 2


def test_functions_and_losses_are_pickled() -> None:
    for function in (module_level, named, renamed, renamed_row):
        assert pickle.loads(pickle.dumps(function)) is function
    loss = formula_of(quadratic(3.0))
    same = pickle.loads(pickle.dumps(loss))
    assert same == loss
    assert same is not loss
    assert same.formula is not None
    assert same.formula(np.array(3.0), np.array(1.0)) == 12.0


def pickled(loss: Any) -> Any:
    return pickle.loads(pickle.dumps(loss))


def elastic(input: Any, target: Any) -> Any:
    """A function of losses."""
    return mse_loss(input, target) + 0.5 * module_level(input, target)


LOSSES = mse_loss, module_level, quadratic(3.0), functools.partial(module_level, c=2.0)


@pytest.mark.parametrize(
    "made",
    [
        *(
            transform(loss)
            for transform in (grad, value_and_grad, grad_and_hess)
            for loss in LOSSES
        ),
        *(transform(elastic) for transform in (grad, value_and_grad)),
    ],
)
def test_what_transforms_make_is_pickled(made: Any) -> None:
    x, y = np.array([1.0, 4.0]), np.zeros(2)
    np.testing.assert_array_equal(np.hstack(pickled(made)(x, y)), np.hstack(made(x, y)))


def saved_by_torch(loss: Any) -> Any:
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [pickled, saved_by_torch])
@pytest.mark.parametrize("made", [lambda: quadratic(3.0), lambda: of_text(squared)])
def test_losses_that_are_in_no_module_are_pickled_by_their_formula(made: Any, copied: Any) -> None:
    loss = made()
    other = copied(loss)
    assert other is not loss
    x, y = np.array([1.0, 4.0]), np.zeros(2)
    assert value_and_grad(other)(x, y)[1].tolist() == value_and_grad(loss)(x, y)[1].tolist()
    assert formula_of(other) == formula_of(loss)
    assert inspect.signature(other) == inspect.signature(loss)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "source"):
        assert getattr(other, name) == getattr(loss, name)


def test_losses_are_copied_as_functions_are() -> None:
    for loss in (module_level, quadratic(3.0), of_text(lambda input, target, c: input - target)):
        assert copy.copy(loss) is loss
        assert copy.deepcopy({"loss": loss})["loss"] is loss


def test_a_lambda_in_numpy_cannot_be_pickled() -> None:
    loss = of_text(lambda input, target, c: ((input - target) / c) ** 2)
    message = "of_text cannot be pickled, as its numpy= is a lambda.* at the top of a module"
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps(loss)


@pytest.mark.exhaustive  # the process imports torch, as this module does
def test_losses_in_another_process() -> None:
    """One by its place, one by its formula, in a process that is spawned."""
    context = multiprocessing.get_context("spawn")
    x, y = np.array([3.0]), np.zeros(1)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as processes:
        for loss in (module_level, quadratic(3.0)):
            assert processes.submit(loss, x, y).result() == loss(x, y)


def test_signature_and_docstring() -> None:
    assert [*inspect.signature(module_level).parameters] == [
        *("input", "target", "reduction", "scale", "weight", "where", "c")
    ]
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "A loss that pickle finds by its name."
    assert "Formula: input * target" in (named.__doc__ or "")
    first, rest = pydoc.plain(pydoc.render_doc(module_level)).split("\n\n", 1)[1].split("\n", 1)
    assert first == f"module_level{inspect.signature(module_level)}"
    assert rest.strip() == module_level.__doc__
    partial = functools.partial(tukey, c=3)
    assert inspect.signature(pointwise_loss("tukey", partial)).parameters["c"].default == 3.0
    ones = np.ones(3)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 .* c are passed by"):
        module_level(ones, ones, 2.0)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="c must be a real number"):
        module_level(ones, ones, c="2")  # type: ignore[call-overload]
    assert module_level(input=ones, target=0 * ones, c=4) == 0.25


ESCAPED: list[Any] = []


@pointwise_loss
def escaping(x: Any) -> Any:
    ESCAPED.append(x)
    return x


@pytest.mark.parametrize(
    ("formula", "error", "message"),
    [
        (lambda *x: x, TypeError, r"arrays, by position, and numbers, .* got the argument \*x"),
        (lambda x, **y: x, TypeError, r"got the argument \*\*y"),
        (lambda x, *, y: x, TypeError, "got the argument y"),
        (lambda: 1.0, TypeError, "at least one array, which is an argument without a default"),
        (lambda c=1.0: c, TypeError, "at least one array"),
        (lambda x, y=True: x, TypeError, "got True: .* define a loss for each of its values"),
        (lambda x, c="1": x, TypeError, "mine: the default of c must be a real number, got '1'"),
        (lambda x, c=None: x, TypeError, "c must be a real number, got NoneType"),
        (lambda x, weight: x, ValueError, "'weight' is taken"),
        (lambda x, reduction="mean": x, ValueError, "an argument that all losses have: choose an"),
        (mse_loss, TypeError, r"of numbers, and mse_loss is a loss of arrays already: call it as"),
        (escaping, TypeError, "escaping is a loss of arrays already: .*, or write its formula$"),
        (functools.partial(huber_loss, delta=2.0), TypeError, "and huber_loss is a loss of arr"),
        (lambda x, self=1.0: x, ValueError, "'self' is taken"),
        (lambda x, argnum=1.0: x, ValueError, "'argnum' is taken"),
        (lambda x, _c=1.0: x, ValueError, "that begins with a letter, got '_c'"),
        (np.exp, TypeError, r"a ufunc has no names .*: write lambda input: np.exp\(input\)$"),
        (np.hypot, TypeError, r"write lambda input, target: np.hypot\(input, target\)$"),
        (lambda x, ä=1.0: x, ValueError, "identifier of ASCII letters .* got 'ä'"),
    ],
)
def test_signatures_of_no_formula(formula: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        pointwise_loss("mine", formula)


def squares(x: Any, y: Any, c: float = 1.0) -> Any:
    """A formula of rows."""
    return np.sum((x - y) ** 2) / c


def test_forms_do_not_mix() -> None:
    for function in (lambda x: x, functools.partial(tukey, c=3.0)):
        message = r"has no name: pass one first, pointwise_loss\(name, function\)"
        with pytest.raises(ValueError, match=message):
            pointwise_loss(function)
    options: dict[str, Any]
    for options in ({"operands": ["x"]}, {"parameters": {"c": 1.0}}, {"numpy": tukey}):
        with pytest.raises(TypeError, match="go with a formula in C\\+\\+"):
            pointwise_loss("tukey", tukey, **options)
        with pytest.raises(TypeError, match="go with a formula in C\\+\\+"):
            pointwise_loss(**options)


@pytest.mark.parametrize(("make", "function"), [(pointwise_loss, tukey), (row_loss, squares)])
def test_decorators_with_options(make: Any, function: Any) -> None:
    """They make what the plain decorator makes, of the name that is given."""
    plain = make(function)
    x, y = np.random.default_rng(0).normal(0, 1, (2, 3, 5))
    for loss in (make()(function), make(check=False)(function), make(function, check=False)):
        assert loss(x, y, c=3.0) == plain(x, y, c=3.0)
        assert formula_of(loss) == formula_of(plain)
        assert inspect.signature(loss) == inspect.signature(plain)
        for name in ("__name__", "__qualname__", "__module__", "__doc__", "source"):
            assert getattr(loss, name) == getattr(plain, name)
    loss = make(name="other")(function)
    assert formula_of(loss) == formula_of(make("other")(function))
    assert loss(x, y) == plain(x, y)
    assert (loss.__name__, loss.__qualname__) == ("other", function.__name__)
    assert (loss.__module__, loss.__doc__) == (plain.__module__, plain.__doc__)
    part = make(name="part")(functools.partial(function, c=3.0))
    assert (part.__qualname__, part(x, y)) == ("part", plain(x, y, c=3.0))
    assert "Formula: " in part.__doc__


@pytest.mark.parametrize("make", [pointwise_loss, row_loss])
def test_mistakes_of_decorators_with_options(make: Any) -> None:
    """Those in the options are seen before a function comes."""
    with pytest.raises(TypeError, match="check must be True or False, got 1"):
        make(check=1)
    with pytest.raises(TypeError, match="name must be a string, got int"):
        make(name=3)
    with pytest.raises(TypeError, match="name must be a string, got NoneType"):
        make(formula=np.sum)
    with pytest.raises(TypeError, match="what is decorated must be a function, got str"):
        make(check=True)("x * x")
    with pytest.raises(ValueError, match="identifier of ASCII letters .* got 'no name'"):
        make(name="no name")(squares)


@pytest.mark.parametrize(("make", "function"), [(pointwise_loss, tukey), (row_loss, squares)])
def test_a_decorator_compiles(make: Any, function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `check`, where the function is decorated."""
    compiled: list[Call] = []
    monkeypatch.setattr(own, "compile_once", compiled.append)
    decorator = make(check=True)
    assert not compiled
    loss = decorator(function)
    assert [call.loss for call in compiled] == [formula_of(loss)]


def branch(x: Any) -> Any:
    return x if x > 0 else -x


def chained(x: Any) -> Any:
    return np.where(0 < x < 1, x, 0.0)


def caught(x: Any) -> Any:
    try:
        return x if x > 0 else 2 * x
    except TypeError:
        return x


def in_a_helper(x: Any) -> Any:
    return 2 * branch(x)


# What cannot be traced, the line that is shown where it is not that of the formula, the message.
UNTRACEABLE: list[tuple[Any, str, str]] = [
    (branch, "return x if x > 0 else -x", r"no truth .*: write np.where\(condition, a, b\) for a"),
    (chained, "return np.where(0 < x < 1, x, 0.0)", "&, | and ~ with parentheses for and, or, not"),
    (in_a_helper, "return x if x > 0 else -x", "no truth"),
    (caught, "return x if x > 0 else 2 * x", "no truth"),
    (lambda x: max(x, 0), "", "np.maximum and np.minimum for max and min"),
    (lambda x: x and 1, "", "no truth"),
    (lambda x: math.log(x), "", r"is no number .*: write NumPy's function, np.log\(x\) for math"),
    (lambda x: float(x), "", r"no float\(x\) or int\(x\)"),
    (lambda x: round(x), "", "is no number"),
    (lambda x: torch.log(x), "", "torch's log takes tensors, .*: write np.log, where NumPy has it"),
    (lambda x: torch.ones(3) * x, "", "must be a number of Python or NumPy, got Tensor: an array"),
    (lambda x: x * np.ones(3), "", r"got an array of shape \(3,\): an array is to be an operand"),
    (lambda x: x * [1.0], "", "a constant must be a number of Python or NumPy, got list"),
    (lambda x: x + 1j, "", "got complex"),
    (lambda x: x * 10**400, "", "must be in the range of float64, got an integer of 1329 bits"),
    (lambda x: x ** (10**400), "", "must be in the range of float64"),
    (lambda x: np.where(x > 0, -(10**400), x), "", "must be in the range of float64"),
    (lambda x: 10**400, "none", "must be in the range of float64"),
    (lambda x: "a" + x, "", "a constant must be a number of Python or NumPy, got str"),
    (lambda x: np.sum(x), "", "np.sum is over several elements, .*: leave it to reduction= of"),
    (lambda x: x.mean(), "", r"\.mean\(\) is over several elements, and a formula is of one"),
    (lambda x: np.linalg.norm(x), "", "np.linalg.norm is over several elements"),
    (lambda x: np.add.reduce(x), "", "np.add.reduce is over several elements"),
    (lambda x: sum(x), "", "a formula is of one element, which has no length"),
    (lambda x: x[0], "", "a formula is of one element"),
    (lambda x: len(x), "", "a formula is of one element"),
    (lambda x: x.shape, "", "a formula is of one element, .*: it has no .shape"),
    (lambda x: x.exp(), "", "a value of a formula has no methods: write np.exp"),
    (lambda x: x.clip(0, 1), "", "a value of a formula has no methods: write np.clip"),
    (lambda x: np.asarray(x) + 1, "", r"leave out np.asarray\(x\)"),
    (lambda x: x**x, "", r"exponent .* constant or a parameter: write np.exp\(b \* np.log\(a\)\)"),
    (lambda x: 2**x, "", "the exponent of a power must be a constant or a parameter"),
    (lambda x: np.power(2, x), "", "the exponent of a power must be a constant or a parameter"),
    (lambda x: pow(x, 2, 3), "", r"pow takes no third argument .*: write x \*\* n$"),
    (lambda x: x % 2, "", "% is no function of a formula: make it of Python's operators and of"),
    (lambda x: x // 2, "", "// is no function of a formula"),
    (lambda x: x @ x, "", "@ is no function of a formula"),
    (lambda x: torch.sigmoid(x), "", r"takes tensors, .*: write 0.5 \* \(1 \+ np.tanh\(x / 2\)\)$"),
    (
        lambda x: torch.nn.functional.softplus(x),
        "",
        r"torch's softplus takes tensors, .*: write np.logaddexp\(0, x\)$",
    ),
    (
        lambda x: np.tan(x),
        "",
        r"np.tan is no function .*: write np.sin\(x\) / np.cos\(x\)$",
    ),
    (lambda x: np.zeros_like(x), "", "np.zeros_like is no function of a formula: write 0.0$"),
    (lambda x: np.floor(x), "", "np.floor is no function .* absolute, arctan, .*, as a text$"),
    (lambda x: np.exp(x, out=x), "", "np.exp takes no out= in a formula: leave it out"),
    (lambda x: np.clip(x, 0, 1, out=x), "", "np.clip takes no out= in a formula"),
    (lambda x: np.clip(x, 0, 1, x), "", "np.clip takes no out= in a formula"),
    (lambda x: np.clip(x, 0, 1, max=2), "", "np.clip got a bound twice: leave out max="),
    (lambda x: np.clip(x, a_min=0, min=-1), "", "np.clip got a bound twice: leave out min="),
    (
        lambda x: np.clip(1, x, 2),
        "",
        r"np.clip must be .*: write np.minimum\(np.maximum\(x, l",
    ),
    (lambda x: np.where(x > 0), "", "np.where takes three arguments here: condition, a, b"),
    (lambda x: np.where(np.ones(2) > 0, x, 0), "", r"got an array of shape \(2,\)"),
    (lambda x: x & 1, "", r"& is for comparisons, in parentheses: write \(a > 0\) & \(b > 0\)"),
    (lambda x: ~x, "", r"~ is for comparisons, in parentheses: write ~\(a > 0\)"),
    (lambda x: (x > 0) + (x > 1), "", r"write & or \|, or np.where\(condition, 1.0, 0.0\)"),
    (lambda x: -(x > 0), "", "a comparison is no number where no number meets it"),
    (lambda x: mse_loss(x, x), "", "got Value, of a formula, which calls no loss: write out what"),
    (lambda x: np.exp(*[]), "", "; a formula is made of Python's operators and NumPy's funct"),
    (lambda x: ESCAPED[0] + x, "", "this value is one of another formula"),
    (lambda x: np.where(ESCAPED[0] > 0, 1, x), "", "this value is one of another formula"),
    (lambda x: None, "none", "it must return one number, got None$"),
    (lambda x: (x, x), "none", "it must return one number, got tuple$"),
    (lambda x: np.ones(3), "none", "it must return one number, got ndarray$"),
]


@pytest.mark.parametrize(("formula", "shown", "message"), UNTRACEABLE)
def test_what_cannot_be_traced(formula: Any, shown: str, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        pointwise_loss("mine", formula)
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("the formula of mine cannot be traced")
    assert re.search(message, first), first
    # The error that is behind it says the same, unless it is Python's own.
    cause = raised.value.__cause__
    assert cause is None or isinstance(cause, AttributeError) or "is made of" in first
    if shown == "none":
        assert not rest
        return
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = formula.__code__.co_firstlineno
    if shown:
        number = next(k for k, line in enumerate(lines, 1) if line.strip() == shown)
    assert f", line {number} of test_formulas.py: " in first
    assert rest == [f"    {lines[number - 1].strip()}"]


def test_a_value_of_a_formula_is_shown() -> None:
    shown = []

    def squared(x: Any) -> Any:
        shown.append(repr(x))
        return x * x

    pointwise_loss("mine", squared)
    assert shown == ["<a value of a formula that is being traced>"]


def installed_function(text: str) -> Any:
    """A function of a library that is installed."""
    found: dict[str, Any] = {}
    exec(compile(f"\n\n{text}", "/lib/site-packages/library.py", "exec"), found)
    return found["function"]


def test_lines_of_installed_libraries() -> None:
    """The line is that of the user who calls a library, or of a library that has the formula."""
    function = installed_function("def function(x): return x + None")
    with pytest.raises(TypeError, match="line 3 of library.py: a constant must be a number of"):
        pointwise_loss("mine", function)
    with pytest.raises(TypeError, match=r"of test_formulas.py: .*\n    pointwise_loss\("):
        pointwise_loss("mine", lambda x: function(x))
    with pytest.raises(TypeError, match=r"^the formula of mine cannot be traced: .* is no number"):
        pointwise_loss("mine", math.sqrt)


def test_other_errors_are_those_of_the_formula() -> None:
    with pytest.raises(NameError, match="undefined"):
        pointwise_loss("mine", lambda x: undefined)  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(AttributeError, match="nothing"):
        pointwise_loss("mine", lambda x: math.nothing)  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        pointwise_loss("mine", lambda x: x * (1 / 0))


def test_with_all_arguments(library: Library) -> None:
    """Weight, mask, scale and reductions, against the built-in loss of the same formula."""
    rng = np.random.default_rng(0)
    input, target, weight = (library.array(rng.random((3, 50)).astype("f4")) for _ in range(3))
    where = library.array(rng.random((3, 50)) < 0.5)
    loss = pointwise_loss("own", lambda input, target: (input - target) ** 2)
    for options in (
        {},
        {"reduction": "sum", "scale": 0.5},
        {"weight": weight, "where": where, "scale": 3.0},
    ):
        value, gradients = value_and_grad(loss, (0, 1))(input, target, **options)
        expected = value_and_grad(mse_loss, (0, 1))(input, target, **options)
        assert library.host(value) == library.host(expected[0])
        for ours, theirs in zip(gradients, expected[1], strict=True):
            np.testing.assert_array_equal(library.host(ours), library.host(theirs))
    each = loss(input, target, reduction="none", where=where)
    theirs = mse_loss(input, target, reduction="none", where=where)
    np.testing.assert_array_equal(library.host(each), library.host(theirs))


def test_second_derivatives_in_torch() -> None:
    """Of losses with operands at one place, and at none."""
    for written in TABLE[:6]:
        x = [torch.tensor(operand[:5], requires_grad=True) for operand in written.operands]
        loss = functools.partial(written.loss, **written.given)
        assert torch.autograd.gradcheck(loss, x)
        assert torch.autograd.gradgradcheck(loss, x)


def test_on_the_emulator_as_the_text() -> None:
    """The bits of the same formula in C++."""
    emulator.require()
    rng = np.random.default_rng(0)
    hosts = [rng.random(700).astype("f4") for _ in range(3)]
    text = "auto d = (input - target) / c; return log1p(d * d);"
    with installed(multiprocessors=3, seed=1) as device:
        input, target, weight = map(device.asarray, hosts)
        losses = TABLE[0].loss, pointwise_loss("cauchy_of_text", text, parameters={"c": 1.0})
        (value, gradient), (expected, slope) = (
            value_and_grad(loss)(input, target, weight=weight, c=0.5) for loss in losses
        )
        assert value.get() == expected.get()
        np.testing.assert_array_equal(gradient.get(), slope.get())
        x, y, w = (host.astype("f8") for host in hosts)
        np.testing.assert_allclose(
            value.get(), np.sum(w * np.log1p(((x - y) / 0.5) ** 2)) / w.sum(), rtol=1e-6
        )


def without_missing(input: Any, target: Any) -> Any:
    """A formula with a marker that float32 rounds."""
    return np.where(target == -9.99, 0.0, (input - target) ** 2)


def without(input: Any, target: Any, missing: float = -9.99) -> Any:
    """The same with a parameter."""
    return np.where(target != missing, (input - target) ** 2, 0.0)


MARKED: dict[str, Any] = {
    "constant": pointwise_loss("marked", without_missing),
    "parameter": pointwise_loss("marked", without),
    "a parameter of a function in NumPy": pointwise_loss(
        "marked",
        "target != missing ? (input - target) * (input - target) : Real<T>(0.0)",
        parameters={"missing": -9.99},
        numpy=without,
    ),
    "constant of a row": row_loss("marked", lambda x, y: np.sum(without_missing(x, y))),
    "parameter of a row": row_loss("marked", lambda x, y, m=-9.99: np.sum(without(x, y, m))),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("of", MARKED)
def test_data_are_compared_in_their_dtype(library: Library, of: str, dtype: str) -> None:
    x, y = np.array([[1, 2]], dtype), np.array([[-9.99, 2.5]], dtype)
    expected = without_missing(x, y)
    assert expected.tolist() == [[0, 0.25]]
    loss, arrays = MARKED[of], (library.array(x), library.array(y))
    value, gradient = value_and_grad(loss)(*arrays, reduction="sum")
    assert library.host(value) == 0.25
    np.testing.assert_array_equal(library.host(gradient), [[0, -1]])
    if dtype == "f4":  # an operand of float64 decides
        wide = loss(library.array(x.astype("f8")), arrays[1], reduction="sum")
        np.testing.assert_allclose(library.host(wide), 10.99**2 + 0.25, rtol=1e-6)


def test_a_constant_that_is_compared_is_itself_elsewhere() -> None:
    """Where no operand is float64, it is compared as float32 and computed with in float64."""
    loss = pointwise_loss("mine", lambda x, y: np.where(x > 0.1, x - 0.1, 0.1 * y))
    x, y = np.full(2, np.float32(0.1)), np.ones(2, np.float32)
    assert loss(x, y) == np.float32(0.1)
    above = np.nextafter(x, np.float32(1))
    assert loss(above, y) == np.float32(float(above[0]) - 0.1)


BOUNDED: dict[str, Any] = {
    "maximum": pointwise_loss("bounded", lambda x: np.maximum(x, 0.1)),
    "minimum": pointwise_loss("bounded", lambda x: np.minimum(x, 0.1)),
    "maximum in a row": row_loss("bounded", lambda x: np.sum(np.maximum(0.1, x))),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("of", BOUNDED)
def test_what_is_equal_to_a_bound_has_half_of_the_derivative(
    library: Library, of: str, dtype: str
) -> None:
    """Also where float32 rounds the bound, as on a device. The other side has 0, and not -0."""
    gradient = grad(BOUNDED[of])(library.array(np.array([0, 0.1, 0.5], dtype)), reduction="sum")
    found = library.host(gradient)
    np.testing.assert_array_equal(found, [1, 0.5, 0] if of == "minimum" else [0, 0.5, 1])
    assert not np.signbit(found).any()


OF_PARAMETERS: dict[str, Any] = {
    "power of 0": lambda x, c=1.0, p=0.25: np.where(c > 0.5, 0.0, x) ** p + x,
    "power of -1": lambda x, c=1.0, p=0.25: np.where(c > 0.5, -1.0, x) ** p + x,
    "logarithm": lambda x, c=1.0, p=0.25: x + np.where(p > 4 * c, np.log(p - 0.25), 1 / (p - 0.25)),
}


@pytest.mark.parametrize("p", [0.25, -0.5, 0.5, 1.0])
@pytest.mark.parametrize("of", OF_PARAMETERS)
def test_numbers_that_parameters_make_are_those_of_arrays(of: str, p: float) -> None:
    """A power of 2 decides before there are arrays, on numbers for which Python's power raises."""
    loss, x = pointwise_loss("folded", OF_PARAMETERS[of]), np.array([0.5, -2.0])
    for function in (functools.partial(loss, reduction="none"), grad(loss)):
        np.testing.assert_array_equal(function(x, c=1.0, p=p), function(x, c=0.75, p=p))
    # Here a power without a slope has none, even if its derivative is infinite.
    np.testing.assert_array_equal(grad_and_hess(loss)(x, c=1.0, p=p), [[1, 1], [0, 0]])


# Each adds 1 for what is chosen to be a constant, and compared with it again.
CHOSEN: dict[str, Any] = {
    "clip": pointwise_loss("chosen", lambda x: 1.0 * (np.clip(x, -0.3, 0.1) >= 0.1)),
    "where": pointwise_loss("chosen", lambda x: 1.0 * (np.where(x > 0, 0.1, x) == 0.1)),
    "clip in a row": row_loss("chosen", lambda x: np.sum(-np.clip(x, -0.3, 0.1) == -0.1)),
    "where of sums": row_loss(
        "chosen", lambda x: 1.0 * (np.where(np.sum(x) > 0, 0.1, np.sum(x)) == 0.1)
    ),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("of", CHOSEN)
def test_a_constant_that_is_chosen_is_equal_to_itself(
    library: Library, of: str, dtype: str
) -> None:
    """Also where float32 rounds what it is compared with."""
    x = library.array(np.array([[0.5], [-0.5], [2.0]], dtype))
    assert library.host(CHOSEN[of](x, reduction="none")).ravel().tolist() == [1, 0, 1]


def test_a_copy_of_a_value_is_the_value() -> None:
    loss = pointwise_loss("copied", lambda x, y: copy.copy(x) - copy.deepcopy(y))
    assert loss.source == pointwise_loss("copied", lambda x, y: x - y).source


@pytest.mark.exhaustive  # SciPy is one of the examples' packages
def test_functions_of_scipy() -> None:
    special = requirements.imported("scipy.special", "examples")
    with pytest.raises(TypeError, match=r"expit is no function .*: write 0.5 \* \(1 \+ np.tanh"):
        pointwise_loss("own_loss", lambda x: special.expit(x))

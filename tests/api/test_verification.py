"""The check of a formula of one's own: what it finds, and what it has nothing to say about."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cupy_losses import pointwise_loss, row_loss
from cupy_losses._core.tracing import trace
from cupy_losses._device import driver
from cupy_losses._host import dual
from cupy_losses._verification import verify as verification
from cupy_losses._verification.advice import KNOWN, OF_ROWS, advice
from cupy_losses._verification.arithmetic import Rounded

from .. import emulator
from ..emulator import installed
from ..tables.losses import every_function
from ..tools import requirements

Array = Any


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that leave out the compiler, which takes seconds."""
    monkeypatch.setattr(verification, "compile_for_all", lambda call: "compiled")


def huber(input: Array, target: Array, delta: float = 1.0) -> Array:
    error = input - target
    linear = delta * (abs(error) - 0.5 * delta)
    return np.where(abs(error) <= delta, 0.5 * error**2, linear)


SOUND: dict[str, Callable[..., Any]] = {
    "cauchy": lambda input, target, c=0.7: np.log1p(((input - target) / c) ** 2),
    "huber": huber,
    "pinball": lambda input, target, q=0.3: np.where(target > input, q, q - 1) * (target - input),
    "poisson": lambda input, target: np.exp(input) - target * input,
    "softplus": lambda x: np.logaddexp(0, x),
    "square": lambda input, target: (input - target) ** 2,
    "three": lambda a, b, c: np.maximum(a, b) * np.sin(c),
    "constant": lambda x: 1.0,
    "at the kink": lambda x: np.where(x > 0, x, 0.0),
    "steep beside the kink": lambda x, t: (
        np.where(t > 0, t * np.log(np.where(t > 0, t, 1.0)), 0.0) - t * x
    ),
}


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", SOUND)
def test_sound_formulas(name: str) -> None:
    report = pointwise_loss("sound", SOUND[name]).check()
    assert report, report
    assert not report.notes, report
    assert not report.advice


@pytest.mark.usefixtures("uncompiled")
def test_a_kink_near_0_is_no_problem() -> None:
    """The steps of finite differences are smaller than the operand, too."""
    report = pointwise_loss("sound", lambda x, t: abs((x - t) / np.maximum(abs(t), 1e-8))).check()
    assert report, report


# What is written, the kind of what is found, of which quantity and where, and what to write.
POOR: list[tuple[Callable[..., Any], str, str]] = [
    (
        lambda input: 1 / (1 + np.exp(-input)),
        r"problem: its derivative by input is NaN at input=-\d\d\.\d+ in float32",
        "advice: write 0.5 * (1 + np.tanh(x / 2)) for 1 / (1 + np.exp(-x))",
    ),
    (
        lambda x: np.log(1 + np.exp(x)),
        r"problem: it is inf instead of 9\d\.\d+ at x=9\d\.\d+ in float32, and \d+ more",
        "advice: write np.logaddexp(0, x) for np.log(1 + np.exp(x))",
    ),
    (
        lambda x, y: np.sqrt((x - y) ** 2),
        r"problem: its derivative by y is NaN at x=0, y=0 in float32",
        "advice: write np.abs(x) for np.sqrt(x**2)",
    ),
    (
        lambda p: p * np.log(p),
        r"problem: it is NaN at p=0 in float32",
        "advice: write np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0) for x * np.log(x)",
    ),
    (
        lambda x: np.sqrt(1 + x * x) - 1,
        r"note: it loses digits: 0 instead of \d\S+ at x=\S+ in float32",
        "advice: write x / (1 + np.sqrt(1 + x)) for np.sqrt(1 + x) - 1",
    ),
    (
        lambda x: np.abs(x) ** 1.5,
        r"problem: its second derivative by x is NaN at x=0 in float32",
        "",
    ),
    (
        lambda x: 0.5 * abs(x) ** 2,
        r"problem: its second derivative by x is no derivative: 0, and by finite differences 1 ",
        "",
    ),
    (
        lambda x, y, b=1.0: np.where(abs(x - y) < b, 0.5 * (x - y) ** 2, b * (abs(x - y) - b)),
        r"note: it jumps: \S+ beside \S+ at x=\S+, y=\S+",
        "",
    ),
]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("formula", "found", "written"), POOR)
def test_poor_formulas(formula: Callable[..., Any], found: str, written: str) -> None:
    report = pointwise_loss("poor", formula).check()
    assert bool(report) == found.startswith("note")
    text = str(report)
    assert len([*filter(re.compile(found).match, text.splitlines())]) == 1, text
    assert [line for line in text.splitlines() if line.startswith("advice")] == [written] * bool(
        written
    )


@pytest.mark.usefixtures("uncompiled")
def test_a_wrong_derivative_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By finite differences: the wide arithmetic has the same rules."""
    loss = pointwise_loss("mine", lambda x, y: np.tanh(x) * y)
    assert loss.check()
    wrong = dual._of_one(np.tanh, lambda x, y: 1.0 - y)
    monkeypatch.setitem(dual._RULES, np.tanh, wrong)
    found = str(loss.check())
    assert "its derivative by x is no derivative: " in found
    assert "its second derivative by x is no derivative: " in found
    assert "by y is" not in found


@pytest.mark.parametrize(("written", "pattern", "instead"), KNOWN)
def test_advice(written: str, pattern: Any, instead: str) -> None:
    """Each known expression is recognised, and what is to be written is the same."""
    names = [name for name in "xy" if re.search(rf"\b{name}\b", written)]
    before, after = (
        eval(f"lambda {', '.join(names)}: {text}", {"np": np}) for text in (written, instead)
    )
    assert advice(trace("mine", before, names, (), ())) == [f"write {instead} for {written}"]
    assert advice(trace("mine", after, names, (), ())) == []
    points = np.random.default_rng(0).uniform(0.5, 2, (len(names), 50))
    np.testing.assert_allclose(after(*points), before(*points), rtol=1e-12)


@pytest.mark.usefixtures("uncompiled")
def test_advice_for_rows() -> None:
    """What is an expression of two elements in the check is one of a row where it is written."""
    for written, instead in OF_ROWS.values():
        before, after = (
            row_loss("mine", eval(f"lambda x: {text}", {"np": np})).check()
            for text in (written, instead)
        )
        assert before.advice == (f"write {instead} for {written}",)
        assert after
        assert not after.advice


def test_rounded_arithmetic() -> None:
    """Like that of a device: constants do not widen it, and neither do arrays."""
    x = np.linspace(0.1, 2, 50, dtype=np.float32).view(Rounded)
    third = np.float32(1 / 3)
    for got, expected in (
        (x * np.float64(1 / 3), np.asarray(x) * third),
        (np.where(x > 1, 1 / 3, np.full(50, 1 / 3)) + x, third + np.asarray(x)),
        (np.tanh(x * 0.1), np.tanh(np.asarray(x) * np.float32(0.1))),
    ):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.usefixtures("uncompiled")
def test_points_and_parameters_of_ones_own() -> None:
    loss = pointwise_loss("mine", lambda p, c=1.0: np.log(p) / c + np.where(c > 2, np.nan, 0.0))
    assert loss.check(np.array([0.5, 1.0]))
    assert "at 2 points" in str(loss.check([[0.5], [1.0]]))
    steep = pointwise_loss("mine", lambda x, c=1.0: np.log(1 + np.exp(c * x)))
    assert steep.check(np.linspace(-5, 5, 11))
    assert not steep.check(np.linspace(-5, 5, 11), c=50)
    with pytest.raises(TypeError, match=r"check\(\) takes 1 arrays or none, got 2"):
        steep.check(np.ones(1), np.ones(1))
    with pytest.raises(TypeError, match=r"check\(\) got an unexpected keyword argument 'd'"):
        steep.check(d=1.0)
    with pytest.raises(ValueError, match="there must be at least one point, got arrays of size 0"):
        steep.check(np.array([]))
    with pytest.raises(TypeError, match="c must be a real number"):
        steep.check(c="1")  # type: ignore[arg-type]
    two = pointwise_loss("mine", lambda x, y: x * y)
    with pytest.raises(ValueError, match=r"one size, got {'x': 1, 'y': 2}"):
        two.check(np.ones(1), np.ones(2))


def test_a_text_is_compiled_where_it_is_defined() -> None:
    requirements.nvrtc()
    message = "the formula of mine does not compile, line 1, column 9: identifier .targt."
    with pytest.raises(ValueError, match=message):
        pointwise_loss("mine", "input - targt", check=True)
    assert pointwise_loss("mine", "input - target", check=True).source == "input - target"
    assert pointwise_loss("mine", lambda input, target: input - target, check=True)

    @pointwise_loss(check=True)
    def decorated(input: Any, target: Any) -> Any:
        return input - target

    assert decorated.source == "input - target"
    with pytest.raises(TypeError, match="check must be True or False, got 1"):
        pointwise_loss("mine", "input - target", check=1)  # type: ignore[call-overload]
    wrong = pointwise_loss("mine", "input - targt").check()
    assert not wrong
    assert message.partition(" identifier")[0] in wrong.problems[0]
    assert not wrong.notes


@pytest.mark.exhaustive
def test_every_function_compiles() -> None:
    """In half precision too, which has an arithmetic of its own."""
    requirements.nvrtc()
    assert pointwise_loss(every_function, check=True)


@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> tuple[int, int]:
        raise RuntimeError("NVRTC cannot be loaded: install it with pip")

    monkeypatch.setattr(driver, "nvrtc_version", version)
    with pytest.raises(RuntimeError, match="install it"):
        pointwise_loss("mine", "input - target", check=True)
    report = pointwise_loss("mine", SOUND["square"]).check()
    assert report
    assert report.notes == ("it was not compiled: NVRTC cannot be loaded: install it with pip",)


@pytest.mark.usefixtures("forgotten")
def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    report = pointwise_loss("mine", SOUND["square"]).check()
    assert report, report
    (note,) = report.notes
    assert re.fullmatch(
        r"it was not compiled: .* needs no GPU: install cupy-losses\[cuda12\].*", note
    )


@pytest.mark.usefixtures("uncompiled")
def test_what_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text without one may be any formula: a note says so."""
    monkeypatch.setattr(verification, "_has_gpu", lambda: False)
    text = "input + target"
    wrong = pointwise_loss("mine", text, numpy=lambda input, target: input - target).check()
    assert [note.partition(":")[0] for note in wrong.notes] == [
        "its text in C++ was not compared with its formula in NumPy"
    ]
    alone = pointwise_loss("mine", text).check()
    assert alone.notes == ("no value was computed: a text in C++ without numpy= needs a GPU",)


@pytest.mark.exhaustive  # compiles two kernels for each architecture
def test_compiled_for_all_architectures() -> None:
    requirements.nvrtc()
    report = pointwise_loss("mine", SOUND["square"]).check()
    assert report
    assert "sm_75" in report.checked[0]
    assert "sm_120" in report.checked[0]


TEXTS = [
    ("auto d = input - target; return log1p(d * d);", False),
    ("auto d = input - target; return log1p(1.01 * d * d);", True),
]


@pytest.mark.exhaustive  # compiles four kernels for each dtype
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("text", "differs"), TEXTS)
def test_kernels_are_compared_with_numpy(text: str, differs: bool) -> None:
    emulator.require()
    loss = pointwise_loss("mine", text, numpy=lambda x, y: np.log1p((x - y) ** 2))
    with installed():
        report = loss.check()
    assert bool(report) != differs, report
    assert ("it differs: " in str(report)) == differs
    assert "on the GPU" in report.checked[1]


@pytest.mark.gpu
@pytest.mark.parametrize(("text", "differs"), TEXTS)
def test_on_a_gpu(text: str, differs: bool) -> None:
    loss = pointwise_loss("mine", text, numpy=lambda x, y: np.log1p((x - y) ** 2))
    report = loss.check()
    assert bool(report) != differs, report
    assert ("it differs: " in str(report)) == differs
    assert "on the GPU" in report.checked[1]

"""Losses of a user's own."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import pickle
import re
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cupy_losses import (
    mse_loss,
    pointwise_loss,
    smooth_l1_loss,
    value_and_grad,
)
from cupy_losses._api import functions
from cupy_losses._api.public import prepare_of
from cupy_losses._core import loss as losses
from cupy_losses._core.formula import explained, in_ascii
from cupy_losses._core.formula import source as source_of
from cupy_losses._core.program import RESERVED
from cupy_losses._device import sources
from cupy_losses._device.cpp import tuned

from .. import emulator
from ..emulator import installed
from ..tables.arrays import Library, ulps
from ..tables.losses import SIMPLE, Case
from ..tools import forks, requirements

square = pointwise_loss(
    "square",
    "(input - target) * (input - target)",
    numpy=lambda input, target: (input - target) * (input - target),
)
smooth = pointwise_loss(
    "smooth",
    """
    auto d = input - target;
    if (abs(d) >= beta) return abs(d) - 0.5 * beta;
    return half_square(d) / beta;
    """,
    parameters={"beta": 1.0},
    numpy=lambda input, target, beta: np.where(
        abs(input - target) >= beta,
        abs(input - target) - 0.5 * beta,
        0.5 * (input - target) * (input - target) / beta,
    ),
)
elastic = pointwise_loss(
    "elastic",
    "max(a, b) * sqrt(c) + pow(a, 3) * sigmoid(-b)",
    operands=("a", "b", "c"),
    numpy=lambda a, b, c: np.maximum(a, b) * np.sqrt(c) + a**3 / (1 + np.exp(b)),
)


def reference(name: str, **parameters: float) -> Case:
    """The independent formula of a built-in loss, in the table of the tests."""
    return next(case for case in SIMPLE if (case.name, case.parameters) == (name, parameters))


PAIRS: list[tuple[Any, Any, Case]] = [
    (square, mse_loss, reference("mse_loss")),
    (smooth, smooth_l1_loss, reference("smooth_l1_loss", beta=0.3)),
]


def drawn() -> tuple[list[Any], list[tuple[Any, dict[str, Any]]]]:
    """Input and target; reductions, each with a weight, a mask or neither."""
    rng = np.random.default_rng(0)
    input, target, weight = (rng.random(5000).astype("f4") for _ in range(3))
    where = rng.random(5000) < 0.5
    return [input, target], [
        ("mean", {}),
        ("sum", {}),
        ("mean", {"weight": weight}),
        ("mean", {"where": where}),
    ]


def results_of(array: Callable[[Any], Any], ours: Any, theirs: Any, case: Case) -> list[Any]:
    """The value and the gradients of a loss of a user's own, and the value of a built-in one."""
    operands, reductions = drawn()
    arrays, found = [array(x) for x in operands], []
    for reduction, extra in reductions:
        options = {name: array(x) for name, x in extra.items()}
        options |= {"reduction": reduction, **case.parameters}
        value, gradients = value_and_grad(ours, (0, 1))(*arrays, **options)
        found.append((value, gradients, theirs(*arrays, **options)))
    return found


def check_results(found: list[Any], host: Callable[[Any], Any], case: Case) -> None:
    """Against an independent formula, and the bits of the built-in loss."""
    operands, reductions = drawn()
    wide = [x.astype(np.longdouble) for x in operands]
    each, slopes = case.value(*wide), case.slopes(*wide)
    for (reduction, extra), (value, gradients, built_in) in zip(reductions, found, strict=True):
        expected = case.reduce(each, reduction, extra.get("weight"), extra.get("where"))
        assert ulps(host(value), np.asarray(expected)) <= 1
        divisor = case.divisor(each, reduction, extra.get("weight"), extra.get("where"))
        share = np.where(extra.get("where", True), extra.get("weight", 1.0), 0) / divisor
        for gradient, slope in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(host(gradient), np.float64(slope * share), rtol=5e-7)
        assert host(value) == host(built_in)


@pytest.mark.parametrize(("ours", "theirs", "case"), PAIRS, ids=["square", "smooth"])
def test_against_references(library: Library, ours: Any, theirs: Any, case: Case) -> None:
    check_results(results_of(library.array, ours, theirs, case), library.host, case)


@pytest.mark.parametrize(("ours", "theirs", "case"), PAIRS, ids=["square", "smooth"])
def test_kernels_against_references(ours: Any, theirs: Any, case: Case) -> None:
    emulator.require()
    with installed(multiprocessors=3, seed=1) as device:
        found = device.together(results_of, device.asarray, ours, theirs, case)
        check_results(found, lambda x: x.get(), case)


def test_value_of_several_operands(library: Library) -> None:
    """max(a, b) * sqrt(c) + a^3 * sigmoid(-b), by hand."""
    operands = [np.array(x, np.float32) for x in ([1.0, 2.0], [2.0, -1.0], [4.0, 9.0])]
    expected = [2 * 2 + 1 / (1 + np.exp(2.0)), 2 * 3 + 8 / (1 + np.exp(-1.0))]
    got = elastic(*map(library.array, operands), reduction="none")
    np.testing.assert_allclose(library.host(got), expected, rtol=3e-7)
    emulator.require()
    with installed(seed=1) as device:
        each = elastic(*map(device.asarray, operands), reduction="none")
        np.testing.assert_allclose(each.get(), expected, rtol=3e-7)


def test_a_power_of_one_half_is_a_square_root() -> None:
    """Of infinities and zeros, too, whether the exponent is a literal or a parameter."""
    emulator.require()
    x = np.array([4.0, 0.0, -0.0, np.inf, -np.inf, -1.0, np.nan], np.float32)
    with np.errstate(invalid="ignore"), installed(seed=1) as device:
        for loss in (
            pointwise_loss("by_parameter", lambda input, p=0.5: input**p),
            pointwise_loss("by_literal", lambda input: input**0.5),
        ):
            for results in (loss(x, reduction="none"), loss(device.asarray(x), reduction="none")):
                got = np.asarray(results.get() if hasattr(results, "get") else results)
                np.testing.assert_array_equal(got, np.sqrt(x))
                np.testing.assert_array_equal(np.signbit(got[:5]), np.signbit(np.sqrt(x[:5])))


def test_more_operands(torch_library: Library) -> None:
    import torch

    device = "cuda" if torch_library.name == "torch cuda" else "cpu"
    operands = [
        (torch.rand(7, dtype=torch.float64) + 0.5).to(device).requires_grad_() for _ in "abc"
    ]
    assert torch.autograd.gradcheck(elastic, operands)
    assert torch.autograd.gradgradcheck(elastic, operands)
    torch.testing.assert_close(elastic(*operands[:2], c=operands[2]), elastic(*operands))


def test_signature_and_arguments(library: Library) -> None:
    signature = inspect.signature(smooth)
    assert str(signature) == (
        "(input: 'ArrayT', target: 'Array', *, reduction: 'Reduction' = 'mean', "
        "scale: 'float | Array' = 1.0, weight: 'Array | None' = None, "
        "where: 'Array | None' = None, beta: 'float' = 1.0) -> 'ArrayT'"
    )
    assert smooth.__name__ == "smooth"
    assert smooth.__doc__ is not None
    ones = library.array(np.ones(3, np.float32))
    with pytest.raises(TypeError, match=r"smooth\(\) misses the argument 'target'"):
        smooth(ones)
    with pytest.raises(TypeError, match=r"smooth\(\) takes 2 positional arguments but 3"):
        smooth(ones, ones, ones)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gamma'"):
        smooth(ones, ones, gamma=1.0)
    with pytest.raises(TypeError, match="beta must be a real number"):
        smooth(ones, ones, beta="1")  # type: ignore[call-overload]


def test_definition_errors() -> None:
    with pytest.raises(ValueError, match="identifier"):
        pointwise_loss("no name", "input")
    with pytest.raises(ValueError, match="'weight' is taken"):
        pointwise_loss("mine", "input", operands=("input", "weight"))
    with pytest.raises(ValueError, match="'x' is taken, as it is there twice"):
        pointwise_loss("mine", "x", operands=("x", "y"), parameters={"x": 1.0})
    for reserved in ("NULL", "INFINITY", "int", "requires", "T"):
        for options in ({"operands": ["x", reserved]}, {"parameters": {reserved: 1.0}}):
            with pytest.raises(ValueError, match=f"'{reserved}' means something else in C"):
                pointwise_loss("mine", "1", **options)
    with pytest.raises(ValueError, match="at least one"):
        pointwise_loss("mine", "1", operands=())
    with pytest.raises(TypeError, match="formula must be a function or a string, got int"):
        pointwise_loss("mine", 3)  # type: ignore[call-overload]
    for parameters in (["c"], "c", 3):
        got = type(parameters).__name__
        with pytest.raises(TypeError, match=f"names to their defaults, as .*, got {got}"):
            pointwise_loss("mine", "input", parameters=parameters)  # type: ignore[call-overload]
    for operands in ("xy", 3):
        with pytest.raises(TypeError, match=f"operands must be a list of names, .*{operands!r}"):
            pointwise_loss("mine", "x", operands=operands)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="numpy must be a function, got int"):
        pointwise_loss("mine", "input", numpy=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="name must be a string, got int"):
        pointwise_loss(3, "input")  # type: ignore[call-overload]
    without = pointwise_loss("without", "input * target")
    with pytest.raises(TypeError, match="without has no NumPy formula"):
        without(np.ones(3), np.ones(3))


def test_losses_that_are_gone_are_not_kept() -> None:
    """Such as one that is defined in each call of a function; caches have bounds."""

    def defined(power: int, called: bool) -> weakref.ref[Any]:
        loss = pointwise_loss("gone", lambda input: input**power)
        assert not called or value_and_grad(loss)(np.ones(2))[0] == 1
        return weakref.ref(loss)

    gc.collect()
    names = len(functions.functions)
    gone = [defined(2, called=True) for _ in range(5)]
    gc.collect()
    assert [loss() for loss in gone] == [None] * 5
    assert len(functions.functions) == names
    # Plans of the host have the losses that were called last.
    known = len(losses._OF_USERS)
    gone = [defined(power, called=False) for power in range(3, 8)]
    gc.collect()
    assert [loss() for loss in gone] == [None] * 5
    assert len(losses._OF_USERS) == known


def test_a_loss_is_known_while_an_equal_one_is_there() -> None:
    def defined() -> Any:
        return pointwise_loss("twice", lambda input: input * 3.25)

    def key_of(loss: Any) -> str:
        return prepare_of(loss)(np.ones(2))[0].loss.key

    first, second = defined(), defined()
    third = pickle.loads(pickle.dumps(second))
    key = key_of(first)
    for gone in ("first", "second"):
        if gone == "first":
            del first
        else:
            del second
        gc.collect()
        assert losses.loss_of_key(key).name == "twice"
    assert key_of(third) == key
    del third
    gc.collect()
    with pytest.raises(ValueError, match="no loss of the name 'twice'"):
        losses.loss_of_key(key)


class _Meeting(dict[Any, Any]):
    """What a table has: two threads that look something up both miss what the other one adds."""

    def __init__(self, contents: Any) -> None:
        super().__init__(contents)
        self._barrier = threading.Barrier(2)

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        finally:
            with contextlib.suppress(threading.BrokenBarrierError):
                self._barrier.wait(timeout=0.2)


def _defined_twice(name: str) -> list[Any]:
    """Two equal losses, defined by two threads at once."""
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(pointwise_loss, name, lambda input: input * 3.5) for _ in range(2)]
        return [each.result() for each in begun]


def test_threads_that_define_equal_losses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are known by their key, while either of them is there."""
    table: Any = losses._OF_USERS
    monkeypatch.setattr(table, "data", _Meeting(table.data))
    both = _defined_twice("known_at_once")
    key = both[0]._loss.key
    both = [each for each in both if each._loss is not losses.loss_of_key(key)]
    gc.collect()
    assert len(both) == 1
    assert losses.loss_of_key(key) == both[0]._loss


def test_threads_that_name_losses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs call each by a name of its own."""
    table: Any = functions.functions
    monkeypatch.setattr(table, "data", _Meeting(table.data))
    assert all(functions.is_registered(each._function) for each in _defined_twice("named_at_once"))


def test_a_thread_defines_a_loss_while_another_one_reads_all_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[threading.Thread] = []

    class Read(dict[Any, Any]):
        def items(self) -> Any:
            for item in super().items():
                if not begun:
                    thread = threading.Thread(
                        target=functions.register, args=(lambda: None,), daemon=True
                    )
                    begun.append(thread)
                    thread.start()
                    thread.join(timeout=0.2)
                yield item

    table: Any = functions.functions
    monkeypatch.setattr(table, "data", Read(table.data))
    with pytest.raises(TypeError, match="must be a loss function of cupy_losses"):
        prepare_of(print)
    begun[0].join()


OF_EVERY_PROCESS = """
import functools
import numpy as np
from cupy_losses import pointwise_loss
from cupy_losses._api.public import prepare_of

scaled = functools.partial(np.multiply, 2.0)
def helper(x): return np.log1p(x) if {"one", "two", "three"} else helper(x)
class Times:
    def __init__(self, factor): self.factor = factor
    def of(self, x): return x * self.factor
own = Times(1.0)

loss = pointwise_loss("mine", "2 * log1p(input * input)", operands=["input"],
                      numpy=lambda input: (lambda x: scaled(helper(own.of(x))))(input * input))
call, _ = prepare_of(loss)(np.ones(2))
print(call.loss.key)
"""


def test_a_formula_in_numpy_is_the_same_in_every_process() -> None:
    """Its key has no address of a function, and no order of a set: saved programs look it up."""
    keys = {
        subprocess.run(
            [sys.executable, "-c", OF_EVERY_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1


def test_formulas_in_numpy_are_told_apart() -> None:
    """By the values that they have from around them, too."""

    def defined(power: int) -> Any:
        names = {"np": np, "POWER": power, "table": np.arange(2000.0) + power}
        code = "lambda input: np.sum(table[:1]) * 0 + input ** POWER"
        return pointwise_loss("mine", "input * input", operands=["input"], numpy=eval(code, names))

    class Power:
        def __init__(self, power: int) -> None:
            self.power = power

        def __repr__(self) -> str:
            return f"Power({self.power})"

        def of(self, input: Any) -> Any:
            return input**self.power

    def by_method(power: int) -> Any:
        own = Power(power).of
        return pointwise_loss("mine", "input * input", operands=["input"], numpy=own)

    def by_object(power: int) -> Any:
        within = types.SimpleNamespace(table=np.arange(2000.0) * 0 + power)
        return pointwise_loss(
            "mine",
            "input * input",
            operands=["input"],
            numpy=lambda input: input ** within.table[0],
        )

    def by_cache(power: int) -> Any:
        @functools.cache
        def exponent() -> int:
            return power

        return pointwise_loss(
            "mine", "input * input", operands=["input"], numpy=lambda input: input ** exponent()
        )

    def by_class(power: int) -> Any:
        class Own:
            exponent = power

        return pointwise_loss(
            "mine", "input * input", operands=["input"], numpy=lambda input: input**Own.exponent
        )

    for define in (defined, by_method, by_object, by_cache, by_class):
        calls = [prepare_of(define(power))(np.ones(2))[0] for power in (2, 3, 2)]
        assert len({call.loss.key for call in calls}) == 2


def test_formulas_in_numpy_with_other_arguments_are_told_apart() -> None:
    """Parameters come by keyword: the order of the names is a part of what is computed."""

    def defined(numpy: Any) -> Any:
        text, parameters = "x * a - y * b", {"a": 2.0, "b": 3.0}
        return pointwise_loss("mine", text, operands=["x", "y"], parameters=parameters, numpy=numpy)

    def of_two(a: Any, b: Any) -> Any:
        return a - b

    def of_two_others(b: Any, a: Any) -> Any:
        return b - a

    def of_all(*a: Any) -> Any:
        return a[0]

    def of_one(a: Any) -> Any:
        return a[0]

    x, y = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    # What is computed, with arguments in two orders.
    first = defined(lambda x, y, a, b: x * a - y * b)
    second = defined(lambda x, y, b, a: x * b - y * a)
    assert first(x, y, reduction="sum") == 2 * 3 - 3 * 30
    assert second(x, y, reduction="sum") == 3 * 3 - 2 * 30
    pairs = [
        (lambda x, y, a, b: of_two(a=x, b=y), lambda x, y, a, b: of_two_others(a=x, b=y)),
        (lambda x, y, a, b: of_all(x), lambda x, y, a, b: of_one(x)),
    ]
    for pair in pairs:
        keys = {prepare_of(defined(numpy))(x, y)[0].loss.key for numpy in pair}
        assert len(keys) == 2


def test_formulas_in_numpy_with_what_nothing_can_look_into() -> None:
    """Each is another one, as are those of other processes. None fails."""

    def recursive() -> Any:
        def power(input: Any, n: int) -> Any:
            return input * power(input, n - 1) if n else input * 0 + table[0]

        table: list[Any] = [1.0]
        table.append(table)
        return lambda input: power(input, 2) + (0 if lock else input)

    def early() -> Any:
        formula = pointwise_loss(
            "mine", "input", operands=["input"], numpy=lambda input: input * later
        )
        later: float = 2.0
        return formula

    lock = threading.Lock()
    same = [
        pointwise_loss("mine", "input * input", operands=["input"], numpy=recursive())
        for _ in range(2)
    ]
    assert len({prepare_of(one)(np.ones(2))[0].loss.key for one in same}) == 2
    assert [float(one(np.full(2, 3.0), reduction="sum")) for one in same] == [18.0] * 2
    assert float(early()(np.ones(3))) == 2.0


IN_FORKED_PROCESSES = """
import os, threading
import numpy as np
from cupy_losses import pointwise_loss
from cupy_losses._api.public import prepare_of

lock = threading.Lock()
for _ in range(2):
    if not os.fork():
        loss = pointwise_loss("mine", "input", operands=["input"],
                              numpy=lambda input: input if lock else 2 * input)
        call, _ = prepare_of(loss)(np.ones(2))
        os.write(1, f"{call.loss.key}\\n".encode())
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_defines_a_loss() -> None:
    """The new process, which has no such thread, defines one itself."""
    forks.while_held(
        "import numpy as np\n"
        "from cupy_losses import pointwise_loss\n"
        "from cupy_losses._api import functions\n"
        "from cupy_losses._core import loss as losses",
        "functions._lock, losses._making_known",
        'pointwise_loss("mine", lambda input: input * 2.0)(np.ones(2))',
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_formulas_of_forked_processes_with_what_nothing_can_look_into() -> None:
    """Processes that were forked from one share all numbers that it had counted."""
    keys = subprocess.run(
        [sys.executable, "-c", IN_FORKED_PROCESSES], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(keys) == len(set(keys)) == 2


def test_macros_are_reserved() -> None:
    """Those of the kernels and of NVRTC."""
    found = {"NULL", "NAN", "INFINITY"}
    for file in sources.source_folder().rglob("*.cu*"):
        found.update(re.findall(r"#define (\w+)", file.read_text(encoding="utf-8")))
    assert found - RESERVED == set()
    loss = pointwise_loss("mine", lambda NULL, input: NULL * input)
    assert loss.source == "_given_NULL * input"


def nvrtc_log(loss: Any, source: str) -> str:
    """What NVRTC says of a kernel with the formula."""
    nvrtc = requirements.nvrtc()
    name = (
        f"pointwise<float, {loss}<float>, Layout<1, 2, 3u, unsigned>, "
        f"{tuned('Tile', threads=512, vectors_per_thread=4, width=4, batch=1)}, "
        "SUM_OF_VALUES, 1u, float, const float*, const float*, float*>"
    )
    code = sources.source("kernels/pointwise.cu") + in_ascii(source)
    program = nvrtc.createProgram(code, "p.cu", (), ())
    nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, requirements.nvrtc_options(90))
    except nvrtc.NVRTCError:
        return str(nvrtc.getProgramLog(program))
    return ""


MISTAKES = [
    ("abs(input - targt)", 1, 13, 'identifier "targt" is undefined'),
    ("auto d = input - target;\n  return d * cube(d);", 2, 14, 'identifier "cube" is undefined'),
    ("(input - target", 1, 16, 'expected a ")"'),
    ("input ** target", 1, 8, 'no operator "*" matches'),
    ("\n\n   input +\n", 4, 1, "expected an expression"),
    ("auto größe = input - targt;\n return größe;", 1, 22, 'identifier "targt" is undefined'),
]


@pytest.mark.parametrize(("formula", "line", "column", "message"), MISTAKES)
def test_mistakes_show_line_and_column(formula: str, line: int, column: int, message: str) -> None:
    source = source_of("mine", formula, ("input", "target"), ("beta",))
    shown_error = explained(source, nvrtc_log("Formula_mine", source))
    assert f"the formula of mine does not compile, line {line}, column {column}: " in shown_error
    assert message in shown_error
    shown = [*formula.splitlines(), ""][line - 1]
    assert f"\n    {shown}\n    {' ' * (column - 1)}^" in shown_error


def test_all_functions_compile() -> None:
    """Every function that the documentation lists."""
    one = ["abs", "sign", "exp", "expm1", "log", "log1p", "xlogx", "sqrt", "tanh", "sinh", "cosh"]
    one += ["sin", "cos", "atan", "relu", "sigmoid", "softplus", "log_sigmoid", "half_square"]
    formula = " + ".join(f"{name}(input)" for name in one)
    formula += " + max(input, target) + min(input, 1) + clamp_min(target, 0.5f) + pow(input, p)"
    formula += " + exp(p) / target + (input > target ? input : 2) - -p"
    formula += "".join(f" + {name}(p)" for name in one) + " + clamp_min(p, 0.5) + pow(p, 2.0)"
    source = source_of("mine", formula, ("input", "target"), ("p",))
    assert nvrtc_log("Formula_mine", source) == ""
    documentation = pointwise_loss.__doc__ or ""
    assert all(name in documentation for name in (*one, "max", "min", "clamp_min", "pow"))


@pytest.mark.parametrize(
    "formula",
    [
        "(input - target) * input // what to return",
        "(input - target) /* return */ * input",
        "auto d = input - target;  // of both\nreturn d * input;  // the end",
    ],
)
def test_comments_in_a_formula(formula: str) -> None:
    """A word of one is no statement, and one at the end has not the end of the statement."""
    source = source_of("mine", formula, ("input", "target"), ())
    assert nvrtc_log("Formula_mine", source) == ""


def test_emulated_mistake() -> None:
    """The error reaches the user, and a corrected formula of the same name works."""
    emulator.require()
    ones = np.ones(5, np.float32)
    with installed() as device:
        array = device.asarray(ones)
        wrong = pointwise_loss("mine", "input - targt")
        with pytest.raises(ValueError, match="the formula of mine does not compile"):
            wrong(array, array)
        right = pointwise_loss("mine", "input + target")
        assert right(array, array).get() == 2


@pytest.mark.parametrize("bad", [True, "a", float("nan"), 1e200, None])
def test_defaults_are_checked(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="c must be"):
        pointwise_loss("mine", "c * input", operands=("input",), parameters={"c": bad})


def test_an_integer_default_is_a_number() -> None:
    """In every call of one plan, whichever comes first."""
    emulator.require()
    x = np.linspace(1, 2, 40).astype(np.float32)
    loss = pointwise_loss(
        "affine", "input * c + k", operands=("input",), parameters={"c": 2.5, "k": 1}
    )
    with installed() as device:
        a = device.asarray(x)
        for options in ({}, {"c": 3}, {"c": 0.5, "k": 2.5}, {"k": 1}):
            c, k = options.get("c", 2.5), options.get("k", 1)
            got = float(loss(a, reduction="sum", **options))
            np.testing.assert_allclose(got, np.sum(x.astype(float) * c + k), rtol=1e-6)

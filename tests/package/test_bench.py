"""`cupy-losses bench`: what is measured is right, and what is said of it follows; no time is.

A stand-in for the timers calls each work and says 2 ms.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cupy_losses
from cupy_losses import value_and_grad
from cupy_losses.__main__ import main
from cupy_losses._commands import (
    bandwidth,
    comparison,
    environment,
    evaluation,
    formulas,
    losses,
    operands,
    peers,
    problem,
    synthetic,
    timing,
)
from cupy_losses._commands.comparison import Comparison, Result, Work
from cupy_losses._commands.problem import Drawn, Problem, WrongError
from cupy_losses._device import driver, sources

from .. import emulator
from ..tools import commands, requirements

MILLISECONDS = 2.0


def stand_in(works: Any) -> dict[Any, float]:
    for work in works.values():
        work()
    return dict.fromkeys(works, MILLISECONDS)


ON_HOST = timing.on_host


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "on_host", stand_in)


def bench(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    """The exit code of `bench` on NumPy, and what it printed."""
    return commands.run(capsys, "bench", *arguments)


def report(capsys: Any, *arguments: str) -> dict[str, Any]:
    """What `bench --json` prints."""
    code, out, err = bench(capsys, "--json", *arguments)
    assert (code, err) == (0, "")
    return commands.read(out)


def test_json(capsys: Any) -> None:
    """Each loss by each who has it, with the bandwidth of the bytes that it must move."""
    result = report(capsys, "--elements", "40x7")
    assert result["backend"] == "NumPy"
    assert result["environment"]["numpy"] == np.__version__
    assert result["environment"]["cupy_losses"] == cupy_losses.__version__
    size, rows = 280, 40
    moved = {
        ("mse_loss", False): 8 * size,
        ("mse_loss", True): 12 * size,
        ("cross_entropy", False): 4 * size + 8 * rows,
        ("cross_entropy", True): 8 * size + 8 * rows,
    }
    found = {(row["loss"], row["gradient"], row["peer"]): row for row in result["results"]}
    names = ("cupy_losses", "plain", "torch")
    assert [*found] == [
        (loss, gradient, peer)
        for loss in ("mse_loss", "cross_entropy")
        for peer in names
        for gradient in (False, True)
    ]
    for (loss, gradient, peer), row in found.items():
        assert row["shape"] == [40, 7]
        assert row["row"] == (7 if loss == "cross_entropy" else None)
        assert row["dtype"] == "float32"
        assert row["milliseconds"] == MILLISECONDS
        assert row["gb_per_s"] == moved[loss, gradient] / MILLISECONDS / 1e6
        assert row["error"] < (2**-22 if peer == "cupy_losses" else 1e-5)
        assert row["failure"] is None
    limits = {(row["loss"], row["gradient"]): row for row in result["limits"]}
    assert {key: row["gb_per_s"] * MILLISECONDS * 1e6 for key, row in limits.items()} == moved
    assert {row["peer"] for (_, gradient), row in limits.items() if gradient} == {"a copy"}
    assert {row["peer"] for (_, gradient), row in limits.items() if not gradient} == {"a sum"}
    assert result["left_out"] == [
        {"peer": peer, "losses": ["mse_loss", "cross_entropy"], "reason": "measured on a GPU alone"}
        for peer in ("torch.compile", "Liger-Kernel", "QuACK")
    ]


def test_tables(capsys: Any) -> None:
    """One for each loss without gradients and with them, a line for each size."""
    code, out, err = bench(
        capsys, "l1_loss", "multi_margin_loss", "--elements", "40x7", "--elements", "8x9"
    )
    assert (code, err) == (0, "")
    first, *tables, last = out.split("\n\n")
    assert first == "backend: NumPy (asked for)"
    names = (
        "l1_loss",
        "l1_loss and its gradient",
        "multi_margin_loss",
        "multi_margin_loss and its gradient",
    )
    for name, table in zip(names, tables, strict=True):
        title, head, *lines = table.splitlines()
        assert title == f"{name}, float32"
        columns = ["cupy_losses ms", "plain ms", "torch ms", "GB/s", "limit GB/s"]
        if name.startswith("multi"):
            columns.remove("plain ms")
        assert head.split() == " ".join(["shape", *columns]).split()
        assert [line.split()[:3] for line in lines] == [["40", "×", "7"], ["8", "×", "9"]]
        times = len(columns) - 2
        assert all(line.split()[3 : 3 + times] == ["2.000"] * times for line in lines)
    assert last.splitlines() == [
        "GB/s is the bandwidth of cupy_losses. The limit is that of a sum over as many bytes, and "
        "with the gradient that of a copy of as many.",
        "torch.compile is not measured of l1_loss, multi_margin_loss: measured on a GPU alone",
        "Liger-Kernel is not measured of l1_loss, multi_margin_loss: measured on a GPU alone",
        "QuACK is not measured of l1_loss, multi_margin_loss: measured on a GPU alone",
        "plain is not measured of multi_margin_loss: no formula of this loss",
    ]


def test_what_is_chosen(capsys: Any) -> None:
    """Peers, no gradient, a dtype; and sizes where none are given."""
    result = report(capsys, "mse_loss", "--peer", "Torch", "--no-gradient", "--dtype", "float64")
    rows = result["results"]
    assert {row["peer"] for row in rows} == {"cupy_losses", "torch"}
    assert not any(row["gradient"] for row in [*rows, *result["limits"]])
    assert {row["dtype"] for row in rows} == {"float64"}
    assert len({row["shape"][0] for row in rows}) == len(rows) / 2 > 2
    assert not result["left_out"]


def test_what_is_given_twice(capsys: Any) -> None:
    """Is measured once."""
    sizes = ["--elements", "30", "--elements", "30"]
    both = ["--peer", "torch", "--peer", "torch"]
    result = report(capsys, "mse_loss", "mse_loss", *sizes, *both, "--no-gradient")
    assert [row["peer"] for row in result["results"]] == ["cupy_losses", "torch"]


@pytest.mark.parametrize("shape", ["7", "5x7x3", "7x7x7"])
def test_plain_formulas_of_rows_are_of_matrices(shape: str, capsys: Any) -> None:
    """Of other shapes they are another thing, and no failure."""
    result = report(capsys, "cross_entropy", "triplet_margin_loss", "--elements", shape)
    assert not [row for row in result["results"] if row["failure"]]
    reasons = {row["reason"] for row in result["left_out"] if row["peer"] == "plain"}
    assert reasons == {"its formula over rows takes shapes (N, C) alone"}


@pytest.mark.parametrize("name", losses.names())
def test_every_loss(name: str, capsys: Any) -> None:
    """Whoever has it has the same."""
    result = report(capsys, name, "--elements", "12x5", "--dtype", "float64")
    assert not [row for row in result["results"] if row["failure"]]
    assert {row["peer"] for row in result["results"]} >= {"cupy_losses"}
    in_torch = hasattr(torch.nn.functional, name)
    assert in_torch == any(row["peer"] == "torch" for row in result["results"])
    in_numpy = name in formulas.PLAIN
    assert in_numpy == any(row["peer"] == "plain" for row in result["results"])


def test_plain_formulas_of_the_losses_of_evaluate() -> None:
    assert {*operands.OF_DIABETES} <= {*formulas.PLAIN}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str, capsys: Any) -> None:
    """Also of tensors, which have the memory of the arrays."""
    result = report(capsys, "--elements", "12x5", "--dtype", dtype, "--peer", "torch")
    assert len(result["results"]) == 8
    assert not [row for row in result["results"] if row["failure"]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_in_half_precision(dtype: str, capsys: Any) -> None:
    """None is rounded to 0 or 1, where derivatives overflow."""
    arguments = ["--elements", "30000", "--dtype", dtype, "--peer", "torch"]
    result = report(capsys, "binary_cross_entropy", "gaussian_nll_loss", *arguments)
    assert len(result["results"]) == 8
    assert not [row for row in result["results"] if row["failure"]]


def plant(monkeypatch: pytest.MonkeyPatch, name: str, forward: Any, both: Any) -> None:
    """A peer in the place of another."""
    works = peers.Works(forward, both)
    monkeypatch.setitem(peers.PEERS, name, lambda function, operands: works)


def fails() -> Any:
    raise ValueError("no such size\nand more")


def test_wrong_and_failing_peers(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """They are named and not timed; all others are."""
    (right,) = (
        row
        for row in report(capsys, "mse_loss", "--elements", "30", "--no-gradient")["results"]
        if row["peer"] == "torch"
    )
    drawn = Drawn(Problem(losses.find("mse_loss"), (30,), "float32"), np)
    value, gradient = value_and_grad(cupy_losses.mse_loss)(*drawn.operands)
    assert right["error"] < 1e-6
    plant(monkeypatch, "plain", fails, lambda: (value, gradient))
    plant(monkeypatch, "torch", lambda: 1.01 * value, lambda: (value, 1.01 * gradient))
    code, out, err = bench(capsys, "mse_loss", "--elements", "30")
    assert (code, err) == (0, "")
    tables = out.split("\n\n")
    assert tables[1].splitlines()[-1].split()[:4] == ["30", "2.000", "ValueError", "wrong"]
    assert tables[2].splitlines()[-1].split()[:4] == ["30", "2.000", "2.000", "wrong"]
    lines = tables[3].splitlines()
    assert "plain, mse_loss 30: ValueError: no such size" in lines
    assert f"torch, mse_loss 30: wrong: the loss is {1.01 * value:.7g}, not {value:.7g}" in lines
    wrong = "torch, mse_loss 30 with its gradient: wrong: the gradient has a relative error of 0.01"
    assert wrong in lines
    result = report(capsys, "mse_loss", "--elements", "30")
    found = {(row["peer"], row["gradient"]): row for row in result["results"]}
    times = {key for key, row in found.items() if row["milliseconds"] is not None}
    assert times == {("cupy_losses", False), ("cupy_losses", True), ("plain", True)}
    assert found["plain", False]["failure"] == "ValueError: no such size"
    assert found["plain", False]["gb_per_s"] is found["torch", True]["gb_per_s"] is None


def test_a_wrong_loss_of_this_package(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It is no exception."""
    works = peers.Works(lambda: 7.0, fails)
    monkeypatch.setattr(peers, "_ours", lambda function, operands: works)
    _, out, _ = bench(capsys, "mse_loss", "--elements", "30", "--peer", "torch")
    assert "cupy_losses, mse_loss 30: wrong: the loss is 7, not" in out
    *cells, _ = out.split("\n\n")[1].splitlines()[-1].split()
    assert cells == ["30", "wrong", "2.000", "wrong"]


def test_a_peer_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """As a library that is there and cannot be imported."""

    def broken(function: Any, operands: Any) -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setitem(peers.PEERS, "QuACK", broken)
    result = report(capsys, "mse_loss", "--elements", "30", "--peer", "quack")
    (left_out,) = result["left_out"]
    expected = {"peer": "QuACK", "losses": ["mse_loss"], "reason": "RuntimeError: no driver"}
    assert left_out == expected


def test_this_package_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """An error of its own is one of the command."""

    def broken(function: Any, operands: Any) -> Any:
        raise RuntimeError("no such loss")

    monkeypatch.setattr(peers, "_ours", broken)
    code, out, err = bench(capsys, "mse_loss", "--elements", "30", "--peer", "plain")
    assert (code, out, err) == (1, "", "Error: no such loss\n")


def test_a_work_that_fails_later() -> None:
    """While all are timed, when there is less memory."""
    calls = []

    def compute() -> float:
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError("Unable to allocate")
        return 1.0

    work = Work("torch", True, compute)
    work.check(lambda value: 0.0)
    assert work.failure is None
    work()
    result = work.result(Problem(losses.find("mse_loss"), (30,), "float32"), {work: 1.0})
    assert (result.milliseconds, result.failure) == (None, "MemoryError: Unable to allocate")


def test_who_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(peers, "_check_on_gpu", lambda operands: None)
    for name in ("torch", "liger_kernel", "quack"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(peers, "cross_entropy_of", peers.cross_entropy_of.__wrapped__)
    result = report(capsys, "--elements", "12x5")
    assert {row["peer"] for row in result["results"]} == {"cupy_losses", "plain"}
    reasons = {(row["peer"], *row["losses"]): row["reason"] for row in result["left_out"]}
    both = ("mse_loss", "cross_entropy")
    assert reasons == {
        ("torch", *both): "not installed: pip install torch",
        ("torch.compile", *both): "not installed: pip install torch",
        ("Liger-Kernel", "mse_loss"): "measured of cross_entropy alone",
        ("Liger-Kernel", "cross_entropy"): "not installed: pip install liger-kernel",
        ("QuACK", "mse_loss"): "measured of cross_entropy alone",
        ("QuACK", "cross_entropy"): "not installed: pip install quack-kernels",
    }


def test_a_peer_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    """It is installed, and says what it lacks."""
    monkeypatch.setattr(peers, "_check_on_gpu", lambda operands: None)
    monkeypatch.setattr(peers, "cross_entropy_of", peers.cross_entropy_of.__wrapped__)
    monkeypatch.setitem(sys.modules, "triton_of_liger", None)
    (tmp_path / "liger_kernel.py").write_text("import triton_of_liger")
    monkeypatch.syspath_prepend(tmp_path)
    result = report(capsys, "cross_entropy", "--elements", "12x5", "--peer", "Liger-Kernel")
    reasons = {row["peer"]: row["reason"] for row in result["left_out"]}
    assert reasons["Liger-Kernel"].startswith("ModuleNotFoundError: import of triton_of_liger")


@pytest.mark.parametrize("error", ["OSError", "ImportError"])
def test_a_torch_that_cannot_be_imported(
    error: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    """It is installed, and says what it lacks; all others are measured."""
    (tmp_path / "torch.py").write_text(f"raise {error}('libcudart.so.13: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")
    result = report(capsys, "mse_loss", "--elements", "30", "--peer", "plain", "--peer", "torch")
    assert {row["peer"] for row in result["results"]} == {"cupy_losses", "plain"}
    (left_out,) = result["left_out"]
    assert left_out["reason"] == f"{error}: libcudart.so.13: cannot open"


def test_torch_is_not_imported_for_others(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It takes a second."""
    monkeypatch.delitem(sys.modules, "torch")
    report(capsys, "mse_loss", "--elements", "30", "--peer", "plain")
    assert "torch" not in sys.modules


def test_libraries_of_kernels(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """On tensors; one that overwrites its input spoils no other's."""

    def overwriting(input: Any, target: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(input, target)
        if input.requires_grad:
            loss = loss.clone()
        with torch.no_grad():
            spoilt.append(input.data.copy_(torch.zeros_like(input)))
        return loss

    spoilt: list[Any] = []
    compiled: list[Any] = []

    def compile_(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(peers, "_check_on_gpu", lambda operands: None)
    monkeypatch.setattr(torch, "compile", compile_)
    # Into the dictionary: to look for the module would import it, which takes a second.
    reset = SimpleNamespace(reset=lambda: compiled.clear())
    monkeypatch.setitem(vars(torch), "_dynamo", reset)
    kernels = {"liger-kernel": overwriting, "quack-kernels": torch.nn.functional.cross_entropy}
    monkeypatch.setattr(peers, "cross_entropy_of", kernels.get)
    result = report(capsys, "cross_entropy", "--elements", "12x5", "--no-gradient")
    assert len(result["results"]) == 1 + len(peers.PEERS)
    assert not [row for row in result["results"] if row["failure"]]
    assert compiled == [torch.nn.functional.cross_entropy]
    assert len(spoilt) == 2


SOME = [
    ("mse_loss", (1000,)),
    ("huber_loss", (33, 21)),
    ("cross_entropy", (33, 21)),
    ("cross_entropy", (5, 7, 3)),
    ("cross_entropy", (100,)),
    ("triplet_margin_loss", (33, 21)),
    ("cosine_embedding_loss", (100,)),
    ("multilabel_margin_loss", (33, 21)),
]


@pytest.mark.parametrize(("name", "shape"), SOME)
def test_operands_repeat(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is drawn; what is right of all follows from what is right of it."""
    monkeypatch.setattr(problem, "PART", 64)
    monkeypatch.setattr(evaluation, "PART", 64)
    whole = Problem(losses.find(name), shape, "float64")
    part = whole.part().shape[0]
    in_rows = name == "mse_loss" or len(shape) > 1
    assert part == (max(1, 64 // math.prod(shape[1:])) if in_rows else shape[0])
    drawn = Drawn(whole, np)
    for operand in drawn.operands if in_rows else ():
        np.testing.assert_array_equal(operand, np.resize(operand[:part], operand.shape))
    value, gradient = value_and_grad(whole.function.function)(*drawn.operands)
    assert drawn.error(value) < 1e-14
    assert drawn.error_of_both((value, gradient)) < 1e-13
    for wrong in (1.0 + 1e-6, math.nan):
        with pytest.raises(WrongError, match="the loss is"):
            drawn.error_of_both((wrong * value, gradient))
        with pytest.raises(WrongError, match="relative error"):
            drawn.error_of_gradient(wrong * gradient)
    for end, offset in itertools.product((0, -1), (1.0, math.nan)):
        spoilt = gradient.copy()
        spoilt[end] += offset
        with pytest.raises(WrongError, match="relative error"):
            drawn.error_of_gradient(spoilt)
    with pytest.raises(WrongError, match="has shape"):
        drawn.error_of_gradient(gradient[..., :-1])


def test_gradients_that_float16_has_no_numbers_for() -> None:
    """Those of a mean of very many elements are rounded to 0, which is as near as it gets."""
    drawn = Drawn(Problem(losses.find("mse_loss"), (8,), "float16"), np)
    drawn._gradient = np.full(8, 1e-8)
    assert drawn.error_of_gradient(np.zeros(8, np.float16)) == 0.0
    for wrong in (2.0**-22, math.nan):
        with pytest.raises(WrongError):
            drawn.error_of_gradient(np.full(8, wrong, np.float16))


def test_bytes_that_must_be_moved() -> None:
    """Of a row one score where no other is read, and labels up to their end."""

    def moved(name: str, gradient: bool) -> int:
        return Problem(losses.find(name), (10, 100), "float16").bytes_moved(gradient)

    assert moved("mse_loss", False) == 2 * 2000
    assert moved("triplet_margin_loss", True) == 4 * 2000
    assert moved("cosine_embedding_loss", False) == 2 * 2000 + 10 * 2
    assert moved("nll_loss", False) == 10 * (2 + 8)
    assert moved("nll_loss", True) == 10 * (2 + 8) + 2000
    assert moved("multilabel_margin_loss", False) == 2000 + 10 * 9 * 8


def test_memory_of_a_device() -> None:
    """What is free of it."""
    runtime = SimpleNamespace(memGetInfo=lambda: (3, 5))
    assert synthetic.memory(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))) == 3
    assert synthetic.memory(np) > 1 << 28


def test_default_sizes_fit(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In the memory that is there: three times the operands and the gradient."""
    monkeypatch.setattr("cupy_losses._commands.synthetic.memory", lambda xp: 3 * 12 << 16)
    result = report(capsys, "mse_loss", "cross_entropy", "--peer", "torch", "--no-gradient")
    sizes = [row["shape"] for row in result["limits"]]
    assert sizes[:3] == [[1 << 10], [1 << 13], [1 << 16]]
    bytes_of = [4 * 2 * math.prod(shape) + 8 * shape[0] for shape in sizes[3:]]
    assert [shape[1] for shape in sizes[3:]] == [10, 100, 1000, 10000]
    assert all(6 << 16 < size <= 12 << 16 for size in bytes_of)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("no_loss", "'no_loss' is not one of"),
        ("--peer jax", "'jax' is not one of 'plain', 'torch'"),
        ("--elements 0", "must be lengths of at least 1, such as 32768x32768, got '0'"),
        ("--elements 3x", "must be lengths of at least 1, such as 32768x32768, got '3x'"),
        (
            "--elements 3 --elements 9999999x9999999",
            "mse_loss 9999999 × 9999999 takes 3.35e+06 GiB",
        ),
        ("--dtype int3", "'int3' is not one of 'float16'"),
        ("--plot a.pdf", "--plot must be a .png or a .svg file, got a.pdf"),
        ("--plot nowhere/a.png", "--plot: there is no folder nowhere"),
        ("--plot=", "--plot must be a .png or a .svg file, got ."),
        (f"--elements {10**400}", "--elements must be fewer than 2^63 elements"),
    ],
)
def test_wrong_arguments(arguments: str, message: str, capsys: Any) -> None:
    code, out, err = bench(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_nothing_is_measured_for_a_picture_that_cannot_be_drawn(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(Comparison, "add", fails)
    code, out, err = bench(capsys, "--plot", "a.png")
    assert (code, out) == (1, "")
    assert 'pictures need matplotlib: pip install "cupy-losses[plot]"' in err


def test_memory_that_is_not_there(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(problem: Any, xp: Any) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(comparison, "Drawn", fail)
    code, _, err = bench(capsys)
    assert (code, err) == (1, "Error: not enough memory: Unable to allocate 3 TiB\n")


def test_interrupted(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a peer computes: it is not taken for a failure of the peer."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    plant(monkeypatch, "torch", interrupt, interrupt)
    code, out, err = bench(capsys, "--elements", "12x5")
    assert (code, out) == (130, "")
    assert err.strip() == "cupy-losses: interrupted"


def test_progress(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal alone."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = bench(capsys, "mse_loss", "--elements", "30", "--peer", "torch")
    assert code == 0
    assert "100%" in err


def test_what_is_said() -> None:
    """As often as there are steps."""
    said: list[str] = []
    names = ["cupy_losses", "QuACK"]
    of = Problem(losses.find("mse_loss"), (30,), "float32")
    Comparison().add(of, np, names, False, said.append)
    assert said == [f"mse_loss 30: {what}" for what in ("operands", *names, "all in turn")]
    assert len(said) == comparison.steps(names)


def test_memory_of_a_device_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CuPy keeps, and what torch does."""
    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append("CuPy"))
    cupy = SimpleNamespace(get_default_memory_pool=lambda: pool)
    monkeypatch.setattr(driver, "cupy", lambda: cupy)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("torch"))
    peers.free_memory()
    assert freed == ["CuPy", "torch"]


def test_threads_of_torch_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with peers.on_one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("file", ["a.png", "a.svg"])
def test_pictures(file: str, capsys: Any, tmp_path: Path) -> None:
    """Beside the tables, of what is in them."""
    path = tmp_path / file
    code, out, _ = bench(capsys, "nll_loss", "--elements", "12x5", "--plot", str(path))
    assert code == 0
    assert "nll_loss and its gradient, float32" in out
    assert out.endswith(f"\nwrote {path}\n")
    assert path.read_bytes().startswith(b"\x89PNG" if file == "a.png" else b"<?xml")


def test_no_picture_of_a_folder(capsys: Any, tmp_path: Path) -> None:
    """Nothing is measured for it."""
    folder = tmp_path / "a.png"
    folder.mkdir()
    code, out, err = bench(capsys, "--elements", "30", "--plot", str(folder))
    assert (code, out) == (2, "")
    assert "a.png is a folder" in " ".join(err.split())


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_picture_that_cannot_be_written(json: list[str], capsys: Any) -> None:
    """What was measured is printed all the same."""
    arguments = ["mse_loss", "--elements", "30", "--plot", "/proc/a.png", *json]
    code, out, err = bench(capsys, *arguments)
    assert code == 1
    assert "mse_loss" in out
    assert err == "Error: /proc/a.png: No such file or directory\n"


def results(
    loss: str, row: int | None, peer: str, *found: tuple[int, float | None]
) -> list[Result]:
    """Bandwidths over the size, without a gradient."""
    return [
        Result(loss, [rows, row] if row else [rows], row and rows, "float32", False, peer, 1.0, x)
        if x is not None
        else Result(loss, [rows], row and rows, "float32", False, peer, failure="wrong: it is")
        for rows, x in found
    ]


def test_what_is_drawn() -> None:
    """A line of the bandwidth over the size for each peer, and the limit; no failures."""
    from matplotlib.figure import Figure

    compared = Comparison(
        [
            *results("mse_loss", None, "cupy_losses", (100, 3.0), (10, 2.0)),
            *results("mse_loss", None, "torch", (100, None), (10, 1.0)),
            *results("cross_entropy", 1, "cupy_losses", (7, 4.0)),
        ],
        [
            *results("mse_loss", None, "a sum", (100, 5.0), (10, 4.0)),
            *results("cross_entropy", 1, "a sum", (7, 6.0)),
        ],
    )
    figure = Figure()
    bandwidth.fill(figure, compared, "where and when")
    first, second = figure.axes
    lines = [tuple(np.asarray(data).tolist() for data in line.get_data()) for line in first.lines]
    assert lines == [([10, 100], [2, 3]), ([10], [1]), ([10, 100], [4, 5])]
    assert (first.get_title(), first.get_xlabel()) == ("mse_loss, float32", "elements")
    assert (second.get_title(), second.get_xlabel()) == ("cross_entropy, float32", "classes")
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["cupy_losses", "limit: a sum of as many bytes", "torch"]
    assert "where and when" in [text.get_text() for text in figure.texts]
    assert len(bandwidth.draw(compared, "where and when", "png")) > 1000


def test_a_line_for_every_peer() -> None:
    assert set(bandwidth.LINES) == {"cupy_losses", *peers.PEERS}
    assert len({line[0] for line in bandwidth.LINES.values()}) == len(bandwidth.LINES)


def test_environment_of_a_gpu() -> None:
    """What a stand-in for CuPy says, and the line under a picture."""
    runtime = SimpleNamespace(
        getDevice=lambda: 1,
        getDeviceProperties=lambda device: {"name": b"A GPU", "multiProcessorCount": 100 + device},
        driverGetVersion=lambda: 13010,
        runtimeGetVersion=lambda: 12090,
    )
    xp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), __version__="14.2.0")
    facts = environment.environment(xp)
    assert facts["gpu"] == "A GPU"
    assert facts["multiprocessors"] == 101
    assert facts["driver"] == "CUDA 13.1"
    facts |= {"torch": None, "triton": None, "date": "2026-11-23"}
    version = cupy_losses.__version__
    caption = f"A GPU, cuda 12.9, cupy_losses {version}, cupy 14.2.0, numpy {np.__version__}, "
    assert environment.caption(facts) == f"{caption}2026-11-23"


def test_on_a_device(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """An emulated one, that has no events to take the time with, and does not sum or copy."""
    emulator.require()
    monkeypatch.setattr(timing, "on_device", stand_in)
    monkeypatch.setattr(comparison, "limits_of", lambda *_: [Work("a sum", False, dict)])
    monkeypatch.setattr(problem, "PART", 40)
    monkeypatch.setattr(evaluation, "PART", 40)
    freed = []
    monkeypatch.setattr(peers, "free_memory", lambda: freed.append(1))
    monkeypatch.setattr("cupy_losses._commands.synthetic.memory", lambda xp: 1 << 30)
    monkeypatch.setattr(
        "cupy_losses._commands.bench.environment", lambda xp: {"gpu": "emulated", "date": "now"}
    )
    with emulator.installed(seed=1) as device:
        import cupy

        monkeypatch.setattr("cupy_losses._commands.backends.choose", lambda _: (cupy, "it", "so"))
        assert main(["bench", "--elements", "9x7", "--json", "--peer", "torch"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert device.launches
    assert len(freed) == 2
    assert (result["backend"], result["environment"]["gpu"]) == ("it", "emulated")
    assert [row["peer"] for row in result["results"]] == ["cupy_losses"] * 4
    assert max(row["error"] for row in result["results"]) < 2**-21
    assert {row["reason"] for row in result["left_out"]} == {"torch finds no GPU"}


@pytest.mark.parametrize("gradient", [False, True])
def test_limits(gradient: bool) -> None:
    """They read, or read and write, as many bytes as the loss must move."""
    moved: list[int] = []

    class Numbers:
        """An array of the bytes of it."""

        def __init__(self, size: int) -> None:
            self.size = size

        def __getitem__(self, part: slice) -> Numbers:
            return Numbers(len(range(*part.indices(self.size))))

        def sum(self) -> None:
            moved.append(4 * self.size)

    xp = SimpleNamespace(
        ones=lambda size, dtype: Numbers(size),
        float32=np.float32,
        copyto=lambda to, source: moved.append(4 * (to.size + source.size)),
    )
    of = Problem(losses.find("mse_loss"), (1000,), "float32")
    limits = comparison.limits_of(of, gradient, xp)
    for limit in limits:
        limit()
        assert limit.failure is None
    assert moved == [8000, 12000][: len(limits)]
    assert [limit.gradient for limit in limits] == [False, True][: 1 + gradient]


class Clock:
    """A clock that moves by what is said."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    stand_in = SimpleNamespace(perf_counter=clock, process_time=clock)
    monkeypatch.setattr(timing, "time", stand_in)
    return clock


def taking(clock: Clock, *seconds: float) -> Callable[[], None]:
    """A work that takes so long, the last time again and again."""
    left = [*seconds]

    def work() -> None:
        clock.now += left.pop(0) if len(left) > 1 else left[0]

    return work


def test_times_of_the_host(clock: Clock) -> None:
    """Medians of runs that are long enough for a clock, in turn."""
    works = {"short": taking(clock, 1e-3), "long": taking(clock, 1.0, 0.5, 7.0, 0.1, 0.2)}
    assert ON_HOST(works, 3) == pytest.approx({"short": 1.0, "long": 200.0})
    clock.now = 0.0
    ON_HOST({"short": taking(clock, 1e-3)}, 4)
    assert clock.now == pytest.approx(2e-3 + 4 * timing.AT_LEAST)


def test_slow_works_run_less_often(clock: Clock) -> None:
    ON_HOST({"slow": taking(clock, timing.SECONDS)})
    assert clock.now == (2 + timing.FEWEST) * timing.SECONDS


def test_what_waits_compiles() -> None:
    """On the device it gives the host the time to launch."""
    nvrtc = requirements.nvrtc()
    program = nvrtc.createProgram(sources.source(timing.WAIT), timing.WAIT, (), ())
    try:
        nvrtc.addNameExpression(program, "wait")
        nvrtc.compileProgram(program, (*timing.OPTIONS, "-arch=sm_90"))
        assert nvrtc.getLoweredName(program, "wait")
    finally:
        nvrtc.destroyProgram(program)


def test_times_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each run the cache is emptied and the device waits; neither is in the time."""
    said: list[str] = []

    class Event:
        def record(self) -> None:
            said.append("event")

        def synchronize(self) -> None:
            said.append("synchronize")

    def zeros(size: int, dtype: Any) -> Any:
        assert size * np.dtype(dtype).itemsize == timing.CACHES * 1000
        return SimpleNamespace(sum=lambda: said.append("empty"))

    cuda = SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda begin, end: 3.0,
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    cupy = SimpleNamespace(cuda=cuda, zeros=zeros, float32=np.float32)
    monkeypatch.setattr(driver, "cupy", lambda: cupy)
    monkeypatch.setattr(driver, "cache_bytes", lambda device: 1000)
    monkeypatch.setattr(driver, "compile", lambda *_: lambda *arguments: said.append("wait"))
    assert timing.on_device({"it": lambda: said.append("work")}, 2) == {"it": 3.0}
    run = ["empty", "wait", "event", "work", "event", "synchronize"]
    assert said == ["work", *run, *run]

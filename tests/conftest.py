"""Fixtures and the levels of the suite.

Test functions run on every array library that this machine has.

Without a GPU no test that needs one is collected: of the libraries only those without a GPU are
parametrised, and tests marked `gpu` are deselected. Those marked `gpu("jax")` are, too, where JAX
is missing or finds no GPU. The terminal summary says how many.

`pytest` runs the default level. It holds every test function but those of mutants, every loss on
every library, and every kind of kernel on the emulator and through NVRTC: pointwise, sums of
gradients, scaling, rows of a few threads, of a block, of a cluster, of two launches and across
memory. Where parameters multiply, it holds a part of the product, in which each value of each
parameter occurs: tests/tools/levels.py chooses. One seed of the emulator's scheduler stands for
all, and one architecture.

`pytest -m exhaustive` runs the rest: all specialisations, seeds, layouts, dtypes and
architectures, and a sample of mutants. `pytest -m ""` runs both. CI leaves out those of them that
are marked `release`: mutants, kernels on the emulator, which take long to compile, and of what it
compiles more examples and architectures. Run them before a release and after a change of kernels.

`pytest -m quick` runs what the default level has on small NumPy arrays, and a few kernels on the
emulator.
"""

from __future__ import annotations

import functools
import gc
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest

from .tables import foreign
from .tables.arrays import Library

# Libraries of arrays on the host, and the library that has the same arrays on a GPU.
ON_GPU = {"numpy": "cupy", "torch": "torch cuda"}
FIXTURES = {"library": ("numpy", "torch"), "torch_library": ("torch",)}
LEFT_OUT = pytest.StashKey[dict[str, int]]()
EXHAUSTIVE = "are exhaustive: pytest -m exhaustive runs them"


@functools.cache
def gpu_problem() -> str:
    """Why there is no GPU for the tests; "" where there is one."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
        cupy.zeros(1).sum().get()
    except Exception as error:
        return f"no GPU: {str(error).splitlines()[0]}"
    return ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `library` and `torch_library`, on a GPU only where there is one."""
    for fixture, names in FIXTURES.items():
        if fixture in metafunc.fixturenames:
            values = [pytest.param(Library(name), id=name) for name in names]
            if not gpu_problem():
                values += [
                    pytest.param(Library(ON_GPU[name]), id=ON_GPU[name], marks=pytest.mark.gpu)
                    for name in names
                ]
            metafunc.parametrize(fixture, values)


def is_quick(item: pytest.Item) -> bool:
    """Whether a test is one of the default on NumPy arrays that are not large."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    on_numpy = str(parameters.get("library")) == "numpy" and parameters.get("size", 0) < 10_000
    return on_numpy and item.get_closest_marker("exhaustive") is None


def is_of_a_release(item: pytest.Item) -> bool:
    """Whether an exhaustive test takes too long for CI: the emulator compiles its kernels."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker("exhaustive") is None:
        return False
    return item.module.__package__ == "tests.kernels" and hasattr(item.module, "installed")


def would_run_on_a_gpu(item: pytest.Item) -> bool:
    """Whether a test runs once more where there is a GPU."""
    return isinstance(item, pytest.Function) and not FIXTURES.keys().isdisjoint(item.fixturenames)


def lacking(item: pytest.Item) -> str:
    """What a test lacks on this machine; "" where it can run."""
    marks = list(item.iter_markers("gpu"))
    if marks and gpu_problem():
        return f"need a GPU ({gpu_problem()})"
    names = [name for mark in marks for name in mark.args if not foreign.finds_gpu(name)]
    return f"need {' and '.join(names)} with CUDA" if names else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, and look in nothing that is there from then on.

    A search through all modules and tests takes a fraction of a second, and there would be many.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Deselect what cannot run on this machine, and count what is left out.

    The count is of what the other options select.
    """
    exhaustive = sum(item.get_closest_marker("exhaustive") is not None for item in items)
    for item in filter(is_quick, items):
        item.add_marker("quick")
    for item in filter(is_of_a_release, items):
        item.add_marker("release")
    yield
    exhaustive -= sum(item.get_closest_marker("exhaustive") is not None for item in items)
    reason_of = {item: lacking(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if reason_of[item]])
    items[:] = [item for item in items if not reason_of[item]]
    left_out = Counter({EXHAUSTIVE: exhaustive}) + Counter(filter(None, reason_of.values()))
    if gpu_problem():
        left_out[f"need a GPU ({gpu_problem()})"] += sum(map(would_run_on_a_gpu, items))
    config.stash[LEFT_OUT] = dict(left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports, where tests run in several, what was left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear it. Every process collects the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests were left out and why."""
    for reason, count in config.stash.get(LEFT_OUT, {}).items():
        if count:
            terminalreporter.write_line(f"{count} tests are left out: they {reason}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The package has kept nothing, for a test that hides another package, nor afterwards."""
    from .emulator.cupy_lookalike import forget

    forget()
    yield
    forget()


@pytest.fixture(autouse=True)
def _no_grad_leaks(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Tests leave torch's gradient mode as they find it; its numbers depend on the name alone."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
    before = torch.is_grad_enabled()
    yield
    assert torch.is_grad_enabled() == before

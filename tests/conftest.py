"""Fixtures: test functions run on every array library that this machine has."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from .tables.arrays import Library

LIBRARIES = ("numpy", "torch", "cupy", "torch cuda")


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


def needs_gpu(name: str) -> bool:
    """Whether a library has its arrays on a GPU."""
    return name in ("cupy", "torch cuda")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `library` and `torch_library`; those on a GPU are marked so."""
    for fixture, names in (("library", LIBRARIES), ("torch_library", ("torch", "torch cuda"))):
        if fixture in metafunc.fixturenames:
            values = [
                pytest.param(
                    Library(name), id=name, marks=[pytest.mark.gpu] if needs_gpu(name) else []
                )
                for name in names
            ]
            metafunc.parametrize(fixture, values)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("gpu") and gpu_problem():
            item.add_marker(pytest.mark.skip(reason=gpu_problem()))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the name of the test alone."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture(autouse=True)
def _no_grad_leaks() -> Iterator[Any]:
    """Tests leave torch's gradient mode as they find it."""
    import torch

    before = torch.is_grad_enabled()
    yield
    assert torch.is_grad_enabled() == before

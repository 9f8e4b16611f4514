"""Kernels are compiled once each, and side by side where a plan needs several."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, thread
from types import SimpleNamespace
from typing import Any

import pytest

from cupy_losses._device import compiler, driver
from cupy_losses._device.compiler import Specialisation

FILE = "kernels/scale.cu"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are compiled meanwhile, none of them by a compiler."""
    names: list[str] = []

    def compile(code: str, name: str, options: tuple[str, ...]) -> Any:
        names.append(name)
        return SimpleNamespace(kernel=SimpleNamespace(ptr=len(names)))

    device = threading.local()
    monkeypatch.setattr(driver, "compile", compile)
    monkeypatch.setattr(driver, "use_device", lambda number: using(device, number))
    monkeypatch.setattr(driver, "occupancy", lambda *_: 1 if device.number == 3 else 0)
    monkeypatch.setattr(driver, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(compiler, "compile_options", tuple)
    monkeypatch.setattr(compiler, "_kernels", {})
    return names


@contextlib.contextmanager
def using(device: threading.local, number: int) -> Iterator[None]:
    """A context in which a thread has a device."""
    device.number = number
    yield
    del device.number


def wanted(*names: str) -> list[Specialisation]:
    return [Specialisation(FILE, name, 256, 3) for name in names]


def test_each_is_compiled_once(compiled: list[str]) -> None:
    first, second, again = compiler.kernels(wanted("a", "b", "a"))
    assert first is again
    assert first.pointer != second.pointer
    assert compiler.kernels(wanted("b", "a")) == [second, first]
    assert sorted(compiled) == ["a", "b"]


def test_a_thread_works_on_the_device_of_its_kernel(compiled: list[str]) -> None:
    assert [kernel.resident_blocks for kernel in compiler.kernels(wanted("a", "b"))] == [132, 132]
    assert [kernel.resident_blocks for kernel in compiler.kernels(wanted("c"))] == [132]


def test_side_by_side(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a thread for each kernel that is missing; one kernel needs no other thread."""
    threads, alone = [], driver.compile
    pools: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, size: int) -> None:
            pools.append(size)
            super().__init__(size)

    def compile(code: str, name: str, options: tuple[str, ...]) -> Any:
        threads.append(threading.current_thread())
        return alone(code, name, options)

    monkeypatch.setattr(compiler, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(driver, "compile", compile)
    compiler.kernels(wanted("a"))
    assert threads == [threading.current_thread()]
    compiler.kernels(wanted("a", "b", "c"))
    assert pools == [2]
    assert threading.current_thread() not in threads[1:]
    assert len(threads) == 3


def test_one_by_one_when_the_interpreter_ends(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what `atexit` runs, no more threads are started."""
    monkeypatch.setattr(thread, "_shutdown", True)
    with pytest.raises(RuntimeError, match="after interpreter shutdown"):
        ThreadPoolExecutor(1).submit(print)
    assert len(compiler.kernels(wanted("a", "b"))) == 2
    assert compiled == ["a", "b"]


def test_what_fails_is_tried_again(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = driver.compile

    def compile(code: str, name: str, options: tuple[str, ...]) -> Any:
        if name == "wrong":
            raise driver.CompileError("wrong.cu(1): error: wrong")
        return alone(code, name, options)

    monkeypatch.setattr(driver, "compile", compile)
    for _ in range(2):
        with pytest.raises(driver.CompileError):
            compiler.kernels(wanted("a", "wrong"))
    assert len(compiler.kernels(wanted("a"))) == 1


def test_other_threads_load_what_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one compiles ahead, which loads nothing."""
    cupy = pytest.importorskip("cupy")
    failures: list[Exception] = []

    def load_another() -> None:
        try:
            cupy.cuda.compiler.function.Module().load(b"no kernel")
        except Exception as error:
            failures.append(error)

    def compile(*arguments: Any, **options: Any) -> None:
        assert cupy.cuda.compiler.function.Module().load(b"no kernel") is None
        assert cupy.cuda.compiler.function.LinkState
        other = threading.Thread(target=load_another)
        other.start()
        other.join()

    monkeypatch.setattr(cupy._core.core, "compile_with_cache", compile)
    before = cupy.cuda.compiler.function
    driver.compile_ahead("", "name", (), 90)
    assert len(failures) == 1
    assert cupy.cuda.compiler.function is before


@pytest.mark.quick
def test_an_architecture_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="not compiled ahead for architecture 61, only for 70, 75"):
        driver.shared_memory(-61)


@pytest.mark.quick
def test_shared_memory_that_blocks_do_not_take_is_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Percent of 228 KiB; plans of the same kernel keep the most that one of them needs."""
    loaded = SimpleNamespace(
        max_dynamic_shared_size_bytes=48 << 10,
        preferred_shared_memory_carveout=-1,
        shared_size_bytes=1 << 10,
    )
    monkeypatch.setattr(driver, "shared_memory_of_multiprocessor", lambda _: 228 << 10)
    monkeypatch.setattr(driver, "occupancy", lambda *_: 2)
    for kib, percent in ((10, 11), (100, 90), (10, 90), (120, 100)):
        wanted = Specialisation("", "", 256, 0, shared=kib << 10)
        assert compiler._give_shared_memory(loaded, 0, wanted) == 2
        assert loaded.preferred_shared_memory_carveout == percent
    assert loaded.max_dynamic_shared_size_bytes == 120 << 10

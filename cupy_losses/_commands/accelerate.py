"""A program of torch, whose losses this package computes."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import io
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from .. import accelerate


def main(arguments: Sequence[str]) -> int:
    """Run the program, whose exit code and errors are its own; as Python's if there is none."""
    # What comes behind the program is the program's, also what looks like an option.
    options = [k for k, x in enumerate(arguments) if not x.startswith("-")][:1]
    end = options[0] + 1 if options else len(arguments)
    chosen = _parser().parse_args(arguments[:end])
    program = chosen.program
    sys.argv = [program, *arguments[end:]]
    module = ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    others = threading.enumerate()
    try:
        acceleration = accelerate()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(f"cupy-losses: {error}", file=sys.stderr)
        return 2
    with acceleration:
        try:
            code = _of_module(program, module) if chosen.module else _of_file(program, module)
            if code is None:
                what = "module" if chosen.module else "file"
                if there := not chosen.module and Path(program).exists():
                    what = "__main__ in"
                print(f"cupy-losses: there is no {what} {program}", file=sys.stderr)
                return 1 if chosen.module or there else 2
            # It stays there: threads, pickle and other processes may ask for it until the end.
            sys.modules["__main__"] = module
            if "__mp_main__" in sys.modules:
                sys.modules["__mp_main__"] = module
            exec(code, vars(module))
        except SystemExit:
            raise
        except BaseException:
            sys.excepthook = _hook_of_program(sys.excepthook)
            raise
        finally:
            _join_all_but(others)
            if chosen.report and sys.modules["__main__"] is module:
                print(f"\n{acceleration.report(measure=True)}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    """By the standard library alone: a program is run without the extra `cli`."""
    parser = argparse.ArgumentParser(
        prog="cupy-losses accelerate",
        usage="%(prog)s [-h] [--report] [-m] PROGRAM ...",
        description="Run a Python program as `python` does, with cupy_losses.accelerate() on.",
        epilog="What follows PROGRAM are its arguments.",
    )
    parser.add_argument(
        "--report", action="store_true", help="at the end, print to stderr what was computed"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a file, or with -m a module")
    return parser


def _of_file(program: str, module: ModuleType) -> CodeType | None:
    """The code of a file, or of what a folder or an archive has as `__main__`."""
    path = Path(program)
    if not path.exists():
        return None
    importer = pkgutil.get_importer(os.path.abspath(program))
    if importer is not None:
        spec = importer.find_spec("__main__")
        sys.path[0] = os.path.abspath(program)
        return None if spec is None else _of_spec(spec, module)
    _begin_path(str(path.resolve().parent))
    vars(module).update(__file__=os.path.abspath(program), __cached__=None)
    with io.open_code(os.path.abspath(program)) as file:
        return compile(file.read(), os.path.abspath(program), "exec")


def _of_module(program: str, module: ModuleType) -> CodeType | None:
    """The code of a module, or that of the `__main__` of a package."""
    _begin_path(str(Path.cwd()))
    spec = _found(program)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _found(f"{program}.__main__")
    if spec is None:
        return None
    if spec.origin is not None:
        sys.argv[0] = spec.origin
    return _of_spec(spec, module)


def _found(name: str) -> ModuleSpec | None:
    if name.startswith("."):
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # of the package that it would be in
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _of_spec(spec: ModuleSpec, module: ModuleType) -> CodeType | None:
    loader: Any = spec.loader
    vars(module).update(
        __spec__=spec,
        __loader__=loader,
        __package__=spec.parent,
        __file__=spec.origin,
        __cached__=spec.cached,
    )
    code: CodeType | None = loader.get_code(spec.name)
    return code


def _begin_path(folder: str) -> None:
    """Let modules be found where Python would: first in a folder, but for its option -P."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _join_all_but(others: Sequence[threading.Thread]) -> None:
    """Wait for the threads that Python waits for at the end of a program."""
    for thread in threading.enumerate():
        if not thread.daemon and thread not in others:
            thread.join()


def _hook_of_program(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook for errors, to which tracebacks go without the frames that ran the program."""

    def of_program(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        rest = traceback
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == __file__:
                rest = traceback.tb_next
            traceback = traceback.tb_next
        hook(kind, error.with_traceback(rest), rest)

    return of_program

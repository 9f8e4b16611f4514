"""A program of torch, whose losses this package computes."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .. import accelerate


def main(arguments: Sequence[str]) -> int:
    """Run the program, whose exit code and errors are its own; as Python's if there is none."""
    chosen = _parser().parse_args(arguments)
    program = chosen.program
    # As Python does: the folder of the program, or with -m the one that is current.
    sys.path[0] = str(Path.cwd() if chosen.module else Path(program).resolve().parent)
    if not _is_there(program, chosen.module):
        what = "module" if chosen.module else "file"
        print(f"cupy-losses: there is no {what} {program}", file=sys.stderr)
        return 1 if chosen.module else 2
    sys.argv = [program, *chosen.arguments]
    with accelerate() as acceleration:
        try:
            if chosen.module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(os.path.abspath(program), run_name="__main__")
        except Exception as error:
            error = error.with_traceback(_of_program(error.__traceback__))
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)
        finally:
            if chosen.report:
                print(f"\n{acceleration.report(measure=True)}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    """By the standard library alone: a program is run without the extra `cli`."""
    parser = argparse.ArgumentParser(
        prog="cupy-losses accelerate",
        description="Run a Python program as `python` does, with cupy_losses.accelerate() on.",
    )
    parser.add_argument(
        "--report", action="store_true", help="at the end, print to stderr what was computed"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a file, or with -m a module")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the arguments of the program"
    )
    return parser


def _is_there(program: str, module: bool) -> bool:
    if not module:
        return Path(program).exists()
    try:
        return importlib.util.find_spec(program) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that ran the program."""
    above = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in above:
        traceback = traceback.tb_next
    return traceback

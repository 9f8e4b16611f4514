"""A program of torch, whose losses this package computes."""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import accelerate


def add_parser(commands: Any) -> None:
    """Add the subcommand to the argument parser."""
    parser = commands.add_parser(
        "accelerate",
        help="run a program of torch with the losses of this package",
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the program, whose exit code and errors are its own."""
    program = arguments.program
    # As Python does: the folder of the program, or with -m the one that is current.
    sys.path[0] = str(Path.cwd() if arguments.module else Path(program).resolve().parent)
    if not _is_there(program, arguments.module):
        what = "module" if arguments.module else "file"
        raise FileNotFoundError(f"there is no {what} {program}")
    sys.argv = [program, *arguments.arguments]
    with accelerate() as acceleration:
        try:
            if arguments.module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
        except Exception as error:
            error = error.with_traceback(_of_program(error.__traceback__))
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)
        finally:
            if arguments.report:
                print(f"\n{acceleration.report(measure=True)}", file=sys.stderr)


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

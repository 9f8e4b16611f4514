"""The console script: its subcommands, and what becomes of errors and warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import click

from .. import __version__
from .bench import command as bench_command
from .compile import command as compile_command
from .evaluate import command as evaluate_command
from .info import command as info_command
from .plot import command as plot_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
def _program() -> None:
    """Losses and gradients on NVIDIA GPUs, or on the host."""


@click.command("accelerate", short_help="Run a program of torch with these losses.")
def _accelerate() -> None:
    """Run a Python program of torch with the losses of this package.

    `cupy-losses accelerate --help` says how: it comes before this program, as it needs no click.
    """


_program.add_command(_accelerate)
for _command in (bench_command, compile_command, evaluate_command, info_command, plot_command):
    _program.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a subcommand; the exit code: 2 for a mistake in the arguments, 1 for any other error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return int(_program.main([*arguments], "cupy-losses", standalone_mode=False) or 0)
        except click.ClickException as error:
            if isinstance(error, click.UsageError):
                caught.clear()  # nothing was computed
            error.show()
            return error.exit_code
        except click.Abort:
            print("cupy-losses: interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:
            raise
        except (MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            print(f"Error: {_sentence(error)}", file=sys.stderr)
            return 1
        finally:
            for message in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"Warning: {message}", file=sys.stderr)


def _sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return f"not enough memory: {text}" if isinstance(error, MemoryError) else text

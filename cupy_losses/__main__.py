"""The console script `cupy-losses`, also `python -m cupy_losses`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from ._commands import accelerate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit code, 0 if it succeeded."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["accelerate"]:
        # Not through click, which would answer to what interrupts the program that is run.
        return accelerate.main(given[1:])
    try:
        from ._commands import program
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            'cupy-losses: the command line needs click and rich: pip install "cupy-losses[cli]"',
            file=sys.stderr,
        )
        return 2
    # Either is None where it is closed. An encoding may lack a character, such as ×.
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = program.run(given)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted. Python would flush once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())

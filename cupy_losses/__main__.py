"""The console script `cupy-losses`, also `python -m cupy_losses`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__
from ._commands import accelerate, evaluate, info


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; 0 if it succeeded."""
    parser = argparse.ArgumentParser(
        prog="cupy-losses", description="Losses and gradients on NVIDIA GPUs, or on the host."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    accelerate.add_parser(commands)
    evaluate.add_parser(commands)
    info.add_parser(commands)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"cupy-losses: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

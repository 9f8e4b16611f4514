"""Run an example that is written for torch alone, as it is and accelerated; print both.

    python -m benchmarks.accelerated [--output FILE]

Seconds by the example's own clock, its start included, the shorter of two runs in turn; and the
report of the acceleration. The losses must follow one curve.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .measure import environment

EXAMPLE = Path(__file__).parents[1] / "examples" / "transformer_torch.py"
STEPS = 300
COMMANDS = {"torch": [], "accelerated": ["-m", "cupy_losses", "accelerate", "--report"]}


class Run(NamedTuple):
    """What a run prints."""

    seconds: float
    losses: list[float]
    report: str


def run(options: list[str]) -> Run:
    """Run the example in a process of its own."""
    command = [sys.executable, *options, str(EXAMPLE), "--steps", str(STEPS)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    losses = [float(loss) for loss in re.findall(r": (\d+\.\d+)$", result.stdout, re.M)]
    found = re.search(r"(\S+) s on cuda\s*(.*)", result.stderr, re.S)
    assert found is not None, result.stderr
    return Run(float(found[1]), losses, found[2].strip())


def main() -> None:
    """Print the results, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, list[Run]] = {name: [] for name in COMMANDS}
    for _ in range(2):
        for name, options in COMMANDS.items():
            runs[name].append(run(options))
    plain, accelerated = (min(each) for each in runs.values())
    # A chaotic system: rounding errors grow from step to step.
    torch.testing.assert_close(
        torch.tensor(accelerated.losses), torch.tensor(plain.losses), rtol=0.03, atol=0.0
    )
    results: dict[str, Any] = {
        "environment": environment(),
        "example": EXAMPLE.name,
        "steps": STEPS,
        **{f"{name}_s": [each.seconds for each in of_one] for name, of_one in runs.items()},
        "last_losses": {"torch": plain.losses[-1], "accelerated": accelerated.losses[-1]},
        "report": accelerated.report.splitlines(),
    }
    print(f"torch {plain.seconds:.2f} s, accelerated {accelerated.seconds:.2f} s")
    print(f"last losses {results['last_losses']}", accelerated.report, sep="\n\n")
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

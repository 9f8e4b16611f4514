"""Formats and lints the whole tree: `python -m tests.tools.lint`.

With `--check` nothing is changed, and what would be changed is an error. CI calls that.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUDA = ("*.cu", "*.cuh")


def commands(check: bool) -> list[list[str]]:
    """What to run; the tools are those of this Python's environment."""
    python = [sys.executable, "-m"]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CUDA]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    sources = [file for file in found.stdout.split() if (ROOT / file).exists()]
    clang_format = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    return [
        [*python, "ruff", "check", *(() if check else ("--fix",)), "."],
        [*python, "ruff", "format", *(("--check",) if check else ()), "."],
        [
            clang_format or "clang-format",
            *(("--dry-run", "--Werror") if check else ("-i",)),
            *sources,
        ],
        [*python, "mypy"],
        [*python, "pyright", "--pythonpath", sys.executable],
    ]


def main() -> int:
    """Run all of them; 1 if one is not content."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.tools.lint")
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    failed = [
        " ".join(Path(word).name for word in line[:4] if not word.startswith("-"))
        for line in commands(check)
        if subprocess.run(line, cwd=ROOT, check=False).returncode != 0
    ]
    print(f"failed: {', '.join(failed)}" if failed else "style, types and format: passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m cupy_losses accelerate`: programs that know nothing of this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cupy_losses
from cupy_losses.__main__ import main
from cupy_losses._acceleration import rules

from ..tools import levels

ROOT = Path(cupy_losses.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "multitask_torch.py"
PROGRAM = """
import os
import sys
import torch
from helper import loss
if __name__ == "__main__":
    os.chdir("/")
    print(sys.argv[1:], sys.argv[0].endswith("program.py"), os.path.exists(__file__), loss().item())
    if "fail" in sys.argv:
        torch.nn.functional.mse_loss(torch.ones(2), torch.ones(3))
    sys.exit(7)
"""
HELPER = """
import torch
def loss():
    return torch.nn.MSELoss()(torch.ones(2), torch.zeros(2))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program with a module beside it, and both in a package."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "program.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "cupy_losses", "accelerate", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_without_torch(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, and the exit code of a mistake in the call."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["accelerate", str(folder / "program.py")]) == 2
    message = 'cupy-losses: accelerate needs torch: pip install "cupy-losses[torch]"\n'
    assert capsys.readouterr() == ("", message)


def test_a_file(folder: Path) -> None:
    """Its arguments, options too, its name and its exit code are its own; the report is apart."""
    (folder / "elsewhere").mkdir()
    result = run(folder / "elsewhere", "--report", "../program.py", "a", "--report", "-m")
    assert result.stdout == "['a', '--report', '-m'] True True 1.0\n"
    assert result.returncode == 7
    assert "cupy_losses computed 0 of 1 calls of torch's losses." in result.stderr
    assert result.stderr.endswith("Time saved: nothing was measured.\n")


def test_a_module(folder: Path) -> None:
    """And its error: the one that Python prints without this package, and the exit code."""
    result = run(folder, "-m", "package.program", "fail")
    assert result.stdout == "['fail'] True True 1.0\n"
    assert result.returncode == 1
    frames = re.findall(r'File "(.+)", line', result.stderr)
    assert frames[0] == str(folder / "package" / "program.py")
    plain = subprocess.run(
        [sys.executable, "-m", "package.program", "fail"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert result.returncode == plain.returncode


CALLER = """
import atexit
import multiprocessing
import pickle
import sys
import threading

class Result:
    def __init__(self, number):
        self.number = number

def copied(number):
    return pickle.loads(pickle.dumps(Result(number))).number

def later():
    event.wait()
    print("thread", copied(2), flush=True)

if __name__ == "__main__":
    event = threading.Event()
    print(sys.argv, __file__, __name__, __package__, __builtins__.__name__, sys.path[0], flush=True)
    if "pool" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(Result, [1])[0].number, flush=True)
    threading.Thread(target=later).start()
    atexit.register(lambda: print("exit", copied(3)))
    event.set()
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
    if "fail" in sys.argv:
        {}["missing"]
"""


@pytest.mark.parametrize(
    "arguments",
    levels.first(
        [
            ["-m", "callers.caller", "pool", "fail"],
            ["caller.py", "interrupt"],
            ["caller.py", "pool"],
            ["caller.py", "--", "fail"],
            ["-m", "callers", "--", "-m"],
            ["callers", "fail"],
            ["callers.zip", "fail"],
            ["wrong.py"],
            ["-m", "callers.wrong"],
        ],
        count=2,
        ids=" ".join,
    ),
)
def test_as_python_runs_it(arguments: list[str], tmp_path: Path) -> None:
    """What it prints, its errors and its exit code; a module of its own hides none of ours."""
    package = tmp_path / "callers"
    package.mkdir()
    (package / "__init__.py").touch()
    for file in (tmp_path / "caller.py", package / "caller.py", package / "__main__.py"):
        file.write_text(CALLER)
    for file in (tmp_path / "wrong.py", package / "wrong.py"):
        file.write_text("def wrong(:")
    for file in (tmp_path / "statistics.py", package / "statistics.py"):
        file.write_text("raise SystemExit('that of the program')")
    with zipfile.ZipFile(tmp_path / "callers.zip", "w") as archive:
        archive.writestr("__main__.py", CALLER)
    plain = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    result = run(tmp_path, "--report", *arguments)
    assert (result.stdout, result.returncode) == (plain.stdout, plain.returncode)
    before, _, report_and_error = result.stderr.partition("\ncupy_losses computed 0 of 0 calls")
    error = report_and_error.partition("Time saved: nothing was measured.\n")[2]
    own = re.sub(r'  File "<frozen runpy>".*\n', "", plain.stderr)
    assert before + error == own


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("missing.py",), "no file missing.py", 2),
        (("folder",), "no __main__ in folder", 1),
        (("-m", "missing"), "no module missing", 1),
        (("-m", "missing.module"), "no module missing.module", 1),
    ],
)
def test_what_is_not_there(
    arguments: tuple[str, ...],
    message: str,
    code: int,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The exit codes are those of Python."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    assert main(["accelerate", *arguments]) == code
    assert message in capsys.readouterr().err


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A training program of torch follows the same curve, with all of its losses computed here."""
    monkeypatch.setattr(rules, "place_problem", lambda tensor: "")
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    curves = []
    arguments = [str(EXAMPLE), "--steps", "100", "--size", "64", "--device", "cpu"]
    for options in (["--report"], []):
        if not options:
            monkeypatch.setattr(rules, "place_problem", lambda tensor: rules.DEVICE)
        assert main(["accelerate", *options, *arguments]) == 0
        printed = capsys.readouterr()
        curves.append([float(loss) for loss in re.findall(r"step \d+: (.+)", printed.out)])
        if options:
            assert "cupy_losses computed 800 of 800 calls of torch's losses." in printed.err
    assert len(curves[0]) == 10
    assert curves[0] == pytest.approx(curves[1], abs=2e-4)
    assert curves[0][-1] < curves[0][0] / 2

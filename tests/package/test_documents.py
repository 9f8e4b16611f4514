"""The code in the documents runs, and prints and raises what they say.

A block of Python stands for itself: it runs in a namespace of its own. A block of text with the
title "prints" behind it is its output. A text with the title "error" is a message, and a block of
Python with the title "raises" behind it raises it; a message without one is a text of the sources.

A block for a GPU runs on one where there is one. Elsewhere, one of CuPy runs on the emulator and
one of torch on the CPU; what neither has, such as streams, is compiled.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import re
import runpy
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import cupy_losses
from cupy_losses._commands import program

from .. import emulator
from ..emulator import compiler
from ..tools import requirements

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r'^```(\w+)(?: title="(\w+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ("README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))))
ANYTHING = "…"  # in a message or an output: what depends on the case


class Block(NamedTuple):
    """A block of a page, and the one behind it."""

    line: int
    language: str
    title: str
    code: str
    following: Block | None

    @property
    def runs(self) -> bool:
        """Whether it is a program that ends without an error."""
        return self.language == "python" and not self.title

    @property
    def of_cupy(self) -> bool:
        return "import cupy as" in self.code

    @property
    def of_gpu(self) -> bool:
        """Whether it is for a GPU alone."""
        return self.of_cupy or re.search(r'(device=|to\()"cuda"', self.code) is not None

    @property
    def of_jax(self) -> bool:
        """Whether it needs JAX, which only the extra `arrays` brings."""
        return self.language == "python" and "import jax" in self.code

    @property
    def of_checkout(self) -> bool:
        """Whether it uses the tools of the tests."""
        return self.language == "python" and "from tests." in self.code

    @property
    def of_driver(self) -> bool:
        """Whether it uses what only a GPU has: streams, graphs."""
        return re.search(r"\b(torch\.cuda|cp\.cuda)\.", self.code) is not None

    @property
    def output(self) -> str | None:
        """What it prints, if the page says so."""
        behind = self.following
        return behind.code if behind is not None and behind.title == "prints" else None


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    following = None
    for match in reversed([*FENCE.finditer(text)]):
        line = text.count("\n", 0, match.start()) + 2
        following = Block(line, match[1], match[2] or "", match[3], following)
        found.insert(0, following)
    return found


def chosen(choice: Callable[[Block], bool]) -> list[Any]:
    """The blocks of all pages that are chosen, as cases."""
    return [
        pytest.param(page, block, id=f"{page}:{block.line}")
        for page in PAGES
        for block in blocks(page)
        if choice(block)
    ]


def run(page: str, block: Block, code: str = "") -> None:
    """Run a block, or other code in its place, and compare what it prints."""
    printed = io.StringIO()
    # Lines of a traceback are those of the page.
    program = compile("\n" * (block.line - 1) + (code or block.code), page, "exec")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(0)
        with contextlib.redirect_stdout(printed):
            exec(program, {})
    if block.output is not None:
        assert printed.getvalue() == block.output or is_like(block.output, printed.getvalue())


@pytest.mark.parametrize("page", PAGES)
def test_code(page: str) -> None:
    """All that needs neither a GPU nor the emulator nor JAX."""
    for block in blocks(page):
        if block.runs and not (block.of_gpu or block.of_checkout or block.of_jax):
            run(page, block)


def test_all_kinds_of_blocks_are_there() -> None:
    """Else a test below would have nothing to run, or a title would be misspelt."""
    found = [block for page in PAGES for block in blocks(page)]
    assert {block.title for block in found} == {"", "prints", "error", "raises"}
    for block in found:
        assert block.title != "prints" or block.language == "text"
    programs = [block for block in found if block.runs]
    for kind in ("of_cupy", "of_gpu", "of_checkout", "of_driver", "of_jax"):
        assert 1 < sum(getattr(block, kind) for block in programs) < len(programs)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize(("page", "block"), chosen(lambda block: block.runs and block.of_gpu))
def test_code_on_a_gpu(page: str, block: Block) -> None:
    run(page, block)


@pytest.mark.parametrize("page", PAGES)
def test_code_for_a_gpu_elsewhere(page: str) -> None:
    """Of torch on the CPU; what is of CuPy, or of the driver, is compiled."""
    for block in blocks(page):
        if block.runs and block.of_gpu:
            compile(block.code, page, "exec")
            if not block.of_cupy and not block.of_driver:
                run(page, block, block.code.replace('"cuda"', '"cpu"'))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("page", "block"), chosen(lambda block: block.of_cupy and not block.of_driver)
)
def test_code_on_the_emulator(page: str, block: Block) -> None:
    emulator.require()
    with emulator.installed():
        run(page, block)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "block"), chosen(lambda block: block.of_checkout))
def test_code_of_the_checkout(
    page: str, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """What debugs kernels; some of it writes files, or changes the options of the compiler."""
    emulator.require()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiler, "_KERNEL", compiler._KERNEL)
    run(page, block)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # of JAX
@pytest.mark.parametrize(("page", "block"), chosen(lambda block: block.of_jax))
def test_code_of_jax(page: str, block: Block) -> None:
    requirements.imported("jax", "arrays")
    run(page, block)


@pytest.mark.parametrize(("page", "block"), chosen(lambda block: block.title == "error"))
def test_messages(page: str, block: Block) -> None:
    """Each message that a page quotes is one of this package."""
    message = block.code.rstrip("\n")
    behind = block.following
    if behind is None or behind.title != "raises":
        assert is_of_sources(message)
        return
    with pytest.raises((TypeError, ValueError, UserWarning)) as caught:
        run(page, behind)
    raised = f"{caught.type.__name__}: {caught.value}"
    assert is_like(message, raised)


def is_like(text: str, found: str) -> bool:
    """Whether a text of a page can be what was found."""
    pattern = ".*".join(map(re.escape, text.split(ANYTHING)))
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def is_of_sources(message: str) -> bool:
    """Whether the sources have a text that can be this message, with or without its kind."""
    texts = message, message.partition(": ")[2]
    return any(source.fullmatch(text) for source in texts_of_sources() for text in texts)


@functools.cache
def texts_of_sources() -> list[re.Pattern[str]]:
    """The texts of the sources, in which what is inserted may be anything."""
    found = []
    for file in sorted(Path(cupy_losses.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            literal = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            words = " ".join(text for text in literal if isinstance(text, str)).split()
            if len(words) > 4:  # else it would be like too many messages
                pattern = "".join(".*?" if x is None else re.escape(str(x)) for x in literal)
                found.append(re.compile(pattern, re.DOTALL))
    return found


def test_a_message_that_nothing_says_is_found() -> None:
    there = "MissingGPUError: CUDA arrays need a GPU, and CuPy finds none: …"
    assert is_of_sources(there)
    assert not is_of_sources(there.replace("need", "want"))


def test_lists_of_accelerate_are_current() -> None:
    """docs/accelerate.py makes them of the code."""
    made = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "accelerate.py")))
    text = made.PAGE.read_text(encoding="utf-8")
    assert text == made.page(text)


def test_lines_of_breakpoints() -> None:
    """What the page on debugging says of them: the formula where d is known, the work of a tile."""
    page = (ROOT / "docs/debugging.md").read_text(encoding="utf-8")
    lines = {
        file: (ROOT / "cuda" / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        for file, number in re.findall(r"break ([\w/.]+):(\d+) if", page)
    }
    assert {file: line.strip() for file, line in lines.items()} == {
        "losses/pointwise.cuh": "auto near = half_square_over(d, beta);",
        "kernels/pointwise.cu": "const long long element = first_element<TILE>(tile, p);",
    }


def test_the_formula_of_a_loss() -> None:
    """The page on how it works quotes the file."""
    page = (ROOT / "docs/how.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"^```c\+\+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    struct = f"struct SquaredError {{\n{textwrap.indent(quoted, '  ')}}};\n"
    assert struct in (ROOT / "cuda/losses/pointwise.cuh").read_text(encoding="utf-8")


def test_files_of_the_emulator() -> None:
    """The page on the emulator says what each is for."""
    page = (ROOT / "docs/emulator.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "tests/emulator").iterdir() if path.is_file()}
    shown = {name for name in files if f"`{name}`" in page}
    assert files - shown == {"__init__.py", "test_emulator.py"}


def test_commands_have_the_options_that_pages_name() -> None:
    named = set()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name, rest in re.findall(r"cupy[-_]losses ([a-z]+)\b([^`\n]*)", text):
            command = program._program.commands.get(name)
            if command is not None and name != "accelerate":  # it takes those of a program
                own = {option for parameter in command.params for option in parameter.opts}
                options = set(re.findall(r"--[\w-]+", rest)) - {"--help"}
                assert options <= own, (page, name)
                named |= options
    assert {"--architecture", "--backend", "--elements", "--peer"} <= named

"""A sample of the mutation run; `python -m tests.tools.mutation` is the whole."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cupy_losses._device import sources

from .. import emulator
from ..tools import mutation
from ..tools.mutation import (
    DENOMINATOR_FILE,
    FILES,
    GATHERED_FILE,
    MULTILABEL_FILES,
    RULES,
    SHARED_FILES,
    STRIDED_FILES,
    STRIDED_TILE_FILES,
    emulated,
    equivalence,
    mutants,
    of_no_mutant,
    outcome,
    run,
    sample,
)

ONE_IN = 80


def test_rules_reach_every_kernel_file() -> None:
    """But the instructions that a GPU alone has, and a kernel that only waits."""
    folder = sources.source_folder()
    every = [path.relative_to(folder).as_posix() for path in folder.rglob("*.cu*")]
    reached = {mutant.file for mutant in mutants(every)}
    assert reached - {"memory/instructions.cuh", "kernels/wait.cu"} == set(FILES)
    assert len(list(mutants())) >= 60


def test_every_equivalence_is_of_a_mutant() -> None:
    assert of_no_mutant() == []


def test_an_equivalence_of_no_mutant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mutation.EQUIVALENT, "no such line;", "")
    assert of_no_mutant() == ["no such line;"]


def test_the_sample_does_not_follow_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line more at the top of every file leaves the choice."""
    chosen = [(mutant.file, mutant.after) for mutant in sample(ONE_IN)]
    for file in FILES:
        text = (sources.source_folder() / file).read_text(encoding="utf-8")
        copy = tmp_path / file
        copy.parent.mkdir(exist_ok=True)
        copy.write_text("const int unrelated = 1 + 1;\n" + text, encoding="utf-8")
    monkeypatch.setattr(sources, "source_folder", lambda: tmp_path)
    added = "const int unrelated = 1 - 1;"
    moved = [(m.file, m.after) for m in sample(ONE_IN) if m.after != added]
    assert moved == chosen
    assert len(chosen) >= 5


def test_a_mutant_that_crashes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: nobody waits for an outcome of a process that has ended."""
    monkeypatch.setattr(mutation, "outcome", lambda mutant: os._exit(9))
    assert mutation.outcome_apart(next(mutants())) == "found: it crashes"
    monkeypatch.setattr(mutation, "outcome", lambda mutant: "survived")
    assert mutation.outcome_apart(next(mutants())) == "survived"


def test_every_rule_fits_somewhere() -> None:
    assert {mutant.rule for mutant in mutants()} == {name for _, _, name in RULES}


def test_every_call_of_a_fence_has_a_mutant() -> None:
    text = (sources.source_folder() / "reduction/sum.cuh").read_text(encoding="utf-8")
    calls = {
        n for n, line in enumerate(text.splitlines(), 1) if re.search(r"\bdevice_fence\(\);", line)
    }
    found = {m.line for m in mutants(["reduction/sum.cuh"]) if m.rule == "drop a fence"}
    assert len(calls) == 2
    assert calls < found  # and that in the fallback, which the emulator compiles


PAGE = mutation.ROOT / "docs" / "mutation.md"


def test_the_page_is_of_the_files() -> None:
    """A part that is not marked as older is of the present file; no line is quoted that is gone.

    After a change of a kernel file, `python -m tests.tools.mutation --report` writes it anew.
    """
    page = PAGE.read_text(encoding="utf-8")
    assert page == mutation.report(page), "run python -m tests.tools.mutation --report"
    shown = dict(re.findall(r"^## (\S+)\n\nOf the file as it is, `(\w+)`\.$", page, re.MULTILINE))
    assert shown == {file: mutation.version(file) for file in shown}
    assert len(shown) + page.count(f"\n{mutation.OLDER}\n") == page.count("\n## ")
    there = {mutant.after.strip() for mutant in mutants()}
    quoted = re.findall(r"^- .*?`(.+)`", page, re.MULTILINE)
    assert len(quoted) == page.count("\n- ")
    assert set(quoted) <= there


def test_a_part_of_a_file_that_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is marked as older, without the line that is gone, and stays so until the next run."""
    monkeypatch.setattr(sources, "source_folder", lambda: tmp_path)
    name = "numbers/tuple.cuh"
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text("int a = b + c;\nint d = e / f;\n")
    results = dict.fromkeys(mutants([name]), "survived")
    page = mutation.report("", {name: mutation.part_of(mutation.version(name), 2, results)})
    assert f"## {name}\n\nOf the file as it is, `{mutation.version(name)}`.\n\n2 mutants" in page
    assert f"- Not found: {name}:1 + becomes -: `int a = b - c;`\n" in page
    assert f"- Not found: {name}:2 / becomes *: `int d = e * f;`\n" in page
    assert mutation.report(page) == page

    file.write_text("// A comment.\nint a = b + c;\n")
    older = mutation.report(page)
    assert f"## {name}\n\nOf an older version of the file.\n\n2 mutants were generated" in older
    assert older.endswith("\n\n- Not found: + becomes -: `int a = b - c;`\n")
    assert mutation.report(older) == older

    ran = mutation.report(older, {name: mutation.part_of(mutation.version(name), 1, {})})
    assert f"Of the file as it is, `{mutation.version(name)}`.\n\n1 mutants" in ran


@pytest.mark.parametrize("changed", [False, True])
def test_report_runs_nothing(
    changed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "docs" / "mutation.md"
    copy.parent.mkdir()
    copy.write_text(page.replace("Of an older", "Of the") if changed else page, encoding="utf-8")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "run", None)
    monkeypatch.setattr("sys.argv", ["mutation", "--report"])
    assert mutation.main() == 0
    assert copy.read_text(encoding="utf-8") == page


@pytest.mark.exhaustive
@pytest.mark.release
@pytest.mark.parametrize(
    "files",
    [
        SHARED_FILES,
        STRIDED_FILES,
        STRIDED_TILE_FILES,
        MULTILABEL_FILES,
        (GATHERED_FILE,),
        (DENOMINATOR_FILE,),
    ],
    ids=lambda files: files[0],
)
def test_batteries_pass_without_a_bug(files: Sequence[str]) -> None:
    """One file of all that the same batteries look at; of SHARED_FILES those of TILE_FILES too."""
    emulator.require()
    first = next(mutants(files))
    unchanged = replace(first, after=first.before)
    assert run([unchanged]) == {unchanged: "survived"}


def test_what_only_a_gpu_compiles_has_no_mutants() -> None:
    text = "a\n#if CLUSTERS\nb\n#if X\nc\n#endif\n#else\nd\n#endif\n#if X\ne\n#endif\nf\n"
    assert [line for _, line in emulated(text)] == ["a", "d", "e", "f"]


def test_what_does_not_compile_is_not_found() -> None:
    emulator.require()
    first = next(mutants())
    assert outcome(replace(first, after="no code")) == "does not compile"


@pytest.mark.exhaustive
@pytest.mark.release
def test_a_sample_is_found() -> None:
    emulator.require()
    results = run(sample(ONE_IN))
    survivors = [mutant for mutant, result in results.items() if result == "survived"]
    assert [mutant for mutant in survivors if not equivalence(mutant)] == []
    assert sum(result.startswith("found") for result in results.values()) >= len(results) // 2

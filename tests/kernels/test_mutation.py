"""A sample of the mutation run; `python -m tests.tools.mutation` is the whole."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from cupy_losses._device import sources

from .. import emulator
from ..tools.mutation import (
    FILES,
    RULES,
    SHARED_FILES,
    Mutant,
    emulated,
    excuse,
    mutants,
    outcome,
    run,
)

SAMPLE = 14


def test_rules_reach_every_kernel_file() -> None:
    assert {mutant.file for mutant in mutants()} == set(FILES)
    assert len(list(mutants())) >= 60


def test_every_rule_fits_somewhere() -> None:
    assert {mutant.rule for mutant in mutants()} == {name for _, _, name in RULES}


def test_every_call_of_a_fence_has_a_mutant() -> None:
    text = (sources.source_folder() / "reduction/sum.cuh").read_text(encoding="utf-8")
    calls = {n for n, line in enumerate(text.splitlines(), 1) if re.search(r"\bfence\(\);", line)}
    found = {m.line for m in mutants(["reduction/sum.cuh"]) if m.rule == "drop a fence"}
    assert len(calls) == 2
    assert calls < found  # and that in the fallback, which the emulator compiles


def test_the_battery_passes_without_a_bug() -> None:
    emulator.require()
    first = next(mutants(SHARED_FILES))  # both batteries
    unchanged = replace(first, after=first.before)
    assert run([unchanged]) == {unchanged: "survived"}


def test_what_only_a_gpu_compiles_has_no_mutants() -> None:
    text = "a\n#if CLUSTERS\nb\n#if X\nc\n#endif\n#else\nd\n#endif\n#if X\ne\n#endif\nf\n"
    assert [line for _, line in emulated(text)] == ["a", "d", "e", "f"]


def test_what_does_not_compile_is_not_found() -> None:
    emulator.require()
    first = next(mutants())
    assert outcome(replace(first, after="no code")) == "does not compile"


def test_a_sample_is_found() -> None:
    emulator.require()
    chosen = random.Random(11).sample(list(mutants()), SAMPLE)
    results = run(chosen)
    survivors: list[Mutant] = [
        mutant for mutant, result in results.items() if result == "survived" and not excuse(mutant)
    ]
    assert survivors == []
    assert sum(result.startswith("found") for result in results.values()) >= SAMPLE // 2

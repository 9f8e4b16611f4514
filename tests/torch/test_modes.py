"""Every loss in every mode of torch: transforms, tracing, torch.compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from ..tools.levels import case
from .modes import COMPILED, EAGER, EXAMPLES, MODES, PAGE, REDUCTIONS, TRACED, Given, is_right

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides", "ignore:Using a target size"
)
GIVEN = [Given(example, reduction) for example in EXAMPLES for reduction in REDUCTIONS]


def cases(modes: Iterable[str], one_in: int) -> list[Any]:
    """Each mode of each example with each reduction; by default one in so many of them."""
    return [
        case(mode, given, default=(7 * k + n) % one_in == 0, id=f"{mode}-{given}")
        for k, mode in enumerate(modes)
        for n, given in enumerate(GIVEN)
    ]


def compiled_cases(one_in: int) -> list[Any]:
    """Each mode of each example, with reductions in turn; by default one in so many of them.

    A compiled transform of a loss is that of all its examples: they have it in turn. Before a
    release each has each.
    """
    of_loss = Counter(example.name for example in EXAMPLES)
    found = []
    for k, mode in enumerate(COMPILED):
        before: Counter[str] = Counter()  # the examples of each loss
        for n, example in enumerate(EXAMPLES):
            turn = (before[example.name] - k) % of_loss[example.name]
            before[example.name] += 1
            default = (7 * k + n) % one_in == 0
            given = Given(example, REDUCTIONS[(n - k) % len(REDUCTIONS)])
            marks = [] if default else [pytest.mark.exhaustive]
            if not default and turn and "(" in mode:
                marks.append(pytest.mark.release)
            found.append(pytest.param(mode, given, id=f"{mode}-{given}", marks=marks))
    return found


@pytest.mark.parametrize(("mode", "given"), cases(EAGER, 29))
def test_transforms(mode: str, given: Given) -> None:
    """Those that are not compiled."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), cases(TRACED, 29))
def test_tracing(mode: str, given: Given) -> None:
    """The same bits, of other values than those that were traced."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), compiled_cases(31))
def test_compiled(mode: str, given: Given) -> None:
    """The loss and its gradients have the bits of eager mode."""
    assert is_right(mode, given)


def test_the_page_has_every_loss_and_mode() -> None:
    """`python -m tests.torch.modes` writes it; the tests above are its cells."""
    head, _, *rows = PAGE.read_text(encoding="utf-8").partition("| loss |")[2].splitlines()
    assert [cell.strip(" `") for cell in head.strip(" |").split("|")] == list(MODES)
    names = [row.split("|")[1].strip(" `") for row in rows]
    assert names == list(dict.fromkeys(example.name for example in EXAMPLES))
    for row in rows:
        assert set(map(str.strip, row.strip("|").split("|")[1:])) == {"right"}

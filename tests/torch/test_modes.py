"""Every loss in every mode of torch: transforms, tracing, torch.compile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ..tools.levels import case
from .modes import COMPILED, EAGER, EXAMPLES, MODES, PAGE, REDUCTIONS, TRACED, Given, is_right

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides", "ignore:.*torch.jit", "ignore:Using a target size"
)
GIVEN = [Given(example, reduction) for example in EXAMPLES for reduction in REDUCTIONS]


def cases(modes: Iterable[str], one_in: int) -> list[Any]:
    """Each mode of each loss with all reductions; by default one in so many of them."""
    return [
        case(mode, given, default=(7 * k + n) % one_in == 0, id=f"{mode}-{given}")
        for k, mode in enumerate(modes)
        for n, given in enumerate(GIVEN)
    ]


def compiled_cases(one_in: int) -> list[Any]:
    """Each mode of each loss, with one reduction and a third of its arguments in turn."""
    chosen: list[Any] = []
    for k, mode in enumerate(COMPILED):
        for name in dict.fromkeys(example.name for example in EXAMPLES):
            of_loss = [example for example in EXAMPLES if example.name == name]
            for j, example in enumerate(of_loss):
                if (j + k) % min(len(of_loss), 3) == 0:
                    given = Given(example, REDUCTIONS[(j + k) // 3 % 3])
                    default = len(chosen) % one_in == 0
                    chosen.append(case(mode, given, default=default, id=f"{mode}-{given}"))
    return chosen


@pytest.mark.parametrize(("mode", "given"), cases(EAGER, 29))
def test_transforms(mode: str, given: Given) -> None:
    """Those that are not compiled."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), cases(TRACED, 29))
def test_tracing(mode: str, given: Given) -> None:
    """The same bits, of other values than those that were traced."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), compiled_cases(13))
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

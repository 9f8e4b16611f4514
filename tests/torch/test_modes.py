"""Every loss in every mode of torch: transforms, tracing, torch.compile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ..tools.levels import case
from .modes import COMPILED, EAGER, EXAMPLES, MODES, PAGE, REDUCTIONS, TRACED, Given, is_right

pytestmark = pytest.mark.filterwarnings(
    "ignore:reduction.*mean. divides", "ignore:Using a target size"
)
GIVEN = [Given(example, reduction) for example in EXAMPLES for reduction in REDUCTIONS]


def cases(modes: Iterable[str], one_in: int, reductions: int = 3) -> list[Any]:
    """Each mode of each loss with so many reductions; by default one in so many of them."""
    return [
        case(mode, given, default=(7 * k + n) % one_in == 0, id=f"{mode}-{given}")
        for k, mode in enumerate(modes)
        for n, given in enumerate(GIVEN)
        if (k + n) % 3 < reductions
    ]


@pytest.mark.parametrize(("mode", "given"), cases(EAGER, 29))
def test_transforms(mode: str, given: Given) -> None:
    """Those that are not compiled."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), cases(TRACED, 29))
def test_tracing(mode: str, given: Given) -> None:
    """The same bits, of other values than those that were traced."""
    assert is_right(mode, given)


@pytest.mark.parametrize(("mode", "given"), cases(COMPILED, 31, reductions=1))
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

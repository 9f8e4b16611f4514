"""Shapes of losses over rows of which torch takes more than one for the same."""

from __future__ import annotations

from typing import Any

import numpy as np

Shapes = tuple[tuple[int, ...], ...]

# The name of a loss and the shapes of its operands.
ODD: list[tuple[str, Shapes]] = [
    ("multi_margin_loss", ((), ())),
    ("multi_margin_loss", ((), (1,))),
    ("multi_margin_loss", ((1,), (1,))),
    ("multi_margin_loss", ((3,), (1,))),
    ("multi_margin_loss", ((1, 3), ())),
    ("multilabel_margin_loss", ((), ())),
    ("multilabel_margin_loss", ((), (1,))),
    ("multilabel_margin_loss", ((1,), ())),
    ("cosine_embedding_loss", ((4, 3), (4, 3), (1,))),
    ("cosine_embedding_loss", ((1, 3), (4, 3), (1,))),
    ("cosine_embedding_loss", ((1, 3), (1, 3), (4,))),
    ("triplet_margin_loss", ((), (), ())),
]


def of_shapes(name: str, shapes: Shapes) -> list[Any]:
    """Operands of a loss: vectors or scores, then a target of 0 or 1."""
    rng = np.random.default_rng(len(shapes) + sum(map(len, shapes)))
    arrays: list[Any] = [np.asarray(rng.standard_normal(shape)) for shape in shapes]
    if name == "cosine_embedding_loss":
        arrays[-1] = np.where(arrays[-1] > 0, 1.0, -1.0)
    elif name != "triplet_margin_loss":
        arrays[-1] = np.zeros(shapes[-1], np.int64)
    return arrays

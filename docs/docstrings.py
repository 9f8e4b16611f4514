"""Docstrings as the site shows them: an extension of Griffe, which reads the sources.

A formula and an example are marked as code, and a loss gets its picture, which website.py draws.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# A public loss returns what it prepares; its decorator makes an array of that.
PREPARED = "Prepared"


def shown(name: str, text: str, is_loss: bool) -> str:
    """The docstring of a function in Markdown."""
    first, *others = text.split("\n\n")
    parts = [first, f"![{name} and its derivative](../pictures/{name}.svg)"] if is_loss else [first]
    for paragraph in others:
        body = paragraph.strip("\n")
        if body.startswith(">>>"):
            body = body.replace("<BLANKLINE>", "")
            body = f"```pycon\n{body}\n```"
        elif label := re.match(r"(Formula|Source): ", body):
            rest = " ".join(body[label.end() :].split())
            body = f"**{label[1]}:** " + (f"`{rest}`" if label[1] == "Formula" else rest)
        parts.append(body)
    return "\n\n".join(parts) + "\n"


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of functions when their sources have been read."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        is_loss = str(func.returns) == PREPARED or _is_prepared(func)
        if is_loss:
            func.returns = "Array"
        if func.docstring is not None:
            func.docstring.value = shown(func.name, func.docstring.value, is_loss)


def _is_prepared(func: griffe.Function) -> bool:
    """Whether a decorator makes it a loss: `loss_function` or `prepared_by`."""
    made_by = [str(decorator.value).partition("(")[0] for decorator in func.decorators]
    return not {"loss_function", "prepared_by"}.isdisjoint(made_by)

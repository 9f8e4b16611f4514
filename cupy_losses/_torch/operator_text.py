"""What the operator is asked for, and the text that stands for it in a graph."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from .._core.loss import Call, Request, loss_of_key


@dataclass(frozen=True)
class Asked:
    """A request of a call, and whether autocast is on. No tuple: torch takes tuples apart."""

    call: Call
    request: Request
    autocast: bool


@functools.lru_cache(maxsize=4096)
def text_of(asked: Asked) -> str:
    """The text of what is asked for: the fields that are set, in JSON, where numbers are exact.

    Its quotation marks are single, as torch's compiler writes texts to C++ without escapes.
    """
    call, request, autocast = asked.call, asked.request, asked.autocast
    given = {**call._asdict(), "loss": call.loss.key, **request._asdict(), "autocast": autocast}
    text = json.dumps({name: value for name, value in given.items() if _is_set(name, value)})
    return text.replace('"', "'")


def _is_set(name: str, value: Any) -> bool:
    return value is not None if name == "axis" else bool(value)


@functools.lru_cache(maxsize=4096)
def asked_of(text: str) -> Asked:
    """What a text asks for.

    Raises:
        ValueError: If it is none of `text_of`, or of a loss that is not defined.

    """
    try:
        return _read(json.loads(text.replace("'", '"')))
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"cupy_losses::evaluate takes a text that cupy_losses has written, got {text!r}"
        ) from error


def _read(given: dict[str, Any]) -> Asked:
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    call = Call(
        loss_of_key(given.pop("loss")),
        given.pop("reduction"),
        given.pop("parameters", ()),
        weighted=given.pop("weighted", False),
        masked=given.pop("masked", False),
        scale=given.pop("scale", 0.0),
        scaled=given.pop("scaled", False),
        axis=given.pop("axis", None),
        row_weighted=given.pop("row_weighted", False),
    )
    autocast = given.pop("autocast", False)
    return Asked(call, Request(**{"value": False, **given}), autocast)

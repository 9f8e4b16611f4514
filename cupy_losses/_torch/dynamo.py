"""Code of this package that torch calls by itself, and that torch.compile must not read.

Where torch.compile breaks a graph, it goes on to read each function that runs, whoever calls it:
kernels of operators and backward passes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

_frames: Any = torch._C._dynamo.eval_frame


def unread(function: Function) -> Function:
    """Let torch.compile skip a function, with all that it calls.

    It is the mark that torch.compile itself puts on code. Other than `torch.compiler.disable` it
    costs a call nothing, and importing this package does not import the compiler. A torch that has
    no such mark has `torch.compiler.disable` alone.
    """
    try:
        action = _frames._FrameAction.SKIP
        skip = _frames._FrameExecStrategy(action, action)
        mark = _frames.set_code_exec_strategy
    except AttributeError:
        disabled: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled
    mark(function.__code__, skip)
    return function


unread(unread)

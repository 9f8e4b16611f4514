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
_SKIP = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)


def unread(function: Function) -> Function:
    """Let torch.compile skip a function, with all that it calls.

    It is the mark that torch.compile itself puts on code. Other than `torch.compiler.disable` it
    costs a call nothing, and importing this package does not import the compiler.
    """
    _frames.set_code_exec_strategy(function.__code__, _SKIP)
    return function


unread(unread)

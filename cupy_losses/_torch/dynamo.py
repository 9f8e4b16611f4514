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
_REASON = (
    "torch.compile does not read cupy_losses: where compiled autograd meets the backward pass of a "
    "loss, the forward pass is to be compiled too"
)


def disable_compile(function: Function) -> Function:
    """Let torch.compile skip a function, with all that it calls.

    It is the mark that torch.compile itself puts on code, and one that it looks for in functions
    whose callers it reads. Other than `torch.compiler.disable` they cost a call nothing, and
    importing this package does not import the compiler. A torch that has no such mark has
    `torch.compiler.disable` alone.
    """
    try:
        action = _frames._FrameAction.SKIP
        skip = _frames._FrameExecStrategy(action, action)
        mark = _frames.set_code_exec_strategy
    except AttributeError:
        disabled: Function = torch.compiler.disable(function, reason=_REASON)  # type: ignore[no-untyped-call]
        return disabled
    mark(function.__code__, skip)
    attributes = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": _REASON}
    vars(function).update(attributes)
    return function


disable_compile(disable_compile)

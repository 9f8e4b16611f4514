"""Calls that a mode of torch watches (TorchFunctionMode): it sees the loss, and not its inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core.extras import imported
from .._core.types import AnyArray


def _by_mode() -> bool:
    global by_mode
    torch = imported("torch")
    if torch is None:
        return False
    by_mode = torch._C._is_torch_function_mode_enabled  # a fifth of the time
    return by_mode()


# Whether a mode watches the functions that are called. A program may import torch at any time.
by_mode: Callable[[], bool] = _by_mode


def tensors_to_show(args: Any, kwargs: Any) -> list[AnyArray]:
    """The tensors of a call that the mode is to see; none where it is not for this mode to see."""
    import torch
    from torch.overrides import _get_current_function_mode

    mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
    if hasattr(mode, "enter_autocast_nodes"):
        return []  # of a strict export, in which the loss asks it whether autocast is on
    return [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]


def show(
    loss: Callable[..., AnyArray], tensors: list[AnyArray], args: Any, kwargs: Any
) -> AnyArray:
    """What the mode gives for a call of a loss: it is off while it calls the loss itself."""
    from torch.overrides import handle_torch_function

    return handle_torch_function(loss, tensors, *args, **kwargs)

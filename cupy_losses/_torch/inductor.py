"""The code that torch.compile generates for the operator: it calls what computes it at once.

The default, for any operator, is a call through torch's dispatcher. It would look up anew what is
known: that there is nothing to differentiate, and the layouts of the operands.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._core.cache import keep
from . import operators

Tensor = torch.Tensor

_IMPORT = f"from {__name__} import evaluate as cupy_losses_evaluate"
_runs: dict[str, Callable[[Sequence[Tensor]], Sequence[Tensor]]] = {}


def evaluate(text: str, operands: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of what is asked for, on the device and of the layouts that the text ends with.

    Generated code calls it, also such code that a cache on disk has kept.
    """
    try:
        run = _runs[text]
    except KeyError:
        asked, device, layouts = text.split("\n")
        kind = device.partition(":")[0]
        run = keep(_runs, text, operators.direct(asked, kind, of_one_layout=layouts != ""))
    return run(operands)


def extend() -> None:
    """Let Inductor, once it is imported, generate such calls."""
    if "torch._inductor.lowering" in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering
    from torch._inductor.virtualized import V

    class Evaluate(ir.FallbackKernel):
        """A call of the operator; where the code is a library in C++, through the dispatcher."""

        def codegen(self, wrapper: Any) -> None:
            if V.graph.cpp_wrapper and not V.graph.aot_mode:
                raise NotImplementedError(
                    "the losses can not be called by torch.compile's code in C++: torch 2.13 ends "
                    "the process there, as with any operator that returns a list; leave out "
                    "cpp_wrapper"
                )
            if not V.graph.aot_mode:
                wrapper.add_import_once(_IMPORT)
                self.python_kernel_name = "cupy_losses_evaluate"
                (text,), operands = self.constant_args, list[Any](self.inputs)
                device = operands[-1].get_device()
                self.constant_args = (f"{text}\n{device}\n{_layouts(operands)}",)
            super().codegen(wrapper)

    operator = torch.ops.cupy_losses.evaluate.default

    def lowered(text: str, operands: Any) -> Any:
        results: Any = Evaluate.create(operator, text, operands)
        return [ir.TensorBox.create(result) for result in results]

    register_lowering(operator, type_promotion_kind=None)(lowered)


def _layouts(operands: Sequence[Any]) -> str:
    """The dtypes, shapes and strides of operands; nothing where one of them is open."""
    layouts = [(x.get_dtype(), [*x.get_size()], [*x.get_stride()]) for x in operands]
    numbers = [n for _, shape, strides in layouts for n in (*shape, *strides)]
    return str(layouts) if all(map(_is_number, numbers)) else ""


def _is_number(size: Any) -> bool:
    return isinstance(size, int) or bool(size.is_number)

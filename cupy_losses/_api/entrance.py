"""The entrance: what makes a public function of a loss.

`loss_function` makes one of a single call, `prepared_by` one that is more than that. Both declare
the kind of each argument that is no array. What a caller passes for these is checked here, before
anything is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._core.arguments import Argument
from .._core.loss import Call
from .._core.types import AnyArray
from .._libraries.registry import resolve
from . import check, compiled, functions, watched
from .prepared import Prepared, Result
from .public import mark, public_of
from .signature import Arguments, Checks

_checking = check.enabled.get


def evaluate(call: Call, operands: tuple[AnyArray, ...]) -> AnyArray:
    """The loss of a call that is prepared."""
    # check.resolved, written out: every call comes here, and one more function costs it time.
    library, arrays = resolve(call, operands)
    if _checking():
        check.check_operands(library, call, arrays)
    return library.evaluate(call, arrays)


def loss_function(
    **kinds: Argument,
) -> Callable[[Callable[Arguments, Prepared[Result]]], Callable[Arguments, Result]]:
    """Make the public function of a loss from a function that orders its arguments.

    Args:
        **kinds: The kind of each argument that is no array. `reduction` is one of the common three
            unless it is given, `scale` always the same.

    """

    def decorate(prepare: Callable[Arguments, Prepared[Result]]) -> Callable[Arguments, Result]:
        checks = Checks(prepare, kinds)
        arrays = checks.arrays
        # A caller of the public function sees what the call gives.
        prepare.__annotations__["return"] = "ArrayT"

        @functools.wraps(prepare)
        def loss(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            if compiled.is_compiling():
                return compiled.in_graph(name, args, kwargs)
            if watched.by_mode() and (tensors := watched.tensors_to_show(args, kwargs)):
                return watched.show(public_of(loss), tensors, args, kwargs)
            try:
                given: Any = args
                if kwargs or len(args) > arrays:
                    given = checks(args, kwargs)
                call, operands = prepare(*given, **kwargs)
                return evaluate(call, operands)
            except Exception:
                proxy = compiled.proxy_among(args, kwargs)
                if proxy is not None:
                    return proxy.__torch_function__(public_of(loss), (), args, kwargs)
                if not compiled.has_open_numbers(args, kwargs):
                    raise
            # make_fx and torch.export run this code where torch.compile makes a node of the call.
            return compiled.as_node(name, args, kwargs)

        name = functions.register(loss)
        mark(loss, checks.before(prepare))
        return loss

    return decorate


def prepared_by(
    prepare: Callable[..., Prepared[Any]], **kinds: Argument
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Make a public function that is more than one call, differentiated as that of `prepare`."""

    def decorate(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        checks = Checks(loss, kinds)
        checked = checks.before(loss)
        mark(checked, checks.before(prepare))
        return checked

    return decorate

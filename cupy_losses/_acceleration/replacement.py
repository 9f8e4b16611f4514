"""The functions of torch, whose code is replaced while acceleration is on.

A function of `torch.nn.functional` stays the object that it is: its code alone is another one. So
every name of it follows, also one that was imported before. It is pickled, inspected and compared
as ever.

torch.compile reads another function in its place: see `_read`. It looks for that function, and for
the code of torch's, whenever it calls what it has compiled. So what was compiled while acceleration
was off is compiled anew where it is on, and the other way round; it keeps both.
"""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from .. import classification, divergence, embedding, multiclass, ranking, regression
from .._api import compiled, functions
from .._api.entrance import evaluate
from .._api.prepared import Prepared
from .._api.public import is_loss, prepare_or_none
from .._core.cache import keep
from .._core.dtypes import dtype_name
from .._core.generated import function_of_source
from .._core.locks import table_lock
from .._core.types import AnyArray
from .._torch.deprecated import DEPRECATED, are_given, take_reduction
from .._torch.dynamo import disable_compile
from . import rules
from .tallies import Kind, Layout, Sample, Tally, exponent_of, tally_of

Function = types.FunctionType
Parameters = dict[str, inspect.Parameter]

_FAMILIES = (regression, classification, ranking, divergence, multiclass, embedding)
# To read an attribute of another type may do anything.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
# What a node of a graph of torch.compile takes.
_IN_GRAPH = (torch.Tensor, torch.nn.Parameter, bool, int, float, str, type(None))

# The attribute that names the function which torch.compile reads in place of another.
_INLINE = "_torchdynamo_inline"

# What every accelerated call does, as short as it can be. It is written once for each function, so
# that there are no loops and no lists: they would take as long as all the rest. torch.compile may
# read its beginning, where it compiles a function that it could not compile the caller of. What it
# calls is not compiled: it runs as ever where torch.compile gives this function up too.
_TEMPLATE = """
def {name}({declared}):
    if torch.compiler.is_dynamo_compiling():
        return {name}.{inline}({called})
{constants}
    if (
        function_modes()
        or dispatch_modes()
        or transforms()
        or forward_ad._current_level >= 0
        or tracing()
        or {not_plain}
    ):
        return elsewhere({passed})
{deprecated}
    try:
        key = {key}
    except RuntimeError:  # a nested tensor has no shape
        return elsewhere({passed})
    tally = decided(key)
    if tally is None:
        tally = decide(key, {passed})
    if tally.reason:
        return by_torch(tally, {passed})
    given = {{}}
{options}
    try:
        call, operands = prepare({operands}, **given) if given else prepare({operands})
    except (TypeError, ValueError) as error:
        return refused(error, tally, {passed})
    tally.count()
    return evaluate(call, operands)
"""


class Replaced:
    """A function of torch, which computes by this package what the rules let it.

    Attributes:
        name: Its name.
        torch: A function that does what torch's did.
        prepare: What prepares the call of this package.

    """

    def __init__(self, function: Function, loss: Callable[..., AnyArray]) -> None:
        prepare = prepare_or_none(loss)
        assert prepare is not None
        self.name = function.__name__
        self.prepare = rules.as_in_torch(function.__name__, prepare)
        self.torch = _copy(function)
        self._function = function
        self._own = function.__code__
        self._parameters = dict(inspect.signature(function).parameters)
        self._operands = [n for n, p in self._parameters.items() if p.default is p.empty]
        self._tensors = [*self._operands, *(n for n in rules.OPTIONAL if n in self._parameters)]
        self._by_name = [n for n, p in self._parameters.items() if p.kind is p.KEYWORD_ONLY]
        # What torch.jit.script and torch.compile take in place of the function.
        self._attributes = {
            "__prepare_scriptable__": lambda: self.torch,
            _INLINE: _read(functions.register(function), self.torch),
        }
        self._decided: dict[Any, Tally] = {}
        self._code = self._generated()

    def replace(self) -> None:
        """Let torch's function compute by this package."""
        self._decided.clear()
        self._function.__dict__ = _Hidden(vars(self._function), self._attributes)
        self._function.__code__ = self._code

    def restore(self) -> None:
        """Give torch's function its own code back, unless it has that of someone else now."""
        if self._function.__code__ is self._code:
            self._function.__code__ = self._own
        self._function.__dict__ = {**vars(self._function)}

    def prepared(self, arguments: dict[str, Any]) -> Prepared[Any]:
        """The call of this package of arguments of torch's function, with its operands."""
        operands = [arguments[name] for name in self._operands]
        given = {
            name: x
            for name, x in arguments.items()
            if name not in self._operands and x is not self._parameters[name].default
        }
        return self.prepare(*operands, **given)

    def _generated(self) -> types.CodeType:
        """The code of the function, with torch's parameters."""
        names = [*self._parameters]
        declared = [*names]
        if self._by_name:
            declared.insert(names.index(self._by_name[0]), "*")
        not_plain, key = self._decisive()
        constants, options = self._constants(), []
        for name in names:
            if name in self._operands or name in DEPRECATED:
                continue
            constants[f"default_{name}"] = self._parameters[name].default
            options.append(f"if {name} is not default_{name}:")
            options.append(f"    given[{name!r}] = {name}")
        deprecated = []
        if set(DEPRECATED) <= set(names):
            given = " or ".join(f"{name} is not None" for name in DEPRECATED)
            deprecated = [f"if {given}:", f"    return in_new_words({', '.join(names)})"]
        text = _TEMPLATE.format(
            name=self.name,
            declared=", ".join(declared),
            inline=_INLINE,
            called=", ".join(f"{n}={n}" if n in self._by_name else n for n in names),
            passed=", ".join(names),
            constants=textwrap.indent("\n".join(f"{n} = {_mark(n)!r}" for n in constants), "    "),
            not_plain=" or ".join(not_plain),
            key=f"({', '.join(key)})",
            deprecated=textwrap.indent("\n".join(deprecated), "    "),
            options=textwrap.indent("\n".join(options), "    "),
            operands=", ".join(self._operands),
        )
        return _code_of(self.name, text, constants)

    def _decisive(self) -> tuple[list[str], list[str]]:
        """Expressions of the arguments: that one is not plain, and what the key of a call has."""
        not_plain, key = [], [f"autocast() and autocast_on({self._operands[0]}.device.type)"]
        for name in self._tensors:
            may_be_number = name in rules.MAY_BE_NUMBERS
            if name in self._operands and not may_be_number:
                key += [f"{name}.{x}" for x in ("dtype", "shape", "layout", "get_device()")]
                if name == "target" and self.name in rules.NO_GRADIENT_BY_TARGET:
                    key.append(f"{name}.requires_grad")
                not_plain.append(f"type({name}) not in plain")
            else:
                key.append(f"None if {name} is None else described({name})")
                other = "float" if may_be_number else "type(None)"
                not_plain.append(f"type({name}) not in plain and type({name}) is not {other}")
        return not_plain, key

    def _constants(self) -> dict[str, Any]:
        """The objects that the code of every function has, by their names in the template."""
        return {
            "function_modes": torch._C._len_torch_function_stack,
            "dispatch_modes": torch._C._len_torch_dispatch_stack,
            "transforms": torch._C._are_functorch_transforms_active,
            "forward_ad": forward_ad,
            "tracing": torch._C._is_tracing,
            "autocast": torch._C._is_any_autocast_enabled,
            "autocast_on": torch.is_autocast_enabled,
            "plain": _PLAIN,
            "described": _described,
            "decided": self._decided.get,
            "decide": self._decide,
            "elsewhere": self._elsewhere,
            "by_torch": self._by_torch,
            "in_new_words": self._in_new_words,
            "prepare": disable_compile(_copy(self.prepare)),  # others may read it
            "refused": self._refused,
            "evaluate": disable_compile(evaluate),
        }

    @disable_compile
    def _decide(self, key: Any, *args: Any) -> Tally:
        """The tally of calls with such tensors, by which the next one is decided too."""
        named = self._named(args)
        tensors = {name: named[name] for name in self._tensors}
        reason, example = rules.decide(self.name, self.prepare, tensors)
        tally = self._tally(tensors, reason)
        tally.example = tally.example or example
        if not reason and tally.sample is None:
            arguments = {name: _layout(x) for name, x in named.items()}
            tally.sample = Sample(arguments, autocast=key[0])
        return keep(self._decided, key, tally)

    def _tally(self, arguments: dict[str, Any], reason: str, traced: bool = False) -> Tally:
        tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
        dtype = dtype_name(tensors[0].dtype) if tensors else ""
        exponent = exponent_of([x.numel() for x in tensors])
        return tally_of(Kind(self.name, dtype, exponent, reason, traced))

    @disable_compile
    def _elsewhere(self, *args: Any) -> AnyArray:
        """A call that is not of plain tensors alone, or is traced, transformed or watched."""
        if has_torch_function(args):
            # A mode or a class takes over. If it calls the function again, that call is counted.
            return self._call(args)
        named = self._named(args)
        tensors = {name: named[name] for name in self._tensors}
        if reason := rules.kind_problem(tensors):
            return self._by_torch(tally_of(Kind(self.name, "", -1, reason)), *args)
        if are_given(named):
            return self._in_new_words(*args)
        with rules.unrecorded():
            reason, example = rules.decide(self.name, self.prepare, tensors)
        prepared = None
        if not reason:
            try:
                prepared = self.prepared(named)
            except (TypeError, ValueError) as error:
                reason, example = rules.REFUSED, str(error)
        with rules.unrecorded():
            tally = self._tally(tensors, reason, traced=True)
        tally.example = tally.example or example
        if not rules.is_traced_again(*tensors.values()):
            tally.count()
        return self._call(args) if prepared is None else evaluate(*prepared)

    @disable_compile
    def _by_torch(self, tally: Tally, *args: Any) -> AnyArray:
        tally.count()
        return self._call(args)

    @disable_compile
    def _refused(self, error: Exception, tally: Tally, *args: Any) -> AnyArray:
        """An option that this package does not take: torch does, or has an error of its own."""
        refused = tally_of(tally.kind._replace(reason=rules.REFUSED))
        refused.example = refused.example or str(error)
        return self._by_torch(refused, *args)

    @disable_compile
    def _in_new_words(self, *args: Any) -> AnyArray:
        """The same call with a reduction in place of the arguments that are deprecated."""
        named = self._named(args)
        if named["reduction"] == "batchmean":  # torch divides by the batch as well
            return self._by_torch(tally_of(Kind(self.name, "", -1, rules.REFUSED)), *args)
        reduction = take_reduction(named)
        return self._function(**named | {"reduction": reduction})

    def _named(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._parameters, args, strict=True))

    def _call(self, args: tuple[Any, ...]) -> AnyArray:
        positional = len(args) - len(self._by_name)
        rest = dict(zip(self._by_name, args[positional:], strict=True))
        return self.torch(*args[:positional], **rest)


class _Hidden(dict[str, Any]):
    """The attributes of a function, and more that functools.wraps does not copy.

    Copied, they would let torch read them in place of the body of the function that wraps.
    """

    def __init__(self, attributes: dict[str, Any], hidden: dict[str, Any]) -> None:
        super().__init__(attributes)
        self.update(hidden)
        self._hidden = hidden

    def keys(self) -> Any:
        """The names that are copied."""
        return [name for name in super().__iter__() if name not in self._hidden]

    def __iter__(self) -> Any:
        return iter(self.keys())


def _read(name: str, of_torch: Function) -> Callable[..., AnyArray]:
    """What torch.compile reads in place of a function of torch.

    It makes a node of the graph, which calls torch's function while it is traced: on tensors that
    stand for others, so that the rules decide of them as of others. What is no argument of a node,
    or is for a class or a mode to take over, is read on in torch's own code.

    Where acceleration is on when a process first compiles, torch.compile takes this function for
    torch's own, which is a node that it does not read.
    """

    def read(*args: Any, **kwargs: Any) -> AnyArray:
        if compiled.is_compiling():
            for x in (*args, *kwargs.values()):
                if type(x) not in _IN_GRAPH:
                    return of_torch(*args, **kwargs)
            if has_torch_function((*args, *kwargs.values())):
                return of_torch(*args, **kwargs)
        return compiled.in_graph(name, args, kwargs)

    return read


def _described(x: Any) -> Any:
    """What decides of an argument that need not be a tensor."""
    if type(x) not in _PLAIN:
        return type(x)
    return x.dtype, x.shape, x.layout, x.get_device(), x.requires_grad


def _layout(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return Layout(tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad)


def _copy(function: Any) -> Function:
    """A function of the same code, which stays what it is when the code is replaced or marked."""
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__module__, copied.__annotations__ = function.__module__, function.__annotations__
    return copied


def _mark(name: str) -> str:
    return f"cupy_losses: {name}"


def _code_of(name: str, text: str, constants: dict[str, Any]) -> types.CodeType:
    """The code of a function, in which objects take the place of their marks.

    As constants they need no names in torch's module, which another thread could still look up when
    acceleration ends.
    """
    code = function_of_source(text, name, f"<cupy_losses.accelerate: {name}>").__code__
    by_mark = {_mark(n): constant for n, constant in constants.items()}
    return code.replace(
        co_consts=tuple(
            by_mark[constant] if isinstance(constant, str) and constant in by_mark else constant
            for constant in code.co_consts
        )
    )


def _functions() -> list[Replaced]:
    """Those losses of torch that this package has, unless someone else has put another there."""
    replaced = []
    for family in _FAMILIES:
        for name in family.__all__:
            loss = getattr(family, name)
            function = getattr(torch.nn.functional, name, None)
            if (
                is_loss(loss)
                and isinstance(function, Function)
                and function.__globals__ is vars(torch.nn.functional)
            ):
                replaced.append(Replaced(function, loss))
    return replaced


FUNCTIONS = _functions()
_depth = 0
_switching = table_lock()


def switch_on() -> None:
    """Replace the functions, unless they are already: all, or none if that is interrupted."""
    global _depth
    with _switching:
        if _depth == 0:
            try:
                for function in FUNCTIONS:
                    function.replace()
            except BaseException:
                _restore_all()
                raise
        _depth += 1


def switch_off() -> None:
    """Restore the functions, unless others still want them replaced."""
    global _depth
    with _switching:
        _depth -= 1
        if _depth == 0:
            _restore_all()


def _restore_all() -> None:
    """Restore the functions, all of them even if that is interrupted."""
    try:
        for function in FUNCTIONS:
            function.restore()
    except BaseException:
        for function in FUNCTIONS:
            function.restore()
        raise

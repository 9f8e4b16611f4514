"""Which library an array is from: what a library of arrays is, and how one is found.

A library is a subclass of `ArrayLibrary` that registers itself. That of a package is in a file of
this folder, which has the name of the package's top-level module and is imported when one of its
arrays comes: nothing here imports CuPy or torch for a program that does not use them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .._core.cache import keep
from .._core.dtypes import dtype_name
from .._core.loss import Call, Request
from .._core.types import AnyArray
from .advice import described, instead, is_sparse, places


class Located(NamedTuple):
    """What an array on a device is, for a library that makes a view of it without DLPack."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in bytes; None of a contiguous array
    size: int  # of its elements in bytes
    device: int
    address: int
    owner: AnyArray  # keeps the memory alive


class Locatable:
    """An array on a device that tells where it lies, which takes a third of the time of DLPack.

    No abstract class: `isinstance` would take longer, in each call with arrays of two libraries.
    """

    def located(self, device: int, stream: int) -> Located | None:
        """Where it lies, for work on a stream of a device; None if it is on another one."""
        return None


class ArrayLibrary(ABC):
    """Arrays of one library on one kind of device, and how losses of them are computed.

    A subclass is instantiated when the first of its arrays comes.

    Attributes:
        name: Names the library in messages.
        on_host: Whether its arrays are in the memory of the host.
        takes_over: Whether it evaluates each call that has one of its arrays, whatever the others
            are.

    """

    name: str
    on_host: bool
    takes_over = False

    @classmethod
    @abstractmethod
    def types(cls) -> tuple[type, ...]:
        """The types of the library's arrays."""

    @classmethod
    @abstractmethod
    def owns(cls, array: AnyArray) -> bool:
        """Whether an array is one of this library that losses take, and on its kind of device."""

    @abstractmethod
    def evaluate(self, call: Call, operands: Sequence[AnyArray]) -> AnyArray:
        """The loss, differentiable where the library differentiates."""

    @abstractmethod
    def run(
        self, call: Call, request: Request, operands: Sequence[AnyArray]
    ) -> list[AnyArray | None]:
        """The results of a request: the value, if asked for, then the gradients."""

    @abstractmethod
    def adopt(self, array: AnyArray) -> AnyArray:
        """An array of any library as one of this, sharing its memory; one of this as it is."""

    @abstractmethod
    def one(self, like: AnyArray) -> AnyArray:
        """The number 1 as an array of shape (), of the dtype and on the device of another."""

    def plain(self, operands: Sequence[AnyArray]) -> Sequence[AnyArray]:
        """The operands as arrays whose elements can be read."""
        return operands

    @contextlib.contextmanager
    def samples(self, operands: Sequence[AnyArray]) -> Iterator[Iterable[Sample]]:
        """The samples of a batch, where one is hidden in the operands; nothing is recorded."""
        yield [((), operands)]

    def on_device_of(self, array: AnyArray) -> contextlib.AbstractContextManager[Any]:
        """A context in which the library's own operators work on the device of an array."""
        return contextlib.nullcontext()

    def kept(self, array: AnyArray) -> AnyArray:
        """An array that the caller does not see, kept where replays of a graph will use it."""
        return array

    @property
    def computing(self) -> ArrayLibrary:
        """The library whose arrays it computes on."""
        return self

    def exported(self, array: AnyArray) -> AnyArray:
        """An array as an object that other libraries adopt: by DLPack, or as `Locatable`."""
        return array

    @classmethod
    def by_type(cls, kind: type) -> Callable[[AnyArray], ArrayLibrary] | None:
        """What gives the library of arrays of exactly this type; None if more is to be asked."""
        library = instance(cls)
        return lambda array: library


# The index of a sample in each batch, the outermost first, and its operands.
Sample = tuple[tuple[int, ...], Sequence[AnyArray]]

_classes: list[type[ArrayLibrary]] = []
_MOST = 256  # types that are known at once: a program may define them in a function
# From the type of an array to what gives its library, filled as types are met.
_library_of: dict[type, Callable[[AnyArray], ArrayLibrary]] = {}
# From the type of an object to the libraries that may take it, filled as types are met.
_candidates: dict[type, list[type[ArrayLibrary]]] = {}
_instances: dict[type[ArrayLibrary], ArrayLibrary] = {}


def register(library: type[ArrayLibrary]) -> type[ArrayLibrary]:
    """Register a library; those that are registered later are asked first."""
    _classes.insert(0, library)
    _candidates.clear()
    return library


def resolve(call: Call, operands: Sequence[AnyArray]) -> tuple[ArrayLibrary, Sequence[AnyArray]]:
    """The library of a call, and all operands as arrays of it.

    The first argument decides on the library, unless that of another one takes over. Host and
    device do not mix.
    """
    kind = type(operands[-1])
    known = _library_of.get(kind)
    if known is not None:
        for operand in operands:
            if type(operand) is not kind:
                break
        else:
            return known(operands[-1]), operands
    return _of_several(call, operands)


def library_of(name: str, array: AnyArray, first: AnyArray = None) -> ArrayLibrary:
    """The library of one array, which errors name; `first` is the first operand of the loss."""
    known = _library_of.get(type(array))
    return _meet(name, array, first) if known is None else known(array)


def keep_for_graphs(result: AnyArray) -> None:
    """Keep a result that the caller does not see, where replays of a graph will use it."""
    known = _library_of.get(type(result))
    if known is not None:
        known(result).kept(result)


# Errors of torch for a tensor that cannot be shared; others of this kind are of the device.
_UNSHARED = (RuntimeError, NotImplementedError)

# Of any other producer of DLPack arrays, by the type of its device: host and pinned memory, device
# and managed memory.
_ADOPTING = {1: "numpy", 3: "numpy", 2: "cupy", 13: "cupy"}


def find(array: AnyArray) -> type[ArrayLibrary] | None:
    """The library that takes an array; None for what is no array that one takes."""
    kind = type(array)
    candidates = _candidates.get(kind)
    if candidates is None:
        candidates = keep(_candidates, kind, _candidates_of(kind), _MOST)
    for library in candidates:
        if library.owns(array):
            return library
    if candidates:
        return None  # on no device, or in no layout, that they take
    device = getattr(array, "__dlpack_device__", None)
    name = None if device is None else _ADOPTING.get(int(device()[0]))
    if device is None and hasattr(array, "__cuda_array_interface__"):
        name = "cupy"
    if name is None:
        return None
    _import(name)
    return next(library for library in _classes if library.name == name)


def _candidates_of(kind: type) -> list[type[ArrayLibrary]]:
    """The libraries whose arrays have a type, whose files are imported first."""
    for root in dict.fromkeys(str(base.__module__).partition(".")[0] for base in kind.__mro__):
        _import(root)
    return [library for library in _classes if issubclass(kind, library.types())]


# The files of this folder that are not of a package of arrays.
_OF_NO_LIBRARY = ("advice", "registry")


def _import(root: str) -> None:
    """Import the file of a library, if there is one."""
    name = f"{__package__}.{root}"
    if root not in _OF_NO_LIBRARY and importlib.util.find_spec(name) is not None:
        importlib.import_module(name)


def instance(library: type[ArrayLibrary]) -> ArrayLibrary:
    """The one instance of a library."""
    found = _instances.get(library)
    # Of several threads that come first at the same time, all get the instance of one.
    return _instances.setdefault(library, library()) if found is None else found


def _of_several(
    call: Call, operands: Sequence[AnyArray]
) -> tuple[ArrayLibrary, Sequence[AnyArray]]:
    """The same for types that are not met yet, and for several libraries in one call."""
    first = operands[call.extra]
    libraries = [library_of(call.names[k], operand, first) for k, operand in enumerate(operands)]
    for library in libraries:
        if library.takes_over:
            return library, operands
    target = libraries[call.extra]
    adopted = []
    for k, library in enumerate(libraries):
        operand = operands[k]
        # By a known type a library has its own arrays alone.
        if library is target and (
            type(operand) in _library_of or isinstance(operand, target.types())
        ):
            adopted.append(target.adopt(operand))
        elif library.on_host == target.on_host:
            adopted.append(_shared(target, library, call, operands, k))
        else:
            on_host = [each.on_host for each in libraries]
            raise ValueError(f"all arrays must be on the same device, got {places(call, on_host)}")
    return target, adopted


def _meet(name: str, array: AnyArray, first: AnyArray) -> ArrayLibrary:
    """The library of an array, by which others of the same type are known from now on.

    `first` is the first operand of the loss, whose library an error names.
    """
    found = find(array)
    if found is None:
        raise TypeError(
            f"{name} must be a NumPy, CuPy or dense torch array, or one with __dlpack__ or "
            f"__cuda_array_interface__, got {described(array)}{instead(name, array, first)}"
        )
    library, kind = instance(found), type(array)
    if not isinstance(array, found.types()):
        return _returning(library, array)
    if library.adopt(array) is array:
        known = found.by_type(kind)
        if known is not None:
            keep(_library_of, kind, known, _MOST)
    return library


def _shared(
    target: ArrayLibrary, own: ArrayLibrary, call: Call, operands: Sequence[AnyArray], k: int
) -> AnyArray:
    """The memory of an operand as an array of another library."""
    array = operands[k]
    if getattr(array, "requires_grad", False):
        name = call.names[k]
        without = ".detach()" if hasattr(array, "detach") else " with requires_grad=False"
        raise ValueError(
            f"{name} requires grad, but the first argument is no torch tensor and the result would "
            f"carry no gradient: pass {name}{without}"
        )
    try:
        return target.adopt(own.exported(array))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RuntimeError) and type(error) not in _UNSHARED:
            raise  # such as a lack of memory, which the caller may handle
        name, why = call.names[k], str(error).removesuffix(".")
        if getattr(array, "dtype", None) is not None:
            why += f", got {dtype_name(array.dtype)}"
        message = f"cannot be shared as a {target.name} array: {why}"
        first = operands[call.extra]
        is_known = isinstance(array, own.types()) and not is_sparse(array)
        advice = "" if is_known else instead(name, array, first)
        raise TypeError(f"{name} {message}{advice}") from error


class _Returning(ArrayLibrary):
    """Arrays of a library that has no file here: computed by another, and returned by DLPack.

    Those of a library that takes none by DLPack get results of the one that computes.
    """

    def __init__(self, library: ArrayLibrary, from_dlpack: Callable[[AnyArray], AnyArray]) -> None:
        self._library = library
        self._from_dlpack = from_dlpack
        self.name = library.name
        self.on_host = library.on_host

    @classmethod
    def types(cls) -> tuple[type, ...]:
        """None: they come by DLPack."""
        return ()

    @classmethod
    def owns(cls, array: AnyArray) -> bool:
        return False

    @property
    def computing(self) -> ArrayLibrary:
        """The library that computes."""
        return self._library

    def adopt(self, array: AnyArray) -> AnyArray:
        """An array of the library that computes."""
        return self._library.adopt(array)

    def one(self, like: AnyArray) -> AnyArray:
        """The number 1."""
        return self._library.one(like)

    def evaluate(self, call: Call, operands: Sequence[AnyArray]) -> AnyArray:
        """The loss."""
        return self._returned(self._library.evaluate(call, operands))

    def run(
        self, call: Call, request: Request, operands: Sequence[AnyArray]
    ) -> list[AnyArray | None]:
        """The results of a request.

        Raises:
            ValueError: If an operand is to be overwritten, which may belong to an immutable array:
                on a device nothing says so.

        """
        if call.loss.overwrites and call.extra in request.wanted:
            raise ValueError(
                f"{call.names[call.extra]} must be writeable to be overwritten, and arrays of "
                "other libraries may not be: pass one of NumPy, CuPy or torch"
            )
        results = self._library.run(call, request, operands)
        return [None if result is None else self._returned(result) for result in results]

    def _returned(self, result: AnyArray) -> AnyArray:
        try:
            return self._from_dlpack(result)
        except (IndexError, TypeError, ValueError, RuntimeError):
            if result.shape:
                raise
            return self._from_dlpack(result.reshape(1))  # Warp has no arrays of shape ()


def _returning(library: ArrayLibrary, array: AnyArray) -> ArrayLibrary:
    """The library that computes on an array, with results of the array's own where that can be.

    A library of arrays has `from_dlpack` in the namespace that the array names, as the array API
    demands, or at its top.
    """
    namespace = getattr(array, "__array_namespace__", None)
    root = type(array).__module__.partition(".")[0]
    module = sys.modules.get(root) if namespace is None else namespace()
    from_dlpack = getattr(module, "from_dlpack", _as_it_is)
    key = library, from_dlpack
    known = _returning_to.get(key)
    if known is None:
        known = keep(_returning_to, key, _Returning(library, from_dlpack), _MOST)
    return known


def _as_it_is(result: AnyArray) -> AnyArray:
    return result


_returning_to: dict[Any, _Returning] = {}

"""What errors say of operands that no library takes or that lie apart, and what to pass instead."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.loss import Call
from .._core.tracing import Value
from .._core.types import AnyArray


def places(call: Call, on_host: Sequence[bool]) -> str:
    """Where the operands of a call are; `on_host` says it of each."""
    return ", ".join(
        f"{name} on the {'host' if is_on_host else 'device'}"
        for name, is_on_host in zip(call.names, on_host, strict=True)
    )


def described(array: AnyArray) -> str:
    """What an object is that no library takes."""
    details = array.layout if is_sparse(array) else getattr(array, "device", None)
    if details is None and hasattr(array, "__dlpack_device__"):
        details = f"DLPack device type {int(array.__dlpack_device__()[0])}"
    return type(array).__name__ + (f" ({details})" if details is not None else "")


def is_sparse(array: AnyArray) -> bool:
    """Whether an array is a torch tensor that is not dense."""
    layout = str(getattr(array, "layout", None))
    return layout.startswith("torch.") and layout != "torch.strided"


def instead(name: str, array: AnyArray, first: AnyArray) -> str:
    """What to pass for an object that no library takes, where that is known.

    Numbers become an array of the library of the first operand of the loss.
    """
    if hasattr(array, "mask") and hasattr(array, "filled"):
        if name == "where":
            return ": pass where.filled(False)"
        return f": pass {name}.data, and where=~{name}.mask"
    if getattr(array, "is_nested", False):
        return f", which is nested: pad {name}, and pass where= for what counts"
    if is_sparse(array):
        return f": pass {name}.to_dense()"
    if hasattr(array, "toarray"):  # of sparse arrays of SciPy and CuPy
        return f": pass {name}.toarray()"
    if hasattr(array, "codes") and hasattr(array, "categories"):
        return f": pass {name}.codes"
    if hasattr(getattr(array, "cat", None), "codes"):
        return f": pass {name}.cat.codes.to_numpy()"
    if hasattr(array, "to_numpy"):
        # Arrow copies bits and numbers beside nulls only if it is told to.
        is_arrow = type(array).__module__.partition(".")[0] == "pyarrow"
        return f": pass {name}.to_numpy({'zero_copy_only=False' if is_arrow else ''})"
    if type(array).__name__.endswith("Tracer"):
        return (
            ", which is traced: call the loss outside of jit and grad, or by pure_callback; "
            "value_and_grad of this package gives the gradient"
        )
    is_number = isinstance(array, int | float) and not isinstance(array, bool)
    if name in ("weight", "sample_weight") and is_number:
        return f": pass scale={array!r}, which multiplies the whole loss"
    is_buffer = isinstance(array, memoryview) or type(array).__module__ == "array"
    if is_buffer or isinstance(array, list | tuple | int | float):
        return f": pass {_made_of(name, first)}"
    if isinstance(array, Value):
        return ", of a formula, which calls no loss: write out what the loss computes"
    if hasattr(array, "__array__"):
        return f": pass np.asarray({name})"
    return ""


def _made_of(name: str, first: AnyArray) -> str:
    """The call that makes an array of numbers beside the first operand."""
    root = type(first).__module__.partition(".")[0]
    if root == "torch":
        device = first.device.type
        where = "" if device == "cpu" else f", device={device!r}"
        return f"torch.as_tensor({name}{where})"
    return f"{'cupy' if root == 'cupy' else 'np'}.asarray({name})"

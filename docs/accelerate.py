"""Write the lists of docs/accelerate.md from the code: `python docs/accelerate.py`."""

from __future__ import annotations

from pathlib import Path

from cupy_losses._acceleration import rules
from cupy_losses._acceleration.replacement import FUNCTIONS

PAGE = Path(__file__).with_suffix(".md")

# What each reason stands for.
EXPLAINED = {
    rules.ON_NO_GPU: "CPU tensors",
    rules.DEVICE: "tensors of several devices, or of another kind of device",
    rules.NO_GPU: "CuPy is missing, or finds no GPU where torch does; a warning says so",
    rules.NO_TENSOR: "lists, numbers, arrays of other libraries",
    rules.SUBCLASS: "`DTensor`, subclasses of one's own; parameters and the tensors with which "
    "torch traces are no such classes",
    rules.LAYOUT: "sparse, nested and other layouts",
    rules.EMPTY: "torch's results of nothing differ from loss to loss",
    rules.UNKNOWN: "`x[mask]` in `torch.export`, where a size is known when the program runs alone",
    rules.DERIVATIVES: "transforms of torch.func that are nested so deep",
    rules.GRADIENT: "a weight that requires grad, where torch raises; a target that does, of "
    + ", ".join(f"`{name}`" for name in sorted(rules.NO_GRADIENT_BY_TARGET)),
    rules.OTHER_DTYPES: "an input of integers, several floating dtypes in some losses "
    "(`huber_loss`), classes that are not int64, targets of bool",
    rules.SHAPES: "weights that are broadcast, targets of another shape in some losses, more "
    "dimensions than torch takes",
    rules.AUTOCAST: "`binary_cross_entropy`; half precision in "
    + ", ".join(f"`{name}`" for name in sorted(rules.HALF_UNDER_AUTOCAST))
    + ", and in a mean with weights",
    rules.DISTANCE: "`triplet_margin_with_distance_loss` with one; the module always has one",
    rules.REFUSED: "any other argument that raises here: a tensor for a number, shapes that do not "
    "fit, an unknown reduction; `p=0` of `triplet_margin_loss`, of which torch has no gradient",
}


def lists() -> dict[str, str]:
    """The text of each list of the page."""
    functions = " ".join(f"`{name}`" for name in sorted(function.name for function in FUNCTIONS))
    rows = [f"| {reason} | {EXPLAINED[reason]} |" for reason in rules.REASONS]
    return {"functions": functions, "reasons": "\n".join(["| reason | |", "|---|---|", *rows])}


def page(text: str) -> str:
    """The page with its lists as the code has them."""
    for name, made in lists().items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

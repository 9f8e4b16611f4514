"""What a formula in Python cannot do: the errors say what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .program import CALLED, LOGICAL

WORDS = "Python's operators and NumPy's functions"
_NO_FUNCTION = "{} is no function of a formula: write {}"
_UNKNOWN = "{} is no function of a formula: make it of Python's operators and of NumPy's {}"
_NO_DERIVATIVE = "{} has no derivative here: {}"
BRANCH = (
    "a value has no truth while a formula is traced: write np.where(condition, a, b) for a branch, "
    "np.maximum and np.minimum for max and min, and &, | and ~ with parentheses for and, or, not "
    "and chained comparisons"
)
NUMBER = (
    "a value is no number while a formula is traced: write NumPy's function, np.log(x) for "
    "math.log(x), and no float(x) or int(x)"
)
MODULUS = "pow takes no third argument in a formula, which has no remainders: write x ** n"
ELEMENT = "a formula is of one element, which has no length, no parts and no order"
ROW = (
    "a formula of rows has no parts of a row and no order of its elements, but np.mean(x), "
    "np.logaddexp.reduce(x), np.sum(x) in place of sum(x), and in place of len(x) np.size(x)"
)
CONSTANT = "a constant must be a number of Python or NumPy, got {}: an array is to be an operand"
_REDUCED = (
    "{} is over several elements, and a formula is of one: leave it to reduction= of the loss, or "
    "make the result an operand"
)
_ACCUMULATED = (
    "{} is not what a row accumulates: write np.sum, np.mean or np.logaddexp.reduce, if these can "
    "say it"
)
SECOND_PASS = (
    "an element meets a sum, or np.size, here, which would take a second pass over the row: sum "
    "the elements alone, or make what is of the row, such as its mean, an operand of shape (…, 1)"
)
ALONE = (
    "np.{} takes the elements of a row and nothing else in a formula: the axis is an argument of "
    "the loss, and np.where(mask, x, 0.0) leaves out elements"
)
NO_ELEMENTS = "np.{} is of the elements of a row, and what it got here is the same for all of them"
NO_SUM = (
    "the loss of a row is one number: return one made of np.sum, np.mean or np.logaddexp.reduce of "
    "the elements"
)
# Functions over several elements.
REDUCTIONS = {
    *("all", "amax", "amin", "any", "argmax", "argmin", "argsort", "average", "count_nonzero"),
    *("cumprod", "cumsum", "dot", "einsum", "max", "mean", "median", "min", "nanmax", "nanmean"),
    *("nanmin", "nansum", "norm", "percentile", "prod", "ptp", "quantile", "sort", "std", "sum"),
    *("reduce", "accumulate", "var", "vdot"),
}
_INSTEAD = {
    "cbrt": "np.sign(x) * np.abs(x) ** (1 / 3)",
    "exp2": "np.exp(x * np.log(2))",
    "expit": "0.5 * (1 + np.tanh(x / 2))",
    "fmax": "np.maximum(a, b)",
    "fmin": "np.minimum(a, b)",
    "heaviside": "np.where(x > 0, 1.0, 0.0)",
    "log10": "np.log(x) / np.log(10)",
    "log2": "np.log(x) / np.log(2)",
    "log_expit": "-np.logaddexp(0, -x)",
    "logaddexp2": "np.logaddexp(a * np.log(2), b * np.log(2)) / np.log(2)",
    "nan_to_num": "np.where(np.isnan(x), 0.0, x)",
    "ones_like": "1.0",
    "full_like": "the number",
    "piecewise": "np.where(condition, a, b)",
    "select": "np.where(condition, a, np.where(other, b, c))",
    "tan": "np.sin(x) / np.cos(x)",
    "zeros_like": "0.0",
}
_VARIANCE = (
    "np.mean((x - m) ** 2) - np.mean(x - m) ** 2, with the mean as an operand m of shape (…, 1), "
    "or a number m near it: digits cancel where m is far from the mean"
)
# Of a whole row.
_INSTEAD_OF_ROWS = {
    "all": "np.sum(~condition) == 0",
    "any": "np.sum(condition) > 0",
    "average": "np.sum(w * x) / np.sum(w)",
    "count_nonzero": "np.sum(x != 0)",
    "dot": "np.sum(a * b)",
    "inner": "np.sum(a * b)",
    "matmul": "np.sum(a * b)",
    "nanmean": "np.sum(np.where(np.isnan(x), 0.0, x)) / np.sum(~np.isnan(x))",
    "nansum": "np.sum(np.where(np.isnan(x), 0.0, x))",
    "norm": "np.sqrt(np.sum(x * x))",
    "ones_like": "1.0, or np.size(x) for the sum of it",
    "shape": "np.size(x)",
    "std": f"np.sqrt of the variance, {_VARIANCE}",
    "var": _VARIANCE,
    "vdot": "np.sum(a * b)",
}
_INSTEAD_OF_TORCH = {
    "logsigmoid": _INSTEAD["log_expit"],
    "logsumexp": "np.logaddexp.reduce(x), in a loss over rows",
    "sigmoid": _INSTEAD["expit"],
    "softplus": "np.logaddexp(0, x)",
}
_NAMES = {
    *(function.__name__ for function in CALLED | LOGICAL),
    *("clip", "isfinite", "isinf", "isnan", "reciprocal", "square", "where"),
}


def of_function(shown: str, name: str) -> str:
    """Why a formula may not call a function, and what to write instead."""
    if name in REDUCTIONS:
        return _REDUCED.format(shown)
    if name in _INSTEAD:
        return _NO_FUNCTION.format(shown, _INSTEAD[name])
    return f"{_UNKNOWN.format(shown, _listed(_NAMES))}, or write the formula in C++, as a text"


def of_function_of_rows(shown: str, name: str, reductions: Iterable[str]) -> str:
    """The same for a formula of rows, which may use some reductions: sums are accumulated alone."""
    instead = _INSTEAD | _INSTEAD_OF_ROWS
    if name in instead:
        return _NO_FUNCTION.format(shown, instead[name])
    if name in REDUCTIONS:
        return _ACCUMULATED.format(shown)
    return _UNKNOWN.format(shown, _listed(_NAMES.union(reductions)))


def of_function_of_torch(name: str) -> str:
    """The same of a function of torch."""
    instead = _INSTEAD_OF_TORCH.get(name, f"np.{name}, where NumPy has it")
    return f"torch's {name} takes tensors, and a formula is made of {WORDS}: write {instead}"


def without_derivative(shown: str, name: str) -> str:
    """Why a formula in NumPy is not differentiated, and what to write instead of a function."""
    if name in _INSTEAD:
        return _NO_DERIVATIVE.format(shown, f"write {_INSTEAD[name]}")
    made = f"make it of Python's operators and of NumPy's {_listed(_NAMES)}"
    return _NO_DERIVATIVE.format(shown, made)


def shown_name(function: Any) -> str:
    """How a function of NumPy, or a ufunc of another library, is written."""
    if isinstance(function, np.ufunc):
        name = function.__name__
        return f"np.{name}" if getattr(np, name, None) is function else name
    return f"{function.__module__}.{function.__name__}".replace("numpy", "np", 1)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

"""A loss from the text of a formula: its C++ source, and what a compiler says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = "formula of "


def is_identifier(name: object) -> bool:
    """Whether a name can be used in C++ and in Python."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) is not None


def struct_of(name: str) -> str:
    """The class template of a loss."""
    return f"Formula_{name}"


def source(name: str, formula: str, operands: Sequence[str], parameters: Sequence[str]) -> str:
    """The class template of a loss, as those of cuda/losses/pointwise.cuh.

    The formula keeps its lines and columns, under a file name of its own. It may not depend on all
    operands: the result takes the type that they meet in.
    """
    fields = "".join(f"  Parameter<T> {parameter};\n" for parameter in parameters)
    types = [f"N{k}" for k in range(len(operands))]
    arguments = ", ".join(f"{t} {operand}" for t, operand in zip(types, operands, strict=True))
    expression = re.search(r"\breturn\b", formula) is None
    return f"""
template <class T>
struct {struct_of(name)} {{
{fields}
  template <{", ".join(f"class {t}" for t in types)}>
  __device__ __forceinline__ auto formula({arguments}) const {{
    {"return" if expression else ""}
#line 1 "{_MARK}{name}"
{formula}
#line 1 "end of the {_MARK}{name}"
    ;
  }}
  template <{", ".join(f"class {t}" for t in types)}>
  __device__ __forceinline__ auto operator()({arguments}) const {{
    return typename Highest<{", ".join(types)}>::type(formula({", ".join(operands)}));
  }}
}};
"""


def explained(source: str, log: str) -> str:
    """The compiler's complaint about a formula: its line and column, the line itself, a mark."""
    text = source.split(f'#line 1 "{_MARK}', 1)[1]
    name, rest = text.split('"\n', 1)
    lines = rest.split('\n#line 1 "end of', 1)[0].split("\n")
    found = re.search(
        rf"^(end of the )?{_MARK}{name}\((\d+)\): error: (.*(?:\n(?! *\^).*)*?)\n(.*)\n( *)\^",
        log,
        re.MULTILINE,
    )
    if found is None:
        return f"the formula of {name} does not compile:\n{log}"
    message, shown = found[3].strip(), found[4]
    if found[1]:  # noticed behind the last line
        number, column = len(lines), len(lines[-1])
    else:
        number = int(found[2])
        # The compiler shows the line indented in its own way.
        indented = len(shown) - len(shown.lstrip())
        own = len(lines[number - 1]) - len(lines[number - 1].lstrip())
        column = len(found[5]) - indented + own
    return (
        f"the formula of {name} does not compile, line {number}, column {column + 1}: {message}\n"
        f"    {lines[number - 1]}\n    {' ' * column}^"
    )

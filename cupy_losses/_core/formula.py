"""A loss from the text of a formula: its C++ source, and what a compiler says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .program import cpp_name
from .row_program import RowProgram

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
    arguments = _arguments(operands)
    types = ", ".join(f"decltype({operand})" for operand in operands)
    return f"""
template <class T>
struct {struct_of(name)} {{
{_fields(parameters)}
  DEVICE auto formula({arguments}) const {{
    {"return" if _is_expression(formula) else ""}
#line 1 "{_MARK}{name}"
{formula}
#line 1 "end of the {_MARK}{name}"
    ;
  }}
  DEVICE auto operator()({arguments}) const {{
    return Common<{types}>(formula({", ".join(operands)}));
  }}
}};
"""


def row_struct_of(name: str) -> str:
    """The class template of a loss over rows."""
    return f"Rows_{name}"


def row_formula(name: str, program: RowProgram) -> str:
    """The class template of a formula of rows, as cuda/losses/row_formula.cuh wants it."""
    operands, parameters = (
        [*map(cpp_name, names)] for names in (program.operands, program.parameters)
    )
    logs = sum(is_log << k for k, is_log in enumerate(program.logs))
    constants = (
        f"  static constexpr int OPERANDS = {len(operands)}, SUMS = {len(program.terms)};\n"
        f"  static constexpr unsigned LOGS = {logs}u;\n"
    )
    methods = []
    for k, term in enumerate(program.terms):
        methods.append(_method("term", [f"Constant<{k}>"], operands, term.cpp()))
    length, *sums = program.loss.operands
    methods.append(_method("loss", [f"Real<T> {length}"], sums, program.loss.cpp()))
    return (
        f"template <class T>\nstruct {struct_of(name)} {{\n"
        f"{constants}{_fields(parameters)}\n{''.join(methods)}}};"
    )


def row_source(name: str, formula: str) -> str:
    """The class template of a loss over rows, made of the one of its formula."""
    struct = struct_of(name)
    return f"""
#line 1 "{_MARK}{name}"
{formula}
#line 1 "end of the {_MARK}{name}"
template <class T>
using {row_struct_of(name)} = OfSums<T, {struct}<T>>;
"""


def _method(name: str, first: Sequence[str], operands: Sequence[str], body: str) -> str:
    """A method of a formula, of numbers of any type."""
    end = "\n;" if "//" in body.rsplit("\n", 1)[-1] else ";"  # not in a comment
    lines = f"return {body}{end}" if _is_expression(body) else body
    text = "".join(f"    {line}\n" for line in lines.split("\n"))
    return (
        f"  DEVICE auto {name}({', '.join([*first, _arguments(operands)])}) const {{\n{text}  }}\n"
    )


def _fields(parameters: Sequence[str]) -> str:
    return "".join(f"  Parameter<T> {parameter};\n" for parameter in parameters)


def _arguments(operands: Sequence[str]) -> str:
    """The operands as arguments, each of a type of its own."""
    return ", ".join(f"auto {operand}" for operand in operands)


def _is_expression(formula: str) -> bool:
    """Whether a formula is an expression, and not statements that return one."""
    without_comments = re.sub(r"//[^\n]*|/\*.*?\*/", " ", formula, flags=re.DOTALL)
    return re.search(r"\breturn\b", without_comments) is None


def in_ascii(source: str) -> str:
    """The same C++. CuPy writes it to a file in the encoding of the locale, which may be ASCII."""
    return re.sub(r"[^\x00-\x7f]", lambda found: f"\\U{ord(found[0]):08x}", source)


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
        column -= 9 * len(re.findall(r"\\U[\da-f]{8}", shown[: len(found[5])]))  # see in_ascii
    return (
        f"the formula of {name} does not compile, line {number}, column {column + 1}: {message}\n"
        f"    {lines[number - 1]}\n    {' ' * column}^"
    )

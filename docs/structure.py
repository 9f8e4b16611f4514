"""Write docs/structure.md, the rooms and what imports what, from the code.

`python docs/structure.py`. The order of the rooms is declared here, from the top; a room imports,
or includes, only from rooms below it. tests/package/test_structure.py holds the code to it.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
ROOT = PAGE.parent.parent
PACKAGE = ROOT / "cupy_losses"
CUDA = ROOT / "cuda"

FAMILIES = "public functions"
# From the top. A module of the package itself is in a room of its own unless it is a family of
# public functions.
ROOMS = (
    "__main__",
    "_commands",
    "nn",
    "typing",
    "__init__",
    "_acceleration",
    FAMILIES,
    "_api",
    "_verification",
    "_kinds",
    "_libraries",
    "_torch",
    "_device",
    "_host",
    "_core",
)
CUDA_ROOMS = {
    "kernels": "What is launched, one schedule a file; each says what it fuses and the bytes it "
    "moves.",
    "losses": "The formulas, and losses made from losses: weighted, masked, differentiated.",
    "reduction": "Compensated sums; of a warp, a block, the grid.",
    "memory": "Vector accesses, layouts, copies to shared memory, exchange within a cluster.",
    "numbers": "Values that carry derivatives, elementary functions.",
}
# A library of arrays is imported by name when the first of its arrays comes, from its own room.
IMPORTS_BY_NAME = "cupy_losses._libraries.registry"

Graph = Mapping[str, set[str]]


def modules(package: Path) -> dict[str, Path]:
    """The modules of a package, with the package itself and its folders, by their full names.

    Also those that are for type checkers alone.
    """
    found = {}
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = (package.name, *file.relative_to(package).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


def imports(package: Path) -> dict[str, set[str]]:
    """What each module imports of its own package, also inside functions.

    A module that imports by a name made at run time imports "a name made at run time".
    """
    files = modules(package)
    return {name: set(_imported(name, file, files)) for name, file in files.items()}


def _imported(module: str, file: Path, files: Mapping[str, Path]) -> Iterator[str]:
    base = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if _own(alias.name, files)]
            yield from (_module(name, files) for name in names)
        elif isinstance(node, ast.ImportFrom):
            above = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            if _own(source, files):
                yield from (_module(f"{source}.{alias.name}", files) for alias in node.names)
        elif isinstance(node, ast.Call) and module != IMPORTS_BY_NAME:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in ("import_module", "__import__"):
                yield "a name made at run time"


def _own(name: str, files: Mapping[str, Path]) -> bool:
    return name.partition(".")[0] in files


def _module(name: str, files: Mapping[str, Path]) -> str:
    """The module that a name is, or is in."""
    while name not in files:
        name = name.rpartition(".")[0]
    return name


def room_of_module(module: str) -> str:
    """The room of a module."""
    own = module.partition(".")[2] or "__init__"
    room = own.partition(".")[0]
    return room if room.startswith("_") or room in ROOMS else FAMILIES


def includes(folder: Path) -> dict[str, set[str]]:
    """What each CUDA source includes of ours."""
    files = sorted(folder.rglob("*.cu*"))
    return {
        str(file.relative_to(folder)): set(
            re.findall(r'^ *# *include *"(.+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
        )
        for file in files
    }


def room_of_source(source: str) -> str:
    """The room of a CUDA source."""
    return source.rpartition("/")[0]


def findings(graph: Graph, room_of: Callable[[str], str], order: Sequence[str]) -> list[str]:
    """Imports or includes that do not go downwards, rooms that have no place, and cycles."""
    found = []
    for source, targets in sorted(graph.items()):
        if room_of(source) not in order:
            found.append(f"{source} is in no room of docs/structure.py")
            continue
        for target in sorted(targets):
            if target not in graph:
                found.append(f"{source} uses {target}, which is not there")
            elif room_of(target) not in order:
                continue  # said of the target
            elif order.index(room_of(target)) < order.index(room_of(source)):
                found.append(f"{source} uses {target}, from a room above its own")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"a cycle: {' -> '.join(reversed(error.args[1]))}")
    return found


def picture(graph: Graph, room_of: Callable[[str], str], order: Sequence[str]) -> str:
    """The rooms and what they use of each other, as a Mermaid picture."""
    pairs = {(room_of(source), room_of(t)) for source, targets in graph.items() for t in targets}
    lines = [f'    {_node(room)}["{room}"]' for room in order]
    lines += [
        f"    {_node(source)} --> {_node(target)}"
        for source in order
        for target in order
        if source != target and (source, target) in pairs
    ]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def _node(room: str) -> str:
    """A name that Mermaid takes for a node."""
    return f"room_{room.replace(' ', '_')}"


def first_line(file: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


def descriptions(package: Path) -> list[str]:
    """A line for each room of a package, from its docstring."""
    files = modules(package)
    lines = []
    for room in ROOMS:
        if room == FAMILIES:
            own = [name for name in files if room_of_module(name) == room]
            lines.append(f"- The {FAMILIES}, a family a file:")
            lines += [f"    - `{n.rpartition('.')[2]}.py`: {first_line(files[n])}" for n in own]
            continue
        name = package.name if room == "__init__" else f"{package.name}.{room}"
        folder = name != package.name and files[name].name == "__init__.py"
        shown = f"{room}/" if folder else f"{room}.py"
        lines.append(f"- `{shown}`: {first_line(files[name])}")
    return lines


HEAD = """# Structure

Generated by `python docs/structure.py` from the imports and includes. An arrow goes from a folder,
or from a module or modules beside the folders, to one that it imports or includes from. All go
downwards, and neither modules nor CUDA sources have cycles: `tests/package/test_structure.py` holds
the code to it, imports inside functions included.

## cupy_losses/

A call goes downwards. A public function, made by `_api`, checks its arguments and names a loss,
which is of one of `_kinds`. `_libraries` finds the library that the arrays are of. `_device` or
`_host` computes. What a loss, a call and a request are is in `_core`.
"""
MIDDLE = """
From the top, in the order to which imports are held:
"""
HEAD_OF_CUDA = """
## cuda/

CUDA C++ only: a Python file there would break NVIDIA's `cuda` namespace package. A kernel is
compiled from one text, a file of `kernels/` with all that it includes inlined.
"""


def page() -> str:
    """The whole page."""
    of_cuda = [f"- `{room}/`: {text}" for room, text in CUDA_ROOMS.items()]
    return "\n".join(
        [
            HEAD,
            picture(imports(PACKAGE), room_of_module, ROOMS),
            MIDDLE,
            *descriptions(PACKAGE),
            HEAD_OF_CUDA,
            picture(includes(CUDA), room_of_source, tuple(CUDA_ROOMS)),
            "",
            *of_cuda,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

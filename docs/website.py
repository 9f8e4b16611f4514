"""What the site has beside the pages of this folder: a hook of MkDocs.

Each build makes it from the code, in memory: a picture of each loss, their gallery, and a page for
each public module. The pages at the top of the checkout are taken over as they are, and Mermaid's
pictures are drawn here, as no script is loaded from another host.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from losses import families, names, title
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import cupy_losses
from cupy_losses._commands import curves, losses, picture

ROOT = Path(__file__).resolve().parents[1]
# What the pages link to of the checkout, and where the site has it.
OF_ROOT = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    **{
        f"benchmarks/results/{file.name}": f"results/{file.name}"
        for file in sorted((ROOT / "benchmarks" / "results").iterdir())
    },
}
REFERENCE = "Reference"  # the part of the navigation that the modules are added to
FUNCTIONS = "api/functions.md"
# The methods of what public functions return, under the names that the pages give it.
METHODS = {
    "acceleration.report": "cupy_losses._acceleration.switch.Acceleration.report",
    "loss.check": "cupy_losses._api.own.OwnLoss.check",
    "loss.compile": "cupy_losses._api.own.OwnLoss.compile",
}
MANY = 5  # parts of a page
# Parameters of pictures where the default hides what is particular to the loss.
SHOWN = {
    "charbonnier_loss": {"eps": "0.5"},
    "cosine_embedding_loss": {"margin": "0.5"},
    "margin_ranking_loss": {"margin": "1"},
    "quantile_loss": {"quantile": "0.8"},
}
GALLERY = """# Gallery

Each loss on the left, its derivative on the right: what `cupy-losses plot LOSS` draws.

```sh
cupy-losses plot smooth_l1_loss --beta 0.5 --output smooth.svg
```

Where a default would hide what a loss is, as a small `eps` or a margin of 0 does, it has another
parameter, which the title names: `cupy-losses plot charbonnier_loss --eps 0.5`.

What varies follows from the operands: the first one of a loss of elements, the score of one of two
classes, the angle between two vectors, the distance between the first two of three.
"""


def api_pages() -> dict[str, str]:
    """The page of each public module of losses, by its name."""
    return {module: f"api/{module.rpartition('.')[2]}.md" for module in families()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the modules to the navigation."""
    pages: list[Any] = [{title(module): page} for module, page in api_pages().items()]
    pages.insert(0, {"Functions": FUNCTIONS})
    for part in config.nav or []:
        if REFERENCE in part:
            part[REFERENCE] += pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code, and the pages of the checkout."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    for name in names():
        add(f"pictures/{name}.svg", drawn(name))
    add("gallery.md", gallery())
    for module, page in api_pages().items():
        add(page, f"# {title(module)}\n\n::: {module}\n")
    add(FUNCTIONS, functions())
    for source, page in OF_ROOT.items():
        add(page, linked((ROOT / source).read_text(encoding="utf-8").replace("](docs/", "]("), ""))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to what is of the checkout, Mermaid's pictures, and room for wide tables."""
    parts = re.findall(r"^## ", markdown, re.MULTILINE)
    # A long page is searched by its contents, however wide its tables are.
    if re.search(r"^(\|[ :-]+){6}", markdown, re.MULTILINE) and len(parts) < MANY:
        page.meta.setdefault("hide", ["toc"])
    markdown = linked(markdown, "../")
    if page.file.src_uri == "losses.md":
        markdown = with_references(markdown)
    markdown = re.sub(r"^\|.*\|$", _with_plain_bars, markdown, flags=re.MULTILINE)
    return re.sub(r"^```mermaid\n(.*?)^```$", _drawn_arcs, markdown, flags=re.MULTILINE | re.DOTALL)


def with_references(markdown: str) -> str:
    """The tables of all losses, whose names are links to the reference."""
    for module, own in families().items():
        for name in own:
            row = f"| `{name}("
            markdown = re.sub(
                rf"^{re.escape(row)}(.*?)`",
                rf"| [`{name}(\1`]({api_pages()[module]}#{module}.{name})",
                markdown,
                flags=re.MULTILINE,
            )
    return markdown


def _with_plain_bars(line: re.Match[str]) -> str:
    """A line of a table: in code Python-Markdown would show what escapes a bar on GitHub."""
    return re.sub("`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line[0])


def linked(markdown: str, top: str) -> str:
    """A page whose links to the `top` of the checkout go to where the site has what is there."""
    for source, made in OF_ROOT.items():
        markdown = markdown.replace(f"]({top}{source}", f"]({made}")
    return markdown


@functools.cache
def drawn(name: str) -> bytes:
    """The picture of a loss."""
    function, given = losses.find(name), SHOWN.get(name, {})
    shown = ", ".join(f"{key}={value}" for key, value in given.items())
    made = curves.curves_of(function, function.arguments(given.items(), "none"))
    return picture.draw(f"{name}({shown})" if shown else name, made, "svg")


def gallery() -> str:
    """A page of all pictures, each with a link to its loss."""
    lines = [GALLERY]
    for module, own in families().items():
        page = api_pages()[module]
        items = [
            f"- [![{name} and its derivative](pictures/{name}.svg)]({page}#{module}.{name})"
            for name in own
        ]
        lines += [
            f"## {title(module)}",
            "",
            '<div class="gallery" markdown="1">',
            "",
            *items,
            "",
            "</div>",
            "",
        ]
    return "\n".join(lines)


def functions() -> str:
    """The page of what is public and no loss: functions, methods of what they return, an error."""
    shown = {
        name: f"{getattr(cupy_losses, name).__module__}.{name}"
        for name in sorted(set(cupy_losses.__all__) - set(names()))
    }
    lines = ["# Functions of losses", ""]
    for name, path in (shown | METHODS).items():
        lines += [f"::: {path}", "    options:"]
        lines += ["      show_root_heading: true", "      show_root_toc_entry: true"]
        lines += [f"      heading: {name}", f"      toc_label: {name}", ""]
    return "\n".join(lines)


LINE, LEFT, WIDTH = 30, 170, 640  # pixels: between nodes, of their names, of all


def _drawn_arcs(found: re.Match[str]) -> str:
    nodes = dict(re.findall(r'^ *(\w+)\["(.*)"\]$', found[1], re.MULTILINE))
    edges = re.findall(r"^ *(\w+) --> (\w+)$", found[1], re.MULTILINE)
    return "\n".join(arcs(nodes, edges))


def arcs(nodes: dict[str, str], edges: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A graph whose nodes stand below each other, as SVG: an arc goes from each to another."""
    place = {node: LINE * (number + 1) for number, node in enumerate(nodes)}
    height = LINE * (len(nodes) + 1)
    yield f'<div><svg class="arcs" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">'
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/>'
        "</marker></defs>"
    )
    widest = max((place[b] - place[a] for a, b in edges), default=1)
    for a, b in edges:
        reach = LEFT + 20 + (WIDTH - LEFT - 40) * 4 / 3 * (place[b] - place[a]) / widest
        curve = (
            f"M{LEFT} {place[a]} C{reach:.0f} {place[a]} {reach:.0f} {place[b]} {LEFT} {place[b]}"
        )
        yield (
            f'<path d="{curve}" fill="none" stroke="currentColor" stroke-opacity="0.55" '
            'marker-end="url(#head)"/>'
        )
    for node, label in nodes.items():
        yield (
            f'<text x="{LEFT - 10}" y="{place[node] + 5}" text-anchor="end" font-size="15" '
            f'fill="currentColor">{html.escape(label)}</text>'
        )
    yield "</svg></div>"

"""What goes to a package index: an sdist, a wheel, and the page that shows the README."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from html.parser import HTMLParser
from pathlib import Path

from ..tools import requirements

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Targets(HTMLParser):
    """What a page in HTML links to and shows that lies beside it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.relative: set[str] = set()
        self.images: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value and not value.startswith(("#", "https:")):
                found = self.images if name == "src" else self.relative
                found.add(value.partition("#")[0])


def rendered(markdown: str) -> str:
    """The HTML that PyPI makes of a README."""
    html = requirements.imported("readme_renderer.markdown", "test").render(markdown)
    assert isinstance(html, str)
    return html


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution of a source tree, without the network."""
    for name in ("hatchling", "hatch_fancy_pypi_readme"):
        requirements.imported(name, "test")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (file,) = folder.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return file


def test_commands_of_installation_name_extras() -> None:
    """Extras that there are, in quotes, which shells that read brackets want."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named: set[str] = set()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for quote, extras in re.findall(r"pip install[^\n`\[]*?(\"?)[\w./-]*\[([\w,]+)\]", text):
            assert quote, (page, extras)
            named.update(extras.split(","))
    assert {"cli", "cuda12", "cuda13", "torch"} <= named
    assert named <= {*pyproject["project"]["optional-dependencies"]}


def test_readme_in_the_metadata(tmp_path: Path) -> None:
    """All that it names is in the sdist, from which the wheel is built, and no link is relative.

    A picture would be one: it is left out.
    """
    with tarfile.open(build("sdist", ROOT, tmp_path)) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with zipfile.ZipFile(build("wheel", source, tmp_path)) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = wheel.read(name).decode()
    assert metadata == (source / "PKG-INFO").read_text(encoding="utf-8")
    message = message_from_string(metadata)
    assert message["Description-Content-Type"] == "text/markdown"

    readme, page = (ROOT / "README.md").read_text(encoding="utf-8"), str(message.get_payload())
    targets = Targets(rendered(readme))
    named, images = targets.relative, targets.images
    assert images
    assert [path for path in images if path in page or not (source / path).is_file()] == []
    assert {"CONTRIBUTING.md", "docs/losses.md", "docs/deviations.md"} <= named
    assert [path for path in named if f"`{path}`" not in page] == []
    assert [path for path in named if not (source / path).is_file()] == []
    targets = Targets(rendered(page))
    assert targets.relative | targets.images == set()
    assert FENCE.findall(page) == FENCE.findall(readme)
    assert len(FENCE.findall(page)) > 5


def test_relative_targets_are_found() -> None:
    page = rendered("[a](b.md#c) [d](#e) [f](https://example.org/g) ![h](i.svg)")
    assert (Targets(page).relative, Targets(page).images) == ({"b.md"}, {"i.svg"})

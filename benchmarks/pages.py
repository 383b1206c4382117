"""Pages of the documentation whose tables come from committed results, and from nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from backstream import plots
from benchmarks.runner import result

DOCS = Path(__file__).parents[1] / "docs"
Sections = dict[str, Callable[[], str]]
"""What makes the text between the marks of each name."""


def read_parts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["parts"]


def filled(text: str, sections: Sections) -> str:
    """A page with what stands between its marks made anew."""
    for name, make in sections.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + make() + end + rest.split(end)[1]
    return text


def write(pages: dict[str, Sections]) -> None:
    for page, sections in pages.items():
        path = DOCS / page
        path.write_text(filled(path.read_text(), sections))


def draw(module: str, results: Path, picture: str) -> None:
    """The figure of a result or benchmark, as far as it has been run."""
    if results.exists():
        place = DOCS / picture
        place.parent.mkdir(exist_ok=True)
        drawn = plots.save(result(module).figure(json.loads(results.read_text())), place)
        Image.open(drawn).convert("RGB").quantize(256).save(drawn, optimize=True)  # a third of the size

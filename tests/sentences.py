"""Whether pages of the documentation say what committed results do."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def results(name: str) -> dict:
    return json.loads((ROOT / name).read_text())


def page(name: str) -> str:
    return (ROOT / name).read_text()


def says(name: str, sentence: str) -> None:
    """The sentence is on the page, however it is broken into lines."""
    text = re.sub(r"\s+", " ", page(name))
    assert re.sub(r"\s+", " ", sentence) in text, f"{name} does not say: {sentence}"

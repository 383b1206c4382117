"""The project has one spelling, the American one, as in JAX and optax."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BRITISH = re.compile(
    r"optimis(?![tm])|(normal|amort|linear|factor|parameter|summar|serial|general|initial|standard|random|vector)is(e|ing|ation)"
    r"|(col|behavi|neighb|fav)our|centre|centring|modell(ed|ing)|labelled",
    re.IGNORECASE,
)
FOLDERS = "src", "docs", "tests", "benchmarks", "reproduction", "studies", "examples", "tools"


def british(text):
    return [found[0] for found in BRITISH.finditer(text)]


def test_one_spelling():
    assert british("an Optimiser, colours, centred") == ["Optimis", "colour", "centre"]
    files = [file for folder in FOLDERS for end in ("py", "md") for file in (ROOT / folder).rglob(f"*.{end}")]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    own = Path(__file__)
    found = {
        str(file.relative_to(ROOT)): words for file in files if file != own and (words := british(file.read_text()))
    }
    assert not found

"""The documentation's code runs as it stands, and docstrings' examples do what they say."""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import pytest
import typer

import command
from backstream.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    language: str
    code: str
    line: int
    excuse: str | None
    """Why a block is not run: the comment `<!-- not run: … -->` before it."""


def blocks(page: Path) -> list[Block]:
    pattern = r"(?:<!-- not run: (?P<excuse>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$"
    text = page.read_text()
    return [
        Block(found["language"], found["code"], text[: found.start("code")].count("\n"), found["excuse"])
        for found in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
    ]


def run_python(page: Path) -> dict:
    """The page's Python blocks, one after another, in JAX's default precision, as a reader would."""
    namespace = {}
    with jax.enable_x64(False):
        for block in blocks(page):
            if block.language == "python":
                source = "\n" * block.line + block.code  # so that a traceback names the line of the page
                exec(compile(source, str(page.relative_to(ROOT)), "exec"), namespace)
    plt.close("all")
    return namespace


def named(pages):
    """All pages but the front page are left to `make test-slow`."""
    marks = {page: () if page == ROOT / "README.md" else pytest.mark.slow for page in PAGES}
    return [pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks[page]) for page in pages]


def having(language):
    return named(page for page in PAGES if any(block.language == language for block in blocks(page)))


def test_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = run_python(ROOT / "README.md")
    result, states, ys = (namespace[name] for name in ("result", "states", "ys"))
    filtered, smoothed = (abs(law.mean - states).mean() for law in (result.filtered, result.smooth()))
    assert smoothed < filtered < abs(ys - states).mean()
    assert (tmp_path / "level.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", [page for page in having("python") if page.values[0].name != "README.md"])
def test_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write runs and checkpoints
    run_python(page)


@pytest.mark.parametrize("page", having("sh"))
def test_shell_blocks_run(page, tmp_path):
    """Each `sh` block runs, in the order of the page and in one folder, or says in a comment why it does not."""
    entry = tmp_path / "bin" / "backstream"
    entry.parent.mkdir()
    entry.write_text(f"#!{sys.executable}\nfrom backstream.cli import main\nmain()\n")
    entry.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    environment = command.environment() | {"PATH": f"{entry.parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    for block in blocks(page):
        if block.language == "sh" and block.excuse is None:
            ended = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.code],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, f"{page.name}:{block.line}\n{block.code}\n{ended.stdout}\n{ended.stderr}"


def test_commands_that_are_not_run_can_be_asked():
    """Every `backstream` command of a block that is not run exists, with its options and their values."""
    group, seen = typer.main.get_command(app), []
    for page in PAGES:
        for block in blocks(page):
            code = block.code.replace("\\\n", " ")
            for line in code.splitlines() if block.language == "sh" and block.excuse else []:
                for part in line.split("|"):
                    name, *arguments = shlex.split(part, comments=True) or [""]
                    if name == "backstream":
                        context = group.make_context(name, arguments[:1], resilient_parsing=True)
                        group.get_command(context, arguments[0]).make_context(arguments[0], arguments[1:])
                        seen.append(arguments[0])
    assert set(seen) >= {"stream", "inspect", "smooth"}


def test_every_block_has_a_language_that_is_looked_after():
    """Without this a block marked `bash` or `py` would not be run, and nobody would know."""
    known = {"python", "sh", ""}
    strays = [f"{p.name}:{b.line} {b.language}" for p in PAGES for b in blocks(p) if b.language not in known]
    assert strays == []
    assert not any(b.excuse for p in PAGES for b in blocks(p) if b.language == "python")


def test_every_name_is_in_the_reference():
    """All that `backstream` and its namespaces export has an entry, and each entry exists."""
    import backstream
    from backstream import _NAMESPACES

    entries = re.findall(r"^::: (\S+)$", "".join(p.read_text() for p in (ROOT / "docs/reference").glob("*.md")), re.M)
    for entry in set(entries) - {"backstream.plots"}:  # the one entry that is a whole module
        module, _, name = entry.rpartition(".")
        assert hasattr(importlib.import_module(module), name), entry
    names = {entry.rpartition(".")[2] for entry in entries}
    exported = set(dir(backstream)) - {"__version__", *_NAMESPACES}
    for namespace in (backstream.estimators, backstream.families, backstream.laws, backstream.learning):
        exported |= set(namespace.__all__)
    assert sorted(exported - names) == []


def test_links_and_pictures_exist():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
    for picture in (ROOT / "docs").rglob("*.png"):
        assert picture.stat().st_size < 150_000, picture.name


MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src" / "backstream").rglob("*.py"))
    if path.name != "__init__.py" and ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, tmp_path, monkeypatch):
    """In JAX's default precision, as a reader would see them."""
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(False):
        failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0

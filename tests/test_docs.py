"""The README's code runs as it stands, and docstrings' examples do what they say."""

import doctest
import importlib
import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]


def test_readme_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    namespace = {}
    exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["smoothed"].mean.shape == (2000, 1)
    error = {name: abs(namespace[name].mean - namespace["states"]).mean() for name in ("filtered", "smoothed")}
    assert error["smoothed"] < error["filtered"] < abs(namespace["ys"] - namespace["states"]).mean()
    assert (namespace["lower"] < namespace["upper"]).all()


MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src" / "backstream").rglob("*.py"))
    if path.name != "__init__.py" and ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    """In JAX's default precision, as a reader would see them."""
    with jax.enable_x64(False):
        failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0

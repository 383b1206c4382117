"""The numbers of the page of examples are those that the examples printed."""

import re

import pytest

from sentences import ROOT, page

SECTIONS = {"sp500_volatility": "## Volatility", "sensors_outliers": "## Sensors"}
DECIMAL = r"(?<![\w.])\d+\.\d+"
STARTS = {"sp500_volatility": {"0.95", "0.2", "0.987", "0.152"}}
"""Settings of the script, which it does not print, and maximum likelihood, which `docs/decisions.md` has."""


@pytest.mark.parametrize("name", SECTIONS)
def test_numbers_of_an_example_are_those_that_it_printed(name):
    """All that have a decimal point."""
    section = page("docs/examples.md").split(SECTIONS[name])[1].split("\n## ")[0]
    printed = set(re.findall(DECIMAL, (ROOT / "examples" / "printed" / f"{name}.txt").read_text()))
    told = set(re.findall(DECIMAL, section)) - STARTS.get(name, set())
    assert len(told) >= 3 and told <= printed, told - printed

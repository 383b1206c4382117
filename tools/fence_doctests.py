"""For `make docs`: examples in docstrings, which start with >>>, are code and not quotations of quotations."""

import re

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>>)(?!\s*$).*\n?)*)+", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = value

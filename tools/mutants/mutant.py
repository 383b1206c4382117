"""What a mutant is."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """An error: in a file of the package, some text that becomes another; and the tests that should notice."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    excuse: str = ""
    """Why no test notices, where none does."""

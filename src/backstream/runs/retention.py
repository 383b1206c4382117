"""How much of the results of an endless stream stays: by rows, by age or by size."""

import re
from dataclasses import dataclass

UNITS = {
    "": ("rows", 1),
    "rows": ("rows", 1),
    "s": ("seconds", 1),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "d": ("seconds", 86400),
    "kB": ("bytes", 10**3),
    "MB": ("bytes", 10**6),
    "GB": ("bytes", 10**9),
    "TB": ("bytes", 10**12),
}


@dataclass(frozen=True)
class Retention:
    """What stays at least, or all where everything is 0.

    >>> Retention.parse("7d")
    Retention(rows=0, seconds=604800, bytes=0)
    >>> Retention.parse("500 MB").bytes
    500000000
    """

    rows: int = 0
    seconds: int = 0
    bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> "Retention":
        """From a number with a unit. Raises ValueError with a sentence."""
        if not text.strip():
            return cls()
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*([A-Za-z]*)\s*", text, re.ASCII)
        if found is None or found[2] not in UNITS:
            units = ", ".join(unit for unit in UNITS if unit)
            raise ValueError(f"{text!r} is not a number of rows such as 100000, or with a unit: {units}.")
        what, factor = UNITS[found[2]]
        return cls(**{what: int(found[1]) * factor})

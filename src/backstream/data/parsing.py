"""Single cells of a table: numbers, missing values and times."""

import math
from datetime import UTC, datetime
from typing import Any

MISSING = frozenset({"", "nan", "null", "na"})
"""What a missing value may be written as, in any case of letters."""

TOO_LARGE = "which is infinite or too large; leave the cell empty if it is missing"


def number(cell: Any, largest: float) -> float:
    """A cell as a number, NaN if it is missing. Raises ValueError with the rest of a sentence: "… is not a number".

    >>> number(" 1.5", 1e9), number("NA", 1e9)
    (1.5, nan)
    """
    if cell is None:
        return math.nan
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in MISSING:
            return math.nan
        if "_" in text:  # Python would take 1_000
            raise ValueError(f"holds {_shown(cell)}, which is not a number")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"holds {_shown(cell)}, which is not a number") from None
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            value = float(cell)
        except OverflowError:
            value = math.inf
    else:
        raise ValueError(f"holds {_shown(cell)}, which is not a number")
    if abs(value) > largest:
        raise ValueError(f"holds {_shown(cell)}, {TOO_LARGE}")
    return value


def is_numeric(cell: Any) -> bool:
    try:
        number(cell, math.inf)
    except ValueError:
        return False
    return True


def text(cell: Any) -> str | None:
    """A time as it is kept: the text of its cell."""
    if cell is None or isinstance(cell, str):
        return cell
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def seconds(cell: str | None) -> float:
    """A time in its own units if it is a number, in seconds if it is a date. Raises ValueError as `number` does.

    >>> seconds("2024-01-01T00:01:00Z") - seconds("2024-01-01T00:00:00Z")
    60.0
    """
    if cell is None or not cell.strip():
        raise ValueError("is empty, so that the time since the last observation is not known")
    try:
        value = float(cell)
    except ValueError:
        try:
            moment = datetime.fromisoformat(cell.strip())
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(f"holds {_shown(cell)}, which is neither a number nor an ISO 8601 time") from None
    if not math.isfinite(value):
        raise ValueError(f"holds {_shown(cell)}, which is not finite")
    return value


def since(before: str | None, time: str | None) -> tuple[str | None, float]:
    """A time, and what has passed since the one before it, of the same stream: nothing for its first row. ValueError
    where it lies earlier.

    >>> since("10", "12.5")
    ('12.5', 2.5)
    """
    now = seconds(time)
    passed = 0.0 if before is None else now - seconds(before)
    if passed < 0:
        raise ValueError(f"goes back in time, to {time}")
    return time, passed


def _shown(cell: Any) -> str:
    shown = repr(cell)
    return shown if len(shown) <= 40 else shown[:37] + "..."

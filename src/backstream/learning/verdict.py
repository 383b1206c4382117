"""Whether what a run reports can be used: one word, and the reasons for it. `judging` makes it."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

Kind = Literal["good", "learning", "doubtful", "failed"]


@dataclass(frozen=True)
class Reason:
    """One thing that is wrong, or uncertain."""

    what: str
    """What was seen, and by how much."""
    cause: str = ""
    """Its likely cause."""
    remedy: str = ""
    """One thing to try."""

    def __str__(self) -> str:
        cause = f" Likely cause: {self.cause}." if self.cause else ""
        return f"{self.what}{cause}" + (f" Try: {self.remedy}." if self.remedy else "")


@dataclass(frozen=True)
class Verdict:
    """good, learning, doubtful or failed, with the reasons. `figures` are what it was made from."""

    kind: Kind
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    """What else there is to know; nothing is wrong."""
    figures: dict[str, float | None] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([self.headline(), *(f"  {line}" for line in self.details())])

    def headline(self) -> str:
        """One line."""
        told = []
        for name, words in (("log_score", "{:.3f} nats per row"), ("coverage", "{:.0%} inside the 90 % bands")):
            value = self.figures.get(name)
            told += [] if value is None else [words.format(value)]
        known = {"gap": "a particle filter", "several_gap": "several components"}
        for name, other in known.items():
            gap, error = self.figures.get(name), self.figures.get(f"{name}_error")
            if gap is not None and error is not None and (name != "gap" or self.is_checked()):
                way = "lost" if gap >= 0 else "gained"
                told.append(f"{abs(gap):.3f} ± {error:.3f} nats per row {way} against {other}")
        kind = self.kind if self.is_checked() else f"{self.kind}, but not checked by particle filters"
        return f"Verdict: {kind}" + (f" ({', '.join(told)})" if told else "")

    def is_checked(self) -> bool:
        """Whether the particle filters, where the posterior is compared with any, would have noticed a loss."""
        return self.figures.get("gap_trusted") != 0

    def details(self) -> list[str]:
        """The reasons and notes, as sentences. What several reasons say to try is said once."""
        following = [*(reason.remedy for reason in self.reasons[1:]), ""]
        pairs = zip(self.reasons, following, strict=True) if self.reasons else ()
        told = [replace(one, remedy="") if one.remedy == after else one for one, after in pairs]
        return [*map(str, told), *self.notes]

    def record(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def restored(cls, record: Any) -> "Verdict":
        """From JSON. Raises KeyError, TypeError or ValueError where it is of another shape."""
        if record["kind"] not in get_args(Kind):
            raise ValueError(f"there is no kind {record['kind']!r}")
        reasons = tuple(Reason(*(_text(reason[name]) for name in WORDING)) for reason in record["reasons"])
        figures = {_text(name): None if value is None else float(value) for name, value in record["figures"].items()}
        return cls(record["kind"], reasons, tuple(map(_text, record["notes"])), figures)


WORDING = tuple(each.name for each in fields(Reason))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value

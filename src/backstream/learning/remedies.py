"""What of a run decides which remedies there are, and the remedies that several reasons share."""

from typing import NamedTuple


class Circumstances(NamedTuple):
    """What is learned, and from where: which remedies there are."""

    scores: bool
    """Whether the posterior reads the model, and scores its rows."""
    components: int
    learns_model: bool
    improves: bool
    """Whether something is learned that has not settled: λ of a family that starts from nothing, or θ."""
    fallback: bool
    names: tuple[str, ...] = ()
    """Of the columns, where they have any."""


def named(about: Circumstances, column: int) -> str:
    return about.names[column] if column < len(about.names) else f"column {column}"


def follow(about: Circumstances) -> str:
    if about.learns_model:
        return "a --model-horizon, so that old rows are forgotten"
    return "look at the latest rows; if the change is real, --learn-model with a --model-horizon"


def learn_it(about: Circumstances) -> str:
    if about.learns_model:
        return "more rows, or another model: the learned parameters cannot correct this"
    return "learn the model's parameters (--learn-model, bs.learn(..., learn='all')), and check the columns' units"

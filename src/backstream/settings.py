"""Settings of a run: of learning, of many streams, and of what is saved. They are checked when they are made.

The options of the command line are generated from these classes, with the text below each field as help. JAX is not
needed here.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["guided", "conjugate", "recurrent"]
Method = Literal["log-score", "window", "recursion"]

LEAST = {"components": 1, "lag": 1, "trajectories": 1, "particles": 2, "width": 1, "monitor_every": 2, "seed": 0}
MOST = {"components": 2**10, "lag": 2**16, "trajectories": 2**16, "particles": 2**20, "width": 2**14}
"""Larger values would need too much memory. They are checked because settings may come from somebody else's run."""
LEAST_MODEL_HORIZON = 250
"""Rows. Shorter horizons leave too few rows to notice that the parameters have changed."""
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
class Settings:
    """Settings for learning. They are saved with every run.

    λ are the parameters of the posterior, θ those of the model.
    """

    family: Family = "guided"
    """The posterior. `guided` evaluates the model at every row. `conjugate` and `recurrent` are the families of the
    paper, which learn everything from the stream."""
    learn: bool = True
    """Learn the posterior. Without learning, a guided posterior only filters with the model as given, which takes
    microseconds per row."""
    components: int | Literal["auto"] = "auto"
    """How many normal distributions a guided posterior consists of: more than one if it may have several modes. With
    `auto`, a run starts with one, and changes to four after the first rows if four predict these rows better."""
    fallback: bool = True
    """Report the posterior from before learning if it predicts better than the learned one."""
    method: Method | None = None
    """The gradient: from the log score of each row, from trajectories over a window, or from the recursion of the
    paper. Default: log-score for a guided posterior (window if many parameters are learned), window for others."""
    lag: int = 16
    """The number of rows in the window."""
    trajectories: int = 4
    """The number of sampled trajectories in the window."""
    particles: int = 100
    """The number of particles of the recursion."""
    gamma: float = 0.8
    """The discount of the recursion. 1 is the objective of the paper. A smaller value is more stable."""
    learning_rate: float | None = None
    """The learning rate. Default: 0.01 for log-score, 0.003 for window, 0.001 for recursion."""
    learning_rate_halved_after: int | None = None
    """The number of rows until the learning rate has halved. It falls like 1/(1 + t/rows), to a tenth. 0: constant.
    Default: 30000, or constant if there is a horizon."""
    horizon: int | None = None
    """The number of rows over which the posterior's parameters λ are averaged. Older rows are forgotten. Default: up to
    4000."""
    width: int = 64
    """The number of hidden units of the network, for the families conjugate and recurrent."""
    seed: int = 0
    """The random seed. The same seed gives identical results."""
    learn_model: bool = False
    """Learn all parameters θ of the model from the same stream."""
    learn_parameters: tuple[str, ...] = ()
    """Learn only these parameters of the model, by field name. `learn_model` is then not needed."""
    model_learning_rate: float | None = None
    """The learning rate of Adam for the model's parameters. Default: with log-score, steps that need no learning rate
    (`Settling`); otherwise 0.01."""
    model_learning_rate_halved_after: int | None = None
    """The number of rows until the model's learning rate has halved. 0: constant. Default: 30000, or constant if there
    is a model horizon."""
    model_horizon: int | None = None
    """The number of rows after which the model's parameters forget, to follow parameters that change. Default: no
    forgetting while the rows agree with what was learned."""
    monitor_every: int = 500
    """The number of rows in each report of the monitor."""

    def __post_init__(self):
        for name, choices in (("family", get_args(Family)), ("method", (None, *get_args(Method)))):
            if getattr(self, name) not in choices:
                named = ", ".join(repr(choice) for choice in choices if choice is not None)
                raise ValueError(f"{name} must be one of {named}, not {getattr(self, name)!r}.")
        if isinstance(self.components, str) and self.components != "auto":
            raise ValueError(f"components must be a number or 'auto', not {self.components!r}.")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value != "auto" and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}.")
        for name, most in MOST.items():
            value = getattr(self, name)
            if value != "auto" and value > most:
                raise ValueError(f"{name} must be at most {most}, not {value}.")
        if self.method == "log-score" and self.family != "guided":
            raise ValueError(f"The family {self.family!r} has no log score: choose the method 'window' or 'recursion'.")
        if self.several and (self.family != "guided" or self.method not in (None, "log-score")):
            what = f"the family {self.family!r}" if self.family != "guided" else f"the method {self.method!r}"
            raise ValueError(f"Several components are for the family 'guided' and its log score, not for {what}.")
        if not self.learn and (self.learns_model or self.family != "guided"):
            what = "The model" if self.learns_model else f"A {self.family} posterior"
            raise ValueError(f"{what} cannot be found without learning: leave learn at True.")
        if self.seed >= 2**31:
            raise ValueError(f"seed must be below 2**31, but is {self.seed}.")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, not at {self.gamma}.")
        for name in ("learning_rate", "model_learning_rate"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, not {value}.")
        halved = "learning_rate_halved_after", "model_learning_rate_halved_after"
        for name, least in (("horizon", 1), ("model_horizon", LEAST_MODEL_HORIZON), *((name, 0) for name in halved)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least} rows, not {value}.")

    @property
    def several(self) -> bool:
        """Whether the settings ask for several components."""
        return self.components != "auto" and self.components > 1

    @property
    def learns_model(self) -> bool:
        return self.learn_model or bool(self.learn_parameters)


@dataclass(frozen=True)
class FleetSettings:
    """Settings for many streams that are processed together."""

    common: bool = True
    """All streams have one posterior (and one model), learned from all of them. Otherwise, each has its own."""
    tick_rows: int = 64
    """The maximum number of rows in one update. With a common posterior, their gradients are averaged."""
    forget_after: int = 0
    """End a stream after this many rows of other streams. 0: never."""
    watched: int = 4
    """The number of streams that are monitored: the first ones, and others when these end."""

    def __post_init__(self):
        if self.tick_rows < 1:
            raise ValueError(f"tick_rows must be at least 1, not {self.tick_rows}.")
        if self.forget_after and self.forget_after < self.tick_rows:
            raise ValueError(
                f"forget_after must be 0, or at least tick_rows, which is {self.tick_rows}; it is {self.forget_after}."
            )
        for name in ("forget_after", "watched"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}.")


@dataclass(frozen=True)
class Retention:
    """How much of the results is kept, at least: rows, an age or a size. All are kept if everything is 0.

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


@dataclass(frozen=True)
class Saving:
    """Settings for writing a run to disk."""

    checkpoint_every: int = 1000
    """The number of rows between two checkpoints. Each part of the results has this many rows."""
    keep: int = 3
    """The number of checkpoints to keep."""
    checkpoint_seconds: float = 0.0
    """Also save new rows after this many seconds. 0: off."""
    keep_results: str = ""
    """How much of the latest results is kept, at least: rows (100000), an age (7d) or a size (2GB). Default: all."""

    def __post_init__(self):
        for name, least in (("checkpoint_every", 1), ("keep", 1), ("checkpoint_seconds", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        try:
            self.retention()
        except ValueError as error:
            raise ValueError(f"keep_results: {error}") from None

    def retention(self) -> Retention:
        return Retention.parse(self.keep_results)

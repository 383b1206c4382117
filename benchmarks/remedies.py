"""Whether following a verdict's advice mends what is wrong: `python -m benchmarks.remedies --out FILE`.

Each failure of `benchmarks.verdicts` is run once as it is and once with what its verdict says to try, on the same rows
and, where the model's parameters are then learned, on more of them.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from numpyro.distributions.constraints import positive

import backstream as bs
from backstream import Settings
from benchmarks.verdicts import Failure, Level, failures, level, told
from benchmarks.zoo.__main__ import use_one_thread

ROWS = 3000
"""For runs that learn the model."""
UNBOUNDED = "noise of the transition three times, learned without constraints"
SEED = 200
"""Not among those of the verdicts."""


class Remedy(NamedTuple):
    failure: str
    words: str
    """Of the advice."""
    settings: Settings
    rows: int = 500


class Bounded(Level):
    """With the values that its parameters may have, as the verdict says where they leave them."""

    constraints: ClassVar = {"sigma": positive, "scale": positive}


def bounded(model: Any) -> Any:
    return Bounded(**{one.name: getattr(model, one.name) for one in fields(model)}) if type(model) is Level else model


LEARN = Settings(learn_model=True)
REMEDIES = (
    Remedy(UNBOUNDED, "constraints", LEARN, ROWS),
    Remedy("two modes and one normal law", "--components 4", Settings(components=4)),
    Remedy("noise of the emission a third", "--learn-model", LEARN, ROWS),
    Remedy("noise of the transition three times", "--learn-model", LEARN, ROWS),
    Remedy("dynamics forget at once (0.2 for 0.9)", "--learn-model", LEARN, ROWS),
    Remedy("wrong sign of the dynamics", "--learn-model", LEARN, ROWS),
    Remedy("offset of 0.7 in the emission", "--learn-model", LEARN, ROWS),
    Remedy("rate a thousand times too high, no fallback", "lower --learning-rate", Settings(fallback=False)),
    Remedy("rate of the parameters a hundred times too high", "lower --model-learning-rate", LEARN, ROWS),
)


def run(remedy: Remedy) -> dict[str, Any]:
    failure = next((one for one in failures() if one.name == remedy.failure), None)
    if failure is None:  # a model without constraints, whose scale becomes negative
        failure = Failure(UNBOUNDED, level(), level(sigma=1.5), settings=LEARN, rows=ROWS)
    model = failure.right if failure.wrong is None else failure.wrong
    ys = np.asarray(failure.right.simulate(max(remedy.rows, failure.rows), key=jax.random.key(SEED))[1])
    before = failure.settings
    if remedy.failure.startswith("two modes"):
        before = Settings(components=1)
    quiet: dict[str, Any] = {"progress": False, "warn": lambda sentence: None}
    found = told(bs.learn(model, ys[: failure.rows], settings=before, **quiet))
    after = told(bs.learn(bounded(model), ys[: remedy.rows], settings=remedy.settings, **quiet))
    advised = remedy.words in " ".join(found["reasons"])
    return {"tried": remedy.words, "advised": advised, "before": found["verdict"], "after": after["verdict"]} | {
        "log_score": [one["figures"]["log_score"] for one in (found, after)],
        "reasons": found["reasons"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    use_one_thread()
    found = {}
    for remedy in REMEDIES:
        found[remedy.failure] = run(remedy)
        print(remedy.failure, {k: v for k, v in found[remedy.failure].items() if k != "reasons"}, flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(json.loads(asked.out.read_text()) | {"remedies": found}, indent=1))


if __name__ == "__main__":
    main()

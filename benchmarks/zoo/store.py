"""Data and references of the models, computed once and kept outside the repository."""

import hashlib
import os
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.zoo.case import Case, Data, Posterior

REVISION = 1
"""Raised when simulation or a reference changes what it computes."""


class Judged(NamedTuple):
    """Data with the reference posterior (None where there is none), the one from half the effort and what they took."""

    data: Data
    reference: Posterior | None
    half: Posterior | None
    effort: str
    seconds: float


def folder() -> Path:
    """`$BACKSTREAM_BENCHMARKS`, or a folder in the user's cache."""
    return Path(os.environ.get("BACKSTREAM_BENCHMARKS", Path.home() / ".cache" / "backstream-benchmarks"))


def judged(case: Case, seed: int) -> Judged:
    """Data and reference of a model, computed unless they are kept already."""
    path = folder() / f"{case.name}-{seed}-{digest(case)}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        with scratch.open("wb") as file:
            np.savez(file, **_packed(_compute(case, seed)))
        os.replace(scratch, path)
    with np.load(path) as kept:
        return _unpacked(dict(kept))


def digest(case: Case) -> str:
    """Of the file that defines the model, its rows and the reference's settings."""
    source = Path(import_module(f"benchmarks.zoo.models.{case.name}").__file__).read_bytes()
    return hashlib.sha256(source + repr((REVISION, case.rows, case.reference)).encode()).hexdigest()[:16]


def _compute(case: Case, seed: int) -> Judged:
    data = case.simulate(seed)
    if case.reference is None:
        return Judged(data, None, None, "none", 0.0)
    began = time.process_time()
    with jax.enable_x64(True):
        reference, half, effort = case.reference.run(case.build(), data, seed)
    return Judged(data, reference, half, effort, time.process_time() - began)


def _packed(found: Judged) -> dict[str, np.ndarray]:
    arrays = {"effort": np.array(found.effort), "seconds": np.array(found.seconds)}
    for part in ("data", "reference", "half"):
        value = getattr(found, part)
        if value is not None:
            arrays |= {f"{part}.{name}": leaf for name, leaf in value._asdict().items() if leaf is not None}
    return arrays


def _unpacked(arrays: dict[str, np.ndarray]) -> Judged:
    def part(kind, name):
        fields = {field: arrays.get(f"{name}.{field}") for field in kind._fields}
        return None if all(value is None for value in fields.values()) else kind(**fields)

    reference, half = part(Posterior, "reference"), part(Posterior, "half")
    return Judged(part(Data, "data"), reference, half, str(arrays["effort"]), float(arrays["seconds"]))

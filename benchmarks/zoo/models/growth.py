"""The growth model, a classical case with two modes. The input is the time."""

import numpy as np

from backstream.models import Growth
from benchmarks.zoo.case import Case
from benchmarks.zoo.references.grid import Grid

CASE = Case(
    name="growth",
    field="benchmark",
    about="growth model",
    build=Growth,
    reference=Grid(margin=15.0, nodes=600),
    rows=500,
    inputs=lambda seed, rows: np.arange(float(rows)),
)

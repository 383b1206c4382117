"""Convection: the Lorenz-63 flow, only its first coordinate seen."""

import jax.numpy as jnp

from benchmarks.zoo.case import Case, seen_as
from benchmarks.zoo.models.lorenz63_three import Lorenz63
from benchmarks.zoo.references.particles import Particles

CASE = Case(
    name="lorenz63_one",
    field="convection",
    about="Lorenz-63, one coordinate seen",
    build=lambda: Lorenz63(1, jnp.array(1.0)),
    reference=Particles(),
    raw=seen_as(0, dim=3),
)

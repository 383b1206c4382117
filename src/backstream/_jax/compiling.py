"""Compile a step for XLA, and call it with little overhead."""

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

import jax
import numpy as np

ALWAYS: dict[str, Any] = {
    # Without YNNPACK. A step has a hundred products of matrices of ten rows, and each call of that library costs more
    # than such a product: for N = 100 and d = 10 a step with it takes a third longer. Large products are as quick
    # without.
    "xla_cpu_experimental_ynn_fusion_type": "",
    # The older code generator. The newer one sets up a compiler for each of the hundreds of small loops of a program:
    # compiling takes twice as long with it, and what it makes is no faster.
    "xla_cpu_use_fusion_emitters": False,
    # Fewer copies around loops and choices, of which a row has several: a tenth of its time.
    "xla_cpu_copy_insertion_use_region_analysis": True,
}
QUICKLY_COMPILED: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""For programs that run now and then."""


@cache
def compiler_options(quickly: bool = False) -> dict[str, Any]:
    """What to give to `jax.jit` as `compiler_options`, without what XLA does not know. Flags in XLA_FLAGS have
    precedence."""
    chosen = _not_set(ALWAYS | (QUICKLY_COMPILED if quickly else {}))
    return {name: value for name, value in chosen.items() if _known({name: value})}


def _not_set(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the environment does not set."""
    flags = {flag.partition("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options.items() if f"--{name}" not in flags}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options, or nothing where XLA does not know them."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def compiled(donate: int | None = None, *, quickly: bool = False) -> Callable[[Callable], Callable]:
    """Compiles a function of trees of arrays and whatever else, with the options above, as `eqx.filter_jit` does:
    `quickly` is for what runs now and then. The buffers of the argument `donate` are used up. Arrays go to the program
    as plain lists, and the first argument, which mostly is the one of the call before, is taken apart once: to take
    apart and put together the trees of a learner in JAX's way, three times a call, costs as much as a step of it."""

    def decorate(function: Callable) -> Callable:
        programs: dict[Any, _Program] = {}
        latest: tuple[Any, _Parts] = None, _Parts.of(None)

        @wraps(function)
        def call(first: Any, *others: Any) -> Any:
            nonlocal latest
            known = latest  # read once: another thread may put its own there
            if known[0] is not first:
                latest = known = first, _Parts.of(first)
            parts = [known[1], *map(_Parts.of, others)]
            kind = tuple(part.kind for part in parts)
            program = programs.get(kind)
            if program is None:
                program = programs[kind] = _Program(function, parts, donate, quickly)
            return program([part.arrays for part in parts])

        return call

    return decorate


class _Parts(NamedTuple):
    """A tree, taken apart."""

    arrays: list[Any]
    rest: list[Any]
    """The other leaves; None where there is an array."""
    tree: Any
    kind: Any
    """What decides whether a program for one tree is one for another too."""

    @classmethod
    def of(cls, whole: Any) -> "_Parts":
        leaves, tree = jax.tree.flatten(whole)
        arrays, rest, shapes = [], [], []
        for leaf in leaves:
            if isinstance(leaf, ARRAYS):
                arrays.append(leaf)
                rest.append(None)
                shapes.append((leaf.shape, leaf.dtype))
            else:
                rest.append(leaf)
        return cls(arrays, rest, tree, (tree, tuple(rest), tuple(shapes)))

    def joined(self, arrays: list[Any]) -> Any:
        """The tree again, with other arrays."""
        values = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(values) if leaf is None else leaf for leaf in self.rest])

    def without_arrays(self) -> "_Parts":
        return self._replace(arrays=[])


ARRAYS = jax.Array, np.ndarray, np.generic


class _Program:
    """A function for arguments of one kind."""

    def __init__(self, function: Callable, parts: list[_Parts], donate: int | None, quickly: bool):
        self.function, self.parts, self.donate = function, [part.without_arrays() for part in parts], donate
        self.made: _Parts | None = None
        self.jitted = jax.jit(self._traced, donate_argnums=0, compiler_options=compiler_options(quickly))

    def __call__(self, arrays: list[list[Any]]) -> Any:
        given = [] if self.donate is None else arrays.pop(self.donate)
        made = self.jitted(given, arrays)
        assert self.made is not None
        return self.made.joined(made)

    def _traced(self, given: list[Any], arrays: list[list[Any]]) -> list[Any]:
        if self.donate is not None:
            arrays = [*arrays[: self.donate], given, *arrays[self.donate :]]
        made = _Parts.of(self.function(*(part.joined(own) for part, own in zip(self.parts, arrays, strict=True))))
        self.made = made.without_arrays()
        return made.arrays

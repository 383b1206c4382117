"""How XLA is asked to compile a step."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import jax
import numpy as np

SMALL_PRODUCTS: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Without YNNPACK. A step has a hundred products of matrices of ten rows, and each call of that library costs more than
such a product: for N = 100 and d = 10 a step with it takes a third longer. Large products are as quick without."""


@cache
def compiler_options() -> dict[str, str | bool]:
    """What to give to `jax.jit` as `compiler_options`: nothing where XLA does not know the option."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=SMALL_PRODUCTS)
    except jax.errors.JaxRuntimeError:
        return {}
    return SMALL_PRODUCTS


def compiled(donate: int | None = None) -> Callable[[Callable], Callable]:
    """`jax.jit` with these options, where arrays are traced and everything else in the arguments is a constant.

    Of the argument with the number `donate` the buffers are used up. It is what `eqx.filter_jit` does, with a third of
    its work at every call: a stream that is read row by row calls often.
    """

    def decorate(function: Callable) -> Callable:
        programs: dict[Any, _Program] = {}

        @wraps(function)
        def call(*arguments: Any) -> Any:
            flat = [jax.tree.flatten(argument) for argument in arguments]
            constants = tuple(tuple(None if _is_array(leaf) else leaf for leaf in leaves) for leaves, _ in flat)
            kind = tuple(tree for _, tree in flat), constants
            program = programs.get(kind)
            if program is None:
                program = programs[kind] = _Program(function, *kind, donate)
            return program([[leaf for leaf in leaves if _is_array(leaf)] for leaves, _ in flat])

        return call

    return decorate


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


class _Program:
    """A function for arguments of one kind, from lists of arrays to what it returns."""

    def __init__(self, function: Callable, trees: tuple, constants: tuple, donate: int | None):
        self.returned: tuple[Any, list[Any]] | None = None
        self.donate = donate

        def flat(donated, kept):
            given = list(kept) if donate is None else [*kept[:donate], donated, *kept[donate:]]
            arguments = []
            for tree, known, arrays in zip(trees, constants, given, strict=True):
                rest = iter(arrays)
                arguments.append(tree.unflatten([next(rest) if leaf is None else leaf for leaf in known]))
            leaves, tree = jax.tree.flatten(function(*arguments))
            self.returned = tree, [None if _is_array(leaf) else leaf for leaf in leaves]
            return [leaf for leaf in leaves if _is_array(leaf)]

        self.jitted = jax.jit(flat, donate_argnums=0, compiler_options=compiler_options())

    def __call__(self, arrays: list[list[Any]]) -> Any:
        donated = [] if self.donate is None else arrays.pop(self.donate)
        found = iter(self.jitted(donated, arrays))
        assert self.returned is not None  # it has been traced
        tree, known = self.returned
        return tree.unflatten([next(found) if leaf is None else leaf for leaf in known])

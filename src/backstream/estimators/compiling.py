"""How XLA is asked to compile a step."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import equinox as eqx
import jax

SMALL_PRODUCTS: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""Without YNNPACK. A step has a hundred products of matrices of ten rows, and each call of that library costs more than
such a product: for N = 100 and d = 10 a step with it takes a third longer. Large products are as quick without."""


@cache
def compiler_options() -> dict[str, Any]:
    """What to give to `jax.jit` as `compiler_options`: nothing where XLA does not know the option."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=SMALL_PRODUCTS)
    except jax.errors.JaxRuntimeError:
        return {}
    return SMALL_PRODUCTS


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """`eqx.filter_jit` with these options and those above, which are looked for at the first call: to ask for them
    starts JAX."""

    def decorate(function: Callable) -> Callable:
        @cache
        def jitted() -> Callable:
            jit: Any = eqx.filter_jit  # its type does not know what it hands on to jax.jit
            return jit(function, compiler_options=compiler_options(), **options)

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return jitted()(*arguments)

        return call

    return decorate

"""Options of the compiler."""

from backstream._jax.compiling import QUICKLY_COMPILED, compiler_options


def test_flags_of_the_environment_have_precedence(monkeypatch):
    """As in these tests, whose programs run for a few rows: conftest.py asks for no optimization at all."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    assert compiler_options.__wrapped__(True) == compiler_options.__wrapped__(False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    level = {"xla_backend_optimization_level": QUICKLY_COMPILED["xla_backend_optimization_level"]}
    assert compiler_options.__wrapped__(True) == compiler_options.__wrapped__(False) | level

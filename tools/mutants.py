"""Which small errors the tests notice: `make mutants`, or `python -m tools.mutants NAME ...` for some of them.

Each mutant is one error in `estimators/`, `families/` or `learning/` that changes results. It is made in a copy of the
package, and the tests that should notice are run against it: it is killed where they fail. Every one must have tests
that pass without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600
"""After which a mutant counts as killed: it made the tests hang."""


class Mutant(NamedTuple):
    """An error: in a file of the package, some text that becomes another; and the tests that should notice."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MONITOR, BY_HAND = "tests/learning/test_monitor.py", "tests/estimators/test_recursion_by_hand.py"
VERDICT, PREDICTIVE = "tests/learning/test_verdict.py", "tests/learning/test_predictive.py"
MUTANTS = (
    Mutant(
        "no restart after patience",
        "learning/online.py",
        "start = start | (state.refused_in_a_row >= self.patience)",
        "start = start | False",
        (MONITOR,),
    ),
    Mutant(
        "restart one row late",
        "learning/online.py",
        "state.refused_in_a_row >= self.patience",
        "state.refused_in_a_row > self.patience",
        (MONITOR,),
    ),
    Mutant("no word on sample size", "learning/monitor.py", "if ess < self.least_ess", "if False", (MONITOR,)),
    Mutant("no word on refusals", "learning/monitor.py", "if refused > self.most_refused", "if False", (MONITOR,)),
    Mutant(
        "no word on a fall at once",
        "learning/monitor.py",
        "if watch.fell(reached, self.least_fall, self.surprise)",
        "if False",
        (MONITOR,),
    ),
    Mutant(
        "no word on a slow fall",
        "learning/monitor.py",
        "elif reached < watch.best - self.tolerance",
        "elif False",
        (MONITOR,),
    ),
    Mutant(
        "the latest iterate is judged, not the result",
        "learning/monitor.py",
        "for q in (state.q, state.result()))",
        "for q in (state.q, state.q))",
        (MONITOR,),
    ),
    Mutant(
        "the window's prior moves with λ",
        "estimators/fixed_lag.py",
        "window = Window(chain, ys, us, prior, times)",
        "law = prior if prior is None else q.marginal(jax.tree.map(lambda leaf: leaf[0], states))\n"
        "            window = Window(chain, ys, us, law, times)",
        (BY_HAND,),
    ),
    Mutant(
        "a uniform mean of iterates",
        "learning/averaging.py",
        "(self.power + 1) / (t + self.power + 1)",
        "1 / (t + 1)",
        (MONITOR,),
    ),
    Mutant(
        "no discount over sampled pairs",
        "estimators/recursive/weights.py",
        "return factor * self.average(values) - mean, mean",
        "return self.average(values) - mean, mean",
        (BY_HAND,),
    ),
    Mutant(
        "no discount of the mean over sampled pairs",
        "estimators/recursive/weights.py",
        "mean = factor * (used @ values)",
        "mean = used @ values",
        (BY_HAND,),
    ),
    Mutant(
        "no discount of the score in θ",
        "estimators/recursive/score.py",
        "S = gamma * pairs.average(carry.S.at_samples)",
        "S = pairs.average(carry.S.at_samples)",
        (BY_HAND,),
    ),
    Mutant(
        "the score in θ forgets its past",
        "estimators/recursive/score.py",
        "S = gamma * pairs.average(carry.S.at_samples) + self",
        "S = 0 * pairs.average(carry.S.at_samples) + self",
        (BY_HAND,),
    ),
    Mutant(
        "the sum of the score in θ is not discounted",
        "estimators/recursive/score.py",
        "running_S.advance(S - S_bar, S_bar, S_bar, gamma)",
        "running_S.advance(S - S_bar, S_bar, S_bar)",
        (BY_HAND,),
    ),
    Mutant(
        "a wrong effective sample size",
        "estimators/recursive/weights.py",
        "return (1 / (self.w**2).sum(1)).mean()",
        "return 1 / (self.w**2).sum(1).mean()",
        (BY_HAND,),
    ),
    Mutant(
        "the transition is not given its inputs",
        "estimators/recursive/score.py",
        "log_m = log_transition(p, pairs, xi_previous, xi, u)",
        "log_m = log_transition(p, pairs, xi_previous, xi, 0 * u)",
        (BY_HAND,),
    ),
    Mutant(
        "the family is not given its inputs",
        "estimators/recursive/score.py",
        "q.update(p, previous.state, y, u), self.num_particles",
        "q.update(p, previous.state, y, 0 * u), self.num_particles",
        ("tests/learning/test_first_row.py", "tests/estimators/test_conformance.py"),
    ),
    Mutant(
        "the entropy term is left out",
        "estimators/recursive/score.py",
        "r = H - particles.log_q()",
        "r = H",
        (BY_HAND,),
    ),
    Mutant(
        "the pathwise gradient loses what the marginal reads of λ",
        "estimators/recursive/pathwise.py",
        "Cotangents(direct, None, to_a)",
        "Cotangents([], None, to_a)",
        ("tests/estimators/test_pathwise.py",),
    ),
    Mutant(
        "the worse of learned and unlearned is reported",
        "learning/unlearned.py",
        "pays = self.advantage > self.least",
        "pays = self.advantage < self.least",
        (VERDICT,),
    ),
    Mutant(
        "no fallback is ignored",
        "learning/unlearned.py",
        "0.0 if fallback else -jnp.inf",
        "0.0",
        (VERDICT,),
    ),
    Mutant(
        "the rank of a density is turned round",
        "learning/predictive.py",
        "(found[1:] < found[0]).sum()",
        "(found[1:] > found[0]).sum()",
        (VERDICT,),
    ),
    Mutant(
        "PIT values the wrong way round", "learning/predictive.py", "(draws < value)", "(draws > value)", (PREDICTIVE,)
    ),
    Mutant(
        "the tally does not forget",
        "learning/tally.py",
        "self.sums * _FALLING.astype(z.dtype) + added",
        "self.sums + added",
        (VERDICT,),
    ),
    Mutant(
        "a bad beginning is held against the run",
        "learning/judging.py",
        "(before.beyond & (np.abs(now.value) > MATERIAL[name] / 2) & (now.value * before.value > 0))",
        "before.beyond",
        (VERDICT,),
    ),
    Mutant(
        "the particle filter forgets to resample's weights",
        "learning/particle_reference.py",
        "log_w = jnp.where(few, -jnp.log(float(PARTICLES)), jnp.log(w)).astype(x.dtype)",
        "log_w = jnp.log(w).astype(x.dtype)",
        (VERDICT,),
    ),
    Mutant(
        "rows that are not there are scored",
        "learning/particle_reference.py",
        "jax.lax.fori_loop(0, count, step",
        "jax.lax.fori_loop(0, len(ys), step",
        (VERDICT,),
    ),
    Mutant(
        "noise is not inflated by λ",
        "families/guided/family.py",
        "u, jnp.exp(self.log_inflation))",
        "u, jnp.exp(0 * self.log_inflation))",
        ("tests/families/guided/test_family.py", VERDICT),
    ),
    Mutant(
        "a missing row has the score of the row before",
        "families/guided/family.py",
        "log_mass = jnp.where(row.seen.any(), jnp.where(good, tilted.log_mass, -jnp.inf), 0.0)",
        "log_mass = jnp.where(good, tilted.log_mass, -jnp.inf)",
        ("tests/families/guided/test_family.py",),
    ),
    Mutant(
        "the log score's gradient forgets the past",
        "estimators/log_score.py",
        "jax.vmap(along, (0, 1), (1, 0))(eye, carry.sensitivity)",
        "jax.vmap(along, (0, 1), (1, 0))(eye, 0 * carry.sensitivity)",
        ("tests/learning/test_parameters.py", "tests/learning/test_steps.py"),
    ),
)


def is_killed(mutant: Mutant | None, tests: tuple[str, ...]) -> bool:
    """Whether the tests fail with a mutant, or, with none, at all."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            file = source / "backstream" / mutant.file
            text = file.read_text()
            if text.count(mutant.before) != 1:
                raise SystemExit(f"{mutant.name}: {mutant.before!r} is not once in {mutant.file}.")
            file.write_text(text.replace(mutant.before, mutant.after))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 1):
            raise SystemExit(f"The tests {', '.join(tests)} could not be run: {done.stdout.decode()[-2000:]}")
        return done.returncode == 1


def main() -> None:
    asked = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    for tests in dict.fromkeys(mutant.tests for mutant in asked):
        if is_killed(None, tests):
            raise SystemExit(f"{', '.join(tests)} fail without any mutant.")
    killed = 0
    for mutant in asked:
        found = is_killed(mutant, mutant.tests)
        killed += found
        print(f"{'killed  ' if found else 'SURVIVED'} {mutant.name}", flush=True)
    print(f"{killed} of {len(asked)} killed: {killed / len(asked):.0%}")
    if killed < 0.9 * len(asked):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

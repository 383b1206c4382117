"""Errors in `estimators/`."""

from tools.mutants.mutant import Mutant

BY_HAND = "tests/estimators/test_recursion_by_hand.py"
RECURSION = f"{BY_HAND}::test_elbo_score_and_sample_size_are_those_of_the_recursion"
SAMPLED = f"{BY_HAND}::test_averages_over_sampled_pairs_are_discounted"
FROZEN = f"{BY_HAND}::test_the_prior_of_a_window_is_frozen"
LOOPS = "tests/estimators/test_score.py::test_equals_the_loops"
SAMPLED_LOOPS = "tests/estimators/test_score.py::test_sampled_pairs_equal_the_loops"
CORRECTED = "tests/estimators/test_score.py::test_corrected_weights_equal_the_loops"
RATIO = "tests/estimators/test_ratio.py"
TRAJECTORIES = "tests/estimators/test_trajectories.py"
INPUTS = f"{TRAJECTORIES}::test_inputs_reach_the_step_that_they_belong_to"
PATHWISE = "tests/estimators/test_pathwise.py"
SCORE_SLOPES = "tests/families/guided/test_family.py::test_the_gradient_of_the_log_score_is_that_of_differences"

WEIGHTS, SCORE, WINDOW = "estimators/recursive/weights.py", "estimators/recursive/score.py", "estimators/fixed_lag.py"

MUTANTS = (
    Mutant(
        "the window's prior moves with λ",
        WINDOW,
        "window = Window(chain, ys, us, prior, times)",
        "law = prior if prior is None else q.marginal(jax.tree.map(lambda leaf: leaf[0], states))\n"
        "            window = Window(chain, ys, us, law, times)",
        (FROZEN,),
    ),
    Mutant(
        "the window starts from λ's own state",
        WINDOW,
        "return value, jax.tree.map(lambda leaf: leaf[1], states)",
        "return value, jax.tree.map(lambda leaf: leaf[0], states)",
        (FROZEN, f"{TRAJECTORIES}::test_the_window_is_the_stream_and_then_has_the_filter_as_its_prior"),
    ),
    Mutant(
        "a window's ELBO is not divided by its rows",
        WINDOW,
        "return None, estimate, jax.tree.map(lambda leaf: leaf / size.astype(leaf.dtype), estimate)",
        "return None, estimate, estimate",
        (f"{TRAJECTORIES}::test_the_window_is_the_stream_and_then_has_the_filter_as_its_prior",),
    ),
    Mutant(
        "no transition in a window's ELBO",
        WINDOW,
        "return log_transition(p, x_prev, x, u) - log_q",
        "return 0 * log_transition(p, x_prev, x, u) - log_q",
        (f"{TRAJECTORIES}::test_the_window_is_the_stream_and_then_has_the_filter_as_its_prior",),
    ),
    Mutant(
        "no discount over sampled pairs",
        WEIGHTS,
        "return factor * self.average(values) - mean, mean",
        "return self.average(values) - mean, mean",
        (SAMPLED,),
    ),
    Mutant(
        "no discount of the mean over sampled pairs",
        WEIGHTS,
        "mean = factor * (used @ values)",
        "mean = used @ values",
        (SAMPLED,),
    ),
    Mutant(
        "no discount over all pairs",
        WEIGHTS,
        "return centered_product(factor * self.w, values, row)",
        "return centered_product(self.w, values, row)",
        (LOOPS,),
    ),
    Mutant(
        "a wrong effective sample size",
        WEIGHTS,
        "return (1 / (self.w**2).sum(1)).mean()",
        "return 1 / (self.w**2).sum(1).mean()",
        (RECURSION,),
    ),
    Mutant(
        "sampled pairs are averaged without the last draw",
        WEIGHTS,
        "for k in range(1, draws)), values[self.index[:, 0]]) / draws",
        "for k in range(1, draws - 1)), values[self.index[:, 0]]) / draws",
        (SAMPLED, SAMPLED_LOOPS),
    ),
    Mutant(
        "no discount of the score in θ",
        SCORE,
        "S = gamma * pairs.average(carry.S.at_samples)",
        "S = pairs.average(carry.S.at_samples)",
        (RECURSION,),
    ),
    Mutant(
        "the score in θ forgets its past",
        SCORE,
        "S = gamma * pairs.average(carry.S.at_samples) + self",
        "S = 0 * pairs.average(carry.S.at_samples) + self",
        (RECURSION,),
    ),
    Mutant(
        "the sum of the score in θ is not discounted",
        SCORE,
        "running_S.advance(S - S_bar, S_bar, S_bar, gamma)",
        "running_S.advance(S - S_bar, S_bar, S_bar)",
        (RECURSION,),
    ),
    Mutant(
        "the transition is not given its inputs",
        SCORE,
        "log_m = log_transition(p, pairs, xi_previous, xi, u)",
        "log_m = log_transition(p, pairs, xi_previous, xi, 0 * u)",
        (RECURSION,),
    ),
    Mutant(
        "the family is not given its inputs",
        SCORE,
        "q.update(p, previous.state, y, u), self.num_particles",
        "q.update(p, previous.state, y, 0 * u), self.num_particles",
        (RECURSION,),
    ),
    Mutant(
        "the emission is not given its inputs",
        SCORE,
        "log_g = jax.vmap(lambda x: log_emission(p, x, y, u))(xi)",
        "log_g = jax.vmap(lambda x: log_emission(p, x, y, 0 * u))(xi)",
        (RECURSION,),
    ),
    Mutant(
        "the score in θ is not given its inputs",
        SCORE,
        "return coefficients @ log_transitions(p, x_previous, x[None], u)[0] + log_emission(p, x, y, u)",
        "return coefficients @ log_transitions(p, x_previous, x[None], 0 * u)[0] + log_emission(p, x, y, u)",
        (RECURSION,),
    ),
    Mutant("the entropy term is left out", SCORE, "r = H - particles.log_q()", "r = H", (RECURSION,)),
    Mutant(
        "the backward kernel is not subtracted",
        SCORE,
        "log_g[:, None] - log_backward(previous, pairs, kernels)",
        "log_g[:, None]",
        (RECURSION,),
    ),
    Mutant(
        "the gradient's own score term is left out",
        SCORE,
        "running_G.advance(G, G_bar + outer, shift * G_bar, gamma)",
        "running_G.advance(G, G_bar, shift * G_bar, gamma)",
        (LOOPS,),
    ),
    Mutant(
        "the renewed prior has the wrong share",
        "estimators/recursive/objectives.py",
        "self.gamma * H + (1 - self.gamma) * log_q",
        "self.gamma * H + self.gamma * log_q",
        (LOOPS,),
    ),
    Mutant(
        "leave-one-out shrinks",
        "estimators/recursive/baselines.py",
        "/ jnp.maximum(shrink, 1 / self.cap)",
        "",
        (LOOPS,),
    ),
    Mutant(
        "corrected weights are not capped",
        "estimators/recursive/moment_corrected.py",
        "alpha = jnp.minimum(1.0, self.cap / norm)",
        "alpha = jnp.ones_like(norm)",
        (CORRECTED,),
    ),
    Mutant(
        "the score of corrected weights lacks its closed part",
        "estimators/recursive/moment_corrected.py",
        "S + self.basis.expected_pullback(beta, self.plain.kernels)",
        "S",
        (CORRECTED,),
    ),
    Mutant(
        "the pathwise gradient loses what the marginal reads of λ",
        "estimators/recursive/pathwise.py",
        "Cotangents(direct, None, to_a)",
        "Cotangents([], None, to_a)",
        (f"{PATHWISE}::test_the_gradient_has_what_the_marginal_reads_of_lambda_by_itself",),
    ),
    Mutant(
        "the pathwise gradient is not discounted",
        "estimators/recursive/pathwise.py",
        "past = gamma * (fit @ expected[:, 1:]) @ carry.G",
        "past = (fit @ expected[:, 1:]) @ carry.G",
        (f"{PATHWISE}::test_is_unbiased_for_linear_gaussian_models",),
    ),
    Mutant(
        "the pathwise value is not renewed",
        "estimators/recursive/pathwise.py",
        "gamma * carry.H.B - 0.5 * (1 - gamma) * eye",
        "gamma * carry.H.B",
        (f"{PATHWISE}::test_is_unbiased_for_linear_gaussian_models",),
    ),
    Mutant(
        "the ratio form leaves out its ratio",
        "estimators/recursive/ratio.py",
        "r = gamma * carry.V.at_samples + log_m - log_ratio",
        "r = gamma * carry.V.at_samples + log_m",
        (f"{RATIO}::test_elbo_and_gradients_are_those_of_quadrature", f"{RATIO}::test_at_the_optimum_nothing_varies"),
    ),
    Mutant(
        "the ratio form's score in θ forgets its past",
        "estimators/recursive/ratio.py",
        "S = gamma * w @ carry.S.at_samples + self",
        "S = 0 * w @ carry.S.at_samples + self",
        (f"{RATIO}::test_elbo_and_gradients_are_those_of_quadrature",),
    ),
    Mutant(
        "the log score's gradient forgets the past",
        "estimators/log_score.py",
        "jax.vmap(along, (0, 1), (None, 1, None))(eye, carry.sensitivity)",
        "jax.vmap(along, (0, 1), (None, 1, None))(eye, 0 * carry.sensitivity)",
        (f"{SCORE_SLOPES}[closed]",),
    ),
    Mutant(
        "the log score's gradient forgets the start",
        "estimators/log_score.py",
        "sensitivity = jax.jacfwd(start)(parameters)",
        "sensitivity = 0 * jax.jacfwd(start)(parameters)",
        ("tests/estimators/test_log_score.py",),
    ),
)

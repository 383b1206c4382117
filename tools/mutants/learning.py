"""Errors in `learning/`."""

from tools.mutants.mutant import Mutant

MONITOR, VERDICT = "tests/learning/test_monitor.py", "tests/learning/test_verdict.py"
PREDICTIVE, STEPS = "tests/learning/test_predictive.py", "tests/learning/test_steps.py"
LEARNING, PARAMETERS = "tests/learning/test_learning.py", "tests/learning/test_parameters.py"
PATIENCE = f"{MONITOR}::test_the_recursion_starts_anew_after_its_patience_and_not_before"
BETTER = f"{LEARNING}::test_the_better_of_learned_and_unlearned_is_reported"
DEPARTURES = f"{VERDICT}::test_each_departure_of_a_tenth_of_a_nat_is_seen_within_500_rows"
BEGINNING = f"{VERDICT}::test_a_bad_beginning_is_forgotten_and_a_late_change_is_seen"
FAILURES = f"{VERDICT}::test_far_too_narrow_bands_and_refusals_are_failures"
ALARMS = f"{VERDICT}::test_exact_predictions_are_rarely_doubted"
REMEDIES = f"{VERDICT}::test_a_loss_against_particle_filters_is_doubted_with_the_remedy_that_fits"
TALLY = f"{VERDICT}::test_a_tally_holds_the_weighted_means_of_what_is_known"
PARTICLES = f"{VERDICT}::test_particle_filters_agree_with_the_exact_gap"
KALMAN = f"{PREDICTIVE}::test_the_prediction_is_that_of_q_before_the_row"
LIKELIHOOD = f"{STEPS}::test_the_estimate_is_near_maximum_likelihood"
ERRORS = f"{STEPS}::test_standard_errors_cover_the_truth"
JUMP = f"{STEPS}::test_a_jump_is_followed"
PANEL = "tests/learning/test_panel.py"

STARTING = "tests/learning/test_starting_theta.py"
GAINS = f"{STARTING}::test_gains_are_the_log_scores_less_those_at_the_starting_theta"
CRPS = f"{PREDICTIVE}::test_crps_is_the_mean_over_pairs_without_bias"
UNCHECKED = f"{VERDICT}::test_what_particle_filters_cannot_check_is_not_plainly_good"

MUTANTS = (
    Mutant(
        "no restart after patience",
        "learning/online.py",
        "start = start | (state.refused_in_a_row >= self.patience)",
        "start = start | False",
        (PATIENCE,),
    ),
    Mutant(
        "restart one row late",
        "learning/online.py",
        "state.refused_in_a_row >= self.patience",
        "state.refused_in_a_row > self.patience",
        (PATIENCE,),
    ),
    Mutant(
        "refused updates are not counted",
        "learning/online.py",
        "refused=state.refused + ~finite",
        "refused=state.refused",
        (f"{LEARNING}::test_an_update_that_is_not_finite_never_reaches_lambda",),
    ),
    Mutant(
        "updates that are not finite are made",
        "learning/online.py",
        "kept = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), moved, old)",
        "kept = moved",
        (f"{LEARNING}::test_an_update_that_is_not_finite_never_reaches_lambda",),
    ),
    Mutant(
        "the prediction is that of the latest iterate",
        "learning/online.py",
        "predictive_scores(p, state.result(), state.filtered,",
        "predictive_scores(p, state.q, state.filtered,",
        (BETTER, f"{VERDICT}::test_what_was_learned_is_reported_in_any_case_without_a_fallback"),
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
        "no word on an ELBO that lies",
        "learning/monitor.py",
        "if not agree:",
        "if False:",
        (f"{LEARNING}::test_monitor_warns_of_an_elbo_that_lies",),
    ),
    Mutant(
        "the latest iterate is judged, not the result",
        "learning/monitor.py",
        "return drawn(state.q), drawn(result), 0.0",
        "return drawn(state.q), drawn(state.q), 0.0",
        (f"{MONITOR}::test_what_is_judged_is_the_average_and_not_the_latest_iterate",),
    ),
    Mutant(
        "what was best is never forgotten",
        "learning/monitor.py",
        "self.best + (reached - self.best) / FADING",
        "self.best",
        (f"{MONITOR}::test_what_was_best_fades_and_what_is_usual_follows",),
    ),
    Mutant(
        "a uniform mean of iterates",
        "learning/averaging.py",
        "(self.power + 1) / (t + self.power + 1)",
        "1 / (t + 1)",
        (f"{MONITOR}::test_an_average_forgets_its_start",),
    ),
    Mutant(
        "the worse of learned and unlearned is reported",
        "learning/unlearned.py",
        "return self.advantage > self.least",
        "return self.advantage < self.least",
        (BETTER,),
    ),
    Mutant(
        "no fallback is ignored",
        "learning/unlearned.py",
        "LEAST if fallback else -jnp.inf",
        "0.0",
        (f"{VERDICT}::test_what_was_learned_is_reported_in_any_case_without_a_fallback",),
    ),
    Mutant(
        "the rank of a density is turned round",
        "learning/predictive.py",
        "(found[1:] < found[0]).sum()",
        "(found[1:] > found[0]).sum()",
        (f"{VERDICT}::test_the_rank_of_the_density_is_uniform_for_labels_and_shows_wrong_probabilities",),
    ),
    Mutant("PIT values the wrong way round", "learning/predictive.py", "(draws < value)", "(draws > value)", (KALMAN,)),
    Mutant(
        "residuals are not standardized",
        "learning/predictive.py",
        "/ jnp.where(spread > 0, spread, 1.0)",
        "",
        (KALMAN,),
    ),
    Mutant(
        "predictions do not move",
        "learning/predictive.py",
        "return draw(transition_law(p, x, u), key=key).astype(mean.dtype)",
        "return x",
        (KALMAN,),
    ),
    Mutant(
        "the tally does not forget",
        "learning/tally.py",
        "self.sums * _FALLING.astype(z.dtype) + added",
        "self.sums + added",
        (TALLY,),
    ),
    Mutant("the tally's lag is of the same row", "learning/tally.py", "z * self.last", "z * z", (TALLY,)),
    Mutant(
        "a bad beginning is held against the run",
        "learning/calibration.py",
        "(before.beyond & (np.abs(now.value) > MATERIAL[name] / 2) & (now.value * before.value > 0))",
        "before.beyond",
        (BEGINNING,),
    ),
    Mutant(
        "chance is not allowed for",
        "learning/calibration.py",
        "np.maximum(limit * error, MATERIAL[name])",
        "MATERIAL[name]",
        (ALARMS,),
    ),
    Mutant(
        "a failure is only doubted",
        "learning/judging.py",
        '"failed" if failures else "doubtful"',
        '"doubtful"',
        (FAILURES,),
    ),
    Mutant(
        "refusals are no failure",
        "learning/judging.py",
        "failures = [*refused, *worse,",
        "failures = [*worse,",
        (FAILURES,),
    ),
    Mutant(
        "narrow bands are no failure",
        "learning/judging.py",
        "*_coverage(recent, long, about, bool(lost))]",
        "]",
        (FAILURES,),
    ),
    Mutant(
        "errors that repeat are not seen",
        "learning/calibration.py",
        "np.clip((lag.value - mean.value**2) / np.maximum(variance, 1e-6), -1, 1)",
        "0 * lag.value",
        (DEPARTURES,),
    ),
    Mutant(
        "a small loss is doubted",
        "learning/judging.py",
        "max(LEAST_GAP * reference.rows, LEAST_NATS, 3 * reference.error * reference.rows)",
        "0.0",
        (REMEDIES,),
    ),
    Mutant(
        "a loss is never doubted",
        "learning/judging.py",
        "if not reference.gap * reference.rows > _least(reference):",
        "if True:",
        (REMEDIES,),
    ),
    Mutant(
        "what was learned is never worse",
        "learning/judging.py",
        "if about.fallback or not gain < -3 * error:",
        "if True:",
        (f"{VERDICT}::test_what_was_learned_is_reported_in_any_case_without_a_fallback",),
    ),
    Mutant(
        "the particle filters count weights twice",
        "learning/particle_reference.py",
        "log_w = jnp.where(few, -jnp.log(float(PARTICLES)), jnp.log(w)).astype(x.dtype)",
        "log_w = jnp.log(w).astype(x.dtype)",
        (PARTICLES,),
    ),
    Mutant(
        "rows that are not there are scored",
        "learning/particle_reference.py",
        "jax.lax.fori_loop(0, count, step",
        "jax.lax.fori_loop(0, len(ys), step",
        (PARTICLES,),
    ),
    Mutant(
        "particle filters start from the prior",
        "learning/particle_reference.py",
        "x = jax.vmap(lambda key: q.sample(anchor, key=key))(jax.random.split(begin, PARTICLES))",
        "x = jax.vmap(lambda key: q.sample(q.init(p), key=key))(jax.random.split(begin, PARTICLES))",
        (PARTICLES,),
    ),
    Mutant(
        "steps of θ against the score",
        "learning/steps.py",
        "score, rows = -ravel_pytree(gradient)[0],",
        "score, rows = ravel_pytree(gradient)[0],",
        (LIKELIHOOD,),
    ),
    Mutant(
        "Newton steps have a constant gain",
        "learning/steps.py",
        "gain = numerator * rows / (age + numerator * rows)",
        "gain = 0.01 + 0 * age",
        (LIKELIHOOD,),
    ),
    Mutant(
        "the estimate of θ is the latest iterate",
        "learning/steps.py",
        "mean=state.mean + slow * (theta - state.mean)",
        "mean=theta",
        (LIKELIHOOD,),
    ),
    Mutant(
        "standard errors of maximum likelihood",
        "learning/steps.py",
        "spread = INFLATION / state.age",
        "spread = 0.5 / state.age",
        (ERRORS,),
    ),
    Mutant(
        "a jump of θ is not followed",
        "learning/steps.py",
        "off = jumped | slow",
        "off = slow & False",
        (JUMP,),
    ),
    Mutant(
        "huge scores hide the others",
        "learning/steps.py",
        "jnp.clip(score, -most, most))",
        "score)",
        (f"{STEPS}::test_a_few_huge_scores_do_not_hide_the_others",),
    ),
    Mutant(
        "huge scores after the search are not seen",
        "learning/steps.py",
        "again = burst | (off",
        "again = (off",
        (f"{STEPS}::test_huge_scores_that_come_later_start_the_search_again",),
    ),
    Mutant(
        "a bound on scores stays narrow",
        "learning/steps.py",
        "jnp.where(state.bound < LAST, 2.0, FASTER) * state.bound",
        "NARROW",
        (f"{STEPS}::test_few_scores_that_are_large_are_information",),
    ),
    Mutant(
        "one score may be more than all before",
        "learning/steps.py",
        "score / jnp.sqrt(jnp.maximum(size, 1.0))",
        "score",
        (f"{STEPS}::test_one_huge_score_does_not_end_the_steps",),
    ),
    Mutant(
        "a tick counts as one row",
        "learning/steps.py",
        "score, rows = -ravel_pytree(gradient)[0], jnp.asarray(rows, vector.dtype)",
        "score, rows = -ravel_pytree(gradient)[0], jnp.asarray(1.0, vector.dtype)",
        (f"{STEPS}::test_rows_that_come_together_count_as_many",),
    ),
    Mutant(
        "the gradient in θ is not pulled through the constraints",
        "learning/parameters.py",
        "return vjp(gradient)[0]",
        "return eqx.filter(gradient, self.free)",
        (f"{PARAMETERS}::test_gradients_and_errors_go_through_the_bijections",),
    ),
    Mutant(
        "standard errors of the unconstrained parameters",
        "learning/parameters.py",
        'return jnp.sqrt(jnp.einsum("ij,jk,ik->i", slope, covariance, slope))',
        "return jnp.sqrt(jnp.diagonal(covariance))",
        (f"{PARAMETERS}::test_gradients_and_errors_go_through_the_bijections",),
    ),
    Mutant(
        "several components are never needed",
        "learning/component_check.py",
        "return self.mean > LEAST_GAP and sure",
        "return False",
        ("tests/engine/test_components_auto.py",),
    ),
    Mutant(
        "the gain of θ counts its first rows",
        "learning/starting_theta.py",
        "gains = gains[UNCOUNTED:][known[UNCOUNTED:]]",
        "gains = gains[known]",
        (GAINS,),
    ),
    Mutant(
        "the gain of θ is against the learned θ",
        "learning/starting_theta.py",
        "_scores(learner.model, q,",
        "_scores(learner.current_model(state), q,",
        (GAINS,),
    ),
    Mutant(
        "a loss by learning θ is not doubted",
        "learning/judging.py",
        "if gain is None or not -gain.mean > max(LEAST_GAP, 3 * gain.error):",
        "if True:",
        (f"{VERDICT}::test_what_learning_theta_gained_is_told_and_a_loss_is_doubted",),
    ),
    Mutant(
        "CRPS is biased",
        "learning/predictive.py",
        "apart = signs @ jnp.sort(draws, axis=0) / (n * (n - 1))",
        "apart = signs @ jnp.sort(draws, axis=0) / n**2",
        (CRPS,),
    ),
    Mutant(
        "starved particle filters are not told",
        "learning/verdict.py",
        'return self.figures.get("gap_trusted") != 0',
        "return True",
        (UNCHECKED,),
    ),
    Mutant(
        "several components are not asked where particle filters are starved",
        "learning/judging.py",
        "if not (reference.several > LEAST_GAP and reference.several * reference.rows > LEAST_NATS):",
        "if True:",
        (UNCHECKED,),
    ),
    Mutant(
        "a posterior may hide an error of the model",
        "learning/judging.py",
        "if not -reference.gap * reference.rows > _least(reference):",
        "if True:",
        (f"{VERDICT}::test_a_posterior_that_predicts_better_than_the_model_shows_a_wrong_model",),
    ),
    Mutant(
        "empty columns are not told",
        "learning/judging.py",
        "if rows < LEAST_ROWS or not len(empty):",
        "if True:",
        (f"{VERDICT}::test_a_column_without_values_is_told",),
    ),
    Mutant(
        "a few values are judged",
        "learning/calibration.py",
        " & (count >= LEAST_VALUES)",
        "",
        (f"{VERDICT}::test_a_few_values_say_nothing",),
    ),
)

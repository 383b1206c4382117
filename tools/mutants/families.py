"""Errors in `families/`."""

from tools.mutants.mutant import Mutant

GUIDED = "tests/families/guided"
FAMILY, PREDICTION = f"{GUIDED}/test_family.py", f"{GUIDED}/test_prediction.py"
EXACT, GRIDS = f"{GUIDED}/test_guided_exact.py", f"{GUIDED}/test_grids.py"
PROPAGATION, SEVERAL = f"{GUIDED}/test_propagation.py", f"{GUIDED}/test_several_components.py"
CLOSED = f"{GUIDED}/test_closed_forms.py::test_condition_is_the_dense_formula"
MERGING = f"{PREDICTION}::test_merging_keeps_the_joint_moments"
CUTTING = f"{PREDICTION}::test_pieces_add_up_to_the_law_that_was_cut"
DENSE = f"{PREDICTION}::test_moments_are_those_of_dense_quadrature"
RECURSION = f"{FAMILY}::test_one_state_is_the_recursion_that_matches_moments"
SCORE_SLOPES = f"{FAMILY}::test_the_gradient_of_the_log_score_is_that_of_differences"
REDUCING = f"{SEVERAL}::test_merging_takes_the_cheapest_pair_each_time"
FAMILIES = "tests/families/test_families.py"

MUTANTS = (
    Mutant(
        "noise is not inflated by λ",
        "families/guided/family.py",
        "u, jnp.exp(self.log_inflation), part)",
        "u, jnp.exp(0 * self.log_inflation), part)",
        (f"{FAMILY}::test_lambda_multiplies_the_noise",),
    ),
    Mutant(
        "a missing row has the score of the row before",
        "families/guided/family.py",
        "log_mass = jnp.where(row.seen.any(), jnp.where(good, tilted.log_mass, -jnp.inf), 0.0)",
        "log_mass = jnp.where(good, tilted.log_mass, -jnp.inf)",
        (FAMILY,),
    ),
    Mutant(
        "an impossible row has a finite score",
        "families/guided/family.py",
        "return jnp.where(state.failed, -jnp.inf, state.log_score)",
        "return state.log_score",
        (f"{FAMILY}::test_a_row_that_cannot_be_leaves_the_prediction",),
    ),
    Mutant(
        "the first row is moved like all others",
        "families/guided/family.py",
        "return jax.lax.cond(state.t == 0, first, ",
        "return jax.lax.cond(state.t < 0, first, ",
        (EXACT,),
    ),
    Mutant(
        "the kernel leads to the wrong law",
        "families/guided/family.py",
        "before = state.mean, state.factor\n",
        "before = merged.mean, merged.factor\n",
        (f"{EXACT}::test_linear_gaussian_models_are_exact", "tests/estimators/test_recursion_by_hand.py"),
    ),
    Mutant(
        "pieces of a bent law are not weighted by the row",
        "families/guided/family.py",
        "weights = jnp.where(failed, log_weight, log_weight + each.log_mass)",
        "weights = log_weight",
        (f"{FAMILY}::test_cutting_where_the_transition_bends_helps",),
    ),
    Mutant(
        "the curvature of a transition adds no variance",
        "families/guided/prediction.py",
        "rest = noise + left.T @ (weights[:, None] * left)",
        "rest = noise",
        (DENSE,),
    ),
    Mutant(
        "the curvature of many states adds no variance",
        "families/guided/prediction.py",
        "rest = noise + curvature.T @ curvature",
        "rest = noise",
        (f"{PREDICTION}::test_quadratics_are_exact",),
    ),
    Mutant(
        "the mean of many states has no second order",
        "families/guided/prediction.py",
        "predicted = center + second.sum(0) / (2 * REACH)",
        "predicted = center",
        (f"{PREDICTION}::test_quadratics_are_exact",),
    ),
    Mutant(
        "the backward kernel lacks the noise",
        "families/guided/prediction.py",
        "left @ left.T + gain @ W @ gain.T",
        "left @ left.T",
        (f"{PREDICTION}::test_the_kernel_is_the_conditional_of_the_joint_law",),
    ),
    Mutant(
        "pieces are as wide as the whole",
        "families/guided/components.py",
        "jnp.sqrt(1 - share), 1.0)",
        "1.0, 1.0)",
        (CUTTING,),
    ),
    Mutant(
        "pieces are merged without what lies between them",
        "families/guided/components.py",
        "covs) + apart.T @ (weight[:, None] * apart)",
        "covs)",
        (MERGING,),
    ),
    Mutant(
        "the merged kernel lacks what lies between the pieces",
        "families/guided/components.py",
        "spread + left.T @ (weight[:, None] * left)",
        "spread",
        (MERGING,),
    ),
    Mutant(
        "the wrong pair is merged",
        "families/guided/reduction.py",
        "i = jnp.argmin(groups.cost.min(1))",
        "i = jnp.argmax(groups.weight)",
        (REDUCING,),
    ),
    Mutant(
        "costs of merging are not made anew",
        "families/guided/reduction.py",
        "cost = jnp.where(kept[:, None], new, jnp.where(kept, new[:, None], groups.cost))",
        "cost = groups.cost",
        (REDUCING,),
    ),
    Mutant(
        "components are reduced without what lies between them",
        "families/guided/reduction.py",
        ' + jnp.einsum("kj,kja,kjb->kab", share, apart, apart)',
        "",
        (REDUCING,),
    ),
    Mutant(
        "windows do not add up to the whole",
        "families/guided/windows.py",
        "return values + own.reshape(*w.shape[:2])",
        "return values",
        (f"{SEVERAL}::test_windows_find_both_modes_and_add_up_to_the_whole",),
    ),
    Mutant(
        "the windows of a mixture are not weighted by the row",
        "families/guided/mixture.py",
        "predicted.log_weight[:, None] + log_mass,",
        "predicted.log_weight[:, None] + 0 * log_mass,",
        (f"{SEVERAL}::test_a_linear_gaussian_model_is_filtered_exactly",),
    ),
    Mutant(
        "a mixture's missing row has a score",
        "families/guided/mixture.py",
        "score = jnp.where(failed | ~row.seen.any(), 0.0, log_mass)",
        "score = jnp.where(failed, 0.0, log_mass + jnp.where(row.seen.any(), 0.0, -1.0))",
        (f"{SEVERAL}::test_a_missing_row_is_predicted_only",),
    ),
    Mutant(
        "a mixture's noise is not inflated by λ",
        "families/guided/mixture.py",
        "inflation, noise = jnp.exp(self.log_inflation), self",
        "inflation, noise = jnp.exp(0 * self.log_inflation), self",
        (f"{FAMILY}::test_lambda_multiplies_the_noise",),
    ),
    Mutant(
        "the log mass lacks the spread of a column",
        "families/guided/closed_forms.py",
        "innovation**2 / variance + jnp.log(variance) + LOG_2PI",
        "innovation**2 / variance + LOG_2PI",
        (CLOSED,),
    ),
    Mutant(
        "the log mass lacks the noise of the columns",
        "families/guided/updates.py",
        "return tilted._replace(log_mass=tilted.log_mass - log_scale)",
        "return tilted",
        (f"{EXACT}::test_linear_gaussian_models_are_exact",),
    ),
    Mutant(
        "missing columns count in the log mass",
        "families/guided/updates.py",
        "missing = (~row.seen).sum() * 0.5 * LOG_2PI",
        "missing = 0.0",
        (f"{EXACT}::test_linear_gaussian_models_are_exact",),
    ),
    Mutant(
        "a grid's mass lacks its spacing",
        "families/guided/grids.py",
        "sums.log_mass + r * math.log(mesh.spacing) + small.log_det(frame.factor)",
        "sums.log_mass + small.log_det(frame.factor)",
        (f"{GRIDS}::test_moments_are_those_of_quadrature",),
    ),
    Mutant(
        "a grid does not move",
        "families/guided/grids.py",
        "fits = (jnp.abs(sums.mean) < 0.25 * mesh.reach).all(1) & (narrowest > 0.3).all(1) & (widest < 1.7).all(1)",
        "fits = (jnp.abs(sums.mean) < 25 * mesh.reach).all(1)",
        (f"{GRIDS}::test_a_peak_on_a_wide_law",),
    ),
    Mutant(
        "sites are not taken out of the cavity",
        "families/guided/propagation.py",
        "eye - small.transpose(C) @ tau @ C, LEAST_CAVITY",
        "eye - 0 * small.transpose(C) @ tau @ C, LEAST_CAVITY",
        (f"{PROPAGATION}::test_normal_columns_are_exact",),
    ),
    Mutant(
        "the energy lacks the prior",
        "families/guided/propagation.py",
        "+ small.log_det(F) - 0.5 * (mu**2).sum()",
        "+ small.log_det(F)",
        (f"{PROPAGATION}::test_normal_columns_are_exact",),
    ),
    Mutant(
        "weighted points do not correct",
        "families/guided/importance.py",
        "mean + axes @ (scale * rate**2 * shift), jnp.linalg.cholesky(corrected)",
        "mean, factor",
        (f"{GUIDED}/test_wide_updates.py",),
    ),
    Mutant(
        "missing coordinates are read as zeros",
        "families/kalman.py",
        "rows = jnp.where(seen[:, None], jnp.column_stack([dense(self.B), residual]), 0.0)",
        "rows = jnp.column_stack([dense(self.B), residual])",
        (f"{FAMILIES}::test_kalman_states_are_the_kalman_filter",),
    ),
    Mutant(
        "the network's site lacks the prediction",
        "families/conjugate.py",
        "present * (eta1 - precision * prediction.mean) / jnp.sqrt(precision)",
        "present * eta1 / jnp.sqrt(precision)",
        (f"{FAMILIES}::test_conjugate_adds_the_networks_natural_parameter",),
    ),
)

"""Numbers in the sentences of the documentation are those of committed results, or of the code.

Tables between marks are made from the results, and `tests/measurements` compares them. Here are sentences.
"""

from backstream.learning import judging, monitor, particle_reference, starting_theta, tally, unlearned
from backstream.learning.calibration import LEAST_ROWS
from benchmarks import check_costs, growth_theta, modes, ratio_form
from benchmarks.zoo import catalogue
from sentences import ROOT, results, says
from tools.mutants.__main__ import MUTANTS, check_texts


def test_the_particle_smoother_is_beaten_on_some_seeds():
    parts = results("reproduction/results/table3.json")["parts"]
    ours, limit = ([parts[f"{name}, seed {i}"] for i in range(5)] for name in ("default", "limit"))
    assert sum(a["end"]["smoothing"] < b["smoothing"] for a, b in zip(ours, limit, strict=True)) == 4
    says("docs/reproduction.md", "a smaller smoothing error than 20 000 particles on four of five seeds (Table 3)")


def test_biases_of_gradients():
    parts = results("benchmarks/results/gradients.json")["parts"]

    def bias(d, stage, name):
        return parts[f"chaotic RNN, d = {d}"][stage][name]["bias"]

    ratios = [
        bias(d, stage, "plain weights") / bias(d, stage, "pathwise")
        for d in (10, 20, 50)
        for stage in ("start", "middle")
        if bias(d, stage, "pathwise")
    ]
    says(
        "docs/trust.md", f"its bias is {min(ratios):.0f} to {max(ratios):.0f} times smaller than that of plain weights"
    )
    assert all(2.5 < bias(d, "late", "plain weights") / bias(d, "late", "pathwise") < 4 for d in (20, 50))
    start, middle, late = (bias(100, stage, "pathwise") for stage in ("start", "middle", "late"))
    says("docs/trust.md", f"bias is {start:.1f} at the start, {middle:.1f} in the middle and {late:.1f} late")
    worst = parts["slow linear-Gaussian, A = 0.999"]["late"]["4 trajectories, offline"]
    says("docs/trust.md", f"of up to {worst['bias']:.0f} ± {worst['deviation'] / 4:.0f}")


def test_learning_with_a_hundred_states():
    parts = results("benchmarks/results/learning.json")["parts"]
    looks = [one for i in range(4) for one in parts[f"chaotic RNN, d = 100: window, seed {i}"]]
    window = [one for one in looks if one["observations"] == 3002]
    low, high = (pick(one["filtering"] for one in window) for pick in (min, max))
    says("docs/trust.md", f"between {low:.4f} and {high:.4f} at d = 100 (four seeds)")
    recursion = [parts[f"chaotic RNN, d = 100: recursion, seed {i}"][-1] for i in range(4)]
    assert max(round(one["filtering"], 3) for one in recursion) <= 0.109
    fewest, most = (pick(one["observations"] for one in recursion) for pick in (min, max))
    says("docs/trust.md", f"reads only {fewest} to {most} observations within its time limit")


def test_verdicts_on_purpose():
    found = results("benchmarks/results/verdicts.json")
    failures = [run for runs in found["failures"].values() for run in runs.values()]
    healthy = [run for runs in found["healthy"].values() for run in runs.values()]
    bad, good = (
        sum(run["verdict"] in kinds for run in runs)
        for runs, kinds in ((failures, ("doubtful", "failed")), (healthy, ("good", "learning")))
    )
    assert len(found["failures"]) == 17 and found["rows"] == 500
    says("docs/decisions.md", f"{bad} of {len(failures)} verdicts are doubtful or failed")
    says("docs/decisions.md", f"{good} of {len(healthy)} verdicts are good or learning")


def test_following_the_advice_mends():
    remedies = results("benchmarks/results/verdicts.json")["remedies"].values()
    assert all(one["advised"] and one["before"] in ("doubtful", "failed") for one in remedies)
    mended = sum(one["after"] == "good" for one in remedies)
    says(
        "docs/decisions.md",
        f"For {mended} of {len(remedies)} failures, a run that follows the advice ends with the verdict good",
    )


def test_the_cost_of_the_checks():
    found = results("benchmarks/results/check_costs.json")
    models, page = found["models"], "docs/decisions.md"
    assert found["rows"] == 10_000 and list(models) == list(check_costs.MODELS)
    shares = ", ".join(f"{100 * one['all checks']:.1f} % on {name}" for name, one in models.items())
    says(page, f"together take {shares}. The aim was 5 %: it is missed")
    assert max(one["all checks"] for one in models.values()) > 0.05, "the page says that the aim is missed"
    says(page, f"the two looks take {100 * models[check_costs.MODELS[-1]]['particle filters']:.0f} %")
    fewest, largest = (pick(one[check_costs.SCORES] for one in models.values()) for pick in (min, max))
    says(page, f"They take {100 * fewest:.0f} to {100 * largest:.0f} % of the same runs")
    theta = max(one.get("filter at the starting parameters", 0.0) for one in models.values())
    says(page, f"at most {100 * theta:.0f} % of a run that learns them")


def test_what_a_network_could_gain():
    found = results("benchmarks/results/zoo.json")["models"]
    lost = [
        -min(one["methods"]["guided"]["log_score"]["difference"] for one in found[name].values())
        for name in catalogue.SINGLE_MODE
        if name in found and "guided" in next(iter(found[name].values()))["methods"]
    ]
    *small, largest = sorted(lost)
    assert small[-1] < 0.001
    says("docs/decisions.md", f"at most 0.001 nats per column on {len(small)} of {len(lost)}, and {largest:.4f} on the")


def test_mutants():
    found = results("benchmarks/results/mutants.json")
    assert found["killed"] >= 0.9 * found["mutants"]
    assert all(found["survivors"].values()), "each survivor is explained"
    says("CONTRIBUTING.md", f"{found['killed']} of {found['mutants']} are noticed by the tests")
    assert not found["not_run"]
    check_texts(list(MUTANTS))


def test_what_the_verdict_looks_at():
    page = "docs/streaming.md"
    filters, particles, rows = (getattr(particle_reference, name) for name in ("FILTERS", "PARTICLES", "ROWS"))
    says(page, f"{filters} filters with {particles} particles, on {rows} rows")
    says(page, f"after the first window, then at every {monitor.COMPARED}th")
    says(page, f"through {monitor.BOUNDED_ROWS} rows of every {monitor.BOUNDED}th window")
    says(page, f"on the first {unlearned.FIRST} rows, and then on {unlearned.COUNTED} rows of each 1 024")
    assert unlearned.PERIOD == 1024
    says(page, f"the better log score over roughly the last {unlearned.HORIZON // 1000} 000 rows")
    says(page, f"by {judging.LEAST_NATS:.0f} nats with a probability of at most e⁻⁵")
    says(page, f"fewer than {LEAST_ROWS} rows were read")
    says(page, f"the latest {tally.RECENT} rows or so and the latest {tally.LONG // 1000} 000")
    rows, every = starting_theta.UNCOUNTED + starting_theta.COUNTED, starting_theta.EVERY
    says(page, f"reads {rows} rows of the first window of the monitor, of every {every}th and of the last one")
    says(page, f"lost more than {judging.LEAST_GAP:.2f} nats per row and three standard errors")
    says(page, f"more than {100 * judging.MOST_REFUSED:.0f} % of the updates were skipped")
    says(page, f"less than {100 * judging.LEAST_COVERAGE:.0f} % of the values are inside their 90 % bands")
    says(page, f"(less than {100 * judging.LEAST_COLUMN:.0f} % in one of several columns)")


def test_references_of_several_modes():
    cases = results("benchmarks/results/modes.json")["cases"]

    def largest(name: str, what: str, components: str = "4") -> float:
        return max(abs(seed[what]) for seed in cases[name][components].values())

    moves = {name: largest(name, "reference_score_moves") for name in list(cases)[3:]}
    bearings, lorenz = moves["bearings without a side"], moves["Lorenz-63 seen in z"]
    says("docs/posterior.md", f"moves by {bearings:.4f} for bearings, by {lorenz:.4f} for Lorenz-63")
    assert max(moves["ranges from two sensors on a line"], moves["random walk seen as its absolute value"]) < 1e-4
    off = largest("Lorenz-63 seen in z", "score_below")
    says("docs/posterior.md", f"four components are {off:.3f} nats a row off on one of the data sets")


def test_tables_of_several_modes(tmp_path):
    """They are what the benchmarks write from their results."""
    copy = tmp_path / "posterior.md"
    copy.write_text((ROOT / "docs" / "posterior.md").read_text())
    modes.render(page=copy)
    growth_theta.render(page=copy)
    assert copy.read_text() == (ROOT / "docs" / "posterior.md").read_text()
    assert ratio_form.price_table() in copy.read_text() and ratio_form.kernel_table() in copy.read_text()
    one_mode = results("benchmarks/results/modes.json")["one_mode"]
    worst = max(seed["filtering"] for seeds in one_mode.values() for seed in seeds.values())
    says("docs/posterior.md", f"the filter's error over that with one is at most {worst:.4f}")
    learned = results("benchmarks/results/growth_theta.json")["settling"].values()
    off = max(max(seed["off_by"].values()) for seed in learned)
    says("docs/posterior.md", f"at most {100 * off:.1f} % off")


def test_fleets_on_spark():
    seconds = results("benchmarks/results/spark_common_lambda.json")["spark"]["seconds_of_a_micro_batch"]
    says("docs/scale.md", f"Micro-batches of 1 000 rows took {seconds} s each")
    first, *_, last = results("benchmarks/results/spark_many_keys.json")["100000"]["seconds_of_each_micro_batch"]
    says("docs/scale.md", f"compiles, which took {first - last:.0f} s")

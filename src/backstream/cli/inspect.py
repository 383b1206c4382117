"""`backstream inspect`: a summary of a run."""

import json
import math
import sys
from typing import Annotated, Any

import typer

from backstream._terminal import visible

from .failures import plainly
from .options import RunPath

SHOWN = 5
"""The number of monitored streams that are printed."""


@plainly
def inspect(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Summarize a run and its verdict.

    Prints the model, settings, learned parameters, warnings, and whether the result can be trusted.

    Example: backstream inspect run/
    """
    from dataclasses import asdict

    from backstream.runs.checkpoints import Checkpoints, DamagedCheckpointError
    from backstream.runs.logs import report_record
    from backstream.runs.store import CHECKPOINTS, open_config, read_reports, verdict_of

    config, reports = open_config(run), read_reports(run)
    checkpoints, damaged, newest = Checkpoints(run / CHECKPOINTS, config.saving.keep), [], None
    verdict = None
    for position in reversed(checkpoints.positions()):
        try:
            newest = checkpoints.about(position)
            verdict = verdict_of(newest.record)
            break
        except DamagedCheckpointError as error:
            damaged.append(str(error))
    found: dict[str, Any] = {
        "config": asdict(config),
        "position": 0 if newest is None else newest.position,
        "last_time": None if newest is None else newest.record.get("time"),
        "state_digest": None if newest is None else newest.digest,
        "damaged": damaged,
        "streams": None if newest is None or "fleet" not in newest.record else newest.record["fleet"]["streams"],
        "rejected": 0 if newest is None else newest.record.get("rejected", 0),
        "first_reason": "" if newest is None else newest.record.get("first_reason", ""),
        "health": None if verdict is None else verdict.record(),
        "scores": _scores(run, config.columns.observed),
        "reports": len(reports),
        "windows_with_warnings": sum(bool(report.warnings) for report in reports),
        "latest": {name: value for name, value in report_record(reports[-1]).items() if name != "parameters"}
        if reports
        else None,
        "parameters": _parameters(reports),
    }
    if as_json:
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    for line in [*_words(found, reports), *_health(verdict)]:
        print(visible(line))


def _health(verdict: Any) -> list[str]:
    """The verdict, in one line, and what led to it."""
    if verdict is None:
        return ["Health     not known yet: there is no checkpoint"]
    headline = verdict.headline().removeprefix("Verdict: ")
    return [f"Health     {headline}", *(f"           {line}" for line in verdict.details())]


def _scores(run: Any, columns: tuple[str, ...]) -> dict[str, Any] | None:
    """How well the latest rows were predicted: the mean log score, and the mean CRPS of each column; None for what
    they do not have."""
    import numpy as np

    from backstream.runs.results import read_latest
    from backstream.runs.store import FILTERED

    table = read_latest(run / FILTERED)
    if table is None:
        return None

    def mean(name: str) -> float | None:
        if name not in table.column_names:
            return None
        values = np.asarray(table[name].to_numpy(), float)
        known = values[np.isfinite(values)]
        return float(known.mean()) if len(known) else None

    crps = {column: mean(f"crps_{i}") for i, column in enumerate(columns)}
    return {"rows": len(table), "log_score": mean("log_score"), "crps": crps}


def _of_scores(scores: dict[str, Any] | None) -> list[str]:
    if scores is None:
        return []
    told = [] if scores["log_score"] is None else [f"log score {scores['log_score']:.3f} nats per row"]
    known = [f"{name} {value:.4g}" for name, value in scores["crps"].items() if value is not None]
    told += [f"CRPS {', '.join(known[:SHOWN])}{', ...' if len(known) > SHOWN else ''}"] if known else []
    return [f"Scores     {'; '.join(told)} (the latest {scores['rows']:,} rows)"] if told else []


def _parameters(reports: list[Any]) -> dict[str, dict[str, float | None]] | None:
    """What the latest report says of the model's parameters, and by how much they changed over the last tenth of the
    reports of that stream. None where nothing is learned of them."""
    if not reports or reports[-1].parameters is None:
        return None
    own = [report for report in reports if report.stream == reports[-1].stream and report.parameters is not None]
    before = own[-1 - max(1, len(own) // 10)].parameters if len(own) > 1 else {}

    def known(number: float) -> float | None:
        return number if math.isfinite(number) else None

    return {
        name: {
            "value": known(now.value),
            "error": known(now.error),
            "change": known(now.value - before[name].value) if name in before else None,
        }
        for name, now in own[-1].parameters.items()
    }


def _of_parameters(parameters: dict[str, dict[str, float | None]] | None) -> list[str]:
    lines = []
    for name, told in (parameters or {}).items():
        value, error, change = (told[key] for key in ("value", "error", "change"))
        words = "not finite" if value is None else f"{value:.4g}"
        words += ", no standard error" if error is None else f" ± {error:.2g}"
        words += "" if change is None else f", changed by {change:+.2g} over the last tenth"
        lines.append(f"Parameter  {name} = {words}")
    return lines


def _words(found: dict[str, Any], reports: list[Any]) -> list[str]:
    config = found["config"]
    parameters = ", ".join(f"{key} = {value}" for key, value in config["model"]["parameters"].items())
    learning, columns = config["learning"], config["columns"]
    lines = [
        f"Model      {config['model']['name']}" + (f" ({parameters})" if parameters else ""),
        f"Observed   {', '.join(columns['observed'])}"
        + (f"; inputs {', '.join(columns['inputs'])}" if columns["inputs"] else "")
        + (f"; time {columns['time']}" if columns["time"] else "")
        + ("; time since the last row is an input" if columns["elapsed"] else ""),
        f"Posterior  {learning['family']}{_learning(learning)}; seed {learning['seed']}, {config['precision']}"
        + _of_model(learning)
        + f"; backstream {config['version']}",
        f"Saved      {found['position']:,} rows"
        + (f", the last of {found['last_time']}" if found["last_time"] else "")
        + ("" if found["state_digest"] is None else f"; state {found['state_digest'][:12]}"),
    ]
    if found["streams"] is not None:
        how = "one posterior learned from all" if config["fleet"]["common"] else "each with its own posterior"
        lines.insert(1, f"Streams    {found['streams']:,} by {columns['key']}, {how}")
    if found["rejected"]:
        lines.append(f"Set aside  {found['rejected']:,} rows, in rejected.jsonl; the first: {found['first_reason']}")
    lines += [f"Damaged    {sentence}" for sentence in found["damaged"]]
    lines += _of_scores(found["scores"])
    if not reports:
        whose = "" if found["streams"] is None else " of a stream"
        return [*lines, f"Monitor    no report yet: the first comes after {learning['monitor_every']} rows{whose}"]
    lines += _of_parameters(found["parameters"])
    by_stream: dict[str | None, list[Any]] = {}
    for report in reports:
        by_stream.setdefault(report.stream, []).append(report)
    for stream in list(by_stream)[-SHOWN:]:
        lines += _of_stream(learning, by_stream[stream], "" if stream is None else f"{stream}: ")
    if len(by_stream) > SHOWN:
        lines.append(f"           (the latest {SHOWN} of {len(by_stream):,} monitored streams)")
    return [*lines, f"Monitor    warnings in {found['windows_with_warnings']} of {found['reports']} windows"]


def _of_stream(learning: dict[str, Any], reports: list[Any], whose: str) -> list[str]:
    first, latest = reports[0], reports[-1]
    lines = [
        f"ELBO       {whose}{latest.average_elbo:.3f} nats per row for the result (first window: "
        f"{first.average_elbo:.3f}); reported by the learner {latest.elbo:.3f}, unbiased "
        f"{latest.unbiased_elbo:.3f} ± {latest.unbiased_error:.3f}"
    ]
    if learning["method"] == "recursion":
        lines.append(f"Samples    {whose}effective sample size {latest.ess:.1f} of {learning['particles']}")
    lines.append(f"Updates    {whose}{100 * latest.refused:.1f} % of the latest were not finite and were skipped")
    return lines + [f"Monitor    {whose}{warning}" for warning in latest.warnings]


def _of_model(learning: dict[str, Any]) -> str:
    if learning["learn_parameters"]:
        return f", {', '.join(learning['learn_parameters'])} of the model too"
    return ", the model too" if learning["learn_model"] else ""


def _learning(learning: dict[str, Any]) -> str:
    if not learning["learn"]:
        return ", nothing learned"
    how = {
        None: "",
        "log-score": " by the log score",
        "window": f" from a window of {learning['lag']} rows with {learning['trajectories']} trajectories",
        "recursion": f" by the recursion with {learning['particles']} particles",
    }[learning["method"]]
    return f", learned{how}" + ("" if learning["learning_rate"] is None else f" at rate {learning['learning_rate']:g}")

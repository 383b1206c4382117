"""Writes what the committed results say into the documentation.

    python -m experiments.report

The tables between the marks in docs/choosing.md and docs/reproduction.md come from experiments/results/*.json and from
nowhere else; a test checks that they are up to date.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from backstream import plots

from .harness import MISSING, RESULTS, first_within, table
from .reproduction import NAMES, result

DOCS = Path(__file__).parents[1] / "docs"
CASES = {
    "d=5": "Chaotic RNN, d = 5",
    "d=10": "Chaotic RNN, d = 10",
    "d=20": "Chaotic RNN, d = 20",
    "linear": "Linear-Gaussian, d = 10",
    "slow": "Slowly mixing linear-Gaussian, A = 0.999",
}


def parts(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())["parts"]


def above(row: dict[str, Any], limit: dict[str, float]) -> list[str]:
    return [f"{100 * (row[name] / limit[name] - 1):+.1f} %" for name in ("smoothing", "filtering")]


def recursion_or_window() -> str:
    found, text = parts("recursion_or_window"), ""
    for case, title in CASES.items():
        limit, rows = found.get(f"{case}, limit"), []
        if limit is None:
            continue
        for name, curve in found.items():
            if not name.startswith(f"{case}, ") or name.endswith(", limit"):
                continue
            last, reached = curve[-1], first_within(curve, limit)
            elbo = [f"{last['fresh_elbo'] - limit['fresh_elbo']:+.4f}"] if "fresh_elbo" in limit else []
            within = "–" if reached is None else f"{reached['observations']:,} in {reached['seconds']:.0f} s"
            milliseconds = 1e3 * last["seconds"] / last["observations"]
            cost = f"{last['observations']:,}", f"{milliseconds:.2f}"
            rows.append([name.removeprefix(f"{case}, "), *cost, *above(last, limit), *elbo, within])
        best = f"smoothing {limit['smoothing']:.4f}, filtering {limit['filtering']:.4f}"
        raw = f"; raw observation {limit['raw']:.4f}" if "raw" in limit else ""
        header = ["learner", "read", "ms", "smoothing", "filtering"]
        header += (["ELBO per step"] if "fresh_elbo" in limit else []) + ["within 5 %, and stays"]
        text += f"\n**{title}** (limit: {best}{raw})\n\n" + table(header, rows)
    return text


def reproduced(name: str) -> str:
    """The section of a result: what has been run of it so far, and its picture."""
    chosen, path = result(name), RESULTS / f"{name}.json"
    text = f"\n## {chosen.TITLE}\n\n{chosen.ABOUT}\n\n`backstream reproduce {name}`\n\n"
    if not path.exists():
        return text + f"{MISSING.capitalize()}.\n"
    return text + chosen.markdown(json.loads(path.read_text())) + f"\n![{chosen.TITLE}]({picture(name)})\n"


def picture(name: str) -> str:
    return f"images/reproduction/{name}.png"


def model() -> str:
    found = parts("learn_model")
    rows = []
    for name, part in found.items():
        real, imaginary = part["eigenvalues"][0]
        autocovariances = ", ".join(f"{value[0][0]:.2f}" for value in part["autocovariances"])
        rows.append([name, f"{part['log_likelihood']:.4f}", f"{real:.3f} ± {imaginary:.3f}i", autocovariances])
    return table(["", "nats per step, fresh data", "eigenvalues of A", "autocovariances of y₁ at lags 0–3"], rows)


SECTIONS = {
    "choosing.md": {"recursion or window": recursion_or_window},
    "reproduction.md": {name: partial(reproduced, name) for name in NAMES} | {"model": model},
}


def filled(text: str, sections: dict[str, Any]) -> str:
    """A page with what stands between its marks made anew."""
    for name, make in sections.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + make() + end + rest.split(end)[1]
    return text


def main() -> None:
    for page, sections in SECTIONS.items():
        path = DOCS / page
        path.write_text(filled(path.read_text(), sections))
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        if path.exists():
            (DOCS / picture(name)).parent.mkdir(exist_ok=True)
            plots.save(result(name).figure(json.loads(path.read_text())), DOCS / picture(name))


if __name__ == "__main__":
    main()

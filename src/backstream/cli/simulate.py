"""`backstream simulate`: data with known states."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .failures import plainly
from .options import ConfigOption, ModelName, PrecisionOption, SetOption, parameters


@plainly
def simulate(
    model: ModelName,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="The number of observations.")] = 1000,
    out: Annotated[
        str, typer.Option("--out", "-o", help="A .csv, .jsonl or .parquet file; - is JSON Lines on stdout.")
    ] = "-",
    states: Annotated[Path | None, typer.Option(help="A file for the true states, for backstream evaluate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The random seed of the data. A random model has its own seed.")] = 0,
    set_: SetOption = None,
    config: ConfigOption = None,
    precision: PrecisionOption = None,
) -> None:
    """Simulate hidden states and observations from a model.

    Also writes a .toml file with the model, for backstream stream --config. If the model needs an input, it gets the
    row number, in the column t.

    Example: backstream simulate chaotic-rnn -n 10000 --set dim=5 -o obs.csv --states states.csv

    Example: backstream simulate my_model.py:Drift -n 500 | head
    """
    import jax
    import numpy as np
    import pyarrow as pa

    from backstream._version import __version__
    from backstream.cli import jax_setup
    from backstream.runs import atomic_files, toml
    from backstream.runs.model_registry import find
    from backstream.runs.tables import check_suffix, write_table

    from .settings import effective

    for path in ([] if out == "-" else [Path(out)]) + ([states] if states else []):
        check_suffix(path)
    asked, _ = effective({"precision": precision, "model": {"name": model, "parameters": parameters(set_)}}, config)
    jax_setup.start(asked.precision)
    p, choice = find(asked.model.name, asked.model.parameters)
    inputs = np.arange(rows, dtype=asked.precision)[:, None] if _needs_input(p) else None
    xs, ys = p.simulate(rows, inputs, key=jax.random.key(seed))
    columns = {} if inputs is None else {"t": inputs[:, 0]}
    write_table(pa.table(columns | _named("y", ys)), out, asked.text())
    if states:
        write_table(pa.table(_named("x", xs)), states, asked.text())
    if out == "-":
        return
    side = Path(out).with_suffix(".toml")
    tables = {
        "version": __version__,
        "precision": asked.precision,
        "model": {"name": choice.name, "parameters": choice.parameters},
        "columns": {"observed": list(_named("y", ys))} | ({} if inputs is None else {"inputs": ["t"]}),
    }
    made = f"# The draws: backstream simulate {choice.name} --rows {rows} --seed {seed} --config {side.name}\n"
    atomic_files.write(side, (made + toml.dump(tables)).encode())
    print(f"{rows:,} rows in {out}. Next: backstream stream {model} {out} --config {side} --out run/", file=sys.stderr)


def _needs_input(p) -> bool:
    from backstream.errors import InputError
    from backstream.models import check_model

    try:
        check_model(p)
    except (ValueError, TypeError) as error:
        import numpy as np

        try:
            check_model(p, np.zeros(1))
        except (ValueError, TypeError):
            raise InputError(f"The model cannot be simulated: {error}") from error
        return True
    return False


def _named(letter: str, values) -> dict:
    import numpy as np

    return {f"{letter}{i}": np.ascontiguousarray(column) for i, column in enumerate(np.asarray(values).T)}

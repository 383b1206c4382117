"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Precision = Literal["float32", "float64"]
Format = Literal["csv", "jsonl", "parquet"]

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="linear-gaussian, chaotic-rnn, stochastic-volatility, growth, structural, or your own: file.py:Class or "
        "package.module:Class.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, made by backstream stream.")]
SourceName = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A CSV, JSON Lines or Parquet file, or - for standard input.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the model, as in --set dim=5. May be repeated."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with settings, as in run/config.toml. Options override it.")
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="The format of the source. Default: from its file name.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The model of the run, if it is your own: file.py:Class or package.module:Class. Not needed after "
        "backstream trust.",
    ),
]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Leave text in CSV as it is, also where a spreadsheet or a terminal would act on it."),
]
PrecisionOption = Annotated[
    Precision | None, typer.Option("--precision", help="The precision of all arithmetic. Default: float32.")
]


def parameters(settings: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE pairs, each value as in TOML, or text where it is not."""
    import tomllib

    from backstream.errors import InputError

    result: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set takes NAME=VALUE, not {setting!r}.")
        try:
            result[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            result[name.strip()] = value
    return result

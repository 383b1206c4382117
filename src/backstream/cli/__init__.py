"""The command line: parse, call, print. Heavy imports happen inside the commands, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="backstream",
    help="Learn, from a stream of observations read once, where its hidden state is, where it was, and where it goes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """More than one command, even while there is only one."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to put the picture.")] = Path("demo.png"),
    dim: Annotated[int, typer.Option(min=1, help="The number of hidden states.")] = 5,
    observations: Annotated[int, typer.Option(min=1000, help="How many observations to read.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Makes the model, the data and the draws.")] = 0,
) -> None:
    """Stream a chaotic recurrent network with heavy-tailed noise, and learn online what is behind it.

    Ends with a table that says how close the result is to the best possible, and a picture.

    Example: backstream demo --dim 5 --observations 20000 --out demo.png
    """
    from .demo import run

    run(out, dim, observations, seed)


def main() -> None:
    app()

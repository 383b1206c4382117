"""The command line: parse, call, print. Heavy imports happen inside the commands, so that --help is quick."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .evaluate import evaluate
from .failures import DEBUG, plainly
from .forecast import forecast
from .generated import GroupedHelp
from .inspect import inspect
from .plot import plot
from .reproduce import bench, reproduce
from .simulate import simulate
from .smooth import smooth
from .spark import spark
from .stream import stream
from .trust import trust

app = typer.Typer(
    name="backstream",
    help="Estimate a hidden state from a stream of observations, each read once: filter, smooth, forecast, learn.",
    epilog="To start: backstream simulate chaotic-rnn -n 5000 -o obs.csv (it prints the next command). "
    "Exit codes: 0 success, 1 error, 2 invalid request, 3 the result is not usable, 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich would take longer to be imported than all the rest
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> bool:
    if wanted:
        from backstream._version import __version__

        print(f"backstream {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works at any position.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


@app.command()
@plainly
def demo(
    out: Annotated[Path, typer.Option(help="The file for the picture.")] = Path("demo.png"),
    dim: Annotated[int, typer.Option(min=1, help="The number of hidden states.")] = 5,
    observations: Annotated[int, typer.Option(min=1000, help="The number of observations.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The random seed of the model and the data.")] = 0,
) -> None:
    """Learn from a simulated stream and draw a picture.

    The stream is a chaotic recurrent network with heavy-tailed noise. A table compares the result with the best
    possible one.

    Example: backstream demo --dim 5 --observations 20000 --out demo.png
    """
    from .demo import run

    run(out, dim, observations, seed)


for _command in (simulate, stream, spark, smooth, forecast, evaluate, plot, inspect, trust, reproduce, bench):
    app.command(cls=GroupedHelp)(_command)


def main() -> None:
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # wherever it stands
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    app(arguments)

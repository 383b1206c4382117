"""`backstream trust`: allow the model file of a run to be executed."""

import sys
from typing import Annotated

import typer

from .failures import FAILURE, end, plainly
from .options import RunPath

SHOWN = 1000
"""How many characters of the parameters are printed."""


@plainly
def trust(
    run: RunPath,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Show the model file of a run, and trust it if you agree. This command does not execute the file.

    After that, smooth, forecast and evaluate execute the file without --model, until its content changes. Built-in
    models need no trust. Trusted files are listed in ~/.config/backstream/trusted.toml (or in
    $XDG_CONFIG_HOME/backstream).

    Example: backstream trust run/
    """
    from backstream.runs import trust as trusted_files
    from backstream.runs.model_registry import SHIPPED, recorded_code
    from backstream.runs.store import open_config

    model = open_config(run).model
    if model.name in SHIPPED:
        print(f"{run} has the model {model.name}, which is built in: there is nothing to trust.")
        return
    code = recorded_code(model, run)
    parameters = ", ".join(f"{name!r} = {value!r}" for name, value in model.parameters.items())
    if len(parameters) > SHOWN:
        parameters = f"{parameters[:SHOWN]}… ({len(model.parameters):,} of them, in {run / 'config.toml'})"
    print(f"{run} names this model, of which nothing has been executed yet:")
    for path, digest in code.digests().items():
        print(f"  file        {str(path)!r}\n  SHA-256     {digest}")
    print(f"  class       {code.place.class_name}\n  parameters  {parameters or 'none'}")
    print(
        "If you trust it, it is executed with all its imports, for every run that names it, until its content changes."
    )
    sys.stdout.flush()
    if not yes and not _agreed():
        end("Nothing was trusted.", FAILURE)
    trusted_files.add(code)
    print(
        f"Trusted: {trusted_files.list_path()} lists the file now. Remove its line there to undo this.", file=sys.stderr
    )


def _agreed() -> bool:
    try:
        return typer.confirm("Have you read the file, and do you trust it?", err=True)
    except typer.Abort:  # no answer
        print(file=sys.stderr)
        return False

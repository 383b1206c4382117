"""`backstream trust`: let a run have its model's file run."""

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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: for a script.")] = False,
) -> None:
    """Show which file a run's model is in, and trust that file if you agree. Nothing is run.

    Then smooth, forecast and evaluate run the file without --model, until its content changes. Shipped models need no
    trust. The list is in trusted.toml in ~/.config/backstream (or $XDG_CONFIG_HOME/backstream).

    Example: backstream trust run/
    """
    from backstream.runs import trust as trusted_files
    from backstream.runs.model_registry import SHIPPED, recorded_code
    from backstream.runs.store import open_config

    model = open_config(run).model
    if model.name in SHIPPED:
        print(f"{run} has the model {model.name}, which is part of backstream: there is nothing to trust.")
        return
    code = recorded_code(model, run)
    parameters = ", ".join(f"{name!r} = {value!r}" for name, value in model.parameters.items())
    if len(parameters) > SHOWN:
        parameters = f"{parameters[:SHOWN]}… ({len(model.parameters):,} of them, in {run / 'config.toml'})"
    print(f"{run} names this model, of which nothing has been run yet:")
    for path, digest in code.digests().items():
        print(f"  file        {str(path)!r}\n  SHA-256     {digest}")
    print(f"  class       {code.place.class_name}\n  parameters  {parameters or 'none'}")
    print("If you trust it, it is run, with all that it imports, for any run that names it, until its content changes.")
    sys.stdout.flush()
    if not yes and not _agreed():
        end("Nothing was trusted.", FAILURE)
    trusted_files.add(code)
    print(f"Trusted: {trusted_files.list_path()} has it now. Remove its line there to take it back.", file=sys.stderr)


def _agreed() -> bool:
    try:
        return typer.confirm("Have you read the file, and do you trust it?", err=True)
    except typer.Abort:  # no answer
        print(file=sys.stderr)
        return False

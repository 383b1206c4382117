"""Errors from inside a user's model, with the place in the user's file."""

import inspect
import re
import traceback

from backstream.errors import InputError, RunError
from backstream.models import StateSpaceModel


def explained(error: Exception, model: StateSpaceModel, source: str, row: int) -> Exception:
    """What to raise for an error that came up while rows after the first `row` were learned from."""
    if isinstance(error, InputError | RunError):
        return error
    where = _place(error, model)
    reason = f"{type(error).__name__}: {_first_line(error)}"
    saved = "What was saved before is still there: continue with resume once it is mended."
    if where is not None:
        return RunError(f"The model failed at {where}, in the rows after row {row:,} of {source}: {reason} {saved}")
    if isinstance(error, ValueError):
        return RunError(f"{source} cannot be learned from: {error}")
    return RunError(f"Learning failed in the rows after row {row:,} of {source}: {reason} {saved}")


def _place(error: BaseException | None, model: StateSpaceModel) -> str | None:
    """The innermost line of the model's own file that was running."""
    try:
        file = inspect.getfile(type(model))
    except (TypeError, OSError):  # defined in a notebook, for example
        return None
    while error is not None:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        # What a callback of the compiled program raised is in the text of the error.
        lines += [int(number) for number in re.findall(rf'File "{re.escape(file)}", line (\d+)', str(error))]
        if lines:
            return f"{file}, line {lines[-1]}"
        error = error.__cause__ or error.__context__
    return None


def _first_line(error: Exception) -> str:
    """Of what may be a long story, the line that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception): ", line)]
    return (raised or lines or [""])[-1 if raised else 0]

"""What can go wrong on the way in and out, in two kinds that a script can tell apart."""


class InputError(ValueError):
    """What was asked for cannot be done: a file, a column, a setting or a run directory that does not fit. The message
    is one sentence that names it and says what to do. The command line exits with 2."""


class RunError(RuntimeError):
    """What was begun could not be finished: bad data, a full disk, a damaged checkpoint, a reader that went away. What
    was computed before stays on disk, readable. The command line exits with 1."""

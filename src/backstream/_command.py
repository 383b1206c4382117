"""The entry of the command line, which says what to install where its packages are missing."""

import sys
from importlib.util import find_spec


def main() -> None:
    missing = [name for name in ("typer", "rich", "matplotlib") if not _is_there(name)]
    if missing:
        print(
            f"backstream: the command line needs {', '.join(missing)}. Install them: pip install 'backstream[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2)
    try:
        from backstream.cli import main as run
    except KeyboardInterrupt:  # while it is imported
        raise SystemExit(130) from None
    run()


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False

"""Checks the sizes of files and functions: `python -m tools.check_sizes`, part of `make lint`.

A file of the library or the tests has at most 400 lines. A function of the library has at most 60 lines, without its
docstring, and at most 8 parameters, without `self` and `cls`. Commands of the command line may have more: each is an
option.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "backstream"
TESTS = Path(__file__).parents[1] / "tests"
MOST_FILE_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 400, 60, 8
EXCEPTIONS = {"models/structural/builder.py structural"}
"""Public functions with more parameters. `structural` has one keyword for each number that a user knows of a series: a
period, a scale, a coefficient. All have defaults, and the same names on the command line (`--set seasonal=12`)."""


def offences(name: str, text: str) -> Iterator[str]:
    """What is too large in a file of the library."""
    yield from _file(name, text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function(name, node)


def _file(name: str, text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > MOST_FILE_LINES:
        yield f"{name} has {lines} lines; at most {MOST_FILE_LINES} are allowed."


def _function(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    where, first = f"{name}:{node.lineno} {node.name}", node.body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    end = node.end_lineno or node.lineno
    lines = end - node.lineno + 1
    if docstring:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    if lines > MOST_FUNCTION_LINES:
        yield f"{where} has {lines} lines; at most {MOST_FUNCTION_LINES} are allowed."
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    count = sum(argument.arg not in ("self", "cls") for argument in arguments)
    if count > MOST_PARAMETERS and not name.startswith("cli/") and f"{name} {node.name}" not in EXCEPTIONS:
        yield f"{where} has {count} parameters; at most {MOST_PARAMETERS} are allowed."


def main() -> int:
    files = sorted(ROOT.rglob("*.py"))
    found = [line for file in files for line in offences(file.relative_to(ROOT).as_posix(), file.read_text())]
    tests = sorted(TESTS.rglob("*.py"))
    found += [line for file in tests for line in _file(f"tests/{file.relative_to(TESTS).as_posix()}", file.read_text())]
    print("\n".join(found) or f"{len(files) + len(tests)} files are within the sizes.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

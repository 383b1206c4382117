"""The command line: its help is quick, and teaches."""

import subprocess
import sys


def test_help_does_not_wait_for_jax():
    code = "import sys, backstream.cli; sys.exit(not {'jax', 'pyarrow', 'matplotlib', 'rich'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_library_imports_little():
    """Nothing but itself at first; then JAX and what it needs, but nothing of the extras. 1.2 s on a quiet machine."""
    code = """
import sys, time
import backstream
assert time.process_time() < 0.5 and {"jax", "pyarrow", "numpy"}.isdisjoint(sys.modules)
backstream.learn, backstream.Tracker
assert {"matplotlib", "orbax", "pandas", "rich", "typer"}.isdisjoint(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_has_an_example():
    command = [sys.executable, "-c", "from backstream.cli import main; main()", "demo", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Example: backstream demo" in " ".join(shown.split())


def test_a_bad_value_is_a_usage_error():
    command = [sys.executable, "-c", "from backstream.cli import main; main()", "demo", "--observations", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "1000" in ended.stderr and "Traceback" not in ended.stderr


INTERRUPTED = """
from backstream.cli.failures import plainly
class Collected:
    def __del__(self):
        raise KeyboardInterrupt
@plainly
def command():
    Collected()
    print("went on")
command()
"""


def test_ctrl_c_ends_a_command_wherever_it_comes():
    """In a destructor or a callback of the collector, Python would print a traceback and go on."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")

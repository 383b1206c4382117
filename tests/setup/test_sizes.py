"""The sizes of files and functions that `make lint` allows."""

from tools.check_sizes import main, offences


def test_what_is_too_large_is_named():
    long_function = "def f():\n" + "    pass\n" * 60
    documented = 'def f():\n    """' + "words\n" * 60 + '"""\n    return 1\n'
    many = "def f(self, a, b, c, d, e, f, g, *, h, i): pass\n"
    assert list(offences("a.py", long_function)) == ["a.py:1 f has 61 lines; at most 60 are allowed."]
    assert list(offences("a.py", documented)) == []
    assert list(offences("a.py", many)) == ["a.py:1 f has 9 parameters; at most 8 are allowed."]
    assert list(offences("cli/a.py", many)) == []
    assert list(offences("a.py", "x = 1\n" * 401)) == ["a.py has 401 lines; at most 400 are allowed."]


def test_the_library_is_within_the_sizes(capsys):
    assert main() == 0, capsys.readouterr().out

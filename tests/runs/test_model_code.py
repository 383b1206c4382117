"""Which code of a user's model is run: what the user names or has trusted, if it is what the run was made with, and
exactly the bytes that were compared."""

import importlib.util
import io
import os
import py_compile
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backstream.data.columns import Columns
from backstream.errors import InputError
from backstream.models import Growth
from backstream.runs import trust
from backstream.runs.config import Config
from backstream.runs.model_code import MOST_BYTES, locate
from backstream.runs.model_registry import Identity, ModelChoice, find, find_again, recorded_code
from command import here

OWN = """
import pathlib
import backstream as bs
pathlib.Path(__file__).with_suffix(".ran").touch()
class Own(bs.Growth):
    pass
class Other(bs.Growth):
    pass
"""
UNTRUSTED = r"which is not part of backstream\. .* name the model yourself .*, or check it and trust it"
CHANGED = "has changed since you trusted it, and is not run"


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    """An empty trust list; modules that a test imports are forgotten after it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    before = set(sys.modules)
    yield tmp_path / "settings"
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def ran(file):
    """Whether the file was run since the last question."""
    marker = file.with_suffix(".ran")
    found = marker.exists()
    marker.unlink(missing_ok=True)
    return found


def own_file(path):
    """A model in a file, and what a run records of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OWN)
    _, choice = find(f"{path}:Own", {"emission_scale": 2.0})
    assert ran(path)
    return path, choice


def own_module(tmp_path, monkeypatch):
    """The same in an installed package, of which nothing is imported yet."""
    package = tmp_path / "site" / "own_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    (package / "inner.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(package.parent))
    _, choice = find("own_package.inner:Own", {})
    forget_module()
    assert ran(package / "inner.py") and ran(package / "__init__.py")
    return package, choice


def forget_module():
    for name in ("own_package.inner", "own_package"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


# ---- named, trusted, or not run --------------------------------------------------------------------------------------
def test_a_run_alone_has_no_code_run(tmp_path, run):
    file, choice = own_file(tmp_path / "own.py")
    with pytest.raises(InputError, match=UNTRUSTED):
        find_again(choice, run)
    assert not ran(file)


def test_a_model_that_the_user_names_is_run(tmp_path, run):
    """Also where it has moved; but not if it is another one than that of the run."""
    file, choice = own_file(tmp_path / "own.py")
    moved = file.rename(tmp_path / "moved.py")
    assert find_again(choice, run, f"{moved}:Own").emission_scale == 2.0 and ran(moved)
    with pytest.raises(InputError, match=r"was made with the model '.*own\.py:Own', not '.*moved\.py:Other'"):
        find_again(choice, run, f"{moved}:Other")
    with pytest.raises(InputError, match=r"was made with the model .*, not 'growth'"):
        find_again(choice, run, "growth")
    moved.write_text(OWN + "\n")
    with pytest.raises(InputError, match="has changed since the run was started"):
        find_again(choice, run, f"{moved}:Own")
    assert not ran(moved)


def test_a_trusted_file_is_run_until_it_changes(tmp_path, run):
    """The digest in the run does not help: it is changed with the file, as somebody else could."""
    file, choice = own_file(tmp_path / "own.py")
    trust.add(recorded_code(choice, run))
    assert not ran(file)
    assert find_again(choice, run).emission_scale == 2.0 and ran(file)
    file.write_text(OWN + "\n")
    changed = replace(choice, identity=replace(choice.identity, source=locate(choice.name).read().source))
    with pytest.raises(InputError, match=CHANGED):
        find_again(changed, run)
    assert not ran(file)
    file.write_text(OWN)
    assert find_again(choice, run) and ran(file)


def test_a_copy_of_a_trusted_file_is_not_trusted(tmp_path, run):
    """What lies beside it, which it may import or read, is another's; the same through a link."""
    file, choice = own_file(tmp_path / "own.py")
    trust.add(recorded_code(choice, run))
    (tmp_path / "copy.py").write_text(OWN)
    (tmp_path / "link.py").symlink_to(file)
    for other in (tmp_path / "copy.py", tmp_path / "link.py"):
        with pytest.raises(InputError, match=UNTRUSTED):
            find_again(replace(choice, name=f"{other}:Own"), run)
        assert not ran(other)


def test_a_trusted_file_has_no_function_and_no_other_class_called(tmp_path, run):
    file = tmp_path / "own.py"
    file.write_text(OWN + "from subprocess import getoutput\nfrom logging import FileHandler\n")
    _, choice = find(f"{file}:Own", {})
    trust.add(recorded_code(choice, run))
    marker = tmp_path / "marker"
    for name, parameters in (("getoutput", {"cmd": f"touch {marker}"}), ("FileHandler", {"filename": str(marker)})):
        hostile = replace(choice, name=f"{file}:{name}", parameters=parameters)
        with pytest.raises(InputError, match=f"has no class {name} that is derived from backstream.StateSpaceModel"):
            find_again(hostile, run)
        assert not marker.exists()
        with pytest.raises(InputError, match=f"does not define a class {name}: there is nothing in it to trust"):
            recorded_code(hostile, run)


def test_a_module_is_trusted_with_the_packages_around_it(tmp_path, run, monkeypatch):
    package, choice = own_module(tmp_path, monkeypatch)
    code = recorded_code(choice, run)
    assert list(code.digests()) == [package / "__init__.py", package / "inner.py"]
    with pytest.raises(InputError, match=UNTRUSTED):
        find_again(choice, run)
    assert not ran(package / "inner.py") and not ran(package / "__init__.py")
    trust.add(code)
    assert type(find_again(choice, run)).__module__ == "own_package.inner"
    assert ran(package / "inner.py") and ran(package / "__init__.py")
    forget_module()
    (package / "__init__.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n\n")
    with pytest.raises(InputError, match=f"__init__.py {CHANGED}"):
        find_again(choice, run)
    assert not ran(package / "inner.py") and not ran(package / "__init__.py")


# ---- the bytes that are run are those that were compared -------------------------------------------------------------
def test_a_file_that_changes_after_it_was_read_is_run_as_it_was(tmp_path):
    file, _ = own_file(tmp_path / "own.py")
    code = locate(f"{file}:Own").read()
    file.write_text("raise RuntimeError('another file')")
    assert issubclass(code.run(), Growth) and ran(file)


def test_a_module_that_changes_after_it_was_read_is_run_as_it_was(tmp_path, monkeypatch):
    package, _ = own_module(tmp_path, monkeypatch)
    code = locate("own_package.inner:Own").read()
    for file in (package / "inner.py", package / "__init__.py"):
        file.write_text("raise RuntimeError('another file')")
    assert issubclass(code.run(), Growth)
    assert ran(package / "inner.py") and ran(package / "__init__.py")


def test_a_compiled_copy_of_another_content_is_not_run(tmp_path, monkeypatch):
    """Python takes a compiled file for that of a source of the same size and time."""
    package, _ = own_module(tmp_path, monkeypatch)
    file = package / "inner.py"
    content = file.read_bytes()
    file.write_bytes(b"1 / 0".ljust(len(content), b"\n"))
    py_compile.compile(str(file), doraise=True)
    times = os.stat(file)
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ZeroDivisionError):
        __import__("own_package.inner")
    forget_module()
    assert issubclass(locate("own_package.inner:Own").read().run(), Growth)


def test_what_is_no_source_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    with open(tmp_path / "large.py", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    for name, said in (
        ("folder.py:Own", "folder.py is not a file"),
        ("pipe.py:Own", "pipe.py is not a file"),
        ("large.py:Own", "large.py is larger than 16 MiB"),
        ("none.py:Own", "none.py cannot be read: No such file or directory"),
    ):
        with pytest.raises(InputError, match=said):
            locate(f"{tmp_path}/{name}").read()


@pytest.mark.parametrize("name", ["a.py", ":Own", "a.py:", "a.py:Own.prior", "a.py:()", "\0.py:Own"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(InputError, match="names no model"):
        locate(name)


@pytest.mark.parametrize("where", ["", ".os", "json..decoder", "../json", "sys", "no_such", "json.no_such", "math"])
def test_a_module_without_a_source_is_refused(where):
    with pytest.raises(InputError, match=r"names no model|There is no Python module"):
        locate(f"{where}:Own")


# ---- the list, and the command that writes it ------------------------------------------------------------------------
def test_the_list_is_the_users_own(tmp_path, run, settings, monkeypatch):
    file, choice = own_file(tmp_path / "own.py")
    second, second_choice = own_file(tmp_path / "second.py")
    trust.add(recorded_code(choice, run))
    trust.add(recorded_code(second_choice, run))
    path = settings / "backstream" / "trusted.toml"
    assert trust.list_path() == path and path.stat().st_mode & 0o777 == 0o600
    assert find_again(choice, run) and find_again(second_choice, run) and ran(file) and ran(second)
    path.chmod(0o620)
    with pytest.raises(InputError, match="can be written by other users"):
        find_again(choice, run)
    path.chmod(0o600)
    path.write_text("[files]\nall = 3\n[more]\n")
    with pytest.raises(InputError, match=r"trusted\.toml has an unknown key 'more'"):
        find_again(choice, run)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # to be ignored, says its specification
    assert trust.list_path() == Path.home() / ".config" / "backstream" / "trusted.toml"


def written(run, choice):
    (run / "config.toml").write_text(Config(model=choice, columns=Columns(observed=("y",), inputs=("t",))).text())


def test_the_command_shows_what_would_be_run_and_asks(tmp_path, run, monkeypatch):
    file, choice = own_file(tmp_path / "own.py")
    written(run, replace(choice, parameters={"emission_scale": 2.0, "\x1b[2J": "\x1b[1A"}))
    for answer, code in (("", 1), ("n\n", 1), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        ended = here("trust", run, check=code)
        for shown in (repr(str(file)), "class       Own", "'emission_scale' = 2.0", choice.identity.source):
            assert shown in ended.stdout
        assert "\x1b" not in ended.stdout
        assert (trust.trusted(locate(choice.name)) is not None) == (code == 0)
    assert not ran(file)


def test_the_command_for_a_script(tmp_path, run):
    file, choice = own_file(tmp_path / "own.py")
    written(run, choice)
    assert str(trust.list_path()) in here("trust", run, "--yes").stderr
    assert not ran(file)
    assert find_again(choice, run) and ran(file)


def test_the_command_has_nothing_to_ask(tmp_path, run):
    """For a shipped model; and for a model that would be refused in any case."""
    written(run, find("growth", {})[1])
    assert "is built in: there is nothing to trust" in here("trust", run, "--yes").stdout
    _, choice = own_file(tmp_path / "own.py")
    for refused, said in (
        (replace(choice, identity=Identity("other", "other")), "has changed since the run was started"),
        (ModelChoice("own:Own", {"made-in": "Python"}), "was made in Python"),
    ):
        written(run, refused)
        assert said in here("trust", run, "--yes", check=2).stderr
    assert not trust.list_path().exists()

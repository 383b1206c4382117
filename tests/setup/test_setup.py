"""The set-up: the lock is installed as a complete list, and each way to fail has a sentence that says what to do.

pip and uv are the real ones, with a package index in a folder; see also `make test-setup`.
"""

import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local_index import LocalIndex
from tools import install

ROOT = Path(__file__).parents[2]
NO_ENSUREPIP = "The virtual environment was not created successfully because ensurepip is not\navailable."


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """An index in which `tool` needs `helper` with an extra, and of `helper` there are two releases; and no uv."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    index = LocalIndex(tmp_path / "index")
    index.add("tool", "1.0", "Requires-Dist: helper[fast]")
    index.add("helper", "1.0", "Provides-Extra: fast")
    index.add("helper", "2.0", "Provides-Extra: fast")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("UV_INDEX_URL", index.url)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    return index


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    environment = tmp_path_factory.mktemp("empty") / "environment"
    install.make_environment(environment)
    return environment


@pytest.fixture
def environment(empty, tmp_path):
    """A copy of an empty environment."""
    return Path(shutil.copytree(empty, tmp_path / "environment", symlinks=True))


def installed(environment):
    listed = subprocess.check_output([install.python(environment), "-m", "pip", "list", "--format=freeze"], text=True)
    return {line for line in listed.split() if not line.startswith(("pip=", "setuptools="))}


COMPLETE = {"tool==1.0", "helper==1.0", "project==1.0"}


def executable(path, output):
    """A program that prints something and fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit 1\n")
    path.chmod(0o755)
    return path


def test_a_release_behind_in_a_package_with_extras_installs(index, environment, tmp_path):
    """pip before 23.3 stops here if it resolves: it takes the newest helper[fast] and finds it not pinned."""
    install.main(environment, index.project(tmp_path / "project", "tool==1.0", "helper==1.0"))
    assert installed(environment) == COMPLETE


def test_a_lock_that_lacks_a_package_is_installed_without_resolving_and_then_refused(
    index, environment, tmp_path, capsys
):
    root = index.project(tmp_path / "project", "tool==1.0")
    with pytest.raises(install.SetupError, match=r"tool 1\.0 requires helper, which is not installed") as refused:
        install.install(environment, root)
    assert not refused.value.known
    stages = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Installing the locked packages with pip \.\.\. \d+ s", stages[0])
    assert re.fullmatch(r"Checking that nothing is missing \.\.\. failed after \d+ s", stages[-1])


def test_uv_installs_the_same(index, environment, tmp_path, monkeypatch, capsys):
    uv = Path(sys.executable).with_name("uv")
    monkeypatch.setattr(install.shutil, "which", {"uv": str(uv)}.get)
    install.main(environment, index.project(tmp_path / "project", "tool==1.0", "helper==1.0"))
    assert installed(environment) == COMPLETE
    assert re.match(r"Installing the locked packages with uv \.\.\. \d+ s\n", capsys.readouterr().out)


def test_pip_does_what_uv_could_not(index, environment, tmp_path, monkeypatch, capsys):
    uv = executable(tmp_path / "uv", "error: unexpected argument")
    monkeypatch.setattr(install.shutil, "which", {"uv": str(uv)}.get)
    install.main(environment, index.project(tmp_path / "project", "tool==1.0", "helper==1.0"))
    assert installed(environment) == COMPLETE
    assert "with uv ... failed" in capsys.readouterr().out


def test_an_environment_that_works_is_kept(index, environment, tmp_path):
    (environment / "mine").touch()
    install.main(environment, index.project(tmp_path / "project", "tool==1.0", "helper==1.0"))
    assert (environment / "mine").exists()


def lose_python(environment):
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").symlink_to("nowhere")


def lose_pip(environment):
    for folder in environment.glob("lib/*/site-packages/pip"):
        shutil.rmtree(folder)


def add_what_does_not_fit(environment):
    """A package that an earlier lock listed, with a requirement that the lock of today does not meet."""
    pip = [install.python(environment), "-m", "pip", "install", "--quiet", "--no-deps", "left"]
    subprocess.run(pip, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [lose_python, lose_pip, add_what_does_not_fit])
def test_an_environment_that_cannot_be_used_is_made_anew(index, environment, tmp_path, spoil):
    index.add("left", "1.0", "Requires-Dist: helper>=2.0")
    spoil(environment)
    (environment / "mine").touch()
    install.main(environment, index.project(tmp_path / "project", "tool==1.0", "helper==1.0"))
    assert installed(environment) == COMPLETE
    assert not (environment / "mine").exists()


def test_a_python_that_is_too_old(index, tmp_path, monkeypatch):
    monkeypatch.setattr(install, "OLDEST", (99, 1))
    with pytest.raises(install.SetupError) as refused:
        install.main(tmp_path / "environment", index.project(tmp_path / "project"))
    version = ".".join(map(str, sys.version_info[:3]))
    assert str(refused.value) == (
        f"Backstream needs Python 99.1 or newer and this is Python {version}: "
        "choose another Python, for example with `make demo PYTHON=python3.12`."
    )
    assert not (tmp_path / "environment").exists()


def refusal(environment, root):
    """What to do, in the last line, after the line of the failed command that says so."""
    with pytest.raises(install.SetupError) as refused:
        install.main(environment, root)
    assert refused.value.known
    *_, evidence, sentence = ["", *str(refused.value).splitlines()]
    return evidence, sentence


@pytest.mark.parametrize("output", [NO_ENSUREPIP, "python3: No module named venv"])
def test_a_python_without_venv(index, tmp_path, monkeypatch, output):
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python3", output)))
    evidence, sentence = refusal(tmp_path / "environment", index.project(tmp_path / "project"))
    assert evidence.strip() == output.splitlines()[0]
    assert sentence.startswith("This Python cannot make environments")
    assert f"`apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv`" in sentence


def test_no_network(index, environment, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
    monkeypatch.setenv("PIP_RETRIES", "1")
    (environment / "mine").touch()
    evidence, sentence = refusal(environment, index.project(tmp_path / "project", "tool==1.0"))
    assert "Connection refused" in evidence
    assert sentence.startswith("The package index cannot be reached: check the network")
    assert (environment / "mine").exists()


def test_no_wheel(index, environment, tmp_path):
    evidence, sentence = refusal(environment, index.project(tmp_path / "project", "absent==1.0"))
    assert evidence.strip() == "ERROR: No matching distribution found for absent==1.0"
    assert sentence.startswith("The package index has no wheel of a locked package for Python 3.")


def test_a_full_disk(index, tmp_path, monkeypatch):
    full = "OSError: [Errno 28] No space left on device"
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python3", full)))
    evidence, sentence = refusal(tmp_path / "environment", index.project(tmp_path / "project"))
    assert evidence.strip() == full
    assert sentence.startswith(f"The disk is full: free 3 GB in {tmp_path}")


def test_a_full_disk_where_the_message_is_lost(index, tmp_path, monkeypatch):
    """venv hides what ensurepip says."""
    lost = "Error: Command '['python', '-m', 'ensurepip']' returned non-zero exit status 1."
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python3", lost)))
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda folder: usage)
    _, sentence = refusal(tmp_path / "environment", index.project(tmp_path / "project"))
    assert sentence.startswith("The disk is full")


def test_what_is_not_known_is_shown(index, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python3", "first\nlast")))
    with pytest.raises(install.SetupError, match=r"(?s)^first\nlast\n.*The set-up stopped at: Making .*\.$") as refused:
        install.main(tmp_path / "environment", index.project(tmp_path / "project"))
    assert not refused.value.known


def locked():
    """The requirements in requirements.lock, each with its number of hashes."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return [(Requirement(line.split("--hash")[0]), line.count("--hash=sha256:")) for line in lines]


def test_the_lock_pins_every_direct_dependency_within_its_range():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {}
    for requirement, _ in locked():
        pins.setdefault(canonicalize_name(requirement.name), []).append(next(iter(requirement.specifier)).version)
    for wanted in map(Requirement, settings["project"]["dependencies"] + settings["dependency-groups"]["dev"]):
        versions = pins.get(canonicalize_name(wanted.name), [])
        assert versions and all(map(wanted.specifier.contains, versions)), wanted


def test_the_lock_is_pinned_with_hashes_and_names_no_index():
    for requirement, hashes in locked():
        assert [one.operator for one in requirement.specifier] == ["=="] and hashes, requirement
    assert not re.search(r"://|^\s*--(?!hash)|^-", (ROOT / "requirements.lock").read_text(), re.MULTILINE)

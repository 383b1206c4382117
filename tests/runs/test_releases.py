"""Runs of each release since formats have numbers are opened by this version."""

import shutil
from pathlib import Path

import jax
import pytest

from backstream.engine.run import Run
from backstream.runs.formats import FORMAT_VERSION

RELEASES = sorted(Path(__file__).parent.glob("release_*_*_*"))


@pytest.mark.parametrize("kind", ["single", "fleet"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_run_of_a_release_is_opened(release, kind, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(release / kind, path)
    with jax.enable_x64(False):  # they are in float32
        run = Run(path)
        learned = run.learned
    table = run.filtered.table
    assert table["row"].to_pylist() == list(range(24)) and table["time"][23].as_py() == "23"
    assert run.reports and run.rejected == [] and run.config.format_version == FORMAT_VERSION
    assert learned.position == 24 and run.warnings == []
    assert kind == "single" or run.streams() == ["a", "b"]

"""Run directories, without a learner: what is committed stays, what is not is dropped, and one process writes."""

import json
import math
import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstream.errors import InputError, RunError
from backstream.learning import Parameter, Report, Settings
from backstream.runs import results, store
from backstream.runs.checkpoints import Checkpoints
from backstream.runs.config import Config
from backstream.runs.logs import encode_report
from backstream.runs.store import RunWriter, open_config, read_filtered, read_reports
from backstream.runs.tables import write_table
from backstream.settings import Saving

CONFIG = Config(learning=Settings(), saving=Saving(checkpoint_every=10, keep=2))


def report(t):
    return Report(t, -1.0, -1.1, 0.01, -1.2, float("nan"), 0.5, 0.0, ("careful",))


def rows(first, last):
    return pa.table({"row": np.arange(first, last), "mean_0": np.arange(first, last) / 7})


def write(writer, positions, start=0):
    """Commits at the given positions, each of which ends a part or lies inside one."""
    for position in positions:
        writer.add(rows(start, position), [report(position)])
        writer.commit(position, {"sum": np.asarray(float(position))}, {"time": None})
        start = position


def reopened(path):
    writer = RunWriter(path, CONFIG)
    warnings = []
    checkpoint = writer.resume(lambda record: {"sum": np.zeros(())}, warnings.append)
    return writer, checkpoint, warnings


def assert_same_files(one, other):
    for name in ("filtered", "."):
        files = [sorted(file.name for file in (path / name).iterdir() if file.is_file()) for path in (one, other)]
        assert files[0] == files[1]
        for file in files[0]:
            assert (one / name / file).read_bytes() == (other / name / file).read_bytes(), file


def test_stopping_inside_a_part_changes_no_byte(tmp_path):
    """At 10, 20, 25; against a stop at 4, one at 7, one at 20 and one lost between the part and the checkpoint."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    writer = RunWriter(whole, CONFIG)
    writer.resume(dict, print)
    for start, position in ((0, 10), (10, 20), (20, 25)):
        writer.add(rows(start, position), [report(t) for t in (4, 7, 10, 20, 23, 25) if start < t <= position])
        writer.commit(position, {"sum": np.asarray(float(position))}, {"time": None})
    writer.close()

    position = 0
    for stops in ((4,), (7,), (10, 20), (23,), (25,)):
        writer, checkpoint, warnings = reopened(pieces)
        assert (checkpoint.position if checkpoint else 0) == position and not warnings
        write(writer, stops, position)
        writer.close()
        position = stops[-1]
        # Killed after more had been written, before it counted.
        (pieces / "filtered" / "000000000030.parquet").write_bytes(b"half a part")
        (pieces / "filtered" / ".incoming-000000000030.parquet").write_bytes(b"half")
        with open(pieces / "metrics.jsonl", "ab") as file:
            file.write(b'{"version": "0.2.0", "t": 99')
    writer, checkpoint, _ = reopened(pieces)
    writer.close()
    assert checkpoint.position == 25 and float(checkpoint.tree["sum"]) == 25
    assert_same_files(whole, pieces)
    assert read_filtered(pieces)["row"].to_pylist() == list(range(25))
    assert [found.t for found in read_reports(pieces)] == [4, 7, 10, 20, 23, 25]
    assert read_reports(pieces)[0].warnings == ("careful",) and np.isnan(read_reports(pieces)[0].ess)


def test_going_back_to_the_checkpoint_before_drops_what_came_after(tmp_path):
    writer = RunWriter(tmp_path, CONFIG)
    write(writer, (10, 13, 20))
    writer.close()
    (tmp_path / "checkpoints" / "000000000020" / "SHA256SUMS").write_text("nonsense")
    writer, checkpoint, (warning,) = reopened(tmp_path)
    assert checkpoint.position == 13 and "000000000020 is damaged" in warning
    assert read_filtered(tmp_path)["row"].to_pylist() == list(range(13))
    assert [found.t for found in read_reports(tmp_path)] == [10, 13]
    write(writer, (20,), 13)
    writer.close()
    assert read_filtered(tmp_path)["row"].to_pylist() == list(range(20))


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path):
    """It fits in shape, and was moved here by hand; so does one that says nothing of where it is from."""
    for name, seed in (("one", 1), ("other", 2)):
        config = replace(CONFIG, learning=replace(CONFIG.learning, seed=seed))
        writer = RunWriter(tmp_path / name, config)
        write(writer, (10,))
        writer.close()
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "one" / "checkpoints")
    writer = RunWriter(tmp_path / "one", replace(CONFIG, learning=replace(CONFIG.learning, seed=1)))
    with pytest.raises(InputError, match=r"A checkpoint in .*one/checkpoints was made with learning\.seed = 2, not 1"):
        writer.resume(lambda record: {"sum": np.zeros(())}, print)
    Checkpoints(tmp_path / "one" / "checkpoints").save(20, {"sum": np.zeros(())}, {})
    with pytest.raises(InputError, match="does not say which run it belongs to"):
        writer.resume(lambda record: {"sum": np.zeros(())}, print)
    assert read_filtered(tmp_path / "one")["row"].to_pylist() == list(range(10))
    writer.close()


def test_a_run_is_written_where_it_is(tmp_path):
    """Links in a run directory lead to no file that is written, emptied or removed."""
    writer = RunWriter(tmp_path / "run", CONFIG)
    write(writer, (10,))
    writer.close()
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "000000000099.parquet").write_text("mine")
    (mine / "sub" / "notes").write_text("mine")
    for link, target in (
        (tmp_path / "run" / ".incoming-config.toml", mine / "sub"),
        (tmp_path / "run" / ".incoming-metrics.jsonl", mine / "000000000099.parquet"),
        (tmp_path / "run" / "filtered" / "000000000050.parquet", mine / "000000000099.parquet"),
    ):
        link.symlink_to(target)
    reopened(tmp_path / "run")[0].close()
    atomic_link = tmp_path / ".incoming-table.csv"
    atomic_link.symlink_to(mine / "000000000099.parquet")
    write_table(rows(0, 3), tmp_path / "table.csv", "")
    assert not atomic_link.exists() and (tmp_path / "table.csv").read_text().startswith('"row"')
    for name in ("filtered", "checkpoints", "lock", "metrics.jsonl"):
        kept = (tmp_path / "run" / name).rename(tmp_path / "kept")
        (tmp_path / "run" / name).symlink_to(mine)
        with pytest.raises(InputError, match=f"run/{name} is a link"):
            RunWriter(tmp_path / "run", CONFIG)
        (tmp_path / "run" / name).unlink()
        kept.rename(tmp_path / "run" / name)
    assert (mine / "000000000099.parquet").read_text() == (mine / "sub" / "notes").read_text() == "mine"


def test_what_others_put_into_a_run_is_passed_over(tmp_path):
    """A table beside the parts, and reports that are of another shape: they are no results, and no reason to stop."""
    writer = RunWriter(tmp_path, CONFIG)
    write(writer, (10,))
    writer.close()
    good = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "filtered" / "copy.parquet").write_bytes(b"mine")
    bad = [{"t": "10"}, {"t": 1.5}, {"t": True}, {"t": None}, {"elbo": "-1"}, {"warnings": [3]}, {"row": "x"}]
    lines = [json.dumps(json.loads(good) | change).encode() for change in bad]
    odd = [b"[1]", b"3", b"null", b"[" * 100_000]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines + odd) + b"\n" + good)
    assert [found.t for found in read_reports(tmp_path)] == [10]
    reopened(tmp_path)[0].close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == good
    assert read_filtered(tmp_path)["row"].to_pylist() == list(range(10))
    assert (tmp_path / "filtered" / "copy.parquet").read_bytes() == b"mine"


def test_one_process_writes(tmp_path):
    writer = RunWriter(tmp_path, CONFIG)
    with pytest.raises(InputError, match="is being written by another process"):
        RunWriter(tmp_path, CONFIG)
    writer.close()
    RunWriter(tmp_path, CONFIG).close()


def test_results_that_are_missing_or_damaged_are_named(tmp_path):
    writer = RunWriter(tmp_path, CONFIG)
    with pytest.raises(InputError, match="holds no results yet"):
        read_filtered(tmp_path)
    write(writer, (10, 15))
    writer.close()
    (tmp_path / "filtered" / "000000000010.parquet").unlink()
    writer, checkpoint, (warning,) = reopened(tmp_path)  # the rows in between come again
    writer.close()
    assert checkpoint.position == 10 and "000000000010.parquet cannot be read" in warning
    (tmp_path / "filtered" / "000000000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match="cannot be read"):
        read_filtered(tmp_path)


def test_no_row_is_lost_where_it_does_not_come_again(tmp_path):
    """A changed byte of the newest checkpoint, or of the results that it goes on with, where rows come from a pipe."""
    writer = RunWriter(tmp_path, CONFIG)
    write(writer, (10, 15))
    writer.close()
    part = tmp_path / "filtered" / "000000000010.parquet"
    right = part.read_bytes()
    table = pq.read_table(part)
    pq.write_table(table.set_column(1, "mean_0", pa.array([0.0] * len(table))), part)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    writer = RunWriter(tmp_path, CONFIG)
    with pytest.raises(RunError, match=r"000000000015 is damaged, and the rows from 11 to 15 would be lost"):
        writer.resume(lambda record: {"sum": np.zeros(())}, print, may_go_back=False)
    writer.close()
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    part.write_bytes(right)
    writer, checkpoint, warnings = reopened(tmp_path)
    writer.close()
    assert checkpoint.position == 15 and not warnings


def test_any_changed_byte_of_results_is_named_or_does_not_matter(tmp_path):
    """Names of columns, texts and numbers: what is read is what was written, or a RunError."""
    labels = pa.array([None if i % 3 == 0 else f"t{i}é" for i in range(10)])
    table = pa.table({"row": np.arange(10), "time": labels, "mean_0": np.arange(10) / 7})
    writer = RunWriter(tmp_path, CONFIG)
    writer.add(table, [])
    writer.commit(10, {"sum": np.zeros(())}, {"time": None})
    writer.close()
    part = tmp_path / "filtered" / "000000000000.parquet"
    right, named = part.read_bytes(), 0
    rng = np.random.default_rng(0)
    for place in rng.integers(len(right), size=100):
        wrong = bytearray(right)
        wrong[place] ^= 1 << rng.integers(8)
        part.write_bytes(wrong)
        try:
            found = read_filtered(tmp_path)
            found.column_names, found.to_pylist()  # what a command looks at
        except RunError:
            named += 1
    assert named > 25


def test_a_damaged_part_that_is_full_does_not_stop_the_run(tmp_path, monkeypatch):
    """It stays as it is, for a backup to be put in its place, and is named when it is read."""
    monkeypatch.setattr(results, "MERGED", 2)
    writer = RunWriter(tmp_path, CONFIG)
    write(writer, (10, 20, 30))
    (tmp_path / "filtered" / "000000000010.parquet").write_bytes(b"PAR1")
    write(writer, (40, 50, 60, 70), 30)
    writer.close()
    with pytest.raises(RunError, match=r"000000000010\.parquet cannot be read"):
        read_filtered(tmp_path)
    found = sorted(int(part.stem) for part in (tmp_path / "filtered").iterdir())
    assert found == [0, 10, 20, 40, 50, 60]  # 20 and 30 were merged


@pytest.mark.parametrize("length", [15, 64])
def test_a_damaged_part_does_not_take_others_with_it(tmp_path, monkeypatch, length):
    """A part that says it has more rows than it can have is not one that others were merged into."""
    monkeypatch.setattr(results, "MERGED", 2)
    writer = RunWriter(tmp_path, CONFIG)
    write(writer, (10, 20, 25))
    writer.close()
    pq.write_table(rows(0, length), tmp_path / "filtered" / "000000000000.parquet")
    reopened(tmp_path)[0].close()
    found = sorted(int(part.stem) for part in (tmp_path / "filtered").iterdir())
    assert found == [0, 10, 20]


def test_who_looks_before_another_has_begun_writes_nothing(tmp_path):
    """Two processes find no run; one is quick and has ended when the other gets the lock."""
    store.check_directory(tmp_path / "run", resume=False)
    writer = RunWriter(tmp_path / "run", CONFIG, resume=False)
    write(writer, (10,))
    writer.close()
    with pytest.raises(InputError, match="already holds a run"):
        RunWriter(tmp_path / "run", CONFIG, resume=False)
    assert read_filtered(tmp_path / "run")["row"].to_pylist() == list(range(10))


@pytest.mark.parametrize(("keep", "first"), [("", 0), ("25", 20), ("1h", 20), ("3 kB", None), ("1 kB", 40)])
def test_old_results_are_removed_by_rows_age_or_size(tmp_path, keep, first):
    """Parts of 10 rows, of some 1.1 kB each; those before row 20 are two hours old. What stays is at least what was
    asked for, the newest part in any case, and reports go with the rows."""
    config = replace(CONFIG, saving=replace(CONFIG.saving, keep_results=keep))
    writer = RunWriter(tmp_path, config)
    write(writer, (10, 20, 30, 40))
    if keep in ("", "1h"):
        for part in (0, 10):
            os.utime(tmp_path / "filtered" / f"{part:012d}.parquet", (time.time() - 7200,) * 2)
    write(writer, (50,), 40)
    writer.close()
    kept = read_filtered(tmp_path)["row"].to_pylist()
    sizes = [part.stat().st_size for part in sorted((tmp_path / "filtered").iterdir())]
    assert kept[-1] == 49 and kept[0] == first if first is not None else sum(sizes) >= 3000 > sum(sizes[1:])
    reports = [found.t for found in read_reports(tmp_path)]
    assert reports[-1] == 50 and (keep in ("", "25") or reports[0] == kept[0] + 10)


@pytest.mark.parametrize("keep", ["-1", "7 weeks", "1e5", "MB", "9" * 30])
def test_an_odd_retention_is_named(keep):
    with pytest.raises(ValueError, match=r"keep_results: .* is not a number of rows"):
        Saving(keep_results=keep)


def test_a_directory_of_another_kind_or_version_is_named(tmp_path):
    with pytest.raises(InputError, match="There is no run directory"):
        open_config(tmp_path / "none")
    with pytest.raises(InputError, match=r"is not a run directory: it has no config\.toml"):
        open_config(tmp_path)
    RunWriter(tmp_path, CONFIG).close()
    assert open_config(tmp_path) == CONFIG
    config = tmp_path / "config.toml"
    written = config.read_text()
    config.write_text(written.replace('\nversion = "0.2.0"', '\nversion = "7.0"'))
    assert open_config(tmp_path).version == "7.0"  # of the same format: opened
    config.write_text(written.replace("format_version = 1", "format_version = 99"))
    with pytest.raises(InputError, match=r"by backstream 0\.2\.0 in format 99; .* reads formats up to 1"):
        open_config(tmp_path)
    config.write_text(written.replace("format_version = 1", "").replace('"0.2.0"', '"0.1.0"'))
    with pytest.raises(InputError, match=r"by backstream 0\.1\.0 in an older format"):
        open_config(tmp_path)


def test_reports_keep_the_parameters(tmp_path):
    """Values and standard errors come back as they were; one that is not known yet is null in the file."""
    known = report(500)._replace(parameters={"phi": Parameter(0.9, 0.01), "A[0,1]": Parameter(-1.5, float("nan"))})
    line = encode_report(known)
    assert json.loads(line)["parameters"] == {"phi": [0.9, 0.01], "A[0,1]": [-1.5, None]}
    (tmp_path / "metrics.jsonl").write_bytes(line + line.replace(b"0.01]", b'"x"]'))
    (read,) = store.read_reports(tmp_path)
    assert read.parameters is not None
    assert read.parameters["phi"] == (0.9, 0.01)
    assert math.isnan(read.parameters["A[0,1]"].error)

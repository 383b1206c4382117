"""The command and the script for spark-submit, in processes of their own, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_fleet import NAMES, ROWS, between, write

ROOT = Path(__file__).parents[2]
SMALL = "--master local[1] --driver-memory 700m --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=1"


def run(spark, *command):
    """`spark` is there to skip, where it cannot be."""
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": f"{SMALL} pyspark-shell"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_the_command_filters_a_fleet_and_says_what_it_could_not_read(spark, tmp_path):
    write(tmp_path / "in", 0, [*between(0, 2), "{"])
    start = "import sys; from backstream._command import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "spark", "stochastic-volatility", str(tmp_path / "in")]
    options = ["--key", "sensor_id", "--time", "at", "--share", "none", "--format", "json", "--buckets", "1"]
    schema = ["--schema", "sensor_id string, at int, y double", "--columns", "y", "--out", str(tmp_path / "out")]
    said = run(spark, *command, *options, *schema)
    assert f"Results are in {tmp_path / 'out'}/results." in said
    found = spark.read.parquet(str(tmp_path / "out" / "results")).toPandas()
    assert len(found) == 2 * len(NAMES) + 1
    assert list(found[found.verdict == "rejected"].reason) == ["The row is of another schema."]
    assert set(found[found.verdict == "ok"].sensor_id) == set(NAMES)


@pytest.mark.slow
def test_the_script_for_spark_submit_reads_times_and_files(spark, tmp_path):
    rows = [
        {"sensor_id": row["sensor_id"], "at": f"2026-01-01T00:00:{row['at']:02d}", "y0": row["y"], "y1": -row["y"]}
        for row in between(0, ROWS)
    ]
    write(tmp_path / "in", 0, rows)
    script = [sys.executable, "examples/spark_fleet.py", "--files", str(tmp_path / "in"), "--once"]
    run(spark, *script, "--out", str(tmp_path / "out"))
    found = spark.read.parquet(str(tmp_path / "out" / "results")).toPandas().sort_values(["sensor_id", "at"])
    assert list(found.t) == len(NAMES) * list(range(1, ROWS + 1))
    assert [time.second for time in found["at"]] == len(NAMES) * list(range(ROWS))

"""A small Spark on one core, for all tests of this folder; they are skipped where there is no Java or no pyspark."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backstream.engine.spark import SETTINGS


def java_version() -> int:
    """0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return 0
    found = re.search(r'version "(\d+)', subprocess.run([java, "-version"], capture_output=True, text=True).stderr)
    return int(found.group(1)) if found else 0


@pytest.fixture(scope="session")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed: make test-spark installs it.")
    if java_version() < 17:
        pytest.skip("Java 17 or newer is not installed: fleets on Spark need it.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[2] / ".pytest_cache" / "jax")
    builder = sql.SparkSession.builder.master("local[1]").appName("backstream tests")
    small = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**SETTINGS, **small}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

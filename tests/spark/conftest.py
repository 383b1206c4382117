"""A small Spark on one core, for all tests of this folder; they are skipped where there is no Java or no pyspark."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from backstream.engine.spark import SETTINGS


@pytest.fixture(scope="session")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed: make test-spark installs it.")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is not installed: fleets on Spark need Java 17.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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

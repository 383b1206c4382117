"""Makes the environment of `make test-spark`: python3 tools/install_spark.py .venv-spark .venv

It has what requirements-spark.lock pins, and sees all that the second environment has. pyspark is a source
distribution, without code to compile.
"""

import sys
from pathlib import Path

from install import ROOT, SetupError, make_environment, python, stage


def main(environment: Path, base: Path) -> None:
    make_environment(environment)
    seen = next(base.resolve().glob("lib/python*/site-packages"))
    own = next(environment.resolve().glob("lib/python*/site-packages"))
    (own / "base.pth").write_text(f"import site; site.addsitedir({str(seen)!r})\n")
    pip = [python(environment), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes"]
    stage("Installing Spark", [*pip, "--requirement", str(ROOT / "requirements-spark.lock")], environment)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except SetupError as error:
        sys.exit(str(error))

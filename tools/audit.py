"""Looks the locked packages up among known vulnerabilities: make audit

Uses pip-audit where it is installed and its data can be reached, and says so where it is not. Exits with 1 if one of
the packages is known to be vulnerable.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
SECONDS = 600
UNREACHABLE = ("ConnectionError", "Max retries", "Name or service not known", "timed out", "ServiceError", "ProxyError")


def main() -> int:
    if importlib.util.find_spec("pip_audit") is None:
        print("Skipped: pip-audit is not installed; `.venv/bin/pip install pip-audit` where there is a network.")
        return 0
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"Skipped: the data of pip-audit did not come within {SECONDS} s.")
        return 0
    if ended.returncode and any(sign in ended.stderr for sign in UNREACHABLE):
        print(f"Skipped: the data of pip-audit cannot be reached ({ended.stderr.strip().splitlines()[-1]}).")
        return 0
    print(ended.stdout + ended.stderr, end="")
    return 1 if ended.returncode else 0


if __name__ == "__main__":
    sys.exit(main())

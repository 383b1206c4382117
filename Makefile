# Needs python3 (3.11 or newer) and make. Everything else is installed into .venv.

PYTHON  ?= python3
WORKERS ?= 2
# More arguments for pytest: make test ARGS="-k gaussian"
ARGS    ?=
# Arguments for the lock: make lock LOCK_ARGS=--upgrade
LOCK_ARGS ?=

VENV      := .venv
BIN       := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench soak audit lock clean

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED)  ## learn online from a simulated stream; ends with a table and a picture
	$(BIN)/backstream demo

test: $(INSTALLED)  ## run the tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(INSTALLED)  ## check style, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports --no-logo

docs: $(INSTALLED)  ## build the site into site/; a broken link or a missing name is an error
	$(BIN)/zensical build --clean --strict

bench: $(INSTALLED)  ## time a step against its limit, other estimators and its sizes; ends with a table and a picture
	$(BIN)/backstream bench

soak: $(INSTALLED)  ## kill, starve, mislead and fuzz it, and let it run for millions of rows; an hour or two
	for soak in crashes hostile_data fuzz_readers long_streams; do $(BIN)/python -m experiments.$$soak || exit 1; done
	SOAK_EXAMPLES=200 $(BIN)/python -m pytest tests/test_reliability.py -k configuration
	$(BIN)/python -m experiments.report

audit: $(INSTALLED)  ## look the locked packages up among known vulnerabilities, where that can be reached
	$(BIN)/python tools/audit.py

lock: $(INSTALLED)  ## recompile requirements.lock from pyproject.toml
	$(BIN)/uv --no-config pip compile pyproject.toml --group dev --universal --python-version 3.11 \
		--generate-hashes --custom-compile-command "make lock" --quiet \
		--output-file requirements.lock $(LOCK_ARGS)

clean:  ## remove caches and build output; .venv stays
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# A .venv that works is kept. One that is missing, broken or too old is made anew.
$(INSTALLED): requirements.lock pyproject.toml
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed." if sys.version_info < (3, 11) else 0)' \
		&& $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

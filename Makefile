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
SPARK     := .venv-spark
LOCKED    := --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock" --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-setup test-spark mutants lint docs bench soak soak-spark audit lock clean

help:  ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED)  ## learn online from a simulated stream; ends with a table and a picture
	$(BIN)/backstream demo

test: $(INSTALLED)  ## run the tests, without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(ARGS)

test-slow: $(INSTALLED)  ## run the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(ARGS)

test-all: $(INSTALLED)  ## run all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-setup: $(INSTALLED)  ## install on every Python that is found, from the lock and as a package; minutes, less if little has changed
	$(BIN)/python -m tools.check_setup

test-spark: $(SPARK)/.installed  ## run the tests of fleets on Spark; needs Java 17, and installs pyspark into .venv-spark
	PYSPARK_PYTHON=$(abspath $(SPARK))/bin/python $(SPARK)/bin/python -m pytest tests/spark $(ARGS)

lint: $(INSTALLED)  ## check style, format, types, the direction of imports and the sizes of files and functions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.check_sizes

mutants: $(INSTALLED)  ## make small errors in the package one by one, and report how many the tests notice; an hour
	$(BIN)/python -m tools.mutants

docs: $(INSTALLED)  ## build the site into site/; a broken link or a missing name is an error
	$(BIN)/zensical build --clean --strict

bench: $(INSTALLED)  ## time a step against its limit, other estimators and its sizes; ends with a table and a picture
	$(BIN)/backstream bench

soak: $(INSTALLED)  ## kill, starve, mislead and fuzz it, and let it run for millions of rows; an hour or two
	for soak in crashes hostile_data fuzz_readers state_machine memory long_streams; do $(BIN)/python -m tests.soak.$$soak || exit 1; done
	SOAK_EXAMPLES=200 $(BIN)/python -m pytest tests/engine/test_reliability.py -k configuration
	@if command -v java > /dev/null; then $(MAKE) soak-spark; else echo "Java is not installed: no soak of fleets on Spark."; fi
	$(BIN)/python -m tests.soak.report

soak-spark: $(SPARK)/.installed  ## kill executors, workers and drivers of a fleet on Spark; an hour
	PYSPARK_PYTHON=$(abspath $(SPARK))/bin/python $(SPARK)/bin/python -m tests.soak.spark_kills

audit: $(INSTALLED)  ## look the locked packages up among known vulnerabilities, where that can be reached
	$(BIN)/python tools/audit.py

lock: $(INSTALLED)  ## recompile requirements.lock and requirements-spark.lock from pyproject.toml
	$(BIN)/uv --no-config pip compile pyproject.toml --extra all --group dev $(LOCKED) \
		--output-file requirements.lock $(LOCK_ARGS)
	$(BIN)/uv --no-config pip compile --group spark $(LOCKED) \
		--output-file requirements-spark.lock $(LOCK_ARGS)

clean:  ## remove caches and build output; .venv stays
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# Without a Python, .venv is not installed, whatever the date of the mark in it.
ifneq ($(shell test -x $(BIN)/python && echo yes),yes)
.PHONY: $(INSTALLED)
endif

$(SPARK)/.installed: requirements-spark.lock $(INSTALLED)
	@$(BIN)/python tools/install_spark.py $(SPARK) $(VENV)
	@touch $@

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) tools/install.py $(VENV)
	@touch $@

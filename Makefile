# Everything below needs Python >= 3.11, make and a network that reaches a package index; the environment is made by the first target that needs it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One BLAS thread in each process: tests run in several at once, and ranks thread by blocks themselves.
export OMP_NUM_THREADS ?= 1
TEST_PROCESSES ?= 2

.PHONY: help env check test soak bench demo clean

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

env: $(VENV)/.installed  ## make the environment and install the project with its development tools

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[dev]'
	touch $@

check: env  ## format, lint, strict types, import rules, fast tests (under two minutes)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile -m 'not slow and not soak'

test: env  ## every test but the soaks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile -m 'not soak'

soak: env  ## the long histories and the largest races
	$(BIN)/pytest -n $(TEST_PROCESSES) -m soak

bench: env  ## ratios against peers, written to tests/benchmarks/results
	$(BIN)/python -m tests.benchmarks

demo: env  ## train, evaluate and publish four models on the sample data
	$(BIN)/python data_samples/demo.py

clean:  ## remove the environment; runs and models stay in mutirao-data
	rm -rf $(VENV)

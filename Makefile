# Needs make and Python 3.11 or newer. Everything is installed into VENV, nothing outside it is touched.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv demo test slow lint types floors check format guarantees bench clean

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

venv: $(VENV)/.with-dev ## make the virtual environment for development

demo: $(VENV)/.with-paddle ## train, kill, and resume a small language model on other numbers of processes
	@$(BIN)/python examples/llama_tp/run_demo.py

test: $(VENV)/.with-dev ## all tests but the slow ones
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

slow: $(VENV)/.with-dev ## the slow tests
	@$(BIN)/python -m pytest -m slow

lint: $(VENV)/.with-dev ## style
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check .

types: $(VENV)/.with-dev ## static types
	@$(BIN)/mypy

floors: $(VENV)/.with-dev ## which module may import which
	@$(BIN)/lint-imports --no-cache --no-logo

check: lint types floors test ## all that CI does

format: $(VENV)/.with-dev ## bring the code into the common style
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

guarantees: ## list the tests that prove each promise in docs/guarantees.md
	@$(PYTHON) tests/docs/test_guarantees.py

bench: $(VENV)/.with-bench ## compare with other checkpoint libraries on this machine
	@$(BIN)/python -m benchmarks

clean: ## remove what the other targets made
	@rm -rf $(VENV) build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra; it is older than pyproject.toml when the dependencies may have changed.
$(VENV)/.with-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing flexstore[$*] into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[$*]'
	@touch $@

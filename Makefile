# Everything installs into .venv.
# Commands: setup, lab, train, test (types and pytest), selftest, faults, mutants, notebooks, bench, clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: setup lab train test types pytest selftest faults mutants gpu bench notebooks clean

setup: $(VENV)/.complete

# Written last, so an install that was interrupted is begun again.
$(VENV)/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version) found; Python 3.11 or newer is needed. Run: make setup PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[notebooks,dev]'
	touch $@

lab: setup
	@# From the project's folder, so that the notebooks' links to the modules lead somewhere.
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ARGS)

train: setup
	$(BIN)/python scripts/demo.py $(ARGS)

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/sync_notebooks.py check
	@# Beside the tests, which leave a core idle now and then.
	$(MAKE) --no-print-directory -j2 types pytest

types: setup
	$(BIN)/mypy

# A class's tests by one worker: they share its fixtures. What takes longest comes first.
# The drills' own notebooks run in tests/test_notebooks_drills.py, all in one process.
pytest: setup
	REHEARSAL_HOME=$$(mktemp -d) OMP_NUM_THREADS=1 FAST=1 $(BIN)/pytest --nbmake \
	  notebooks/*.ipynb tests/test_watchdog.py tests/test_*.py \
	  -n 2 --dist loadscope --no-loadscope-reorder --durations 15

# Each text of each drill, judged by its grader: minutes. make test judges two of each drill.
selftest: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m rehearsal selftest $(ARGS)

# The whole matrix takes tens of minutes; ARGS=--quick a few tries of each fault.
faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python scripts/faults.py $(ARGS)

# The tests on broken trainers: about an hour.
mutants: setup
	$(BIN)/python scripts/mutate.py $(ARGS)

# On a GPU node, with a torch built for CUDA; exits with 2 where there is no GPU.
gpu: setup
	$(BIN)/python scripts/check_gpu.py $(ARGS)

notebooks: setup
	$(BIN)/python scripts/sync_notebooks.py build

bench: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench.py $(ARGS)

clean:
	rm -rf $(VENV)

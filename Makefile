# Everything installs into .venv.
# Commands: setup, lab, train, check, test, browser, selftest, answers, faults, mutants, gpu, notebooks, book, book-check, bench, clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: setup lab train check test texts types unmarked pytest browser selftest answers faults mutants gpu bench notebooks book book-check clean

setup: $(VENV)/.complete

# Written last, so an interrupted install starts over.
$(VENV)/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version) found; Python 3.11 or newer is needed. Run: make setup PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[notebooks,bio,dev]'
	touch $@

lab: setup
	@# Copies the notebooks to work/, so that typing never changes the repository.
	$(BIN)/python scripts/work_folder.py
	@# From the project's folder, so that the notebooks' links to the modules work. Root is
	@# allowed: in a container, people are root.
	$(BIN)/jupyter lab --allow-root --LabApp.default_url=/lab/tree/work/00_start_here.ipynb $(ARGS)

train: setup
	$(BIN)/python scripts/demo.py $(ARGS)

# For every change: everything but the tests that start processes. 90 seconds on two cores.
check: texts
	@# In parallel: they fill two cores together.
	$(MAKE) --no-print-directory -j2 types unmarked

# For every merge: what check does, and the tests that start processes. 15 to 30 minutes on two
# cores, depending on what else they do.
test: texts
	@# In parallel: the tests leave a core idle now and then.
	$(MAKE) --no-print-directory -j2 types pytest

texts: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/sync_notebooks.py check

types: setup
	$(BIN)/mypy

unmarked: setup
	REHEARSAL_HOME=$$(mktemp -d) OMP_NUM_THREADS=1 $(BIN)/pytest -m "not ranks" tests \
	  -n 2 --dist loadscope --durations 5

# One worker runs all tests of a class, because they share its fixtures. The slowest come first.
# Three workers for two cores: they spend a third of their time waiting for ranks, not for a core.
# The drills' notebooks run in tests/test_notebooks_drills.py, all in one process.
pytest: setup
	REHEARSAL_HOME=$$(mktemp -d) OMP_NUM_THREADS=1 FAST=1 $(BIN)/pytest --nbmake \
	  notebooks/*.ipynb tests/test_watchdog.py tests/test_*.py \
	  -n 3 --dist loadscope --no-loadscope-reorder --durations 15

# JupyterLab as a person sees it, in the system's Chromium; without one it says so and skips.
browser: setup
	REHEARSAL_HOME=$$(mktemp -d) OMP_NUM_THREADS=1 $(BIN)/pytest tests/browser -n 2

# Grades every text of every drill, which takes minutes. make test grades three per drill.
selftest: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m rehearsal selftest $(ARGS)

# Breaks every right answer mechanically, and has the graders judge the result: two hours on
# two cores or more; an interrupted run continues. ARGS="--sample 100" takes minutes.
answers: setup
	$(BIN)/python -m rehearsal mutants $(ARGS)

# The whole matrix takes more than half an hour; ARGS=--quick tries a few of each fault in 2 minutes.
faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python scripts/faults.py $(ARGS)

# Runs the tests on almost two hundred broken trainers, one at a time: 40 minutes on two cores.
mutants: setup
	$(BIN)/python scripts/mutate.py $(ARGS)

# For a GPU node, with a torch built for CUDA. Without a GPU it says so and exits with 2.
gpu: setup
	$(BIN)/python scripts/check_gpu.py $(ARGS)

notebooks: setup
	$(BIN)/python scripts/sync_notebooks.py build

# build/book/index.html: every chapter is run, and every page rendered. 3 minutes on two cores from
# scratch; 12 seconds if nothing changed. ARGS=--clean starts from scratch.
book: $(VENV)/.book
	$(BIN)/python scripts/book.py $(ARGS)

# Links, anchors, accessibility, a phone, the printed sheet: of the book as make book left it.
book-check: $(VENV)/.book
	$(BIN)/pytest tests/book -n 2

$(VENV)/.book: $(VENV)/.complete
	$(BIN)/pip install --quiet -c constraints.txt -e '.[book]'
	touch $@

bench: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench.py $(ARGS)

clean:
	rm -rf $(VENV)

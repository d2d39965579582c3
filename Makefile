# make demo    the whole pipeline on real text, from installation to report
# make test    every test
# make test-fast   the tests that need no training, export or processes, for work in progress
# make check   what CI runs: lint, types, generated docs, tests
# make docs    the command reference, from the help of the commands
# make ci-study   the small study that CI holds to budgets
# make bench   how fast texts are labelled, beside transformers' own pipeline
#
# The environment is .venv, made once. Another interpreter: make test PYTHON=python3.12
# PyTorch's CPU wheels on Linux: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
STUDY_OUTPUT ?= runs/quickstart

BIN := $(VENV)/bin
QUICKSTART := $(VENV)/.installed-quickstart
DEVELOPMENT := $(VENV)/.installed-development

.PHONY: demo ci-study test test-fast check lint types docs docs-check bench venv

demo: $(QUICKSTART)
	$(BIN)/compress run quickstart -o $(STUDY_OUTPUT)

ci-study: $(QUICKSTART)
	$(BIN)/compress run ci -o runs/ci

# Each worker computes on one thread, so that workers do not fight over the cores. In the order of tests/conftest.py: by
# itself pytest-xdist takes the files of fewest tests last, among them the longest one.
test: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGUMENTS)

test-fast: PYTEST_ARGUMENTS += -m fast
test-fast: test

check: lint types docs-check test

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEVELOPMENT)
	$(BIN)/mypy

docs: $(DEVELOPMENT)
	$(BIN)/python docs/generate.py

docs-check: $(DEVELOPMENT)
	$(BIN)/python docs/generate.py --check

# On the quickstart's teacher and text unless told otherwise.
bench: TEACHER ?= $(STUDY_OUTPUT)/teacher
bench: UNLABELED ?= $(STUDY_OUTPUT)/corpora/docstrings/unlabeled.txt
bench: demo
	$(BIN)/python benchmarks/speed/label_throughput.py --teacher $(TEACHER) --unlabeled $(UNLABELED) $(BENCH_ARGUMENTS)

venv: $(DEVELOPMENT)

# pip compiles one file after another, for half of its time; on all cores that is faster. A file that does not compile,
# such as a template, is left as it is, as by pip.
define INSTALL
$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
endef

# The stamp is written last: an installation that was stopped is done again, a finished one is not.
$(QUICKSTART): EXTRAS := quickstart
$(QUICKSTART): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL)
	touch $@

$(DEVELOPMENT): EXTRAS := development,quickstart
$(DEVELOPMENT): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL)
	touch $(QUICKSTART) $@

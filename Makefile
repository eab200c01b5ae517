# `make` alone prints the targets. Nothing here needs more than Python, pip and make;
# the type checker also wants Node.js (see README).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
SEED   ?= 1
PROMPT ?= List the files in this folder.

# pip reads the lock as it stands: every file is pinned and checked against its hash.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --no-warn-script-location

COMPILE := $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
	--build-deps-for editable --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

.DEFAULT_GOAL := help
.PHONY: help run setup browser fmt lint types layers house check test deep sim hooks bench docs lock ci clean

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

run: $(VENV)/run.done ## set up and answer one prompt with the local model (PROMPT="…")
	$(BIN)/perdure run --model local:smollm2 "$(PROMPT)"

setup: $(VENV)/dev.done ## everything that developing needs, from the lock

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.done: requirements.lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	$(BIN)/perdure models fetch local
	@touch $@

$(VENV)/dev.done: requirements-dev.lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements-dev.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

browser: ## install the Chromium that the browser tests drive (Debian, as root)
	@command -v chromium chromium-browser google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

fmt: setup ## format, and mend what ruff can mend
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

lint: setup ## formatting, lint rules, spelling
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/codespell src docs README.md CHANGELOG.md SECURITY.md

types: setup ## pyright (needs Node.js)
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: setup ## imports point down only
	$(BIN)/lint-imports

house: setup ## the rules of the house, read from the source
	$(BIN)/pytest tests/house -q

check: lint types layers house ## lint, types, layers, house: under a minute

# The browser's own loop must not stand in a process where other tests want one.
test: setup ## every test but the deep ones: under five minutes
	$(BIN)/pytest -n $(JOBS) --ignore tests/browser
	$(BIN)/pytest tests/browser

deep: setup ## long runs: crash loops, many seeds, ten times the examples
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest -m deep --timeout 3600 --ignore tests/browser
	$(BIN)/pytest -m deep --timeout 3600 tests/browser

sim: setup ## replay one simulated failure: make sim SEED=17
	PERDURE_SIM_SEED=$(SEED) $(BIN)/pytest tests/sim

hooks: ## let git run `make check` before each commit
	git config core.hooksPath .githooks

bench: setup ## cost of a turn, growth, disk, reopening, against floors of the same run
	$(BIN)/python -m bench

docs: setup ## check that documents, links and tables agree with the code
	$(BIN)/pytest tests/house $(wildcard tests/docs) -q

lock: setup ## renew the two lock files from pyproject.toml
	$(PIP) 'pip-tools>=7.6,<8'
	$(COMPILE) --extra local --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra local --extra models --extra acp --extra otel --extra dev --output-file requirements-dev.lock pyproject.toml

ci: check test ## what a change must pass

clean: ## remove the environment and the caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis

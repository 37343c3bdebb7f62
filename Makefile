# `make demo` and `make test` need Python >= 3.10 and make, and set everything else up by themselves.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.DEFAULT_GOAL := help

help: ## What there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: $(VENV)/.package ## Run a real agent on this machine and show what its steps cost
	@$(BIN)/otel-smol demo $(ARGS)

test: $(VENV)/.test ## Run the tests; what needs `make stack` or `make backends` is skipped without
	@$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

check: lint format-check typecheck ## Lint, format and types, as CI does

lint: $(VENV)/.dev
	@$(BIN)/ruff check .

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: $(VENV)/.dev
	@$(BIN)/ruff format --check .

typecheck: $(VENV)/.dev
	@$(BIN)/mypy

upstream: $(VENV)/.upstream ## Run smolagents' own tests with and without otel_smol, and compare
	@$(BIN)/python tests/upstream/run.py

bench: $(VENV)/.test ## What watching costs (run nothing else meanwhile)
	@$(BIN)/python -m benchmarks.cost $(ARGS)

bench-collector: $(VENV)/.test ## What a collector takes, and what sending costs (needs `make stack`)
	@$(BIN)/python -m benchmarks.collector $(ARGS)

stack: ## Build collector, Prometheus, Alertmanager, Jaeger and docker-compose for the tests (Go needed; once)
	@$(PYTHON) tools/stack/build.py $(ARGS)

backends: ## Install a model server, Phoenix and MLflow for the tests (Python 3.11 or newer, a C++ compiler; once)
	@$(PYTHON) tools/backends/build.py $(ARGS)

dashboards: $(VENV)/.grafana ## Make the dashboards and alerts of grafana/ anew from the code
	@$(BIN)/python -m grafana.build
	@$(BIN)/python -m grafana.alerts

previews: $(VENV)/.grafana ## Draw grafana/preview/ anew from real runs (needs `make stack` and Node 20)
	@$(BIN)/python -m grafana.preview

reference: $(VENV)/.package ## Make docs/reference.md anew from the code
	@$(BIN)/python tools/reference.py

picture: $(VENV)/.package ## Make docs/curve.svg anew from a real demo run
	@$(BIN)/otel-smol demo --svg docs/curve.svg >/dev/null

# A stamp for each set of packages: it is made anew when pyproject.toml changes.
$(VENV)/.package: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "otel_smol needs Python 3.10 or newer; say make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing otel_smol into $(VENV) (once; a minute or two) ..."
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.package
	@echo "Installing what the tests need ..."
	@$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.grafana: $(VENV)/.test
	@$(INSTALL) -e '.[$(EXTRAS),grafana]'
	@touch $@

$(VENV)/.upstream: $(VENV)/.test
	@$(INSTALL) -e '.[$(EXTRAS),upstream]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@$(INSTALL) -e '.[$(EXTRAS),dev]'
	@touch $@

.PHONY: help demo test check lint format format-check typecheck upstream bench bench-collector stack backends \
	dashboards previews reference picture

# Everything a person does with this repository. `make help` lists it.
#
# Variables:
#   PYTHON  the Python (>= 3.11) that the environment is made from
#   RANKS   processes of `make run`; clients=N sets the clients independently of it
#   ARGS    Hydra overrides for `make run`, further arguments for pytest and the benchmarks

PYTHON ?= python3
RANKS  ?= 4
ARGS   ?=

VENV   := .venv
BIN    := $(VENV)/bin
# Without the constraints pip may choose another torch, and with it gigabytes of CUDA libraries.
# The first install shows its progress (torch is large), the later ones only what goes wrong.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
  $(if $(wildcard $(VENV)/.run),--quiet)

.DEFAULT_GOAL := help
.PHONY: help run test test-cluster bench reproduce format wheel clean

help: ## say what each target does (the default)
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | \
	  while IFS='	' read -r target text; do printf '  make %-12s %s\n' "$$target" "$$text"; done
	@echo
	@echo '  make run ARGS="problem=quadratic_game clients=8 rounds=20"   sets Hydra options'
	@echo '  make run RANKS=2 ARGS="clients=4"                            two clients per process'

run: $(VENV)/.run ## run the main job: 4 clients under torchrun train a classifier for AUC
	@RANKS=$(RANKS) launch/torchrun.sh $(ARGS)

test: $(VENV)/.dev ## lint, check the format and the types, and run every test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest $(ARGS)

test-cluster: $(VENV)/.cluster ## run jobs on a real SLURM, hosts and containers (as root on Debian, which it installs)
	@tests/cluster/setup.sh
	$(BIN)/python -m pytest tests/cluster $(ARGS)

bench: $(VENV)/.run ## measure fedsys against bare PyTorch and raw collectives
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: $(VENV)/.run ## make a figure or table of the papers: ARGS="proxskip_fig1", or list
	@$(BIN)/fedsys-reproduce $(or $(ARGS),list)

format: $(VENV)/.dev ## rewrite the Python files as `make test` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: $(VENV)/.dev ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean: ## remove the environment, caches and builds; results in runs/ stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than what it was made from, so an install happens once, and
# again only when the dependencies change.

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.cluster: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev,cluster]'
	@touch $@ $(VENV)/.dev $(VENV)/.run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "fedsys needs Python 3.11 or newer; $(PYTHON) is %d.%d; use make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

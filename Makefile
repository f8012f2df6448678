# The commands of this repository. `make help` lists them.
#
# Variables:
#   PYTHON  the Python interpreter (>= 3.11) of the virtual environment
#   JOBS    processes of `make test`
#   RANKS   processes of `make run`; clients=N sets the clients independently of it
#   ARGS    Hydra overrides for `make run`, further arguments for pytest and the benchmarks
#   TORCH   the version of torch for `make test-torch`

PYTHON ?= python3
RANKS  ?= 4
JOBS   ?= 2
ARGS   ?=
TORCH  ?= 2.15.0

VENV   := .venv
BIN    := $(VENV)/bin
# Without the constraints pip may choose another torch, and with it gigabytes of CUDA libraries.
# The first install shows its progress because torch is large; later ones print errors only.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
  $(if $(wildcard $(VENV)/.run),--quiet)

# `make test-torch` has an environment of its own, with every pinned version except those of torch.
TORCH_VENV  := .venv-torch-$(TORCH)
TORCH_TESTS := tests/unit/distributed tests/unit/training/test_checkpoint.py tests/contract/test_private_torch.py

.DEFAULT_GOAL := help
.PHONY: help run test test-integration test-fuzz test-torch test-cluster kills bench reproduce docs format wheel clean

help: ## list the targets (the default)
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | \
	  while IFS='	' read -r target text; do printf '  make %-16s %s\n' "$$target" "$$text"; done
	@echo
	@echo '  make run ARGS="problem=quadratic_game clients=8 rounds=20"   sets Hydra options'
	@echo '  make run RANKS=2 ARGS="clients=4"                            two clients per process'

run: $(VENV)/.run ## run the main job: 4 clients under torchrun train a classifier for AUC
	@RANKS=$(RANKS) launch/torchrun.sh $(ARGS)

test: $(VENV)/.dev ## run the linter, the format check, the type checker and most tests, on JOBS processes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-integration: $(VENV)/.dev ## test placement on up to 6 processes, and whole commands: wheel, extensions, README, speed
	$(BIN)/python -m pytest tests/integration $(ARGS)

test-fuzz: $(VENV)/.dev ## test bad overrides, damaged files, changed settings and killed ranks
	$(BIN)/python -m pytest tests/fuzz $(ARGS)

test-torch: $(TORCH_VENV)/.dev ## test launching and checkpoints with another torch: TORCH=2.15.0 (downloads gigabytes)
	FEDSYS_TESTED_TORCH=$(TORCH) $(TORCH_VENV)/bin/python -m pytest $(TORCH_TESTS) $(ARGS)

test-cluster: $(VENV)/.cluster ## test SLURM, several hosts and containers (installs them; needs root on Debian)
	@tests/cluster/setup.sh
	$(BIN)/python -m pytest tests/cluster $(ARGS)

kills: $(VENV)/.dev ## kill runs at random moments and compare the results bit by bit: ARGS="--number 100 --seed 0"
	$(BIN)/python tests/kills.py $(ARGS)

bench: $(VENV)/.run ## measure fedsys against plain PyTorch and raw collectives
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: $(VENV)/.run ## reproduce a figure or table of a paper: ARGS="proxskip_fig1"; without ARGS, list them
	@$(BIN)/fedsys-reproduce $(or $(ARGS),list)

docs: $(VENV)/.docs ## build the documentation into site/ and test its code; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -n $(JOBS) --nbmake --nbmake-timeout=300 examples tests/docs
	@echo 'site/index.html; with the search: python3 -m http.server --directory site'

format: $(VENV)/.dev ## fix lint errors and format the Python files
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: $(VENV)/.dev ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean: ## remove the environment, caches and builds; results in runs/ stay
	rm -rf $(VENV) .venv-torch-* dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The virtual environment. Each stamp file depends on the dependency lists, so an install runs once
# and again only when these change.

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev,docs]'
	@touch $@ $(VENV)/.dev $(VENV)/.run

$(VENV)/.cluster: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev,cluster]'
	@touch $@ $(VENV)/.dev $(VENV)/.run

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "fedsys needs Python 3.11 or newer; $(PYTHON) is %d.%d; use make PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(TORCH_VENV)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH_VENV)
	sed '/^torch\(vision\)\{0,1\}==/d' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --disable-pip-version-check -c $(TORCH_VENV)/constraints.txt \
	  torch==$(TORCH) -e '.[dev]'
	@touch $@

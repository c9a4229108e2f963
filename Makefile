# Two commands: `make campaign` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV ?= .venv
CORES ?= 8
# Words added to the installation of torch, where you need another build of it than the default.
TORCH_PIP_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: campaign test test-all lint setup setup-dev

campaign: setup
	$(BIN)/snakemake --cores $(CORES)

setup: $(VENV)/.embedded

# torch by itself with its dependencies, then the rest without: the engine pins other versions.
$(VENV)/.embedded: envs/embedded.lock.txt $(wildcard envs/cpu_shim/*.toml envs/cpu_shim/src/*.pth envs/cpu_shim/src/*/*.py) pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	  sys.exit(0 if (3, 11) <= v[:2] < (3, 14) else f"leverbench needs Python 3.11 to 3.13, not {v[0]}.{v[1]}: name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH_PIP_ARGS) $$(grep '^torch==' envs/embedded.lock.txt)
	$(PIP) install --no-deps -r envs/embedded.lock.txt
	$(PIP) install --no-deps --force-reinstall ./envs/cpu_shim
	$(PIP) install --no-deps --editable .
	touch $@

setup-dev: $(VENV)/.dev

$(VENV)/.dev: $(VENV)/.embedded envs/dev.lock.txt envs/slurm.lock.txt
	$(PIP) install --no-deps -r envs/dev.lock.txt
	touch $@

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy

# Fast tests first: they fail within two minutes.
test: lint
	$(BIN)/pytest -m "not engine and not server" tests/unit
	$(BIN)/pytest -m server tests/unit
	$(BIN)/pytest -n 2 -m "plans and not long" tests/workflow
	$(BIN)/pytest -m "not plans and not long" tests/workflow
	$(BIN)/pytest -m "engine and not long and not gpu" tests

test-all: test
	$(BIN)/pytest -m "long or gpu" tests

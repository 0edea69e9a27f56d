# Every target makes what it needs: a virtual environment in .venv and the tested versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: install check test dist slow bench bench-data bench-saving bench-exchange demo docs clean

install: $(VENV)/.dev

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/it"; exit 1; }
	@echo "installing into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

dist: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'dist and not slow'

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'slow and not gpu'

bench: $(VENV)/.dev
	sh benchmarks/run

bench-data: $(VENV)/.dev
	$(BIN)/python benchmarks/data.py

bench-saving: $(VENV)/.dev
	$(BIN)/python benchmarks/saving.py

bench-exchange: $(VENV)/.dev
	$(BIN)/python benchmarks/exchange.py

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

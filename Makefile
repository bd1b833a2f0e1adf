# Everything a fresh machine needs is Python >= 3.11 with venv, and make.
#
#   make demo        a real two-node training job, captured twice while it runs (demo-out/report.html)
#   make test        unit, property and live-capture tests, under 10 minutes on 2 cores
#   make test-full   the slow and large rest: repeated runs, 2 GiB files, faults, a whole Airflow, the report in a browser
#   make browser     Chromium for those tests, from Debian's packages (as root); without it they skip and say so
#   make lint        ruff, mypy (3.11, 3.12, 3.13), import layers, generated code is current
#   make bench       speed and memory, as ratios measured in one run (docs/performance.md)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The SDK of Flyte 2 has an environment of its own: where flytekit is, too, sameshot_flyte is flytekit's face.
FLYTE2 := $(VENV)-flyte2
FLYTE2_READY := $(FLYTE2)/.ready
# With ARGS that choose tests of one kind only, pytest says of the other kind that there are none (exit code 5).
NONE_CHOSEN := { test $$? -eq 5 && test -n "$(ARGS)"; }

.PHONY: demo test test-full browser lint bench constraints generate clean

demo: $(READY)
	$(BIN)/sameshot demo --out demo-out $(if $(KEEP),--keep) $(ARGS)

# Tests that start training need the machine for themselves; the others mostly wait, four at a time.
test: $(READY)
	$(BIN)/python -m pytest -m "not full and not live" -n 4 --dist loadfile $(ARGS) || $(NONE_CHOSEN)
	$(BIN)/python -m pytest -m "not full and live" $(ARGS) || $(NONE_CHOSEN)

# Two tracks, one of them a whole Airflow that mostly waits (tests/conftest.py); then what trains, by itself.
test-full: $(READY) $(FLYTE2_READY)
	$(BIN)/python -m pytest -m "full and not live" -n 2 --dist loadgroup $(ARGS) || $(NONE_CHOSEN)
	$(BIN)/python -m pytest -m "full and live" $(ARGS) || $(NONE_CHOSEN)

browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; }

# flyte2/ is given to mypy file by file: as a package it is excluded, for the first environment, without a word.
lint: $(READY) $(FLYTE2_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.12
	$(BIN)/mypy --python-version 3.13
	$(BIN)/mypy --python-executable $(FLYTE2)/bin/python --cache-dir .mypy_cache/flyte2 plugins/flyte/sameshot_flyte/*.py plugins/flyte/sameshot_flyte/flyte2/*.py
	$(BIN)/lint-imports
	PYTHON=$(abspath $(BIN))/python sh core/sameshot/api/generate.sh --check

bench: $(READY)
	@for bench in bench/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

generate: $(READY)
	PYTHON=$(abspath $(BIN))/python sh core/sameshot/api/generate.sh

# torch by itself first, so that nothing else decides which build of it is taken.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "sameshot needs Python 3.11 or newer; set PYTHON=python3.11 (or 3.12, 3.13)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

$(FLYTE2_READY): $(READY) constraints-flyte2.txt
	$(PYTHON) -m venv $(FLYTE2)
	$(FLYTE2)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flyte2.txt -e '.[flyte2]'
	touch $(FLYTE2_READY)

# Pin what is installed now, after an upgrade was tried on purpose.
constraints: $(READY) $(FLYTE2_READY)
	$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check | sed 's/+cpu$$//' > constraints.txt
	$(FLYTE2)/bin/python -m pip freeze --exclude-editable --disable-pip-version-check > constraints-flyte2.txt

clean:
	rm -rf $(VENV) $(FLYTE2) demo-out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

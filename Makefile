# celery-wheelbeat. `make help` lists the targets.
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
VENV55 := .venv-celery55
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest
# Most tests wait for a server or a process, so four at a time suit two cores; a file shares what it starts.
SPREAD := -n 4 --dist loadfile
# Real processes beside three others: up to three failed tests get a second try, alone, and it is printed.
TRY := $(BIN)/python tests/run.py

export PYTHONUNBUFFERED := 1
# Compiled modules are kept, whatever the shell says: the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
export WHEELBEAT_CELERY55_PYTHON := $(CURDIR)/$(VENV55)/bin/python

BENCHMARKS := engine memory coldstart edits admin dispatch shapes peers claims later

SOAKS := soak soak-schedules soak-account soak-simulation soak-grid soak-edits soak-broker soak-memory soak-claims soak-files soak-rows soak-signals soak-later

.PHONY: bench bench-full help demo test matrix package check lint unit everything newest axe $(SOAKS) services venv venv-celery55 clean

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

DEMO := $(if $(filter services,$(WHEELBEAT_EXAMPLE)),demo-services,demo)
demo: $(VENV)/$(DEMO).stamp ## run the example project: 200 monitors, admin, beat, worker; Ctrl-C stops it
	@exec $(BIN)/python example_project/demo.py

# Linters and the newest versions use what the tests leave of two cores while they wait.
test: services ## everything but the soak tests, against real services
	@$(MAKE) -j 2 axe venv venv-celery55
	@$(MAKE) -j 3 lint everything newest

check: venv ## linters, types, layers, unit and property tests
	@$(MAKE) -j 2 lint unit

matrix: services ## the tests that need no browser, with each combination of versions that this machine has
	@$(PYTHON) -m tools.matrix all

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

everything: venv
	$(TRY) $(SPREAD) tests

newest: venv
	@nice -n 5 $(PYTHON) -m tools.matrix newest

unit: venv
	$(PYTEST) -n 2 tests/unit tests/property  # these compute, and share no server

package: ## wheel and sdist, each in a fresh environment of every Python that this machine has
	@$(PYTHON) -m tools.package

SOAK := $(PYTEST) -m soak --timeout 3600
soak: services venv ## all tests that need minutes of real time; each target below covers one promise
	$(SOAK) tests

soak-schedules: venv ## a schedule is a pure function: every zone; any text is either a schedule or refused
	$(SOAK) tests/property/test_schedules_cron.py tests/unit/test_cron_zones.py
	WHEELBEAT_EXAMPLES=50 $(PYTEST) --timeout 3600 $(addprefix tests/property/test_,$(addsuffix .py,schedules_cron cron_texts columns_meaning))

soak-later: services venv ## every committed one-off run is sent, also after slow writers and crashes: ten thousand worlds; 300,000 overdue runs
	$(SOAK) tests/property/test_later_seconds.py $(wildcard tests/acceptance/test_later_*.py)

soak-account: venv ## every due run is accounted for: the engine against a brute-force model
	$(SOAK) tests/property/test_engine_oracle.py tests/property/test_engine_shares.py

soak-simulation: venv ## the whole beat under 20,000 seeds, with an auditor that recomputes every run; several beats that divide the shards
	$(SOAK) tests/simulation tests/property/test_membership_protocol.py

soak-grid: services venv ## no drift: 5,000 monitors for ten minutes; exactly the computed runs arrive
	$(SOAK) tests/acceptance/test_beat_exact_set.py

soak-edits: services venv ## edits take effect while other jobs stay on time: a million in one transaction, a transaction open for ten minutes
	$(SOAK) tests/acceptance/test_beat_bulk_edits.py tests/integration/changelog/test_changelog_attacks.py tests/integration/changelog/test_load_columns.py

soak-broker: services venv ## brokers that are killed, cut off, unreachable or full lose nothing; workers get every message
	$(SOAK) tests/acceptance/test_dispatch_faults.py $(wildcard tests/acceptance/test_lanes_*.py)

soak-memory: venv ## a simulated week of churn: memory stays flat, the watchdog finds nothing
	$(SOAK) tests/property/test_week_of_churn.py

soak-claims: services venv ## one of several copies runs: thousands of copies, every store, killed workers
	$(SOAK) $(wildcard tests/acceptance/test_claims_*.py)

soak-files: services venv ## a million lines are imported and exported in bounded memory
	$(SOAK) tests/integration/admin/test_transfer_soak.py

soak-signals: export WHEELBEAT_PYTHONS ?= $(subst $(eval) ,:,$(wildcard $(CURDIR)/.venv-matrix/*/bin/python))
soak-signals: services venv ## SIGTERM at 2,000 random instants stops a beat within 5 s, with each Python of `make matrix`
	$(SOAK) tests/acceptance/test_beat_signals.py

soak-rows: services venv ## a bad row affects only itself: 100,000 of any kind through load, edits and reconcile on each database
	$(SOAK) tests/integration/changelog/test_any_rows.py

bench: services venv ## benchmarks, about ten minutes; writes docs/explanation/benchmarks.md
	$(BIN)/python benchmarks/guard.py
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python benchmarks/page.py

bench-full: services venv ## benchmarks with up to 25 million monitors: an hour, 16 GB of memory, 20 GB of disk
	$(BIN)/python benchmarks/guard.py
	for name in $(filter-out dispatch,$(BENCHMARKS)); do $(BIN)/python benchmarks/$$name.py --full || exit 1; done
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/page.py

services: ## install what the tests start (PostgreSQL, Redis, RabbitMQ, MariaDB, Chromium)
	@PYTHON=$(PYTHON) tests/services/install

AXE := $(VENV)/node/node_modules/axe-core/axe.min.js
axe: $(AXE) ## axe-core, the accessibility checker for the admin pages (from npm)

venv: $(VENV)/test.stamp ## the virtual environment for development

venv-celery55: $(VENV55)/test.stamp ## a second environment with the oldest supported versions

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed; none was found on PATH (or set PYTHON=…)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV); \
		PYTHON=$(PYTHON) tests/services/install --venv && $(PYTHON) -m venv $(VENV); }
	@$@ $(PIP) --upgrade 'pip>=25.1'

$(VENV)/demo.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing celery-wheelbeat and Django into $(VENV) …"
	@$(BIN)/python $(PIP) --editable '.[django]'
	@touch $@

$(VENV)/demo-services.stamp: $(VENV)/demo.stamp
	@$(BIN)/python $(PIP) --editable '.[django,postgres,redis]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(VENV)/bin/python
	@PYTHON=$(PYTHON) tests/services/install --headers
	@echo "Installing celery-wheelbeat, every extra and the test tools into $(VENV) …"
	@$(BIN)/python $(PIP) --editable '.[all]' --group test --group lint || { \
		echo "If mysqlclient failed to build: it needs a C compiler, pkg-config and the client library of MariaDB or" >&2; \
		echo "MySQL with its headers (Debian: libmariadb-dev, Fedora: mariadb-connector-c-devel, macOS: mariadb-connector-c)." >&2; \
		exit 1; }
	@touch $(VENV)/demo.stamp $(VENV)/demo-services.stamp $@

$(VENV55)/test.stamp: pyproject.toml tools/matrix.py tools/pythons.py
	@PYTHON=$(PYTHON) tests/services/install --headers
	@$(PYTHON) -m tools.matrix oldest
	@touch $@

$(AXE): | $(VENV)/bin/python
	@command -v npm >/dev/null || { echo "npm is missing (Debian: apt-get install npm): the browser tests need axe-core" >&2; exit 1; }
	@npm install --silent --no-audit --no-fund --no-save --prefix $(VENV)/node axe-core@4.14.1 >/dev/null
	@touch $@

clean: ## remove environments and caches
	rm -rf $(VENV) $(VENV55) .venv-matrix .hypothesis .pytest_cache .mypy_cache .ruff_cache build dist

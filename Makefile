# The way in. Every target does its own set-up, from nothing, inside this tree:
# Python 3.11 or later, make and git are all it takes. `make PYTHON=python3.12 ...` picks an interpreter.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-postgres test-brokers test-browser test-rules test-neighbours test-airflow screens check format bench wheel lock upgrade clean simulate contract crash drill

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## see a thousand reminders go out once each, through limits, lost replies and a killed worker
	@$(BIN)/sendonce demo

test: $(READY) ## run the tests; ARGS="-k pacing" narrows them
	@$(BIN)/pytest --numprocesses auto $(ARGS)

test-brokers: $(READY) ## hints over private RabbitMQ, NATS and SQS servers, killed and exchanged meanwhile
	@$(BIN)/python -m tests.brokers.servers
	@$(BIN)/pytest --numprocesses auto tests/brokers $(ARGS)

test-neighbours: $(READY) build/neighbours/.ready ## the recipes for Celery and Temporal, run by the real ones; needs redis-server
	@$(BIN)/pytest --numprocesses 2 --dist loadfile tests/neighbours/test_celery.py tests/neighbours/test_temporal.py $(ARGS)

test-airflow: $(READY) build/airflow/.ready ## the recipe for Airflow, run by Airflow; it is large: a minute or two the first time
	@$(BIN)/pytest tests/neighbours/test_airflow.py $(ARGS)

build/neighbours/.ready: requirements/neighbours.lock pyproject.toml
	@$(PYTHON) tools/environment.py build/neighbours requirements/neighbours.lock --editable .
	@touch $@

build/airflow/.ready: requirements/airflow.lock
	@$(PYTHON) tools/environment.py build/airflow requirements/airflow.lock
	@touch $@

test-postgres: $(READY) ## the tests of the PostgreSQL store on another version: PROGRAMS=/usr/lib/postgresql/15/bin
	@test -x "$(PROGRAMS)/postgres" || { echo "test-postgres: PROGRAMS=FOLDER must name the folder of a postgres"; exit 1; }
	@SENDONCE_POSTGRES_BIN="$(PROGRAMS)" $(BIN)/pytest --numprocesses auto tests/conformance/test_store.py \
		$(wildcard tests/integration/test_postgres*.py) $(ARGS)

test-browser: $(READY) ## the console in Chromium, which must be installed: apt-get install chromium, or SENDONCE_CHROMIUM=PATH
	@$(BIN)/pytest tests/browser $(ARGS)

test-rules: $(READY) ## the alert rules in promtool, which must be there: apt-get install prometheus, or SENDONCE_PROMTOOL=PATH
	@$(BIN)/pytest tests/rules $(ARGS)

screens: $(READY) ## take the pictures of docs/console/ anew
	@$(BIN)/python -m tests.browser.screens docs/console

check: $(READY) ## the gate: format, lint, types, imports, docs
	@$(BIN)/ruff format --check . || { echo "check: 'make format' puts it right"; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo > .venv/imports.log 2>&1 || { cat .venv/imports.log; exit 1; }
	@echo "Imports point down only."
	@$(BIN)/python tools/check_docs.py
	@echo "Docs hold together."

format: $(READY) ## rewrite the code as the gate wants it
	@$(BIN)/ruff check --quiet --fix . || true; $(BIN)/ruff format --quiet .

ifneq ($(wildcard bench/__main__.py),)
bench: $(READY) ## measure; ARGS names what
	@$(BIN)/python -m bench $(ARGS)
else
bench:
	@echo "bench: nothing to run yet (bench/__main__.py is missing)"; exit 1
endif

wheel: $(READY) ## build the wheel, then try it in an environment that has only what users get
	@rm -rf dist build
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@$(BIN)/python tools/check_wheel.py dist/*.whl
	@$(PYTHON) tools/environment.py --fresh build/wheel-check requirements/runtime.lock --wheel dist/*.whl
	@build/wheel-check/bin/sendonce --version

setup: $(READY) ## make .venv from the lock file, when it is not there or out of date

$(READY): requirements/dev.lock pyproject.toml tools/environment.py
	@$(PYTHON) tools/environment.py .venv requirements/dev.lock --editable .
	@touch $@

# One lock for every Python and platform. Pins stay as they are unless pyproject.toml rules them out;
# `make upgrade` moves them all. No index, host or path of this machine goes into a lock.
COMPILE = build/tools/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --custom-compile-command "make lock" $(UPGRADE)

lock: ## pin what pyproject.toml asks for, with hashes, into requirements/
	@$(PYTHON) tools/environment.py build/tools requirements/tools.lock
	@$(COMPILE) pyproject.toml --all-extras --output-file requirements/runtime.lock > build/tools/log
	@$(COMPILE) pyproject.toml --all-extras --group dev --constraint requirements/runtime.lock \
		--output-file requirements/dev.lock > build/tools/log
	@$(COMPILE) --group lock --output-file requirements/tools.lock > build/tools/log
	@$(COMPILE) --group contract --output-file requirements/contract.lock > build/tools/log
	@$(COMPILE) pyproject.toml --group neighbours --constraint requirements/runtime.lock \
		--output-file requirements/neighbours.lock > build/tools/log
	@$(COMPILE) --group airflow --output-file requirements/airflow.lock > build/tools/log

upgrade: UPGRADE := --upgrade
upgrade: lock ## the same, with the newest releases

clean: ## remove everything that was made here
	@rm -rf .venv build dist .demo .drill .bench .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

simulate: $(READY) ## prove it in a simulated world; ARGS="--seeds 1-1000 --faults storm" says how much
	@$(BIN)/sendonce simulate --seeds 1-200 $(ARGS)

drill: $(READY) ## try the example configuration against everything that goes wrong; a report in .drill/
	@mkdir -p .drill
	@$(BIN)/sendonce --config examples/sendonce.toml drill --html .drill/report.html $(ARGS)

contract: $(READY) build/contract/.ready ## ask the API whatever its document allows; ARGS="--examples 200" is the long run
	@$(BIN)/python -m tests.contract $(ARGS)

build/contract/.ready: requirements/contract.lock
	@$(PYTHON) tools/environment.py build/contract requirements/contract.lock
	@touch $@

crash: $(READY) ## prove it with real processes, killed at random; ARGS="--store sqlite --minutes 2 --seed 7"
	@$(BIN)/python -m tests.crash $(ARGS)

# `make` prints the targets. Everything runs from .venv, which `make setup` builds.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs reference pictures faults bench dist format lock audit clean redshift-live

BIN := .venv/bin
ARGS ?=

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian packages and .venv (a second run takes a second)
	@scripts/setup

demo: setup ## a throw-away MySQL, S3 and warehouse: sync, change, crash, recovery; WAREHOUSE=redshift: a stand-in for Redshift; SOURCE=mariadb: without MySQL
	@$(BIN)/floodmark demo $(if $(WAREHOUSE),--warehouse $(WAREHOUSE)) $(if $(SOURCE),--source $(SOURCE)) $(ARGS)

test: setup ## all tests, four at a time (a quarter of an hour on two cores); ARGS="tests/unit -k ties" for some, FLOODMARK_LONG=1 for the long ones too
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 4 --dist worksteal $(ARGS)

check: setup ## ruff, mypy --strict (src and tests), import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

reference: setup ## docs/commands.md and the keys in docs/config.md, from the code
	@PYTHONPATH=src $(BIN)/python scripts/reference

docs: reference ## the reference, and the site of docs/ in build/site; a broken link fails it
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --builder html --doctree-dir build/doctrees docs build/site
	@echo "open build/site/index.html"

pictures: setup ## docs/rooms.svg and docs/pictures: drawings, the chart of bench/results, terminals and the dashboard from real runs (minutes)
	@$(BIN)/python scripts/picture
	@$(BIN)/python scripts/chart
	@$(BIN)/python scripts/shots
	@$(BIN)/python scripts/pages

MINUTES ?= 30
faults: setup ## the fault laboratory for MINUTES=30; SOURCE=mysql (default if it was fetched) or mariadb, GROUP=crash SEED=7 ONLY=... BROKEN=all; adds to docs/faults.md
	@PYTHONPATH=src $(BIN)/python -m tests.faults.lab --minutes $(MINUTES) $(if $(GROUP),--group $(GROUP)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(if $(BROKEN),--broken $(BROKEN)) \
	  $(if $(JOBS),--jobs $(JOBS)) $(if $(SOURCE),--source $(SOURCE)) $(ARGS)

# The URL is passed on as it was written: `make` would put the password of ${…} in its place.
redshift-live: export FLOODMARK_LIVE_URL := $(value URL)
redshift-live: export FLOODMARK_LIVE_STORE := $(STORE)
redshift-live: export FLOODMARK_LIVE_ROLE := $(ROLE)
redshift-live: export FLOODMARK_LIVE_CONFIG := $(CONFIG)
redshift-live: export FLOODMARK_LIVE_SECOND := $(value SECOND)
redshift-live: $(BIN)/pytest ## tests/contract on a real Redshift: 'URL=redshift://user:$${PASSWORD}@host/dev' STORE=s3://… ROLE=arn:… (docs/redshift-live.md)
	@PYTHONPATH=src $(BIN)/python -m tests.live $(ARGS)

# For redshift-live, no more than its tests need: no servers, no Java. `make setup` adds the rest.
$(BIN)/pytest:
	@python3 -m venv .venv
	@sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock >.venv/live.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .venv/live.txt --editable . pytest sqlglot >&2

bench: setup ## Floodmark against dlt, chDB, Spark JDBC and upper bounds; SOURCE=mysql (default if it was fetched) or mariadb, ROWS=…, RUNS=3, ONLY=…; PROFILE=1: where the CPU goes
	@SOURCE=$(SOURCE) $(BIN)/python bench/run.py $(ARGS)

dist: setup ## dist/: the compiled wheel, the pure one, the sdist; installs each wheel into an empty environment and runs the demo there (minutes)
	@$(BIN)/python scripts/dist $(ARGS)

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## write requirements.lock, with hashes, from pyproject.toml; ARGS="pyarrow" to upgrade only that
	$(BIN)/python scripts/lock $(ARGS)

audit: ## check requirements.lock, and the lowest versions that pyproject.toml allows, for known vulnerabilities (needs PyPI's JSON API)
	@python3 scripts/audit

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist bench/.venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src -name '*_fast.c' -o -name '*_fast.*.so' | xargs rm -f
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

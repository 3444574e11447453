# `make` prints the targets. Everything runs from .venv, which `make setup` builds.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench format lock clean

BIN := .venv/bin
ARGS ?=

help: ## print this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian's packages and .venv (a second run takes a second)
	@scripts/setup

demo: setup ## a throw-away MySQL, S3 and warehouse: sync, change, crash, recovery; WAREHOUSE=redshift: its stand-in
	@$(BIN)/floodmark demo $(if $(WAREHOUSE),--warehouse $(WAREHOUSE)) $(ARGS)

test: setup ## all tests, three at a time (about ten minutes); ARGS="tests/unit -k ties" for some
	@$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

check: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup ## rows/s and CPU-seconds per million rows
	@$(BIN)/python bench/run.py $(ARGS)

format: setup ## put the code into the project's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup ## write requirements.lock from what .venv holds
	$(BIN)/pip freeze --exclude-editable --exclude floodmark > requirements.lock

clean: ## remove .venv, caches and build products
	rm -rf .venv build dist bench/out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# Every target installs what it needs first; nothing has to be set up by hand.
SHELL := /bin/bash
PY := .venv/bin/python
WORKERS ?= 2
ARGS ?=
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install up demo test check lint format bench soak lock docs clean

help:
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.txt pyproject.toml .ci/install
	@.ci/install

install: $(STAMP) ## install the locked packages and the project into .venv

up: $(STAMP) ## run the whole stack on this machine (ARGS="--port 9000")
	@exec $(PY) manage.py up $(ARGS)

demo: $(STAMP) ## watch agents do real work (ARGS=--exit ends by itself)
	@exec $(PY) manage.py demo $(ARGS)

test: $(STAMP) ## every test; needs no service and no set-up
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: lint ## format, lint, import contracts, types, budgets, migrations, lock file
	$(PY) -m pytest -q -n 0 tests/architecture $(ARGS)

lint: $(STAMP) ## format and lint only
	$(PY) -m ruff format --check --quiet . || { $(PY) -m ruff format --check . | tail -20; exit 1; }
	$(PY) -m ruff check --output-format concise .

format: $(STAMP) ## put the code into shape
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(STAMP) ## print the benchmark table
	$(PY) -m pytest -n 0 -q -p no:randomly -m bench -o log_cli=true -o log_cli_level=WARNING tests/benchmarks $(ARGS)

soak: $(STAMP) ## end-to-end tests at full window length (hours)
	MULTICA_TIME_SCALE=1 $(PY) -m pytest -n 0 -p no:randomly -m soak --timeout 0 $(ARGS)

lock: $(STAMP) ## compile requirements.txt again after a change of pyproject.toml
	.venv/bin/uv pip compile -q --universal --generate-hashes --all-extras --python-version 3.11 --no-header pyproject.toml -o requirements.txt

docs: $(STAMP) ## draw docs/states.md from the edge table
	$(PY) -c "from queue_app.domain import diagram; open('docs/states.md', 'w').write(diagram.page())"

clean: ## remove the environment and caches (not .state, which holds your data)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

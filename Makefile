# make demo | test | check | bench | fuzz | soak | services | format | lock | clean
#
# Each works alone on a fresh clone: it sets up what it needs first, once. Needed beforehand: make, and Python 3.11
# or newer with its venv module (another one than `python3`: make PYTHON=python3.12 ...).

PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
PY := $(VENV)/bin/python
PIP := -m pip --disable-pip-version-check -qq install
LINTED := agentgraph tests benchmarks examples
UV := uv==0.13.9

.PHONY: demo test check bench fuzz soak services format lock clean
.DEFAULT_GOAL := test

demo: $(VENV)/.run
	@$(PY) -u -m examples.demo.main $(ARGS)

test: $(VENV)/.dev
	@$(PY) -m pytest $(ARGS)

check: $(VENV)/.dev
	@echo "== format"       && $(PY) -m ruff format --check $(LINTED)
	@echo "== lint"         && $(PY) -m ruff check $(LINTED)
	@echo "== types"        && PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright
	@echo "== public types" && cd tests && export PATH="$(CURDIR)/$(VENV)/bin:$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 && \
		told=$$(python -m pyright --verifytypes agentgraph --ignoreexternal) || { echo "$$told"; exit 1; }
	@echo "== import rules" && $(VENV)/bin/lint-imports --no-logo

bench: $(BENCH)/.bench
	@$(BENCH)/bin/python -m benchmarks.run $(ARGS)

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.dev
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m pytest tests/fuzz $(ARGS)

soak: $(VENV)/.run
	@$(PY) -m benchmarks.soak $(ARGS)
	@$(PY) -m benchmarks.long_run

# What some tests need of the system: a Postgres server, which they start themselves, and strace. Without them those
# tests are skipped, and `make test` says so.
SERVICES = $(if $(wildcard /usr/lib/postgresql/*/bin/initdb),,postgresql) $(if $(shell command -v strace),,strace)
services:
	@[ -z "$(strip $(SERVICES))" ] || { \
		[ "$$(id -u)" = 0 ] || { echo "needed: apt install $(strip $(SERVICES))"; exit 1; }; \
		echo "installing $(strip $(SERVICES))"; export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $(strip $(SERVICES)) >/dev/null; }

format: $(VENV)/.dev
	@$(PY) -m ruff check --fix --exit-zero --quiet $(LINTED)
	@$(PY) -m ruff format $(LINTED)

# Versions and hashes of all that is installed here; the index they came from is the user's own setting.
lock: COMPILE = $(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate $(UPGRADE) pyproject.toml
lock: $(VENV)/.run
	@$(PY) $(PIP) $(UV)
	$(COMPILE) --group dev -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt -o requirements/run.txt
	$(COMPILE) -c requirements/dev.txt --extra bench -o requirements/bench.txt

clean:
	rm -rf $(VENV) $(BENCH) .demo .servers .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist

# --- environments: a stamp file says that one is complete ---

define new_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
@[ -x $(1)/bin/python ] || $(PYTHON) -m venv $(1) || \
	{ rm -rf $(1); echo "$(PYTHON) cannot make a venv (on Debian: apt install python3-venv)"; exit 1; }
@echo '*' >$(1)/.gitignore
endef

$(VENV)/.run: requirements/run.txt
	@echo "setting up $(VENV) (about 10 s, once)"
	$(call new_venv,$(VENV))
	@$(PY) $(PIP) --require-hashes -r requirements/run.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml | $(VENV)/.run
	@echo "setting up the tools for tests and checks (about 30 s, once)"
	@$(PY) $(PIP) --require-hashes -r requirements/dev.txt
	@$(PY) $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH)/.bench: requirements/bench.txt
	@echo "setting up $(BENCH) with the peer that is measured (about 20 s, once)"
	$(call new_venv,$(BENCH))
	@$(BENCH)/bin/python $(PIP) --require-hashes -r requirements/bench.txt
	@touch $@

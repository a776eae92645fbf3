# make demo, make test: from a fresh clone, with nothing but Python 3.11 or newer and pip's registry.

# The first of these that runs and is new enough; choose another with PYTHON=...
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test e2e screenshots lint docs bench messages clean

# SECONDS=20 closes the shop by itself; without it, Ctrl-C does. DEMO_*: see python -m testproject.demo --help.
demo: $(VENV)/.installed-demo
	@exec $(BIN)/python -m testproject.demo $(if $(SECONDS),--seconds $(SECONDS))

# ARGS="-k shop" and the like go to pytest.
test: $(VENV)/.installed-test
	@exec $(BIN)/python -m pytest -m "not slow" $(ARGS)

# In Debian's Chromium, which must be there. ARGS as above; E2E_PYTHON=.tox/py311-dj52/bin/python for another Django.
e2e: $(VENV)/.installed-e2e
	@exec $(BIN)/python -m pytest tests/e2e/browser $(ARGS)

# Those of docs/_static, taken anew.
screenshots: $(VENV)/.installed-e2e
	@exec $(BIN)/python -m pytest tests/e2e/browser/screenshots.py $(ARGS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/python tests/ground/typed_names.py

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# New messages come into the catalogues of all languages, to be translated, and all are compiled.
messages: $(VENV)/.installed-test
	$(BIN)/python tests/ground/catalogs.py

# Hours; each script alone: $(BIN)/python -m bench.drain --quick
bench: $(VENV)/.installed-test
	@exec $(BIN)/python -m bench

clean:
	@if [ -x $(BIN)/python ] && [ -d .pgdata ]; then $(BIN)/python -m testproject.localdb stop; fi
	rm -rf $(VENV) .pgdata .demo .e2e .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# --group came with pip 25.1.
$(VENV)/.pip:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[local]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[local]' --group test
	@touch $@

$(VENV)/.installed-e2e: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[local]' --group test --group e2e
	$(BIN)/python -m tests.e2e.browser.axe
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[local]' --group test --group lint
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

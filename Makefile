# Two commands on a fresh machine: `make check` and `make test`. Both set up .venv first, from the locked versions.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: check test lint deb test-deb lock clean

check: $(VENV)/.ready
	@# 0 to 3 are verdicts; anything else is a fault
	@$(BIN)/readiness check; code=$$?; [ $$code -le 3 ] || exit $$code

# The tests talk to real peers: simulators in an environment of their own, and NUT, ipmi_sim, ipmitool where they are installed.
test: $(VENV)/.ready $(VENV)/peers/.ready
	READINESS_PEERS=$(abspath $(VENV)/peers/bin) $(BIN)/python -m pytest -n auto

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# A package for Debian and Ubuntu, in dist/: the environment of its own under /opt/readiness, units, configuration, man pages, completion.
deb: $(VENV)/.ready
	BIN=$(BIN) packaging/build-deb dist

# Install, start, upgrade and purge it in a clean root (needs root and debootstrap).
test-deb: $(VENV)/.ready
	BIN=$(BIN) packaging/test-deb

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/peers/.ready: tests/peers/requirements.lock $(VENV)/.ready
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/peers/requirements.lock
	@touch $@

# New versions: edit pyproject.toml if need be, then `make lock` (needs uv).
lock:
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra dev -o requirements.lock pyproject.toml
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra snmp -o packaging/requirements.lock pyproject.toml
	uv pip compile --universal --generate-hashes --no-header --python-version 3.11 -o tests/peers/requirements.lock tests/peers/requirements.in

clean:
	rm -rf $(VENV)

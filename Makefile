# `make demo` and `make test` work from a fresh clone: what is missing is installed first, into
# .venv and .criu in this folder. Only Python's own venv support and, for the browser tests,
# Chromium are installed with apt, and only where they are missing and this is run as root.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
SUITABLE := 3.13 3.12 3.11

# A virtual environment holds absolute paths, so it is made anew when the checkout was moved; the
# packages in it are brought up to date when pyproject.toml has other content. What only the tests
# need is not installed for a demo.
MADE := $(VENV)/.made-$(shell echo '$(CURDIR)' | sha256sum | cut -c1-16)
CONTENT := $(shell sha256sum pyproject.toml | cut -c1-16)
INSTALLED := $(VENV)/.installed-$(CONTENT)
INSTALLED_TEST := $(VENV)/.installed-test-$(CONTENT)

# The oldest DuckDB that has to read what is published, beside the one in use, for the tests alone.
DUCKDB_LTS := .duckdb-lts/.installed

# Airflow has an environment of its own: the provider needs nothing of the platform's.
AIRFLOW_VENV := .venv-airflow
AIRFLOW := $(AIRFLOW_VENV)/.installed-$(CONTENT)

# Tests that touch the machine run one after the other (tests/conftest.py), the others beside them.
TEST_PROCESSES := 2

# Every command here starts Python many times: modules that are compiled anew each time, as some
# containers ask for, would double that.
unexport PYTHONDONTWRITEBYTECODE

APT_GET := DEBIAN_FRONTEND=noninteractive timeout 900 \
	apt-get -qy --no-install-recommends -o DPkg::Lock::Timeout=120

comma := ,

# $(call step,what is going on,command): one line, and the command's output only if it fails.
step = echo "==> $(1)"; log=$$(mktemp); \
	( $(2) ) >$$log 2>&1 </dev/null || { code=$$?; cat $$log >&2; rm $$log; exit $$code; }; rm $$log

# $(call apt_install,packages): needs root. The lists may be missing or older than the mirror.
apt_install = { [ "$$(id -u)" = 0 ] || { echo "run as root: apt-get install $(1)"; exit 1; }; } \
	&& { $(APT_GET) install $(1) || { $(APT_GET) update && $(APT_GET) install $(1); }; }

# Prints the newest Python that this project supports and that can make virtual environments, else
# the newest that it supports. `make PYTHON=...` chooses another.
define find_python
check='import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(v not in "$(SUITABLE)".split())'; \
for modules in venv,ensurepip sys; do \
	for name in $(SUITABLE:%=python%) python3 /usr/bin/python3; do \
		if "$$name" -c "$$check" 2>/dev/null && "$$name" -c "import $$modules" 2>/dev/null; then \
			"$$name" -c 'import sys; print(sys.executable)'; exit; \
		fi; \
	done; \
done
endef

.PHONY: help setup criu chromium demo test test-airflow test-kubernetes lint clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) criu ## Install everything into this folder: Python packages and CRIU

demo: setup ## Measure on this machine, load, build and show the results
	@$(BIN)/resilience demo

test: $(INSTALLED_TEST) setup $(DUCKDB_LTS) chromium lint ## Check style and types, and run all tests
	@$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadscope

test-kubernetes: $(INSTALLED_TEST) ## Run the tests of the cluster that KUBECONFIG names
	@$(BIN)/pytest -rA --show-capture=stdout -m kubernetes tests/kubernetes \
		| grep -E '^(seen on|PASSED|FAILED|ERROR|SKIPPED|E  |=)'

test-airflow: setup $(AIRFLOW) ## Run the Airflow provider's tests, with Airflow in .venv-airflow
	@PATH="$(CURDIR)/$(AIRFLOW_VENV)/bin:$$PATH" RESILIENCE_PYTHON="$(CURDIR)/$(BIN)/python" \
		pytest -rA --show-capture=no --confcutdir=tests/airflow tests/airflow

lint: $(INSTALLED_TEST) ## Check style and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict

clean: ## Remove what was installed and built here; measured data (.resilience) stays
	@rm -rf $(VENV) $(AIRFLOW_VENV) .duckdb-lts .criu .criu.partial .criu.lock .mypy_cache .ruff_cache .pytest_cache
	@rm -rf .hypothesis build dist *.egg-info dbt/target dbt/logs
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(MADE):
	@python="$(PYTHON)"; \
	[ -n "$$python" ] || python="$$($(find_python))"; \
	if [ -z "$$python" ]; then \
		$(call step,installing Python with apt,$(call apt_install,python3 python3-venv)); \
		python="$$($(find_python))"; \
	fi; \
	[ -n "$$python" ] || { echo "No Python of $(SUITABLE) on PATH. Install one, or name one: make PYTHON=..." >&2; exit 1; }; \
	version="$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
		$(call step,installing python$$version-venv with apt,$(call apt_install,python$$version-venv)); \
	fi; \
	$(call step,making $(VENV) with Python $$version ($$python),"$$python" -m venv --clear $(VENV))
	@touch $@

# Modules are compiled when they are first imported: compiling all of what is installed, most of
# which nobody imports, would take as long as installing it.
pip_install = $(call step,$(1) (minutes the first time),timeout 1800 $(BIN)/python -m pip install --disable-pip-version-check --no-compile --editable $(2))

$(INSTALLED): $(MADE)
	@$(call pip_install,installing Python packages,.)
	@rm -f $(VENV)/.installed-*
	@touch $@

$(INSTALLED_TEST): $(INSTALLED)
	@$(call pip_install,installing Python packages for the tests,'.[test]')
	@touch $@

$(DUCKDB_LTS): $(MADE)
	@$(call step,installing DuckDB 1.4 for the tests,rm -rf $(@D) && timeout 600 $(BIN)/python -m pip install --disable-pip-version-check --no-compile --target $(@D) 'duckdb==1.4.*')
	@touch $@

$(AIRFLOW): $(MADE)
	@$(call step,installing Airflow into $(AIRFLOW_VENV) (minutes),$(BIN)/python -m venv --clear $(AIRFLOW_VENV) \
		&& timeout 1800 $(AIRFLOW_VENV)/bin/python -m pip install --disable-pip-version-check --no-compile \
			'apache-airflow>=3.3$(comma)<4' pytest pytest-timeout \
		&& $(AIRFLOW_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps --editable .)
	@touch $@

# Without a CRIU that works (exit status 3) all but the restore arm can be measured.
criu: $(INSTALLED)
	@$(BIN)/python -m resilience_pipelines.snapshots.criu_provision || [ $$? -eq 3 ]

# Tests that need a browser are skipped, and say so, where there is none.
chromium:
	@if ! command -v chromium chromium-browser google-chrome >/dev/null; then \
		echo "==> installing Chromium with apt for the browser tests"; log=$$(mktemp); \
		( $(call apt_install,chromium) ) >$$log 2>&1 </dev/null \
			|| { echo "    not installed, tests that need it are skipped:"; tail -n 3 $$log; }; \
		rm $$log; \
	fi

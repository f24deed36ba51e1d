# `make help` lists what there is. Everything runs in .venv, which is made on first use
# and again when the pins change.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
PYTHON ?= python3
NB ?=
SCRIPT = .edit/$(basename $(notdir $(NB))).py
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test lab check faults races fuzz docs export run open save clean require-nb require-script require-quarto

help: ## List these targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'

# --- environment ---------------------------------------------------------------------------------

# The stamp is written last, so an environment that was interrupted half-way is made again.
$(STAMP): constraints.txt pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON): not found: install Python 3.10 or newer, or run 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is `"$(PYTHON)" -V 2>&1`, older than 3.10: run 'make PYTHON=/path/to/python3.10-or-newer ...'" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian and Ubuntu: apt install python3-venv), or run 'make PYTHON=...' with one that has" >&2; exit 1; }
	@rm -rf .venv
	@echo "Making the environment .venv (some minutes the first time)"
	@"$(PYTHON)" -m venv .venv
	@$(PIP) install -c constraints.txt torch
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

# --- the main job --------------------------------------------------------------------------------

# --resume: run again after an interruption it goes on, and run again after its end it finds all done.
demo: $(STAMP) ## Prepare this machine's Python sources, plan, train a small GPT on them, write demo/report.html
	$(BIN)/memtrain prepare --input_files "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')/**/*.py" \
	  --exclude site-packages --out_dir demo/data --vocab_size 2048 --resume
	$(BIN)/memtrain plan --gpu cpu --dataset_dir demo/data --target_params 2M --seq_len 256 --global_batch 8
	$(BIN)/memtrain train --dataset_dir demo/data --out_dir demo/run --target_params 2M --batch_size 8 --max_iters 600 --lr 0.002 \
	  --resume --report demo/report.html
	@echo
	@echo "Open demo/report.html in a browser. What to try next:"
	@echo "  a larger model:     $(BIN)/memtrain train --dataset_dir demo/data --out_dir demo/larger --target_params 5M --report demo/larger.html"
	@echo "  your own text:      $(BIN)/memtrain prepare --input_files 'FOLDER/**/*.txt' --out_dir demo/mine"
	@echo "  how it works:       make lab"

# --- developing ----------------------------------------------------------------------------------

# Threads that wait for work sleep: two pages run side by side, and spinning would take the cores from the one that works.
test check run: export OMP_WAIT_POLICY ?= PASSIVE

test: $(STAMP) ## Run every page as a reader would, with its few tests, then the tests of the proofs
	$(BIN)/python tools/run_pages.py
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow and not cuda and not net and not page'

lab: $(STAMP) ## Open the book in JupyterLab, at its index (ARGS=--allow-root and the like are passed on)
	$(BIN)/jupyter lab nbs/index.ipynb $(ARGS)

export: $(STAMP) ## Regenerate modules, tests and README.md from the notebooks
	$(BIN)/python tools/export.py

run: $(STAMP) ## Execute notebooks in fresh processes and store their outputs (NB=nbs/reference/60_core.ipynb for one)
	$(BIN)/python tools/run_notebooks.py $(if $(NB),"$(NB)")

open: require-nb $(STAMP) ## Open NB=nbs/reference/60_core.ipynb as a script, .edit/60_core.py
	@mkdir -p .edit
	$(BIN)/jupytext --quiet --to py:percent --output "$(SCRIPT)" "$(NB)"
	@echo "Edit $(SCRIPT), then: make save NB=$(NB)"

save: require-script $(STAMP) ## Put the script back into NB=nbs/reference/60_core.ipynb, keeping ids and outputs, and export
	$(BIN)/jupytext --quiet --update --to ipynb --output "$(NB)" "$(SCRIPT)"
	$(BIN)/python tools/export.py

check: $(STAMP) ## What has to pass before a commit: nothing to regenerate, lint, types, the house, wheel, docs, tests
	$(BIN)/python tools/check_sync.py
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary
	$(BIN)/python tools/check_house.py
	$(BIN)/python tools/check_wheel.py
	$(BIN)/python tools/check_docs.py
	$(MAKE) --no-print-directory test

faults: $(STAMP) ## Fail every writer at every call that changes a folder; the figures go to results/faults.json
	$(BIN)/python tools/faults.py

races: $(STAMP) ## Start any two commands that meet in a folder, at twenty offsets; the figures go to results/races.json
	$(BIN)/python tools/races.py

fuzz: $(STAMP) ## Give every reader 100,000 inputs that no writer wrote; what is found stays in fuzz/, the figures go to results/fuzz.json
	$(BIN)/python tools/fuzz.py

# README.md is touched because nbdev_docs makes it again, with Quarto, where it is older than the index.
docs: require-quarto $(STAMP) ## Render the site into _docs/ (needs Quarto), and follow its links
	touch README.md
	$(BIN)/python tools/check_docs.py
	PYTHONPATH="$(CURDIR)/tools" $(BIN)/nbdev_docs
	$(BIN)/python tools/finish_site.py _docs
	$(BIN)/linkchecker --config .github/linkchecker.ini --no-status _docs/index.html

clean: ## Remove the environment and everything that can be made again, except demo/
	rm -rf .venv .edit _proc _docs .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info nbs/.ipynb_checkpoints nbs/nbdev.yml nbs/sidebar.yml

# Anything else: say what there is.
.DEFAULT:
	@echo "make $@: no such target: 'make help' lists them" >&2; exit 2

require-nb:
	@[ -n "$(NB)" ] || { echo "which notebook? for example: make $(firstword $(MAKECMDGOALS)) NB=nbs/reference/60_core.ipynb" >&2; exit 1; }
	@[ -f "$(NB)" ] || { echo "$(NB): no such notebook: give one of nbs/*/*.ipynb" >&2; exit 1; }

require-script: require-nb
	@[ -f "$(SCRIPT)" ] || { echo "$(SCRIPT): not there: run 'make open NB=$(NB)' first" >&2; exit 1; }

require-quarto:
	@command -v quarto >/dev/null || { echo "quarto: not found, and the site is rendered with it: get it from https://quarto.org/docs/get-started" >&2; exit 1; }

# Everything runs in .venv, which the first command makes and later commands bring up to date
# when pyproject.toml or constraints.txt has changed. Nothing is installed outside it.

PYTHON  ?= python3
WORKERS ?= 2
SCALE   ?= quick
OUT     ?= results/$(SCALE)
ENGINE  ?= local
ON      := $(if $(filter local stored,$(ENGINE)),,--workers $(WORKERS))
STOP    := $(if $(STOP_AFTER),--stop-after $(STOP_AFTER))

BIN        := .venv/bin
READY      := .venv/.ready
DOCS_READY := .venv/.ready-docs
BENCH_READY := .venv/.ready-bench
BRIDGES    := .venv-bridges/bin
BRIDGES_READY := .venv-bridges/.ready
PINNED     := --constraints constraints.txt --build-constraints constraints.txt
INSTALL    := UV_COMPILE_BYTECODE=1 $(BIN)/uv pip install --quiet --python $(BIN)/python $(PINNED)

.DEFAULT_GOAL := help
.PHONY: help setup demo test bridges chaos wheel soak reproduce verify bench lint format types house report docs pins

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "Settings: PYTHON=$(PYTHON) (makes .venv), WORKERS=$(WORKERS), TESTERS=$(TESTERS), SCALE=$(SCALE), OUT=$(OUT),"
	@echo "          ENGINE=$(ENGINE) (local, processes, dask or stored), STOP_AFTER= (such as 50m)"

setup: $(READY)  ## make .venv and install the pinned packages
	@echo "setup: .venv is ready, $$($(BIN)/python --version)"

demo: $(READY)  ## train a random student and find attention in it, half a minute
	@mkdir -p build
	@$(BIN)/underhood discover --out build/discover.png --force

# A process of tests waits a tenth of its time for processes that it started, so there is one more.
TESTERS ?= $(shell expr $(WORKERS) + 1)

test: $(READY)  ## run the tests in TESTERS processes
	@echo "test: pytest in $(TESTERS) processes, on the CPU"
	@JAX_PLATFORMS=cpu OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal -q

# A framework that is missing must not pass as tests that were skipped.
bridges: $(BRIDGES_READY)  ## test the bridges to PyTorch, transformers and Flax, in .venv-bridges
	@echo "bridges: pytest tests/bridges, on the CPU"
	@$(BRIDGES)/python -c 'import flax, torch, transformers'
	@JAX_PLATFORMS=cpu $(BRIDGES)/python -m pytest -q tests/bridges

# As a stranger installs it: plain pip, an empty environment, nothing of this folder on the path.
# The pins only make it fast and repeatable. The wheel is made from the sdist.
wheel: $(READY)  ## build the wheel and the sdist into build/dist, install the wheel, smoke test
	@echo "wheel: building into build/dist, and a smoke test in build/wheel-venv"
	@rm -rf build/dist build/wheel-venv
	@$(BIN)/uv build --quiet --build-constraints constraints.txt --out-dir build/dist .
	@$(PYTHON) -m venv build/wheel-venv
	@build/wheel-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--constraint constraints.txt build/dist/underhood-*.whl
	@cd build && JAX_PLATFORMS=cpu wheel-venv/bin/python -I ../tests/packaging/smoke.py
	@rm -rf build/wheel-venv

chaos: $(READY)  ## the tests that freeze and kill processes for longer than make test does
	@echo "chaos: pytest -m chaos, on the CPU"
	@JAX_PLATFORMS=cpu $(BIN)/python -m pytest -q -m chaos

reproduce: $(READY)  ## redo the paper's results at SCALE (smoke, quick, paper) into OUT
	@echo "reproduce: all results at scale $(SCALE), into $(OUT), by the engine $(ENGINE)"
	@$(BIN)/underhood reproduce all --scale $(SCALE) --out $(OUT) --resume --engine $(ENGINE) $(ON) $(STOP)

# Both are looked at, also if the first differs.
verify: $(READY)  ## compute the numbers in results/ again from the stored students, and compare
	@echo "verify: results/reference/quick and results/paper, on the CPU"
	@status=0; for folder in results/reference/quick results/paper; do \
		JAX_PLATFORMS=cpu $(BIN)/underhood verify $$folder || status=1; \
	done; exit $$status

soak: $(READY)  ## half an hour of random faults over a repeated study
	@echo "soak: benchmarks/soak.py, 30 minutes, on the CPU"
	@JAX_PLATFORMS=cpu $(BIN)/python benchmarks/soak.py 30

bench: $(BENCH_READY)  ## run every benchmark, keeping what it prints in build/bench
	@mkdir -p build/bench
	@for file in benchmarks/[!_]*.py; do \
		[ -e "$$file" ] || { echo "bench: no benchmarks found"; exit 0; }; \
		case "$$file" in */soak.py|*/house.py) continue;; esac; \
		log="build/bench/$$(basename "$$file" .py).txt"; \
		echo "bench: $$file, into $$log"; \
		$(BIN)/python "$$file" >"$$log.part"; status=$$?; cat "$$log.part"; \
		[ $$status -eq 0 ] || { echo "bench: $$file failed; its output is in $$log.part" >&2; exit 1; }; \
		mv "$$log.part" "$$log"; \
	done

lint: $(READY)  ## check style and formatting
	@echo "lint: ruff check, ruff format --check"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

format: $(READY)  ## mend style and formatting where that is safe
	@echo "format: ruff check --fix-only, ruff format"
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

types: $(READY)  ## check types
	@echo "types: mypy underhood"
	@$(BIN)/mypy --no-error-summary underhood

house: $(READY)  ## check sizes of folders and files, names, and types: benchmarks/house.py
	@echo "house: benchmarks/house.py"
	@$(BIN)/python benchmarks/house.py

report: $(READY)  ## make the page and the figures for the results in OUT
	@echo "report: the results in $(OUT)"
	@$(BIN)/underhood report $(OUT)

docs: $(DOCS_READY)  ## build the documentation in build/site
	@echo "docs: mkdocs, into build/site"
	@$(BIN)/python docs/architecture.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -d build/site

# Needs uv alone, so it also works when the old pins no longer fit pyproject.toml.
pins:  ## write constraints.txt anew from pyproject.toml
	@[ -x $(BIN)/uv ] || $(MAKE) --no-print-directory setup
	@echo "pins: resolving the newest versions, into constraints.txt"
	@sed -n '/^#/p' constraints.txt >.venv/constraints.txt
	@printf 'hatchling\nuv\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--extra dev --extra docs --extra bench --extra cluster --extra torch --extra flax pyproject.toml - >>.venv/constraints.txt
	@mv .venv/constraints.txt constraints.txt

# The stamp is removed first and made last: without it .venv counts as half-made and is made
# again from nothing. It bears the time of the start, so an edit during set-up is not missed.
$(READY): pyproject.toml constraints.txt
	@if [ -e $@ ] && $(BIN)/python -c '' 2>/dev/null; then \
		echo "setup: pyproject.toml or constraints.txt changed, updating .venv"; \
		rm -f $@ $(DOCS_READY) $(BENCH_READY); \
	else \
		command -v $(PYTHON) >/dev/null || { \
			echo "setup: $(PYTHON) not found. Install Python 3.11 or newer, or name one: make PYTHON=..." >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
			echo "setup: $(PYTHON) is older than Python 3.11. Name a newer one: make PYTHON=python3.12" >&2; exit 1; }; \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
			echo "setup: $(PYTHON) cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }; \
		echo "setup: making .venv and installing the pinned packages, a minute or two the first time"; \
		$(PYTHON) -m venv --clear .venv; \
	fi
	@touch $@.part
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(INSTALL) --editable '.[dev,cluster]'
	@mv $@.part $@

# While these install, .venv counts as half-made too.
$(DOCS_READY) $(BENCH_READY): .venv/.ready-%: $(READY)
	@echo "setup: installing the pinned packages for $*"
	@mv $(READY) $(READY).part
	@$(INSTALL) --editable '.[dev,cluster,$*]'
	@mv $(READY).part $(READY)
	@touch $@

# torch takes 5.6 GB and only the bridges need it, so they have an environment of their own. Its
# byte code is made when it is first needed: compiling all of torch takes longer than the tests.
$(BRIDGES_READY): pyproject.toml constraints.txt | $(READY)
	@echo "setup: making .venv-bridges with PyTorch, transformers and Flax, a minute and 5.6 GB"
	@$(PYTHON) -m venv --clear --without-pip .venv-bridges
	@touch $@.part
	@$(BIN)/uv pip install --quiet --python $(BRIDGES)/python $(PINNED) --editable '.[dev,torch,flax]'
	@mv $@.part $@

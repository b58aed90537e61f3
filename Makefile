# Two commands do everything on a machine with Python 3.11 or newer: `make run` and `make test`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
# Which tests, by their marks (setup.cfg); all, where there are none.
WHICH ?=
# A folder for files of JUnit's form, with each test's seconds.
JUNIT ?=
# Tests at a time. Many of them wait, so three keep two cores busy; one that starts workers starts
# several, so more of them need more cores.
JOBS ?= 3
# Debian's, for a testbed, Open MPI, containers, PDFs of reports, reports in a browser, and compiled
# models.
PACKAGES := slurmd slurmctld slurm-client munge openssh-server iproute2 rsync git openmpi-bin \
	charliecloud-runtime libpango-1.0-0 libpangoft2-1.0-0 chromium chromium-driver g++
# The cases of docs/figures/speed.svg.
TITLED := loop_gather_scatter,accelerate_example,transformers_trainer,plain_ddp_with_muster,$\
	trainer_with_muster,gather_scatter,all_reduce
# Another Slurm than the installed one for test-cluster: see tests/cluster/slurm_root.sh.
SLURM_ROOT ?=
# Where torch comes from, if not from pip's own index (where Linux gets the CUDA build).
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# One stamp for each set of dependencies: a second `make run` starts at once.
RUN := $(VENV)/.installed-run
TEST := $(VENV)/.installed-test
DEV := $(VENV)/.installed-dev
$(RUN): EXTRAS := [trainer,report]
$(RUN): INSTALLED := $(RUN)
$(TEST): EXTRAS := [trainer,report,test]
$(TEST): INSTALLED := $(RUN) $(TEST)
$(DEV): EXTRAS := [trainer,report,test,dev]
$(DEV): INSTALLED := $(RUN) $(TEST) $(DEV)

.PHONY: help run install packages figures test test-quick test-slow test-all test-bare test-here test-cluster soak bench gpu-check versions check format setup clean

help: ## show this
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 20
	@echo
	@echo "make run ARGS='--sync all_reduce'     further flags, to make test likewise"
	@echo "make run TORCH_INDEX=https://download.pytorch.org/whl/cpu   torch from this index"
	@echo "make test JOBS=8                      for 16 cores: test processes at a time (default: 3)"
	@echo "make test-cluster SLURM_ROOT=DIR       on another Slurm, unpacked into DIR (docs/slurm.md)"
	@echo "make run PYTHON=python3.12            another Python, for a new $(VENV)"

# Four workers of one machine share one import where Linux's fork is (docs/own-programs.md).
START := $(if $(filter Linux,$(shell uname)),--workers preload)
run: $(RUN) ## install what is needed, then train with four workers on this machine
	@$(BIN)/python launch/submit.py --launcher local --nodes 4 --sync ddp $(START) $(ARGS)

test: export WHICH := not slow
test-slow: export WHICH := slow
test: ## install what is needed, then test what README and docs promise: both halves, whatever the first one finds
test-slow: ## the tests that make test leaves out, likewise
test test-slow:
	@export TESTS_NOT_TRIED; TESTS_NOT_TRIED=$$(mktemp); trap 'rm -f "$$TESTS_NOT_TRIED"' EXIT; \
	failed=0; for half in test-here test-cluster; do \
		$(MAKE) --no-print-directory $$half || failed=1; \
	done; exit $$failed

# More of them only wait than of the others.
test-quick: $(TEST) ## while one writes: what starts no workers, and one run of each mode
	@$(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist worksteal -m 'not slow' --quick \
		--ignore=tests/cluster -q $(ARGS)

test-all: ## make test, then make test-slow, whatever the first one finds
	@failed=0; for part in test test-slow; do $(MAKE) --no-print-directory $$part || failed=1; done; \
	exit $$failed

REPORT = $(if $(JUNIT),--junitxml=$(JUNIT)/$@.xml)
# Of the slow tests, more only wait.
AT_ONCE = $$(($(JOBS) + $(if $(filter not,$(WHICH)),0,1)))
test-here: $(TEST) ## those of both that need this machine only; WHICH=slow: those with this mark
	@$(BIN)/python -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder -m '$(WHICH)' \
		--ignore=tests/cluster $(REPORT) $(ARGS)

# There is one testbed per box, so each of the processes that test gets a box of its own; where none
# can be made, tests are skipped and say what they need. These tests wait more than they compute.
BOX_NEEDS := unshare --mount --net --pid --uts --fork ip -V
BOX := $(if $(SLURM_ROOT),tests/cluster/rooted.sh $(SLURM_ROOT),tests/cluster/boxed.sh)
test-cluster: $(TEST) ## those of both on the testbed: real Slurm, real sshd (as root, else they are skipped)
	@set --; if $(if $(SLURM_ROOT),true,$(BOX_NEEDS) >/dev/null 2>&1); then \
		set -- --dist worksteal --tx "$$(($(JOBS) + 1))*popen//python=$(BOX) $(BIN)/python"; \
	fi; $(BIN)/python -m pytest -rs -m '$(WHICH)' tests/cluster "$$@" $(REPORT) $(ARGS)

test-bare: $(TEST) ## make test with the programs of make packages hidden: the last lines list what is skipped (as root)
	@layers=$$(mktemp -d); trap 'rm -rf "$$layers"' EXIT; \
	unshare --mount tests/without_packages.sh "$$layers" $$($(BIN)/python -m tests.required) -- \
		env -u REQUIRE_ALL $(MAKE) --no-print-directory test

soak: $(TEST) ## what others may write, 5,000 forms of each; kill workers, agents, nodes and writers at twenty moments each, and continue; an hour without a false alarm (2 h)
	@SOAK_EXAMPLES=5000 $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 -m fuzz --ignore=tests/cluster $(ARGS)
	@SOAK_MOMENTS=20 $(BIN)/python -m pytest -n $(JOBS) tests/launch/runs/test_kill_and_continue.py \
		tests/train/program/test_killed_program.py $(ARGS)
	@SOAK_MOMENTS=20 $(MAKE) --no-print-directory test-cluster ARGS='-k test_random_kills $(ARGS)'
	@SOAK_MINUTES=60 $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 tests/launch/agent/inspection/test_no_false_alarm.py $(ARGS)

bench: $(TEST) ## measure this beside hand-written training, on the testbed (as root, takes an hour)
	@$(BIN)/python -m tests.benchmarks.check
	@$(BIN)/python -m tests.benchmarks.bench $(ARGS)

figures: $(TEST) ## draw the figures of README and docs anew (on the testbed, as root: half an hour)
	@$(BIN)/python -m tests.figures.recording
	@$(BIN)/python -m tests.figures.results quick
	@tests/cluster/boxed.sh $(BIN)/python -m tests.benchmarks.bench --rates 1gbit --batch-size 16 --rounds 2 --steps 10 \
		--only $(TITLED) --figure docs/figures/speed.svg

results: $(TEST) ## run a study of docs/results anew, and take its report: ARGS='cs744 --rate 1gbit --data-dir cifar10' (as root)
	@tests/cluster/boxed.sh $(BIN)/python -m tests.figures.results $(ARGS)

gpu-check: $(TEST) ## what a machine with GPUs can show, as a page: logs/gpu-check.md, or ARGS='--page FILE'
	@$(BIN)/python -m tests.gpu.check $(ARGS)

versions: $(TEST) ## the library on other versions of torch: ARGS='2.6.0@3.10 2.15.0@3.13' (as root; 6 GB each, for a while)
	@$(BIN)/python -m tests.versions $(ARGS)

check: $(DEV) ## format, lint, types, import contracts, shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/shellcheck .ci/run $(wildcard launch/*.sh launch/ssh/*.sh launch/ssh/*/*.sh slurm/*.sh tests/*.sh tests/cluster/*.sh)

format: $(DEV) ## rewrite the source in the project's format
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

install: $(RUN) ## install what runs need, without the developers' tools, and run nothing

packages: ## on Debian and Ubuntu, as root: install the programs without which tests are skipped
	@command -v apt-get >/dev/null || { \
		echo "error: there is no apt-get; install what the last lines of make test name" >&2; \
		exit 1; }
	@wanted=(); for one in $(PACKAGES) $$($(HEADERS)); do \
		[[ $$(dpkg-query --show --showformat='$${db:Status-Status}' "$$one" 2>&1) == installed* ]] || \
			wanted+=("$$one"); \
	done; \
	if (($${#wanted[@]})); then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update --quiet=2; \
		known=(); for one in "$${wanted[@]}"; do \
			if [[ $$(apt-cache policy "$$one") == *Candidate:\ [^\(]* ]]; then known+=("$$one"); \
			else echo "there is no package $$one here: its tests stay skipped" >&2; fi; \
		done; \
		apt-get install --quiet=2 --yes --no-install-recommends "$${known[@]}"; \
	fi

setup: $(DEV) ## install everything, and run nothing

clean: ## remove .venv and the tools' caches; logs/ stays
	rm -rf $(VENV) build muster.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip keeps an installed torch of the right version, wherever it came from; so an index that was
# not the last one named removes it first.
ifneq ($(TORCH_INDEX),)
ifneq ($(TORCH_INDEX),$(shell cat $(VENV)/.torch-index 2>/dev/null))
.PHONY: $(VENV)/.torch-index
endif
endif
$(VENV)/.torch-index: $(VENV)/pyvenv.cfg
	@if [ -n "$(TORCH_INDEX)" ]; then \
		echo "installing torch from $(TORCH_INDEX)" >&2; \
		$(PIP) uninstall --yes torch 2>/dev/null; \
		$(PIP) install --index-url "$(TORCH_INDEX)" "$$(grep '^torch==' constraints.txt)"; \
	fi
	@echo "$(TORCH_INDEX)" > $@

# --use-pep517, since the older way of building seqeval, the default before pip 23.1, now fails.
$(RUN) $(TEST) $(DEV): setup.cfg pyproject.toml constraints.txt $(VENV)/.torch-index
	@echo "installing the pinned dependencies into $(VENV) (the first time takes minutes)" >&2
	@$(PIP) install --use-pep517 --constraint constraints.txt --editable ".$(EXTRAS)"
	@touch $(INSTALLED)

# Prints the package of Python.h, if that is not there.
HEADERS = $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -c 'import os, sys, sysconfig; \
	os.path.exists(sysconfig.get_path("include") + "/Python.h") or \
	print("python%d.%d-dev" % sys.version_info[:2])'

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: no $(PYTHON) here; install Python 3.11 or newer, or name it: PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version);" \
			"name a newer one: PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu:" \
			"sudo apt-get install $(notdir $(PYTHON))-venv" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV)

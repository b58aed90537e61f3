# Two commands do everything on a machine with Python 3.11 or newer: `make run` and `make test`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
# Selects tests by their marks, as pytest's -m does (the marks are in setup.cfg). If empty, all tests run.
WHICH ?=
# The folder for JUnit XML files, which contain the duration of each test.
JUNIT ?=
# How many tests run at a time. Many tests spend their time waiting, so three keep two cores busy.
# A test that starts workers starts several, so a higher number needs more cores.
JOBS ?= 3
# Debian packages for the testbed, Open MPI, containers, reports as PDF and in a browser, and compiled
# models.
PACKAGES := slurmd slurmctld slurm-client munge openssh-server iproute2 rsync git openmpi-bin \
	charliecloud-runtime libpango-1.0-0 libpangoft2-1.0-0 chromium chromium-driver g++
# The cases of docs/figures/speed.svg.
TITLED := loop_gather_scatter,accelerate_example,transformers_trainer,plain_ddp_with_muster,$\
	trainer_with_muster,gather_scatter,all_reduce
# For test-cluster: the Slurm to use instead of the installed one (see tests/cluster/slurm_root.sh).
SLURM_ROOT ?=
# The package index to install torch from. By default, pip's index, which has the CUDA build for Linux.
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Each set of dependencies has a stamp file, so a second `make run` starts at once.
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

help: ## show this help
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 20
	@echo
	@echo "make run ARGS='--sync all_reduce'     add flags (also works with make test)"
	@echo "make run TORCH_INDEX=https://download.pytorch.org/whl/cpu   install torch from this index"
	@echo "make test JOBS=8                      run 8 tests at a time, for example with 16 cores (default: 3)"
	@echo "make test-cluster SLURM_ROOT=DIR       test with another Slurm, unpacked into DIR (docs/slurm.md)"
	@echo "make run PYTHON=python3.12            create $(VENV) with this Python"

# On Linux, the four workers of one machine share the imports (docs/own-programs.md).
START := $(if $(filter Linux,$(shell uname)),--workers preload)
run: $(RUN) ## install the dependencies, then train with four workers on this machine
	@$(BIN)/python launch/submit.py --launcher local --nodes 4 --sync ddp $(START) $(ARGS)

test: export WHICH := not slow
test-slow: export WHICH := slow
test-all: export WHICH :=
test: ## install the dependencies, then run the tests of this machine and of the testbed, except slow ones
test-slow: ## run the slow tests
test-all: ## run all tests
# If the first half fails, the second one still runs.
test test-slow test-all:
	@export TESTS_NOT_TRIED; TESTS_NOT_TRIED=$$(mktemp); trap 'rm -f "$$TESTS_NOT_TRIED"' EXIT; \
	failed=0; for half in test-here test-cluster; do \
		$(MAKE) --no-print-directory $$half || failed=1; \
	done; exit $$failed

# These tests spend more of their time waiting.
test-quick: $(TEST) ## run the tests that start no workers, and one run of each sync mode (2 min)
	@$(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist worksteal -m 'not slow' --quick \
		--ignore=tests/cluster -q $(ARGS)

REPORT = $(if $(JUNIT),--junitxml=$(JUNIT)/$@.xml)
# Slow tests spend more of their time waiting.
AT_ONCE = $$(($(JOBS) + $(if $(filter not,$(WHICH)),0,1)))
test-here: $(TEST) ## run all tests that need no testbed; WHICH=slow selects the slow ones
	@$(BIN)/python -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder -m '$(WHICH)' \
		--ignore=tests/cluster $(REPORT) $(ARGS)

# A machine has one testbed, so each test process gets a box of its own (tests/cluster/boxed.sh). If
# boxes cannot be created, the tests are skipped and listed with the reason. These tests wait more than
# they compute.
BOX_NEEDS := unshare --mount --net --pid --uts --fork ip -V
BOX := $(if $(SLURM_ROOT),tests/cluster/rooted.sh $(SLURM_ROOT),tests/cluster/boxed.sh)
test-cluster: $(TEST) ## run all tests on the testbed, with real Slurm and sshd (as root; otherwise they are skipped)
	@set --; if $(if $(SLURM_ROOT),true,$(BOX_NEEDS) >/dev/null 2>&1); then \
		set -- --dist worksteal --tx "$$(($(JOBS) + 1))*popen//python=$(BOX) $(BIN)/python"; \
	fi; $(BIN)/python -m pytest -rs -m '$(WHICH)' tests/cluster "$$@" $(REPORT) $(ARGS)

test-bare: $(TEST) ## run make test without the programs that make packages installs; its last lines list the skipped tests (as root)
	@layers=$$(mktemp -d); trap 'rm -rf "$$layers"' EXIT; \
	unshare --mount tests/without_packages.sh "$$layers" $$($(BIN)/python -m tests.required) -- \
		env -u REQUIRE_ALL $(MAKE) --no-print-directory test

soak: $(TEST) ## random input, random kills, and an hour without a false alarm (2 h)
	@SOAK_EXAMPLES=5000 $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 -m fuzz --ignore=tests/cluster $(ARGS)
	@SOAK_MOMENTS=20 $(BIN)/python -m pytest -n $(JOBS) tests/launch/runs/test_kill_and_continue.py \
		tests/train/program/test_killed_program.py $(ARGS)
	@SOAK_MOMENTS=20 $(MAKE) --no-print-directory test-cluster ARGS='-k test_random_kills $(ARGS)'
	@SOAK_MINUTES=60 $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 tests/launch/agent/inspection/test_no_false_alarm.py $(ARGS)

bench: $(TEST) ## compare Muster with hand-written training, on the testbed (as root, 1 h)
	@$(BIN)/python -m tests.benchmarks.check
	@$(BIN)/python -m tests.benchmarks.bench $(ARGS)

figures: $(TEST) ## draw the figures of the README and docs again, on the testbed (as root, 30 min)
	@$(BIN)/python -m tests.figures.recording
	@$(BIN)/python -m tests.figures.results quick
	@tests/cluster/boxed.sh $(BIN)/python -m tests.benchmarks.bench --rates 1gbit --batch-size 16 --rounds 2 --steps 10 \
		--only $(TITLED) --figure docs/figures/speed.svg

results: $(TEST) ## run a study of docs/results again, and replace its report: ARGS='cs744 --rate 1gbit --data-dir cifar10' (as root)
	@tests/cluster/boxed.sh $(BIN)/python -m tests.figures.results $(ARGS)

gpu-check: $(TEST) ## check a machine with GPUs, and write the results to logs/gpu-check.md, or ARGS='--page FILE'
	@$(BIN)/python -m tests.gpu.check $(ARGS)

versions: $(TEST) ## test the library with other versions of torch: ARGS='2.6.0@3.10 2.15.0@3.13' (as root; needs 6 GB of disk for each)
	@$(BIN)/python -m tests.versions $(ARGS)

check: $(DEV) ## check formatting, lint, types, import contracts and shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/shellcheck .ci/run $(wildcard launch/*.sh launch/ssh/*.sh launch/ssh/*/*.sh slurm/*.sh tests/*.sh tests/cluster/*.sh)

format: $(DEV) ## format the source
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

install: $(RUN) ## install the dependencies of runs, without the developers' tools

packages: ## install the programs without which tests are skipped (Debian and Ubuntu, as root)
	@command -v apt-get >/dev/null || { \
		printf '%s\n' "error: apt-get not found" \
			"tip: install the programs that the last lines of make test list" >&2; \
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
			else echo "package $$one not found: its tests are skipped" >&2; fi; \
		done; \
		apt-get install --quiet=2 --yes --no-install-recommends "$${known[@]}"; \
	fi

setup: $(DEV) ## install everything, including the developers' tools

clean: ## remove .venv and the tools' caches, but not logs/
	rm -rf $(VENV) build muster.egg-info .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip keeps an installed torch of the right version, whichever index it came from. So if the index has
# changed since the last call, remove torch first.
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

# --use-pep517: pip before 23.1 builds seqeval in an older way by default, which now fails.
$(RUN) $(TEST) $(DEV): setup.cfg pyproject.toml constraints.txt $(VENV)/.torch-index
	@echo "installing the pinned dependencies into $(VENV) (the first time takes minutes)" >&2
	@$(PIP) install --use-pep517 --constraint constraints.txt --editable ".$(EXTRAS)"
	@touch $(INSTALLED)

# Prints the package that contains Python.h, if Python.h is missing.
HEADERS = $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -c 'import os, sys, sysconfig; \
	os.path.exists(sysconfig.get_path("include") + "/Python.h") or \
	print("python%d.%d-dev" % sys.version_info[:2])'

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) >/dev/null || { \
		printf '%s\n' "error: $(PYTHON) not found" \
			"tip: install Python 3.11 or newer, or select it: PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		printf '%s\n' "error: Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version)" \
			"tip: select a newer one: PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		printf '%s\n' "error: $(PYTHON) cannot create a virtual environment" \
			"tip: on Debian and Ubuntu: sudo apt-get install $(notdir $(PYTHON))-venv" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Every target is complete on a machine that has Python 3.11+ (with venv), a C++ compiler, make and a package index:
# it makes the environment it needs under .venv, installs, and runs. Stamp files make a second run quick; the package
# is reinstalled when its sources change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
REQUIREMENTS := $(PYTHON) scripts/requirements.py

# `make bench QUICK=1` only tries the harness.
BENCH_FLAGS := $(if $(QUICK),--quick)

SOURCES := CMakeLists.txt pyproject.toml LICENSE $(wildcard README.md) $(wildcard explorer/*) \
  $(shell find native src -type f ! -path 'native/tests/*' ! -path 'native/count/*' ! -path 'native/exhaustive/*' ! -path '*/__pycache__/*' ! -name '*.so')
NATIVE_FILES = $(shell find native -name '*.cpp' -o -name '*.h')
CMAKE := $(shell command -v cmake || echo $(VENV)/native/bin/cmake)
CMAKE_READY := $(if $(filter $(VENV)/%,$(CMAKE)),$(VENV)/native/.ready)

EXHAUSTIVE := build/exhaustive/exhaustive
EXHAUSTIVE_CHECKS := exp,softmax.columns.cached,logsumexp.columns.cached,merge.law
THREADS = $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)))')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test examples exhaustive proofs explorer scoreboard bench bench-faces bench-losses count docs lint format sanitize wheel check-neon check-avx2 clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.package $(VENV)/.extra-plots ## the main job: report on real scores and on 8192 x 4096, then a run
	$(BIN)/online-softmax report examples/attention_scores.npy
	$(BIN)/online-softmax report --rows 8192 --cols 4096 --dtype float32
	@mkdir -p out
	$(BIN)/online-softmax run examples/attention_scores.npy -o out/attention_probabilities.npy

test: $(VENV)/.package $(VENV)/.extra-test $(EXHAUSTIVE) ## the test suite, on every core (THOROUGH=1: every case of the slow families)
	$(if $(THOROUGH),THOROUGH=1) $(BIN)/pytest --numprocesses $(THREADS) --dist worksteal --durations=20

examples: $(VENV)/.package $(VENV)/.extra-examples ## a real model, a paged cache, 65,536 tokens, a model trained (QUICK=1: shorter)
	$(BIN)/python examples/minilm_embeddings.py
	$(BIN)/python examples/paged_decode.py
	$(BIN)/python examples/long_document.py $(if $(QUICK),--tokens 8192)
	$(BIN)/python examples/train_language_model.py $(if $(QUICK),--steps 4)
	$(BIN)/python examples/torch_train.py $(if $(QUICK),--steps 4)
	$(BIN)/python examples/jax_attention.py $(if $(QUICK),--steps 4)
	$(BIN)/python examples/transformers_minilm.py
	$(BIN)/python examples/shards.py $(if $(QUICK),--cols 4096)
	$(BIN)/python examples/same_bits.py $(if $(QUICK),--cols 4096)

exhaustive: $(EXHAUSTIVE) ## every pair of 16-bit values: exp, softmax, log-sum-exp, merge (ALL=1: every kernel, QUICK=1: every 127th)
	$(EXHAUSTIVE) --threads $(THREADS) $(if $(ALL),,--only $(EXHAUSTIVE_CHECKS)) $(if $(QUICK),--stride 127)

# Linked with the kernels that the package was built with, where its build has left them.
$(EXHAUSTIVE): $(VENV)/.package $(CMAKE_READY) $(wildcard native/exhaustive/*)
	$(CMAKE) -S native/exhaustive -B build/exhaustive \
	  -DCORE_LIBRARY="$$(ls -t "$(CURDIR)"/build/cp*/libonline_softmax_core.a 2> /dev/null | head -n 1)"
	MAKEFLAGS= $(CMAKE) --build build/exhaustive --parallel
	@touch $@

proofs: ## the machine-checked proofs, their axioms and their tables (installs Coq where it may; UPDATE=1: new tables)
	$(PYTHON) scripts/proofs.py --install $(if $(UPDATE),--update)

explorer: $(VENV)/.package $(VENV)/.extra-check $(VENV)/.extra-browser ## the explorer's tests in a headless Chromium (installs it where it may)
	@command -v chromium > /dev/null || [ -n "$$CHROMIUM" ] || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium > /dev/null; } || \
	  { echo "make explorer: it needs Chromium: apt-get install chromium, or CHROMIUM=/path/to/it"; exit 1; }
	$(BIN)/python scripts/explorer_data.py --check
	REQUIRE_BROWSER=1 $(BIN)/pytest tests/explorer_

scoreboard: $(VENV)/.package $(VENV)/.extra-test $(VENV)/.extra-bench ## the conformance kit on every library: docs/scoreboard.md, peers.json
	$(BIN)/python -m online_softmax.conformance.scoreboard --jobs $(THREADS)

bench: $(VENV)/.package $(VENV)/.extra-bench ## ratios to the peers and to this machine's ceilings; JSON, table and figure
	$(BIN)/python -m benchmarks.bench $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.small_calls $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.busy_core $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.choice $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.attention $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.attention_accuracy $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.attention_orders $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.losses $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.products $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.torch_calls $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.training $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.jax_rows $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.exact_rows $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.exact_accuracy $(BENCH_FLAGS)
	$(if $(QUICK),,$(BIN)/online-softmax report > benchmarks/results/report.txt)
	$(BIN)/python -m benchmarks.table $(BENCH_FLAGS) $(if $(QUICK),,--readme README.md)

bench-faces: $(VENV)/.package $(VENV)/.extra-bench ## the part of `bench` on PyTorch, Transformers and JAX alone
	$(BIN)/python -m benchmarks.torch_calls $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.jax_rows $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.training $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.table $(BENCH_FLAGS) $(if $(QUICK),,--readme README.md)

bench-losses: $(VENV)/.package $(VENV)/.extra-bench ## the part of `bench` on losses alone
	$(BIN)/python -m benchmarks.losses $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks.table $(BENCH_FLAGS) $(if $(QUICK),,--readme README.md)

count: $(VENV)/.package $(CMAKE_READY) ## the bytes of the CPU kernels under cachegrind, held to the model (needs valgrind)
	$(CMAKE) -S native/count -B build/count
	$(CMAKE) --build build/count --parallel
	$(BIN)/python -m benchmarks.count --driver build/count/count $(BENCH_FLAGS)

lint: $(VENV)/lint/.ready ## ruff, mypy --strict, clang-format
	$(VENV)/lint/bin/ruff check .
	$(VENV)/lint/bin/ruff format --check .
	$(VENV)/lint/bin/mypy --strict src
	$(VENV)/lint/bin/clang-format --dry-run --Werror $(NATIVE_FILES)

format: $(VENV)/lint/.ready ## put every file in the form that lint asks for
	$(VENV)/lint/bin/ruff check --fix-only --quiet .
	$(VENV)/lint/bin/ruff format .
	$(VENV)/lint/bin/clang-format -i $(NATIVE_FILES)

sanitize: $(CMAKE_READY) ## the native tests under the address and undefined-behaviour sanitizers
	$(CMAKE) -S native/tests -B build/sanitize -DCMAKE_BUILD_TYPE=Debug -DSANITIZE=ON
	$(CMAKE) --build build/sanitize --parallel
	build/sanitize/native_tests

wheel: $(VENV)/wheel/.ready ## a manylinux wheel in wheelhouse/, as auditwheel sees it
	rm -rf dist wheelhouse
	$(VENV)/wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	PATH="$(abspath $(VENV)/wheel/bin):$$PATH" $(VENV)/wheel/bin/auditwheel repair --wheel-dir wheelhouse dist/*.whl
	$(VENV)/wheel/bin/auditwheel show wheelhouse/*.whl
	@ls -l wheelhouse

check-neon: $(CMAKE_READY) ## the native tests built for arm64 and run under qemu
	CMAKE="$(CMAKE)" scripts/check_neon.sh

check-avx2: $(CMAKE_READY) ## the native tests on an emulated CPU that has AVX2 and nothing newer
	CMAKE="$(CMAKE)" scripts/check_avx2.sh

docs: $(VENV)/.package $(VENV)/.extra-docs ## the documentation site in build/docs/html; warnings are errors
	rm -rf build/docs
	$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --quiet \
	  --doctree-dir build/docs/trees docs build/docs/html
	$(BIN)/python scripts/check_site.py build/docs/html

clean: ## remove what the targets made, the environments too
	rm -rf $(VENV) build dist wheelhouse out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks examples scripts src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments ----------------------------------------------------------------------------------------------------
# .venv holds the package and its extras. The tools live in .venv/lint, .venv/wheel and .venv/native, so that what mypy
# sees never depends on which extras happen to be installed.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Built with the tools in .venv and not in an isolated environment, whose new path each time would have every file
# compiled again. Without MAKEFLAGS, so that the compilers take every core under `make --jobs` too.
$(VENV)/.package: $(SOURCES) $(VENV)/.build-tools
	MAKEFLAGS= $(BIN)/python $(PIP) --no-build-isolation .
	@touch $@

$(VENV)/.build-tools: pyproject.toml scripts/requirements.py | $(VENV)/.made
	$(REQUIREMENTS) build group:native > $@.txt
	$(BIN)/python $(PIP) -r $@.txt
	@touch $@

# After the package: two pips at once in one environment get in each other's way under `make --jobs`.
$(VENV)/.extra-%: pyproject.toml scripts/requirements.py | $(VENV)/.package
	$(REQUIREMENTS) project extra:$* > $@.txt
	$(BIN)/python $(PIP) -r $@.txt
	@touch $@

# mypy needs the types of the run-time dependencies and of pytest; the other tools need themselves alone.
$(VENV)/lint/.ready: GROUPS := project extra:check group:lint
$(VENV)/wheel/.ready: GROUPS := group:wheel
$(VENV)/native/.ready: GROUPS := group:native
$(VENV)/%/.ready: pyproject.toml scripts/requirements.py | $(VENV)/.made
	$(PYTHON) -m venv $(VENV)/$*
	$(REQUIREMENTS) $(GROUPS) > $(VENV)/$*/requirements.txt
	$(VENV)/$*/bin/python $(PIP) -r $(VENV)/$*/requirements.txt
	@touch $@

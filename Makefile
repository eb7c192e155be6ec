# Every target does its own set-up: a virtual environment in .venv with the versions of constraints.txt, of what
# the registry needs to run, or of that and of what tests and lint need.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUNNABLE := $(VENV)/.installed-to-run
STAMP := $(VENV)/.installed
# Tests of one file share servers, so they stay together. The files keep their order, which ends with short ones: a
# long one at the end would leave the other processes without work. There are two processes more than the two cores that
# are meant, because many tests wait for other processes. What fails is run once more, alone, at the end.
PYTEST = $(BIN)/python -m tests.second_chance -n 4 --dist loadfile --no-loadscope-reorder

# Two targets must not install into the environment at the same time. `.NOTPARALLEL` prevents that within one make.
# Between two makes a lock does, and the second one checks again what is installed once it holds the lock.
.NOTPARALLEL:
LOCKED := $(shell command -v flock >/dev/null && echo flock .)

.PHONY: help setup setup-all demo run test test-all test-quick test-processors test-gpu test-full check format docs bench soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

setup: $(RUNNABLE) ## create .venv with the pinned packages that the registry needs to run
setup-all: $(STAMP) ## the same, with those that tests and lint need

# $(1): what is installed, in words. $(2): the dependency groups for it.
define install
	@echo "Installing $(1) into $(VENV): this takes minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt pip
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[embedded,traces]' $(2)
endef

$(RUNNABLE): pyproject.toml constraints.txt
$(STAMP): pyproject.toml constraints.txt tests/vllm-omni.txt

ifndef HAS_LOCK
$(RUNNABLE) $(STAMP):
	@$(LOCKED) $(MAKE) --no-print-directory HAS_LOCK=1 $@
else
$(RUNNABLE):
	$(call install,what the registry needs to run)
	@touch $@

$(STAMP):
	$(call install,what the registry and its tests need,--group test --group lint --group docs)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)/vllm-omni -r tests/vllm-omni.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt --upgrade \
		--target $(VENV)/torchaudio torchaudio
	rm -f $(VENV)/torchaudio/torchaudio/lib/*.so  # they load only beside a CUDA build of torch
	@touch $(RUNNABLE) $@
endif

demo: $(RUNNABLE) ## a voice goes in, its artifact comes out: the whole way, on this machine, then everything stops
	@$(BIN)/python -m services.embedded demo

run: $(RUNNABLE) ## keep the embedded registry running (HOST, PORT, DATA, PROFILES, WEIGHTS, REDIS_URL)
	@exec $(BIN)/python -m services.embedded run

test: $(STAMP) ## what must pass before a change lands: every test that takes less than about three seconds
	$(PYTEST)

test-all: $(STAMP) ## the whole test suite, with the slow tests (before a release)
	$(PYTEST) -m "not full"

test-quick: $(STAMP) ## in less than a minute: unit tests that start no process and run no encoder
	$(PYTEST) -m "not processes and not slow and not full" tests/unit --ignore tests/unit/extractors

# What the three libraries that compute may use of the processor: by default, what one without AVX-512 has.
ATEN ?= avx2
MKL ?= AVX2
ONEDNN ?= AVX2
test-processors: $(STAMP) ## compare the encoders with their references as another processor would compute (ATEN, MKL, ONEDNN)
	ATEN_CPU_CAPABILITY=$(ATEN) MKL_ENABLE_INSTRUCTIONS=$(MKL) ONEDNN_MAX_CPU_ISA=$(ONEDNN) \
		$(PYTEST) -m "goldens and not slow and not full" tests/unit/extractors

test-gpu: $(STAMP) ## compare the encoders with their references on a GPU of NVIDIA
	EXTRACTOR_TEST_DEVICE=cuda $(PYTEST) -m "(goldens or gpu) and not slow and not full" tests/unit/extractors

test-full: $(STAMP) ## all tests, and all encoders at their full size (minutes of arithmetic, 10 GiB of memory)
	$(PYTEST) -m ""

check: $(STAMP) ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation site, which needs no network to be read (build/documentation/site)
	@$(BIN)/python -m tools.documentation build/documentation

bench: $(STAMP) ## run the benchmarks (results: benchmarks/README.md)
	$(BIN)/python -m benchmarks

soak: $(STAMP) ## fault simulation over many seeds, queue and whole registry under long fire (SEEDS=1000)
	SIMULATION_SEEDS=$(or $(SEEDS),1000) $(BIN)/python -m pytest -q -m "not full" tests/simulation/documents
	QUEUE_SOAK_JOBS=3000 QUEUE_SOAK_SECONDS=120 $(BIN)/python -m pytest -q -m "not full" --timeout 600 \
		tests/integration/test_batch_worker.py -k nothing_is_lost
	FAULT_SECONDS=$(or $(FAULT_SECONDS),300) $(BIN)/python -m pytest -q -m "not full" \
		tests/integration/test_process_faults.py
	TTS_SECONDS=120 $(BIN)/python -m pytest -q -m "not full" --timeout 600 \
		tests/integration/api/test_tts_server.py
	FLEET_VOICES=200 $(BIN)/python -m pytest -q -m "not full" tests/integration/test_change_of_encoder.py
	MOVED_VOICES=500 $(BIN)/python -m pytest -q -n 4 -m "not full" tests/integration/api/test_moving_many.py
	EXACT_SECONDS=120 $(BIN)/python -m pytest -q -m "not full" --timeout 600 tests/integration/test_exact_reads.py

clean: ## remove what set-up and the tools left (not your data)
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

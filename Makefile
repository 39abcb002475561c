# Two commands: make demo, make test. The rest is one line each over CMakePresets.json.
#
#   PRESET=release | dev | asan | tsan      BENCH="run NAME"      (make test PRESET=asan)
#   METHOD=momentum | ...  SECONDS=600        (make fuzz)
PRESET ?= release
BENCH ?= list
METHOD ?= momentum
SECONDS ?= 60
build := build/$(PRESET)

# ccache stops the build where it cannot write; a missing or read-only HOME must not.
ifeq ($(CCACHE_DIR)$(shell test -w "$$HOME" || echo no),no)
export CCACHE_DIR := $(CURDIR)/.cache/ccache
endif

.PHONY: help setup build demo test bench performance fuzz cuda-check fmt check clean
.NOTPARALLEL:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

demo: build ## set up, build, train the demo preset on the sample text, evaluate, generate
	@tools/demo.sh $(build)/moesaic

test: build ## set up, build, run every test
	@ctest --preset $(PRESET) --no-tests=error -j 2

build: $(build)/build.ninja ## set up, build (PRESET=release, dev, asan, tsan)
	@cmake --build --preset $(PRESET)

bench: build ## the benchmarks: BENCH="list" or BENCH="run NAME"
	@$(build)/moesaic_bench $(BENCH)

performance: build ## measure every figure of docs/performance.md again (root, an idle machine, a day)
	@$(build)/moesaic_bench list | while read -r name about; do \
	  case "$$about" in *"with --cluster)") cluster=--cluster ;; *) cluster= ;; esac; \
	  $(build)/moesaic_bench run $$name $$cluster --json bench/results/$$name.json </dev/null || exit 1; done
	@tools/performance.py

fuzz: setup ## fuzz one method of the codec: METHOD=momentum SECONDS=600 (needs clang-14)
	@command -v clang++-14 >/dev/null || { echo "fuzz: clang++-14 not found; get it with:"; \
	  echo "  sudo apt-get install --no-install-recommends -y clang-14 libclang-rt-14-dev libomp-14-dev"; exit 1; }
	@cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_$(METHOD) fuzz_seeds
	@build/fuzz/fuzz_seeds build/fuzz/seeds && mkdir -p build/fuzz/found/$(METHOD)
	@build/fuzz/fuzz_$(METHOD) -max_total_time=$(SECONDS) -max_len=4096 -print_final_stats=1 \
	  -artifact_prefix=build/fuzz/ build/fuzz/found/$(METHOD) build/fuzz/seeds/$(METHOD) tests/codec/fuzz/corpus/$(METHOD)

cuda-check: $(build)/build.ninja ## compile the GPU twins and the program that checks them (needs nvcc 13.0, no GPU)
	@cmake --build --preset $(PRESET) --target cuda_check
	@echo "cuda-check: compiled; on a machine with a GPU, run $(build)/gpu_check/gpu_check"

fmt: setup ## format the tracked C++ files
	@tools/format.sh

check: setup ## format, static checks, layering
	@tools/check.sh

clean: ## remove what was built (not .venv, not runs)
	rm -rf build

setup: ## Debian packages and .venv; says what it needs when not root
	@tools/setup.sh

# Configured once; after that ninja sees for itself when a CMakeLists.txt or a folder has changed.
$(build)/build.ninja: CMakePresets.json | setup
	@cmake --preset $(PRESET)

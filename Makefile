# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest. Everything made goes to build/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-c test-python test-gpu mutants bench cubins fuzz sanitize sanitize-gpu fmt lint clean wheels

BUILD   := build
VENV    := $(BUILD)/venv
CORE    := common/opt_core
JOBS    ?= $(shell nproc)
GPU_TESTS = $(CORE)/tests/gpu $(wildcard $(CORE)/opt_core/kernels/*/test_*gpu*.py)
# cmake and ninja come with the environment; a system copy is used where there is one
TOOLS   := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
SOURCES := $(shell git ls-files -co --exclude-standard '*.c' '*.h' 2>/dev/null)
# Binaries of the CUDA members: ON where nvcc 13.0.88 is, otherwise OFF. CUBINS=DEV while a kernel is being worked on: docs/add-a-member.md.
# A demo does not wait for them (1 to 3 minutes) unless there is a GPU that could use them.
PREBUILT = $(firstword $(wildcard $(VENV)/bin/python) $(or $(PYTHON),python3)) $(CORE)/build_prebuilt.py
CUBINS ?= $(eval CUBINS := $(shell $(PREBUILT) --find >/dev/null 2>&1 && echo ON || echo OFF))$(CUBINS)
HAS_GPU := command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: need-build need-test environment environment-test
# With wheels in dist/ a machine that cannot build is not stopped here: tools/environment.sh decides.
WHEELS := $(and $(wildcard dist/opt_core-*.whl),$(wildcard dist/esmfold_opt-*.whl))
need-build:
	@[ "$${OPT_CORE_FROM_WHEEL:-0}" = 1 ] || tools/need_debian.sh $(if $(WHEELS),optional:)"building the C core" gcc libc6-dev pkg-config libjansson-dev libsodium-dev zlib1g-dev
	@if dpkg-query -W python3 >/dev/null 2>&1 && [ "$$(readlink -f "$$(command -v $${PYTHON:-python3})" | cut -d/ -f1-3)" = /usr/bin ]; then \
	   tools/need_debian.sh "a virtual environment" python3-venv python3-dev; fi
need-test: need-build
	@tools/need_debian.sh "the C tests" libcmocka-dev g++
environment: need-build
	@tools/environment.sh $(VENV)
environment-test: need-test
	@OPT_CORE_CUBINS=$(CUBINS) tools/environment.sh $(VENV) test

demo: environment ## fold three proteins stock, exact and fast; ends with a table and an HTML report
	@$(VENV)/bin/python tools/demo.py --out $(BUILD)/demo $(DEMO)

test: environment-test test-c test-python ## every test that needs no GPU

test-c: environment-test ## the C tests
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/c -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_WERROR=ON -DOPT_CORE_CUBINS=$(CUBINS) >$(BUILD)/cmake.log || { tail -30 $(BUILD)/cmake.log; exit 1; }
	@$(TOOLS) cmake --build $(BUILD)/c -j $(JOBS) >$(BUILD)/build.log || { tail -60 $(BUILD)/build.log; exit 1; }
	@cd $(BUILD)/c && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --output-on-failure --no-tests=error

test-python: environment-test ## the Python tests, on the installed packages
	@OPT_CORE_CLI="$(CURDIR)/$(BUILD)/c/bin/opt_core" $(VENV)/bin/python -m pytest -q -rs --durations=8 $(CORE)/tests esmfold/opt/tests tests $(PYTEST)

test-gpu: ## what the GPU of this machine can test; PYTHON_GPU=python3: with that Python as it is, nothing is built
	@if $(HAS_GPU); then python=$$(tools/gpu_python.sh $(VENV) pytest) && "$$python" -m pytest -q -rs -p no:cacheprovider $(GPU_TESTS) $(PYTEST); \
	else echo "[test-gpu] skipped: no NVIDIA GPU on this machine (nvidia-smi finds none). It would run: $(GPU_TESTS)"; fi

sanitize-gpu: ## the CUDA members under compute-sanitizer: memcheck, racecheck, initcheck; SIZES="33 130"
	@if $(HAS_GPU); then python=$$(tools/gpu_python.sh $(VENV)) && tools/sanitize_gpu.sh "$$python" $(SIZES); \
	else echo "[sanitize-gpu] skipped: no NVIDIA GPU on this machine (nvidia-smi finds none)"; fi

cubins: ## compiles the CUDA members and brings the committed digests up to date (needs nvcc 13.0.88)
	@$(PREBUILT)

mutants: environment-test ## builds each member with a fault and demands that its test fails
	@$(TOOLS) $(VENV)/bin/python tools/mutants.py --build $(BUILD)/mutants

ifeq ($(DEVICE),cuda)
bench: ## FAMILY=ln|transition|trimul|triattn|triattn_module|apb|engine|all: paired timings, written to bench/results; DEVICE=cuda
	@if $(HAS_GPU); then python=$$(tools/gpu_python.sh $(VENV)) && "$$python" bench/bench.py --family $(or $(FAMILY),all) --device cuda $(BENCH); \
	else echo "[bench] skipped: no NVIDIA GPU on this machine (nvidia-smi finds none)"; fi
else
bench: environment
	@$(VENV)/bin/python bench/bench.py --family $(or $(FAMILY),all) --device $(or $(DEVICE),cpu) $(BENCH)
endif

fuzz: environment-test ## every parser under libFuzzer with ASan and UBSan; SECONDS_EACH=20
	@tools/need_debian.sh optional:"fuzzing" clang libclang-rt-14-dev
	@$(TOOLS) tools/fuzz.sh $(BUILD)/fuzz $(BUILD)/corpus $(or $(SECONDS_EACH),20)

sanitize: environment-test ## the C tests under ASan, UBSan and LeakSanitizer
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/sanitize -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_SANITIZE=address,undefined -DOPT_CORE_CUBINS=OFF >/dev/null
	@$(TOOLS) cmake --build $(BUILD)/sanitize -j $(JOBS) >$(BUILD)/build.log || { tail -60 $(BUILD)/build.log; exit 1; }
	@cd $(BUILD)/sanitize && ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 OC_TEST_QUICK=1 \
	   PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --output-on-failure --no-tests=error

wheels: environment ## opt_core and the kit as wheels in dist/
	@$(PREBUILT) --find >/dev/null || echo "[wheels] the wheel of the core holds no cubins: its CUDA members will refuse with no_prebuilt"
	@SKBUILD_CMAKE_DEFINE="OPT_CORE_CUBINS=$(CUBINS)" $(VENV)/bin/python -m pip wheel -q --no-deps --no-build-isolation -w dist $(CORE) esmfold/opt && ls dist

fmt: ## clang-format over the C sources
	@if command -v clang-format >/dev/null 2>&1; then clang-format -i $(SOURCES); else echo "[fmt] skipped: clang-format is not installed"; fi

lint: environment-test ## format, clang-tidy, width of CUDA sources, SPDX lines, engine names in the core
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/c -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_WERROR=ON -DOPT_CORE_CUBINS=$(CUBINS) >$(BUILD)/cmake.log || { tail -30 $(BUILD)/cmake.log; exit 1; }
	@tools/lint.sh $(BUILD)/c

clean: ## removes what make made, the environment included
	rm -rf $(BUILD) dist

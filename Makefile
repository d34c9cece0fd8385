# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest. Everything made goes to build/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-c test-python test-gpu mutants bench fuzz sanitize fmt lint clean wheels

BUILD   := build
VENV    := $(BUILD)/venv
CORE    := common/opt_core
JOBS    ?= $(shell nproc)
# cmake and ninja come with the environment; a system copy is used where there is one
TOOLS   := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
SOURCES := $(shell git ls-files -co --exclude-standard '*.c' '*.h' 2>/dev/null)

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
	@tools/environment.sh $(VENV) test

demo: environment ## fold three proteins stock, exact and fast; ends with a table and an HTML report
	@$(VENV)/bin/python tools/demo.py --out $(BUILD)/demo $(DEMO)

test: environment-test test-c test-python ## every test that needs no GPU

test-c: environment-test ## the C tests
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/c -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_WERROR=ON >$(BUILD)/cmake.log || { tail -30 $(BUILD)/cmake.log; exit 1; }
	@$(TOOLS) cmake --build $(BUILD)/c -j $(JOBS) >$(BUILD)/build.log || { tail -60 $(BUILD)/build.log; exit 1; }
	@cd $(BUILD)/c && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --output-on-failure --no-tests=error

test-python: environment-test ## the Python tests, on the installed packages
	@OPT_CORE_CLI="$(CURDIR)/$(BUILD)/c/opt_core" $(VENV)/bin/python -m pytest -q -rs --durations=8 $(CORE)/tests esmfold/opt/tests tests $(PYTEST)

test-gpu: environment-test ## what the GPU of this machine can test
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then $(VENV)/bin/python -m pytest -q $(CORE)/tests/gpu; \
	else echo "[test-gpu] skipped: no NVIDIA GPU on this machine (nvidia-smi finds none)"; fi

mutants: environment-test ## builds each member with a fault and demands that its test fails
	@$(TOOLS) $(VENV)/bin/python tools/mutants.py --build $(BUILD)/mutants

bench: environment ## FAMILY=ln|transition|trimul|triattn|triattn_module|apb|engine|all: paired timings, written to bench/results
	@$(VENV)/bin/python bench/bench.py --family $(or $(FAMILY),all) --device $(or $(DEVICE),cpu)

fuzz: environment-test ## every parser under libFuzzer with ASan and UBSan; SECONDS_EACH=20
	@tools/need_debian.sh optional:"fuzzing" clang libclang-rt-14-dev
	@$(TOOLS) tools/fuzz.sh $(BUILD)/fuzz $(BUILD)/corpus $(or $(SECONDS_EACH),20)

sanitize: environment-test ## the C tests under ASan, UBSan and LeakSanitizer
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/sanitize -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_SANITIZE=address,undefined >/dev/null
	@$(TOOLS) cmake --build $(BUILD)/sanitize -j $(JOBS) >$(BUILD)/build.log || { tail -60 $(BUILD)/build.log; exit 1; }
	@cd $(BUILD)/sanitize && ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 OC_TEST_QUICK=1 \
	   PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --output-on-failure --no-tests=error

wheels: environment ## opt_core and the kit as wheels in dist/
	@$(VENV)/bin/python -m pip wheel -q --no-deps --no-build-isolation -w dist $(CORE) esmfold/opt && ls dist

fmt: ## clang-format over the C sources
	@if command -v clang-format >/dev/null 2>&1; then clang-format -i $(SOURCES); else echo "[fmt] skipped: clang-format is not installed"; fi

lint: environment-test ## format, clang-tidy, SPDX lines, engine names in the core
	@$(TOOLS) cmake -S $(CORE) -B $(BUILD)/c -G Ninja -DOPT_CORE_TESTS=ON -DOPT_CORE_WERROR=ON >$(BUILD)/cmake.log || { tail -30 $(BUILD)/cmake.log; exit 1; }
	@tools/lint.sh $(BUILD)/c

clean: ## removes what make made, the environment included
	rm -rf $(BUILD) dist

# The front door. `make` builds, `make test` tests; each installs what it needs (Debian packages).
BUILD = cmake -S . -B build/$@ -G Ninja -DMC_UNITY=ON $(1) && cmake --build build/$@
JOBS := $(shell nproc)
prefix ?= /usr/local

all: release
setup:;   @scripts/setup
release: setup;  $(call BUILD,-DCMAKE_BUILD_TYPE=RelWithDebInfo)
debug:   setup;  $(call BUILD,-DCMAKE_BUILD_TYPE=Debug)
asan:    setup;  $(call BUILD,-DCMAKE_BUILD_TYPE=Debug -DMC_SANITIZE=address$(comma)undefined) && scripts/test build/$@ -L fast
tsan:    setup;  $(call BUILD,-DCMAKE_BUILD_TYPE=Debug -DMC_SANITIZE=thread) && scripts/test build/$@ -L fast
test: release;   scripts/test build/release -L 'fast|net'
soak: release;   scripts/test build/release -L soak
demo: release;   scripts/demo
bench: release;  cmake --build build/release --target benches && bench/run
gpu-check: release; build/release/gpu-check
lint:     setup; scripts/lint
lint-all: setup; scripts/lint --all
fmt:;     clang-format -i $$(git ls-files '*.h' '*.cc' '*.cu')
install: release; cmake --install build/release --prefix $(prefix)
clean:;   rm -rf build
comma := ,
.PHONY: all setup release debug asan tsan test soak demo bench gpu-check lint lint-all fmt install clean

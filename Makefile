# The front door. `make` builds, `make test` tests; each installs what it needs (Debian packages).
# folder, options, target
BUILD_IN = cmake -S . -B build/$(1) -G Ninja -DMC_UNITY=ON $(2) && cmake --build build/$(1) $(if $(3),--target $(3))
JOBS := $(shell nproc)
prefix ?= /usr/local

all: release
setup:;   @scripts/setup
release: setup;  $(call BUILD_IN,$@,-DCMAKE_BUILD_TYPE=RelWithDebInfo)
debug:   setup;  $(call BUILD_IN,$@,-DCMAKE_BUILD_TYPE=Debug)
# The address sanitizer's build is clang's: a second compiler reads everything, its thread-safety analysis on.
asan-build:;     @scripts/setup --lint
	$(call BUILD_IN,asan,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++ -DMC_SANITIZE=address$(comma)undefined,asan_tests)
tsan-build:;     @scripts/setup --lint
	$(call BUILD_IN,tsan,-DCMAKE_BUILD_TYPE=Debug -DMC_SANITIZE=thread -DMC_THREADS_ONLY=ON,tsan_tests)
asan: asan-build; scripts/test build/$@ -L fast
tsan: tsan-build; scripts/test build/$@ -L threads
test: release;   scripts/test build/release -L 'fast|net'
soak: release;   scripts/test build/release -L soak
demo: release;   scripts/demo
python: release
	@scripts/setup --python
	scripts/wheel build/release
bench: release;  cmake --build build/release --target benches && bench/run
gpu-check: release; build/release/gpu-check
lint:     setup; scripts/lint
lint-all: setup; scripts/lint --all
nightly:; scripts/nightly
fmt:;     clang-format -i $$(git ls-files '*.h' '*.cc' '*.cu')
install: release; cmake --install build/release --prefix $(prefix)
clean:;   rm -rf build
comma := ,
.PHONY: all setup release debug asan asan-build tsan tsan-build test soak demo python bench gpu-check lint lint-all nightly fmt install clean

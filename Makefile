# The jobs of this repository. Each installs what it needs (tools/setup), builds, and does its work.
# Options:  CUDA=auto|on|off  CUDA kernels (tools/cuda_toolchain)    JOBS=n  compilers side by side
#           ARGS="..."        more arguments for the greenfast command, or parts for make test
CUDA ?= auto
JOBS ?= $(shell nproc)
ARGS ?=
export CUDA JOBS

.DEFAULT_GOAL := help
.PHONY: help build run test bench format docs clean

help: ## this list
	@sed -n 's/^# \(Options\)/\1/p; s/^#  \( *ARGS\)/ \1/p' $(MAKEFILE_LIST)
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## the library and the greenfast command, in build/release
	@tools/setup build
	@tools/build release

run: build ## check and time every kernel of this machine, on synthetic and on real input
	@tools/run $(ARGS)

test: ## everything CI runs: tests, sanitizers, fuzzing, layers, format, docs, packages (ARGS=PART... for some)
	@tools/setup build test format docs
	@tools/test $(ARGS)

bench: build ## time the kernels of this machine
	@build/release/bin/greenfast bench $(ARGS)

format: ## clang-format all sources in place
	@tools/setup format
	@tools/check_format --fix

docs: ## the API reference from the public headers, in build/docs/html
	@tools/setup docs
	@tools/docs

clean: ## remove build/
	rm -rf build

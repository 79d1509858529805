# `make` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup build run test lint doc clean

# An RDMA device of this machine, in place of the software ones.
DEVICE ?=

target_dir := $(or $(CARGO_TARGET_DIR),target)
echo := $(abspath $(target_dir))/release/doorbell-echo

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## install what is missing: Debian packages, the test machine's kernel
	@.ci/setup.sh

build: setup ## build everything, optimised
	cargo build --release --workspace

run: setup ## the echo server and client on the software mlx5 device (DEVICE=rxe: on rxe in the test machine; DEVICE=mlx5_0: on a device of this machine)
	cargo build --release -p doorbell-hw-tests --bin doorbell-echo -p mlx5-emu
ifeq ($(DEVICE),)
	hw-tests/with-emu '"$(echo)" pair --server-device mlx5_0 --client-device mlx5_0 --messages 5000'
else ifeq ($(DEVICE),rxe)
	hw-tests/with-rxe '"$(echo)" pair --server-device rxeA --client-device rxeB'
else
	"$(echo)" pair --server-device $(DEVICE) --client-device $(DEVICE)
endif

test: setup ## all tests; those on devices on rxe and on the software mlx5 device (DEVICE=mlx5_0: on a device of this machine)
	hw-tests/run-tests $(DEVICE)

lint: setup ## format and clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

doc: setup ## the documentation, in target/doc
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

clean: ## remove what was built (the test machine's kernel stays)
	cargo clean
